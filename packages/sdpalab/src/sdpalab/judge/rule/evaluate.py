"""Turns a worker's reply into a status; every field of the reply is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs, dtype_of
from sdpalab.judge.diagnose.diagnosis import gradient_hint
from sdpalab.judge.diagnose.explain import incorrect_reason, lse_reason, not_finite_reason
from sdpalab.judge.diagnose.failure import Failure, first_padding
from sdpalab.judge.diagnose.gradients import GradientFailure
from sdpalab.judge.provenance import reason_by_torch
from sdpalab.judge.rule.expected import Expected
from sdpalab.judge.rule.figures import yardstick_name
from sdpalab.judge.rule.limits import LEAST_NORMAL, UNIT_ROUNDOFF, measure
from sdpalab.judge.rule.log_sum_exp import measure_lse
from sdpalab.judge.rule.numerics import UNDECLARED, on_architecture
from sdpalab.judge.rule.references import References, references_of
from sdpalab.judge.sandbox.messages import hazard_reason
from sdpalab.judge.verdict import Errors, Figures, Limits, Status, broken_rules
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

__all__ = ["Evidence", "Judged", "declared_numerics", "evaluate", "judge_output", "misshapen"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Judged:
    """Result of the rule for the outputs of one run.

    Attributes
    ----------
    status : Status
        PASSED, INCORRECT or NOT_FINITE.
    reason : str
    figures : mapping of str to Figures
        Figures of each output, by name.
    yardsticks : mapping of str to ndarray
        torch's outputs, by name.
    """

    status: Status
    reason: str
    figures: Mapping[str, Figures]
    yardsticks: Mapping[str, Array]

    @property
    def worst(self) -> str:
        """Name of the output that uses most of a limit."""
        return max(self.figures, key=lambda name: self.figures[name].share)

    @property
    def errors(self) -> Errors:
        """Errors of the worst output."""
        return self.figures[self.worst].errors

    @property
    def limits(self) -> Limits:
        """Limits of the worst output."""
        return self.figures[self.worst].limits


@dataclass(frozen=True)
class Evidence:
    """Result of one case; ``arrays`` holds the arrays beside the inputs."""

    status: Status
    reason: str = ""
    judged: Judged | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def errors(self) -> Errors | None:
        """Errors of the worst output; None if no output was judged."""
        return None if self.judged is None else self.judged.errors

    @property
    def limits(self) -> Limits | None:
        """Limits of the worst output; None if no output was judged."""
        return None if self.judged is None else self.judged.limits


def declared_numerics(about: Mapping[str, Any]) -> Numerics:
    """The arithmetic that a candidate declared, or the default for a candidate without a declaration, such as a
    callable.

    Fields that depend on the target architecture ``arch`` are filled in.
    """
    declared = about.get("numerics")
    return on_architecture(Numerics.from_dict(declared), about.get("arch") or "") if declared else UNDECLARED


def judge_output(
    problem: Problem,
    inputs: Inputs,
    out: Array | Mapping[str, Array],
    numerics: Numerics,
    lse: Array | None = None,
    references: References | None = None,
    *,
    written: bool = False,
) -> Judged:
    """Check the outputs of one run by the whole rule; the result depends on the arguments and on torch's output only.

    Parameters
    ----------
    problem, inputs
        The computation. Rows with an input that is not finite are not judged.
    out : ndarray of the problem's dtype, [B, H, Sq, Dv]; or mapping of str to such arrays
        O; or all outputs of the task by name, in the shapes of :attr:`sdpalab.problem.Problem.outputs`.
    numerics : Numerics
        See :func:`declared_numerics`.
    lse : ndarray of float32, [B, H, Sq], optional
        The log-sum-exp of each row, from a candidate that writes it.
    references : References, optional
        References of this problem and these inputs for all rows, shared by several outputs. Default: computed here.
    written : bool
        As in :class:`sdpalab.judge.diagnose.failure.Failure`.

    Raises
    ------
    MachineError
        If no reference exists: torch's output is not finite, no row is judged, or the scores exceed float64.
    """
    references = references or references_of(problem, inputs)
    outputs = out if isinstance(out, Mapping) else {"o": out}
    expected = references.expected(numerics)
    figures: dict[str, Figures] = {}
    failures: dict[str, Failure] = {}
    status, reasons = Status.PASSED, []
    for name, each in expected.items():
        errors = measure(outputs[name], each.reference, problem.dtype, each.exact, each.magnitude)
        figures[name] = Figures(errors, each.limits)
        failure = failures[name] = Failure(
            problem, inputs, outputs[name], errors, each.limits, each.reference, written, each.magnitude, name
        )
        broken = broken_rules(errors, each.limits)
        if errors.not_finite:
            status = Status.NOT_FINITE
            reasons.append(_of_output(name) + not_finite_reason(failure))
        elif broken:
            status = status if status is Status.NOT_FINITE else Status.INCORRECT
            reasons.append(_of_output(name) + incorrect_reason(failure, broken, each.exact))
    if lse is not None:
        rows = references.log_sum_exp(numerics)
        lse_errors = measure_lse(lse, *rows)
        figures["o"] = Figures(replace(figures["o"].errors, lse=lse_errors), figures["o"].limits)
        if wrong := lse_reason(lse, *rows, lse_errors):
            reasons = [*(reasons or ["the output is right"]), wrong]
            if status is Status.PASSED:
                status = Status.NOT_FINITE if lse_errors.not_finite else Status.INCORRECT
    if problem.backward and reasons:
        reasons += [hint] if (hint := gradient_hint(GradientFailure(problem, inputs, failures))) else []
    references.release_weights()
    return Judged(status, "; ".join(reasons), figures, {name: each.yardstick for name, each in expected.items()})


def evaluate(
    problem: Problem,
    inputs: Inputs,
    about: Mapping[str, Any],
    reply: Mapping[str, Any],
    outputs: Mapping[str, Array],
    other: Inputs | None = None,
) -> Evidence:
    """Judge one case.

    Parameters
    ----------
    problem, inputs
        The case.
    about : mapping
        The candidate's declaration at load time (:class:`sdpalab.judge.sandbox.messages.About`).
    reply, outputs
        The worker's answer (:class:`sdpalab.judge.sandbox.messages.Reply`): either a failure status, or no status and
        the outputs of the runs ``first`` and ``second``, and optionally of a run ``other`` between them, named
        ``first.o`` and so on. Only the first run computes ``first.lse``, if the candidate writes it.
    other : Inputs, optional
        Data in the same memory for the run ``other``.

    Raises
    ------
    MachineError
        As :func:`judge_output`.
    """
    if reply.get("status") is not None:
        reason = str(reply.get("reason") or "the worker gave no reason")
        return Evidence(Status(reply["status"]), reason, run=_hazards(reply))
    runs: dict[str, dict[str, Array]] = {"first": {}, "second": {}}
    for name, array in outputs.items():
        run, _, output = name.partition(".")
        runs.setdefault(run, {})[output] = array
    for each in runs.values():
        if wrong := misshapen(each, problem.outputs, problem.dtype):
            return Evidence(Status.BAD_OUTPUT, wrong)
    lse, numerics = runs["first"].get("lse"), declared_numerics(about)
    own, again = ({name: runs[run][name] for name in problem.outputs} for run in ("first", "second"))
    references = references_of(problem, inputs)
    rows = {name: ~np.isnan(each.reference[..., 0]) for name, each in references.expected(numerics).items()}
    differing = [name for name in own if own[name][rows[name]].tobytes() != again[name][rows[name]].tobytes()]
    reordered = [
        name
        for name, expected in references.expected(numerics).items()
        if name in numerics.unordered and _reordered(own[name], again[name], expected, rows[name], problem)
    ]
    unequal = [name for name in differing if name not in reordered]
    judged = judge_output(problem, inputs, own, numerics, lse, references, written=not unequal)
    arrays = {**own, **{yardstick_name(name): array for name, array in judged.yardsticks.items()}}
    arrays |= {f"{name}_second": again[name] for name in differing}
    arrays |= {} if lse is None else {"lse": lse}
    noted = ("device", "ptx_sha256", "memory_poisoned", "confinement", "confined_by", "set_aside", "provenance")
    facts = {
        "device": about["device"],
        "config": about["config"],
        **({"sms": about["sms"]} if "sms" in about else {}),
        "numerics": numerics.to_dict(),
        **{key: reply[key] for key in noted if key in reply},
        **_hazards(reply),
    }

    def evidence(status: Status, reason: str = "") -> Evidence:
        return Evidence(status, reason, judged, arrays, facts)

    if reply.get("hazards"):
        return evidence(Status.HAZARD, hazard_reason(reply))
    if reply.get("changed"):
        return evidence(Status.INPUT_CHANGED, f"the candidate wrote to its input {', '.join(reply['changed'])}")
    if judged.status is Status.NOT_FINITE:
        return evidence(judged.status, judged.reason)
    for name in unequal[:1]:
        asked = "" if lse is None else "; the first computed the log-sum-exp, and the second did not"
        differs = (own[name] != again[name]).any(axis=3) & rows[name]
        padding = _other_padding(problem, inputs, differs) if about.get("kind") == "cuda" else ""
        difference = _of_output(name) + _difference(own[name], again[name], rows[name])
        return evidence(Status.NONDETERMINISTIC, difference + asked + padding)
    if judged.status is not Status.PASSED:
        return evidence(judged.status, judged.reason)
    if other is not None and "other" in runs:
        reason = _stale(problem, other, runs["other"], own, numerics)
        if reason:
            return evidence(Status.STALE, reason)
    if reason := reason_by_torch(reply.get("provenance")):
        return evidence(Status.BY_TORCH, reason)
    return evidence(Status.PASSED)


def _hazards(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Hazards by pair of source lines (:class:`warpsan.report.groups.HazardGroup`); empty without hazards."""
    return {"hazards": list(reply["groups"])} if reply.get("groups") else {}


