"""Preparation of a process for many candidates: compiler and simulator loaded, instructions decoded and compiled.

The operations of a candidate that the user's cache lacks are compiled in each of its processes, which must not write
there; the common ones are therefore compiled here, once for each version of the simulator, by running trusted kernels.
"""

from __future__ import annotations

import contextlib

import numpy as np

from sdpalab.compile import compiler_version
from sdpalab.errors import MachineError
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.registry import get
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from warpsan import thorough_checks

__all__ = ["warm_up"]

_SHIPPED = ("scalar", "flash")
"""Scalar code; tensor cores with asynchronous copies."""

_COMMON = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/std/type_traits>
#include <math_constants.h>

__device__ float wide(float x) { return x; }
__device__ float wide(__half x) { return __half2float(x); }
__device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void narrow(float* p, float x) { *p = x; }
__device__ void narrow(__half* p, float x) { *p = __float2half(x); }
__device__ void narrow(__nv_bfloat16* p, float x) { *p = __float2bfloat16(x); }

// One warp: loads and stores of each width, and the arithmetic of an online softmax.
extern "C" __global__ void common(VALUE* o, const VALUE* q, int rows, float scale, float* lse, long long stride) {
    const int lane = threadIdx.x, row = lane % rows, half = lane / rows;
    float largest = -CUDART_INF_F, total = 0.0f, out = 0.0f;
    double exact = 0.0;
    for (int j = 0; j < rows; ++j) {
        const float s = wide(q[j * rows + row]) * scale;
        const float next = fmaxf(largest, s);
        const float factor = __expf(largest - next), p = expf(s - next);
        total = total * factor + p;
        out = fmaf(p, wide(q[j]), out * factor);
        exact += (double)p;
        largest = next;
    }
    for (int mask = 16; mask; mask >>= 1) {
        total += __shfl_xor_sync(0xffffffffu, total, mask);
        largest = fmaxf(largest, __shfl_down_sync(0xffffffffu, largest, mask));
    }
#if SHARED
    __shared__ cuda::std::conditional_t<SHARED == 1, float, VALUE> block[128];
    for (int i = lane; i < 128; i += 32) narrow(&block[i], wide(q[i % rows]));
    __syncthreads();
    const float4 four = *reinterpret_cast<const float4*>(&block[8 * row]);
    const float2 two = *reinterpret_cast<const float2*>(&block[4 * row]);
    out += four.x + four.y + two.x + wide(block[rows - 1 - row]);
    __syncwarp();
    *reinterpret_cast<float4*>(&block[8 * row]) = four;
    *reinterpret_cast<float2*>(&block[8 * row]) = two;
#endif
    const int4 packed = *reinterpret_cast<const int4*>(q + 8 * row);
    const int2 pair = *reinterpret_cast<const int2*>(q + 4 * row);
    *reinterpret_cast<int4*>(o + 8 * row) = packed;
    *reinterpret_cast<int2*>(o + 4 * row) = pair;
    narrow(o + lane, out / total + __frcp_rn(total) + (float)exact);
    if (half > 0 && largest > 0.0f) narrow(o + row, exp2f(out) + logf(total) + tanhf(out) + sqrtf(total) + half);
    if (isnan(out) || rows < 0) narrow(o, fminf(total, 1.0f) + __float2int_rn(out) + __fdividef(out, total) + stride);
    const size_t place = stride + size_t(half) * rows + (unsigned long long)lane / (unsigned)rows;
    const unsigned bits = __float_as_uint(out) ^ (lane << 3 & ~row | half >> 1);
    if (out <= total == place < 9) narrow(o + place % 5 * stride, -out + __popc(bits % 7) + abs(row - half));
    if (lse != nullptr) lse[lane] = __log2f(scale * rows);
}
"""


def _launch(problem: Problem, config: Config) -> Launch:
    return Launch((1, 1, 1), (32, 1, 1), ("o", "q", 8, 1.0, 0, 0))


def warm_up() -> None:
    """Compile and run shipped kernels, and one with common instructions; without a compiler, nothing."""
    problem = Problem(1, 1, 16, 64)
    ones = np.ones(problem.q_shape, np.float16)
    types = ("__half", "__nv_bfloat16", "float")
    knobs: list[dict[str, int | str]] = [{"VALUE": name, "SHARED": shared} for name in types for shared in range(3)]
    common = CudaKernel("common", _COMMON, "common", _launch, knobs)
    with contextlib.suppress(MachineError):
        compiler_version()
        for kernel in (*map(get, _SHIPPED), common):
            for config in map(Config, knobs) if kernel is common else (kernel.default_config,):
                plan = kernel.launch_plan(problem, config, lse=kernel.lse)
                for checks in (thorough_checks(), ()):  # the first finding of a run ends its checks
                    SimulatedExecutor(checks=checks, workers=1).run(plan, dict.fromkeys("qkv", ones))
