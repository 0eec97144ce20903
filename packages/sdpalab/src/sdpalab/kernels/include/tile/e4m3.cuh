// Numbers of e4m3 in a register.
#pragma once

#include "ptx/sm89.cuh"

constexpr float E4M3_MAX = 448.0f;

__device__ __forceinline__ unsigned pack_e4m3(float x0, float x1, float x2, float x3) {
    return ptx::cvt_rn_satfinite_e4m3x2_f32(x0, x1) |
           static_cast<unsigned>(ptx::cvt_rn_satfinite_e4m3x2_f32(x2, x3)) << 16;
}
