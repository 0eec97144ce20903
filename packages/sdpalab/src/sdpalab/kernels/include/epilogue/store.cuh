// Stores mma accumulators as rows in global memory.
#pragma once

#include "ptx/offsets.cuh"
#include "softmax/online.cuh"
#include "tile/swizzle.cuh"

// Stores rows of a warp's tile from shared memory: those of one pass of the warp and of all later passes, counted over
// all panels of 16 rows.
//
// chunks: destination of this lane in the first pass. chunk_smem: source of this lane in that pass.
template <int COLS, int PASS = 0>
__device__ __forceinline__ void store_passes(uint4* chunks, int rows_left, unsigned chunk_smem, int lane) {
    constexpr int CHUNKS = PANEL<COLS> / CHUNK_ELEMENTS;
    constexpr int PASSES = CHUNKS / 2;
    constexpr int panel = PASS / PASSES;
    constexpr int pass_row = PASS % PASSES * (32 / CHUNKS);
    const unsigned pass_smem = chunk_smem ^ (swizzle_phase<PANEL<COLS>>(pass_row) * CHUNK_BYTES);
    const uint4 chunk = ptx::ld_shared_v4_u32_at<(panel * 16 + pass_row) * CHUNKS * CHUNK_BYTES>(pass_smem);
    const int row = pass_row + lane / CHUNKS;
    if (row < rows_left) {
        chunks[pass_row * (COLS / CHUNK_ELEMENTS) + panel * CHUNKS] = chunk;
    }
    if constexpr (PASS + 1 < COLS / CHUNK_ELEMENTS / 2) {
        store_passes<COLS, PASS + 1>(chunks, rows_left, chunk_smem, lane);
    }
}

// Stores a warp's tile [16, COLS]. An accumulator holds two columns of a row in each lane; shared memory, used by this
// warp alone, turns them into 16-byte chunks, and each store instruction writes whole rows of a panel.
//
// o_pairs[n][h]: columns 8n + 2 (lane % 4), + 1 of row lane / 4 + 8h, packed. o: the warp's first row, [rows_left,
// COLS]. warp_smem: a multiple of a row of a panel, and at least of 128 bytes.
template <int COLS>
__device__ __forceinline__ void store_warp_tile(Element* o, int rows_left, const unsigned (&o_pairs)[COLS / 8][2],
                                                unsigned warp_smem, int lane) {
    constexpr int CHUNKS = PANEL<COLS> / CHUNK_ELEMENTS;
    constexpr int PANEL_BYTES = 16 * CHUNKS * CHUNK_BYTES;
    const unsigned pair_smem = warp_smem + swizzled_offset<PANEL<COLS>>(lane / 4, 0) + 4 * (lane % 4);
#pragma unroll
    for (int n = 0; n < COLS / 8; ++n) {
        const unsigned column_smem = (pair_smem ^ (n % CHUNKS * CHUNK_BYTES)) + n / CHUNKS * PANEL_BYTES;
        ptx::st_shared_u32_at<0>(column_smem, o_pairs[n][0]);
        ptx::st_shared_u32_at<8 * CHUNKS * CHUNK_BYTES>(column_smem, o_pairs[n][1]);
    }
    __syncwarp();
    const unsigned chunk_smem = warp_smem + swizzled_offset<PANEL<COLS>>(lane / CHUNKS, lane % CHUNKS);
    const int first = lane / CHUNKS * (COLS / CHUNK_ELEMENTS) + lane % CHUNKS;
    store_passes<COLS>(reinterpret_cast<uint4*>(o) + (CHUNKS == COLS / CHUNK_ELEMENTS ? lane : first), rows_left,
                       chunk_smem, lane);
}

// Normalises 16 rows and packs them for store_warp_tile(). Stores their log-sum-exp at lse, from first_row on, unless
// it is null; rows_left: from that row on. weight_unit: unit of the sums.
template <int COLS_8>
__device__ __forceinline__ void normalise_rows(unsigned (&o_pairs)[COLS_8][2], const float (&o_frag)[COLS_8][4],
                                               const SoftmaxRow (&softmax)[2], float* lse, unsigned long long first_row,
                                               int rows_left, float scale_log2, float weight_unit, int lane) {
    const float row_sum[2] = {quad_sum(softmax[0].sum), quad_sum(softmax[1].sum)};
    if (lse != nullptr && lane % 4 == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = lane / 4 + 8 * half;
            if (rows_left > row) {
                lse[first_row + row] = log_sum_exp(softmax[half].max, row_sum[half] * weight_unit, scale_log2);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float factor = softmax_normaliser(row_sum[half]);
#pragma unroll
        for (int d = 0; d < COLS_8; ++d) {
            o_pairs[d][half] = pack_pair(o_frag[d][2 * half] * factor, o_frag[d][2 * half + 1] * factor);
        }
    }
}
