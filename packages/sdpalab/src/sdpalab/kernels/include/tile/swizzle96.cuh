// The layout of tile/swizzle.cuh for rows of 96 elements: 12 chunks, of which XOR permutes each group of four.
//
// A row begins 192 bytes after the previous one, so rows alternate between the halves of the 128 bytes that shared
// memory serves at once; two rows form a line, and four phases place the chunks of eight rows side by side without
// padding. The bits of a chunk within its group lie below those of a row's beginning, a multiple of 64 bytes.
#pragma once

#include "tile/swizzle.cuh"

constexpr int GROUP_OF_96 = 4;  // chunks that are permuted together
static_assert(96 / CHUNK_ELEMENTS % GROUP_OF_96 == 0, "a row is a whole number of groups");

template <>
__device__ constexpr int swizzle_phase<96>(int row) {
    return row / 2 % GROUP_OF_96;
}

template <>
__device__ __forceinline__ unsigned block_address<96>(unsigned lane_smem, int row_block, int col_block) {
    const int chunk = 2 * col_block;
    return (lane_smem ^ (chunk % GROUP_OF_96 * CHUNK_BYTES)) + chunk / GROUP_OF_96 * GROUP_OF_96 * CHUNK_BYTES +
           row_block * 16 * 96 * static_cast<int>(sizeof(Element));
}
