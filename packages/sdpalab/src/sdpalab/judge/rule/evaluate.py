"""Turns a worker's reply into a status; every field of the reply is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs, dtype_of
from sdpalab.judge.diagnose.explain import incorrect_reason, lse_reason, not_finite_reason
from sdpalab.judge.diagnose.failure import Failure, first_padding
from sdpalab.judge.rule.limits import measure
from sdpalab.judge.rule.log_sum_exp import measure_lse
from sdpalab.judge.rule.numerics import UNDECLARED, on_architecture
from sdpalab.judge.rule.reference import judged_rows
from sdpalab.judge.rule.references import References, references_of
from sdpalab.judge.sandbox.messages import hazard_reason
from sdpalab.judge.verdict import Errors, Limits, Status, broken_rules
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

__all__ = ["Evidence", "Judged", "declared_numerics", "evaluate", "judge_output"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Judged:
    """Result of the rule for one output: PASSED, INCORRECT or NOT_FINITE, and the reason; ``yardstick`` is torch's
    output."""

    status: Status
    reason: str
    errors: Errors
    limits: Limits
    yardstick: Array


@dataclass(frozen=True)
class Evidence:
    """Result of one case; ``arrays`` holds the arrays beside q, k and v."""

    status: Status
    reason: str = ""
    errors: Errors | None = None
    limits: Limits | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


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
    out: Array,
    numerics: Numerics,
    lse: Array | None = None,
    references: References | None = None,
    *,
    written: bool = False,
) -> Judged:
    """Check one output by the whole rule; the result depends on the arguments and on torch's output only.

    Parameters
    ----------
    problem, inputs
        The computation. Rows with an input that is not finite are not judged.
    out : ndarray of the problem's dtype, [B, H, Sq, D]
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
    reference, limits, exact = references.reference, references.limits(numerics), references.exact(numerics)
    errors = measure(out, reference, problem.dtype, exact)
    broken = broken_rules(errors, limits)
    wrong_lse = ""
    if lse is not None:
        rows = references.log_sum_exp(numerics)
        lse_errors = measure_lse(lse, *rows)
        errors, wrong_lse = replace(errors, lse=lse_errors), lse_reason(lse, *rows, lse_errors)
    references.release_weights()
    failure = Failure(problem, inputs, out, errors, limits, reference, written)
    if errors.not_finite:
        status, reason = Status.NOT_FINITE, not_finite_reason(failure)
    elif broken:
        status, reason = Status.INCORRECT, incorrect_reason(failure, broken, exact)
    elif errors.lse is not None and wrong_lse:
        status, reason = Status.NOT_FINITE if errors.lse.not_finite else Status.INCORRECT, "the output is right"
    else:
        return Judged(Status.PASSED, "", errors, limits, references.yardstick)
    return Judged(status, "; ".join(filter(None, (reason, wrong_lse))), errors, limits, references.yardstick)


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
        the outputs ``first`` and ``second`` of two runs, and optionally ``other`` of a run between them. Only the first
        run computes ``lse``, if the candidate writes it.
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
    expected = ("first", "second") if "other" not in outputs else ("first", "second", "other")
    for out in map(outputs.get, expected):
        if out is None or out.shape != problem.o_shape or out.dtype != dtype_of(problem.dtype):
            got = "nothing" if out is None else f"{out.dtype} {out.shape}"
            return Evidence(Status.BAD_OUTPUT, f"the output is {got}, not {problem.dtype} {problem.o_shape}")

    lse = outputs.get("lse")
    if lse is not None and (lse.shape != problem.q_shape[:3] or lse.dtype != np.float32):
        return Evidence(
            Status.BAD_OUTPUT, f"the log-sum-exp is {lse.dtype} {lse.shape}, not float32 {problem.q_shape[:3]}"
        )

    first, second = outputs["first"], outputs["second"]
    numerics = declared_numerics(about)
    rows = judged_rows(*inputs.qkv, inputs.kv_lengths, inputs.q_lengths)
    same = first[rows].tobytes() == second[rows].tobytes()
    judged = judge_output(problem, inputs, first, numerics, lse, written=same)
    arrays = {"o": first, "yardstick": judged.yardstick} | ({} if same else {"o_second": second})
    arrays |= {} if lse is None else {"lse": lse}
    noted = ("device", "ptx_sha256", "memory_poisoned", "confinement", "confined_by", "set_aside")
    run = {
        "device": about["device"],
        "config": about["config"],
        **({"sms": about["sms"]} if "sms" in about else {}),
        "numerics": numerics.to_dict(),
        **{key: reply[key] for key in noted if key in reply},
        **_hazards(reply),
    }

    def evidence(status: Status, reason: str = "") -> Evidence:
        return Evidence(status, reason, judged.errors, judged.limits, arrays, run)

    if reply.get("hazards"):
        return evidence(Status.HAZARD, hazard_reason(reply))
    if reply.get("changed"):
        return evidence(Status.INPUT_CHANGED, f"the candidate wrote to its input {', '.join(reply['changed'])}")
    if judged.status is Status.NOT_FINITE:
        return evidence(judged.status, judged.reason)
    if not same:
        asked = "" if lse is None else "; the first computed the log-sum-exp, and the second did not"
        padding = "" if about.get("kind") != "cuda" else _other_padding(inputs, (first != second).any(axis=3) & rows)
        return evidence(Status.NONDETERMINISTIC, _difference(first, second, rows) + asked + padding)
    if judged.status is not Status.PASSED:
        return evidence(judged.status, judged.reason)
    if other is not None and "other" in outputs:
        reason = _stale(problem, other, outputs["other"], first, numerics)
        return evidence(Status.STALE if reason else Status.PASSED, reason)
    return evidence(Status.PASSED)


def _hazards(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Hazards by pair of source lines (:class:`warpsan.report.groups.HazardGroup`); empty without hazards."""
    return {"hazards": list(reply["groups"])} if reply.get("groups") else {}


def _stale(problem: Problem, other: Inputs, out: Array, first: Array, numerics: Numerics) -> str:
    """Reason why the output for other data in the same memory is wrong; empty if it is right."""
    judged = judge_output(problem, other, out, numerics)
    if judged.status is Status.PASSED:
        return ""
    old = "; it is, bit for bit, the output for the data that were there before" if (out == first).all() else ""
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


def _other_padding(inputs: Inputs, differs: npt.NDArray[np.bool_]) -> str:
    """Sentence that two runs had different padding, if rows that differ ([B, H, Sq]) have padding; otherwise empty."""
    padding = first_padding(inputs, differs)
    return f"; {padding}, which was NaN in the first run and infinite in the second" if padding else ""
