// wgmma with e4m3 elements and FP32 accumulators, beside ptx/wgmma.cuh, whose sections and notes hold here too.
//
// Both operands in shared memory run along k: wgmma does not transpose 8-bit elements. They are tiles [rows, 64 or 128]
// of bytes in TMA's layout, with a swizzle as wide as a row. Longer rows are split into consecutive panels of 128
// columns.
//
// NOTES: the manual calls the accumulators FP32. Zhang et al. (SageAttention2, 2024) find that the e4m3 units of Ada
// and Hopper keep 13 bits of fraction of a sum and truncate the rest. Long sums are better split into short ones.
#pragma once

#include "ptx/wgmma.cuh"

namespace ptx {

// d[64, N] = a[64, 32] * b[N, 32]^T, plus d if it ACCUMULATES; both operands are in shared memory.
#define WGMMA_E4M3_SS(N, ACCUMULATORS, A, B, ADDS)                                                                  \
    template <bool ACCUMULATES>                                                                                     \
    __device__ __forceinline__ void wgmma_mma_async_e4m3_ss(float (&d)[ACCUMULATORS], unsigned long long a,         \
                                                            unsigned long long b) {                                 \
        asm volatile("{ .reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                         \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" WGMMA_NAMES_##ACCUMULATORS "}, " A \
                     ", " B ", adds, 1, 1; }"                                                                       \
                     : WGMMA_D##ACCUMULATORS                                                                        \
                     : "l"(a), "l"(b), "n"(static_cast<int>(ACCUMULATES))                                           \
                     : "memory");                                                                                   \
    }
WGMMA_E4M3_SS(64, 32, "%32", "%33", "%34")
WGMMA_E4M3_SS(128, 64, "%64", "%65", "%66")

// The same with a in registers, four elements each: rows lane / 4 and lane / 4 + 8 at k = 4 (lane % 4), then both at 16
// more, as for mma_m16n8k32_e4m3.
#define WGMMA_E4M3_RS(N, ACCUMULATORS, A, B, ADDS)                                                                     \
    template <bool ACCUMULATES>                                                                                        \
    __device__ __forceinline__ void wgmma_mma_async_e4m3_rs(float (&d)[ACCUMULATORS], const unsigned* a,               \
                                                            unsigned long long b) {                                    \
        asm volatile("{ .reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" WGMMA_NAMES_##ACCUMULATORS "}, {" A  \
                     "}, " B ", adds, 1, 1; }"                                                                         \
                     : WGMMA_D##ACCUMULATORS                                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(ACCUMULATES))          \
                     : "memory");                                                                                      \
    }
WGMMA_E4M3_RS(64, 32, "%32, %33, %34, %35", "%36", "%37")
WGMMA_E4M3_RS(128, 64, "%64, %65, %66, %67", "%68", "%69")

#undef WGMMA_E4M3_SS
#undef WGMMA_E4M3_RS

}  // namespace ptx

constexpr int BYTE_PANEL_COLUMNS = 128;

// "Matrix Descriptor Format" of a swizzled tile [rows, COLUMNS] of bytes at smem, or of its first panel, aligned to
// eight rows. The leading offset is not used: a row is no longer than the swizzle is wide.
template <int COLUMNS>
__device__ __forceinline__ unsigned long long byte_tile_descriptor(unsigned smem) {
    static_assert(COLUMNS == 64 || COLUMNS == 128, "a row is as long as a swizzle is wide");
    constexpr unsigned long long MODE = COLUMNS == 128 ? 1 : 2;
    constexpr unsigned long long LAYOUT = MODE << 62 | (8ull * COLUMNS / 16) << 32 | 1ull << 16;
    return LAYOUT | (smem & 0x3ffff) >> 4;
}

// Descriptor increment for the part of a tile of ROWS rows from column 32 * step on; all rows.
template <int ROWS>
__device__ __forceinline__ constexpr unsigned long long byte_column_step(int step) {
    constexpr int PER_PANEL = BYTE_PANEL_COLUMNS / 32;
    return (step / PER_PANEL * ROWS * BYTE_PANEL_COLUMNS + step % PER_PANEL * 32) / 16;
}

// The same from row `row` on, a multiple of eight, in a tile of one panel of COLUMNS columns.
template <int COLUMNS>
__device__ __forceinline__ constexpr unsigned long long byte_row_step(int row) {
    return row * COLUMNS / 16;
}
