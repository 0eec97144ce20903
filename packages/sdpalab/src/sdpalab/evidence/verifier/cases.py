"""Check of a case in a bundle: derives all figures of its record from its raw arrays, by the judge's own rule."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.archive import Members
from sdpalab.evidence.verifier.arrays import arrays_of, inputs_of, is_at, near, paths_of, problem_of
from sdpalab.evidence.verifier.facts import STATUSES
from sdpalab.evidence.verifier.findings import MALFORMED, Findings
from sdpalab.inputs import make_inputs, padded_rows, with_forward
from sdpalab.inputs.reference import ROWS, Weights, attention_float64, finite
from sdpalab.judge.rule.exact import ExactElements, cap_error_of, exact_elements, has_exact_elements
from sdpalab.judge.rule.expected import ExpectedGradients
from sdpalab.judge.rule.figures import (
    Errors,
    Limits,
    LseErrors,
    broken_rules,
    keeps_original_contract,
    share_of,
    yardstick_name,
)
from sdpalab.judge.rule.limits import UNIT_ROUNDOFF, limits_for, measure, row_errors
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64, measure_lse
from sdpalab.judge.rule.numerics import UNDECLARED, check_numerics, dequantised, intended_output, orders_of
from sdpalab.judge.strides import Strides, expandable
from sdpalab.kernels.declarations import Numerics, Quantisation
from sdpalab.scoring import ARRAYS, TASKS

__all__ = ["MOST_AT_ONCE", "MOST_SCORES", "Cases", "excess_of"]

DERIVED = ("PASSED", "INCORRECT", "NOT_FINITE")
"""Statuses that are derived from arrays."""
FORWARD_RESULTS = ("o", "lse")
"""Inputs of a backward problem that follow from the others."""
MOST_THREADS = 8
MOST_SCORES = 1 << 36
"""Most scores of all cases of a bundle together, about an hour on two cores."""
MOST_AT_ONCE = 1 << 28
"""Most scores of one block of rows, or of one problem in exact arithmetic: 2 GiB in float64."""
LEAST_ROWS = 64
"""Least number of rows that a head counts for: a loop over keys costs the same for fewer rows."""
Case = Mapping[str, Any]


def excess_of(cases: Iterable[Case], algebra: Iterable[Case]) -> str:
    """The finding about cases with more work than :data:`MOST_SCORES`; empty otherwise.

    An element of the output counts as a score, and so do 128 products of a score. Only the sizes are used; no array is
    read.
    """
    total, most = 0, 0
    for each, rows_at_once in (*((case, ROWS) for case in cases), *((case, None) for case in algebra)):
        with suppress(*MALFORMED):
            sizes = (each["problem"][name] for name in ("batch", "heads", "seq_q", "seq_kv", "head_dim"))
            batch, heads, rows, keys, width = (max(int(size), 1) for size in sizes)
            total += batch * heads * max(rows, LEAST_ROWS) * max(keys + width, keys * width // 128)
            most = max(most, (batch * heads * rows if rows_at_once is None else min(rows, rows_at_once)) * keys)
    if total > MOST_SCORES:
        return f"its cases ask for {total:.1e} scores, and at most {MOST_SCORES:.1e} are derived"
    return f"a case asks for {most:.1e} scores at once, and at most {MOST_AT_ONCE:.1e} are" * (most > MOST_AT_ONCE)


class Cases:
    """Checks the cases of one bundle."""

    def __init__(self, bundle: Findings) -> None:
        self.bundle = bundle
        self.derived: dict[int, list[str] | Exception] = {}

    def derive(self, cases: Iterable[Case]) -> None:
        """Derive the figures that :meth:`check` compares: cases on the same inputs together, in several threads.

        Grouping and threads do not change the outcome: a case has its findings, or the exception that its record
        causes. Cases that cannot be derived are left to :meth:`check`.
        """
        members = self.bundle.members
        groups: dict[str, list[Case]] = {}
        for case in cases:
            with suppress(*MALFORMED):
                if case["status"] in DERIVED and not missing_of(case, members):
                    inputs = [case["digests"][name] for name in input_names(case)]
                    groups.setdefault(json.dumps([inputs, case["problem"]], sort_keys=True), []).append(case)
        left = deque(sorted(groups.values(), key=lambda group: -size_of(group[0], members)))

        def work() -> None:
            while left:
                with suppress(IndexError):  # another thread has taken the last
                    self.derived.update(derived_together(left.popleft(), members))

        threads = [Thread(target=work, daemon=True) for _ in range(min(thread_count(), len(left)) - 1)]
        try:
            with suppress(RuntimeError):  # no thread can be started
                for thread in threads:
                    thread.start()
            work()
        finally:
            left.clear()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def check(self, where: str, case: Case, built: set[str]) -> bool:
        """Check one case; True if it was re-derived from raw arrays."""
        self.bundle.same_keys(where, "case", case)
        self.bundle.same_keys(where, "problem", case["problem"])
        if case["status"] not in STATUSES or case["status"] == "INTERRUPTED":
            self.bundle.find(where, f"{case['status']!r} is not a status of a case")
        if case["status"] != "PASSED" and not case["reason"]:
            self.bundle.find(where, f"{case['status']} without a reason")
        errors: Any = SimpleNamespace(**case["errors"]) if case["errors"] else None
        contract = keeps_original_contract(errors) if errors else None
        if case["original_contract"] is not contract:
            self.bundle.find(
                where, f"by its errors the original contract is {contract}, not {case['original_contract']}"
            )
        ran = case["run"].get("ptx_sha256", [])
        simulated = built or str(case["run"].get("device", "")).startswith("simulator")
        if set(ran) - built or (case["status"] == "PASSED" and simulated and not ran):
            self.bundle.find(where, "it does not say that it ran the PTX in this bundle")
        self.bundle.used.update(paths_of(case["digests"]).values())
        outputs = output_names(case)
        known = {*input_names(case), *outputs, *map(yardstick_name, outputs), *(f"{name}_second" for name in outputs)}
        if others := sorted(set(case["digests"]) - known - {"lse"}):
            self.bundle.find(where, f"it names arrays that it cannot have: {', '.join(others)}")
        missing = missing_of(case, self.bundle.members)
        if case["status"] == "PASSED" and any(name.endswith("_second") for name in case["digests"]):
            self.bundle.find(where, "PASSED, and its two runs gave different outputs")
        if case["status"] not in DERIVED:
            return False
        if missing:
            self.bundle.find(where, f"{case['status']} without the array {missing[0]} that shows it")
            return False
        derived = self.derived.pop(id(case), None)
        if derived is None:
            (derived,) = derived_together([case], self.bundle.members).values()
        if isinstance(derived, Exception):
            raise derived
        for what in derived:
            self.bundle.find(where, what)
        return True


def input_names(case: Case) -> list[str]:
    """Input arrays of a case: Q, K, V, and the arrays of further fields of its problem."""
    backward = ("do", *FORWARD_RESULTS) if case["problem"].get("task") == "backward" else ()
    return [*"qkv", *(name for name in ARRAYS if case["problem"].get(name)), *backward]


def output_names(case: Case) -> tuple[str, ...]:
    """Outputs of the task of a case; those of the forward pass for an unknown task."""
    return TASKS.get(case["problem"].get("task", "forward"), TASKS["forward"])


def missing_of(case: Case, members: Members) -> list[str]:
    """Arrays that a case needs and the bundle lacks."""
    paths = paths_of(case["digests"])
    outputs = output_names(case)
    needed = (*input_names(case), *outputs, *map(yardstick_name, outputs))
    return [name for name in needed if paths.get(name, "") not in members]


def size_of(case: Case, members: Members) -> int:
    """Work estimate that grows with the number of scores of a case."""
    paths = paths_of(case["digests"])
    return len(members[paths["q"]]) * len(members[paths["k"]])


def thread_count() -> int:
    """Number of CPUs of this process; one where OpenBLAS uses its own threads, which would compete."""
    if os.environ.get("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS")) != "1":
        return 1
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, MOST_THREADS)


def derived_together(cases: list[Case], members: Members) -> dict[int, list[str] | Exception]:
    """Findings about the arrays or figures of each case, by its ``id``; the cases have the same problem and inputs."""
    results: dict[int, list[str] | Exception] = {}
    group: SameInputs | None = None
    for case in cases:
        try:
            group = group or SameInputs(case, members)
            results[id(case)] = group.findings_of(case)
        except MALFORMED as error:
            results[id(case)] = error
    return results


class SameInputs:
    """Derives cases with the same problem and the same inputs; common parts are derived once."""

    def __init__(self, case: Case, members: Members) -> None:
        self.members = members
        self.problem = problem_of(case["problem"])
        self.inputs = inputs_of(self.problem, case["digests"], members)
        self.scoring: dict[str, Any] = dict(self.problem.scoring_with(self.inputs.arrays))
        self.weights: dict[Quantisation | None, Weights] = {}
        self.reference = attention_float64(*self.inputs.qkv, **self.shared(None))
        self.largest = float(np.nanmax(np.abs(self.reference), initial=0.0))
        self.normal: dict[tuple[int, int | None], list[str]] = {}
        self.exact: dict[Any, ExactElements] = {}
        self.intended: dict[Numerics, Any] = {}
        self.limits: dict[tuple[str, Numerics], Limits] = {}
        self.log_sums: dict[Numerics, tuple[Any, Any]] = {}
        self.gradients: ExpectedGradients | None = None

    def shared(self, quantised: Quantisation | None) -> dict[str, Any]:
        """Score arguments, and the softmax weights of Q and K after quantisation."""
        if quantised not in self.weights:
            q, k = self.inputs.q, self.inputs.k
            if quantised is not None:
                q, k = dequantised(finite(q), quantised), dequantised(finite(k), quantised)
            self.weights[quantised] = Weights(q, k, **self.scoring)
        return {**self.scoring, "weights": self.weights[quantised]}

    def findings_of(self, case: Case) -> list[str]:
        """Findings about the arrays or the figures of a case."""
        findings: list[str] = []
        for name, padded in {"kv_lengths": "kv", "q_lengths": "q"}.items():
            lengths = getattr(self.problem, name)
            if lengths is None:
                continue
            if self.scoring[name].tolist() != list(lengths):
                findings.append(f"its array of {name} is not that of its problem")
            findings += [f"the padding of {each} is not NaN" for each in padded if not self.is_padded(each, lengths)]
        if case["inputs"] == "normal":
            strides = Strides(str(case["run"].get("strides", Strides.CONTIGUOUS.value)))
            findings += self.normal_findings(case["seed"], strides)
        declared = case["run"]["numerics"]
        numerics = numerics_of(declared, built=bool(case["run"].get("ptx_sha256")))
        if numerics is None:
            return [*findings, f"there is no rule for the numerics that it declares, {declared}"]
        if self.problem.backward:
            return findings + self.gradient_findings(case, numerics)
        names = [name for name in ("o", "yardstick", "lse") if name in case["digests"]]
        arrays = arrays_of(self.problem, case["digests"], self.members, names)
        limits = self.limits_for(case["digests"]["yardstick"], arrays["yardstick"], numerics)
        findings += yardstick_findings(limits, self.most_of_yardstick)
        errors = measure(arrays["o"], self.reference, self.problem.dtype, self.exact_for(numerics))
        recorded = {**case["errors"]}
        lse = self.lse_for(arrays.get("lse"), recorded.pop("lse", None), numerics, findings)
        figures = {name: value for name, value in asdict(errors).items() if name != "lse"}
        with np.errstate(invalid="ignore"):
            elements = np.abs(arrays["o"].astype(np.float64) - self.reference)
            rows = row_errors(arrays["o"], self.reference, self.problem.dtype)
        compare(findings, "errors", recorded, placed(figures, recorded, elements, rows, self.largest), self.largest)
        compare(findings, "limits", case["limits"], asdict(limits), self.largest)
        status = status_of(replace(errors, lse=lse), limits)
        if case["status"] != status:
            findings.append(f"the record says {case['status']}, and its arrays say {status}")
        return findings

    def gradient_findings(self, case: Case, numerics: Numerics) -> list[str]:
        """Findings about the figures of the gradients, and about O and the log-sum-exp among their inputs."""
        findings = [
            f"its input {name} is not that of the forward pass"
            for name in FORWARD_RESULTS
            if not self.is_of_forward_pass(name)
        ]
        if self.gradients is None:
            self.gradients = ExpectedGradients(self.problem, self.inputs)
        outputs = output_names(case)
        names = (*outputs, *map(yardstick_name, outputs))
        arrays = arrays_of(self.problem, case["digests"], self.members, names)
        yardsticks = {name: arrays[yardstick_name(name)] for name in outputs}
        shares: dict[str, tuple[float, Errors, Limits]] = {}
        for name, each in self.gradients.expected(numerics, yardsticks).items():
            largest = float(np.nanmax(np.abs(each.reference), initial=0.0))
            errors = measure(arrays[name], each.reference, self.problem.dtype, each.exact, each.magnitude)
            recorded = case["figures"][name]
            elements = np.abs(arrays[name].astype(np.float64) - each.reference)
            rows = row_errors(arrays[name], each.reference, self.problem.dtype, each.magnitude)
            figures = placed(asdict(errors), recorded["errors"], elements, rows, largest)  # with lse: None
            compare(findings, f"errors of {name}", recorded["errors"], figures, largest)
            compare(findings, f"limits of {name}", recorded["limits"], asdict(each.limits), largest)
            findings += yardstick_findings(each.limits, partial(self.most_of_gradient, name))
            shares[name] = share_of(errors, each.limits), errors, each.limits
        worst = max(shares, key=lambda name: shares[name][0])
        if any(case[part] != case["figures"][worst][part] for part in ("errors", "limits")):
            findings.append(f"its errors and limits are not those of {worst}, which uses most of a limit")
        statuses = {status_of(errors, limits) for _, errors, limits in shares.values()}
        status = next(each for each in ("NOT_FINITE", "INCORRECT", "PASSED") if each in statuses)
        if case["status"] != status:
            findings.append(f"the record says {case['status']}, and its arrays say {status}")
        return findings

    def most_of_gradient(self, name: str) -> float:
        """Largest possible error of torch's gradient: the limit of the undeclared numerics alone."""
        assert self.gradients is not None
        return self.gradients.limits(name, UNDECLARED, self.gradients.intended(UNDECLARED)[name]).max_abs

    def is_of_forward_pass(self, name: str) -> bool:
        """Whether O or the log-sum-exp of the inputs is the float64 result, rounded to the array's type once."""
        if name == "o":
            reference, given = self.reference, self.inputs.arrays["o"]
        else:
            reference, _ = log_sum_exp_float64(*self.inputs.qkv, **self.shared(None), numerics=UNDECLARED)
            given = self.inputs.arrays["lse"]
        judged = ~np.isnan(reference)
        right = reference[judged].astype(given.dtype)
        with np.errstate(invalid="ignore"):
            close = (given[judged] == right) | (np.abs(given[judged] - right) <= np.spacing(np.abs(right)))
        return bool(close.all())

    def is_padded(self, name: str, lengths: Sequence[int]) -> bool:
        """Whether all rows of Q, K or V beyond the lengths are NaN."""
        array = getattr(self.inputs, name)
        return bool(np.isnan(np.moveaxis(array, 2, 1)[padded_rows(lengths, *array.shape[::2])]).all())

    def normal_findings(self, seed: int, strides: Strides) -> list[str]:
        """Findings about inputs that are not the normal inputs of a seed, with K and V alike along an expanded axis."""
        key = seed, strides.shared_axis
        if key not in self.normal:
            inputs = make_inputs(self.problem, "normal", seed)
            if strides.shared_axis is not None:
                inputs = replace(inputs, k=expandable(inputs.k, strides), v=expandable(inputs.v, strides))
                inputs = with_forward(self.problem, inputs) if self.problem.backward else inputs
            generated = inputs.arrays
            self.normal[key] = [
                f"{name} is not what normal inputs of seed {seed} are"
                for name, array in self.inputs.arrays.items()
                # another math library may round one element in 10**12 differently
                if differing(array, generated[name]) > 1 + array.size // 10**6
            ]
        return self.normal[key]

    def intended_for(self, numerics: Numerics) -> list[Any]:
        """Intended outputs of declared numerics, one for each order that they leave open."""
        for each in orders_of(numerics):
            if each not in self.intended:
                shared = self.shared(each.quantised)
                self.intended[each] = intended_output(*self.inputs.qkv, **shared, numerics=each)
        return [self.intended[each] for each in orders_of(numerics)]

    def limits_for(self, digest: str, yardstick: Any, numerics: Numerics) -> Limits:
        """Limits of a case, from its yardstick, which has this digest, and its numerics."""
        if (digest, numerics) not in self.limits:
            intended = self.intended_for(numerics)
            self.limits[digest, numerics] = limits_for(self.reference, yardstick, intended, self.problem.dtype)
        return self.limits[digest, numerics]

    def most_of_yardstick(self) -> float:
        """Largest possible error of torch's output: the limit of the undeclared numerics alone.

        In float32 that limit is an error of a few roundings. Four roundings of the largest score, each of which shifts
        O by up to the largest V, are added to it. torch's own output needs at most 0.6 of that on every kind of inputs
        (``tests/evidence/test_verify_yardstick.py``).
        """
        own = self.intended_for(UNDECLARED)
        most = limits_for(self.reference, own[0], own, self.problem.dtype).max_abs
        if self.problem.dtype != "float32":
            return most
        q, k = (np.linalg.norm(finite(array), axis=3).max() for array in (self.inputs.q, self.inputs.k))
        tops = (each.most[np.isfinite(each.most)] for each in self.shared(None)["weights"])
        score = abs(self.problem.scale) * float(q * k) + max(float(np.abs(top).max(initial=0.0)) for top in tops)
        return most + 4 * UNIT_ROUNDOFF["float32"] * (1 + score) * float(np.abs(finite(self.inputs.v)).max())

    def exact_for(self, numerics: Numerics) -> ExactElements | None:
        """Exact elements for these numerics, if the record has any."""
        if not has_exact_elements(numerics):
            return None
        any_count, cap_error = numerics.normalise == "after", cap_error_of(numerics, self.problem.scoring)
        key = any_count, cap_error, numerics.quantised
        if key not in self.exact:
            self.exact[key] = exact_elements(
                *self.inputs.qkv,
                **self.shared(numerics.quantised),
                any_count=any_count,
                cap_error=cap_error,
                quantised=numerics.quantised,
            )
        return self.exact[key]

    def lse_for(
        self, lse: Any, recorded: Mapping[str, Any] | None, numerics: Numerics, findings: list[str]
    ) -> LseErrors | None:
        """Compare the figures of a log-sum-exp with the array; returns the derived figures, or None without one."""
        if (recorded is None) is not (lse is None):
            findings.append("a log-sum-exp without figures, or figures without one")
        if recorded is None or lse is None:
            return None
        if numerics not in self.log_sums:
            shared = self.shared(numerics.quantised)
            self.log_sums[numerics] = log_sum_exp_float64(*self.inputs.qkv, **shared, numerics=numerics)
        reference, limit = self.log_sums[numerics]
        errors = measure_lse(lse, reference, limit)
        with np.errstate(invalid="ignore"):
            shares = np.abs(lse.astype(np.float64) - reference) / limit
        if is_at(shares, list(recorded["row"]), errors.error / errors.limit if errors.limit else 0.0, 2.0**23):
            place = tuple(recorded["row"])
            errors = replace(
                errors, row=place, limit=float(limit[place]), error=float(abs(float(lse[place]) - reference[place]))
            )
        # The sums of the reference exceed the limit by as much as float32 is coarse.
        derived = {**asdict(errors), "row": list(errors.row)}
        compare(findings, "errors lse", recorded, derived, 2.0**23 * float(np.nanmax(limit)))
        return errors


