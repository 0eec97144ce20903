// A tile of attention by one warp: 16 rows of Q, with both products on mma.sync and the weights between them in
// registers, where the accumulator layout of S = Q K^T is the operand layout of O += P V.
//
// A lane holds parts of rows lane / 4 and lane / 4 + 8, each of which has a SoftmaxRow; element i of an
// accumulator frag[n] is column 8n + 2 (lane % 4) + i % 2 of row lane / 4 + 8 (i / 2). Tiles in shared memory have
// the layout of tile/swizzle.cuh, and an address is the lane's ldmatrix address. KEYS is the number of keys of a
// tile.
#pragma once

#include "ptx/offsets.cuh"
#include "softmax/online.cuh"
#include "tile/swizzle.cuh"

constexpr int WARP_M = 16;

// From a block of 16 rows to the next: an immediate offset of the address.
constexpr int ROW_BLOCK_BYTES = 16 * HEAD_DIM * static_cast<int>(sizeof(Element));

// q_smem: row_block_offset in the warp's rows of Q.
__device__ __forceinline__ void load_q(unsigned (&q_frag)[HEAD_DIM / 16][4], unsigned q_smem) {
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        ptx::ldmatrix_x4(q_frag[d], block_address<HEAD_DIM>(q_smem, 0, d));
    }
}

__device__ __forceinline__ void apply_sign(unsigned (&q_frag)[HEAD_DIM / 16][4], const ScoreScale& score_scale) {
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            q_frag[d][i] = score_scale.apply_sign(q_frag[d][i]);
        }
    }
}

// S[16, KEYS] += Q K^T of 16 columns, for the keys from 16 N on. q_frag: these columns of Q. k_smem: same, row 0.
template <int KEYS, int N = 0>
__device__ __forceinline__ void multiply_columns(float (&s_frag)[KEYS / 8][4], const unsigned (&q_frag)[4],
                                                 unsigned k_smem) {
    unsigned k_frag[4];
    ptx::ldmatrix_x4_at<N * ROW_BLOCK_BYTES>(k_frag, k_smem);
    mma_m16n8k16(s_frag[2 * N], q_frag, k_frag[0], k_frag[1]);
    mma_m16n8k16(s_frag[2 * N + 1], q_frag, k_frag[2], k_frag[3]);
    if constexpr (N + 1 < KEYS / 16) {
        multiply_columns<KEYS, N + 1>(s_frag, q_frag, k_smem);
    }
}

// S[16, KEYS] = Q K^T. k_smem: col_block_offset in the tile of K.
template <int KEYS>
__device__ __forceinline__ void multiply_scores(float (&s_frag)[KEYS / 8][4],
                                                const unsigned (&q_frag)[HEAD_DIM / 16][4], unsigned k_smem) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            s_frag[n][i] = 0.0f;
        }
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        multiply_columns<KEYS>(s_frag, q_frag[d], block_address<HEAD_DIM>(k_smem, 0, d));
    }
}

// keys_left: visible keys of either row, from this lane's first column on.
template <int KEYS>
__device__ __forceinline__ void mask_scores(float (&s_frag)[KEYS / 8][4], const int (&keys_left)[2]) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            s_frag[n][i] = 8 * n + i % 2 < keys_left[i / 2] ? s_frag[n][i] : NEGATIVE_INFINITY;
        }
    }
}

// The maximum of each row over the tile.
template <int KEYS>
__device__ __forceinline__ void row_maxima(float (&tile_max)[2], const float (&s_frag)[KEYS / 8][4]) {
    tile_max[0] = s_frag[0][0];
    tile_max[1] = s_frag[0][2];
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            tile_max[i / 2] = fmaxf(tile_max[i / 2], s_frag[n][i]);
        }
    }
    tile_max[0] = quad_max(tile_max[0]);
    tile_max[1] = quad_max(tile_max[1]);
}

// Updates the softmax with the tile's maximum, and rescales the accumulators.
template <int KEYS>
__device__ __forceinline__ void advance_softmax(SoftmaxRow (&softmax)[2], float (&o_frag)[HEAD_DIM / 8][4],
                                                const float (&s_frag)[KEYS / 8][4], float scale_log2) {
    float tile_max[2];
    row_maxima<KEYS>(tile_max, s_frag);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float rescale = softmax[half].advance(tile_max[half], scale_log2);
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; ++d) {
            o_frag[d][2 * half] *= rescale;
            o_frag[d][2 * half + 1] *= rescale;
        }
    }
}

// O[16, HEAD_DIM] += P V, 16 keys at a time, including the weights and their sums. PowerOnFma computes the last ON_FMA
// of a lane's four pairs of weights. v_smem: row_block_offset in the tile of V. exponents: FusedExponents or
// ExactExponents. Starts at key 16 N.
template <int KEYS, int ON_FMA = 0, class Exponents, int N = 0>
__device__ __forceinline__ void add_output(float (&o_frag)[HEAD_DIM / 8][4], SoftmaxRow (&softmax)[2],
                                           const float (&s_frag)[KEYS / 8][4], unsigned v_smem,
                                           const Exponents& exponents) {
    unsigned p_frag[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int half = i % 2;
        const float(&s)[4] = s_frag[2 * N + i / 2];
        const bool on_fma = i >= 4 - ON_FMA;
        const float p0 = exponents.weight(s[2 * half], half, on_fma);
        const float p1 = exponents.weight(s[2 * half + 1], half, on_fma);
        softmax[half].sum += p0 + p1;
        p_frag[i] = pack_pair(p0, p1);
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        unsigned v_frag[4];
        ptx::ldmatrix_x4_trans_at<N * ROW_BLOCK_BYTES>(v_frag, block_address<HEAD_DIM>(v_smem, 0, d));
        mma_m16n8k16(o_frag[2 * d], p_frag, v_frag[0], v_frag[1]);
        mma_m16n8k16(o_frag[2 * d + 1], p_frag, v_frag[2], v_frag[3]);
    }
    if constexpr (N + 1 < KEYS / 16) {
        add_output<KEYS, ON_FMA, Exponents, N + 1>(o_frag, softmax, s_frag, v_smem, exponents);
    }
}

// Normalises the rows and packs them for store_warp_tile(). Stores their log-sum-exp at lse, from the warp's first_row
// on, unless it is null; rows_left: from that row on.
__device__ __forceinline__ void finish_rows(unsigned (&o_pairs)[HEAD_DIM / 8][2],
                                            const float (&o_frag)[HEAD_DIM / 8][4], const SoftmaxRow (&softmax)[2],
                                            float* lse, unsigned long long first_row, int rows_left, float scale_log2,
                                            int lane) {
    const float row_sum[2] = {quad_sum(softmax[0].sum), quad_sum(softmax[1].sum)};
    if (lse != nullptr && lane % 4 == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = lane / 4 + 8 * half;
            if (rows_left > row) {
                lse[first_row + row] = log_sum_exp(softmax[half].max, row_sum[half], scale_log2);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float factor = softmax_normaliser(row_sum[half]);
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; ++d) {
            o_pairs[d][half] = pack_pair(o_frag[d][2 * half] * factor, o_frag[d][2 * half + 1] * factor);
        }
    }
}
