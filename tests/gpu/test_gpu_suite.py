"""``scripts/gpu_suite.sh``: which parts run, in which order, what is kept, and what the next call still has to do.

Another program stands in the place of Python (:mod:`suite_python`), so that no part takes time; the limits are real.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from sdpalab.compile import build
from sdpalab.evidence.built import built_module
from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.store import ArrayStore
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem
from sdpalab.run import gpu_problem

GPU = "NVIDIA T1"
Done = subprocess.CompletedProcess[str]


def suite(root: Path, *arguments: str | Path) -> Done:
    command = ["bash", str(root / "scripts" / "gpu_suite.sh"), *map(str, arguments)]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.sample(2)
@pytest.mark.parametrize("arguments", [(), ("one", "two"), ("smoke",), ("measure", "one", "two"), ("--seconds", "3")])
def test_wrong_usage(root: Path, arguments: tuple[str, ...]) -> None:
    done = suite(root, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: scripts/gpu_suite.sh ")


@pytest.mark.skipif(not gpu_problem(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_records_nothing(root: Path, tmp_path: Path) -> None:
    done = suite(root, tmp_path / "out")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == gpu_problem() + "\n"
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture(scope="module")
def bundles(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tarballs with one record each: three kernels that passed on the GPU, and one that crashed."""
    folder = tmp_path_factory.mktemp("bundles")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "tests" / "evidence")
        sample = import_module("evidence_sample")
    problem, flash = Problem(1, 4, 60, 32), KERNELS["flash"]
    module = flash.launch_plan(problem).launches[0].module
    assert module is not None
    built = build(module)
    case = sample.judged(problem, 0, ArrayStore(folder / "arrays"), sample.honest, built.ptx_sha256)
    crash = Case("1", problem, "normal", 0, Status.CRASHED, "it jumped over the fence")
    for name, judged in (("scalar", case), ("flash", case), ("hopper", case), ("wrong", crash)):
        kernel = "flash" if name == "wrong" else name
        verdict = Verdict(kernel, "", GPU, "quick", 0, (judged,))
        builds = (built_module(module, built).record("build/00"),)
        attempt = AttemptRecord(kernel=kernel, config="", idea="", builds=builds, verdict=verdict)
        content = attempt.model_dump_json().encode()
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("bundle/records/00.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder


class Machine:
    """A machine with a GPU on which no part takes time. The suite runs in this process, what it starts does not."""

    def __init__(
        self, root: Path, folder: Path, bundles: Path, patch: pytest.MonkeyPatch, suite: ModuleType, printed: Any
    ) -> None:
        self.root, self.folder, self.out = root, folder, folder / "out"
        self._patch, self._suite, self._printed = patch, suite, printed
        self.python, self.asked = folder / "python", folder / "asked"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} {root}/tests/gpu/suite_python.py "$@"\n')
        self.python.chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "SDPALAB_COMMIT"},
            "PYTHON": str(self.python),
            "REAL_PYTHON": sys.executable,
            "ASKED": str(self.asked),
            "BUNDLES": str(bundles),
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(root / "src"),
        }

    def start(self, *words: str, **moods: str) -> subprocess.Popen[str]:
        """Begin a call in a process of its own; ``moods`` as :mod:`suite_python` takes them."""
        self.asked.write_text("")
        command = ["bash", str(self.root / "scripts" / "gpu_suite.sh"), *words, str(self.out)]
        environment = {**self.environment, "MOODS": json.dumps(moods)}
        return subprocess.Popen(
            command, env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __call__(self, *words: str, **moods: str) -> tuple[int, str, list[str]]:
        """One call: exit code, what it printed, and what was asked of Python."""
        self.asked.write_text("")
        self._printed.readouterr()
        environment = {**self.environment, "MOODS": json.dumps(moods)}
        with self._patch.context() as patch, mock.patch.dict(os.environ, environment):  # all of it is put back
            patch.setattr(self._suite.gpu_parts, "PYTHON", str(self.python))
            patch.chdir(self.folder)
            handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                code = self._suite.main([*words, str(self.out)])
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        return code, self._printed.readouterr().out, self.asked.read_text().splitlines()

    def summary(self) -> dict[str, Any]:
        """What the summary says."""
        content: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return content

    def states(self) -> dict[str, str]:
        """How each part ended."""
        return {part["name"]: part["state"] for part in self.summary()["parts"]}


@pytest.fixture
def scripts(load_script: Callable[[str], ModuleType], root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``gpu_suite.py`` as a module, with those that it imports."""
    monkeypatch.syspath_prepend(root / "scripts")
    for name in ("gpu_archive", "gpu_parts", "gpu_records", "gpu_run", "gpu_summary", "gpu_suite"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return load_script("gpu_suite")


@pytest.fixture
def machine(
    root: Path,
    tmp_path: Path,
    bundles: Path,
    scripts: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Machine:
    monkeypatch.delenv("SDPALAB_COMMIT", raising=False)
    return Machine(root, tmp_path, bundles, monkeypatch, scripts, capsys)


def members(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        return set(opened.getnames())


def first(asked: list[str], words: str) -> int:
    return next(place for place, each in enumerate(asked) if words in each)


def test_every_part_runs_once_the_most_valuable_first(machine: Machine) -> None:
    code, printed, asked = machine()
    assert code == 0, printed
    order = ["probe", "doctor", "environment", "gpu_smoke.py", "repro --kernel", "--shape mission --seconds"]
    order += ["--shape prefill-4k", "--cold", "test_gpu_timing"]
    places = [first(asked, words) for words in order]
    assert places == sorted(places)
    beside = [first(asked, words) for words in ("test_gpu_op.py", "parity.py hopper", "--replay-on-gpu")]
    assert min(beside) > places[-1]
    searched = [each for each in asked if " tune " in each]
    assert [each.partition(" tune ")[2].split()[0] for each in searched] == ["flash", "hopper"]
    assert first(asked, " tune ") > max(beside)
    assert sum("repro --kernel" in each for each in asked) == 3
    assert all("bench scalar flash hopper --shape" in each for each in asked if " bench " in each)
    tests = machine.root / "tests"
    marked = {
        path.name
        for path in tests.rglob("test_*.py")
        if re.search(r"^(pytestmark = .*|@)pytest\.mark\.gpu", path.read_text(), re.M)
    }
    assert "test_gpu_op.py" in marked
    # The marks of test_sampling.py are in tests that it writes.
    assert marked - {"test_kernel_parity.py", "test_sampling.py"} <= set(re.findall(r"test_\w+\.py", " ".join(asked)))
    files = [word for each in asked if "--replay-on-gpu" in each for word in re.findall(r"tests/sim/(\S+\.py)", each)]
    assert sorted(files) == sorted(path.name for path in (machine.root / "tests" / "sim").glob("test_*.py"))
    code, _, asked = machine()
    assert code == 0
    assert [each for each in asked if "probe" not in each] == []


@pytest.mark.slow
def test_a_few_files_come_back_and_hold_what_is_to_be_committed(machine: Machine) -> None:
    machine()
    assert sorted(path.name for path in machine.out.iterdir()) == [
        "logs.tar.gz",
        "records.tar.gz",
        "summary.json",
        "summary.txt",
    ]
    files = members(machine.out / "records.tar.gz")
    names = ("flash", "scalar", "hopper", "mission", "large", "mission_cold")
    assert {f"evidence/t1/{name}.json" for name in names} == files
    assert {"logs/mission.log", "parts/mission.json", "verdicts/flash/bundle.tar.gz"} <= members(
        machine.out / "logs.tar.gz"
    )
    assert "not for this GPU: it is too new" in (machine.out / "summary.txt").read_text()


@pytest.mark.slow
def test_halves(machine: Machine) -> None:
    _, _, asked = machine("smoke")
    assert not any("repro" in each or "bench" in each for each in asked)
    code, _, asked = machine("measure")
    assert code == 0
    assert not any("gpu_smoke" in each for each in asked)
    assert any("bench" in each for each in asked)


@pytest.mark.slow
def test_a_kernel_that_is_judged_wrong_is_dropped_and_the_others_are_timed(machine: Machine) -> None:
    code, printed, asked = machine("measure", **{"--kernel flash": "wrong"})
    assert code == 0
    assert "flash is not timed: CRASHED: it jumped over the fence" in printed
    assert machine.summary()["dropped"] == {"flash": "CRASHED: it jumped over the fence"}
    assert all("bench scalar hopper --shape" in each for each in asked if " bench " in each)
    assert machine.states()["verdict_flash"] == "failed"
    _, _, asked = machine("measure")
    assert not any("repro" in each for each in asked)  # it came to its end


def test_a_wrong_smoke_test_goes_to_the_sanitizer(machine: Machine) -> None:
    sanitizer = machine.folder / "compute-sanitizer"
    sanitizer.write_text('#!/bin/sh\necho "sanitizer $*" >>"$ASKED"\n')
    sanitizer.chmod(0o755)
    code, _, asked = machine("smoke", **{"gpu_smoke.py hopper": "wrong"})
    assert code == 0
    assert sum(each.startswith("sanitizer --tool memcheck") and each.endswith("hopper") for each in asked) == 1


@pytest.mark.slow
def test_a_kernel_that_hung_in_smoke_is_not_judged(machine: Machine) -> None:
    code, printed, _ = machine("smoke", "--seconds", "23", **{"gpu_smoke.py flash": "hang"})
    assert code == 1
    assert machine.states()["smoke_flash"] == "timed out"
    assert re.search(r"^smoke_flash +timed out .* no end within \d s, the suite's time", printed, re.M)
    code, _, asked = machine("measure")
    assert not any("--kernel flash" in each for each in asked)
    assert machine.summary()["dropped"]["flash"] == "it has no verdict (it did not end in smoke)"


@pytest.mark.slow
def test_what_could_not_be_done_is_done_by_the_next_call_also_from_the_archives_alone(machine: Machine) -> None:
    code, printed, _ = machine("measure", cold="refused", **{"prefill-4k": "no times"})
    assert code == 1
    assert re.search(r"^mission_cold +error .* exit 3: refused", printed, re.M)
    assert re.search(r"^large +error .* exit 1: last line of it", printed, re.M)
    assert "not complete, and done by the next call: large, mission_cold" in printed
    shutil.rmtree(machine.folder / "out.work")
    code, printed, asked = machine("measure")
    assert code == 0, printed
    assert f"taken up: {machine.out / 'records.tar.gz'}" in printed
    assert [each.split("--shape ")[1].split()[0] for each in asked if " bench " in each] == ["prefill-4k", "mission"]
    assert not any("repro" in each or "parity" in each for each in asked)
    assert len(members(machine.out / "records.tar.gz")) == 6


@pytest.mark.slow
def test_a_bench_that_ends_with_exit_1_and_has_times_is_done(machine: Machine) -> None:
    code, _, _ = machine("measure", **{"prefill-4k": "wrong"})
    assert code == 0
    (part,) = (part for part in machine.summary()["parts"] if part["name"] == "large")
    assert (part["state"], part["exit_code"], part["reason"]) == ("failed", 1, "last line of it")


@pytest.mark.slow
def test_a_process_that_had_to_end_is_started_again(machine: Machine) -> None:
    code, _, asked = machine("measure", **{"parity.py flash": "again"})
    assert code == 0
    assert sum("parity.py flash" in each for each in asked) == 2
    assert machine.states()["parity_flash"] == "passed"
    assert "first try" in (machine.folder / "out.work" / "logs" / "parity_flash.log").read_text()


@pytest.mark.slow
def test_when_the_time_is_over_nothing_more_is_begun_and_the_next_call_goes_on(machine: Machine) -> None:
    begin = time.monotonic()
    code, _, _ = machine("measure", "--seconds", "24", **{"--shape mission": "hang"})
    assert time.monotonic() - begin < 20
    assert code == 1
    assert machine.states()["mission"] == "timed out"
    assert machine.states()["large"] == "not begun"
    assert machine.states()["parity_flash"] == "not begun"
    code, _, asked = machine("measure")
    assert code == 0
    assert sum(" bench " in each for each in asked) == 3
    assert not any("repro" in each for each in asked)


@pytest.fixture
def hanging(machine: Machine) -> Iterator[subprocess.Popen[str]]:
    """A call that is in the part ``mission`` and stays there."""
    process = machine.start("measure", **{"--shape mission": "hang"})
    until = time.monotonic() + 60
    while "--shape mission" not in machine.asked.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    yield process
    process.kill()


@pytest.mark.sample(1)
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_loses_nothing_and_leaves_nothing_running(
    machine: Machine, hanging: subprocess.Popen[str], sign: signal.Signals
) -> None:
    hanging.send_signal(sign)
    printed, _ = hanging.communicate(timeout=30)
    assert hanging.returncode == 130
    assert "interrupted: finished parts are kept" in printed
    assert machine.states()["mission"] == "interrupted"
    assert machine.states()["verdict_flash"] == "passed"
    assert "evidence/t1/flash.json" in members(machine.out / "records.tar.gz")
    still = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(machine.folder / "out.work") not in still


def test_packages_that_travel_stay_on_the_path_and_the_commit_is_handed_on(machine: Machine) -> None:
    machine.environment["PYTHONPATH"] = f"carried{os.pathsep}/elsewhere"
    printed, _ = machine.start("smoke", "--commit", "0" * 40).communicate(timeout=90)  # the shell puts src before it
    log = machine.folder / "out.work" / "logs" / "smoke_flash.log"
    assert log.exists(), printed
    (variables,) = re.findall(r"PYTHONPATH=(\S+)\nSDPALAB_COMMIT=(\S+)", log.read_text())
    carried = machine.folder / "carried"
    assert variables == (os.pathsep.join((str(machine.root / "src"), str(carried), "/elsewhere")), "0" * 40)


def test_a_cache_is_prepared_without_a_gpu_and_taken_along(machine: Machine) -> None:
    cache = machine.out / "cache"
    for name in ("flash-sm_90a-01", "locks", "tmp"):
        (cache / name).mkdir(parents=True)
    (cache / "flash-sm_90a-01" / "SHA256SUMS").write_text("key 01\n")
    code, _, asked = machine("prepare", "--arch", "sm_89")
    assert code == 0
    assert [" ".join(each.split()[-4:]) for each in asked[:1]] == ["build --all --arch sm_89"]
    assert not any("probe" in each for each in asked)
    assert members(machine.out / "cache.tar.gz") == {"flash-sm_90a-01", "flash-sm_90a-01/SHA256SUMS"}
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?\n", (machine.out / "commit").read_text())
    archive = machine.folder / "cache.tar.gz"
    shutil.move(machine.out / "cache.tar.gz", archive)
    shutil.rmtree(machine.out)
    machine.environment["SDPALAB_CACHE_DIR"] = "elsewhere"
    assert machine("smoke", "--cache", str(archive))[0] == 0
    work = machine.folder / "out.work"
    assert f"SDPALAB_CACHE_DIR={work / 'cache'}\n" in (work / "logs" / "smoke_flash.log").read_text()
    assert (work / "cache" / "flash-sm_90a-01" / "SHA256SUMS").read_text() == "key 01\n"


def test_a_part_that_hangs_costs_its_limit_and_no_more(
    scripts: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, parts, records = (sys.modules[name] for name in ("gpu_run", "gpu_parts", "gpu_records"))
    work = records.Workspace(tmp_path, GPU)
    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('here', flush=True); "
    hung = parts.Part("hung", 0.5, (sys.executable, "-c", stubborn + "time.sleep(60)"))
    quick = parts.Part("quick", 30, (sys.executable, "-c", "print('done')"))
    missing = parts.Part("missing", 30, (str(tmp_path / "there is none"),))
    monkeypatch.setattr(run, "_GRACE_SECONDS", 0.2)
    runner = run.PartRunner(work, root)
    runner.deadline = time.monotonic() + 60
    begin = time.monotonic()
    runner.run([hung, missing, quick], 2)
    assert time.monotonic() - begin < 15
    assert not runner.complete
    assert work.state("hung")["reason"] == "no end within 0 s, its limit"
    assert work.state("quick")["state"] == "passed"
    assert work.state("missing")["reason"] == "cannot be started: No such file or directory"


def test_a_run_of_tests_in_which_none_passed_is_skipped_and_says_so(
    scripts: ModuleType, root: Path, tmp_path: Path
) -> None:
    run, parts, records = (sys.modules[name] for name in ("gpu_run", "gpu_parts", "gpu_records"))
    work = records.Workspace(tmp_path, GPU)
    lines = {"none": "8 skipped in 3.00s", "some": "6 passed, 4 skipped in 20.20s"}
    runner = run.PartRunner(work, root)
    runner.deadline = time.monotonic() + 60
    runner.run([parts.Part(name, 30, (sys.executable, "-c", f"print({line!r})")) for name, line in lines.items()])
    assert work.state("none")["state"] == "skipped"
    assert work.state("none")["reason"] == lines["none"]
    assert work.state("some")["state"] == "passed"