def placed(
    figures: dict[str, Any], recorded: Mapping[str, Any], elements: Any, rows: Any, largest: float
) -> dict[str, Any]:
    """The figures of an output, with the recorded places of its largest element and row if these places are valid.

    Parameters
    ----------
    elements, rows : ndarray of float64
        Absolute error of each element, relative error of each row.
    largest : float
        Largest element of the reference.
    """
    figures = {
        name: value for name, value in figures.items() if name != "lse" or value is not None or "lse" in recorded
    }
    for name, place, values in (("max_abs", "max_abs_index", elements), ("worst_row_rel_l2", "worst_row", rows)):
        same = place in recorded and is_at(values, recorded[place], figures[name], largest)
        figures[place] = recorded[place] if same else list(figures[place])
    return figures


def yardstick_findings(limits: Limits, most_of: Callable[[], float]) -> list[str]:
    """The finding about a yardstick that widens the limit on the largest error beyond the largest error of torch's
    output, ``most_of()``."""
    if limits.yardstick_max_abs <= limits.intended_max_abs or limits.yardstick_max_abs <= (most := most_of()):
        return []
    error = f"errs by {limits.yardstick_max_abs:.3g}, and its precision allows {most:.3g}"
    return [f"its yardstick, torch's output, {error}"]


def differing(one: Any, other: Any) -> int:
    """Number of elements in which two arrays differ; two NaN are equal."""
    return int(np.count_nonzero((one != other) & ~((one != one) & (other != other))))


