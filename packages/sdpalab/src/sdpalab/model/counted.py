"""A kernel's plan, built for a GPU and counted on the simulator: the input of the modelled time."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from sdpalab.compile import Build, Resources, completed, disassemble, resources
from sdpalab.compile.sass import TENSOR_CLASSES, SassInstruction, parse
from sdpalab.errors import UserError
from sdpalab.inputs import dtype_of, make_inputs
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import Buffer, Gemm, Launch, LaunchPlan, Step, TiledMap
from sdpalab.model.critical_path import CriticalPath, critical_path
from sdpalab.model.matching import Role, roles_of
from sdpalab.model.modelled import ModelledTime, StepWork, gemm_work, is_float8, launch_work, modelled
from sdpalab.model.operations import Memory, lines_of
from sdpalab.model.pipes import pipes_of
from sdpalab.model.schedule import Schedule
from sdpalab.problem import Problem
from sdpalab.run.simulated import SimulatedExecutor
from warpsan import Report
from warpsan.gpus import Gpu, default_sms
from warpsan.profile import SECTOR, AccessRecorder, Counters, InstructionCount

__all__ = ["CountedLaunch", "CountedPlan", "arch_on", "count"]


_BULK_LOAD = re.compile(r"cp\.async\.bulk\S*\.shared\S*\.global")
LENGTHS = 2.5
"""A path of machine code is no longer than so many times that of the PTX, and no shorter than that part of it."""


def _mean_bytes(copies: Sequence[InstructionCount]) -> float:
    """That one execution of these copies moves."""
    return SECTOR * sum(each.sectors for each in copies) / max(1, sum(each.warps for each in copies))


@dataclass(frozen=True)
class CountedLaunch:
    """One launch: its entry's name in the source, its build and what that uses of an SM, and what was counted of it."""

    name: str
    launch: Launch
    build: Build
    resources: Resources
    counters: Counters

    @cached_property
    def code(self) -> tuple[SassInstruction, ...]:
        """Its machine code."""
        return parse(disassemble(self.build))[self.build.entry]

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """What its warps do; see :func:`~sdpalab.model.matching.roles_of`, which may raise."""
        return roles_of(self.code, self.counters)

    @property
    def work(self) -> StepWork:
        """Its requirements on a GPU."""
        return launch_work(self.name, self.counters, self.resources.blocks_per_sm, fp8_units=self._fp8_units)

    def scheduled(self, gpu: Gpu) -> StepWork:
        """What it asks of ``gpu``, with the issue schedule of its machine code there, or why it has none."""
        try:
            schedule = Schedule(self.code, self.roles, self._memory, pipes_of(gpu))
            reason = schedule.reject_reason() or self._mismatch
        except UserError as error:
            return replace(self.work, no_schedule=str(error))
        return replace(self.work, no_schedule=reason) if reason else replace(self.work, schedule=schedule)

    def critical_path(self, gpu: Gpu) -> CriticalPath | None:
        """The critical path of its CTAs on ``gpu`` where all are resident at once; None elsewhere, or without one.

        None as well where the counts fit no path.
        """
        ctas = len(self.counters.by_cta)
        resident = -(-ctas // gpu.sms)
        if resident > self.resources.blocks_per_sm:
            return None
        try:
            return critical_path(self.code, self.counters, self._memory, gpu, resident, min(ctas, gpu.sms))
        except UserError:
            return None

    @property
    def _mismatch(self) -> str:
        """Why the paths are not those of the launch, by their length; empty if they may be."""
        length = sum(len(role.path) * len(role.warps) for role in self.roles)
        counted = self.counters.total("warps") / len(self.counters.by_cta)
        if 1 / LENGTHS < length / counted < LENGTHS:
            return ""
        return f"the paths through its machine code have {length:,} instructions, where its PTX has {counted:,.0f}"

    @property
    def _memory(self) -> Memory:
        """What the counts say of memory accesses that the machine code does not show."""
        counters = self.counters
        bulk = [each for each in counters.by_instruction if each.sectors and _BULK_LOAD.search(each.text)]
        at: dict[tuple[str, ...], list[InstructionCount]] = {}
        for each in bulk:
            at.setdefault(lines_of(each.frames), []).append(each)
        return Memory(
            conflicts=counters.total("wavefronts") / max(1, counters.total("ideal_wavefronts")),
            scatter=counters.total("sectors") / max(1, counters.total("ideal_sectors")),
            bulk_bytes=_mean_bytes(bulk),
            bulk_at={lines: _mean_bytes(copies) for lines, copies in at.items()},
            shared_bytes=self.resources.shared_bytes or inf,
        )

    @property
    def _fp8_units(self) -> bool:
        return any(name.startswith("Q") for name in TENSOR_CLASSES & self.resources.sass.keys())

    @property
    def not_modelled(self) -> str:
        """Why the counts of the PTX are not a basis for the time, in one sentence; empty if they are.

        Where the PTX multiplies float8 and the machine code does not, the compiler has put conversions to float16 and
        float16 products in the place of each product: more instructions than are counted, on other units.
        """
        emulated = any(each.tensor_flops and is_float8(each.text) for each in self.counters.by_instruction)
        if not emulated or self._fp8_units:
            return ""
        opcodes = Counter(each.base for each in self.code)
        return (
            f"{self.name} has no float8 product in its machine code for {self.build.arch}: {opcodes['HMMA']} HMMA and "
            f"{opcodes['F2FP']} F2FP, conversions that are not in the counts of its PTX"
        )

    @property
    def machine_instructions(self) -> float | None:
        """Warp instructions of machine code that the whole launch runs, by the paths of its warps; None without paths.

        The counts are of PTX: a path of machine code is fitted to them (:mod:`sdpalab.model.flow`).
        """
        try:
            of_cta = sum(len(role.path) * len(role.warps) for role in self.roles)
        except UserError:
            return None
        return float(of_cta * len(self.counters.by_cta)) if not self._mismatch else None


@dataclass(frozen=True)
class CountedPlan:
    """A plan whose launches were counted; ``steps`` in their order, library products as they are."""

    plan: LaunchPlan
    steps: tuple[CountedLaunch | Gemm, ...]

    @property
    def launches(self) -> tuple[CountedLaunch, ...]:
        """The steps that the lab builds."""
        return tuple(step for step in self.steps if isinstance(step, CountedLaunch))

    @property
    def main(self) -> CountedLaunch:
        """The launch with the most work: of matrix products, or of anything where none does any."""
        return max(self.launches, key=lambda one: (one.counters.tensor_flops, one.counters.total("warps")))

    @property
    def not_modelled(self) -> str:
        """Why there is no modelled time, in one sentence; empty if there is one."""
        return next(filter(None, (launch.not_modelled for launch in self.launches)), "")

    def modelled(self, gpu: Gpu, *, cold: bool = False) -> ModelledTime:
        """The modelled time on ``gpu``, for whose architecture it must have been built.

        Raises
        ------
        UserError
            With :attr:`not_modelled`, or as the function does.
        """
        if self.not_modelled:
            raise UserError(self.not_modelled)
        return modelled(self.works(gpu), gpu, cold=cold)

    def works(self, gpu: Gpu) -> Iterator[StepWork]:
        """What each step asks of ``gpu``."""
        outside = {buffer.name: _bytes(buffer) for buffer in self.plan.buffers if buffer.role in ("in", "out")}
        for step, counted in zip(self.plan.steps, self.steps, strict=True):
            work = gemm_work(counted, self.plan) if isinstance(counted, Gemm) else counted.scheduled(gpu)
            first = sum(outside.pop(name, 0) for name in _buffers(step))
            yield replace(work, cold_bytes=min(first, work.dram_bytes))


def _buffers(step: Step) -> set[str]:
    """Names of the buffers that a step may touch."""
    if isinstance(step, Gemm):
        return {step.a, step.b, step.c}
    return {arg.buffer if isinstance(arg, TiledMap) else arg for arg in step.args if isinstance(arg, (str, TiledMap))}


def _bytes(buffer: Buffer) -> int:
    return math.prod(buffer.shape) * dtype_of(buffer.dtype).itemsize


def arch_on(kernel: Kernel, gpu: Gpu) -> str | None:
    """What the kernel is built for to run on ``gpu``; None if it does not run there."""
    if kernel.only_arch:
        return kernel.only_arch if kernel.only_arch.rstrip("af") == gpu.arch else None
    return gpu.arch if kernel.arch_reason(gpu.arch) is None else None


def count(
    kernel: Kernel,
    problem: Problem,
    arch: str,
    config: Config | None = None,
    *,
    sms: int | None = None,
    watchers: Sequence[AccessRecorder] = (),
    kind: str = "normal",
) -> CountedPlan:
    """Build a kernel's plan for ``arch``, run it on the simulator without checks, and count.

    The plan is for a GPU of ``sms`` multiprocessors, by default the one that stands for ``arch``
    (:func:`warpsan.gpus.default_gpu`). What is counted depends on the ``kind`` of inputs
    (:data:`sdpalab.inputs.TIMED_KINDS`) only where a kernel branches on values. The ``watchers``
    collect accesses (:func:`warpsan.launch`).

    Raises
    ------
    UserError
        If the kernel refuses the problem or cannot be built for ``arch``.
    MachineError
        If there is no compiler or disassembler.
    """
    plan = kernel.launch_plan(problem, config, sms=default_sms(arch) if sms is None else sms)
    inputs = make_inputs(problem, kind)
    ran: list[tuple[Build, Report]] = []
    executor = SimulatedExecutor(
        arch, on_launch=lambda build, report: ran.append((build, report)), checks=(), counters=True, watchers=watchers
    )
    executor.run(plan, inputs.arrays)
    launched = iter(_counted(plan, ran))
    return CountedPlan(plan, tuple(step if isinstance(step, Gemm) else next(launched) for step in plan.steps))


def _counted(plan: LaunchPlan, ran: Sequence[tuple[Build, Report]]) -> list[CountedLaunch]:
    counted = []
    for launch, (build, report) in zip(plan.launches, ran, strict=True):
        assert launch.module is not None, "a launch plan names the module of every step"
        assert report.counters is not None, "counters were requested"
        complete = completed(launch, build)
        counted.append(CountedLaunch(launch.module.entry, complete, build, resources(build, launch), report.counters))
    return counted
