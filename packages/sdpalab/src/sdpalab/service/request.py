"""A submission: the sources of one candidate, its task, and the stages of its evaluation; as received, and as a job."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sdpalab.errors import MachineError, UserError
from sdpalab.evaluation import STAGES, Evaluation, evaluate_alone
from sdpalab.judge.sandbox.candidate import foreign_builds_in
from sdpalab.judge.sandbox.confinement import SOURCE_SUFFIXES
from sdpalab.kernels.userfile import file_of, is_user_file
from sdpalab.problem import NAMED_PROBLEMS, Problem
from warpsan.gpus import gpu_named

__all__ = ["MOST_SOURCE", "BadRequest", "EvaluationRequest", "machine_job", "submission_job"]

MOST_SOURCE = 1 << 20
"""Most characters of one source file."""
MOST_BUDGET = 3600.0
"""Most wall-clock seconds of one evaluation."""
_MOST_FILES = 32
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9]+)+")
_ONLY = "candidate.py"
"""File of a submission that is one text."""

Text = Annotated[str, Field(max_length=MOST_SOURCE)]


class BadRequest(UserError):
    """A submission is invalid: the message names the field and the fix."""


class EvaluationRequest(BaseModel):
    """A candidate, its task, and the evaluation that is asked for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    source: Text | None = Field(None, description="Text of a Python file that defines one kernel or function.")
    files: dict[str, Text] | None = Field(
        None,
        description="Instead of source: file texts by name, such as kernel.py and kernel.cu.",
        max_length=_MOST_FILES,
    )
    entry: str | None = Field(
        None, description="FILE.py or FILE.py:NAME of files, or NAME of source; needed if there are several."
    )
    task: str | dict[str, Any] = Field(
        "mission", description="A name of GET /tasks, or the fields of sdpalab.Problem.", validate_default=True
    )
    stages: list[str] = Field(
        default_factory=lambda: list(STAGES[:3]), description=f"Of {', '.join(STAGES)}; they run in this order."
    )
    gpu: str = Field("", description="GPU for the modelled time of a kernel that passes, such as L4.")
    budget_s: float = Field(60.0, gt=0, le=MOST_BUDGET, description="Most wall-clock seconds of the evaluation.")

    @field_validator("task")
    @classmethod
    def _of_a_problem(cls, task: str | dict[str, Any]) -> str | dict[str, Any]:
        problem_of(task)
        return task

    @field_validator("gpu")
    @classmethod
    def _with_rates(cls, gpu: str) -> str:
        try:
            return gpu_named(gpu).name if gpu else ""
        except UserError as error:
            raise ValueError(str(error)) from None

    @field_validator("stages")
    @classmethod
    def _known(cls, stages: list[str]) -> list[str]:
        if not stages or (unknown := [each for each in stages if each not in STAGES]):
            raise ValueError(f"there is no stage {unknown[0]!r}" if stages else "at least one stage is needed")
        return [each for each in STAGES if each in stages]

    @field_validator("files")
    @classmethod
    def _sources(cls, files: dict[str, str] | None) -> dict[str, str] | None:
        for name in files or ():
            if not _NAME.fullmatch(name) or not name.endswith(SOURCE_SUFFIXES) or len(name) > 100:
                raise ValueError(f"{name[:100]!r} is not a plain file name that ends in {', '.join(SOURCE_SUFFIXES)}")
        return files

    @model_validator(mode="after")
    def _one_candidate(self) -> EvaluationRequest:
        if (self.source is None) == (self.files is None):
            raise ValueError("a submission has either source or files")
        _ = self.spec  # raises if there is none
        return self

    @property
    def texts(self) -> dict[str, str]:
        """The files, by their names."""
        return {_ONLY: self.source} if self.source is not None else dict(self.files or {})

    @property
    def spec(self) -> str:
        """The candidate in its folder, as ``FILE.py`` or ``FILE.py:NAME``."""
        if self.source is not None:
            spec = f"{_ONLY}:{self.entry}" if self.entry else _ONLY
        elif self.entry:
            spec = self.entry
        else:
            modules = [name for name in self.texts if name.endswith(".py")]
            if len(modules) != 1:
                raise ValueError(f"entry must name one of the {len(modules)} Python files")
            spec = modules[0]
        named = f"{spec.partition('.py:')[2]}_".isidentifier()
        if not is_user_file(spec) or str(file_of(spec)) not in self.texts or not named:
            raise ValueError(f"entry {spec!r} is not FILE.py or FILE.py:NAME of the files")
        return spec

    @property
    def problem(self) -> Problem:
        """The task."""
        return problem_of(self.task)

    def request(self) -> dict[str, Any]:
        """Inputs of :func:`submission_job`, in one form."""
        stated = {"files": self.texts, "spec": self.spec, "task": self.problem.to_dict()}
        return {**stated, "stages": self.stages, "gpu": self.gpu, "budget_s": self.budget_s}

    @classmethod
    def of(cls, data: Any) -> EvaluationRequest:
        """Validate plain JSON values; raises BadRequest with one sentence."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(each) for each in first["loc"])[:100]
            reason = str(first["msg"]).removeprefix("Value error, ")
            raise BadRequest(f"{place}: {reason}" if place else reason) from None


def digest_of(request: Mapping[str, Any], confined: bool, memory_bytes: int) -> str:
    """Digest of everything that a result depends on, beside the versions of the code."""
    text = json.dumps([request, confined, memory_bytes], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def problem_of(task: str | Mapping[str, Any]) -> Problem:
    """The problem of a task; raises ValueError."""
    if isinstance(task, str):
        if task not in NAMED_PROBLEMS:
            raise ValueError(f"there is no task {task[:100]!r}; the tasks are {', '.join(NAMED_PROBLEMS)}")
        return NAMED_PROBLEMS[task]
    try:
        tuples: dict[str, Any] = {name: tuple(value) for name, value in task.items() if isinstance(value, list)}
        return Problem(**{**task, **tuples})
    except TypeError as error:
        raise ValueError(str(error).replace("Problem.__init__()", "a problem")) from None
    except UserError as error:
        raise ValueError(str(error)) from None


def submission_job(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate a submission in a worker.

    Parameters
    ----------
    inputs : mapping
        :meth:`EvaluationRequest.request`; ``memory_bytes``; and ``folder``: an empty folder of this job, which the
        caller removes.

    Returns
    -------
    dict
        ``evaluation`` (:class:`sdpalab.evaluation.Evaluation`), ``confinement``, and ``cpu_seconds`` of the job's
        processes.
    """
    from sdpalab.judge.sandbox.guarded import spent_seconds

    begin = time.process_time() + spent_seconds()
    folder = Path(inputs["folder"])
    sources = folder / "sources"
    sources.mkdir()
    for name, text in inputs["files"].items():
        (sources / name).write_text(text, encoding="utf-8", newline="")
    with foreign_builds_in(folder / "builds"):
        evaluation = evaluate_alone(
            f"{sources}/{inputs['spec']}",
            Problem(**inputs["task"]),
            stages=inputs["stages"],
            gpu=inputs["gpu"],
            budget_s=inputs["budget_s"],
            memory_bytes=inputs["memory_bytes"],
        )
    stated = json.loads(json.dumps(evaluation.to_dict()).replace(f"{sources}/", ""))
    used = time.process_time() + spent_seconds() - begin
    return {"evaluation": stated, "confinement": _confinement(), "cpu_seconds": round(used, 3)}


