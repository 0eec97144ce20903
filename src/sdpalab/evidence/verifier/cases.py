"""A case in a bundle: all figures of its record are derived again from its raw arrays."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.archive import Members
from sdpalab.evidence.verifier.arrays import array_form, decode, input_names, near, normal_inputs
from sdpalab.evidence.verifier.attention import intended_of, reference_of
from sdpalab.evidence.verifier.facts import LIMITED, STATUSES, UNDECLARED
from sdpalab.evidence.verifier.findings import MALFORMED, Findings
from sdpalab.evidence.verifier.rule import (
    Exact,
    errors_of,
    fixed_elements,
    has_rule_for,
    keeps_original_contract,
    limits_of,
    lse_errors_of,
    lse_of,
    status_of,
)
from sdpalab.evidence.verifier.weights import ROWS, Operands

__all__ = ["MOST_AT_ONCE", "MOST_SCORES", "Cases", "excess_of"]

DERIVED = ("PASSED", "INCORRECT", "NOT_FINITE")
"""Statuses that follow from arrays."""
MOST_THREADS = 8
MOST_SCORES = 1 << 36
"""Scores that the cases of a bundle may ask for together: about an hour on two cores."""
MOST_AT_ONCE = 1 << 28
"""Scores of one block of rows, or of one problem in exact arithmetic: 2 GiB in float64."""
LEAST_ROWS = 64
"""Rows that a head counts for at least: a loop over keys costs as much for one row as for so many."""
Case = Mapping[str, Any]


def excess_of(cases: Iterable[Case], algebra: Iterable[Case]) -> str:
    """The finding about cases that ask for more work than :data:`MOST_SCORES`; empty if they do not.

    An element of the output counts as a score, and so do 128 products of a score. The sizes alone decide: no array is
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
        """Derives what :meth:`check` compares: cases on the same inputs together, in several threads.

        The outcome depends on neither: a case has its findings, or the exception that its record causes. A case with
        which nothing can be done here is left to :meth:`check`.
        """
        members = self.bundle.members
        groups: dict[str, list[Case]] = {}
        for case in cases:
            with suppress(*MALFORMED):
                if case["status"] in DERIVED and not missing_of(case, members):
                    inputs = [case["digests"][name] for name in input_names(case["problem"])]
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
        """Checks one case; True if it was re-derived from raw arrays."""
        self.bundle.same_keys(where, "case", case)
        self.bundle.same_keys(where, "problem", case["problem"])
        if case["status"] not in STATUSES or case["status"] == "INTERRUPTED":
            self.bundle.find(where, f"{case['status']!r} is not a status of a case")
        if case["status"] != "PASSED" and not case["reason"]:
            self.bundle.find(where, f"{case['status']} without a reason")
        contract = keeps_original_contract(case["errors"]) if case["errors"] else None
        if case["original_contract"] is not contract:
            self.bundle.find(
                where, f"by its errors the original contract is {contract}, not {case['original_contract']}"
            )
        ran = case["run"].get("ptx_sha256", [])
        simulated = built or str(case["run"].get("device", "")).startswith("simulator")
        if set(ran) - built or (case["status"] == "PASSED" and simulated and not ran):
            self.bundle.find(where, "it does not say that it ran the PTX in this bundle")
        self.bundle.used.update(paths_of(case).values())
        missing = missing_of(case, self.bundle.members)
        if "o_second" in case["digests"] and case["status"] == "PASSED":
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


def paths_of(case: Case) -> dict[str, str]:
    """The files of a case's arrays, by what they are."""
    return {name: f"arrays/{digest}.raw" for name, digest in case["digests"].items()}


def missing_of(case: Case, members: Members) -> list[str]:
    """The arrays that a case needs and the bundle lacks."""
    paths = paths_of(case)
    return [name for name in (*input_names(case["problem"]), "o", "yardstick") if paths.get(name, "") not in members]


