"""CUDA C++ kernels with instructions of real kernels, with all checks: typical uses of each family, and unexecuted
paths, against NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import warpsan
from warpsan.build.nvrtc import compile_program

SOURCE = r"""
extern "C" __device__ int printf(const char *, ...);
#define KERNEL extern "C" __global__ void
typedef unsigned int u32;

// A gradient that several blocks add to, as the backward pass of attention does.
KERNEL gradient(float *sums, const float *values, int rows) {
    for (int row = blockIdx.x; row < rows; row += gridDim.x)
        atomicAdd(sums + threadIdx.x, values[row * 64 + threadIdx.x]);
}
// The greatest float by compare and swap, as there is no atomic operation for it.
KERNEL greatest(float *most, const float *values) {
    float mine = values[blockIdx.x * 64 + threadIdx.x];
    u32 *place = (u32 *)most, old = *(volatile u32 *)place;
    while (__uint_as_float(old) < mine) {
        u32 seen = atomicCAS(place, old, __float_as_uint(mine));
        if (seen == old) break;
        old = seen;
    }
}
// Partial sums, added up by the last block that comes.
KERNEL last_block(float *out, float *partial, u32 *count, const float *values) {
    __shared__ float tile[64];
    __shared__ bool last;
    tile[threadIdx.x] = values[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
        if (threadIdx.x < half) tile[threadIdx.x] += tile[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = tile[0];
        __threadfence();
        last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0;
        for (int k = 0; k < gridDim.x; k++) sum += ((volatile float *)partial)[k];
        *out = sum;
    }
}
// A histogram of digits: lanes with one digit elect one of them, as a radix sort does.
KERNEL digits(u32 *counts, const u32 *keys, int shift) {
    __shared__ u32 bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    u32 digit = keys[blockIdx.x * 64 + threadIdx.x] >> shift & 15;
    u32 peers = __match_any_sync(0xFFFFFFFF, digit);
    if (__ffs(peers) - 1 == (threadIdx.x & 31)) atomicAdd(bins + digit, __popc(peers));
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(counts + threadIdx.x, bins[threadIdx.x]);
}
// A row of 4-bit weights times 8-bit activations, as quantised models do.
KERNEL quantised(int *out, const int *weights, const int *activations) {
    int packed = weights[blockIdx.x * 32 + threadIdx.x], sum = 0;
    for (int half = 0; half < 2; half++) {
        int bytes = __vsubss4(packed >> 4 * half & 0x0F0F0F0F, 0x08080808);
        sum = __dp4a(bytes, activations[2 * threadIdx.x + half], sum);
    }
    sum = __reduce_add_sync(0xFFFFFFFF, sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
// One tile of scores from 8-bit queries and keys.
KERNEL scores(int *out, const int *q, const int *k) {
    int lane = threadIdx.x, g = lane / 4, t = lane % 4, d[4] = {0, 0, 0, 0};
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(q[8 * g + t]), "r"(q[8 * (g + 8) + t]), "r"(q[8 * g + t + 4]), "r"(q[8 * (g + 8) + t + 4]),
          "r"(k[8 * g + t]), "r"(k[8 * g + t + 4]));
    for (int i = 0; i < 4; i++) out[8 * (g + 8 * (i / 2)) + 2 * t + i % 2] = d[i];
}
// Integers of 128 bits, a timeout, and a message that never comes.
KERNEL wide(unsigned long long *out, const unsigned long long *a) {
    long long begin = clock64();
    unsigned __int128 product = (unsigned __int128)a[threadIdx.x] * a[threadIdx.x] + a[0];
    out[2 * threadIdx.x] = product;
    out[2 * threadIdx.x + 1] = product >> 64;
    if (clock64() - begin > 1000000) printf("slow: %d\n", threadIdx.x);
}
typedef float (*Function)(float);
__device__ float twice(float x) { return 2 * x; }
__device__ float square(float x) { return x * x; }
__device__ Function functions[2] = {twice, square};
KERNEL pointwise(float *x, int which) { x[threadIdx.x] = functions[(which + threadIdx.x / 16) & 1](x[threadIdx.x]); }
"""
RNG = np.random.default_rng(5)
VALUES = RNG.integers(-99, 99, (8, 64)).astype(np.float32)
KEYS = RNG.integers(0, 1 << 32, (4, 64), dtype=np.uint32)
WEIGHTS = RNG.integers(0, 256, (3, 128)).astype(np.uint8)
ACTIVATIONS = RNG.integers(-128, 128, (32, 2, 4)).astype(np.int8)
Q, K = (RNG.integers(-128, 128, (rows, 32)).astype(np.int8) for rows in (16, 8))
WIDE = RNG.integers(0, 1 << 63, 32).astype(np.uint64)


def _quantised() -> np.ndarray:
    halves = np.stack([WEIGHTS & 15, WEIGHTS >> 4], axis=-1).astype(np.int64) - 8
    return np.einsum("rlbh,lhb->r", halves.reshape(3, 32, 4, 2), ACTIVATIONS.astype(np.int64))


def _wide() -> list[int]:
    products = [int(a) ** 2 + int(WIDE[0]) for a in WIDE]
    return [word for product in products for word in (product % 2**64, product >> 64 & (2**64 - 1))]


KERNELS: dict[str, tuple[int, int, Sequence[object], Callable[[], object]]] = {
    "gradient": (3, 64, [np.zeros(64, np.float32), VALUES, 8], lambda: VALUES.sum(axis=0)),
    "greatest": (8, 64, [np.full(1, 1, np.float32), np.abs(VALUES)], lambda: [np.abs(VALUES).max()]),
    "last_block": (
        *(8, 64),
        [np.zeros(1, np.float32), np.zeros(8, np.float32), np.zeros(1, np.uint32), VALUES],
        lambda: [VALUES.sum()],
    ),
    "digits": (4, 64, [np.zeros(16, np.uint32), KEYS, 8], lambda: np.bincount((KEYS >> 8 & 15).ravel(), minlength=16)),
    "quantised": (3, 32, [np.zeros(3, np.int32), WEIGHTS.view(np.int32), ACTIVATIONS.view(np.int32)], _quantised),
    "scores": (
        *(1, 32, [np.zeros((16, 8), np.int32), Q.view(np.int32), K.view(np.int32)]),
        lambda: Q.astype(np.int64) @ K.astype(np.int64).T,
    ),
    "wide": (1, 32, [np.zeros(64, np.uint64), WIDE], _wide),
    "pointwise": (
        *(1, 64, [np.arange(64, dtype=np.float32), 1]),
        lambda: np.where(np.arange(64) // 16 % 2, 2 * np.arange(64), np.arange(64) ** 2),
    ),
}
"""Blocks, threads, arguments (the first is the result), and expected result."""


@pytest.fixture(scope="module")
def ptx() -> str:
    options = ("--gpu-architecture=sm_80", "--device-int128")
    return compile_program(SOURCE, "families.cu", "gradient", (), options).ptx.decode().rstrip("\0")


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_with_all_checks(ptx: str, name: str) -> None:
    grid, threads, arguments, want = KERNELS[name]
    given = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
    assert warpsan.launch(ptx, name, grid, threads, given).hazards == []
    np.testing.assert_array_equal(given[0], want())
