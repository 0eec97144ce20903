"""Sanitizing a kernel as jobs, one per problem, on any executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, TypeAdapter

from sdpalab.jobs.calling import values
from sdpalab.jobs.job import Executor
from sdpalab.jobs.judging import include_dirs_in, same_source, source_of
from sdpalab.judge.sandbox.sandboxed import kernel_in_sandbox
from sdpalab.judge.sanitize import combine, sanitize_kernel
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.userfile import absolute_spec
from sdpalab.problem import Problem
from sdpalab.record import RECORD
from warpsan.report import SanitizedHazard, Suppression
from warpsan.sanitize import Modes, Sanitized

__all__ = ["SanitizedProblem", "sanitize_by_jobs", "sanitize_job"]

PROBLEM_SECONDS = 3600.0
"""Most seconds for one problem in all modes."""


def _hazard(value: dict[str, Any]) -> dict[str, Any]:
    try:
        TypeAdapter(SanitizedHazard).validate_python(SanitizedHazard.from_dict(value))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no hazard of a kernel: {error}") from None
    return value


class SanitizedProblem(BaseModel):
    """Value of a job: the runs and the findings (:class:`warpsan.sanitize.Sanitized`)."""

    model_config = RECORD

    runs: list[str]
    hazards: list[Annotated[dict[str, Any], AfterValidator(_hazard)]]
    notes: list[str]


def sanitize_by_jobs(
    executor: Executor,
    spec: str,
    kernel: Kernel,
    problems: Sequence[Problem],
    config: Config,
    modes: Modes,
    *,
    arch: str | None = None,
    suppressions: Sequence[Suppression] = (),
    include_dirs: Sequence[Path] = (),
) -> Sanitized:
    """:func:`sdpalab.judge.sanitize.sanitize_kernel` on an executor's workers, with the same outcome.

    Parameters
    ----------
    spec : str
        The kernel's registry name, or ``FILE.py[:NAME]`` under a path that each worker has, with the same content.
    kernel
        The kernel of that name, in this process.
    problems, config, modes, arch, suppressions
        As for :func:`sdpalab.judge.sanitize.sanitize_kernel`.
    include_dirs
        As for :func:`sdpalab.jobs.judging.judge_by_jobs`.

    Raises
    ------
    UserError
        As for :func:`sdpalab.judge.sanitize.sanitize_kernel`; also if a worker has another source or another version of
        the lab.
    MachineError
        If a job is lost, or does not end.
    """
    arch = arch or kernel.default_arch
    shared = {
        "kernel": absolute_spec(spec),
        "source": source_of(spec, include_dirs),
        "include_dirs": [str(folder) for folder in include_dirs],
        "config": dict(config),
        "modes": asdict(modes),
        "arch": arch,
    }
    inputs = [{**shared, "problem": problem.to_dict()} for problem in problems]
    outcomes = values(executor, "sanitize", inputs, seconds=PROBLEM_SECONDS)
    parts = [
        (each["runs"], [SanitizedHazard.from_dict(hazard) for hazard in each["hazards"]], each["notes"])
        for each in outcomes
    ]
    return combine(kernel, problems, config, parts, arch=arch, suppressions=suppressions)


def sanitize_job(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Sanitize a kernel on one problem (:class:`SanitizedProblem`)."""
    spec, modes = same_source(inputs), inputs["modes"]
    lists = {name: tuple(modes[name]) for name in ("schedules", "async_modes")}
    where = {"arch": inputs["arch"], "include_dirs": include_dirs_in(inputs)}
    with kernel_in_sandbox(spec, else_say="there is no PTX to run", **where) as kernel:
        outcome = sanitize_kernel(
            kernel,
            [Problem(**inputs["problem"])],
            Config(inputs["config"]),
            Modes(**{**modes, **lists}),
            arch=inputs["arch"],
        )
    content = outcome.to_dict()
    return {name: content[name] for name in ("runs", "hazards", "notes")}
