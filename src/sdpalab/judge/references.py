"""What outputs of one problem on its inputs are held against: oracle, yardstick, limits; each computed once.

Several outputs of the same inputs share all of it but the limits, which follow from the arithmetic that a kernel
declares. At the sizes that are timed each of these takes from seconds to minutes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError
from sdpalab.inputs import Inputs
from sdpalab.judge.exact import ExactElements, exact_elements, has_exact_elements
from sdpalab.judge.numerics import intended_output, orders_of
from sdpalab.judge.reference import Rows, attention_float64
from sdpalab.judge.rule import limits_for
from sdpalab.judge.verdict import Limits
from sdpalab.judge.yardstick import torch_output
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

__all__ = ["References"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]


class References:
    """The references of one problem and its inputs, for all query rows or for some of every head.

    Parameters
    ----------
    problem, inputs
        What is computed. Rows with an input that is not finite are not judged.
    rows : ndarray of int, optional
        Query rows that are judged. Default: all.

    Notes
    -----
    What is read first raises MachineError if there is nothing to measure by: torch's output is not finite, no row is
    judged, or the scores exceed float64.
    """

    def __init__(self, problem: Problem, inputs: Inputs, rows: Rows = None) -> None:
        self.problem, self.inputs, self.rows = problem, inputs, rows
        self._qkv = inputs.q, inputs.k, inputs.v
        self._arguments: dict[str, Any] = {"scale": problem.scale, "causal": problem.causal}
        self._limits: dict[Numerics, Limits] = {}
        self._exact: dict[bool, ExactElements] = {}

    def of(self, out: Array) -> Array:
        """The rows of an output [B, H, Sq, D] that are judged."""
        return out if self.rows is None else out[:, :, self.rows]

    @cached_property
    def reference(self) -> F64:
        """Attention in float64."""
        try:
            return attention_float64(*self._qkv, **self._arguments, rows=self.rows)
        except ValueError as error:
            raise MachineError(f"{self.problem.label}: {error}") from None

    @cached_property
    def yardstick(self) -> Array:
        """torch's own output in the same precision."""
        return torch_output(*self._qkv, **self._arguments, rows=self.rows)

    def limits(self, numerics: Numerics) -> Limits:
        """The limits of a kernel that declares this arithmetic."""
        if numerics not in self._limits:
            orders = orders_of(numerics)
            intended = [
                intended_output(*self._qkv, **self._arguments, numerics=order, rows=self.rows) for order in orders
            ]
            try:
                self._limits[numerics] = limits_for(self.reference, self.yardstick, intended, self.problem.dtype)
            except ValueError as error:
                raise MachineError(f"{self.problem.label}: {error}") from None
        return self._limits[numerics]

    def exact(self, numerics: Numerics) -> ExactElements | None:
        """The elements that the inputs fix bit for bit; None if the arithmetic has none, or not all rows are judged."""
        if self.rows is not None or not has_exact_elements(numerics):
            return None
        any_count = numerics.normalise == "after"
        if any_count not in self._exact:
            self._exact[any_count] = exact_elements(*self._qkv, **self._arguments, any_count=any_count)
        return self._exact[any_count]
