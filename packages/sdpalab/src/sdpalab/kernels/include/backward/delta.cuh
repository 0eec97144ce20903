// delta[row] = sum_d dO[row, d] O[row, d], in float32 from the rounded O.
//
// A step of its own reads O and dO once. Computed by each tile of keys instead, delta would cost seq_kv / BLOCK reads
// of O, half as much again as the Q and dO that such a tile reads.
#pragma once

#include "tile/dtype.cuh"

// Lanes that share a row, 16 bytes each: a power of two, for the shuffles. At D = 96 four of 16 are idle.
constexpr int DELTA_LANES = HEAD_DIM > 64 ? 16 : HEAD_DIM > 32 ? 8 : 4;
constexpr int DELTA_THREADS = 256;
static_assert(HEAD_DIM <= 8 * DELTA_LANES && 32 % DELTA_LANES == 0, "a warp has whole rows");

__device__ __forceinline__ float dot_of_pairs(unsigned one, unsigned other, float sum) {
    const float2 a = unpack_pair(one);
    const float2 b = unpack_pair(other);
    return fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
}

// delta of a row, in all of its DELTA_LANES lanes; 0 for one that is not `valid`. o, dout: [rows, HEAD_DIM].
__device__ __forceinline__ float delta_of_row(const Element* o, const Element* dout, long long row, bool valid) {
    const int lane = threadIdx.x % DELTA_LANES;
    float sum = 0.0f;
    if (valid && lane * 8 < HEAD_DIM) {
        const uint4 a = reinterpret_cast<const uint4*>(o + row * HEAD_DIM)[lane];
        const uint4 b = reinterpret_cast<const uint4*>(dout + row * HEAD_DIM)[lane];
        sum = dot_of_pairs(a.w, b.w, dot_of_pairs(a.z, b.z, dot_of_pairs(a.y, b.y, dot_of_pairs(a.x, b.x, 0.0f))));
    }
#pragma unroll
    for (int distance = DELTA_LANES / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    return sum;
}

// This thread's row, of those that a grid of one axis shares out.
__device__ __forceinline__ long long delta_row() {
    return static_cast<long long>(blockIdx.x) * (DELTA_THREADS / DELTA_LANES) + threadIdx.x / DELTA_LANES;
}

// delta: [rows], rows over all heads; or [heads, rows / heads], for packed rows of `heads` heads each.
__device__ __forceinline__ void delta_of_rows(const Element* o, const Element* dout, float* delta, long long rows,
                                              int heads = 1) {
    const long long row = delta_row();
    const float sum = delta_of_row(o, dout, row, row < rows);
    if (row < rows && threadIdx.x % DELTA_LANES == 0) {
        delta[row % heads * (rows / heads) + row / heads] = sum;
    }
}
