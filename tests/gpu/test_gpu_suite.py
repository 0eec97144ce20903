"""``scripts/gpu_suite.sh`` where it has nothing to do: wrong usage, and no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sdpalab.run import gpu_problem


def suite(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(root / "scripts" / "gpu_suite.sh"), *map(str, arguments)]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [(), ("one", "two")])
def test_wrong_usage(root: Path, arguments: tuple[str, ...]) -> None:
    done = suite(root, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: scripts/gpu_suite.sh OUT, a folder for the records\n"


@pytest.mark.skipif(not gpu_problem(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_records_nothing(root: Path, tmp_path: Path) -> None:
    done = suite(root, tmp_path / "out")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == gpu_problem() + "\n"
    assert list((tmp_path / "out").iterdir()) == []
