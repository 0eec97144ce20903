"""The GPU suite, from its first line to its last, on the stand-in driver (``tests/standin``).

With its own limits: ``SDPALAB_TEST_PATIENCE`` multiplies them, for a machine that does other things beside.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from parity import AGAIN
from standin_gpu import StandIn

from sdpalab.compile import Cache

pytestmark = [pytest.mark.first, pytest.mark.slow]

PATIENCE = os.environ.get("SDPALAB_TEST_PATIENCE", "1")
ILLEGAL_ADDRESS = 700

SHORT = f"""#!/bin/bash
case "$*" in *test_gpu_executor*|*test_gpu_plans*|*test_gpu_judge*|*test_gpu_gemm*|*test_torch_backends*)
    echo "left out: $*"; exit 0;;
    *gpu_suite.py*) exec {sys.executable} "$@";;
esac
words=("$@")
for place in "${{!words[@]}}"; do
    if [ "${{words[place]}}" = --seconds ]; then words[place+1]=1; fi
done
exec {sys.executable} "${{words[@]}}"
"""
"""Python for the suite's steps. Each timing lasts a second. Left out are the files that
``test_standin_driver.py`` runs on the stand-in, and tests that need a GPU of torch's own, which the stand-in is not."""


def suite(standin: StandIn, root: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """One call on the stand-in, with the tests' build cache."""
    budget = str(600 * float(PATIENCE))
    options = (*map(str, words), "--patience", PATIENCE, "--seconds", budget)
    seconds = 900 * max(1.0, float(PATIENCE))
    variables = {"PYTHON": sys.executable, "WARPSAN_CACHE_DIR": str(Cache().root), **more}
    return standin.process("bash", str(root / "scripts" / "gpu_suite.sh"), *options, timeout=seconds, **variables)


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
    done = standin.process(*command, seconds, WARPSAN_CACHE_DIR=str(Cache().root))
    assert done.returncode == AGAIN, done.stdout + done.stderr
    began, ended = (json.loads(line) for line in records.read_text().splitlines())
    assert began["began"] == ended["case"]
    assert ended["agrees"] is False
    assert re.search(words, ended["error"])
    standin.fail({"function": "cuCtxSynchronize", "process": "parity.py", "result": ILLEGAL_ADDRESS})
    assert standin.process(*command, "100", WARPSAN_CACHE_DIR=str(Cache().root)).returncode == AGAIN
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len({line["case"] for line in lines if "case" in line}) == 2  # the first was not tried again


def test_every_step_from_the_first_line_to_the_last(standin: StandIn, root: Path, tmp_path: Path) -> None:
    """One kernel. Its outputs are the simulator's: everything agrees bit for bit. A shape that is large on a GPU takes
    the simulator too long."""
    out, python = tmp_path / "out", tmp_path / "python"
    python.write_text(SHORT)
    python.chmod(0o755)
    words = (out, "--kernel", "flash", "--large", "1,8,256,128", "--replay", "arguments")
    done = suite(standin, root, *words, PYTHON=str(python))
    assert done.returncode == 0, done.stdout + done.stderr
    codes = {path.stem: json.loads(path.read_text())["exit_code"] for path in (out / "steps").glob("*.json")}
    assert set(codes) >= {"doctor", "test_gpu_op", "replay_0", "parity_flash", "verdict_flash", "mission", "large"}
    assert {codes[name] for name in ("replay_0", "parity_flash", "verdict_flash", "mission")} == {0}, done.stdout
    evidence = out / "evidence" / "h200"
    files = {str(path.relative_to(evidence)): path.read_text() for path in evidence.rglob("*") if path.is_file()}
    assert {"flash.json", "mission.json", "large.json", "mission_cold.json", "parity_flash.jsonl"} <= files.keys()
    for text in files.values():
        assert str(tmp_path) not in text
        assert str(root) not in text
        assert platform.node() not in re.findall(r"[\w.-]+", text)
    for name in ("parity_flash.jsonl", "golden/0/golden.jsonl"):
        for line in map(json.loads, files[name].splitlines()):
            assert line.get("different_elements", 0) == 0, (name, line)
            assert line.get("equal", True), (name, line)
    standin.clear_log()
    again = suite(standin, root, *words, PYTHON=str(python))
    assert again.returncode == 0, again.stdout
    assert again.stdout == f"records: {evidence}\n"
    assert standin.launches() == []
