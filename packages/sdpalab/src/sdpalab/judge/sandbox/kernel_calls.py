"""Calls of a function that launches kernels of Triton or of an extension of torch: they run on the simulator, on the
memory of CPU tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from sdpalab.judge.sandbox.provenance import Provenance, triton_functions
from warpsan import Report
from warpsan.profile import CodeOfEntry
from warpsan.program import CpuTensors, ExtensionGpu, extensions_of_process
from warpsan.report import Sources

__all__ = ["ARCH", "KernelCalls", "KernelHazard", "kernel_calls"]

ARCH = "sm_90"
"""Architecture of the simulated GPU."""


class KernelHazard(Exception):
    """A launch of the function had a hazard, or could not be simulated to its end."""


def kernel_calls() -> KernelCalls | None:
    """The simulator as this process's GPU; None without Triton functions and extensions."""
    extensions = extensions_of_process()
    if not triton_functions() and (extensions is None or not extensions.kernels):
        return None
    return KernelCalls()


class KernelCalls:
    """The simulator as the GPU of Triton and of extensions in this process.

    Attributes
    ----------
    functions : list of str
        Names of the Triton functions and of the kernels of the candidate.
    """

    def __init__(self) -> None:
        triton = triton_functions()
        self.functions = sorted(triton)
        self._provenance: Provenance | None = None
        self._unexecuted: dict[tuple[str, str], set[int]] = {}
        self._builds = 0
        self._changed, self._listed = False, list[dict[str, Any]]()
        self._gpus: list[CpuTensors] = []
        files = {Path(each) for each in triton.values()}
        texts = {each.name: each.read_text(errors="replace") for each in files if each.is_file()}
        if triton:
            from warpsan.program import TritonGpu

            self._gpus.append(TritonGpu(ARCH, self._launched))
        if (extensions := extensions_of_process()) is not None:
            self._gpus.append(ExtensionGpu(extensions, self._launched))
            self.functions += extensions.kernels
            texts |= extensions.texts
        self._sources = Sources(texts)

    @contextmanager
    def gpu(self) -> Iterator[None]:
        """Mode in which kernels run."""
        with ExitStack() as modes:
            for each in self._gpus:
                modes.enter_context(each)
            yield

    @contextmanager
    def observing(self, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """Observe a call in this block.

        Raises
        ------
        KernelHazard
            At the end of the block, if a launch had a hazard.
        """
        for each in self._gpus:
            each.hazards.clear()
        self._provenance = Provenance(inputs)
        try:
            with self.gpu(), self._provenance:
                yield
        finally:
            hazards = [hazard for each in self._gpus for hazard in each.hazards]
            if hazards:
                raise KernelHazard(f"{hazards[0].message} ({len(hazards)} hazards in its launches)")

    def stated(self, outputs: Iterable[torch.Tensor]) -> dict[str, Any]:
        """The provenance of the outputs of the last call, for a message."""
        assert self._provenance is not None
        writers: dict[str, int] = {}
        for tensor in outputs:
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
