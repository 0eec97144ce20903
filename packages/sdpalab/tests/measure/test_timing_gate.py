"""GREEN before FAST in ``measure``: nothing times a kernel of the lab without a PASSED verdict on its code."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sdpalab.bugs import replace_once
from sdpalab.errors import UserError
from sdpalab.evidence.store import lookup
from sdpalab.evidence.store.certificate import Certificate
from sdpalab.inputs import make_inputs
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.judge.verdict import Status, Verdict
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.registry import KERNELS
from sdpalab.measure import timing_gate
from sdpalab.measure.benchmark import CudaDevice, benchmark
from sdpalab.measure.outputs import Outputs
from sdpalab.measure.subjects import kernel_subject
from sdpalab.measure.timing_gate import TimingPermit, judge_for_timing, permit_by
from sdpalab.problem import Problem

PROBLEM, ARCH, SMS = Problem(1, 1, 16, 32), "sm_89", 58
FLASH = KERNELS["flash"]
assert isinstance(FLASH, CudaKernel)
CONFIG = FLASH.default_config
DEVICE = CudaDevice(torch.device("cpu"), "a CPU", arch=89, l2_bytes=1 << 14, uuid="GPU-none")
EXECUTOR: Any = SimpleNamespace(arch=ARCH, sms=SMS, device="a CPU")


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    passed = judge_candidate(
        "flash", [CaseSpec("normal", PROBLEM, "normal", 0)], device="sim", arch=ARCH, sms=SMS, algebra=False
    )
    assert passed.passed
    return passed


@pytest.fixture
def permit(verdict: Verdict) -> TimingPermit:
    return permit_by(FLASH, CONFIG, [PROBLEM], {"a record": verdict}, arch=ARCH, sms=SMS)


def test_a_kernel_without_a_permit_is_not_timed() -> None:
    pairs: Any = [(FLASH, CONFIG)]
    with pytest.raises(UserError, match="benchmark takes kernels with a TimingPermit, not tuple"):
        benchmark(PROBLEM, [], pairs, DEVICE, executor=EXECUTOR)
    with pytest.raises(UserError, match="benchmark takes kernels with a TimingPermit, not CudaKernel"):
        benchmark(PROBLEM, [], [FLASH], DEVICE, executor=EXECUTOR)  # type: ignore[list-item]


def test_a_permit_comes_from_a_verdict_alone(permit: TimingPermit) -> None:
    with pytest.raises(TypeError, match="comes from a PASSED verdict"):
        TimingPermit()
    with pytest.raises(AttributeError, match="does not change"):
        permit.config = CONFIG.but(BLOCK_M=32)
    with pytest.raises(TypeError):
        replace(permit, config=CONFIG.but(BLOCK_M=32))  # type: ignore[type-var]
    assert not hasattr(permit, "__dict__")
    assert permit.named("champion").name == "champion"
    assert permit.named("champion").problems == permit.problems == (PROBLEM,)
    assert permit.proven_by == {PROBLEM: "a record"}


def test_a_permit_is_for_its_problems_and_its_gpu(permit: TimingPermit) -> None:
    other = PROBLEM.with_(causal=True)
    with pytest.raises(UserError, match=r"flash is not timed on .*causal.*: no PASSED verdict on its code"):
        benchmark(other, [], [permit], DEVICE, executor=EXECUTOR)
    with pytest.raises(UserError, match="need an executor"):
        benchmark(PROBLEM, [], [permit], DEVICE)
    elsewhere: Any = SimpleNamespace(arch="sm_90a", sms=132, device="an H200")
    with pytest.raises(UserError, match="it was judged for sm_89 with 58 SMs, and an H200 is sm_90a with 132"):
        kernel_subject(permit, Outputs(PROBLEM, make_inputs(PROBLEM)), elsewhere)


def test_code_that_changed_after_the_verdict_is_not_timed(verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FLASH.source.read_text()  # type: ignore[union-attr]
    kernel = replace(FLASH, source=text)
    permit = permit_by(kernel, CONFIG, [PROBLEM], {"": verdict}, arch=ARCH, sms=SMS)
    object.__setattr__(kernel, "source", replace_once(text, ("lse, scale)", "lse, 1.1f * scale)")))
    with pytest.raises(UserError, match="its code changed after it was judged"):
        benchmark(PROBLEM, [], [permit], DEVICE, executor=EXECUTOR)
    with pytest.raises(UserError, match="no PASSED verdict covers its code"):
        permit_by(kernel, CONFIG, [PROBLEM], {"": verdict}, arch=ARCH, sms=SMS)


@pytest.mark.parametrize("change", ["kernel", "config", "status", "unjudged", "code"])
def test_a_verdict_on_something_else_gives_no_permit(verdict: Verdict, change: str) -> None:
    case = verdict.cases[0]
    changed = {
        "kernel": replace(verdict, kernel="wmma"),
        "config": replace(verdict, config=str(CONFIG.but(NUM_STAGES=3))),
        "status": replace(verdict, cases=(replace(case, status=Status.INCORRECT, reason="a test"),)),
        "unjudged": replace(verdict, unjudged=("a case",)),
        "code": replace(verdict, cases=(replace(case, run={**case.run, "ptx_sha256": ["0" * 64]}),)),
    }[change]
    with pytest.raises(UserError, match=r"flash \(.*\) is not timed: no PASSED verdict covers its code for 1x1x16x32"):
        permit_by(FLASH, CONFIG, [PROBLEM], {"": changed}, arch=ARCH, sms=SMS)


def test_a_recorded_verdict_saves_judging_and_its_absence_does_not(
    verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Any] = []

    def judge(candidate: Any, specs: Any, **options: Any) -> Verdict:
        judged.append((candidate, options["device"], {spec.problem for spec in specs}))
        return verdict

    monkeypatch.setattr(timing_gate, "judge_candidate", judge)
    by_record = judge_for_timing(FLASH, CONFIG, [PROBLEM], arch=ARCH, sms=SMS, recorded={"l4/flash.json": verdict})
    assert by_record.permit_for(PROBLEM) is not None
    assert (judged, by_record.to_dict()["proven_by"]) == ([], {PROBLEM.label: "l4/flash.json"})
    now = judge_for_timing(FLASH, CONFIG, [PROBLEM, PROBLEM.with_(causal=True)], arch=ARCH, sms=SMS)
    (asked,) = judged
    assert asked[:2] == (FLASH, "sim")
    assert PROBLEM in asked[2]
    assert now.permit is not None
    assert now.permit.problems == (PROBLEM,)
    assert now.left_out == {PROBLEM.with_(causal=True).label: "no case of its verdict ran its code"}


def test_a_kernel_that_fails_has_no_permit(verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(verdict, cases=(replace(verdict.cases[0], status=Status.INCORRECT, reason="zeros"),))
    monkeypatch.setattr(timing_gate, "judge_candidate", lambda *_, **__: wrong)
    gate = judge_for_timing(FLASH, CONFIG, [PROBLEM], arch=ARCH, sms=SMS)
    assert (gate.permit, gate.permit_for(PROBLEM)) == (None, None)
    assert gate.reason == "it is INCORRECT on simulator sm_89: zeros"
    assert gate.to_dict()["passed"] is False
    refused = judge_for_timing(KERNELS["hopper"], KERNELS["hopper"].default_config, [PROBLEM], arch=ARCH, sms=SMS)
    assert "hopper" in refused.reason


def test_committed_verdicts_are_those_of_the_certificates(verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    about = ("flash", str(CONFIG), "NVIDIA L4", ARCH, frozenset[str](), frozenset({PROBLEM}), "evidence/l4/flash.json")
    certificate = Certificate(*about, verdict=verdict)
    monkeypatch.setattr(lookup, "shipped_records", lambda: lookup.Records((certificate,)))
    assert lookup.recorded_verdicts() == {"l4/flash.json": verdict}
