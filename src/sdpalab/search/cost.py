"""What a configuration costs where there is no GPU: the one place where the search asks the model."""

from __future__ import annotations

from sdpalab.errors import UserError
from sdpalab.gpus import Gpu
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.model.counted import arch_on, count
from sdpalab.problem import Problem
from sdpalab.search.targets import compile_for

__all__ = ["modelled_us"]


def modelled_us(kernel: Kernel, config: Config, problem: Problem, gpu: Gpu) -> float:
    """The modelled time of a configuration on ``gpu`` in microseconds, inputs in L2 (:mod:`sdpalab.model.modelled`).

    Raises
    ------
    UserError
        If the kernel does not run there, or the model says nothing of it, with the reason.
    MachineError
        If there is no compiler or disassembler.
    """
    arch = arch_on(kernel, gpu)
    if arch is None:
        raise UserError(f"kernel {kernel.name} does not run on {gpu.name}")
    compile_for(kernel, arch)
    return count(kernel, problem, arch, config, sms=gpu.sms).modelled(gpu).microseconds
