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
from sdpalab.packing import Packing
from sdpalab.problem import Problem
from sdpalab.run.simulated import SimulatedExecutor
from warpsan import Report
from warpsan.gpus import Gpu, default_sms
from warpsan.profile import SECTOR, AccessRecorder, Counters, InstructionCount

__all__ = ["CountedLaunch", "CountedPlan", "arch_on", "count"]


_BULK_LOAD = re.compile(r"cp\.async\.bulk\S*\.shared\S*\.global")
LENGTHS = 2.5
"""Largest ratio between the lengths of a path of machine code and of the PTX, in either direction."""


def _mean_bytes(copies: Sequence[InstructionCount]) -> float:
    """Mean bytes that one execution of these copies moves."""
    return SECTOR * sum(each.sectors for each in copies) / max(1, sum(each.warps for each in copies))


@dataclass(frozen=True)
class CountedLaunch:
    """One launch: name of its entry in the source, its build, its SM resources, and its counts."""

    name: str
    launch: Launch
    build: Build
    resources: Resources
    counters: Counters

    @cached_property
    def code(self) -> tuple[SassInstruction, ...]:
        """Machine code of the launch."""
        return parse(disassemble(self.build))[self.build.entry]

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Roles of its warps; exceptions as in :func:`~sdpalab.model.matching.roles_of`."""
        return roles_of(self.code, self.counters)

    @property
    def work(self) -> StepWork:
        """Work of the launch on a GPU."""
        return launch_work(self.name, self.counters, self.resources.blocks_per_sm, fp8_units=self._fp8_units)

    def scheduled(self, gpu: Gpu) -> StepWork:
        """Work of the launch on ``gpu``, with the issue schedule of its machine code, or the reason for its absence."""
        try:
            schedule = Schedule(self.code, self.roles, self._memory, pipes_of(gpu))
            reason = schedule.why_not() or self._mismatch
        except UserError as error:
            return replace(self.work, no_schedule=str(error))
        return replace(self.work, no_schedule=reason) if reason else replace(self.work, schedule=schedule)

    def critical_path(self, gpu: Gpu) -> CriticalPath | None:
        """The critical path of its CTAs on ``gpu`` if all are resident at once and the path exists; otherwise None.

        The result is also None if the counts fit no path.
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
        """Reason why the lengths of the paths contradict the launch; empty if they do not."""
        length = sum(len(role.path) * len(role.warps) for role in self.roles)
        counted = self.counters.total("warps") / len(self.counters.by_cta)
        if 1 / LENGTHS < length / counted < LENGTHS:
            return ""
        return f"the paths through its machine code have {length:,} instructions, where its PTX has {counted:,.0f}"

    @property
    def _memory(self) -> Memory:
        """Properties of memory accesses that only the counts show."""
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
        """Reason, in one sentence, why the PTX counts are no basis for the time; empty if they are.

        If the PTX multiplies float8 and the machine code does not, the compiler has replaced each product by
        conversions to float16 and float16 products: more instructions than counted, on other units.
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
        """Warp instructions of machine code in the whole launch, by the paths of its warps; None without paths.

        The counts are of PTX; :mod:`sdpalab.model.flow` fits a path of machine code to them.
        """
        try:
            of_cta = sum(len(role.path) * len(role.warps) for role in self.roles)
        except UserError:
            return None
        return float(of_cta * len(self.counters.by_cta)) if not self._mismatch else None


@dataclass(frozen=True)
class CountedPlan:
    """A plan with counted launches; ``steps`` are in order, and include library products unchanged."""

    plan: LaunchPlan
    steps: tuple[CountedLaunch | Gemm, ...]

    @property
    def launches(self) -> tuple[CountedLaunch, ...]:
        """The steps with a kernel of the lab's builds."""
        return tuple(step for step in self.steps if isinstance(step, CountedLaunch))

    @property
    def main(self) -> CountedLaunch:
        """The launch with the most matrix FLOPs, or, without any, the one with the most work."""
        return max(self.launches, key=lambda one: (one.counters.tensor_flops, one.counters.total("warps")))

    @property
    def not_modelled(self) -> str:
        """Reason for a missing modelled time, in one sentence; empty if there is a time."""
        return next(filter(None, (launch.not_modelled for launch in self.launches)), "")

    def modelled(self, gpu: Gpu, *, cold: bool = False) -> ModelledTime:
        """The modelled time on ``gpu``, which must have the architecture of the builds.

        Raises
        ------
        UserError
            With :attr:`not_modelled`, or as :func:`sdpalab.model.modelled.modelled`.
        """
        if self.not_modelled:
            raise UserError(self.not_modelled)
        return modelled(self.works(gpu), gpu, cold=cold)

    def works(self, gpu: Gpu) -> Iterator[StepWork]:
        """Work of each step on ``gpu``."""
        outside = {buffer.name: _bytes(buffer) for buffer in self.plan.buffers if buffer.role in ("in", "out")}
        for step, counted in zip(self.plan.steps, self.steps, strict=True):
            work = gemm_work(counted, self.plan) if isinstance(counted, Gemm) else counted.scheduled(gpu)
            first = sum(outside.pop(name, 0) for name in _buffers(step))
            yield replace(work, cold_bytes=min(first, work.dram_bytes))


def _buffers(step: Step) -> set[str]:
    """Names of the buffers that a step may access."""
    if isinstance(step, Gemm):
        return {step.a, step.b, step.c}
    return {arg.buffer if isinstance(arg, TiledMap) else arg for arg in step.args if isinstance(arg, (str, TiledMap))}


def _bytes(buffer: Buffer) -> int:
    return math.prod(buffer.shape) * dtype_of(buffer.dtype).itemsize


def arch_on(kernel: Kernel, gpu: Gpu) -> str | None:
    """Architecture to build the kernel for on ``gpu``; None if it does not run there."""
    if kernel.only_arch:
        return kernel.only_arch if kernel.only_arch.rstrip("af") == gpu.arch else None
    return gpu.arch if kernel.why_not_on(gpu.arch) is None else None


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

    The plan is for a GPU of ``sms`` multiprocessors, by default the reference GPU of ``arch``
    (:func:`warpsan.gpus.default_gpu`). The counts depend on the ``kind`` of inputs
    (:data:`sdpalab.inputs.TIMED_KINDS`) only if a kernel branches on values. The ``watchers`` collect accesses
    (:func:`warpsan.launch`).

    Raises
    ------
    UserError
        If the kernel rejects the problem or cannot be built for ``arch``.
    MachineError
        Without a compiler or disassembler.
    """
    plan = kernel.launch_plan(problem, config, sms=default_sms(arch) if sms is None else sms)
    inputs = make_inputs(problem, kind)
    ran: list[tuple[Build, Report]] = []
    executor = SimulatedExecutor(
        arch, on_launch=lambda build, report: ran.append((build, report)), checks=(), counters=True, watchers=watchers
    )
    executor.run(plan, Packing(problem).pack(inputs.arrays))
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
