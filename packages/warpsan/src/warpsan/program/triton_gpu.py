"""The simulator as Triton's GPU in this process, for callers that run functions with Triton kernels themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpsan.gpus import default_gpu
from warpsan.host.launch import Report
from warpsan.program.cpu_tensors import CpuTensors, describe_gpu
from warpsan.program.kernel_launches import KernelLaunches
from warpsan.program.options import RunOptions
from warpsan.program.triton_driver import install
from warpsan.report.groups import SanitizedHazard

__all__ = ["TritonGpu"]


class TritonGpu(CpuTensors):
    """Mode in which Triton functions run on CPU tensors; one for each process.

    Parameters
    ----------
    arch : str
        Architecture of the simulated GPU.
    observe : callable
        Called after each launch with the kernel's name and PTX, the bytes that it changed in each storage (a mask, by
        the storage's address), and the launch's report.
    """

    def __init__(self, arch: str, observe: Callable[[str, str, dict[int, Any], Report], None]) -> None:
        super().__init__()
        gpu = default_gpu(arch)
        options = RunOptions(gpu=gpu, arch=arch)
        self._run = KernelLaunches(options, observe=observe)
        install(self._run)
        describe_gpu(gpu, arch, options.memory)
        self.in_backward()

    @property
    def hazards(self) -> list[SanitizedHazard]:
        """Hazards of all launches."""
        return self._run.hazards
