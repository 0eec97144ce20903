"""Small kernels for the tests of builds, and a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from warpsan.build.cache import Cache
from warpsan.build.source import Module

SCALE = """
__global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor * FACTOR;
}
"""

TENSOR = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
namespace { __device__ int hidden[32]; }
template <int STEPS> __global__ void tensor(const half* a, const half* b, float* c) {
    __shared__ half tile[256];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    for (int i = threadIdx.x; i < 256; i += 32) tile[i] = a[i];
    __syncthreads();
    #pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        wmma::load_matrix_sync(fa, tile, 16);
        wmma::load_matrix_sync(fb, b + step * 256, 16);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
    c[threadIdx.x] += hidden[threadIdx.x];
}
"""


@pytest.fixture
def scale() -> Module:
    """A kernel without headers, with one macro."""
    return Module("scale.cu", SCALE, "scale", {"FACTOR": "2.0f"})


@pytest.fixture
def tensor() -> Module:
    """A template that includes CUDA's largest headers and has an internal symbol."""
    return Module("tensor.cu", TENSOR, "tensor<8>")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    return Cache(tmp_path / "cache")
