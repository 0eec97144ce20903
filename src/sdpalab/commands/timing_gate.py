"""GREEN before FAST, for the commands that measure: which kernels may be timed at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.common import progress_console, verdict_text
from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.problem import Problem

__all__ = ["VerdictsOption", "kernel_for", "proven_by"]

VerdictsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Records of verdicts from this GPU, beside the committed ones: DIR/*/*.json."),
]


def kernel_for(name: str, problems: Sequence[Problem], settings: Mapping[str, str]) -> tuple[Kernel, Config]:
    """A kernel with its configuration, refused here if it does not take the problems."""
    from sdpalab.kernels.registry import resolve

    made = resolve(name)
    if not isinstance(made, Kernel):
        raise UserError(f"{name} is a Python callable, and only what the lab builds can be timed; it can be judged")
    config = made.config_with(settings)
    for problem in problems:
        reason = made.reject_reason(problem, config)
        if reason is not None:
            raise UserError(reason)
    return made, config


def proven_by(
    kernel: Kernel, config: Config, problems: Sequence[Problem], arch: str, more: Path | None = None
) -> tuple[str, ...] | None:
    """The records of a GPU's verdicts on the very PTX of each problem; None if there is none for one.

    Those that are committed, and what lies in the folders of ``more``.
    """
    from sdpalab.compile import build
    from sdpalab.evidence.proven import read_proofs

    proofs = (*read_proofs(), *(read_proofs(more) if more else ()))
    records: list[str] = []
    for problem in problems:
        steps = kernel.launch_plan(problem, config).launches
        digests = {build(step.module, arch).ptx_sha256 for step in steps if step.module is not None}
        record = next((proof.record for proof in proofs if digests <= proof.ptx_sha256), None)
        if record is None:
            return None
        records.append(record)
    return tuple(records)


def timing_gate(
    console: Console,
    name: str,
    made: Kernel,
    config: Config,
    problems: Sequence[Problem],
    settings: Mapping[str, str],
    arch: str,
    verdicts: Path | None = None,
) -> dict[str, Any]:
    """GREEN before FAST: a recorded verdict, or the simulator's now, as JSON values with ``passed``.

    The simulator judges the twelve cases, with the dtypes and masks that are to be timed. The shapes themselves, often
    too large for it, are judged by the outputs of the timed calls.
    """
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.session import judge_candidate

    records = proven_by(made, config, problems, arch, verdicts)
    if records is not None:
        return {"kernel": made.name, "config": str(config), "passed": True, "proven_by": list(records)}
    kinds = sorted({(problem.dtype, problem.causal) for problem in problems})
    specs = [spec for dtype, causal in kinds for spec in cases_for("quick", dtype=dtype, causal=causal)]
    with progress_console().status(f"judging {name} on the simulator"):
        verdict = judge_candidate(name, specs, device="sim", arch=arch, config=settings, until_failure=True)
    if not verdict.passed:
        line = f"{made.name} is {verdict.status.value} on the simulator, so nothing is timed: {verdict.reason}"
        console.print(verdict_text(False, line), soft_wrap=True)
    return verdict.to_dict()
