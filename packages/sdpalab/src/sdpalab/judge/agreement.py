"""Distances of a kernel from each torch attention backend and from float64, and of the backends from each other.

The agreement is not part of the verdict, which depends on float64 alone. It distinguishes a changed backend from a
broken kernel: if a new torch differs from a kernel that agrees with float64, torch has changed.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic.dataclasses import dataclass

from sdpalab.inputs import Inputs
from sdpalab.judge.rule.references import references_of
from sdpalab.judge.torch_backends import BACKENDS, BackendUnavailable, backend_device
from sdpalab.problem import Problem
from sdpalab.record import RECORD, JsonRecord

__all__ = ["Agreement", "BackendError", "agreement"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, config=RECORD)
class BackendError(JsonRecord):
    """Name of a torch backend, and the relative L2 distances of its output."""

    backend: str
    from_float64: float
    from_kernel: float


@dataclass(frozen=True, config=RECORD)
class Agreement(JsonRecord):
    """Distances between a kernel, torch backends and float64 on one case.

    Every distance is ||a - b|| / ||reference|| over the judged rows.

    Attributes
    ----------
    torch : str
        Version of torch.
    device : {"cpu", "cuda"}
        Device of the backends.
    kernel_from_float64 : float
    witnesses : tuple of BackendError
        Backends of this torch on the device that support these inputs, at least one.
    apart : float
        The largest distance between two backends; 0 if there is only one.
    """

    derived = ("best",)

    torch: str
    device: str
    kernel_from_float64: float
    witnesses: tuple[BackendError, ...]
    apart: float

    @property
    def nearest(self) -> BackendError:
        """The backend nearest to the kernel."""
        return min(self.witnesses, key=lambda backend: backend.from_kernel)

    @property
    def best(self) -> str:
        """Name of the nearest backend."""
        return self.nearest.backend

    def lines(self, case: str) -> tuple[str, ...]:
        """Text lines for a terminal."""
        shown = [
            f"  torch {backend.backend}: {backend.from_float64:.1e} from float64, {backend.from_kernel:.1e} from it"
            for backend in self.witnesses
        ]
        on = f"torch {self.torch} on {self.device}"
        head = (
            f"torch backends on {case}, relative L2: this kernel is {self.kernel_from_float64:.1e} from float64 ({on})"
        )
        others = f"; the backends are up to {self.apart:.1e} apart" if len(self.witnesses) > 1 else ""
        return (head, *shown, f"  it agrees best with torch {self.best}{others}; not part of the verdict")


def agreement(problem: Problem, inputs: Inputs, out: Array) -> Agreement | None:
    """Compare an output with those of every torch backend on this machine: on a GPU if torch finds one, else on the
    CPU.

    Parameters
    ----------
    problem, inputs
        The computation.
    out : ndarray of the problem's dtype, [B, H, Sq, D]

    Returns
    -------
    Agreement or None
        None if no backend supports these inputs, no row is judged, or a judged row has an element that is not finite.
    """
    import torch

    device = backend_device()
    references = references_of(problem, inputs)
    reference = references.reference
    judged = ~np.isnan(reference).any(axis=-1)
    norm = float(np.linalg.norm(reference[judged]))

    def distance(one: Array, other: Array) -> float:
        return float(np.linalg.norm(one[judged].astype(np.float64) - other[judged].astype(np.float64))) / norm

    outputs: dict[str, Array] = {}
    for backend in BACKENDS[device]:
        try:
            output = references.backend_output(backend, device)
        except BackendUnavailable:
            continue
        if np.isfinite(output[judged]).all():
            outputs[backend.value] = output
    if not outputs or not norm or not np.isfinite(out[judged]).all():
        return None
    return Agreement(
        torch=str(torch.__version__),
        device=device,
        kernel_from_float64=distance(out, reference),
        witnesses=tuple(
            BackendError(backend, distance(output, reference), distance(output, out))
            for backend, output in outputs.items()
        ),
        apart=max((distance(one, other) for one, other in combinations(outputs.values(), 2)), default=0.0),
    )
