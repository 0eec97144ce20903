"""Jobs as data, and their executors: processes of this machine, or many machines."""

from __future__ import annotations

from sdpalab.jobs.dispatch import run_jobs
from sdpalab.jobs.job import Executor, Job, JobOutcome, JobResult
from sdpalab.jobs.named import EXECUTORS, executor_named

__all__ = ["EXECUTORS", "Executor", "Job", "JobOutcome", "JobResult", "executor_named", "run_jobs"]
