"""References of one problem on its inputs: for each output a float64 reference, a yardstick and limits; torch outputs.

The references do not depend on the judged kernel, and are most of the judge's own work, so :func:`references_of` caches
them by the content of the inputs. The cache is in this process only, not on disk: a candidate cannot change it. Several
outputs of the same inputs share all references except the limits, which follow from the arithmetic that a kernel
declares. At the timed sizes each reference takes from seconds to minutes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError
from sdpalab.inputs import Inputs
from sdpalab.inputs.reference import Rows, Weights, attention_float64, finite
from sdpalab.judge.rule.exact import ExactElements, cap_error_of, exact_elements, has_exact_elements
from sdpalab.judge.rule.expected import Expected, ExpectedGradients
from sdpalab.judge.rule.limits import limits_for
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.rule.numerics import dequantised, intended_output, orders_of
from sdpalab.judge.rule.yardstick import torch_gradients, torch_output
from sdpalab.judge.torch_backends import Backend, backend_output
from sdpalab.judge.verdict import Limits
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.problem import Problem

__all__ = ["MOST_BYTES", "References", "references_of"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

MOST_BYTES = 256 << 20
"""Most bytes of arrays that :func:`references_of` keeps; the least recently used are dropped first. The mission shape
(1x8x512x64) takes about 5 MiB."""


class References:
    """References of one problem and its inputs, for all query rows or a subset of every head; arrays are read-only.

    Parameters
    ----------
    problem, inputs
        The computation; padding counts as 0. Rows with an input that is not finite are not judged.
    rows : ndarray of int, optional
        Judged query rows. Default: all.

    Notes
    -----
    The first attribute that is read raises MachineError if no reference exists: torch's output is not finite, no row is
    judged, or the scores exceed float64.
    """

    def __init__(self, problem: Problem, inputs: Inputs, rows: Rows = None) -> None:
        self.problem, self.inputs, self.rows = problem, inputs.padded(0.0), rows
        self._qkv = self.inputs.qkv
        self._arguments: dict[str, Any] = dict(problem.scoring_with(inputs.arrays))
        self._reference: F64 | None = None
        self._yardstick: Array | None = None
        self._backend_outputs: dict[tuple[Backend, str], Array] = {}
        self._limits: dict[Numerics, Limits] = {}
        self._exact: dict[tuple[bool, float, Quantisation | None], ExactElements] = {}
        self._lse: dict[Numerics, tuple[F64, F64]] = {}
        self._weights: dict[Quantisation | None, Weights] = {}
        self._gradients: ExpectedGradients | None = None
        self._torch_gradients: dict[str, Array] = {}
        self._expected: dict[Numerics, dict[str, Expected]] = {}
        self._lock = threading.RLock()
        """Lock of the parts: kernels judged concurrently in threads share this object, and each part is computed
        once."""
        self.nbytes = 0
        """Bytes of the arrays computed so far, without the weights."""

    def release_weights(self) -> None:
        """Free the softmax weights, which take more memory than all results; later uses recompute them."""
        with self._lock:
            self._weights.clear()

    def _shared(self, quantised: Quantisation | None = None) -> dict[str, Any]:
        """Arguments of the computations that share softmax weights, with Q and K after quantisation."""
        if quantised not in self._weights:
            q, k = self.inputs.q, self.inputs.k
            if quantised is not None:
                q, k = dequantised(finite(q), quantised), dequantised(finite(k), quantised)
            self._weights[quantised] = Weights(q, k, **self._arguments, rows=self.rows)
        return {**self._arguments, "weights": self._weights[quantised]}

    def of(self, out: Array) -> Array:
        """Judged rows of an output [B, H, Sq, D]."""
        return out if self.rows is None else out[:, :, self.rows]

    @property
    def reference(self) -> F64:
        """Attention in float64."""
        with self._lock:
            if self._reference is None:
                try:
                    self._reference = attention_float64(*self._qkv, **self._shared(), rows=self.rows)
                except ValueError as error:
                    raise MachineError(f"{self.problem.label}: {error}") from None
                self._freeze(self._reference)
            return self._reference

    @property
    def yardstick(self) -> Array:
        """torch's own output in the same precision."""
        with self._lock:
            if self._yardstick is None:
                self._yardstick = torch_output(*self._qkv, **self._arguments, rows=self.rows)
                self._freeze(self._yardstick)
            return self._yardstick

    def backend_output(self, backend: Backend, device: str) -> Array:
        """Output of a torch backend; raises as :func:`sdpalab.judge.torch_backends.backend_output`."""
        key = (backend, device)
        with self._lock:
            if key not in self._backend_outputs:
                output = backend_output(*self._qkv, **self._arguments, backend=backend, device=device, rows=self.rows)
                self._freeze(output)
                self._backend_outputs[key] = output
            return self._backend_outputs[key]

    def limits(self, numerics: Numerics) -> Limits:
        """The limits of a kernel that declares this arithmetic."""
        with self._lock:
            if numerics not in self._limits:
                shared = self._shared(numerics.quantised)
                intended = [
                    intended_output(*self._qkv, **shared, numerics=order, rows=self.rows)
                    for order in orders_of(numerics)
                ]
                try:
                    self._limits[numerics] = limits_for(self.reference, self.yardstick, intended, self.problem.dtype)
                except ValueError as error:
                    raise MachineError(f"{self.problem.label}: {error}") from None
            return self._limits[numerics]

    def exact(self, numerics: Numerics) -> ExactElements | None:
        """The exact elements; None if the arithmetic has none, or not all rows are judged."""
        if self.rows is not None or not has_exact_elements(numerics):
            return None
        any_count, cap_error = numerics.normalise == "after", cap_error_of(numerics, self.problem.scoring)
        key = (any_count, cap_error, numerics.quantised)
        with self._lock:
            if key not in self._exact:
                elements = exact_elements(
                    *self._qkv,
                    **self._shared(numerics.quantised),
                    any_count=any_count,
                    cap_error=cap_error,
                    quantised=numerics.quantised,
                )
                self._freeze(elements.expected, elements.mask, elements.key)
                self._exact[key] = elements
            return self._exact[key]

    def log_sum_exp(self, numerics: Numerics) -> tuple[F64, F64]:
        """Log-sum-exp of each row, and the largest error that a kernel may have (:func:`log_sum_exp_float64`)."""
        with self._lock:
            if numerics not in self._lse:
                rows = log_sum_exp_float64(*self._qkv, **self._shared(numerics.quantised), numerics=numerics)
                self._freeze(*rows)
                self._lse[numerics] = rows
            return self._lse[numerics]

    def expected(self, numerics: Numerics) -> dict[str, Expected]:
        """The right values of each output of the task, by name, with the limits for this arithmetic."""
        if not self.problem.backward:
            return {"o": Expected(self.reference, self.yardstick, self.limits(numerics), self.exact(numerics))}
        with self._lock:
            if numerics not in self._expected:
                if self._gradients is None:
                    arrays = [finite(array) for array in (*self._qkv, self.inputs.arrays["do"])]
                    self._gradients = ExpectedGradients(self.problem, self.inputs)
                    self._torch_gradients = torch_gradients(*arrays, **self._arguments)
                try:
                    self._expected[numerics] = self._gradients.expected(numerics, self._torch_gradients)
                except ValueError as error:
                    raise MachineError(f"{self.problem.label}: {error}") from None
                for name, each in self._expected[numerics].items():
                    self._freeze(each.reference, each.yardstick, self._gradients.intended(numerics)[name])
            return self._expected[numerics]

    def _freeze(self, *arrays: Array) -> None:
        for array in arrays:
            array.setflags(write=False)
            self.nbytes += array.nbytes


_cache: OrderedDict[str, References] = OrderedDict()
_lock = threading.Lock()


def references_of(problem: Problem, inputs: Inputs) -> References:
    """References of all rows; the same object for the same problem and the same bytes of the inputs."""
    digest = sha256(repr(problem).encode())  # the inputs' bytes, not their kind or seed
    for name, array in inputs.arrays.items():
        digest.update(repr((name, array.dtype.name, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    key = digest.hexdigest()
    with _lock:
        references = _cache.setdefault(key, References(problem, inputs))
        _cache.move_to_end(key)
        while len(_cache) > 1 and sum(each.nbytes for each in _cache.values()) > MOST_BYTES:
            _cache.popitem(last=False)
    return references
