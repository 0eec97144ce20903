"""JSON answers of the service, as models: they make its schema, and the application writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from sdpalab.evaluation import STAGES, Evaluation
from sdpalab.problem import NAMED_PROBLEMS, Problem
from sdpalab.record import ProblemField
from sdpalab.service.request import EvaluationRequest
from sdpalab.service.store import StoredJob

__all__ = ["Batch", "Health", "JobAnswer", "JobList", "NamedTasks", "Refusal", "answer_of", "json_schema", "tasks"]

MOST_BATCH = 4096
"""Most submissions of one request."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Batch(_Answer):
    """Body of ``POST /jobs`` for several submissions, which are accepted together or not at all."""

    submissions: list[EvaluationRequest] = Field(min_length=1, max_length=MOST_BATCH)


class JobAnswer(_Answer):
    """One job; times are seconds since 1970."""

    id: str
    state: Literal["queued", "running", "done"]
    task: ProblemField
    stages: list[str]
    budget_s: float
    accepted: float
    begun: float | None
    ended: float | None
    starts: int = Field(description="How often a worker began it; more than 1 after the end of a server process.")
    answered_from: str | None = Field(description="The job that was judged, if an equal request was recorded.")
    evaluation: Evaluation | None
    text: str = Field(description="The evaluation in at most 500 characters.")
    confinement: str = Field(description="Confinement of the candidate's processes.")
    cpu_seconds: float | None


class JobList(_Answer):
    """Answer of ``POST /jobs`` to a batch, in its order, and of ``GET /jobs``, the newest first."""

    jobs: list[JobAnswer]


class TaskEntry(_Answer):
    """A named task."""

    name: str
    problem: ProblemField


class NamedTasks(_Answer):
    """Answer of ``GET /tasks``."""

    tasks: list[TaskEntry]
    stages: list[str]


class Health(_Answer):
    """Answer of ``GET /health``; the HTTP status is 503 unless ``status`` is ``ok``."""

    status: Literal["ok", "stopping", "failed"]
    reason: str
    versions: str
    confinement: str
    workers: int
    running: int
    queued: int
    oldest_s: float = Field(description="Age of the oldest queued job, in seconds.")


class Refusal(_Answer):
    """Answer with an HTTP status from 400 up: one sentence."""

    error: str


_STATES: Mapping[str, Literal["queued", "running", "done"]] = {"queued": "queued", "running": "running", "done": "done"}


def answer_of(job: StoredJob) -> JobAnswer:
    """The answer about a job."""
    result = job.result or {}
    evaluation = Evaluation.from_dict(result["evaluation"]) if result else None
    return JobAnswer(
        id=job.id,
        state=_STATES[job.state],
        task=Problem(**job.request["task"]),
        stages=job.request["stages"],
        budget_s=job.request["budget_s"],
        accepted=job.accepted,
        begun=job.begun,
        ended=job.ended,
        starts=job.starts,
        answered_from=job.answered_from,
        evaluation=evaluation,
        text=evaluation.text() if evaluation else "",
        confinement=result.get("confinement", ""),
        cpu_seconds=result.get("cpu_seconds"),
    )


def tasks() -> NamedTasks:
    """The named tasks."""
    entries = [TaskEntry(name=name, problem=problem) for name, problem in NAMED_PROBLEMS.items()]
    return NamedTasks(tasks=entries, stages=list(STAGES))


def json_schema() -> dict[str, Any]:
    """JSON Schema of all requests and answers, under ``$defs``."""
    models = (EvaluationRequest, Batch, JobAnswer, JobList, NamedTasks, Health, Refusal)
    modes: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
        (model, "validation" if model in (EvaluationRequest, Batch) else "serialization") for model in models
    ]
    _, definitions = models_json_schema(modes, title="sdpalab serve")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **definitions}
