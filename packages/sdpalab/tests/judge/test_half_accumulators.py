"""A float16 accumulator is rounded as often as the tensor cores of its architecture do it, and judged by that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from implementations import HALF, Rounding, online

from sdpalab.inputs import make_inputs
from sdpalab.judge import CaseSpec, judge_candidate
from sdpalab.judge.rule.evaluate import declared_numerics, judge_output
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.rule.numerics import intended_output, mma_terms, on_architecture
from sdpalab.judge.verdict import Case, Status
from sdpalab.kernels.kernel import Config, CudaKernel, Numerics
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem

PROBLEM = Problem(1, 1, 32, 64, seq_kv=256)
HALF_SUMS = Numerics(accumulate="float16")
SOURCE = r"""
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

// A warp for 16 query rows; both products in accumulators of 16 bits, the softmax in two passes over shared memory.
extern "C" __global__ void half_sums(const __half* q, const __half* k, const __half* v, __half* o, int keys,
                                     float scale)
{
    __shared__ __half p[16 * 256], out[16 * HEAD_DIM];
    __shared__ float total[16];
    q += blockIdx.x * 16 * HEAD_DIM, o += blockIdx.x * 16 * HEAD_DIM;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::accumulator, 16, 16, 16, __half> sum;
    for (int j = 0; j < keys; j += 16) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> k_frag;
        wmma::fill_fragment(sum, __float2half(0.0f));
        for (int d = 0; d < HEAD_DIM; d += 16) {
            wmma::load_matrix_sync(left, q + d, HEAD_DIM);
            wmma::load_matrix_sync(k_frag, k + j * HEAD_DIM + d, HEAD_DIM);
            wmma::mma_sync(sum, left, k_frag, sum);
        }
        wmma::store_matrix_sync(p + j, sum, 256, wmma::mem_row_major);
    }
    __syncwarp();
    if (threadIdx.x < 16) {
        __half* row = p + threadIdx.x * 256;
        float most = -1e30f, weights = 0.0f;
        for (int j = 0; j < keys; ++j) most = fmaxf(most, __half2float(row[j]) * scale);
        for (int j = 0; j < keys; ++j) {
            const float weight = __expf(__half2float(row[j]) * scale - most);
            weights += weight;
            row[j] = __float2half_rn(weight);
        }
        total[threadIdx.x] = weights;
    }
    __syncwarp();
    for (int d = 0; d < HEAD_DIM; d += 16) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> v_frag;
        wmma::fill_fragment(sum, __float2half(0.0f));
        for (int j = 0; j < keys; j += 16) {
            wmma::load_matrix_sync(left, p + j, 256);
            wmma::load_matrix_sync(v_frag, v + j * HEAD_DIM + d, HEAD_DIM);
            wmma::mma_sync(sum, left, v_frag, sum);
        }
        wmma::store_matrix_sync(out + d, sum, HEAD_DIM, wmma::mem_row_major);
    }
    __syncwarp();
    for (int at = threadIdx.x; at < 16 * HEAD_DIM; at += 32)
        o[at] = __float2half_rn(__half2float(out[at]) / total[at / HEAD_DIM]);
}
"""


def whole_tiles(problem: Problem) -> str | None:
    """The kernel's requirements on a problem."""
    plain = problem.dtype == "float16" and (problem.batch, problem.heads, problem.causal) == (1, 1, False)
    whole = problem.seq_q % 16 == problem.seq_kv % 16 == problem.head_dim % 16 == 0 and problem.seq_kv <= 256
    return None if plain and whole else "one head of whole tiles of 16, no mask"


