"""Steps before a judgement: find the kernel, choose its cases, and build it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sdpalab.kernels.kernel import Kernel
from sdpalab.problem import Problem
from warpsan.gpus import default_sms

if TYPE_CHECKING:
    from sdpalab.compile.building import BuiltStep
    from sdpalab.judge.cases import CaseSpec
    from sdpalab.run import GpuExecutor

__all__ = ["JudgedKernel", "PreparedKernel", "judged_kernel", "prepare"]


@dataclass(frozen=True)
class JudgedKernel:
    """A judged kernel: its name on the command line, its name and idea, and the kernel; None for a callable."""

    spec: str
    name: str
    idea: str
    kernel: Kernel | None


@dataclass(frozen=True)
class PreparedKernel:
    """Cases of a kernel, the reasons for missing cases, and its builds; a callable has cases only."""

    arch: str | None
    specs: tuple[CaseSpec, ...]
    missing: tuple[str, ...] = ()
    steps: tuple[BuiltStep, ...] = ()


def judged_kernel(
    spec: str, processes: ExitStack, gpu: GpuExecutor | None, include_dirs: Sequence[Path]
) -> JudgedKernel:
    """A kernel by its name or its file; the process of a user's kernel runs until ``processes`` ends it."""
    from sdpalab.judge.sandbox.sandboxed import NotBuilt, kernel_in_sandbox

    try:
        arch = gpu.arch if gpu else None
        loaded = processes.enter_context(
            kernel_in_sandbox(spec, arch=arch, else_say="there is nothing to build", include_dirs=include_dirs)
        )
        return JudgedKernel(spec, loaded.name, loaded.idea, loaded)
    except NotBuilt as error:
        return JudgedKernel(spec, error.name, "a Python callable on torch CPU tensors", None)


def prepare(subject: JudgedKernel, gpu: GpuExecutor | None, large: Sequence[Problem]) -> PreparedKernel:
    """Choose the cases of one kernel, and build it.

    The cases are those of level quick for its task, and small problems that execute its code for the ``large`` ones.

    Raises
    ------
    UserError
        If the kernel does not build.
    """
    from sdpalab.compile.building import build_kernel
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.same_code import cases_with_same_code

    kernel = subject.kernel
    if kernel is None:
        return PreparedKernel(gpu.arch if gpu else None, cases_for("quick"))
    specs = cases_for("quick", task=kernel.task)
    arch = gpu.arch if gpu else kernel.default_arch
    sms = gpu.sms if gpu else default_sms(arch)
    covering = cases_with_same_code(kernel, None, [problem.with_(task=kernel.task) for problem in large], sms=sms)
    specs = (*specs, *covering.specs)
    # Further claims are judged, but neither shown nor checked by the static gate.
    asked = {spec.problem for spec in specs if not spec.claim}
    problems = sorted(asked, key=lambda problem: -problem.scores)
    taken = [problem for problem in problems if kernel.why_not(problem) is None]
    steps = build_kernel(kernel, kernel.default_config, taken or problems, arch, sms=sms)
    return PreparedKernel(arch, specs, tuple(covering.missing.values()), steps)
