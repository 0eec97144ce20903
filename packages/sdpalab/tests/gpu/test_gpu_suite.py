"""``scripts/gpu_suite.sh``: its steps, their limits, and the steps that the next call still has to do. No GPU."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem
from sdpalab.run import gpu_problem


def shell(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(root / "scripts" / "gpu_suite.sh"), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "required: OUT"),
        (("one", "two"), "two"),
        (("out", "--kernel", "flesh"), "--kernel flesh: there are scalar,"),
    ],
)
def test_wrong_usage(root: Path, arguments: tuple[str, ...], says: str) -> None:
    done = shell(root, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.skipif(not gpu_problem(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_records_nothing(root: Path, tmp_path: Path) -> None:
    done = shell(root, tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", gpu_problem() + "\n")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def script(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("SDPALAB_DATA_DIR", "the suite sets it, and it is put back")
    monkeypatch.delenv("PYTHON", raising=False)
    return load_script("gpu_suite")


def call(script: ModuleType, out: Path, **options: Any) -> Any:
    """A call of the suite."""
    given = {"kernel": None, "only": None, "large": None, "replay": "", "seconds": 60.0, "patience": 1.0} | options
    return script.Suite(argparse.Namespace(out=str(out), **given), "NVIDIA T1")


def test_the_steps_and_their_order(script: ModuleType, root: Path, tmp_path: Path) -> None:
    groups = [steps for _, steps in call(script, tmp_path).groups()]
    names = [step.name for steps in groups for step in steps]
    assert len(names) == len(set(names))
    places = [names.index(name) for name in ("doctor", "test_gpu_op", "parity_flash", "verdict_flash", "mission")]
    assert places == sorted(places)
    assert {f"parity_{name}" for name in KERNELS} | {f"verdict_{name}" for name in KERNELS} <= set(names)
    words = [word for steps in groups for step in steps for word in step.command]
    marked = {
        str(path)
        for path in (root / "packages").glob("*/tests/**/test_*.py")
        if re.search(r"^(pytestmark = .*|@)pytest\.mark\.gpu", path.read_text(), re.M)
    }
    assert {Path(name).stem for name in marked - set(words)} <= {"test_kernel_parity", "test_sampling"}
    assert {str(path) for path in (root / "packages" / "warpsan" / "tests").glob("test_*.py")} <= set(words)


def run(script: ModuleType, suite: Any, *steps: tuple[str, float, str]) -> int:
    """A call with these steps: a name, a limit in seconds and Python code."""
    made = [script.SuiteStep(name, seconds, (sys.executable, "-c", code)) for name, seconds, code in steps]
    suite.groups = lambda: [(2, made)]
    return int(suite.run())


def states(out: Path) -> dict[str, int]:
    return {path.stem: json.loads(path.read_text())["exit_code"] for path in (out / "steps").glob("*.json")}


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('here', flush=True); time.sleep(60)"
)


def test_a_step_that_hangs_costs_its_limit_and_only_it_runs_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "GRACE_SECONDS", 0.2)
    steps = [("good", 30, "print('first'); print('it is')"), ("wrong", 30, "exit(1)"), ("crashed", 30, "exit(3)")]
    suite = call(script, tmp_path)
    begin = time.monotonic()
    assert run(script, suite, ("hung", 1.5, STUBBORN), *steps) == 1
    assert time.monotonic() - begin < 15
    assert states(tmp_path) == {"good": 0, "wrong": 1}
    summary = (tmp_path / "summary.txt").read_text()
    assert re.search(r"^hung +not finished .* here$", summary, re.M)
    assert re.search(r"^good +passed .* it is$", summary, re.M)
    assert re.search(r"^crashed +exit code 3 ", summary, re.M)
    mended = [(name, 30.0, "print('again')") for name in ("hung", "good", "wrong", "crashed")]
    assert run(script, call(script, tmp_path), *mended) == 0
    assert states(tmp_path) == {"good": 0, "wrong": 1, "hung": 0, "crashed": 0}


def test_no_step_begins_when_the_time_is_over(script: ModuleType, tmp_path: Path) -> None:
    assert run(script, call(script, tmp_path, seconds=0.0), ("late", 30, "print('late')")) == 1
    assert states(tmp_path) == {}
    assert run(script, call(script, tmp_path, only=["early"]), ("late", 30, ""), ("early", 30, "")) == 0
    assert states(tmp_path) == {"early": 0}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also in tests that a shell started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_keeps_what_is_finished_and_leaves_nothing_running(script: ModuleType, tmp_path: Path) -> None:
    def interrupt() -> None:
        until = time.monotonic() + 30
        while not (tmp_path / "ready").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    ready = f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'ready')!r}).write_text(str(os.getpid())); "
    assert run(script, call(script, tmp_path), ("good", 30, ""), ("long", 30, ready + "time.sleep(60)")) == 130
    assert states(tmp_path) == {"good": 0}
    assert not Path("/proc", (tmp_path / "ready").read_text()).exists()


def test_a_comparison_whose_process_had_to_end_gets_a_new_one(script: ModuleType, tmp_path: Path) -> None:
    suite = call(script, tmp_path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho x >>"{tmp_path}/calls"; [ "$(wc -l <"{tmp_path}/calls")" -gt 1 ] || exit 4\n')
    python.chmod(0o755)
    suite.python = str(python)
    suite.groups = lambda: [(1, [suite.python_step("p", 30, script.PARITY, "flash")])]
    assert suite.run() == 0
    assert (tmp_path / "calls").read_text() == "x\nx\n"


def test_records_name_no_folder_and_only_passed_verdicts_of_the_gpu_are_green(
    script: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = call(script, tmp_path)
    code = f"import sys; open(sys.argv[-1], 'w').write('{tmp_path}/work/x {root}/src')"
    command = (sys.executable, "-c", code, str(suite.draft("mission")))
    suite.groups = lambda: [(1, [script.SuiteStep("mission", 30, command, evidence=True)])]
    assert suite.run() == 0
    assert (tmp_path / "evidence" / "t1" / "mission.json").read_text() == "work/x src"

    def attempts(path: Path) -> Any:
        case = Case("1", Problem(1, 1, 8, 32), "normal", 0, Status.CRASHED, "a test")
        device = "simulator sm_89" if path.parent.name == "wmma" else "NVIDIA T1"
        verdict = Verdict(path.parent.name, "", device, "quick", 0, (case,))
        record = script.AttemptRecord(kernel=path.parent.name, config="", idea="", builds=(), verdict=verdict)
        return argparse.Namespace(attempts=(record,))

    for name in ("flash", "wmma"):
        (tmp_path / "work" / "verdicts" / name).mkdir(parents=True)
        (tmp_path / "work" / "verdicts" / name / "b.tar.gz").touch()
    monkeypatch.setattr(script.ReportData, "read", attempts)
    suite.collect()
    assert (tmp_path / "evidence" / "t1" / "flash.json").exists()
    assert not (tmp_path / "evidence" / "t1" / "wmma.json").exists()
    assert suite.green() == []  # it crashed