def numerics_of(declared: Mapping[str, Any], *, built: bool) -> Numerics | None:
    """Declared numerics of a record in canonical form; None if the rule does not support them.

    A candidate that was not ``built``, such as a callable, has no declaration.
    """
    with suppress(TypeError, ValueError):
        numerics = Numerics.from_dict(declared)
        if numerics.to_dict() != {**declared} or (numerics == UNDECLARED) is built:
            return None
        if built:
            check_numerics(numerics)
        return numerics
    return None


def status_of(errors: Errors, limits: Limits) -> str:
    """PASSED, INCORRECT or NOT_FINITE: the status by the numbers alone."""
    broken = broken_rules(errors, limits)
    if "not_finite" in broken:
        return "NOT_FINITE"
    if broken == ("lse",) and errors.lse is not None and errors.lse.not_finite:
        return "NOT_FINITE"
    return "INCORRECT" if broken else "PASSED"


def compare(
    findings: list[str], what: str, recorded: Mapping[str, Any], derived: Mapping[str, Any], scale: float
) -> None:
    """Compare the figures of a record with the re-derived ones; ``scale`` is the largest element of the reference."""
    if set(recorded) != set(derived):
        findings.append(f"the fields of its {what} are not those of the format")
        return
    for name, value in derived.items():
        unit = scale if name.endswith("max_abs") or name == "error" else 1.0
        if recorded[name] != value and not (isinstance(value, float) and near(recorded[name], value, unit)):
            findings.append(f"{what} {name} is {recorded[name]} in the record and {value} from the arrays")
