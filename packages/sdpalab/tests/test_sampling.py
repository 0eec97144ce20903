"""The fast suite's sample of a parametrised test, the tests that it leaves out, and the lines that say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

TESTS = """
import pytest

@pytest.mark.sample
@pytest.mark.parametrize("arch", range(3))
@pytest.mark.parametrize("knob", range(5))
def test_matrix(arch, knob):
    print(f"matrix {arch} {knob}")

@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", range(9))
def test_list(shape):
    print(f"list {shape}")

@pytest.mark.sample(1, first=True)
@pytest.mark.parametrize("width", range(9))
def test_front(width):
    print(f"front {width}")

@pytest.mark.slow
def test_campaign():
    print("campaign")

@pytest.mark.gpu
def test_gpu():
    print("gpu")

def test_plain():
    print("plain")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose tests have the lab's conftest."""
    project = tmp_path_factory.mktemp("project")
    tests = project / "tests"
    tests.mkdir()
    (project / "conftest.py").symlink_to(ROOT / "conftest.py")
    for name in ("conftest.py", "copied_commands.py"):
        (tests / name).symlink_to(ROOT / "packages" / "sdpalab" / "tests" / name)
    (project / "pytest.ini").write_text(INI)
    (tests / "test_all.py").write_text(TESTS)
    return project


INI = "[pytest]\ntestpaths = tests\nmarkers =\n    gpu\n    slow\n    sample\n"


def printed(folder: Path, *options: str) -> tuple[list[str], list[str]]:
    """Output of the tests that ran, and the summary's lines of those that did not."""
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.lstrip(".") for line in done.stdout.splitlines()]
    words = ("matrix", "list", "front", "campaign", "gpu", "plain")
    return [line for line in lines if line.startswith(words)], [line for line in lines if line.startswith("DESELECTED")]


@pytest.mark.slow
def test_the_sample_has_each_value_of_each_parameter_and_full_has_every_case(folder: Path) -> None:
    ran, left_out = printed(folder)
    cases = [tuple(map(int, line.split()[1:])) for line in ran if line.startswith("matrix")]
    assert len(cases) == 5
    assert {arch for arch, _ in cases} == set(range(3))
    assert {knob for _, knob in cases} == set(range(5))
    assert sum(line.startswith("list") for line in ran) == 2
    assert [line for line in ran if line.startswith("front")] == ["front 0"]
    assert "campaign" not in ran
    assert "plain" in ran
    assert f"DESELECTED [{10 + 7 + 8 + 1}] slow: --full runs them" in left_out

    everything, left_out = printed(folder, "--full")
    assert sum(line.startswith("matrix") for line in everything) == 15
    assert sum(line.startswith("list") for line in everything) == 9
    assert "campaign" in everything
    assert not [line for line in left_out if "slow" in line]


def test_without_a_gpu_there_is_one_line_that_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    ran, left_out = printed(folder, "--full")
    assert "gpu" not in ran
    assert [line.partition(":")[0] for line in left_out] == ["DESELECTED [1] no GPU"]


@pytest.mark.slow
def test_workers_report_what_they_left_out(folder: Path) -> None:
    pytest.importorskip("xdist")
    _, alone = printed(folder)
    _, together = printed(folder, "-n", "2")
    assert together == alone
