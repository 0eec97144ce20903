"""Launches that :mod:`simulator` times: two attention kernels, a matrix product, algorithms of cub, and a loop with a
race.

    PYTHONPATH=... python benchmarks/cases.py CASE plain|checked

Prepares the launch, runs it once, and then runs it once for each line of its input, each time printing the CPU seconds
that it took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import warpsan
from sdpalab.inputs import make_inputs
from sdpalab.kernels.plan import TiledMap
from sdpalab.kernels.registry import get
from sdpalab.problem import MISSION, Problem
from sdpalab.run.buffers import starting_array, tensor_map
from warpsan.build import Module, build

__all__ = ["CASES", "attention"]

_GEMM = r"""
extern "C" __global__ void __launch_bounds__(256) gemm(float const *a, float const *b, float *c, int n, int k) {
    __shared__ float a_smem[16][64 + 4], b_smem[16][64 + 4];
    int const row = blockIdx.y * 64, column = blockIdx.x * 64, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sums[4][4] = {};
    for (int begin = 0; begin < k; begin += 16) {
        for (int j = 0; j < 4; j++) {
            int const at = threadIdx.x + 256 * j;
            a_smem[at % 16][at / 16] = a[(row + at / 16) * k + begin + at % 16];
            b_smem[at / 64][at % 64] = b[(begin + at / 64) * n + column + at % 64];
        }
        __syncthreads();
        for (int i = 0; i < 16; i++) {
            float4 const x = *reinterpret_cast<float4 *>(&a_smem[i][4 * ty]);
            float4 const y = *reinterpret_cast<float4 *>(&b_smem[i][4 * tx]);
            float const xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
            for (int p = 0; p < 4; p++)
                for (int q = 0; q < 4; q++) sums[p][q] += xs[p] * ys[q];
        }
        __syncthreads();
    }
    for (int p = 0; p < 4; p++)
        for (int q = 0; q < 4; q++) c[(row + 4 * ty + p) * n + column + 4 * tx + q] = sums[p][q];
}
"""

_RACE = r"""
extern "C" __global__ void race(int *out, int rounds) {
    __shared__ int words[256];
    words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    int sum = 0;
    for (int k = 0; k < rounds; k++) {
        sum += words[(threadIdx.x + 1) % 256];
        words[threadIdx.x] = sum + k;
    }
    out[blockIdx.x * 256 + threadIdx.x] = sum;
}
"""

_CUB = r"""
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

extern "C" __global__ void __launch_bounds__(256) reduce(int const *in, int *out, int count) {
    using Reduce = cub::BlockReduce<int, 256>;
    __shared__ typename Reduce::TempStorage storage;
    int sum = 0;
    for (int at = blockIdx.x * 256 + threadIdx.x; at < count; at += 256 * gridDim.x) sum += in[at];
    sum = Reduce(storage).Sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256) scan(int const *in, int *out, int count) {
    using Scan = cub::BlockScan<int, 256>;
    __shared__ typename Scan::TempStorage storage;
    int const first = (blockIdx.x * 256 + threadIdx.x) * 4;
    int values[4];
    for (int j = 0; j < 4; j++) values[j] = in[first + j];
    Scan(storage).InclusiveSum(values, values);
    for (int j = 0; j < 4; j++) out[first + j] = values[j];
}

extern "C" __global__ void __launch_bounds__(256) sort(unsigned const *in, unsigned *out, int count) {
    using Sort = cub::BlockRadixSort<unsigned, 256, 4>;
    __shared__ typename Sort::TempStorage storage;
    int const first = (blockIdx.x * 256 + threadIdx.x) * 4;
    unsigned keys[4];
    for (int j = 0; j < 4; j++) keys[j] = in[first + j];
    Sort(storage).Sort(keys);
    for (int j = 0; j < 4; j++) out[first + j] = keys[j];
}
"""


def attention(name: str, problem: Problem, **knobs: Any) -> tuple[dict[str, Any], np.ndarray]:
    """The arguments of a launch of a kernel of the lab, without checks and workers, and the array of its output."""
    kernel = get(name)
    plan = kernel.launch_plan(problem, kernel.default_config.but(**knobs))
    (step,) = plan.steps
    assert step.module is not None
    built = build(step.module, "sm_90a" if name == "hopper" else "sm_89")
    inputs = make_inputs(problem, "normal", 0).arrays
    arrays = {buffer.name: starting_array(buffer, inputs, 0xFF) for buffer in plan.buffers}
    launch = {
        "ptx": built.ptx,
        "entry": built.entry,
        "grid": step.grid,
        "block": step.block,
        "cluster": step.cluster,
        "args": [_argument(each, arrays) for each in step.args],
        "dynamic_smem": step.dynamic_smem,
    }
    return launch, arrays["o"]


def _argument(argument: Any, arrays: dict[str, np.ndarray]) -> Any:
    """An argument of a launch: the array of a buffer, a tensor map on one, or a number."""
    if isinstance(argument, TiledMap):
        return tensor_map(argument, arrays[argument.buffer], "the plan")
    return arrays[argument] if isinstance(argument, str) else argument


def _gemm() -> dict[str, Any]:
    built = build(Module("gemm.cu", _GEMM, "gemm"), "sm_89")
    a, b = (np.random.default_rng(seed).standard_normal((512, 512), np.float32) for seed in range(2))
    args = [a, b, np.zeros((512, 512), np.float32), 512, 512]
    return {"ptx": built.ptx, "entry": built.entry, "grid": (8, 8), "block": 256, "args": args}


def _race() -> dict[str, Any]:
    built = build(Module("race.cu", _RACE, "race"), "sm_89")
    return {"ptx": built.ptx, "entry": built.entry, "grid": 4, "block": 256, "args": [np.zeros(1024, np.int32), 512]}


def _cub(entry: str, count: int, blocks: int) -> dict[str, Any]:
    built = build(Module("cub.cu", _CUB, entry), "sm_89")
    numbers = np.random.default_rng(0).integers(0, 1 << 30, count, np.int32)
    args = [numbers, np.zeros(count, np.int32), count]
    return {"ptx": built.ptx, "entry": built.entry, "grid": blocks, "block": 256, "args": args}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "flash": lambda: attention("flash", MISSION)[0],
    "hopper": lambda: attention("hopper", MISSION)[0],
    "gemm": _gemm,
    "reduce": lambda: _cub("reduce", 1 << 21, 64),
    "scan": lambda: _cub("scan", 1 << 20, 1024),
    "sort": lambda: _cub("sort", 1 << 18, 256),
    "race": _race,
}
"""The launch of each case."""


def main() -> None:
    """Serve one case to a process that compares."""
    name, mode = sys.argv[1:]
    launch = CASES[name]() | {"checks": warpsan.CHECKS if mode == "checked" else (), "workers": 1}
    warpsan.launch(**launch)
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.process_time()
        warpsan.launch(**launch)
        print(time.process_time() - begin, flush=True)


if __name__ == "__main__":
    main()
