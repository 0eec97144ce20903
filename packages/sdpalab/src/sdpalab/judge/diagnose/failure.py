"""A case with a numerical failure, with all derived arrays computed once for the reason, the error map and the
diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.diagnose.workings import Float64Attention
from sdpalab.judge.rule.limits import row_errors
from sdpalab.judge.verdict import Errors, Limited, Limits, limited
from sdpalab.packing import Packing
from sdpalab.problem import Problem

__all__ = ["Failure", "place", "still_poison"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]


def place(index: tuple[int, ...]) -> str:
    """An index (b, h, i, d), or the first of these, in words."""
    return "(" + ", ".join(f"{axis}={n}" for axis, n in zip("bhid", index, strict=False)) + ")"


def still_poison(out: Array) -> Rows:
    """Mask of the elements that still hold the byte 0xFF, which filled the output before the first run."""
    poison: Rows = (np.ascontiguousarray(out).view(np.uint8).reshape(*out.shape, -1) == 0xFF).all(axis=-1)
    return poison


def first_padding(problem: Problem, inputs: Inputs, bad: Rows) -> str:
    """The first key that is padding of a batch entry with bad rows [B, H, Sq], in words.

    Empty if no row is bad, or a bad row is in an entry without padding, because padding is then not the cause.
    """
    entries, lengths = np.flatnonzero(bad.any(axis=(1, 2))), inputs.kv_lengths
    dense = problem.layout_form.dense
    if lengths is None or not len(entries) or (dense and (lengths[entries] >= inputs.k.shape[2]).any()):
        return ""
    return f"{Packing(problem).first_padding_row(inputs.arrays, int(entries[0]))} is padding"


@dataclass(frozen=True)
class Failure:
    """A case that is INCORRECT or NOT_FINITE: its computation and its output.

    Attributes
    ----------
    problem, inputs
    out : ndarray of the problem's dtype, [B, H, Sq, D]
    errors, limits
        Measured errors and their limits.
    known : ndarray of float64, [B, H, Sq, D], optional
        The float64 reference, if already computed.
    written : bool
        Whether a second run with other poison gave the same bits, so all of the output was written.
    magnitude : ndarray of float64 or float
        As for :func:`sdpalab.judge.rule.limits.measure`.
    output : str
        Name of the output.
    """

    problem: Problem
    inputs: Inputs
    out: Array
    errors: Errors
    limits: Limits
    known: F64 | None = None
    written: bool = False
    magnitude: F64 | float = 0.0
    output: str = "o"

    @cached_property
    def limited(self) -> dict[str, Limited]:
        """Each error with its limit."""
        return limited(self.errors, self.limits)

    @property
    def severity(self) -> float:
        """Factor by which the error exceeds its limit, at most 100."""
        return min(100.0, self.limited["rms_row_rel_l2"].share)

    @cached_property
    def reference(self) -> F64:
        """The float64 reference [B, H, Sq, D], NaN in rows that are not judged."""
        if self.known is not None:
            return self.known
        return attention_float64(*self.inputs.qkv, **self.problem.scoring_with(self.inputs.arrays))

    @cached_property
    def right(self) -> F64:
        """The reference, 0 in rows that are not judged."""
        return np.nan_to_num(self.reference)

    @cached_property
    def asked(self) -> Rows:
        """Mask of the judged rows, [B, H, Sq]."""
        rows: Rows = ~np.isnan(self.reference[..., 0])
        return rows

    @cached_property
    def judged(self) -> Rows:
        """Mask of the judged rows in which all elements are finite, [B, H, Sq]."""
        rows: Rows = self.asked & np.isfinite(self.out).all(axis=-1)
        return rows

    @cached_property
    def seen(self) -> F64:
        """The output where it is judged and finite, the reference elsewhere, [B, H, Sq, D]."""
        return np.where(self.judged[..., None], self.out.astype(np.float64), self.right)

    @cached_property
    def rows(self) -> F64:
        """Relative L2 error of each row, [B, H, Sq]; 0 in rows that are not judged or not finite."""
        return np.nan_to_num(row_errors(self.seen, self.reference, self.problem.dtype, self.magnitude))

    @cached_property
    def bad(self) -> Rows:
        """Rows over the limit of the worst row, [B, H, Sq]."""
        rows: Rows = self.rows > self.limits.worst_row_rel_l2
        return rows

    @cached_property
    def untouched(self) -> Rows:
        """Elements that hold the poison, so presumably were never written, [B, H, Sq, D]."""
        return np.zeros(self.out.shape, np.bool_) if self.written else still_poison(self.out)

    @cached_property
    def padding(self) -> str:
        """The padding whose NaN can explain the rows that are not finite, in a sentence; empty if it cannot."""
        key = first_padding(self.problem, self.inputs, self.asked & ~self.judged & ~self.untouched.any(axis=-1))
        return f"{key}: K and V hold NaN from there on, and NaN reached the output" if key else ""

    @cached_property
    def workings(self) -> Float64Attention:
        """The problem in float64."""
        return Float64Attention(self.problem, self.inputs)
