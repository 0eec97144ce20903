"""Sanitizing in jobs: the outcome of one piece, also for a kernel with a race."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_executors import FaultyExecutor, InlineExecutor

from sdpalab.errors import UserError
from sdpalab.jobs.sanitizing import sanitize_by_jobs
from sdpalab.judge.sanitize import sanitize_kernel
from sdpalab.kernels.registry import load_kernel
from sdpalab.problem import Problem
from warpsan.sanitize.sanitizer import Modes

MODES = Modes(schedules=("lockstep", "reverse"), async_modes=("late",))
PROBLEMS = [Problem(1, 1, 40, 32), Problem(1, 1, 9, 32, seq_kv=70)]


@pytest.fixture(scope="module")
def racy(tmp_path_factory: pytest.TempPathFactory, root: Path) -> str:
    folder = tmp_path_factory.mktemp("racy")
    source = (root / "examples" / "my_kernel.cu").read_text()
    (folder / "my_kernel.cu").write_text(source.replace("__syncthreads();", ""))
    (folder / "my_kernel.py").write_text((root / "examples" / "my_kernel.py").read_text())
    return str(folder / "my_kernel.py")


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [None, 3])
def test_the_outcome_is_that_of_one_piece(racy: str, seed: int | None) -> None:
    kernel = load_kernel(racy)
    whole = sanitize_kernel(kernel, PROBLEMS, kernel.default_config, MODES)
    executor = InlineExecutor() if seed is None else FaultyExecutor(InlineExecutor(), seed, share=0.4)
    outcome = sanitize_by_jobs(executor, racy, kernel, PROBLEMS, kernel.default_config, MODES)
    assert not whole.clean
    assert outcome == whole


def test_another_source_at_the_worker_is_refused(racy: str) -> None:
    kernel = load_kernel(racy)

    class Edits(InlineExecutor):
        def submit(self, job: object) -> None:
            source = Path(racy).with_suffix(".cu")
            source.write_text(source.read_text() + "\n// edited\n")
            super().submit(job)

    with pytest.raises(UserError, match="differs at the worker"):
        sanitize_by_jobs(Edits(), racy, kernel, PROBLEMS[:1], kernel.default_config, MODES)
