"""The GPU suite itself, from its first line to its last, on the stand-in driver (``tests/standin``).

With its own limits: ``SDPALAB_TEST_PATIENCE`` multiplies them, for a machine that does other things beside.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from parity import AGAIN
from standin_gpu import StandIn

from sdpalab.compile import Cache

pytestmark = pytest.mark.first

PATIENCE = os.environ.get("SDPALAB_TEST_PATIENCE", "1")
ILLEGAL_ADDRESS = 700


def suite(
    standin: StandIn, root: Path, *words: str | Path, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """One call on the stand-in, with the tests' build cache."""
    command = ["bash", str(root / "scripts" / "gpu_suite.sh"), *map(str, words), "--patience", PATIENCE]
    seconds = 900 * max(1.0, float(PATIENCE))
    return standin.process(*command, timeout=seconds, PYTHON=str(python), SDPALAB_CACHE_DIR=str(Cache().root))


SHORT = f"""#!/bin/bash
case "$*" in *test_gpu_executor*|*test_gpu_plans*|*test_gpu_judge*|*test_gpu_gemm*|*test_witness*|*" tune "*)
    echo "left out: $*"; exit 0;;
esac
words=("$@")
for place in "${{!words[@]}}"; do
    if [ "${{words[place]}}" = --seconds ]; then words[place+1]=1; fi
done
exec {sys.executable} "${{words[@]}}"
"""
"""Python for the suite's parts. What is timed is timed for a second. Left out are the files that
``test_standin_driver.py`` runs on the stand-in, and what needs a GPU of torch's own, which the stand-in is not."""


def states(out: Path) -> dict[str, str]:
    """How each part ended."""
    return {part["name"]: part["state"] for part in summary(out)["parts"]}


def summary(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return content


def reason(out: Path, part: str) -> str:
    return next(str(each["reason"]) for each in summary(out)["parts"] if each["name"] == part)


@pytest.mark.slow
def test_smoke_goes_on_behind_a_kernel_that_faults_and_the_next_call_has_nothing_to_do(
    standin: StandIn, root: Path, tmp_path: Path
) -> None:
    standin.fail({"function": "cuCtxSynchronize", "result": ILLEGAL_ADDRESS, "process": "gpu_smoke.py flash"})
    out = tmp_path / "out"
    done = suite(standin, root, "smoke", out, "--kernel", "flash", "--kernel", "hopper")
    assert done.returncode == 0, done.stdout + done.stderr
    ended = states(out)
    assert ended.pop("sanitizer_flash") in ("skipped", "failed", "error")
    expected = {"doctor": "passed", "environment": "passed", "smoke_flash": "failed", "smoke_hopper": "passed"}
    assert ended == expected, done.stdout
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in reason(out, "smoke_flash")
    assert "NVIDIA H200 (sm_90a)" in done.stdout
    standin.clear_log()
    done = suite(standin, root, "smoke", out, "--kernel", "flash", "--kernel", "hopper")
    assert done.returncode == 0, done.stdout
    assert standin.launches() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "seconds", "words"),
    [
        ({"result": ILLEGAL_ADDRESS}, "100", "FAULT: .*CUDA_ERROR_ILLEGAL_ADDRESS"),
        ({"hang": True}, "1", "no end within 1 s on the GPU"),
    ],
)
def test_a_comparison_that_faults_or_hangs_is_recorded_and_a_new_process_goes_on_behind_it(
    standin: StandIn, root: Path, tmp_path: Path, fault: dict[str, Any], seconds: str, words: str
) -> None:
    once = str(tmp_path / "once")
    standin.fail({"function": "cuCtxSynchronize", "process": "parity.py", "once": once, **fault})
    records = tmp_path / "parity.jsonl"
    command = (sys.executable, str(root / "tests/gpu/parity.py"), "scalar", str(records), "--case-seconds")
    done = standin.process(*command, seconds, SDPALAB_CACHE_DIR=str(Cache().root))
    assert done.returncode == AGAIN, done.stdout + done.stderr
    began, ended = (json.loads(line) for line in records.read_text().splitlines())
    assert began["began"] == ended["case"]
    assert ended["agrees"] is False
    assert re.search(words, ended["error"])
    standin.fail({"function": "cuCtxSynchronize", "process": "parity.py", "result": ILLEGAL_ADDRESS})
    assert standin.process(*command, "100", SDPALAB_CACHE_DIR=str(Cache().root)).returncode == AGAIN
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len({line["case"] for line in lines if "case" in line}) == 2  # the first was not tried again


@pytest.mark.slow
def test_a_kernel_that_there_is_not(standin: StandIn, root: Path, tmp_path: Path) -> None:
    done = suite(standin, root, tmp_path / "out", "--kernel", "flesh")
    assert done.returncode == 2
    assert done.stderr.startswith("--kernel flesh: on NVIDIA H200 there are scalar, ")


@pytest.mark.slow
def test_a_kernel_that_hangs_costs_its_limit_and_the_next_call_tries_it_again(
    standin: StandIn, root: Path, tmp_path: Path
) -> None:
    standin.fail({"function": "cuCtxSynchronize", "hang": True, "process": "gpu_smoke.py flash"})
    out = tmp_path / "out"
    words = ("smoke", out, "--kernel", "scalar", "--kernel", "flash")
    assert suite(standin, root, *words).returncode == 1
    assert states(out)["smoke_flash"] == "timed out"
    assert states(out)["smoke_scalar"] == "passed"
    standin.configure()
    assert suite(standin, root, *words).returncode == 0
    assert states(out)["smoke_flash"] == "passed"


@pytest.mark.slow
def test_both_halves_from_the_first_line_to_the_last(standin: StandIn, root: Path, tmp_path: Path) -> None:
    """One kernel. Its outputs are the simulator's: everything agrees bit for bit. A shape that is large on a GPU takes
    the simulator too long."""
    out, python = tmp_path / "out", tmp_path / "python"
    python.write_text(SHORT)
    python.chmod(0o755)
    words = (out, "--kernel", "flash", "--large", "1,8,256,128", "--replay", "arguments")
    done = suite(standin, root, *words, python=python)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = states(out)
    wanted = ("doctor", "environment", "smoke_flash", "verdict_flash", "mission", "replay_0")
    assert {name: ended[name] for name in wanted} == dict.fromkeys(wanted, "passed"), done.stdout
    assert summary(out)["dropped"] == {}
    files = list(out.iterdir())
    assert len(files) <= 8
    assert all(path.stat().st_size <= 16 << 20 for path in files)
    with tarfile.open(out / "records.tar.gz") as archive:
        names = set(archive.getnames())
        assert {f"evidence/h200/{name}.json" for name in ("flash", "mission", "environment")} <= names
        for name in names:
            opened = archive.extractfile(name) if "parity_" in name or "golden" in name else None
            lines = [json.loads(line) for line in opened.read().splitlines()] if opened else []
            for line in lines:
                assert line.get("different_elements", 0) == 0, (name, line)
                assert line.get("equal", True), (name, line)
    standin.clear_log()
    again = suite(standin, root, "measure", *words, python=python)
    begun = re.findall(r"^(\w+): at most", again.stdout, re.M)
    assert begun == [name for name, state in ended.items() if state == "skipped" and name != "profile_flash"]
