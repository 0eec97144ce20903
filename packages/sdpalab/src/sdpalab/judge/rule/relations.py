"""Metamorphic relations between the outputs on two sets of inputs, without knowledge of the right outputs.

The output on the related inputs is also judged like any other output. The relation additionally compares the two
outputs bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.judge.rule.evaluate import judge_output, misshapen
from sdpalab.judge.rule.limits import LEAST_NORMAL
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

__all__ = ["RELATIONS", "Relation", "broken_relation"]

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Relation:
    """One relation.

    Attributes
    ----------
    name, says : str
        Its name, and the condition, for messages.
    decides : bool
        Whether a difference fails the case. Otherwise it is only recorded: independence from the batch, for example, is
        useful but not required.
    applies : callable
        ``applies(problem)``: whether the relation applies to the problem.
    inputs : callable
        ``inputs(problem, inputs) -> (problem, inputs)``: the related inputs.
    expected : callable
        ``expected(out, problem) -> (array, mask)``: the required value of each output on the related inputs, computed
        from that output on the original inputs, and where it is required.
    """

    name: str
    says: str
    decides: bool
    applies: Callable[[Problem], bool]
    inputs: Callable[[Problem, Inputs], tuple[Problem, Inputs]]
    expected: Callable[[Array, Problem], tuple[Array, npt.NDArray[np.bool_]]]

    def differs(self, out: Outputs, related: Outputs, problem: Problem) -> int:
        """Number of elements of ``related`` that differ from the values that ``out``, the outputs on the original
        inputs, require."""
        count = 0
        for name, array in out.items():
            expected, where = self.expected(array, problem)
            count += int(np.count_nonzero((expected != related[name]) & where))
        return count


def _scaled_inputs(problem: Problem, inputs: Inputs) -> tuple[Problem, Inputs]:
    names = ["do"] if problem.backward else ["v", "v_scale"]
    scaled = {name: array * array.dtype.type(4) for name, array in inputs.arrays.items() if name in names}
    return problem, replace(inputs, **scaled)


def _scaled(out: Array, problem: Problem) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Numbers below the smallest normal one were rounded to fewer bits, and possibly up to it; they are not
    compared."""
    normal: npt.NDArray[np.bool_] = np.abs(out.astype(np.float64)) > LEAST_NORMAL[problem.dtype]
    return out * out.dtype.type(4), normal


def _everywhere(out: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    return out, np.ones(out.shape, np.bool_)


_HEAD_AXIS: dict[str, int | tuple[()]] = {
    **dict.fromkeys(("alibi_slopes", "sinks", "k_scale", "v_scale"), 0),
    **dict.fromkeys(("kv_lengths", "q_lengths"), ()),
}
"""Axis of the heads; 1 in all other arrays."""


def _reversed_heads(problem: Problem, inputs: Inputs) -> tuple[Problem, Inputs]:
    """All arrays with their heads in reverse order."""
    flipped = {name: np.flip(array, _HEAD_AXIS.get(name, 1)) for name, array in inputs.arrays.items()}
    return problem, Inputs(**{name: np.ascontiguousarray(array) for name, array in flipped.items()})


def _entry(problem: Problem) -> slice:
    """The first batch entry with a query."""
    first = next((entry for entry, length in enumerate(problem.q_lengths or ()) if length), 0)
    return slice(first, first + 1)


def _head_alone(problem: Problem, inputs: Inputs) -> tuple[Problem, Inputs]:
    """The first K/V head of a batch entry."""
    group, entry, alone = problem.group, _entry(problem), {}
    keys, queries = (lengths and lengths[entry] for lengths in (problem.kv_lengths, problem.q_lengths))
    for name, array in inputs.arrays.items():
        if name in ("kv_lengths", "q_lengths"):
            alone[name] = array[entry]
        elif name in ("alibi_slopes", "sinks"):
            alone[name] = array[:group]
        elif name in ("k_scale", "v_scale"):
            alone[name] = array[:1]
        else:
            rows = array if len(array) == 1 else array[entry]
            alone[name] = rows[:, : 1 if name in ("k", "v") else group]
    smaller = problem.with_(batch=1, heads=group, kv_heads=1, kv_lengths=keys, q_lengths=queries)
    return smaller, Inputs(**{name: np.ascontiguousarray(array) for name, array in alone.items()})


RELATIONS = {
    relation.name: relation
    for relation in (
        Relation(
            "scaled_v",
            "four times V gives four times O, bit for bit",
            True,
            lambda problem: not problem.backward,
            _scaled_inputs,
            _scaled,
        ),
        Relation(
            "scaled_do",
            "four times dO gives four times the gradients, bit for bit",
            True,
            # dS may be subnormal in float16, where four times a number is not rounded as the number is.
            lambda problem: problem.backward and problem.dtype != "float16",
            _scaled_inputs,
            _scaled,
        ),
        Relation(
            "head_order",
            "K/V heads in reverse order give the heads of O in reverse order",
            False,
            lambda problem: problem.kv_heads > 1,
            _reversed_heads,
            lambda out, problem: _everywhere(np.flip(out, 1)),
        ),
        Relation(
            "head_alone",
            "a K/V head alone gives what it gives among others",
            False,
            lambda problem: problem.kv_heads > 1 or problem.batch > 1,
            _head_alone,
            lambda out, problem: _everywhere(out[_entry(problem), : out.shape[1] // problem.kv_heads]),
        ),
    )
}
"""Relations by name."""


def broken_relation(
    relation: Relation,
    problem: Problem,
    out: Outputs,
    related_problem: Problem,
    related_inputs: Inputs,
    related: Outputs,
    numerics: Numerics,
) -> tuple[str, int]:
    """Reason why a relation fails (empty if it holds), and the number of elements that break it.

    Parameters
    ----------
    problem, out
        The original problem, and the outputs on it, by name.
    related_problem, related_inputs, related
        Result of :attr:`Relation.inputs` for it, and the outputs on that.
    numerics : Numerics
        As for :func:`sdpalab.judge.rule.evaluate.judge_output`, by which the related output is judged on its own.
    """
    size = sum(array.size for array in related.values())
    if wrong := misshapen(related, related_problem.outputs, related_problem.dtype):
        return f"on related inputs {wrong} ({relation.says})", size
    judged = judge_output(related_problem, related_inputs, related, numerics)
    differs = relation.differs(out, related, problem)
    if judged.status is not Status.PASSED:
        return f"right on its inputs, but wrong on related ones ({relation.says}): {judged.reason}", differs
    if differs and relation.decides and not numerics.unordered:
        return f"{differs} of {size} elements break a relation that always holds: {relation.says}", differs
    return "", differs
