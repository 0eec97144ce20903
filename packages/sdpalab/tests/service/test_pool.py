"""The pool: a worker that gave no answer, or has judged many jobs, gets a new process before its next job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from sdpalab import Evaluation, Status
from sdpalab.jobs import Job, JobOutcome, JobResult
from sdpalab.service import pool as module
from sdpalab.service.pool import Pool
from sdpalab.service.store import JobStore


class RecordingWorker:
    """Judges all jobs but those with a budget of 13 s, which it loses."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, float, bool]] = []

    def run(self, job: Job) -> JobResult:
        budget = job.inputs.get("budget_s", 0.0)
        self.orders.append((job.kind, budget, job.fresh))
        if budget == 13.0:
            return JobResult(job.number, JobOutcome.LOST, None, "the process ended with SIGKILL")
        value = {"evaluation": Evaluation(Status.PASSED).to_dict(), "confinement": "none", "cpu_seconds": 0.1}
        return JobResult(job.number, JobOutcome.DONE, value)

    def kill(self) -> None: ...

    def close(self) -> None: ...


def test_a_worker_gets_a_new_process_after_a_lost_job_and_after_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_JOBS_OF_A_PROCESS", 3)
    store, worker = JobStore(tmp_path, "1"), RecordingWorker()
    workers: Any = [worker]
    pool = Pool(store, workers, 1 << 30)
    budgets = (1.0, 13.0, 2.0, 3.0)
    accepted = store.accept("me", [(str(n), {"budget_s": n}) for n in budgets])
    pool.start()
    while store.counts()["done"] < len(budgets):
        time.sleep(0.01)
    pool.stop(10.0)
    fresh = ("machine", 0.0, True)
    judged = [("submission", n, False) for n in budgets]
    assert worker.orders == [judged[0], judged[1], fresh, judged[2], fresh, judged[3]]
    results = [store.get(job.id, "me") for job in accepted]
    statuses = [each.result["evaluation"]["status"] for each in results if each is not None and each.result]
    assert statuses == ["PASSED", "INFRA_ERROR", "PASSED", "PASSED"]
    assert store.accept("me", [("13.0", {"budget_s": 13.0})])[0].state == "queued", "a lost job answers no other"
