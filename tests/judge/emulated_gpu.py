"""An executor process whose GPU is the simulator: a fault leaves it unusable for good, as it does a GPU's context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sdpalab.compile import Build
from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox import executor
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.run import KernelFault, RunResult, SimulatedExecutor
from sdpalab.run.gpu_launch import runs_on
from sdpalab.sim import LaunchError, SimError

DEVICE = "emulated L4"


class EmulatedGpu:
    """What the executor asks of :class:`sdpalab.run.GpuExecutor`: an L4."""

    device = DEVICE

    def __init__(self, *, arch: str | None) -> None:
        self.arch = arch or "sm_89"
        if not runs_on(self.arch, (8, 9)):
            raise UserError(f"{DEVICE} does not run code for {self.arch}: build for sm_89")
        self._lost = False

    def run(self, plan: LaunchPlan, inputs: Mapping[str, Any], *, poison: int, builds: Sequence[Build]) -> RunResult:
        if self._lost:
            raise MachineError("GPU 0 cannot run a kernel: its context is lost")
        if not all(built.cubin for built in builds):
            raise MachineError("there is nothing to load")
        try:
            result = SimulatedExecutor(self.arch, checks=()).run(plan, inputs, poison=poison, builds=builds)
        except LaunchError as error:
            raise UserError(str(error)) from None
        except SimError as error:
            self._lost = True
            raise KernelFault(f"run {builds[0].name}: CUDA_ERROR_ILLEGAL_ADDRESS ({error})") from None
        return replace(result, device=self.device)


def main(read_fd: int, write_fd: int) -> None:
    """The executor's own, with this GPU."""
    executor.GpuExecutor = EmulatedGpu
    executor.main(read_fd, write_fd)
