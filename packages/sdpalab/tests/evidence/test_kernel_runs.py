"""Several kernels judged at a time: what is told of them, in which order, and how all of it ends early."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sdpalab
from sdpalab.cli import main
from sdpalab.commands import progress
from sdpalab.errors import UserError
from sdpalab.evidence import kernel_runs, verify_bundle
from sdpalab.evidence.kernel_runs import CaseStarted, JudgeRequest, KernelRun, judged_side_by_side
from sdpalab.evidence.preparing import JudgedKernel, PreparedKernel
from sdpalab.evidence.repro import ReproObserver
from sdpalab.judge.interrupt import Interrupt
from sdpalab.judge.judgement import JudgingInterrupted
from sdpalab.judge.small_cases import CaseSpec, normal_case
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.problem import Problem

PROBLEM = Problem(1, 1, 8, 64)
SPECS = (CaseSpec("public", PROBLEM), normal_case(PROBLEM))
Judge = Callable[..., Verdict]
ANSWERS_SECONDS = 30.0


class NoMoreOutputError(Exception):
    """Error of a write to a closed terminal."""


def case(spec: CaseSpec) -> Case:
    return Case(spec.name, spec.problem, spec.inputs, spec.seed or 0, Status.INCORRECT, "wrong")


def verdict(name: str, specs: Sequence[CaseSpec], unjudged: tuple[str, ...] = ()) -> Verdict:
    return Verdict(name, "", "simulator sm_89", "quick", 0, tuple(map(case, specs)), unjudged)


def judge(name: str, specs: Sequence[CaseSpec], **options: Any) -> Verdict:
    """A judge that tells of each case and finds it wrong."""
    for spec in specs:
        options["on_start"](spec.name, len(specs))
        options["progress"](case(spec))
    return verdict(name, specs)


@pytest.fixture
def judge_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Judge], None]:
    """Two cores, nothing to build, and a judge of the test's own."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(kernel_runs, "prepare", lambda *_: PreparedKernel("sm_89", SPECS))
    return lambda by: monkeypatch.setattr("sdpalab.judge.session.judge_candidate", by)


class NoStore:
    """A judge that computes nothing keeps nothing."""

    def put(self, array: Any) -> str:
        raise AssertionError


def asked(gpu: Any = None) -> JudgeRequest:
    return JudgeRequest("auto", gpu, (), NoStore(), None, "hardware", ())


def subjects(*names: str) -> list[JudgedKernel]:
    return [JudgedKernel(name, name, "an idea", None) for name in names]


def test_kernels_are_judged_at_the_same_time_and_told_in_their_order(judge_by: Callable[[Judge], None]) -> None:
    both = threading.Barrier(2, timeout=ANSWERS_SECONDS)
    second_ended = threading.Event()

    def by(name: str, specs: Sequence[CaseSpec], **options: Any) -> Verdict:
        both.wait()
        if name == "scalar":
            assert second_ended.wait(ANSWERS_SECONDS)
        judged = judge(name, specs, **options)
        second_ended.set()
        return judged

    judge_by(by)
    with judged_side_by_side(subjects("scalar", "flash"), asked()) as runs:
        events = [(run.subject.name, list(run)) for run in runs]
        outcomes = [run.outcome() for run in runs]
    assert [name for name, _ in events] == [each.kernel for each in outcomes] == ["scalar", "flash"]
    for _, told in events:
        assert [type(event) for event in told] == [PreparedKernel, CaseStarted, Case, CaseStarted, Case]
    assert [each.verdict and each.verdict.status for each in outcomes] == [Status.INCORRECT, Status.INCORRECT]


def test_the_labs_kernels_share_hidden_seeds_and_a_users_does_not(judge_by: Callable[[Judge], None]) -> None:
    seeds: dict[str, list[int | None]] = {}

    def by(name: str, specs: Sequence[CaseSpec], **options: Any) -> Verdict:
        seeds[name] = [spec.seed for spec in specs]
        return verdict(name, specs)

    judge_by(by)
    with judged_side_by_side(subjects("scalar", "flash", "mine.py"), asked()) as runs:
        assert all(run.outcome().verdict for run in runs)
    assert seeds["scalar"] == seeds["flash"]
    assert seeds["flash"][0] == 0
    assert seeds["flash"][1] is not None
    assert seeds["mine.py"] == [0, None], "the judge draws it when the kernel is loaded"


