"""The store of jobs: each accepted job is run once, by one server, and a recorded result answers an equal request."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sdpalab.service.store import JobStore, QueueFull

REQUEST = {"task": {}, "stages": [], "budget_s": 1.0}


def opened(folder: Path, versions: str = "1", **limits: int) -> JobStore:
    return JobStore(folder, versions, **limits)


TAKER = """
import sys, time
from pathlib import Path
from sdpalab.service.store import JobStore
store = JobStore(Path(sys.argv[1]), "1")
print("ready", flush=True)
sys.stdin.readline()
while job := store.claim():
    print(job.id, flush=True)
    time.sleep(1000 if sys.argv[2] == "dies" else 0.001)  # a job takes a while, so that two servers share 300
    assert store.finish(job, {"by": sys.argv[2]}, repeatable=False)
"""


def taker(folder: Path, name: str) -> subprocess.Popen[str]:
    """Another server process, which runs all jobs, or keeps the first."""
    command = [sys.executable, "-c", TAKER, str(folder), name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_two_servers_never_run_one_job(tmp_path: Path) -> None:
    store = opened(tmp_path)
    accepted = [job.id for job in store.accept("me", [(str(n), REQUEST) for n in range(300)])]
    takers = [taker(tmp_path, name) for name in ("one", "two")]
    for each in takers:
        assert each.stdin is not None
        each.stdin.write("go\n")
    taken = [each.communicate(timeout=60)[0].split() for each in takers]
    assert all(each.returncode == 0 for each in takers)
    assert all(taken)  # both had work
    assert sorted([*taken[0], *taken[1]]) == sorted(accepted)
    assert store.counts() == {"queued": 0, "running": 0, "done": 300}
    assert all(job.starts == 1 for job in store.listed("me", limit=300))


def test_the_job_of_a_server_that_died_is_run_by_another_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    store = opened(tmp_path)
    lost, mine = store.accept("me", [("a", REQUEST), ("b", REQUEST)])
    dying = taker(tmp_path, "dies")
    assert dying.stdin is not None
    assert dying.stdout is not None
    dying.stdin.write("go\n")
    assert dying.stdout.readline().strip() == lost.id
    work = store.work / next(each.name for each in (tmp_path / "servers").iterdir() if each.name != store.name)
    (work / lost.id).mkdir(parents=True)
    assert store.recover() == 0
    dying.kill()
    dying.communicate()
    assert store.recover() == 1
    assert not work.exists()
    first = store.claim()
    assert first is not None
    assert (first.id, first.starts) == (lost.id, 2)
    second = store.claim()
    assert second is not None
    assert second.id == mine.id
    assert opened(tmp_path).recover() == 0
    assert store.finish(first, {}, repeatable=False)
    assert not store.finish(first, {}, repeatable=False), "a job has one result"


def test_a_result_needs_the_lease(tmp_path: Path) -> None:
    store, other = opened(tmp_path), opened(tmp_path)
    store.accept("me", [("a", REQUEST)])
    job = store.claim()
    assert job is not None
    assert not other.finish(job, {}, repeatable=False)
    store.give_back(job)
    assert not store.finish(job, {}, repeatable=False)
    again = other.claim()
    assert again is not None
    assert other.finish(again, {"n": 1}, repeatable=False)


def test_equal_requests_share_a_result_of_equal_versions(tmp_path: Path) -> None:
    store = opened(tmp_path)
    first, second, _ = store.accept("me", [("a", REQUEST), ("a", REQUEST), ("b", REQUEST)])
    job, other = store.claim(), store.claim()
    assert job is not None
    assert other is not None
    assert (job.id, other.digest) == (first.id, "b")
    assert store.claim() is None, "an equal request waits for the one that runs"
    assert store.finish(job, {"n": 1}, repeatable=True)
    answered = store.get(second.id, "me")
    assert answered is not None
    assert (answered.state, answered.answered_from, answered.result) == ("done", first.id, {"n": 1})
    assert answered.starts == 0
    (later,) = store.accept("you", [("a", REQUEST)])
    assert (later.state, later.answered_from) == ("done", first.id)
    (newer,) = opened(tmp_path, versions="2").accept("me", [("a", REQUEST)])
    assert newer.state == "queued"
    assert store.finish(other, {"n": 2}, repeatable=False)
    assert store.accept("me", [("b", REQUEST)])[0].state == "queued"


def test_two_servers_accept_at_once(tmp_path: Path) -> None:
    stores = [opened(tmp_path), opened(tmp_path)]
    with ThreadPoolExecutor(2) as pool:
        accepted = pool.map(lambda n: stores[n % 2].accept("me", [(str(n), REQUEST)])[0].id, range(200))
        assert len({*accepted}) == stores[0].counts()["queued"] == 200


def test_a_full_queue_takes_a_batch_whole_or_not_at_all(tmp_path: Path) -> None:
    store = opened(tmp_path, queue=3)
    store.accept("me", [("a", REQUEST), ("b", REQUEST)])
    with pytest.raises(QueueFull, match="2 jobs wait, and at most 3 may"):
        store.accept("me", [("c", REQUEST), ("d", REQUEST)])
    assert store.counts()["queued"] == 2
    store.accept("me", [("c", REQUEST)])


def test_the_oldest_results_make_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdpalab.service.store._PRUNED_AT_ONCE", 10)
    store = opened(tmp_path, keep=20)
    store.accept("me", [(str(n), REQUEST) for n in range(60)])
    while job := store.claim():
        store.finish(job, {}, repeatable=False)
        assert store.counts()["done"] < 30
    assert [job.digest for job in store.listed("me")][:20] == [str(n) for n in range(59, 39, -1)]
