// A tile of attention by one warpgroup: 64 rows of Q, with both products on wgmma and the weights between them in
// registers.
//
// A thread holds parts of rows lane / 4 and lane / 4 + 8 of its warp's 16. Fragments are as ptx/wgmma.cuh numbers them,
// so element i of an accumulator is in the row of softmax[i / 2 % 2], and packed in pairs it is the left operand of the
// next product. The number of keys of a tile is told by the fragments' sizes.
#pragma once

#include "softmax/online.cuh"
#include "ptx/wgmma.cuh"

constexpr int WARPGROUP_M = 64;

// Issues S[64, keys] = Q K^T as a group of its own. q, k: descriptors of tiles [64, HEAD_DIM] and [keys, HEAD_DIM].
template <int SCORES>
__device__ __forceinline__ void issue_scores(float (&s_frag)[SCORES], unsigned long long q, unsigned long long k) {
    constexpr int KEYS = 2 * SCORES;
    ptx::wgmma_mma_async_ss<false>(s_frag, q, k);
#pragma unroll
    for (int d = 1; d < HEAD_DIM / 16; ++d) {
        ptx::wgmma_mma_async_ss<true>(s_frag, q + column_step<WARPGROUP_M>(d), k + column_step<KEYS>(d));
    }
    ptx::wgmma_commit_group();
}

// Issues O[64, HEAD_DIM] += P V as a group of its own. v: descriptor of a tile [keys, HEAD_DIM].
template <int PAIRS>
__device__ __forceinline__ void issue_output(float (&o_frag)[HEAD_DIM / 2], const unsigned (&p_frag)[PAIRS],
                                             unsigned long long v) {
#pragma unroll
    for (int n = 0; n < PAIRS / 4; ++n) {
        ptx::wgmma_mma_async_rs(o_frag, p_frag + 4 * n, v + row_step(n));
    }
    ptx::wgmma_commit_group();
}

// Gives a tile's scores the sign of the scale and masks them, in place. Returns the largest that this lane has of
// either row. keys_left: of either row, from this lane's first column of the tile.
template <int SCORES>
__device__ __forceinline__ float2 mask_scores(float (&s_frag)[SCORES], float sign, bool masked,
                                              const int (&keys_left)[2]) {
    if (sign != 1.0f) {
#pragma unroll
        for (float& score : s_frag) {
            score *= sign;
        }
    }
    if (masked) {
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            s_frag[i] = 8 * (i / 4) + i % 2 < keys_left[i / 2 % 2] ? s_frag[i] : NEGATIVE_INFINITY;
        }
    }
    float tile_max[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
        tile_max[i / 2 % 2] = fmaxf(tile_max[i / 2 % 2], s_frag[i]);
    }
    return make_float2(tile_max[0], tile_max[1]);
}

// Turns a tile's scores into weights, in place, and takes them into the softmax. Returns the factors that rescale what
// was accumulated of either row. keys_left: as for mask_scores.
template <int SCORES>
__device__ __forceinline__ float2 weigh(float (&s_frag)[SCORES], SoftmaxRow (&softmax)[2], const ScoreScale& scale,
                                        bool masked, const int (&keys_left)[2]) {
    const float2 tile_max = mask_scores(s_frag, scale.sign, masked, keys_left);
    float2 rescale;
    rescale.x = softmax[0].advance(quad_max(tile_max.x), scale.log2);
    rescale.y = softmax[1].advance(quad_max(tile_max.y), scale.log2);
#pragma unroll
    for (int i = 0; i < SCORES; i += 2) {
        SoftmaxRow& row = softmax[i / 2 % 2];
        s_frag[i] = softmax_weight(s_frag[i], row.max, scale.log2);
        s_frag[i + 1] = softmax_weight(s_frag[i + 1], row.max, scale.log2);
        row.sum += s_frag[i] + s_frag[i + 1];  // in pairs: half as long a chain of additions
    }
    return rescale;
}

template <int PAIRS>
__device__ __forceinline__ void pack_weights(unsigned (&p_frag)[PAIRS], const float (&s_frag)[2 * PAIRS]) {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        p_frag[i] = pack_pair(s_frag[2 * i], s_frag[2 * i + 1]);
    }
}

__device__ __forceinline__ void rescale_output(float (&o_frag)[HEAD_DIM / 2], float2 rescale) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) {
        o_frag[i] *= i / 2 % 2 ? rescale.y : rescale.x;
    }
}