def _of_output(name: str) -> str:
    """Beginning of a sentence about an output; empty for O, which most problems have alone."""
    return "" if name == "o" else f"{name}: "


def misshapen(run: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], dtype: str) -> str:
    """The first output of a run that is missing or has another shape or dtype, in a sentence; empty without one."""
    for name, shape in shapes.items():
        out, called = run.get(name), "the output" if name == "o" else name
        if out is None or out.shape != shape or out.dtype != dtype_of(dtype):
            got = "nothing" if out is None else f"{out.dtype} {out.shape}"
            return f"{called} is {got}, not {dtype} {shape}"
    if (lse := run.get("lse")) is not None and (lse.shape != shapes["o"][:3] or lse.dtype != np.float32):
        return f"the log-sum-exp is {lse.dtype} {lse.shape}, not float32 {shapes['o'][:3]}"
    return ""


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def _stale(
    problem: Problem, other: Inputs, out: Mapping[str, Array], first: Mapping[str, Array], numerics: Numerics
) -> str:
    """Reason why the outputs for other data in the same memory are wrong; empty if they are right."""
    judged = judge_output(problem, other, out, numerics)
    if judged.status is Status.PASSED:
        return ""
    old = "; it is, bit for bit, the output for the data that were there before" if _same(first, out) else ""
    return f"right on its inputs, but the output for other data in the same memory is wrong{old}: {judged.reason}"


