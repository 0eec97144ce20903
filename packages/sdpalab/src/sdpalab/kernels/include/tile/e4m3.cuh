// Numbers of e4m3 in a register.
#pragma once

#include "ptx/sm89.cuh"

constexpr float E4M3_MAX = 448.0f;

__device__ __forceinline__ unsigned pack_e4m3(float x0, float x1, float x2, float x3) {
    return ptx::cvt_rn_satfinite_e4m3x2_f32(x0, x1) |
           static_cast<unsigned>(ptx::cvt_rn_satfinite_e4m3x2_f32(x2, x3)) << 16;
}

// Converts four e4m3 numbers in one register to float16, exactly: the first two, and the other two. The conversion
// reads either half of a register, so the split costs nothing; a shift would be an instruction.
__device__ __forceinline__ uint2 widen_e4m3(unsigned numbers) {
    const ushort2 halves = __builtin_bit_cast(ushort2, numbers);
    return make_uint2(ptx::cvt_rn_f16x2_e4m3x2(halves.x), ptx::cvt_rn_f16x2_e4m3x2(halves.y));
}
