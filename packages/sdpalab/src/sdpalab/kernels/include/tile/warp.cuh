// Fragments of a warp's 16 rows for mma.sync: its left operand, and a product with rows that are the right one.
//
// A lane holds parts of rows lane / 4 and lane / 4 + 8; element i of an accumulator frag[n] is column 8n + 2 (lane % 4)
// + i % 2 of row lane / 4 + 8 (i / 2). Tiles in shared memory have the layout of tile/swizzle.cuh, and an address is
// the lane's ldmatrix address.
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