def plan(problem: Problem, config: Config) -> Launch:
    """A warp for 16 rows."""
    return Launch(
        (problem.seq_q // 16, 1, 1), (32, 1, 1), ("q", "k", "v", "o", problem.seq_kv, np.float32(problem.scale))
    )


kernel = CudaKernel("half_sums", SOURCE, "half_sums", plan, [{}], whole_tiles, numerics=HALF_SUMS, min_arch=80)


@pytest.mark.parametrize(
    ("arch", "terms"),
    [("sm_70", 4), ("sm_75", 8), ("sm_80", 8), ("sm_86", 8), ("sm_89", 8), ("sm_90a", 16), ("sm_100", 16)],
)
def test_the_terms_are_those_of_the_architecture(arch: str, terms: int) -> None:
    """Exact powers of two tell when it is rounded: 2048 keeps ones only from 2 of them on."""
    assert mma_terms(arch) == terms
    declared = on_architecture(HALF_SUMS, arch)
    assert declared.accumulate_terms == terms
    assert Numerics.from_dict(declared.to_dict()) == declared
    problem = Problem(1, 1, 1, 16, seq_kv=32, scale=0.0)
    inputs = make_inputs(problem, "normal", 0)
    inputs.v[...] = 0.0
    inputs.v[0, 0, 0] = 2048.0
    inputs.v[0, 0, [3, 8, 17, 23]] = 1.0  # with 16 terms 2 + 2 ones, with 8 none but the two of the third block
    out = intended_output(*inputs.arrays.values(), scale=0.0, causal=False, numerics=declared)
    assert float(out[0, 0, 0, 0]) * 32 == {4: 2048, 8: 2050, 16: 2052}[terms]


def test_what_is_declared_or_needs_no_terms_stays() -> None:
    small_k = replace(HALF_SUMS, accumulate_terms=8)  # mma.m16n8k8
    assert on_architecture(small_k, "sm_90a") is small_k
    assert on_architecture(Numerics(), "sm_90a") == Numerics()
    assert on_architecture(HALF_SUMS, "") is HALF_SUMS  # no architecture
    assert "accumulate_terms" not in HALF_SUMS.to_dict()
    about = {"numerics": HALF_SUMS.to_dict(), "arch": "sm_90a"}
    assert declared_numerics(about).accumulate_terms == 16


def test_fewer_roundings_make_tighter_limits() -> None:
    """On sm_90 an honest accumulator errs less, and so may a kernel: by 1.1 to 1.5 times."""
    problem = Problem(1, 2, 128, 64, seq_kv=512)
    inputs = make_inputs(problem, "normal", 0)
    out = online(problem, inputs, rounding=HALF)
    by_terms = {
        terms: judge_output(problem, inputs, out, replace(HALF_SUMS, accumulate_terms=terms)) for terms in (4, 8, 16)
    }
    limits = [by_terms[terms].limits.rel_l2 for terms in (4, 8, 16)]
    assert 1.05 < limits[0] / limits[1] < 1.7
    assert 1.05 < limits[1] / limits[2] < 1.7
    assert by_terms[8].status is Status.PASSED
    often = online(problem, inputs, rounding=Rounding(accumulator=np.float16, accumulate_every=2))
    assert judge_output(problem, inputs, often, replace(HALF_SUMS, accumulate_terms=16)).status is Status.INCORRECT
    bounds = [
        log_sum_exp_float64(*inputs.qkv, **problem.scoring, numerics=replace(HALF_SUMS, accumulate_terms=terms))[
            1
        ].max()
        for terms in (8, 16)
    ]
    assert bounds[0] > bounds[1]


@pytest.mark.parametrize(("arch", "terms"), [("sm_89", 8), ("sm_90a", 16)])
def test_a_kernel_with_such_accumulators_is_right_on_its_architecture(arch: str, terms: int) -> None:
    """Its sums are those of the simulator's tensor cores, and the verdict says by how many terms it was judged."""
    cases: list[Case] = []
    specs = [CaseSpec(kind, PROBLEM, kind, 0) for kind in ("normal", "ramp", "large_logits")]
    verdict = judge_candidate(kernel, specs, arch=arch, algebra=False, progress=cases.append)
    assert verdict.passed, verdict.reason
    assert [case.run["numerics"]["accumulate_terms"] for case in cases] == [terms] * 3
    assert max(max(case.shares.values()) for case in cases) > 0.3
