// wgmma: products of a warpgroup (four warps) with 16-bit elements and FP32 accumulators. Sections are those of the PTX
// ISA manual, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
//
// Operands in shared memory are tiles in the layout of TMA's 128-byte swizzle: consecutive panels of 64 columns, each
// [rows, 64] with rows of 128 bytes, aligned to the 1024 bytes of the swizzle's pattern.
//
// NOTES: a product is asynchronous. From its issue to the wait for its group no thread may touch its registers or write
// to its shared memory. The compiler considers the statement complete at issue, and may move uses of its registers
// across a wait, which does not name them; hold() prevents such moves.
#pragma once

#include "tile/operand_panels.cuh"

constexpr int WARPGROUP_M = 64;  // rows of a product

namespace ptx {

// "wgmma.fence": before the first product, and between other uses of a product's registers and the product.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

// "wgmma.commit_group"
__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

// "wgmma.wait_group": returns when at most PENDING of the newest groups are still under way.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(PENDING) : "memory");
}

// "wgmma.mma_async". A thread has N / 2 accumulators of d[64, N]: 4n + i is column 8n + 2 (lane % 4) + i % 2 of row
// 16 warp + lane / 4 + 8 (i / 2), as for mma_m16n8k16. In the statement they are the first operands; the others follow.
#define WGMMA_D8(i)                                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define WGMMA_D16 WGMMA_D8(0), WGMMA_D8(8)
#define WGMMA_D32_FROM(i) WGMMA_D8(i), WGMMA_D8(i + 8), WGMMA_D8(i + 16), WGMMA_D8(i + 24)
#define WGMMA_D32 WGMMA_D32_FROM(0)
#define WGMMA_D40 WGMMA_D32, WGMMA_D8(32)
#define WGMMA_D48 WGMMA_D40, WGMMA_D8(40)
#define WGMMA_D64 WGMMA_D32, WGMMA_D32_FROM(32)
#define WGMMA_D88 WGMMA_D64, WGMMA_D8(64), WGMMA_D8(72), WGMMA_D8(80)
#define WGMMA_D128 WGMMA_D64, WGMMA_D32_FROM(64), WGMMA_D32_FROM(96)
#define WGMMA_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_32 \
    WGMMA_NAMES_16     \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_40 WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_NAMES_48 WGMMA_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_64                                                            \
    WGMMA_NAMES_48                                                                \
    ", %48, %49, %50, %51, %52, %53, %54" \
    ", %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_88                                                                 \
    WGMMA_NAMES_64                                                                     \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_NAMES_128                                                                \
    WGMMA_NAMES_88                                                                     \
    ", %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102"   \
    ", %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115"   \
    ", %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#if DTYPE_BF16
#define WGMMA_TYPES "k16.f32.bf16.bf16 "
#else
#define WGMMA_TYPES "k16.f32.f16.f16 "
#endif

// d[64, N] = a[64, 16] * b[N, 16]^T, plus d if it ACCUMULATES; both operands are in shared memory and run along k. With
// TRANSPOSED they are a[16, 64] and b[16, N]: their rows run along m and n.
#define WGMMA_SS(N, ACCUMULATORS, A, B, ADDS, TNSP)                                                                    \
    template <bool ACCUMULATES, bool TRANSPOSED = false>                                                               \
    __device__ __forceinline__ void wgmma_mma_async_ss(float (&d)[ACCUMULATORS], unsigned long long a,                 \
                                                       unsigned long long b) {                                         \
        asm volatile("{ .reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N WGMMA_TYPES "{" WGMMA_NAMES_##ACCUMULATORS "}, " A ", " B  \
                     ", adds, 1, 1, " TNSP ", " TNSP "; }"                                                             \
                     : WGMMA_D##ACCUMULATORS                                                                           \
                     : "l"(a), "l"(b), "n"(static_cast<int>(ACCUMULATES)), "n"(static_cast<int>(TRANSPOSED))           \
                     : "memory");                                                                                      \
    }
WGMMA_SS(32, 16, "%16", "%17", "%18", "%19")
WGMMA_SS(64, 32, "%32", "%33", "%34", "%35")
WGMMA_SS(80, 40, "%40", "%41", "%42", "%43")
WGMMA_SS(128, 64, "%64", "%65", "%66", "%67")
WGMMA_SS(176, 88, "%88", "%89", "%90", "%91")

// d[64, N] += a[64, 16] * b[16, N]: a in registers, as for mma_m16n8k16; b in shared memory, its rows along n.
#define WGMMA_RS(N, ACCUMULATORS, A, B)                                                                              \
    __device__ __forceinline__ void wgmma_mma_async_rs(float (&d)[ACCUMULATORS], const unsigned* a,                  \
                                                       unsigned long long b) {                                       \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N WGMMA_TYPES "{" WGMMA_NAMES_##ACCUMULATORS "}, {" A      \
                     "}, " B ", 1, 1, 1, 1;"                                                                         \
                     : WGMMA_D##ACCUMULATORS                                                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                            \
                     : "memory");                                                                                    \
    }
WGMMA_RS(64, 32, "%32, %33, %34, %35", "%36")
WGMMA_RS(96, 48, "%48, %49, %50, %51", "%52")
WGMMA_RS(128, 64, "%64, %65, %66, %67", "%68")
WGMMA_RS(256, 128, "%128, %129, %130, %131", "%132")

// The lists of operands stay defined, for ptx/wgmma_fp8.cuh.
#undef WGMMA_TYPES
#undef WGMMA_SS
#undef WGMMA_RS

}  // namespace ptx

// Keeps uses of these registers on their side of the surrounding volatile statements. No instruction.
template <int COUNT>
__device__ __forceinline__ void hold(float (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        asm volatile("" : "+f"(registers[i]) : : "memory");
    }
}

template <int COUNT>
__device__ __forceinline__ void hold(unsigned (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        asm volatile("" : "+r"(registers[i]) : : "memory");
    }
}

// The compiler considers x changed: it computes no values that depend on it ahead of this statement, for which there may
// be no registers.
__device__ __forceinline__ void hold(int& x) {
    asm volatile("" : "+r"(x));
}

// "Matrix Descriptor Format" of a swizzled tile [ROWS, columns] at smem: addresses and offsets in units of 16 bytes,
// and mode 1 of the swizzle. Groups of eight rows are SWIZZLE_BYTES apart. The leading offset separates panels; it is
// used only for operands whose rows run along m or n, since one step along k never leaves a panel.
template <int ROWS>
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned smem) {
    constexpr unsigned long long PANEL_BYTES = ROWS * PANEL_ROW_BYTES;
    static_assert(PANEL_BYTES % SWIZZLE_BYTES == 0 && PANEL_BYTES / 16 < 1 << 14, "whole patterns that fit the field");
    constexpr unsigned long long LAYOUT = 1ull << 62 | (SWIZZLE_BYTES / 16ull) << 32 | (PANEL_BYTES / 16) << 16;
    return LAYOUT | (smem & 0x3ffff) >> 4;
}