def test_on_a_gpu_one_kernel_is_judged_while_the_next_is_built(
    judge_by: Callable[[Judge], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    all_built, running = threading.Event(), threading.Semaphore(1)

    def prepare(subject: JudgedKernel, *_: Any) -> PreparedKernel:
        built.append(subject.name)
        if len(built) == 2:
            all_built.set()
        return PreparedKernel("sm_90", SPECS)

    def by(name: str, specs: Sequence[CaseSpec], **options: Any) -> Verdict:
        assert running.acquire(blocking=False), "another kernel is on the GPU"
        assert options["workers"] is None
        assert all_built.wait(ANSWERS_SECONDS)
        running.release()
        return verdict(name, specs)

    judge_by(by)
    monkeypatch.setattr(kernel_runs, "prepare", prepare)
    with judged_side_by_side(subjects("scalar", "flash"), asked(gpu=object())) as runs:
        assert all(run.outcome().verdict for run in runs)


def test_what_is_no_verdict_is_told_and_the_others_are_judged(judge_by: Callable[[Judge], None]) -> None:
    def by(name: str, specs: Sequence[CaseSpec], **options: Any) -> Verdict:
        if name == "scalar":
            raise UserError("line 3 does not compile")
        return judge(name, specs, **options)

    judge_by(by)
    with judged_side_by_side(subjects("scalar", "flash"), asked()) as runs:
        first, second = (run.outcome() for run in runs)
    assert (first.verdict, first.failure, first.interrupted) == (None, "line 3 does not compile", False)
    assert second.verdict
    assert not second.interrupted


@pytest.mark.usefixtures("_in_the_foreground")
@pytest.mark.parametrize("ending", ["interrupt", "exception"])
def test_all_kernels_end_early(judge_by: Callable[[Judge], None], ending: str) -> None:
    """By Ctrl-C, or because what prints failed: no case is waited for, and no other kernel begins."""
    started = threading.Barrier(3, timeout=ANSWERS_SECONDS)
    begun: list[str] = []

    def by(name: str, specs: Sequence[CaseSpec], *, interrupt: Interrupt, **options: Any) -> Verdict:
        begun.append(name)
        ended = threading.Event()
        with interrupt.on_interrupt(ended.set):
            started.wait()
            assert ended.wait(ANSWERS_SECONDS)
        if name == "scalar":
            raise KeyboardInterrupt  # no case is finished
        raise JudgingInterrupted(verdict(name, specs[:1], (specs[1].name,)))

    judge_by(by)
    with (
        contextlib.suppress(NoMoreOutputError),
        judged_side_by_side(subjects("scalar", "flash", "wmma"), asked()) as runs,
    ):
        started.wait()
        if ending == "exception":
            raise NoMoreOutputError
        for _ in range(2):  # as a signal to the process and to its group, or an impatient user
            os.kill(os.getpid(), signal.SIGINT)
    outcomes = [run.outcome() for run in runs]
    assert sorted(begun) == ["flash", "scalar"]
    assert [each.interrupted for each in outcomes] == [True, True, True]
    assert [each.verdict and each.verdict.status for each in outcomes] == [None, Status.INCORRECT, None]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_function_of_the_package_leaves_a_bundle_and_prints_nothing(
    judge_by: Callable[[Judge], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def by(name: str, specs: Sequence[CaseSpec], **_: Any) -> Verdict:
        late = [replace(case(spec), status=Status.TIMED_OUT) for spec in specs]
        return replace(verdict(name, specs), cases=tuple(late))

    judge_by(by)

    class Noting(ReproObserver):
        def kernel(self, run: KernelRun) -> None:
            seen.append(run.subject.name)

    result = sdpalab.repro(["scalar", "flash"], out=tmp_path, observer=Noting())
    assert capsys.readouterr().out == ""
    assert (result.passed, result.machine_failed, result.interrupted, result.gpu) == (False, False, False, "")
    assert seen == [each.kernel for each in result.attempts] == ["scalar", "flash"]
    assert verify_bundle(result.bundle.tarball).accepted
    assert set(result.to_dict()) >= {"passed", "bundle", "report", "attempts"}
    with pytest.raises(UserError, match="device is auto, sim or gpu, not 'tpu'"):
        sdpalab.repro(device="tpu", out=tmp_path)
    with pytest.raises(UserError, match="case_seconds is a number of seconds above 0, not -1"):
        sdpalab.repro(case_seconds=-1, out=tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("_in_the_foreground")
def test_repro_keeps_what_was_judged_before_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = progress.CaseProgress.finished

    def interrupt(self: progress.CaseProgress, case: Case) -> None:
        finished(self, case)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(progress.CaseProgress, "finished", interrupt)
    out, record = tmp_path / "out", tmp_path / "repro.json"
    assert main(["repro", "cp_async", "flash", "wmma", "--out", str(out), "--json", str(record)]) == 130
    result = json.loads(record.read_text())
    judged = {attempt["kernel"]: attempt["verdict"]["status"] for attempt in result["attempts"]}
    assert judged["cp_async"] == "INTERRUPTED"
    assert set(judged) | set(result["unjudged"]) == {"cp_async", "flash", "wmma"}
    assert "wmma" in result["unjudged"]
    assert verify_bundle(Path(result["bundle"])).findings == []
