// Copies of tiles [ROWS, COLS] of 16-bit elements between global and shared memory, in panels of 64 or 32 columns, for
// any COLS that is a multiple of 32. Shared memory has the layout of tile/swizzle.cuh.
//
// The threads of a pass copy neighbouring rows of one panel. Passes and panels begin at multiples of 8 rows and of the
// chunks that XOR permutes, so each is at a constant distance from the first in both memories.
#pragma once

#include "ptx/offsets.cuh"
#include "tile/swizzle96.cuh"

template <int COLS>
constexpr int PANEL_CHUNKS = COLS % 64 == 0 ? 8 : 4;

template <int ROWS, int COLS, int NUM_THREADS>
struct PanelCopy {
    static constexpr int CHUNKS = PANEL_CHUNKS<COLS>;
    static constexpr int PANELS = COLS / CHUNK_ELEMENTS / CHUNKS;
    static constexpr int ROW_STEP = NUM_THREADS / CHUNKS;
    static constexpr int PASSES = ROWS > ROW_STEP ? ROWS / ROW_STEP : 1;
    static_assert(ROW_STEP % 8 == 0 && NUM_THREADS % CHUNKS == 0, "a pass keeps the phase of a row");
    static_assert(ROWS < ROW_STEP || ROWS % ROW_STEP == 0, "a whole number of passes covers the tile");

    // This thread's chunk of the first pass and panel.
    int row;
    int global_offset;  // in elements from the tile's first
    unsigned smem_offset;

    __device__ __forceinline__ explicit PanelCopy(int thread)
        : row(thread / CHUNKS),
          global_offset(thread / CHUNKS * COLS + thread % CHUNKS * CHUNK_ELEMENTS),
          smem_offset(swizzled_offset<COLS>(thread / CHUNKS, thread % CHUNKS)) {}

    // tile_smem: a multiple of 1,024 bytes. rows_left: valid rows from the tile's first; rows past them are not read and
    // are zeros in shared memory, because 0 * NaN is NaN. Threads past a tile's last row copy nothing.
    template <int STEP = 0>
    __device__ __forceinline__ void start(unsigned tile_smem, const Element* tile, int rows_left) const {
        constexpr int pass_row = STEP / PANELS * ROW_STEP;
        if (ROW_STEP > ROWS && row >= ROWS) {
            return;
        }
        constexpr int OFFSET = (pass_row * COLS + STEP % PANELS * CHUNKS * CHUNK_ELEMENTS) * int(sizeof(Element));
        ptx::cp_async_cg_16_at<OFFSET, OFFSET>(tile_smem + smem_offset, tile + global_offset,
                                               pass_row + row < rows_left ? CHUNK_BYTES : 0);
        if constexpr (STEP + 1 < PASSES * PANELS) {
            start<STEP + 1>(tile_smem, tile, rows_left);
        }
    }

    // The same for rows that are `pitch` elements apart.
    template <int STEP = 0>
    __device__ __forceinline__ void start_pitched(unsigned tile_smem, const Element* tile, int rows_left,
                                                  int pitch) const {
        constexpr int pass_row = STEP / PANELS * ROW_STEP;
        constexpr int column = STEP % PANELS * CHUNKS * CHUNK_ELEMENTS;
        if (ROW_STEP > ROWS && row >= ROWS) {
            return;
        }
        const Element* const chunk = tile + static_cast<long long>(pass_row + row) * pitch + (global_offset - row * COLS);
        ptx::cp_async_cg_16_at<(pass_row * COLS + column) * int(sizeof(Element)), column * int(sizeof(Element))>(
            tile_smem + smem_offset, chunk, pass_row + row < rows_left ? CHUNK_BYTES : 0);
        if constexpr (STEP + 1 < PASSES * PANELS) {
            start_pitched<STEP + 1>(tile_smem, tile, rows_left, pitch);
        }
    }
};

// Stores factor * acc, a warp's [16, COLS] in the layout of an mma accumulator, as rows of 16-byte chunks; rows from
// rows_left on are not written. warp_smem: [16, COLS] of this warp alone, a multiple of 1,024 bytes, which its lanes may
// still read when this returns.
template <int COLS>
__device__ __forceinline__ void store_scaled_rows(Element* rows, int rows_left, const float (&acc)[COLS / 8][4],
                                                  float factor, unsigned warp_smem, int lane) {
    constexpr int CHUNKS = PANEL_CHUNKS<COLS>;
    constexpr int ROW_STEP = 32 / CHUNKS;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half;
#pragma unroll
        for (int n = 0; n < COLS / 8; ++n) {
            ptx::st_shared_u32_at<0>(warp_smem + swizzled_offset<COLS>(row, n) + 4 * (lane % 4),
                                     pack_pair(factor * acc[n][2 * half], factor * acc[n][2 * half + 1]));
        }
    }
    __syncwarp();
    uint4* const chunks = reinterpret_cast<uint4*>(rows);
#pragma unroll
    for (int first_row = 0; first_row < 16; first_row += ROW_STEP) {
        const int row = first_row + lane / CHUNKS;
#pragma unroll
        for (int first = 0; first < COLS / CHUNK_ELEMENTS; first += CHUNKS) {
            const int chunk = first + lane % CHUNKS;
            const uint4 stored = ptx::ld_shared_v4_u32_at<0>(warp_smem + swizzled_offset<COLS>(row, chunk));
            if (row < rows_left) {
                chunks[row * (COLS / CHUNK_ELEMENTS) + chunk] = stored;
            }
        }
    }
}
