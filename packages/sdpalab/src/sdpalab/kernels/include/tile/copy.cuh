// Copy of a tile [ROWS, COLS] of 16-bit elements from global to shared memory by cp.async, in the layout of
// tile/swizzle.cuh.
#pragma once

#include "ptx/offsets.cuh"
#include "tile/swizzle.cuh"

// One thread's share. Neighbouring threads copy neighbouring chunks; each pass of NUM_THREADS threads covers ROW_STEP
// whole rows. The bits of a pass's first row and of a thread's row in it are disjoint, so the phase of their sum is the
// XOR of their phases: 0 from 8 rows on.
//
// In global memory a thread's chunks are addressed from that of its second pass, if there is one: the machine
// instruction has offsets of -2,048 to 2,047, which reach the first pass of 128 threads, but not the third.
template <int ROWS, int COLS, int NUM_THREADS>
struct TileCopy {
    static constexpr int CHUNKS = PANEL<COLS> / CHUNK_ELEMENTS;  // of a panel's row
    static constexpr int ROW_CHUNKS = COLS / CHUNK_ELEMENTS;
    static constexpr int PANELS = COLS / PANEL<COLS>;
    static constexpr int ROW_STEP = NUM_THREADS / CHUNKS;
    static constexpr int PASSES = ROWS / ROW_STEP;
    static constexpr int CHUNKS_BEFORE = PASSES > 1 ? ROW_STEP * ROW_CHUNKS : 0;  // the addressed one
    static_assert((ROW_STEP & (ROW_STEP - 1)) == 0, "passes begin at multiples of a power of two");
    static_assert(PASSES >= 1 && ROWS % ROW_STEP == 0, "a whole number of passes covers the tile");

    // This thread's chunk of the first pass in the tile; in global memory, its addressed chunk.
    int row;
    int global_chunk;   // relative to the tile's first
    int global_offset;  // the same in elements
    unsigned smem_offset;
    int column;  // the chunk's first, in its panel

    __device__ __forceinline__ explicit TileCopy(int thread)
        : row(thread / CHUNKS),
          global_chunk((PANELS == 1 ? thread : thread / CHUNKS * ROW_CHUNKS + thread % CHUNKS) + CHUNKS_BEFORE),
          global_offset(global_chunk * CHUNK_ELEMENTS),
          smem_offset(swizzled_offset<PANEL<COLS>>(thread / CHUNKS, thread % CHUNKS)),
          column(thread % CHUNKS * CHUNK_ELEMENTS) {}

    // global_offset in bytes from the beginning of a tensor, for a tile that begins at tensor_row. 32 bits number the
    // tensor's chunks.
    __device__ __forceinline__ unsigned long long bytes_from(unsigned tensor_row) const {
        return static_cast<unsigned long long>(tensor_row * ROW_CHUNKS + global_chunk) * CHUNK_BYTES;
    }

    // dst_smem, src: those chunks; the tile's base is a multiple of 128 bytes. rows_left: rows of the tensor from `row`
    // on; rows past the end are not read and are zeros in shared memory. V needs that: its rows meet weights of 0, and
    // 0 * NaN is NaN. Begins with pass PASS, counted over all panels.
    template <int PASS = 0>
    static __device__ __forceinline__ void start(unsigned dst_smem, const void* src, int rows_left) {
        constexpr int pass_row = PASS % PASSES * ROW_STEP;
        constexpr int panel = PASS / PASSES;
        constexpr int DST_OFFSET = (panel * ROWS + pass_row) * CHUNKS * CHUNK_BYTES;
        constexpr int SRC_OFFSET = (pass_row * ROW_CHUNKS + panel * CHUNKS - CHUNKS_BEFORE) * CHUNK_BYTES;
        const unsigned pass_smem = dst_smem ^ (swizzle_phase<PANEL<COLS>>(pass_row) * CHUNK_BYTES);
        ptx::cp_async_cg_16_at<DST_OFFSET, SRC_OFFSET>(pass_smem, src, pass_row < rows_left ? CHUNK_BYTES : 0);
        if constexpr (PASS + 1 < PANELS * PASSES) {
            start<PASS + 1>(dst_smem, src, rows_left);
        }
    }

    // The same for rows anywhere in memory. address(row): first element of a row of the tile; that of a row past the
    // end is not read. tile_smem: the tile's base.
    template <int PASS = 0, class Address>
    __device__ __forceinline__ void start_rows(unsigned tile_smem, int rows_left, const Address& address) const {
        constexpr int pass_row = PASS * ROW_STEP;
        const bool valid = pass_row < rows_left;
        const Element* const src = address(row + pass_row) + column;
        const unsigned pass_smem = (tile_smem + smem_offset) ^ (swizzle_phase<PANEL<COLS>>(pass_row) * CHUNK_BYTES);
        start_panels<pass_row>(pass_smem, src, valid);
        if constexpr (PASS + 1 < PASSES) {
            start_rows<PASS + 1>(tile_smem, rows_left, address);
        }
    }

private:
    template <int PASS_ROW, int INDEX = 0>
    static __device__ __forceinline__ void start_panels(unsigned pass_smem, const Element* src, bool valid) {
        constexpr int DST_OFFSET = (INDEX * ROWS + PASS_ROW) * CHUNKS * CHUNK_BYTES;
        ptx::cp_async_cg_16_at<DST_OFFSET, INDEX * CHUNKS * CHUNK_BYTES>(pass_smem, src, valid ? CHUNK_BYTES : 0);
        if constexpr (INDEX + 1 < PANELS) {
            start_panels<PASS_ROW, INDEX + 1>(pass_smem, src, valid);
        }
    }
};
