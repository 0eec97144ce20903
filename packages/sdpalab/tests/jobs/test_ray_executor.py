"""The executor of a Ray cluster: on a fake one, and with two workers that Ray starts here (extra ``ray``)."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fake_ray import FakeCluster, answers
from test_executors import _file, _job

from sdpalab import UserError
from sdpalab.jobs import JobOutcome, executor_named, run_jobs
from sdpalab.jobs.job import is_remote
from sdpalab.jobs.ray_cluster import RayExecutor

try:
    import ray  # noqa: F401
except ImportError:
    HAVE_RAY = False
else:
    HAVE_RAY = True

needs_ray = pytest.mark.skipif(not HAVE_RAY, reason="needs Ray: the extra 'ray'")


@pytest.mark.skipif(HAVE_RAY, reason="Ray is installed")
def test_without_ray_one_sentence_names_the_extra() -> None:
    with pytest.raises(UserError, match=r"pip install 'sdpalab\[ray\]'"):
        executor_named("ray")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    cluster.install(monkeypatch)
    return cluster


def test_answers_are_json_from_the_store_and_leave_it(fake: FakeCluster) -> None:
    with closing(executor_named("ray")) as executor:
        assert is_remote(executor)
        assert executor.capacity == 2
        jobs = [_job("flash"), _job("flush"), _job("flash", fresh=True)]
        good, refused, fresh = run_jobs(executor, jobs)
    assert good.outcome is fresh.outcome is JobOutcome.DONE
    assert good.value == fresh.value
    assert good.value is not None
    assert set(good.value) == {"identity", "ptx_sha256", "resources"}
    assert refused.value is not None
    assert "did you mean 'flash'" in refused.value["bad_input"]
    assert fake.store == {}
    assert fake.started == 3  # two, and one that has run nothing


class Evil:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"value": {"identity": 7}}', "no value of a job build"),
        (b'{"value": "passed"}', "no value of a job build"),
        (b'{"machine": "\\u001b[2J gone"}', "?[2J gone"),
        (b"{}", "its worker failed"),
    ],
)
def test_an_answer_of_a_hostile_worker_is_data_or_nothing(fake: FakeCluster, text: bytes, words: str) -> None:
    fake.instead = answers(text, fake)
    with closing(executor_named("ray")) as executor:
        (lost,) = run_jobs(executor, [_job("flash")], attempts=2)
    assert lost.outcome is JobOutcome.LOST
    assert words in lost.reason
    assert fake.store == {}


def test_a_pickle_is_never_loaded(fake: FakeCluster, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    fake.instead = answers(pickle.dumps(Evil(planted)), fake)
    with closing(executor_named("ray")) as executor:
        (lost,) = run_jobs(executor, [_job("flash")], attempts=1)
    assert lost.outcome is JobOutcome.LOST
    assert not planted.exists()


def test_an_actor_that_dies_is_replaced(fake: FakeCluster) -> None:
    fake.instead = lambda key: None
    with closing(executor_named("ray", workers=1)) as executor:
        (lost,) = run_jobs(executor, [_job("flash")], attempts=3)
    assert (lost.outcome, lost.reason) == (JobOutcome.LOST, "its actor died")
    assert fake.started == 4


@needs_ray
def test_an_address_where_nothing_answers_is_refused() -> None:
    with pytest.raises(UserError, match="no Ray cluster answers at"):
        executor_named("ray", address="127.0.0.1:1")
    with pytest.raises(UserError, match="no Ray cluster answers at"):
        executor_named("ray", address="ray://127.0.0.1:1")
    with pytest.raises(UserError, match="HOST:PORT"):
        executor_named("ray", address="head")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayExecutor]:
    executor = RayExecutor(workers=2)
    yield executor
    executor.close()


@needs_ray
@pytest.mark.slow
def test_an_actor_that_dies_or_hangs_is_replaced(cluster: RayExecutor, tmp_path: Path) -> None:
    crash = _file(tmp_path, "crash", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    hang = _file(tmp_path, "hang", "while True: pass\n")
    cluster._ray.kill(cluster._free[0])
    jobs = [_job("flash"), _job(crash), _job(hang, seconds=10.0), _job("flash"), _job("flash", fresh=True)]
    good, crashed, hung, again, fresh = run_jobs(cluster, jobs, attempts=3)
    assert good.outcome is again.outcome is fresh.outcome is JobOutcome.DONE
    assert good.value == again.value == fresh.value
    assert crashed.value is not None
    assert "the process ended with SIGSEGV" in crashed.value["bad_input"]
    assert hung.outcome is JobOutcome.TIMED_OUT
    cluster._ray.kill(cluster._free[0])
    results = run_jobs(cluster, [_job("flash"), _job("flash")], attempts=1)
    assert sorted(result.outcome.value for result in results) == ["DONE", "LOST"]
    assert "its actor died" in [result.reason for result in results]
