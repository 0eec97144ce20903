"""CUDA kernels before the judge: built, run on the simulator in a worker, and each failure under its own status."""

from __future__ import annotations

import re
from pathlib import Path

import cuda_candidates
import pytest

from sdpalab.errors import UserError
from sdpalab.judge import CaseSpec, Status, judge_candidate
from sdpalab.problem import Problem

FILE = Path(__file__).parent / "cuda_candidates.py"
PROBLEM = Problem(1, 1, 9, 32, seq_kv=12)


def test_a_right_kernel_passes_and_its_record_says_what_ran() -> None:
    verdict = judge_candidate(cuda_candidates.right, [CaseSpec(kind, PROBLEM, kind) for kind in ("normal", "ramp")])
    assert verdict.passed, verdict.reason
    assert verdict.device == "simulator sm_89"
    assert verdict.config == "GAIN=1"
    assert len(verdict.cases) == 2
    digests = {case.run["ptx_sha256"][0] for case in verdict.cases}
    assert len(digests) == 1
    assert re.fullmatch("[0-9a-f]{64}", digests.pop())


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("last_row_missing", Status.NOT_FINITE, r"32 of 288 .*\(b=0, h=0, i=8, d=0\).*32 still hold the poison"),
        ("reads_past_the_end", Status.HAZARD, "k"),
        ("writes_q", Status.INPUT_CHANGED, "input q"),
        ("drops_a_key", Status.INCORRECT, "worst row"),
    ],
)
def test_a_wrong_kernel_has_its_status(name: str, status: Status, words: str) -> None:
    verdict = judge_candidate(f"{FILE}:{name}", [CaseSpec("one", PROBLEM)])
    assert verdict.status is status, verdict.reason
    assert re.search(words, verdict.reason)


def test_knobs_reach_the_build() -> None:
    verdict = judge_candidate(f"{FILE}:right", [CaseSpec("one", PROBLEM)], config={"GAIN": "2"})
    assert verdict.config == "GAIN=2"
    assert verdict.status is Status.INCORRECT
    assert "2 times the right one" in verdict.reason


def test_source_that_does_not_compile_is_bad_input_with_the_compilers_line() -> None:
    with pytest.raises(UserError, match=r"one_row\.cu, line 13: expected a \";\""):
        judge_candidate(f"{FILE}:does_not_compile", [CaseSpec("one", PROBLEM)])


def test_what_a_kernel_does_not_support_is_bad_input_unless_the_judge_chose_it() -> None:
    with pytest.raises(UserError, match="head_dim must be 32, not 64"):
        judge_candidate(f"{FILE}:right", [CaseSpec("one", PROBLEM.with_(head_dim=64))])
    specs = [CaseSpec("one", PROBLEM), CaseSpec("two", PROBLEM.with_(causal=True), derived=True)]
    verdict = judge_candidate(f"{FILE}:right", specs)
    assert [case.name for case in verdict.cases] == ["one"]


def test_devices_architectures_and_knobs_that_are_none() -> None:
    spec = f"{FILE}:right"
    cases = [CaseSpec("one", PROBLEM)]
    with pytest.raises(UserError, match="CUDA kernel and runs on the simulator"):
        judge_candidate(spec, cases, device="cpu")
    with pytest.raises(UserError, match="needs sm_80 or later, not sm_75"):
        judge_candidate(spec, cases, arch="sm_75")
    with pytest.raises(UserError, match="no knob 'TILE'"):
        judge_candidate(spec, cases, config={"TILE": "1"})


def test_a_triton_kernel_is_compiled_where_it_is_loaded_and_run_elsewhere() -> None:
    pytest.importorskip("triton")
    file = Path(__file__).parents[1] / "sim" / "triton_attention.py"
    (case,) = judge_candidate(str(file), [CaseSpec("one", Problem(1, 1, 64, 64))]).cases
    assert case.status is Status.PASSED, case.reason
    assert case.run["device"] == "simulator sm_89"
    assert re.fullmatch("[0-9a-f]{64}", case.run["ptx_sha256"][0])
