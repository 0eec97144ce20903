"""Cost of a configuration without a GPU; the only module of the search that uses the model."""

from __future__ import annotations

from sdpalab.errors import UserError
from sdpalab.judge.sandbox.sandboxed import compile_for
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.source import source_digest
from sdpalab.model.counted import arch_on, count
from sdpalab.model.modelled import ModelledTime
from sdpalab.problem import Problem
from warpsan.gpus import Gpu

__all__ = ["modelled_ratio", "modelled_us"]

_scheduled: dict[tuple[str, str, Problem, Gpu], bool] = {}
"""Whether a kernel's default configuration has issue schedules."""


def modelled_us(kernel: Kernel, config: Config, problem: Problem, gpu: Gpu) -> float:
    """The modelled time of a configuration on ``gpu`` in microseconds, inputs in L2 (:mod:`sdpalab.model.modelled`).

    All configurations of a search have the same kind of time as the default configuration: with its issue schedule, or,
    if the default's machine code has none, a floor by counts. A floor among schedules would win by what it omits.

    Raises
    ------
    UserError
        If the kernel does not run on the GPU, or the model gives no time, with the reason; also if only the default has
        an issue schedule.
    MachineError
        Without a compiler or disassembler.
    """
    time = _modelled(kernel, config, problem, gpu)
    if not _default_has_schedules(kernel, problem, gpu):
        return _floor_us(time)
    for step in time.steps:
        if step.no_schedule:
            raise UserError(f"the model has no issue schedule of {step.name}: {step.no_schedule}")
    return time.microseconds


def modelled_ratio(kernel: Kernel, config: Config, base: Config, problem: Problem, gpu: Gpu) -> float:
    """The modelled time of a configuration over that of ``base``: by issue schedules, or, if one of the two has none,
    by floors of both.

    Raises
    ------
    UserError, MachineError
        As :func:`modelled_us`.
    """
    times = [_modelled(kernel, each, problem, gpu) for each in (config, base)]
    if any(step.no_schedule for time in times for step in time.steps):
        mine, others = (_floor_us(time) for time in times)
    else:
        mine, others = (time.microseconds for time in times)
    return mine / others


def _floor_us(time: ModelledTime) -> float:
    return sum(step.floor_us + step.launch_us for step in time.steps)


def _default_has_schedules(kernel: Kernel, problem: Problem, gpu: Gpu) -> bool:
    key = (kernel.name, source_digest(kernel), problem, gpu)
    if key not in _scheduled:
        time = _modelled(kernel, kernel.default_config, problem, gpu)
        _scheduled[key] = not any(step.no_schedule for step in time.steps)
    return _scheduled[key]


def _modelled(kernel: Kernel, config: Config, problem: Problem, gpu: Gpu) -> ModelledTime:
    arch = arch_on(kernel, gpu)
    if arch is None:
        raise UserError(f"kernel {kernel.name} does not run on {gpu.name}")
    compile_for(kernel, arch)
    return count(kernel, problem, arch, config, sms=gpu.sms).modelled(gpu)
