"""CUDA kernels before the judge: built, run on the simulator in a worker, and each failure under its own status."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import cuda_candidates
import pytest

from sdpalab.bugs import SourceEdit
from sdpalab.errors import UserError
from sdpalab.judge import CaseSpec, Status, judge_candidate
from sdpalab.problem import Problem
from sdpalab.run import gpu_problem

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


def test_a_lost_warp_barrier_is_a_hazard() -> None:
    lost = "        __syncwarp();\n\n        const int col0"
    broken = SourceEdit("wmma", ((lost, "        const int col0"),)).apply()
    (case,) = judge_candidate(broken, [CaseSpec("one", Problem(1, 1, 40, 64, seq_kv=150))], algebra=False).cases
    assert case.status is Status.HAZARD
    assert "lane-race" in case.reason


@pytest.mark.slow
def test_a_kernel_that_writes_the_log_sum_exp_is_judged_on_it_and_no_other_is() -> None:
    cases = [CaseSpec("one", PROBLEM), CaseSpec("scaled", PROBLEM, seed=None, relation="scaled_v")]
    for case in judge_candidate(cuda_candidates.right, cases).cases:
        assert case.passed, case.reason
        assert case.errors is not None
        assert case.errors.lse is not None
        assert case.errors.lse.error < 0.1 * case.errors.lse.limit
        assert "lse" in case.digests
    (case, _) = judge_candidate(f"{FILE}:no_lse", cases).cases
    assert case.passed, case.reason
    assert case.errors is not None
    assert case.errors.lse is None
    assert "lse" not in case.digests


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("lse_to_base_2", Status.INCORRECT, r"^the output is right; the log-sum-exp of the worst row \(b=0, h=0, i="),
        ("lse_of_the_last_row_missing", Status.NOT_FINITE, r"of 1 rows .* \(b=0, h=0, i=8\): nan \(1 rows still hold"),
        ("lse_past_the_end", Status.HAZARD, "out.of.bounds"),
        ("lse_unasked", Status.HAZARD, "out.of.bounds"),
        ("output_depends_on_lse", Status.NONDETERMINISTIC, "the first computed the log-sum-exp, and the second"),
        ("last_row_missing", Status.NOT_FINITE, r"32 of 288 .*\(b=0, h=0, i=8, d=0\).*32 still hold the poison"),
        ("reads_past_the_end", Status.HAZARD, "k"),
        ("writes_q", Status.INPUT_CHANGED, "input q"),
        ("drops_a_key", Status.INCORRECT, "worst row"),
        ("accumulates", Status.HAZARD, r"uninitialised: .* of o, in o\[0, 0, 0, 0\], .* at one_row.cu:27"),
    ],
)
def test_a_wrong_kernel_has_its_status(name: str, status: Status, words: str) -> None:
    verdict = judge_candidate(f"{FILE}:{name}", [CaseSpec("one", PROBLEM)])
    assert verdict.status is status, verdict.reason
    assert re.search(words, verdict.reason)


@pytest.mark.slow
def test_knobs_reach_the_build() -> None:
    verdict = judge_candidate(f"{FILE}:right", [CaseSpec("one", PROBLEM)], config={"GAIN": "2"})
    assert verdict.config == "GAIN=2"
    assert verdict.status is Status.INCORRECT
    assert "2 times the right one" in verdict.reason


def test_source_that_does_not_compile_is_bad_input_with_the_compilers_line() -> None:
    with pytest.raises(UserError, match=r"one_row\.cu, line 13: expected a \";\""):
        judge_candidate(f"{FILE}:does_not_compile", [CaseSpec("one", PROBLEM)])


@pytest.mark.slow
def test_what_a_kernel_does_not_support_is_bad_input_unless_the_judge_chose_it() -> None:
    with pytest.raises(UserError, match="head_dim must be 32, not 64"):
        judge_candidate(f"{FILE}:right", [CaseSpec("one", PROBLEM.with_(head_dim=64))])
    specs = [CaseSpec("one", PROBLEM), CaseSpec("two", PROBLEM.with_(causal=True), derived=True)]
    verdict = judge_candidate(f"{FILE}:right", specs)
    assert [case.name for case in verdict.cases] == ["one"]


def test_devices_architectures_and_knobs_that_are_none() -> None:
    spec = f"{FILE}:right"
    cases = [CaseSpec("one", PROBLEM)]
    with pytest.raises(UserError, match="CUDA kernel, which the lab builds: device must be sim, gpu or auto"):
        judge_candidate(spec, cases, device="cpu")
    with pytest.raises(UserError, match="needs sm_80 or later, not sm_75"):
        judge_candidate(spec, cases, arch="sm_75")
    with pytest.raises(UserError, match="one of auto, sim, cpu, gpu, not 'tpu'"):
        judge_candidate(spec, cases, device="tpu")
    with pytest.raises(UserError, match="no knob 'TILE'"):
        judge_candidate(spec, cases, config={"TILE": "1"})


@pytest.mark.slow
def test_a_kernel_is_built_for_its_own_architecture_unless_another_is_given() -> None:
    cases = [CaseSpec("one", PROBLEM)]
    later = replace(cuda_candidates.right, min_arch=90)
    assert judge_candidate(later, cases).device == "simulator sm_90"
    assert judge_candidate(later, cases, arch="sm_100").device == "simulator sm_100"
    only = replace(cuda_candidates.right, only_arch="sm_90a")
    verdict = judge_candidate(only, cases)
    assert verdict.passed, verdict.reason
    assert verdict.device == verdict.cases[0].run["device"] == "simulator sm_90a"
    with pytest.raises(UserError, match="uses what only sm_90a has, and cannot be built for sm_89"):
        judge_candidate(only, cases, arch="sm_89")


@pytest.mark.skipif(not gpu_problem(), reason="there is a GPU here: tests/gpu judges on it")
def test_without_a_gpu_the_judge_says_so_before_it_starts_anything() -> None:
    with pytest.raises(UserError, match=r"^no GPU: .*; device sim runs the PTX on the simulator$"):
        judge_candidate(cuda_candidates.right, [CaseSpec("one", PROBLEM)], device="gpu")


def test_a_triton_kernel_is_compiled_where_it_is_loaded_and_run_elsewhere() -> None:
    pytest.importorskip("triton")
    file = Path(__file__).parents[1] / "sim" / "triton_attention.py"
    (case,) = judge_candidate(str(file), [CaseSpec("one", Problem(1, 1, 64, 64))]).cases
    assert case.status is Status.PASSED, case.reason
    assert case.run["device"] == "simulator sm_89"
    assert re.fullmatch("[0-9a-f]{64}", case.run["ptx_sha256"][0])
