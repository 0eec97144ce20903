// Stores mma accumulators as rows in global memory.
#pragma once

#include "ptx/offsets.cuh"
#include "tile/swizzle.cuh"

// Stores rows of a warp's tile from shared memory: those of one pass of the warp and of all later passes.
//
// chunks: destination of this lane in the first pass. chunk_smem: source of this lane in that pass.
template <int COLS, int PASS = 0>
__device__ __forceinline__ void store_passes(uint4* chunks, int rows_left, unsigned chunk_smem, int lane) {
    constexpr int CHUNKS = COLS / CHUNK_ELEMENTS;
    constexpr int pass_row = PASS * (32 / CHUNKS);
    const unsigned pass_smem = chunk_smem ^ (swizzle_phase<COLS>(pass_row) * CHUNK_BYTES);
    const uint4 chunk = ptx::ld_shared_v4_u32_at<pass_row * CHUNKS * CHUNK_BYTES>(pass_smem);
    const int row = pass_row + lane / CHUNKS;
    if (row < rows_left) {
        chunks[PASS * 32] = chunk;
    }
    if constexpr (PASS + 1 < CHUNKS / 2) {
        store_passes<COLS, PASS + 1>(chunks, rows_left, chunk_smem, lane);
    }
}

// Stores a warp's tile [16, COLS]. An accumulator holds two columns of a row in each lane; shared memory, used by this
// warp alone, turns them into 16-byte chunks, and each store instruction writes whole rows.
//
// o_pairs[n][h]: columns 8n + 2 (lane % 4), + 1 of row lane / 4 + 8h, packed. o: the warp's first row, [rows_left,
// COLS]. warp_smem: a multiple of 128 bytes.
template <int COLS>
__device__ __forceinline__ void store_warp_tile(Element* o, int rows_left, const unsigned (&o_pairs)[COLS / 8][2],
                                                unsigned warp_smem, int lane) {
    constexpr int CHUNKS = COLS / CHUNK_ELEMENTS;
    const unsigned pair_smem = warp_smem + swizzled_offset<COLS>(lane / 4, 0) + 4 * (lane % 4);
#pragma unroll
    for (int n = 0; n < COLS / 8; ++n) {
        const unsigned column_smem = pair_smem ^ (n * CHUNK_BYTES);
        ptx::st_shared_u32_at<0>(column_smem, o_pairs[n][0]);
        ptx::st_shared_u32_at<8 * CHUNKS * CHUNK_BYTES>(column_smem, o_pairs[n][1]);
    }
    __syncwarp();
    const unsigned chunk_smem = warp_smem + swizzled_offset<COLS>(lane / CHUNKS, lane % CHUNKS);
    store_passes<COLS>(reinterpret_cast<uint4*>(o) + lane, rows_left, chunk_smem, lane);
}
