// A tile of 16-bit elements in shared memory, [rows, COLS], written by cp.async and read by ldmatrix.
//
// Swizzle: shared memory serves 128 bytes, eight 16-byte chunks, in one wavefront. ldmatrix reads one chunk of eight
// consecutive rows, so those must differ in their place within 128 bytes. XOR with the row's number achieves that
// without padding. The pattern repeats every 8 rows and stays within a row: an address moves by 8 rows with an
// immediate offset, and to another chunk with one XOR.
//
// XOR permutes a power of two of chunks. A tile of other widths (96, 192) is a sequence of panels, [COLS / PANEL][rows,
// PANEL], each with this layout; every other width is one panel.
#pragma once

#include "tile/dtype.cuh"

constexpr int CHUNK_BYTES = 16;
constexpr int CHUNK_ELEMENTS = CHUNK_BYTES / static_cast<int>(sizeof(Element));

// Columns of a panel: the largest power of two that divides COLS.
template <int COLS>
constexpr int PANEL = COLS & -COLS;

// Value that is XORed with the chunk numbers of a row.
template <int COLS>
__device__ constexpr int swizzle_phase(int row) {
    constexpr int CHUNKS = COLS / CHUNK_ELEMENTS;
    constexpr int ROWS_PER_LINE = CHUNKS < 8 ? 8 / CHUNKS : 1;
    constexpr int PHASES = CHUNKS < 8 ? CHUNKS : 8;
    static_assert(COLS % CHUNK_ELEMENTS == 0 && (CHUNKS & (CHUNKS - 1)) == 0, "XOR permutes a power of two of chunks");
    return row / ROWS_PER_LINE % PHASES;
}

// Byte offset of a 16-byte chunk of a row.
template <int COLS>
__device__ __forceinline__ unsigned swizzled_offset(int row, int chunk) {
    constexpr int CHUNKS = COLS / CHUNK_ELEMENTS;
    const int phase = swizzle_phase<COLS>(row);
    return (row * CHUNKS + (chunk ^ phase)) * CHUNK_BYTES;
}

// This lane's address for ldmatrix.x4 of the 16x16 block at row 0, column 0. Matrices in the order (rows 0-7, columns
// 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15): the A operand; transposed, two B operands whose k runs along the rows
// (V).
template <int COLS>
__device__ __forceinline__ unsigned row_block_offset(int lane) {
    return swizzled_offset<COLS>(lane % 16, lane / 16);
}

// The same in the order (rows 0-7, columns 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15): two B operands whose k runs
// along the columns (K).
template <int COLS>
__device__ __forceinline__ unsigned col_block_offset(int lane) {
    return swizzled_offset<COLS>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// A lane's address, moved by blocks of 16 rows and 16 columns. The tile's base must be aligned to its row.
template <int COLS>
__device__ __forceinline__ unsigned block_address(unsigned lane_smem, int row_block, int col_block) {
    constexpr int ROW_BLOCK_BYTES = 16 * COLS * static_cast<int>(sizeof(Element));
    return (lane_smem ^ (col_block * 2 * CHUNK_BYTES)) + row_block * ROW_BLOCK_BYTES;
}

// A lane's address in the first panel of a tile of ROWS rows, moved by blocks of 16 columns.
template <int COLS, int ROWS>
__device__ __forceinline__ unsigned column_address(unsigned lane_smem, int col_block) {
    constexpr int BLOCKS = PANEL<COLS> / 16;
    constexpr int PANEL_BYTES = ROWS * PANEL<COLS> * static_cast<int>(sizeof(Element));
    return block_address<PANEL<COLS>>(lane_smem, 0, col_block % BLOCKS) + col_block / BLOCKS * PANEL_BYTES;
}
