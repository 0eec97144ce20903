"""Small correct CUDA kernels, into which ``source_bugs`` plants errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["DEVICE", "PROGRAMS", "Program"]

DEVICE = Path(__file__).resolve().parent / "device"
"""Folder of the headers that the programs include."""


@dataclass(frozen=True)
class Program:
    """A kernel ``entry(const unsigned* in, unsigned* out, int n)`` with ``n`` words of input and of output.

    ``expected`` computes the output words of the correct kernel from the input words.
    """

    source: str
    block: int
    n: int
    expected: Callable[[np.ndarray], np.ndarray]
    grid: int = 1
    dynamic_smem: int = 0


_REVERSE = """
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    __shared__ unsigned tile[128];
    const int t = threadIdx.x;
    if (t < n) {
        tile[t] = in[t];
    }
    __syncthreads();
    if (t < n) {
        out[t] = tile[n - 1 - t];
    }
}"""

# A tile of rows of four words a thread, in and out as vectors; the last row of the grid's last tile is ragged.
_VECTOR = """
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    extern __shared__ uint4 rows[];
    const int t = threadIdx.x;
    const int i = 4 * (blockIdx.x * blockDim.x + t);
    rows[t] = i < n ? *reinterpret_cast<const uint4*>(in + i) : make_uint4(0, 0, 0, 0);
    __syncthreads();
    const uint4 next = rows[(t + 32) % blockDim.x];
    const uint4 own = rows[t];
    if (i < n) {
        *reinterpret_cast<uint4*>(out + i) =
            make_uint4(own.x + next.x, own.y + next.y, own.z + next.z, own.w + next.w);
    }
}"""

# Two stages of 128 x 16 bytes, filled by cp.async one tile ahead; each thread reads the copies of the next warp.
_PIPELINE = """
#include "ptx/sm80.cuh"
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    __shared__ uint4 stages[2][128];
    const int t = threadIdx.x;
    const int tiles = (n + 511) / 512;
    const auto load = [&](int tile) {
        const int i = 512 * tile + 4 * t;
        ptx::cp_async_cg_16(ptx::smem_address(&stages[tile % 2][t]), in + (i < n ? i : 0), i < n ? 16 : 0);
        ptx::cp_async_commit_group();
    };
    load(0);
    unsigned sum = 0;
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            load(tile + 1);
            ptx::cp_async_wait_group<1>();
        } else {
            ptx::cp_async_wait_group<0>();
        }
        __syncthreads();  // arrived
        const uint4 other = stages[tile % 2][(t + 32) % 128];
        sum += other.x + other.y + other.z + other.w;
        __syncthreads();  // read
    }
    out[t] = sum;
}"""

# Each warp reverses its own words twice, through its own shared memory.
_WARP = """
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    __shared__ unsigned tile[64];
    const int t = threadIdx.x;
    tile[t] = in[t];
    __syncwarp();  // written
    const unsigned first = tile[t ^ 31];
    __syncwarp();  // read
    tile[t] = 3 * first;
    __syncwarp();  // again
    out[t] = tile[t ^ 31];
}"""

_SHUFFLE = """
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    const int t = threadIdx.x;
    unsigned sum = t < n ? in[t] : 0;
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    const unsigned odd = __ballot_sync(0xffffffffu, sum & 1);
    if (t < n) {
        out[t] = sum + __popc(odd);
    }
}"""

# The first two warps produce, the last two consume; "full" is barrier 1, "empty" barrier 2.
_NAMED = """
__device__ __forceinline__ void sync(int name, int count) {
    asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(int name, int count) {
    asm volatile("bar.arrive %0, %1;" : : "r"(name), "r"(count) : "memory");
}
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    __shared__ unsigned slot[64];
    const int t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int i = 0; i < n / 64; ++i) {
            if (i > 0) {
                sync(2, 128);  // producer waits
            }
            slot[t] = in[64 * i + t];
            arrive(1, 128);  // producer says
        }
    } else {
        for (int i = 0; i < n / 64; ++i) {
            sync(1, 128);  // consumer waits
            out[64 * i + t] = slot[t ^ 33];
            if (i + 1 < n / 64) {
                arrive(2, 128);  // consumer says
            }
        }
    }
}"""

_HISTOGRAM = """
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    __shared__ unsigned count[16];
    const int t = threadIdx.x;
    if (t < 16) {
        count[t] = 0;
    }
    __syncthreads();  // zeroed
    for (int i = t; i < n; i += blockDim.x) {
        atomicAdd(&count[in[i] % 16], 1u);
    }
    __syncthreads();  // counted
    if (t < 16) {
        out[t] = count[t];
    }
}"""

# Rows of 64 halfs, swizzled by row, written by threads and read back in 16x16 blocks by ldmatrix: the fragments' sum.
_SWIZZLE = """
#include "ptx/sm80.cuh"
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    __shared__ uint4 tile[16 * 8];
    const int t = threadIdx.x;
    for (int chunk = t; chunk < 128; chunk += 32) {
        const int row = chunk / 8;
        tile[row * 8 + (chunk % 8 ^ row % 8)] = reinterpret_cast<const uint4*>(in)[chunk];
    }
    __syncwarp();
    for (int d = 0; d < 4; ++d) {
        const int row = t % 16;
        const int chunk = 2 * d + t / 16;
        unsigned frag[4];
        ptx::ldmatrix_x4(frag, ptx::smem_address(&tile[row * 8 + (chunk ^ row % 8)]));
        for (int i = 0; i < 4; ++i) {
            out[(4 * d + i) * 32 + t] = frag[i];
        }
    }
}"""

# A table in local memory with an index unknown at compile time, and a search that ends.
_SEARCH = """
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    const int t = threadIdx.x;
    unsigned table[8];
    for (int i = 0; i < 8; ++i) {
        table[i] = in[i] + t;
    }
    int place = 0;
    while (place < 7 && table[place] % 5 != 0) {
        ++place;
    }
    out[t] = table[in[t] % 8] + place;
}"""

# The last block to arrive sums the results of all blocks.
_GRID = """
__device__ unsigned arrived = 0;
extern "C" __global__ void entry(const unsigned* in, unsigned* out, int n) {
    __shared__ bool last;
    const int t = threadIdx.x;
    out[32 * (blockIdx.x + 1) + t] = 2 * in[32 * blockIdx.x + t];
    __syncthreads();
    if (t == 0) {
        __threadfence();
        last = atomicAdd(&arrived, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last) {
        unsigned sum = 0;
        for (int b = 1; b <= gridDim.x; ++b) {
            sum += out[32 * b + t];
        }
        out[t] = sum;
    }
}"""


def _pipeline(x: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-len(x) // 512) * 512, np.uint32)
    padded[: len(x)] = x
    sums = padded.reshape(-1, 128, 4).sum(axis=(0, 2), dtype=np.uint32)
    return _filled(x, np.roll(sums, -32))


def _vector(x: np.ndarray) -> np.ndarray:
    rows = np.zeros((2, 64, 4), np.uint32)
    rows.reshape(-1)[: len(x)] = x
    return (rows + np.roll(rows, -32, axis=1)).reshape(-1)[: len(x)]


def _shuffle(x: np.ndarray) -> np.ndarray:
    padded = np.zeros(64, np.uint32)
    padded[: len(x)] = x
    sums = padded.reshape(2, 32).sum(axis=1, dtype=np.uint32)
    return np.repeat(sums + 32 * (sums & 1), 32)[: len(x)]


def _swizzle(x: np.ndarray) -> np.ndarray:
    tile = x.reshape(16, 32)  # pairs of halfs
    lane = np.arange(32)
    blocks = [(8 * (i % 2), 8 * d + 4 * (i // 2)) for d in range(4) for i in range(4)]
    return np.concatenate([tile[row + lane // 4, column + lane % 4] for row, column in blocks])


def _search(x: np.ndarray) -> np.ndarray:
    table = x[:8] + np.arange(len(x), dtype=np.uint32)[:, None]
    hit = table % 5 == 0
    hit[:, 7] = True
    return table[np.arange(len(x)), x % 8] + hit.argmax(axis=1).astype(np.uint32)


def _grid(x: np.ndarray) -> np.ndarray:
    blocks = 2 * x[:-32].reshape(-1, 32)
    return np.concatenate([blocks.sum(axis=0, dtype=np.uint32), blocks.reshape(-1)])


def _filled(x: np.ndarray, head: np.ndarray) -> np.ndarray:
    """The result, followed by the poison that stays unchanged."""
    out = np.full(len(x), 0xFFFFFFFF, np.uint32)
    out[: len(head)] = head
    return out


PROGRAMS: dict[str, Program] = {
    "reverse": Program(_REVERSE, 128, 100, lambda x: x[::-1]),
    "vector": Program(_VECTOR, 64, 2 * 256 - 3 * 4, _vector, grid=2, dynamic_smem=64 * 16),
    "pipeline": Program(_PIPELINE, 128, 4 * 512 - 20, _pipeline),
    "warp": Program(_WARP, 64, 64, lambda x: 3 * x),
    "shuffle": Program(_SHUFFLE, 64, 50, _shuffle),
    "named": Program(_NAMED, 128, 320, lambda x: x.reshape(-1, 64)[:, np.arange(64) ^ 33].reshape(-1)),
    "histogram": Program(
        _HISTOGRAM, 64, 300, lambda x: _filled(x, np.bincount(x % 16, minlength=16).astype(np.uint32))
    ),
    "swizzle": Program(_SWIZZLE, 32, 512, _swizzle),
    "search": Program(_SEARCH, 64, 64, _search),
    "grid": Program(_GRID, 32, 160, _grid, grid=4),
}