def size_of(case: Case, members: Members) -> int:
    """A figure that grows with the number of scores of a case."""
    paths = paths_of(case)
    return len(members[paths["q"]]) * len(members[paths["k"]])


def thread_count() -> int:
    """As many as this process has CPUs; one where OpenBLAS has threads of its own, which would wait for each other."""
    if os.environ.get("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS")) != "1":
        return 1
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, MOST_THREADS)


def derived_together(cases: list[Case], members: Members) -> dict[int, list[str] | Exception]:
    """What is wrong with the arrays or figures of each case, by its ``id``; they have the same problem and inputs."""
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
    """Derives cases with the same problem and the same inputs: what they have in common is derived once."""

    def __init__(self, case: Case, members: Members) -> None:
        self.members = members
        self.problem = case["problem"]
        self.arrays = self.decoded(case, input_names(self.problem))
        q, k, v = (self.arrays[name] for name in "qkv")
        self.inputs = Operands(q, k, v, {**self.problem, "arrays": self.arrays})
        self.exact: Exact | None = None
        self.normal: dict[int, list[str]] = {}
        self.fixed: dict[Any, tuple[Any, Any]] = {}
        self.yardsticks: dict[str, dict[str, Any]] = {}
        self.limits: dict[str, dict[str, float]] = {}
        self.intended: dict[str, dict[str, Any]] = {}
        self.log_sums: dict[str, tuple[Any, Any]] = {}

    def decoded(self, case: Case, names: Iterable[str]) -> dict[str, Any]:
        """Arrays of a case by name."""
        paths, problem = paths_of(case), case["problem"]
        return {name: decode(self.members[paths[name]], *array_form(name, problem)) for name in names}

    def findings_of(self, case: Case) -> list[str]:
        """What is wrong with the arrays or the figures of a case."""
        findings: list[str] = []
        problem, numerics = case["problem"], case["run"]["numerics"]
        arrays = self.decoded(case, [name for name in case["digests"] if name not in self.arrays])
        if problem.get("kv_lengths") and self.arrays["kv_lengths"].tolist() != list(problem["kv_lengths"]):
            findings.append("its array of lengths is not that of its problem")
        if case["inputs"] == "normal":
            findings += self.normal_findings(case["seed"])
        declares = case["run"].get("ptx_sha256")
        if not (has_rule_for(numerics) if declares else numerics == UNDECLARED):
            findings.append(f"there is no rule for the numerics that it declares, {numerics}")
        if self.exact is None:
            self.exact = Exact(reference_of(self.inputs), problem["dtype"])
        limits = self.limits_for(case, arrays["yardstick"], self.exact)
        findings += self.yardstick_findings(case, self.exact, limits)
        errors = errors_of(arrays["o"], self.exact, self.fixed_for(numerics), case["errors"])
        recorded, scale = dict(case["errors"]), self.exact.largest
        lse = self.lse_for(case, arrays.get("lse"), recorded.pop("lse", None), findings)
        compare(findings, "errors", recorded, errors, scale)
        compare(findings, "limits", case["limits"], limits, scale)
        status = status_of(errors, limits, lse)
        if case["status"] != status:
            findings.append(f"the record says {case['status']}, and its arrays say {status}")
        return findings

    def normal_findings(self, seed: int) -> list[str]:
        """Which inputs are not the normal ones of a seed."""
        if seed not in self.normal:
            self.normal[seed] = [
                f"{name} is not what normal inputs of seed {seed} are"
                for name, generated in normal_inputs(self.problem, seed)
                # another math library may round one element in 10**12 the other way
                if np.count_nonzero(self.arrays[name] != generated) > 1 + generated.size // 10**6
            ]
        return self.normal[seed]

    def limits_for(self, case: Case, yardstick: Any, exact: Exact) -> dict[str, float]:
        """The limits of a case: they follow from its yardstick and its numerics."""
        numerics, digest = case["run"]["numerics"], case["digests"]["yardstick"]
        key = json.dumps([digest, numerics], sort_keys=True)
        if key not in self.limits:
            order = numerics["normalise"]
            open_orders = ("after", "before") if order == "either" else (order,)
            worst = self.intended_errors(exact, [{**numerics, "normalise": each} for each in open_orders])
            if digest not in self.yardsticks:
                self.yardsticks[digest] = errors_of(yardstick, exact)
            self.limits[key] = limits_of(exact, self.yardsticks[digest], worst, self.problem["dtype"])
        return self.limits[key]

    def intended_errors(self, exact: Exact, declared: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """The largest errors of the intended numerics over some declarations."""
        own = []
        for each in declared:
            key = json.dumps(each, sort_keys=True)
            if key not in self.intended:
                self.intended[key] = errors_of(intended_of(self.inputs, each), exact)
            own.append(self.intended[key])
        return {name: max(errors[name] for errors in own) for name in LIMITED}

    def yardstick_findings(self, case: Case, exact: Exact, limits: Mapping[str, float]) -> list[str]:
        """The finding about a yardstick that widens the limit on the largest error further than torch's output can.

        Such an output keeps the limit that follows from the undeclared numerics alone. torch's own needs at most half
        of it on every kind of inputs (``tests/evidence/test_verify_yardstick.py``).
        """
        errors = self.yardsticks[case["digests"]["yardstick"]]
        if errors["not_finite"]:
            return ["its yardstick, torch's output, is not finite in rows that are judged"]
        if errors["max_abs"] <= limits["intended_max_abs"]:
            return []
        own = self.intended_errors(exact, [{**UNDECLARED, "normalise": each} for each in ("after", "before")])
        most = limits_of(exact, {"max_abs": 0.0}, own, self.problem["dtype"])["max_abs"]
        if errors["max_abs"] <= most:
            return []
        return [f"its yardstick, torch's output, errs by {errors['max_abs']:.3g}, and its precision allows {most:.3g}"]

    def fixed_for(self, numerics: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """The elements that the inputs fix for these numerics, if any are asked for."""
        if numerics["accumulate"] != "float32":
            return None
        narrow = numerics["quantised"]
        softcap = self.problem.get("softcap", 0.0)
        cap_error = 2.0**-11 * softcap if numerics.get("tanh") == "approx" else 0.0
        key = numerics["normalise"] == "after", cap_error, narrow and narrow["rows"]
        if key not in self.fixed:
            self.fixed[key] = fixed_elements(self.inputs, *key)
        return self.fixed[key]

    def lse_for(
        self, case: Case, lse: Any, recorded: Mapping[str, Any] | None, findings: list[str]
    ) -> dict[str, Any] | None:
        """Compares the figures of a log-sum-exp with the array; returns the derived figures, or None without one."""
        if (recorded is None) is not (lse is None):
            findings.append("a log-sum-exp without figures, or figures without one")
        if recorded is None or lse is None:
            return None
        key = json.dumps(case["run"]["numerics"], sort_keys=True)
        if key not in self.log_sums:
            self.log_sums[key] = lse_of(self.inputs, case["run"]["numerics"])
        reference, limit = self.log_sums[key]
        derived = lse_errors_of(lse, reference, limit, list(recorded["row"]))
        # The sums behind the reference are larger than the limit by as much as float32 is coarse.
        compare(findings, "errors lse", recorded, derived, 2.0**23 * float(np.nanmax(limit)))
        return derived


def compare(
    findings: list[str], what: str, recorded: Mapping[str, Any], derived: Mapping[str, Any], scale: float
) -> None:
    """Compares the figures of a record with those re-derived; ``scale`` is the largest element of the reference."""
    if set(recorded) != set(derived):
        findings.append(f"the fields of its {what} are not those of the format")
        return
    for name, value in derived.items():
        unit = scale if name.endswith("max_abs") or name == "error" else 1.0
        if recorded[name] != value and not (isinstance(value, float) and near(recorded[name], value, unit)):
            findings.append(f"{what} {name} is {recorded[name]} in the record and {value} from the arrays")
