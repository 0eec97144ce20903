"""Calls of a function that launches Triton kernels: they run on the simulator, on the memory of CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sdpalab.judge.sandbox.provenance import Provenance, triton_functions
from warpsan import Report
from warpsan.program import TritonGpu

__all__ = ["KernelHazard", "TritonCalls"]

_ARCH = "sm_90"


class KernelHazard(Exception):
    """A launch of the function had a hazard, or could not be simulated to its end."""


class TritonCalls:
    """The simulator as Triton's GPU in this process.

    Attributes
    ----------
    functions : list of str
        Names of the Triton functions of the candidate.
    """

    def __init__(self) -> None:
        self.functions = triton_functions()
        self._provenance: Provenance | None = None
        self._gpu = TritonGpu(_ARCH, self._launched)

    @contextmanager
    def observing(self, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """Observe a call in this block.

        Raises
        ------
        KernelHazard
            At the end of the block, if a launch had a hazard.
        """
        self._gpu.hazards.clear()
        self._provenance = Provenance(inputs)
        try:
            with self._gpu, self._provenance:
                yield
        finally:
            if self._gpu.hazards:
                first = self._gpu.hazards[0]
                raise KernelHazard(f"{first.message} ({len(self._gpu.hazards)} hazards in its launches)")

    def stated(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The provenance of the outputs of the last call, for a message."""
        assert self._provenance is not None
        writers: dict[str, int] = {}
        for tensor in outputs.values():
            for name, count in self._provenance.writers(tensor).items():
                writers[name] = writers.get(name, 0) + count
        return {
            "functions": self.functions,
            "launches": self._provenance.launches,
            "writers": writers,
            "flops": self._provenance.flops,
        }

    def _launched(self, name: str, changed: Mapping[int, Any], report: Report) -> None:
        assert self._provenance is not None
        self._provenance.launched(name, changed, report.flops)
