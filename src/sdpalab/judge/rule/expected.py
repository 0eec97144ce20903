"""What a correct output has to be: all that the judge computes from a problem's inputs and the declared arithmetic.

None of it depends on what is judged, and it is most of the judge's own work; so the process that judges keeps what it
computed last, found by the content of the inputs. Nothing of it is kept on disk or shared with another process: a
kernel under judgement cannot change it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError
from sdpalab.inputs import Inputs
from sdpalab.judge.rule.exact import ExactElements, exact_elements, has_exact_elements
from sdpalab.judge.rule.limits import limits_for
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.rule.numerics import intended_output, orders_of
from sdpalab.judge.rule.reference import attention_float64
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.judge.verdict import Limits
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

__all__ = ["MOST_BYTES", "Expected", "expected_log_sum_exp", "expected_output"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
T = TypeVar("T")

MOST_BYTES = 128 << 20
"""Bytes of arrays that are kept at most of each kind; the result used longest ago goes first. The mission's shape
(1x8x512x64) takes 3.5 MiB."""


@dataclass(frozen=True)
class Expected:
    """What an output is held against; the arrays are read-only.

    Attributes
    ----------
    reference : ndarray of float64, [B, H, Sq, D]
        Attention in float64; NaN in rows that are not judged.
    yardstick : ndarray of the problem's dtype, [B, H, Sq, D]
        torch's output in the problem's precision.
    exact : ExactElements or None
        Elements that are fixed bit for bit, for an arithmetic that has some.
    limits : Limits
        What each measure of the error may be.
    """

    reference: F64
    yardstick: Array
    exact: ExactElements | None
    limits: Limits

    def arrays(self) -> tuple[Array, ...]:
        """All arrays of it."""
        exact = () if self.exact is None else (self.exact.expected, self.exact.mask, self.exact.key)
        return (self.reference, self.yardstick, *exact)


def expected_output(problem: Problem, inputs: Inputs, numerics: Numerics) -> Expected:
    """What the output of ``problem`` has to be on ``inputs``.

    Parameters
    ----------
    problem, inputs
        What was computed.
    numerics : Numerics
        What is declared (:func:`sdpalab.judge.rule.evaluate.declared_numerics`).

    Raises
    ------
    MachineError
        If there is nothing to measure by: torch's output is not finite, no row is judged, the scores exceed float64.
    """

    def compute() -> Expected:
        arguments: dict[str, Any] = {**vars(inputs), "scale": problem.scale, "causal": problem.causal}
        yardstick = torch_output(**arguments)
        intended = [intended_output(**arguments, numerics=order) for order in orders_of(numerics)]
        exact = None
        if has_exact_elements(numerics):
            exact = exact_elements(**arguments, any_count=numerics.normalise == "after")
        try:
            reference = attention_float64(**arguments)
            limits = limits_for(reference, yardstick, intended, problem.dtype)
        except ValueError as error:
            raise MachineError(f"{problem.label}: {error}") from None
        return Expected(reference, yardstick, exact, limits)

    return _OUTPUTS.get(_key(problem, inputs, numerics), compute, Expected.arrays)


def expected_log_sum_exp(problem: Problem, inputs: Inputs, numerics: Numerics) -> tuple[F64, F64]:
    """The log-sum-exp of each row, and how far from it a kernel's may be; see :func:`log_sum_exp_float64`."""

    def compute() -> tuple[F64, F64]:
        return log_sum_exp_float64(**vars(inputs), scale=problem.scale, causal=problem.causal, numerics=numerics)

    return _ROWS.get(_key(problem, inputs, numerics), compute, lambda rows: rows)


class _Memo:
    """The results of the last calls, at most :data:`MOST_BYTES` of arrays; safe to use from several threads."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str, compute: Callable[[], T], arrays: Callable[[T], tuple[Array, ...]]) -> T:
        """The result for ``key``, from ``compute`` if it is not kept; ``arrays`` gives the arrays of a result."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                kept: T = self._results[key][0]
                return kept
        result = compute()
        for array in arrays(result):
            array.setflags(write=False)
        size = sum(array.nbytes for array in arrays(result))
        with self._lock:
            if key not in self._results:  # two threads may have computed it at once
                self._results[key] = (result, size)
                self._bytes += size
            while self._bytes > MOST_BYTES:
                _, (_, freed) = self._results.popitem(last=False)
                self._bytes -= freed
        return result


_OUTPUTS, _ROWS = _Memo(), _Memo()


def _key(problem: Problem, inputs: Inputs, numerics: Numerics) -> str:
    """Digest of all that the results depend on: the inputs' own bytes, and not how they were made."""
    digest = sha256(repr((problem, numerics)).encode())
    for array in vars(inputs).values():
        digest.update(repr((array.dtype.name, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
