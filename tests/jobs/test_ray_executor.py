"""The executor of a Ray cluster, with two workers that Ray starts on this machine (extra ``ray``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_executors import _file, _job

from sdpalab import UserError
from sdpalab.jobs import Executor, JobOutcome, executor_named, run_jobs

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


@needs_ray
def test_an_address_where_nothing_answers_is_refused() -> None:
    with pytest.raises(UserError, match="no Ray cluster answers at"):
        executor_named("ray", address="127.0.0.1:1")
    with pytest.raises(UserError, match="no Ray cluster answers at"):
        executor_named("ray", address="ray://127.0.0.1:1")
    with pytest.raises(UserError, match="HOST:PORT"):
        executor_named("ray", address="head")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Executor]:
    executor = executor_named("ray", workers=2)
    yield executor
    executor.close()


@needs_ray
@pytest.mark.slow
def test_an_actor_that_crashes_hangs_or_leaves_is_replaced(cluster: Executor, tmp_path: Path) -> None:
    crash = _file(tmp_path, "crash", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    leave = _file(tmp_path, "leave", "import os\nos._exit(75)  # as after a sticky CUDA error\n")
    hang = _file(tmp_path, "hang", "while True: pass\n")
    jobs = [_job("flash"), _job(crash), _job(leave), _job(hang, seconds=10.0), _job("flash"), _job("flash", fresh=True)]
    good, crashed, left, hung, again, fresh = run_jobs(cluster, jobs, attempts=2)
    assert good.outcome is again.outcome is fresh.outcome is JobOutcome.DONE
    assert good.value == again.value == fresh.value
    assert crashed.outcome is left.outcome is JobOutcome.LOST
    assert hung.outcome is JobOutcome.TIMED_OUT
