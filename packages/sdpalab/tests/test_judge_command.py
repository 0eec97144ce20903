"""``sdpalab judge`` while a kernel is being mended: fewer cases, early ends, what is kept on Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from sdpalab.cli import main
from sdpalab.commands import progress
from sdpalab.errors import UserError
from sdpalab.evidence import verify_bundle
from sdpalab.judge import last_failed
from sdpalab.judge.cases import cases_for, cases_named
from sdpalab.judge.junit import to_junit
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.problem import Problem

SMALL = ("--shape", "1,1,33,32")
PROBLEM = Problem(1, 1, 33, 32)

SLOW = """
import time
import torch

calls = 0

def slow(q, k, v, *, scale, causal):
    global calls
    calls += 1
    if calls > 3:  # the first case calls three times
        time.sleep(100)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
"""

ENDLESS = '''
from sdpalab import CudaKernel, Launch

KERNEL = CudaKernel(
    name="endless",
    source="""extern "C" __global__ void endless(const void *q, volatile unsigned short *o) {
    while (o[0] != 1) o[1] = 2;
}""",
    entry="endless",
    plan=lambda problem, config: Launch(grid=(1, 1, 1), block=(32, 1, 1), args=("q", "o")),
)
'''


def failed(name: str, status: Status = Status.INCORRECT, reason: str = "wrong") -> Case:
    return Case(name, PROBLEM, "normal", 77, status, reason)


def verdict(*cases: Case, unjudged: tuple[str, ...] = ()) -> Verdict:
    return Verdict("mine", "BLOCK=64", "simulator sm_89", "quick", 0, cases, unjudged)


@pytest.mark.usefixtures("_in_the_foreground")
def test_ctrl_c_keeps_what_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = progress.CaseProgress.finished

    def interrupt(self: progress.CaseProgress, case: Case) -> None:
        finished(self, case)
        for _ in range(2):  # as a signal to the process and to its group, or an impatient user
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(progress.CaseProgress, "finished", interrupt)
    monkeypatch.setenv("SDPALAB_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "slow.py").write_text(SLOW)
    out, record = tmp_path / "out", tmp_path / "v.json"
    start = time.monotonic()
    words = ["judge", str(tmp_path / "slow.py"), *SMALL, "--only", "seed", "--no-claims", "--bundle", str(out)]
    assert main([*words, "--json", str(record)]) == 130
    assert time.monotonic() - start < 60
    result = json.loads(record.read_text())
    assert (result["status"], result["passed"]) == ("INTERRUPTED", False)
    assert [case["status"] for case in result["cases"]] == ["PASSED"]
    assert result["unjudged"] == ["1x1x33x32 hidden seed", "1x1x1x32 hidden seed"]
    assert verify_bundle(result["bundle"]).findings == []
    assert [path.suffix for path in sorted(out.iterdir())] == [".html", ".gz", ".sha256"]
    left = last_failed.failed_cases(str(tmp_path / "slow.py"))
    assert [spec.name for spec in left] == result["unjudged"]


def test_a_header_of_the_folder_above_builds_is_judged_and_kept(root: Path, tmp_path: Path) -> None:
    folder, out, record = tmp_path / "project" / "kernels", tmp_path / "out", tmp_path / "v.json"
    folder.mkdir(parents=True)
    (tmp_path / "project" / "outer.cuh").write_text('#pragma once\n#include "../outermost.cuh"\n')
    (tmp_path / "outermost.cuh").write_text("constexpr int OUTERMOST = 1;\n")
    (folder / "my_kernel.py").write_text((root / "examples" / "my_kernel.py").read_text())
    source = (root / "examples" / "my_kernel.cu").read_text()
    (folder / "my_kernel.cu").write_text('#include "../outer.cuh"\nstatic_assert(OUTERMOST == 1);\n' + source)
    spec = str(folder / "my_kernel.py")
    assert main(["build", spec]) == 0
    words = ["judge", spec, *SMALL, "--only", "seed", "--no-claims", "--bundle", str(out)]
    assert main([*words, "--json", str(record)]) == 0
    bundle = json.loads(record.read_text())["bundle"]
    assert verify_bundle(bundle).findings == []
    with tarfile.open(bundle) as packed:
        headers = [name.rpartition("/")[2] for name in packed.getnames() if "/include/" in name]
    assert {"outer.cuh", "outermost.cuh"} <= set(headers)


@pytest.mark.slow
def test_an_endless_loop_ends_by_its_steps_and_after_two_of_them(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    record = tmp_path / "v.json"
    words = ["judge", str(tmp_path / "endless.py"), *SMALL, "--max-steps", "2000", "--json", str(record)]
    assert main(words) == 1
    result = json.loads(record.read_text())
    # Each of the two processes may have a case in its hands when the second hang is known.
    assert 2 <= len(result["cases"]) <= 3
    assert {case["status"] for case in result["cases"]} == {"TIMED_OUT"}
    assert len(result["unjudged"]) > 10
    assert main([*words[:-2], "-x", "--json", str(record)]) == 1
    assert 1 <= len(json.loads(record.read_text())["cases"]) <= 2


@pytest.mark.usefixtures("capsys")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--only", "nothing of that name"), "there is no case"),
        (("--timeout", "0"), "--timeout"),
        (("--max-steps", "0"), "--max-steps"),
        (("--rerun-failed", "--causal"), "leave out"),
        (("--json", "-", "--junit", "-"), "standard output"),
    ],
)
def test_bad_options(words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "scalar", *words]) == 2
    assert expected in capsys.readouterr().err


def test_cases_by_name() -> None:
    specs = cases_for("quick", [PROBLEM])
    names = [spec.name for spec in cases_named(specs, ["1x1x33x32 seed 0", "RAMP"])]
    assert names == ["1x1x33x32 seed 0", "1x1x33x32 ramp", "1x1x33x32 reverse_ramp"]
    with pytest.raises(UserError, match=r"there is no case 'need\w+' among .* near: 1x1x33x32 needle"):
        cases_named(specs, ["needdle"])


def test_what_failed_is_judged_again_with_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDPALAB_DATA_DIR", str(tmp_path / "data"))
    specs = cases_for("quick", [PROBLEM])
    with pytest.raises(UserError, match="was not judged here before"):
        last_failed.failed_cases("mine.py")
    hidden = next(spec for spec in specs if spec.seed is None)
    last_failed.note_failed("mine.py", specs, verdict(failed(hidden.name), unjudged=(specs[0].name,)))
    again = last_failed.failed_cases("mine.py")
    assert [(spec.name, spec.seed) for spec in again] == [(hidden.name, 77), (specs[0].name, 0)]
    assert again[1] == specs[0]
    last_failed.note_failed("mine.py", specs, verdict(unjudged=()))
    with pytest.raises(UserError, match=r"every case of mine\.py passed"):
        last_failed.failed_cases("mine.py")
    (tmp_path / "data" / "judged").chmod(0o500)  # a read-only home is no error
    last_failed.note_failed("other.py", specs, verdict(failed(specs[0].name)))


def test_junit_has_a_test_for_each_case() -> None:
    bad = [failed("a", reason="5 < 6 & \x1b[31mred"), failed("b", Status.INFRA_ERROR, "no space")]
    (suite,) = ElementTree.fromstring(to_junit(verdict(*bad, unjudged=("c",)), 1.5))
    counts: dict[str, Any] = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "skipped": "1", "time": "1.500"}
    one, two, three = suite.findall("testcase")
    assert [(each.get("classname"), each.get("name"), each[0].tag) for each in (one, two, three)] == [
        ("mine", "a", "failure"),
        ("mine", "b", "error"),
        ("mine", "c", "skipped"),
    ]
    assert (one[0].get("type"), one[0].text) == ("INCORRECT", "5 < 6 & ?[31mred")


def test_a_case_that_takes_long_gives_signs_of_life(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_SIGN_SECONDS", 0.1)
    with progress.CaseProgress("judging mine", seconds=120.0) as shown:
        shown.started("the case", 21)
        time.sleep(1.3)
        shown.finished(failed("the case"))
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("judging mine: the case has run for ")
    assert first.endswith(" s of at most 120 s; 0 of 21 cases judged")


def test_the_first_verdict_and_the_first_failure_are_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    right: Any = SimpleNamespace(name="right", passed=True, status=Status.PASSED)
    with progress.CaseProgress("judging mine") as shown:
        shown.started("job 1 of 1 (right and 3 more)", 4)
        for case in (right, failed("bad"), right, failed("worse")):
            shown.finished(case)
        shown.ended("job 1 of 1 (right and 3 more)")
    assert capsys.readouterr().err.splitlines() == [
        "judging mine: right: PASSED; 1 of 4 cases judged",
        "judging mine: bad: INCORRECT; 2 of 4 cases judged",
    ]
