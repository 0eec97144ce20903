"""Compile every module of a kernel's launch plan, read its resources, and check them against the kernel's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdpalab.compile import Build, GateResult, Resources, build, check, check_arch, resources
from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import Source
from sdpalab.problem import Problem
from warpsan.gpus import default_sms

__all__ = ["BuiltStep", "build_kernel"]


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
    reason = kernel.arch_reason(arch)
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
