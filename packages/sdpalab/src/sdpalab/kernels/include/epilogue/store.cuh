// Stores mma accumulators as rows in global memory.
#pragma once

#include "ptx/offsets.cuh"
#include "softmax/online.cuh"
#include "tile/swizzle.cuh"

// Stores rows of a warp's tile from shared memory: those of one pass of the warp and of all later passes, counted over
// all panels of 16 rows.
//
// destination(row, panel): of this lane's chunk. chunk_smem: source of this lane in the first pass.
template <int COLS, int PASS = 0, class Destination>
__device__ __forceinline__ void store_passes(const Destination& destination, int rows_left, unsigned chunk_smem,
                                             int lane) {
    constexpr int CHUNKS = PANEL<COLS> / CHUNK_ELEMENTS;
    constexpr int PASSES = CHUNKS / 2;
    constexpr int panel = PASS / PASSES;
    constexpr int pass_row = PASS % PASSES * (32 / CHUNKS);
    const unsigned pass_smem = chunk_smem ^ (swizzle_phase<PANEL<COLS>>(pass_row) * CHUNK_BYTES);
    const uint4 chunk = ptx::ld_shared_v4_u32_at<(panel * 16 + pass_row) * CHUNKS * CHUNK_BYTES>(pass_smem);
    const int row = pass_row + lane / CHUNKS;
    if (row < rows_left) {
        *destination(pass_row, panel) = chunk;
    }
    if constexpr (PASS + 1 < COLS / CHUNK_ELEMENTS / 2) {
        store_passes<COLS, PASS + 1>(destination, rows_left, chunk_smem, lane);
    }
}

// Stores a warp's tile [16, COLS]. An accumulator holds two columns of a row in each lane; shared memory, used by this
// warp alone, turns them into 16-byte chunks, and each store instruction writes whole rows of a panel.
//
// o_pairs[n][h]: columns 8n + 2 (lane % 4), + 1 of row lane / 4 + 8h, packed. destination(row, panel): of this lane's
// chunk of a row and a panel, for rows of a pass from its first on. warp_smem: a multiple of a row of a panel, and at
// least of 128 bytes.
template <int COLS, class Destination>
__device__ __forceinline__ void store_scattered_rows(const Destination& destination, int rows_left,
                                                     const unsigned (&o_pairs)[COLS / 8][2], unsigned warp_smem,
                                                     int lane) {
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
    store_passes<COLS>(destination, rows_left, chunk_smem, lane);
}

// The same for consecutive rows. o: the warp's first row, [rows_left, COLS].
template <int COLS>
__device__ __forceinline__ void store_warp_tile(Element* o, int rows_left, const unsigned (&o_pairs)[COLS / 8][2],
                                                unsigned warp_smem, int lane) {
    constexpr int CHUNKS = PANEL<COLS> / CHUNK_ELEMENTS;
    constexpr int ROW_CHUNKS = COLS / CHUNK_ELEMENTS;
    const int first = lane / CHUNKS * ROW_CHUNKS + lane % CHUNKS;
    uint4* const chunks = reinterpret_cast<uint4*>(o) + (CHUNKS == ROW_CHUNKS ? lane : first);
    store_scattered_rows<COLS>([&](int row, int panel) { return chunks + row * ROW_CHUNKS + panel * CHUNKS; },
                               rows_left, o_pairs, warp_smem, lane);
}

// Normalises 16 rows and packs them for store_scattered_rows(). Stores their log-sum-exp at lse + lse_offset(row)
// unless lse is null; rows_left: from the first row on. weight_unit: unit of the sums.
template <int COLS_8, class Offset>
__device__ __forceinline__ void normalise_rows(unsigned (&o_pairs)[COLS_8][2], const float (&o_frag)[COLS_8][4],
                                               const SoftmaxRow (&softmax)[2], float* lse, const Offset& lse_offset,
                                               int rows_left, float scale_log2, float weight_unit, int lane) {
    const float row_sum[2] = {quad_sum(softmax[0].sum), quad_sum(softmax[1].sum)};
    if (lse != nullptr && lane % 4 == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = lane / 4 + 8 * half;
            if (rows_left > row) {
                lse[lse_offset(row)] = log_sum_exp(softmax[half].max, row_sum[half] * weight_unit, scale_log2);
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
