// Operands of wgmma and tcgen05 in shared memory: panels of 64 columns of 16-bit elements in the layout of TMA's
// 128-byte swizzle, and the steps of a descriptor, whose unit is 16 bytes.
#pragma once

#include "tile/dtype.cuh"

constexpr int PANEL_COLUMNS = 64;
constexpr int PANEL_ROW_BYTES = PANEL_COLUMNS * static_cast<int>(sizeof(Element));
constexpr int SWIZZLE_BYTES = 8 * PANEL_ROW_BYTES;  // length of the pattern of the swizzle

// Descriptor increment for the operand's part from column 16 * step on, along k; all rows.
template <int ROWS>
__device__ __forceinline__ constexpr unsigned long long column_step(int step) {
    constexpr int PER_PANEL = PANEL_COLUMNS / 16;
    return (step / PER_PANEL * ROWS * PANEL_ROW_BYTES + step % PER_PANEL * 32) / 16;
}

// The same from row 16 * step on, where the rows run along n; all columns.
__device__ __forceinline__ constexpr unsigned long long row_step(int step) {
    return step * 16 * PANEL_ROW_BYTES / 16;
}
