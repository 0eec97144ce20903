"""Right values of the outputs of a case and their limits, given torch's own outputs; without torch itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.inputs.reference import finite
from sdpalab.judge.rule.exact import ExactElements, has_exact_elements
from sdpalab.judge.rule.exact_gradients import exact_gradients
from sdpalab.judge.rule.figures import Limits
from sdpalab.judge.rule.gradients import GRADIENTS, Gradients, attention_gradients, intended_gradients
from sdpalab.judge.rule.limits import limits_for
from sdpalab.kernels.declarations import Numerics
from sdpalab.problem import Problem

__all__ = ["Expected", "ExpectedGradients"]

FEW_SCORES = 1 << 18
"""Most scores of a problem on which a candidate that may round dP is also compared with one that does not: among few
terms that rounding may cancel another error."""

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]


class Expected(NamedTuple):
    """The right values of one output, and its limits.

    Attributes
    ----------
    reference : ndarray of float64, of the shape of the output
        NaN in rows that are not judged.
    yardstick : ndarray of the output's dtype
        torch's own output.
    limits : Limits
    exact : ExactElements or None
    magnitude : ndarray of float64 or float
        As for :func:`sdpalab.judge.rule.limits.measure`.
    """

    reference: F64
    yardstick: Array
    limits: Limits
    exact: ExactElements | None
    magnitude: F64 | float = 0.0


class ExpectedGradients:
    """The right gradients of one problem on its inputs; each part is computed once.

    Parameters
    ----------
    problem, inputs
        A backward problem, and its inputs with O, dO and the log-sum-exp; padding counts as 0.
    """

    def __init__(self, problem: Problem, inputs: Inputs) -> None:
        clean = inputs.padded(0.0)
        self.problem, self._out = problem, clean.arrays["o"]
        self._arrays = (*clean.qkv, clean.arrays["do"])
        self._scoring: dict[str, Any] = dict(problem.scoring_with(inputs.arrays))
        self._intended: dict[Numerics, dict[str, Array]] = {}
        self._exact: dict[bool, dict[str, ExactElements]] = {}

    @cached_property
    def gradients(self) -> Gradients:
        """dQ, dK and dV in float64, and the magnitudes of their rows."""
        return attention_gradients(*self._arrays, **self._scoring)

    def intended(self, numerics: Numerics) -> dict[str, Array]:
        """dQ, dK and dV of the declared arithmetic."""
        if numerics not in self._intended:
            q, k, v, do = (finite(array) for array in self._arrays)
            self._intended[numerics] = intended_gradients(q, k, v, do, self._out, numerics=numerics, **self._scoring)
        return self._intended[numerics]

    def limits(self, name: str, numerics: Numerics, yardstick: Array) -> Limits:
        """Limits of one gradient."""
        reference, magnitude = self.gradients.values[name], self.gradients.magnitudes[name]
        declared = [numerics]
        if numerics.value_gradients == "problem" and self.problem.scores <= FEW_SCORES:
            declared.append(replace(numerics, value_gradients="float32"))
        intended = [self.intended(each)[name] for each in declared]
        parts = -(-self.problem.seq_q // numerics.partial_rows) if numerics.partial_rows and name != "dq" else 0
        roundings = max(1, parts * self.problem.group)
        return limits_for(reference, yardstick, intended, self.problem.dtype, magnitude, roundings)

    def exact(self, numerics: Numerics) -> Mapping[str, ExactElements]:
        """Exact elements of each gradient; empty if the arithmetic has none."""
        if not has_exact_elements(numerics):
            return {}
        zeros_only = numerics.partial_rows > 0
        if zeros_only not in self._exact:
            self._exact[zeros_only] = exact_gradients(*self._arrays, zeros_only=zeros_only, **self._scoring)
        return self._exact[zeros_only]

    def expected(self, numerics: Numerics, yardsticks: Mapping[str, Array]) -> dict[str, Expected]:
        """The right values of each gradient, by name, with the limits for this arithmetic.

        Raises
        ------
        ValueError
            As :func:`sdpalab.judge.rule.limits.limits_for`, and if the scores are too large for float64.
        """
        values, magnitudes, exact = self.gradients.values, self.gradients.magnitudes, self.exact(numerics)
        return {
            name: Expected(
                values[name],
                yardsticks[name],
                self.limits(name, numerics, yardsticks[name]),
                exact.get(name),
                magnitudes[name],
            )
            for name in GRADIENTS
        }
