"""``scripts/gpu_suite.sh`` where it has nothing to do: wrong usage, and no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


PYTHON = """#!/usr/bin/env bash
# In the place of python on a machine with a GPU: it says what it was asked for, and ends as SCRIPT says.
echo "$*" >>"$ASKED"
case "$*" in
    *"gpu_records.py candidates"*) echo scalar flash hopper && exit ;;
    *"gpu_records.py green"*) echo scalar flash hopper && exit ;;
    *"repro --kernel flash"*) [ "$MOOD" != slow ] || sleep 30 ;;
    *"repro --kernel scalar"*) [ "$MOOD" != wrong ] || exit 1 ;;
    *"sdpalab profile"*) [ "$MOOD" != refused ] || exit 3 ;;
esac
echo "last line of it"
"""


@pytest.fixture
def machine(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the suite with that in the place of python: ``machine(mood, seconds)``, its end and what was asked for."""
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def run(mood: str, seconds: int = 100) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        asked.write_text("")
        environment = {**os.environ, "PYTHON": str(python), "ASKED": str(asked), "MOOD": mood}
        environment["SECONDS_IN_ALL"] = str(seconds)
        command = ["bash", str(root / "scripts" / "gpu_suite.sh"), str(tmp_path / "out")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done, asked.read_text().splitlines()

    return run


def test_every_part_is_done_once(machine: Any) -> None:
    done, asked = machine("good")
    assert done.returncode == 0, done.stdout
    assert "NOT COMPLETE" not in done.stdout
    assert sum("repro --kernel" in each for each in asked) == 3
    benches = [each for each in asked if "sdpalab bench" in each]
    assert [each.split("--shape ")[1].split()[0] for each in benches] == ["mission", "prefill-4k", "mission"]
    assert all("bench scalar flash hopper" in each for each in benches)
    assert [each.split()[3] for each in asked if "sdpalab profile" in each] == ["flash", "hopper"]
    again, asked = machine("good")
    assert again.returncode == 0
    assert not [each for each in asked if "gpu_records" not in each and "gpu_problem" not in each]


def test_a_kernel_that_is_judged_wrong_is_an_end(machine: Any) -> None:
    done, _ = machine("wrong")
    assert done.returncode == 0
    assert re.search(r"^verdict_scalar +exit 1 after", done.stdout, re.M)


def test_what_fails_is_told_and_tried_again(machine: Any) -> None:
    done, _ = machine("refused")
    assert done.returncode == 1
    assert len(re.findall(r"^profile_\w+ +NOT COMPLETE, exit 3", done.stdout, re.M)) == 2
    done, asked = machine("good")
    assert done.returncode == 0
    assert sum("sdpalab profile" in each for each in asked) == 2
    assert not any("sdpalab bench" in each for each in asked)


def test_when_the_time_is_over_nothing_more_is_begun_and_the_next_call_goes_on(machine: Any) -> None:
    done, _ = machine("slow", seconds=2)
    assert done.returncode == 1
    assert re.search(r"^verdict_flash +NOT COMPLETE, exit 1\d\d after", done.stdout, re.M)
    assert re.search(r"^verdict_hopper +NOT COMPLETE, not begun: the time was over", done.stdout, re.M)
    done, asked = machine("good")
    assert done.returncode == 0
    assert [each.split("--kernel ")[1].split()[0] for each in asked if "repro" in each] == ["flash", "hopper"]