def _difference(first: Array, second: Array, rows: npt.NDArray[np.bool_]) -> str:
    kind = np.dtype(f"uint{8 * first.itemsize}")
    bits = (first.view(kind) != second.view(kind)) & rows[..., None]
    b, h, i, d = (int(n) for n in np.argwhere(bits)[0])
    return (
        f"two runs on the same inputs differ in {int(bits.sum())} of {bits.size} elements, first at "
        f"(b={b}, h={h}, i={i}, d={d}): {first[b, h, i, d]} and {second[b, h, i, d]}; the memory of the output was "
        "filled differently before each, so an element that is read before it is written, or never written, does this"
    )


def _reordered(one: Array, other: Array, expected: Expected, rows: npt.NDArray[np.bool_], problem: Problem) -> bool:
    """Whether two runs differ by no more than the order of float32 sums allows: one ulp of the output's type, and the
    rounding of a random walk over the keys."""
    pair = (one[rows].astype(np.float64), other[rows].astype(np.float64))
    size = np.broadcast_to(expected.magnitude, rows.shape)[rows][:, None]
    walk = 2.0**-24 * math.sqrt(max(problem.seq_q, problem.seq_kv)) * size
    ulp = 2.0 * UNIT_ROUNDOFF[problem.dtype] * np.maximum(*map(np.abs, pair)).clip(LEAST_NORMAL[problem.dtype])
    return bool((np.abs(pair[0] - pair[1]) <= walk + ulp).all())


def _other_padding(problem: Problem, inputs: Inputs, differs: npt.NDArray[np.bool_]) -> str:
    """Sentence that two runs had different padding, if rows that differ ([B, H, Sq]) have padding; otherwise empty."""
    padding = first_padding(problem, inputs, differs)
    return f"; {padding}, which was NaN in the first run and infinite in the second" if padding else ""
