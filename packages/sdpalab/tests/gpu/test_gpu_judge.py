"""The judge on a real GPU: verdicts, what a kernel does wrong there, and that a fault changes no other case."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sdpalab.bugs import replace_once
from sdpalab.errors import UserError
from sdpalab.judge import Case, CaseSpec, Status, judge_candidate
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem
from sdpalab.run import GpuExecutor

pytestmark = pytest.mark.gpu

PROBLEM = Problem(1, 2, 40, 32)
CASES = [
    CaseSpec("one", PROBLEM),
    CaseSpec("two", PROBLEM, "ramp", 1),
    CaseSpec("scaled", PROBLEM, relation="scaled_v"),
]
SOURCE = r"""
#include <cuda_fp16.h>

// One thread a query row, everything in float32.
extern "C" __global__ void one_row(const __half* q, const __half* k, const __half* v, __half* o, float* lse, int keys,
                                   float scale)
{
    const int row = threadIdx.x;
    q += (blockIdx.x * blockDim.x + row) * HEAD_DIM;
    o += (blockIdx.x * blockDim.x + row) * HEAD_DIM;
    k += blockIdx.x * keys * HEAD_DIM;
    v += blockIdx.x * keys * HEAD_DIM;
    float largest = -3e38f, total = 0.0f, out[HEAD_DIM] = {};
    for (int j = 0; j < keys; ++j) {
        float s = 0.0f;
        for (int d = 0; d < HEAD_DIM; ++d) s += __half2float(q[d]) * __half2float(k[j * HEAD_DIM + d]);
        const float before = largest;
        largest = fmaxf(largest, s * scale);
        const float rescale = expf(before - largest), p = expf(s * scale - largest);
        total = total * rescale + p;
        for (int d = 0; d < HEAD_DIM; ++d) out[d] = out[d] * rescale + p * __half2float(v[j * HEAD_DIM + d]);
    }
    for (int d = 0; d < HEAD_DIM; ++d) o[d] = __float2half_rn(out[d] / total);
    if (lse != nullptr) lse[blockIdx.x * blockDim.x + row] = largest + logf(total);
}
"""


def plan(problem: Problem, config: Config) -> Launch:
    arguments = ("q", "k", "v", "o", "lse", problem.seq_kv, problem.scale)
    return Launch((problem.batch * problem.heads, 1, 1), (problem.seq_q, 1, 1), arguments)


def kernel(old: str = "", new: str = "", **changes: Any) -> CudaKernel:
    """The kernel with one piece of its source replaced."""
    source = replace_once(SOURCE, (old, new)) if old else SOURCE
    return CudaKernel("one_row", source, "one_row", plan, **{"lse": True, **changes})


def cases(candidate: CudaKernel | str, **options: Any) -> tuple[Case, ...]:
    return judge_candidate(candidate, CASES, device="gpu", workers=1, **options).cases


def test_a_right_kernel_passes_under_the_name_of_the_gpu(gpu: GpuExecutor) -> None:
    verdict = judge_candidate(kernel(), CASES, device="gpu")
    assert verdict.passed, verdict.reason
    assert verdict.device == gpu.device
    for case in verdict.cases:
        assert case.run["device"] == gpu.device
        assert case.errors is not None
        assert case.errors.lse is not None
    (simulated, *_) = judge_candidate(kernel(), CASES[:1], arch=gpu.arch).cases
    assert verdict.cases[0].run["ptx_sha256"] == simulated.run["ptx_sha256"]


@pytest.mark.parametrize(
    ("old", "new", "status", "words"),
    [
        ("float s = 0.0f;", "float s = 0.25f * j;", Status.INCORRECT, "worst row"),
        ("logf(total)", "log2f(total)", Status.INCORRECT, "^the output is right; the log-sum-exp"),
        ("x + row] =", "x + row / 2] =", Status.NOT_FINITE, "log-sum-exp of 40 rows is not finite"),
        (
            "const int row = threadIdx.x;",
            "const int row = threadIdx.x; o[-1] = o[0];",
            Status.HAZARD,
            "outside buffer o",
        ),
        (
            "const int row = threadIdx.x;",
            "const int row = threadIdx.x; const_cast<__half*>(q)[row] = o[0];",
            Status.INPUT_CHANGED,
            "input q",
        ),
    ],
)
def test_a_wrong_kernel_has_its_status(old: str, new: str, status: Status, words: str) -> None:
    judged = cases(kernel(old, new))
    assert judged[0].status is status, judged[0].reason
    assert re.search(words, judged[0].reason)


def test_an_illegal_access_is_a_crash_with_cudas_name_for_it_and_the_next_case_has_a_gpu() -> None:
    """It happens where the scores are those of the second case alone."""
    beyond = "if (s > 1e3f) lse[1LL << 40] = s;\n        const float before = largest;"
    spec = [CaseSpec("one", PROBLEM), CaseSpec("large", PROBLEM, "needle", 1), CaseSpec("again", PROBLEM)]
    verdict = judge_candidate(kernel("const float before = largest;", beyond), spec, device="gpu", workers=1)
    assert [case.status for case in verdict.cases] == [Status.PASSED, Status.CRASHED, Status.PASSED]
    assert "one_row" in verdict.reason
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in verdict.reason


def test_an_endless_loop_is_ended() -> None:
    endless = kernel("if (lse != nullptr)", 'while (keys > 0) asm volatile("");\n    if (lse != nullptr)')
    (case,) = judge_candidate(endless, CASES[:1], device="gpu", workers=1, timeout=10.0).cases
    assert case.status is Status.TIMED_OUT


def test_a_launch_that_the_gpu_does_not_take_is_a_hazard_with_the_numbers() -> None:
    (case,) = judge_candidate(kernel(), [CaseSpec("long", PROBLEM.with_(seq_q=2000))], device="gpu", workers=1).cases
    assert case.status is Status.HAZARD
    assert "1024" in case.reason


def test_another_architecture_is_refused(gpu: GpuExecutor) -> None:
    other = "sm_80" if gpu.gpu.capability[0] != 8 else "sm_90"
    with pytest.raises(UserError, match=f"does not run code for {other}"):
        judge_candidate(kernel(), CASES, device="gpu", arch=other)


@pytest.mark.parametrize("name", ["scalar", "wmma", "flash"])
def test_a_shipped_kernel_passes(name: str) -> None:
    assert all(case.passed for case in cases(name))
