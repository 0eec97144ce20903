"""Checks that timed calls compute attention: their outputs must satisfy the judge's tolerances.

Up to :data:`SAMPLED_FROM` queries, and for gradients, every row is compared with float64: a row of dK and dV needs all
queries anyway. For longer sequences of the forward pass that would take minutes, so

- every element of an output must be finite;
- :data:`SAMPLED_ROWS` query rows of every head, the same of all outputs, are judged by the whole rule: the first, the
  last, rows on both sides of borders between tiles of 64 (the first, the last, and some drawn by the seed), and rows
  drawn by the seed;
- all elements are compared with the first output of any subject that passed. Rows that differ most from it, by more
  than the largest allowed error, are compared with float64 as well.

Two kinds of error can escape: a row outside the sample that is equally wrong in all subjects, and an error outside the
sample that is small relative to the largest allowed one. An output that equals the last passed one bit for bit, in all
elements, is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.evaluate import judge_output, misshapen
from sdpalab.judge.rule.limits import measure
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.rule.references import References
from sdpalab.judge.verdict import Status, broken_rules
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

__all__ = ["SAMPLED_FROM", "SAMPLED_ROWS", "OutputCheck", "Outputs", "sampled_rows"]

Array = npt.NDArray[Any]

SAMPLED_FROM = 2048
"""Number of queries from which on only a sample of rows is judged."""
SAMPLED_ROWS = 128
"""Judged query rows of every head in a sample."""
_TILE = 64
_BORDERS = 16
_MOST_DIFFERING = 16
"""Largest number of query rows compared with float64 because they differ from another output."""


def sampled_rows(seq_q: int, seed: int = 0) -> npt.NDArray[np.intp] | None:
    """The judged query rows, ascending; None for all rows."""
    if seq_q < SAMPLED_FROM:
        return None
    draw = np.random.Generator(np.random.Philox(key=seed))
    borders = np.arange(_TILE, seq_q, _TILE)
    chosen = np.union1d(borders[[0, -1]], draw.choice(borders, min(_BORDERS, len(borders)), replace=False))
    fixed = np.union1d((0, seq_q - 1), np.union1d(chosen - 1, chosen))
    others = draw.choice(np.setdiff1d(np.arange(seq_q), fixed), SAMPLED_ROWS - len(fixed), replace=False)
    return np.union1d(fixed, others)


class Outputs:
    """The references for the outputs of all subjects of one problem, computed once.

    Parameters
    ----------
    problem, inputs
        The repeated computation.
    seed : int
        Seed of the sample.
    """

    def __init__(self, problem: Problem, inputs: Inputs, seed: int = 0) -> None:
        self.problem, self.inputs = problem, inputs
        self.references = References(problem, inputs, None if problem.backward else sampled_rows(problem.seq_q, seed))
        self._first: Array | None = None

    def wrong(self, outputs: Mapping[str, Array], numerics: Numerics) -> str:
        """Error of the outputs by name, which have the problem's shapes and dtype; empty if no error is found."""
        references = self.references
        if references.rows is None:
            judged = judge_output(self.problem, self.inputs, outputs, numerics, references=references)
            return "" if judged.status is Status.PASSED else f"{judged.status.value}: {judged.reason}"
        out = outputs["o"]
        reason = _not_finite(out) or self._broken(out, numerics) or self._unlike_the_first(out, numerics)
        if not reason and self._first is None:
            self._first = out.copy()
        return reason

    def _broken(self, out: Array, numerics: Numerics) -> str:
        """Tolerances that the sampled rows exceed."""
        references = self.references
        limits = references.limits(numerics)
        errors = measure(references.of(out), references.reference, self.problem.dtype)
        over = [name for name in broken_rules(errors, limits) if hasattr(limits, name)]
        if not over:
            return ""
        assert references.rows is not None
        b, h, i = errors.worst_row
        exceeded = ", ".join(f"{name} {getattr(errors, name):.3g} above {getattr(limits, name):.3g}" for name in over)
        return (
            f"INCORRECT in {len(references.rows)} sampled rows of each head: {exceeded}; the worst row is "
            f"(b={b}, h={h}, i={references.rows[i]})"
        )

    def _unlike_the_first(self, out: Array, numerics: Numerics) -> str:
        """Error, by float64, of rows that differ from another subject's output; empty if they are right."""
        if self._first is None:
            return ""
        limit = self.references.limits(numerics).max_abs
        problem, worst = self.problem, np.zeros(self.problem.seq_q)
        for b in range(problem.batch):  # one batch at a time: the difference takes twice the memory of the outputs
            differs = np.abs(out[b].astype(np.float32) - self._first[b].astype(np.float32)).max(axis=2)
            worst = np.maximum(worst, differs.max(axis=0))
        rows = np.sort(np.argsort(worst)[-_MOST_DIFFERING:])
        rows = rows[worst[rows] > limit]
        if not len(rows):
            return ""
        inputs = self.inputs
        reference = attention_float64(*inputs.qkv, rows=rows, **problem.scoring_with(inputs.arrays))
        error = np.abs(out[:, :, rows].astype(np.float64) - reference)
        b, h, i, d = (int(n) for n in np.unravel_index(int(np.argmax(error)), error.shape))
        if error[b, h, i, d] <= limit:
            return ""
        return (
            f"INCORRECT in a row that differs from another subject's: max_abs {error[b, h, i, d]:.3g} above "
            f"{limit:.3g} at (b={b}, h={h}, i={rows[i]}, d={d})"
        )


class OutputCheck:
    """Check of one subject's outputs; it stores the bits of the last right output.

    Parameters
    ----------
    outputs : Outputs
        References shared with the other subjects of the problem.
    numerics : Numerics, optional
        Declared numerics of the subject; None for a peer, which may normalise before or after rounding.
    """

    def __init__(self, outputs: Outputs, numerics: Numerics | None = None) -> None:
        self._outputs, self._numerics = outputs, numerics or UNDECLARED
        self._passed: bytes | None = None

    def __call__(self, outputs: Mapping[str, Array]) -> str:
        """Error of the outputs by name; empty if right. Those with the bits of the last right ones are not judged
        again."""
        problem = self._outputs.problem
        if wrong := misshapen(outputs, problem.outputs, problem.dtype):
            return wrong
        content = b"".join(outputs[name].tobytes() for name in problem.outputs)
        if content == self._passed:
            return ""
        reason = self._outputs.wrong(outputs, self._numerics)
        if not reason:
            self._passed = content
        return reason


def _not_finite(out: Array) -> str:
    finite = np.isfinite(out)
    if finite.all():
        return ""
    b, h, i, d = (int(n) for n in np.argwhere(~finite)[0])
    count = int(out.size - np.count_nonzero(finite))
    return f"NOT_FINITE: {count} of {out.size} elements, the first at (b={b}, h={h}, i={i}, d={d})"
