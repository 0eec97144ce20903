"""From what a worker sent back to a status: everything is checked, nothing is taken on trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError
from sdpalab.inputs import Inputs, dtype_of
from sdpalab.judge.explain import incorrect_reason, not_finite_reason
from sdpalab.judge.numerics import intended_output
from sdpalab.judge.reference import attention_float64
from sdpalab.judge.rule import broken_rules, limits_for, measure
from sdpalab.judge.verdict import Errors, Limits, Status
from sdpalab.judge.yardstick import torch_output
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

__all__ = ["Evidence", "evaluate"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Evidence:
    """What was found on one case; ``arrays`` are those beside q, k and v on which it rests."""

    status: Status
    reason: str = ""
    errors: Errors | None = None
    limits: Limits | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


def evaluate(
    problem: Problem,
    inputs: Inputs,
    about: Mapping[str, Any],
    reply: Mapping[str, Any],
    outputs: Mapping[str, Array],
) -> Evidence:
    """Judge one case.

    Parameters
    ----------
    problem, inputs
        The case.
    about : mapping
        What the candidate declared when it was loaded (:class:`sdpalab.judge.messages.About`).
    reply, outputs
        The worker's answer (:class:`sdpalab.judge.messages.Reply`): a failure, which is believed as one, or no status
        and the outputs ``first`` and ``second`` of two runs.

    Raises
    ------
    MachineError
        If there is no yardstick.
    """
    if reply.get("status") is not None:
        return Evidence(Status(reply["status"]), str(reply.get("reason") or "the worker gave no reason"))
    first, second = outputs.get("first"), outputs.get("second")
    for out in (first, second):
        if out is None or out.shape != problem.q_shape or out.dtype != dtype_of(problem):
            got = "nothing" if out is None else f"{out.dtype} {out.shape}"
            return Evidence(Status.BAD_OUTPUT, f"the output is {got}, not {problem.dtype} {problem.q_shape}")
    assert first is not None
    assert second is not None

    declared = about.get("numerics")
    numerics = Numerics(**(declared or {}))
    # A callable declares nothing: both orders of rounding P and dividing by its sum are then honest.
    orders = (False,) if declared else (False, True)
    arguments: dict[str, Any] = {"scale": problem.scale, "causal": problem.causal}
    qkv = (inputs.q, inputs.k, inputs.v)
    reference = attention_float64(*qkv, **arguments)
    yardstick = torch_output(*qkv, **arguments)
    intended = [intended_output(*qkv, **arguments, numerics=numerics, normalise_first=order) for order in orders]
    try:
        limits = limits_for(reference, yardstick, intended, problem.dtype)
    except ValueError as error:
        raise MachineError(f"{problem.label}: {error}") from None
    errors = measure(first, reference, problem.dtype)

    same = first.tobytes() == second.tobytes()
    arrays = {"o": first, "yardstick": yardstick} | ({} if same else {"o_second": second})
    noted = ("device", "ptx_sha256", "memory_poisoned")
    run = {
        "device": about["device"],
        "config": about["config"],
        "numerics": {
            "accumulate": numerics.accumulate,
            "probabilities": numerics.probabilities,
            "normalise": "after" if declared else "either",
        },
        **{key: reply[key] for key in noted if key in reply},
    }

    def found(status: Status, reason: str = "") -> Evidence:
        return Evidence(status, reason, errors, limits, arrays, run)

    if reply.get("hazards"):
        more = f" (and {reply['hazard_count'] - 1} more)" if reply.get("hazard_count", 1) > 1 else ""
        return found(Status.HAZARD, f"{reply['hazards'][0]}{more}")
    if reply.get("changed"):
        return found(Status.INPUT_CHANGED, f"the candidate wrote to its input {', '.join(reply['changed'])}")
    if errors.not_finite:
        return found(Status.NOT_FINITE, not_finite_reason(first, errors))
    if not same:
        return found(Status.NONDETERMINISTIC, _difference(first, second))
    broken = broken_rules(errors, limits)
    if broken:
        reason = incorrect_reason(problem, first, inputs.v, reference, errors, limits, broken)
        return found(Status.INCORRECT, reason)
    return found(Status.PASSED)


def _difference(first: Array, second: Array) -> str:
    bits = first.view(np.uint16) != second.view(np.uint16)
    b, h, i, d = (int(n) for n in np.argwhere(bits)[0])
    return (
        f"two runs on the same inputs differ in {int(bits.sum())} of {bits.size} elements, first at "
        f"(b={b}, h={h}, i={i}, d={d}): {first[b, h, i, d]} and {second[b, h, i, d]}; the memory of the output was "
        "filled differently before each, so an element that is read before it is written, or never written, does this"
    )
