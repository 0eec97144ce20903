"""Calls of a function that launches Triton kernels: they run on the simulator, on the memory of CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sdpalab.judge.sandbox.provenance import Provenance, triton_functions
from warpsan import Report
from warpsan.profile import CodeOfEntry
from warpsan.program import TritonGpu
from warpsan.report import Sources

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
        self.functions = sorted(triton_functions())
        self._provenance: Provenance | None = None
        self._unexecuted: dict[tuple[str, str], set[int]] = {}
        self._builds = 0
        self._changed, self._listed = False, list[dict[str, Any]]()
        files = {Path(each) for each in triton_functions().values()}
        self._sources = Sources({each.name: each.read_text(errors="replace") for each in files if each.is_file()})
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
        }

    def _launched(self, name: str, ptx: str, changed: Mapping[int, Any], report: Report) -> None:
        if self._provenance is not None:
            self._provenance.launched(name, changed, report.flops)
        known = self._unexecuted.setdefault((name, ptx), set(report.unexecuted))
        self._changed |= not known <= set(report.unexecuted) or len(self._unexecuted) > self._builds
        self._builds = len(self._unexecuted)
        known.intersection_update(report.unexecuted)

    def code(self) -> list[dict[str, Any]]:
        """Code of each kernel that all calls of this process executed, over its builds, for a message."""
        if self._changed:
            self._changed, self._listed = False, self._list()
        return self._listed

    def _list(self) -> list[dict[str, Any]]:
        builds: dict[str, list[CodeOfEntry]] = {}
        for (name, ptx), unexecuted in self._unexecuted.items():
            builds.setdefault(name, []).append(CodeOfEntry(ptx, name, unexecuted))
        return [self._entry(name, entries) for name, entries in builds.items()]

    def _entry(self, name: str, builds: Sequence[CodeOfEntry]) -> dict[str, Any]:
        executed = set().union(*(each.executed_origins for each in builds))
        regions = {
            (region.places, region.branch): {
                "places": list(region.places),
                "branch": region.branch,
                "condition": self._sources.line(region.branch.rpartition(":")[0]).strip(),
                "depends": list(region.depends),
                "reached": "",
                "fails": region.fails,
            }
            for each in builds
            for region in each.regions(executed, self._sources.innermost)
        }
        return {
            "entry": name,
            "builds": len(builds),
            "blocks": sum(each.blocks for each in builds),
            "executed": sum(each.executed for each in builds),
            "unjudged": list(regions.values()),
            "identity": sorted(set().union(*(each.identity for each in builds))),
        }
