"""Calls of a function that launches Triton kernels: they run on the simulator, on the memory of CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sdpalab.judge.sandbox.provenance import Provenance, triton_functions
from warpsan import Report
from warpsan.profile import CodeOfEntry
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
    gpu : TritonGpu
        Mode in which its launches run.
    """

    def __init__(self) -> None:
        self.functions = triton_functions()
        self._provenance: Provenance | None = None
        self._unexecuted: dict[tuple[str, str], set[int]] = {}
        self.gpu = TritonGpu(_ARCH, self._launched)

    @contextmanager
    def observing(self, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """Observe a call in this block.

        Raises
        ------
        KernelHazard
            At the end of the block, if a launch had a hazard.
        """
        self.gpu.hazards.clear()
        self._provenance = Provenance(inputs)
        try:
            with self.gpu, self._provenance:
                yield
        finally:
            if self.gpu.hazards:
                first = self.gpu.hazards[0]
                raise KernelHazard(f"{first.message} ({len(self.gpu.hazards)} hazards in its launches)")

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
            "code": self._code(),
        }

    def _launched(self, name: str, ptx: str, changed: Mapping[int, Any], report: Report) -> None:
        if self._provenance is not None:
            self._provenance.launched(name, changed, report.flops)
        self._unexecuted.setdefault((name, ptx), set(report.unexecuted)).intersection_update(report.unexecuted)

    def _code(self) -> dict[str, tuple[int, int]]:
        """Executed and all blocks of each kernel, in all calls of this process and over all its builds."""
        code: dict[str, tuple[int, int]] = {}
        for (name, ptx), unexecuted in self._unexecuted.items():
            entry = CodeOfEntry(ptx, name, unexecuted)
            executed, blocks = code.get(name, (0, 0))
            code[name] = executed + entry.executed, blocks + entry.blocks
        return code
