// Stores a warpgroup's accumulators as rows in global memory by TMA.
#pragma once

#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"
#include "schedule/head.cuh"
#include "softmax/online.cuh"
#include "tile/swizzle.cuh"

// Stores a warp's 16 rows, from row `row` of the head on: the output divided by the sums of whole rows, which each lane
// has, and the log-sum-exp unless lse is null.
//
// o: map of [heads, panels, seq_q, 64] with boxes [1, panels, 16, 64]. weight_unit: unit of the sums. o_smem: buffer of
// the rows, no longer read by any product of the warpgroup.
//
// With HEADS heads in a tile of queries (Work), q_head and row count as there, and the map is that of [heads / HEADS,
// panels, seq_q, HEADS, 64] with boxes [1, panels, 16 / HEADS, HEADS, 64].
template <int HEADS>
__device__ __forceinline__ void store_warp_rows(const TensorMap& o, const float (&o_frag)[HEAD_DIM / 2],
                                                const SoftmaxRow (&softmax)[2], float* lse, float scale_log2,
                                                float weight_unit, unsigned o_smem, int q_head, int row, int seq_q,
                                                int lane) {
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float row_sum = softmax[half].sum;
        factors[half] = softmax_normaliser(row_sum);
        const int lse_row = row + lane / 4 + 8 * half;
        const int query = lse_row / HEADS;
        if (lse != nullptr && lane % 4 == 0 && query < seq_q) {
            lse_at(lse, q_head * HEADS + lse_row % HEADS, seq_q)[query] =
                log_sum_exp(softmax[half].max, row_sum * weight_unit, scale_log2);
        }
    }
    const unsigned lane_smem = o_smem + row_block_offset<PANEL_COLUMNS>(lane);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        unsigned pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = 8 * d + 2 * i;
            pairs[i] = pack_pair(o_frag[at] * factors[i % 2], o_frag[at + 1] * factors[i % 2]);
        }
        constexpr int BLOCKS = PANEL_COLUMNS / 16;
        ptx::stmatrix_x4(block_address<PANEL_COLUMNS>(lane_smem, d / BLOCKS, d % BLOCKS), pairs);
    }
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
    if (lane == 0) {
        if constexpr (HEADS == 1) {
            ptx::cp_async_bulk_tensor_4d_store(o, 0, row, 0, q_head, o_smem);
        } else {
            ptx::cp_async_bulk_tensor_5d_store(o, 0, 0, row / HEADS, 0, q_head, o_smem);
        }
        ptx::cp_async_bulk_commit_group();
    }
}

// Waits, in the lane that issues a warp's TMA stores, until TMA has read all rows issued so far.
__device__ __forceinline__ void wait_stored_rows_read(int lane) {
    if (lane == 0) {
        ptx::cp_async_bulk_wait_group_read<0>();
    }
}