def machine_job(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Check that this worker judges a correct kernel: its ``evaluation``, the ``confinement``, and ``versions``."""
    from importlib.metadata import version

    from sdpalab.compile import compiler_version
    from sdpalab.jobs.versions import code_version

    try:
        compiler = compiler_version()
    except MachineError as error:
        compiler = str(error)
    versions = f"sdpalab {code_version()}, torch {version('torch')}, {compiler}"
    evaluation = evaluate_alone("scalar", NAMED_PROBLEMS["small"], stages=("compile", "tiny"))
    return {"evaluation": evaluation.to_dict(), "confinement": _confinement(), "versions": versions}


@functools.cache
def _confinement() -> str:
    """Confinement of a candidate's processes on this machine, in words."""
    from sdpalab.judge.sandbox.candidate_server import SERVER
    from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe

    try:
        process = GuardedProcess(SERVER, Quota(cpu_seconds=60), untrusted=True).await_ready()
    except MachineError as error:
        return str(error)
    process.close()
    return describe(process.confinement, process.confined_by)


class SubmissionValue(BaseModel):
    """Value of :func:`submission_job`."""

    model_config = ConfigDict(extra="forbid")

    evaluation: Evaluation
    confinement: str
    cpu_seconds: float


class MachineValue(BaseModel):
    """Value of :func:`machine_job`."""

    model_config = ConfigDict(extra="forbid")

    evaluation: Evaluation
    confinement: str
    versions: str
