"""GREEN before FAST, for the commands that measure: which kernels may be timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.common import progress_console, verdict_text
from sdpalab.errors import UserError
from sdpalab.kernels.equivalent import modules_of
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.userfile import is_user_file
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from sdpalab.run import GpuExecutor

__all__ = ["VerdictsOption", "compile_for", "kernel_for", "proven_by", "timing_gate", "tuned_config"]

VerdictsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Records of verdicts from this GPU, beside the committed ones: DIR/*/*.json."),
]


@contextmanager
def kernel_for(
    name: str, problems: Sequence[Problem], settings: Mapping[str, str], include_dirs: Sequence[Path] = ()
) -> Iterator[tuple[Kernel, Config]]:
    """A kernel with its configuration, refused here if it takes none of the problems; a user's stays in its process."""
    from sdpalab.judge.sandbox.sandboxed import kernel_in_sandbox

    only = "only what the lab builds can be timed"
    with kernel_in_sandbox(name, else_say=only, include_dirs=include_dirs) as kernel:
        config = kernel.config_with(settings)
        reasons = [kernel.reject_reason(problem, config) for problem in problems]
        if reasons and reasons[0] is not None and None not in reasons:
            raise UserError(reasons[0])
        yield kernel, config


def compile_for(kernel: Kernel, gpu: GpuExecutor | None) -> None:
    """Have the process of a user's kernel compile what is Triton's for this GPU."""
    from sdpalab.judge.sandbox.sandboxed import SandboxedKernel

    if gpu is not None and isinstance(kernel, SandboxedKernel):
        kernel.arch = gpu.arch


def tuned_config(kernel: Kernel, problems: Sequence[Problem], device: str) -> Config:
    """The tuned default that ``problems`` share on the GPU that a driver calls ``device``; else the default."""
    from sdpalab.gpus import gpu_of_device

    gpu = gpu_of_device(device)
    taken = [problem for problem in problems if kernel.reject_reason(problem) is None]
    tuned = {kernel.config_for(problem, gpu.name if gpu else None) for problem in taken}
    return tuned.pop() if len(tuned) == 1 else kernel.default_config


def proven_by(
    kernel: Kernel, config: Config, problem: Problem, arch: str, sms: int | None = None, more: Path | None = None
) -> str | None:
    """The record of a GPU's verdict on exactly the PTX of a problem; None if there is none.

    One that is committed, or lies in a folder of ``more``. The plan is for a GPU of ``sms`` multiprocessors.
    """
    from sdpalab.compile import build
    from sdpalab.evidence.proven import read_proofs

    proofs = (*read_proofs(), *(read_proofs(more) if more else ()))
    digests = {build(module, arch).ptx_sha256 for module in modules_of(kernel.launch_plan(problem, config, sms=sms))}
    return next((proof.record for proof in proofs if digests <= proof.ptx_sha256), None)


def timing_gate(
    console: Console,
    name: str,
    kernel: Kernel,
    config: Config,
    problems: Sequence[Problem],
    settings: Mapping[str, str],
    gpu: GpuExecutor,
    verdicts: Path | None = None,
    include_dirs: Sequence[Path] = (),
) -> dict[str, Any]:
    """GREEN before FAST: a recorded verdict on the PTX of each problem, or the simulator's now.

    The simulator judges the twelve cases, with the dtypes and masks that are to be timed, and small problems with the
    code of those that no verdict proves, which themselves are often too large for it: they are judged by the outputs
    of the timed calls.

    Returns
    -------
    dict
        JSON values: ``passed``, if the kernel may be timed at all; ``proven_by``, records by problem; ``left_out``, the
        problems on which it may not be timed, with the reasons; and the simulator's verdict if there was one.
    """
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.covering import covering_cases
    from sdpalab.judge.session import judge_candidate

    arch, sms = gpu.arch, gpu.sms
    reason = kernel.arch_reason(arch)
    if reason is not None:
        return _refused(console, kernel, config, reason)
    try:
        records = {problem: proven_by(kernel, config, problem, arch, sms, verdicts) for problem in problems}
        proven = {problem.label: record for problem, record in records.items() if record is not None}
        unproven = [problem for problem, record in records.items() if record is None]
        common = {"config": str(config), "arch": arch, "sms": sms, "proven_by": proven}
        if not unproven:
            return {"kernel": kernel.name, "passed": True, "left_out": {}, **common}
        covering = covering_cases(kernel, config, unproven, sms=sms)
        kinds = sorted({(problem.dtype, problem.causal) for problem in unproven})
        specs = [
            spec for dtype, causal in kinds for spec in cases_for("quick", dtype=dtype, causal=causal, claims=False)
        ]
        with progress_console().status(f"judging {name} on the simulator"):
            verdict = judge_candidate(
                name,
                [*specs, *covering.specs],
                device="sim",
                arch=arch,
                sms=sms,
                config=settings,
                until_failure=True,
                include_dirs=include_dirs if is_user_file(name) else (),
            )
    except UserError as error:
        return _refused(console, kernel, config, str(error))
    left_out = dict(covering.missing)
    for label, why in left_out.items():
        console.print(verdict_text(False, f"{kernel.name} is not timed on {label}: {why}"), soft_wrap=True)
    if not verdict.passed:
        line = f"{kernel.name} is {verdict.status.value} on the simulator, so it is not timed: {verdict.reason}"
        console.print(verdict_text(False, line), soft_wrap=True)
    return {**verdict.to_dict(), "left_out": left_out, **common}


def _refused(console: Console, kernel: Kernel, config: Config, reason: str) -> dict[str, Any]:
    console.print(verdict_text(False, f"{kernel.name} is not timed: {reason}"), soft_wrap=True)
    return {"kernel": kernel.name, "config": str(config), "passed": False, "left_out": {}, "reason": reason}
