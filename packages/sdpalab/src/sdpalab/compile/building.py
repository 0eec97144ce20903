"""Build the modules of a launch plan, or of a file with its launch file, and read their resources.

The resources of a kernel are checked against its limits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sdpalab.compile import Build, GateResult, Resources, build, check, check_arch, resources
from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import Launch, PtxSource, Source
from sdpalab.problem import Problem
from warpsan.build import foreign
from warpsan.gpus import default_sms
from warpsan.ptx import parse, resolve, short_name
from warpsan.sanitize import PtxCase

__all__ = ["BuiltLaunch", "BuiltStep", "arch_of", "build_case", "build_kernel"]

_TARGET = re.compile(r"^\s*\.target\s+(sm_\w+)", re.MULTILINE)


@dataclass(frozen=True)
class BuiltStep:
    """One module: the first problem that uses it, its build, its resources, and the result of the gate."""

    problem: Problem
    module: Source
    build: Build
    resources: Resources
    gate: GateResult

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **self.build.to_dict(),
            "problem": self.problem.to_dict(),
            "resources": self.resources.to_dict(),
            "gate": self.gate.to_dict(),
        }


def build_kernel(
    kernel: Kernel, config: Config, problems: Sequence[Problem], arch: str, *, sms: int | None = None
) -> tuple[BuiltStep, ...]:
    """Build each distinct module of the plans for ``problems`` once, in order of appearance.

    The plans are for a GPU of ``sms`` multiprocessors, by default the reference GPU of ``arch``. The resources are
    those of the first launch that uses a module, so pass the largest problem first.

    Raises
    ------
    UserError
        If the kernel rejects one of the problems or the architecture, or the architecture does not exist.
    BuildError
        If a module does not compile.
    """
    check_arch(arch)
    reason = kernel.why_not_on(arch)
    if reason is not None:
        raise UserError(reason)
    steps: dict[str, BuiltStep] = {}
    for problem in problems:
        for step in kernel.launch_plan(problem, config, sms=sms or default_sms(arch)).launches:
            assert step.module is not None, "a launch plan names the module of every step"
            built = build(step.module, arch)
            if built.key not in steps:
                used = resources(built, step)
                gate = check(used, kernel.static_limits(problem))
                steps[built.key] = BuiltStep(problem, step.module, built, used, gate)
    return tuple(steps.values())


@dataclass(frozen=True)
class BuiltLaunch:
    """One launch of a launch file: the short name of its entry, the launch, its build and its resources."""

    name: str
    launch: Launch
    build: Build
    resources: Resources


def arch_of(case: PtxCase) -> str:
    """The architecture in the PTX of all launches, such as ``sm_90a``.

    Raises
    ------
    UserError
        If one lacks an architecture, or they differ.
    """
    targets = set()
    for launch in case.launches.launches:
        target = _TARGET.search(case.text_of(launch))
        if target is None:
            raise UserError(f"{case.name_of(launch)} has no .target, so it cannot be assembled")
        targets.add(target[1])
    if len(targets) > 1:
        raise UserError(f"{case.name}: the launches are for several architectures: {', '.join(sorted(targets))}")
    return str(targets.pop())


def build_case(case: PtxCase) -> tuple[BuiltLaunch, ...]:
    """Assemble the PTX of each launch of a file with its launch file, and read the resources.

    Raises
    ------
    UserError
        As :func:`arch_of`, or if ptxas rejects the PTX.
    MachineError
        Without ptxas or disassembler.
    """
    arch = arch_of(case)
    launches = []
    for launch in case.launches.launches:
        ptx, entry = case.text_of(launch), case.entry_of(launch)
        mangled = resolve(entry, parse(ptx).entries, "entry")
        own = case.module if launch.ptx is None else None
        module = own or PtxSource(case.name_of(launch), ptx, mangled, arch, ptx.encode(), "")
        module = foreign(module, case.workshop) if case.workshop else module
        grid, block, cluster = launch.sizes
        described = Launch(
            *(grid, block, case.buffers_of(launch)),
            dynamic_smem=launch.dynamic_smem or 0,
            cluster=cluster,
            module=module,
        )
        built = replace(build(module, arch), entry=mangled)
        launches.append(BuiltLaunch(short_name(entry), described, built, resources(built, described)))
    return tuple(launches)
