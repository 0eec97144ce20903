"""A small CUDA kernel, right and with one thing wrong at a time, for the judge's tests."""

from __future__ import annotations

from dataclasses import replace

from sdpalab.bugs import replace_once
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem

SOURCE = r"""
#include <cuda_fp16.h>
#include <math_constants.h>

// One thread a query row: two passes over the keys, everything in float32.
extern "C" __global__ void one_row(__half* q, const __half* k, const __half* v, __half* o, int rows, int keys,
                                   float scale, float* lse)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const __half* q_row = q + row * HEAD_DIM;
    float largest = -CUDART_INF_F;
    for (int j = 0; j < keys; ++j) {
        float s = 0.0f;
        for (int d = 0; d < HEAD_DIM; ++d) s += __half2float(q_row[d]) * __half2float(k[j * HEAD_DIM + d]);
        largest = fmaxf(largest, s * scale);
    }
    float total = 0.0f, out[HEAD_DIM];
    for (int d = 0; d < HEAD_DIM; ++d) out[d] = 0.0f;
    for (int j = 0; j < keys; ++j) {
        float s = 0.0f;
        for (int d = 0; d < HEAD_DIM; ++d) s += __half2float(q_row[d]) * __half2float(k[j * HEAD_DIM + d]);
        const float p = __expf(s * scale - largest);
        total += p;
        for (int d = 0; d < HEAD_DIM; ++d) out[d] += p * __half2float(v[j * HEAD_DIM + d]);
    }
    for (int d = 0; d < HEAD_DIM; ++d) o[row * HEAD_DIM + d] = __float2half_rn(out[d] / total * GAIN);
    if (lse != nullptr) lse[row] = largest + logf(total);
}
"""


def one_head_of_32(problem: Problem) -> str | None:
    """The kernel's requirements on a problem."""
    if problem.dtype != "float16":
        return f"dtype must be float16, not {problem.dtype}"
    if problem.head_dim != 32:
        return f"head_dim must be 32, not {problem.head_dim}"
    return None if (problem.batch, problem.heads, problem.causal) == (1, 1, False) else "one head, no mask"


def plan(problem: Problem, config: Config) -> Launch:
    """One launch, one warp a block."""
    arguments = ("q", "k", "v", "o", problem.seq_q, problem.seq_kv, problem.scale, "lse")
    return Launch(((problem.seq_q + 31) // 32, 1, 1), (32, 1, 1), arguments)


def plan_without_lse(problem: Problem, config: Config) -> Launch:
    """The same without the log-sum-exp."""
    launch = plan(problem, config)
    return replace(launch, args=(*launch.args[:-1], 0))


def variant(old: str = "", new: str = "") -> CudaKernel:
    """The kernel with one piece of its source replaced."""
    source = replace_once(SOURCE, (old, new)) if old else SOURCE
    return CudaKernel("one_row", source, "one_row", plan, [{"GAIN": 1}], one_head_of_32, lse=True)


right = variant()
last_row_missing = variant("if (row >= rows)", "if (row >= rows - 1)")
reads_past_the_end = variant("float largest = -CUDART_INF_F;", "float largest = __half2float(k[keys * HEAD_DIM]);")
writes_q = variant("if (row >= rows) return;", "if (row >= rows) return;\n    q[row * HEAD_DIM] = __float2half(0.0f);")
drops_a_key = variant("float total = 0.0f,", "--keys;\n    float total = 0.0f,")
no_lse = replace(right, lse=False, plan=plan_without_lse)
lse_to_base_2 = variant("logf(total)", "log2f(total)")
lse_of_the_last_row_missing = variant("if (lse != nullptr)", "if (lse != nullptr && row < rows - 1)")
lse_past_the_end = variant("lse[row] =", "lse[rows + row] =")
lse_unasked = variant("if (lse != nullptr) lse", "lse")
output_depends_on_lse = variant("/ total * GAIN", "/ total * (lse ? GAIN : 1.001f)")
accumulates = variant("__float2half_rn(out[d]", "__float2half_rn(__half2float(o[row * HEAD_DIM + d]) + out[d]")
does_not_compile = variant("float largest = -CUDART_INF_F;", "float largest = -CUDART_INF_F")


def wide_plan(problem: Problem, config: Config) -> Launch:
    """More threads than a block can have."""
    return replace(plan(problem, config), block=(2048, 1, 1))


too_many_threads = replace(right, plan=wide_plan)

_BEGIN = "if (row >= rows) return;"
faults = variant(_BEGIN, f"{_BEGIN}\n    o[1LL << 40] = v[0];")
faults_on_needles = variant("largest = fmaxf(", "if (s > 1e3f) o[1LL << 40] = v[0];\n        largest = fmaxf(")
traps = variant(_BEGIN, f"{_BEGIN}\n    __trap();")
hangs = variant(_BEGIN, f"{_BEGIN}\n    __shared__ volatile int never;\n    never = 0;\n    while (never == 0) {{}}")
writes_past_the_end = variant(_BEGIN, f"{_BEGIN}\n    o[rows * HEAD_DIM] = v[0];")
