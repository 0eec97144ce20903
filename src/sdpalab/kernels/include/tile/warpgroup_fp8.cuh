// A tile of attention by one warpgroup in e4m3: 64 rows of Q, both products on wgmma, the weights in registers.
//
// Beside tile/warpgroup.cuh, whose fragments these are. The weights of two neighbouring blocks of eight keys, packed as
// they are, fill a left operand in the order RowOrder::mma of tile/quantise.cuh: so V^T has its keys, and no weight
// moves.
#pragma once

#include "softmax/fp8.cuh"
#include "tile/warpgroup.cuh"
#include "ptx/wgmma_fp8.cuh"

// Issues S[64, keys] = Q K^T, raw, as a group of its own. q, k: descriptors of tiles [64, HEAD_DIM], [keys, HEAD_DIM].
template <int SCORES>
__device__ __forceinline__ void issue_raw_scores(float (&s_frag)[SCORES], unsigned long long q, unsigned long long k) {
    ptx::wgmma_mma_async_e4m3_ss<false>(s_frag, q, k);
#pragma unroll
    for (int d = 1; d < HEAD_DIM / 32; ++d) {
        ptx::wgmma_mma_async_e4m3_ss<true>(s_frag, q + byte_column_step(d), k + byte_column_step(d));
    }
    ptx::wgmma_commit_group();
}

// Issues a tile's own product[64, HEAD_DIM] = P V, raw, as a group of its own. v: descriptor of V^T [HEAD_DIM, keys].
template <int QUADS>
__device__ __forceinline__ void issue_tile_product(float (&product)[HEAD_DIM / 2], const unsigned (&p_frag)[QUADS],
                                                   unsigned long long v) {
    ptx::wgmma_mma_async_e4m3_rs<false>(product, p_frag, v);
#pragma unroll
    for (int n = 1; n < QUADS / 4; ++n) {
        ptx::wgmma_mma_async_e4m3_rs<true>(product, p_frag + 4 * n, v + byte_column_step(n));
    }
    ptx::wgmma_commit_group();
}

// Turns a tile's raw scores into weights, in place, and takes them into the softmax. Returns the factors that rescale
// what was accumulated of either row. keys_left: of either row, from this lane's first column of the tile.
template <int SCORES>
__device__ __forceinline__ float2 weigh_raw(float (&s_frag)[SCORES], SoftmaxRow (&softmax)[2], const ScoreScale& scale,
                                            const TileScale& tile, bool masked, const int (&keys_left)[2]) {
    const float2 raw_max = mask_scores(s_frag, scale.sign, masked, keys_left);
    const TileRow rows[2] = {TileRow(softmax[0], fmaxf(quad_max(raw_max.x), LOWEST_FLOAT), tile, scale.log2),
                             TileRow(softmax[1], fmaxf(quad_max(raw_max.y), LOWEST_FLOAT), tile, scale.log2)};
#pragma unroll
    for (int i = 0; i < SCORES; i += 2) {
        const int row = i / 2 % 2;
        s_frag[i] = rows[row].weight(s_frag[i], tile);
        s_frag[i + 1] = rows[row].weight(s_frag[i + 1], tile);
        softmax[row].sum += s_frag[i] + s_frag[i + 1];
    }
    return make_float2(rows[0].rescale, rows[1].rescale);
}

// The weights as left operands: of each 16 keys, the four of row lane / 4 and then those of row lane / 4 + 8.
template <int QUADS>
__device__ __forceinline__ void pack_raw_weights(unsigned (&p_frag)[QUADS], const float (&s_frag)[4 * QUADS]) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const float* s = s_frag + i / 2 * 8 + i % 2 * 2;
        p_frag[i] = pack_e4m3(s[0], s[1], s[4], s[5]);
    }
}

// O = (O + unit * product) * rescale: a tile's product joins the others in float32, in units that all share.
__device__ __forceinline__ void accumulate_tile(float (&o_frag)[HEAD_DIM / 2], const float (&product)[HEAD_DIM / 2],
                                                float unit, float2 rescale) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) {
        const float factor = i / 2 % 2 ? rescale.y : rescale.x;
        o_frag[i] = fmaf(product[i], unit * factor, o_frag[i] * factor);
    }
}
