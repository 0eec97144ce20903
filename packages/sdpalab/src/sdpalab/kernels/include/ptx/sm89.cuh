// Wrappers of the sm_89 instructions for 8-bit floats, one per PTX instruction and named after it, as in ptx/sm80.cuh.
//
// e4m3 ("Alternate Floating-Point Data Formats"): a sign, 4 bits of exponent, 3 of fraction; the largest number is 448,
// the least 2^-9, and there is no infinity.
#pragma once

#include "ptx/sm80.cuh"

namespace ptx {

// "Data Movement and Conversion Instructions: cvt", round to nearest even, the first value in the low byte. Values
// beyond 448 become 448, and NaN stays NaN.
__device__ __forceinline__ unsigned short cvt_rn_satfinite_e4m3x2_f32(float low, float high) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

// "... cvt", exact: float16 represents all numbers of e4m3.
__device__ __forceinline__ unsigned cvt_rn_f16x2_e4m3x2(unsigned short pair) {
    unsigned halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
    return halves;
}

// "Matrix Multiply-Accumulate Instructions: mma", m16n8k32, A row-major, B column-major, FP32 accumulators:
// acc[16, 8] += a[16, 32] * b[32, 8]. A register holds four elements of a row of A or a column of B: the positions of
// the 16-bit elements 2i and 2i + 1 that m16n8k16 has in that register.
__device__ __forceinline__ void mma_m16n8k32_e4m3(float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(acc[0]), "=f"(acc[1]), "=f"(acc[2]), "=f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1),
          "f"(acc[0]), "f"(acc[1]), "f"(acc[2]), "f"(acc[3]));
}

}  // namespace ptx
