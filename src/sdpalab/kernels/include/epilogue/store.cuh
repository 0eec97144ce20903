// From mma accumulators to rows in global memory.
#pragma once

#include "tile/swizzle.cuh"

// Stores a warp's tile [16, COLS]. An accumulator holds two columns of a row in each lane; through shared memory,
// which only this warp uses here, they become 16-byte chunks, and each store instruction writes whole rows.
//
// o_pairs[n][h]: columns 8n + 2 (lane % 4), + 1 of row lane / 4 + 8h, packed. o: the warp's first row, [rows_left,
// COLS].
template <int COLS>
__device__ __forceinline__ void store_warp_tile(Element* o, int rows_left, const unsigned (&o_pairs)[COLS / 8][2],
                                                unsigned char* warp_smem, int lane) {
    constexpr int CHUNKS = COLS / CHUNK_ELEMENTS;
    const unsigned lane_offset = swizzled_offset<COLS>(lane / 4, 0) + 4 * (lane % 4);
#pragma unroll
    for (int n = 0; n < COLS / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned offset = (lane_offset ^ (n * CHUNK_BYTES)) + half * 8 * CHUNKS * CHUNK_BYTES;
            *reinterpret_cast<unsigned*>(warp_smem + offset) = o_pairs[n][half];
        }
    }
    __syncwarp();
#pragma unroll
    for (int pass = 0; pass < CHUNKS / 2; ++pass) {
        const int i = pass * 32 + lane;
        const int row = i / CHUNKS;
        const uint4 chunk = *reinterpret_cast<const uint4*>(warp_smem + swizzled_offset<COLS>(row, i % CHUNKS));
        if (row < rows_left) {
            *reinterpret_cast<uint4*>(o + i * CHUNK_ELEMENTS) = chunk;
        }
    }
}
