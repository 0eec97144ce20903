"""Executors: run jobs of a search, or of a judgement, in processes of this machine or on many machines."""

from __future__ import annotations

from sdpalab.search.executor.dispatch import run_jobs
from sdpalab.search.executor.job import Executor, Job, JobOutcome, JobResult
from sdpalab.search.executor.named import EXECUTORS, executor_named

__all__ = ["EXECUTORS", "Executor", "Job", "JobOutcome", "JobResult", "executor_named", "run_jobs"]
