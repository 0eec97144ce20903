"""The interface of the executors of a launch plan, and the result of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from sdpalab.kernels.plan import LaunchPlan

__all__ = ["PlanExecutor", "RunResult"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RunResult:
    """Outputs of one run of a plan, with its device and code.

    Attributes
    ----------
    outputs : mapping of str to ndarray
        Every ``out`` buffer of the plan, in its declared shape and dtype.
    device : str
        ``simulator sm_89``, or the GPU's name.
    ptx_sha256 : tuple of str
        Digest of the PTX of each launch, in order: the same bytes for every executor.
    hazards : tuple of str
        Errors of the run itself: the simulator's checks; on a GPU, writes outside buffers; on both, a semaphore that is
        not zero after the run.
    changed_inputs : tuple of str
        Input buffers whose bytes changed.
    """

    outputs: Mapping[str, Array]
    device: str
    ptx_sha256: tuple[str, ...]
    hazards: tuple[str, ...] = ()
    changed_inputs: tuple[str, ...] = ()


class PlanExecutor(Protocol):
    """Runs launch plans, without timing them (see ``measure``)."""

    def run(self, plan: LaunchPlan, inputs: Mapping[str, Array], *, poison: int = 0xFF) -> RunResult:
        """Run all steps on copies of ``inputs``; ``out`` and ``workspace`` start filled with ``poison``."""
        ...
