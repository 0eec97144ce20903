// The element type of Q, K, V and O, chosen by the macro DTYPE_BF16, and the code that depends on it.
//
// Element is opaque on purpose: arithmetic is in FP32 or on tensor cores, so cuda_fp16.h and cuda_bf16.h would only
// cost compile time. A kernel that needs __half (nvcuda::wmma) casts the pointer.
#pragma once

#include "ptx/sm80.cuh"

#ifndef DTYPE_BF16
#error "define DTYPE_BF16 as 0 (float16) or 1 (bfloat16)"
#endif

struct alignas(2) Element {
    unsigned short bits;
};
static_assert(sizeof(Element) == 2, "global tensors hold 16-bit elements");

__device__ __forceinline__ float to_float(Element x) {
#if DTYPE_BF16
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
#else
    return ptx::cvt_f32_f16(x.bits);
#endif
}

__device__ __forceinline__ Element to_element(float x) {
#if DTYPE_BF16
    return Element{ptx::cvt_rn_bf16_f32(x)};
#else
    return Element{ptx::cvt_rn_f16_f32(x)};
#endif
}

// Two elements in one register, the first in the low half: the form of fragments and vector accesses.
__device__ __forceinline__ unsigned pack_pair(float low, float high) {
#if DTYPE_BF16
    return ptx::cvt_rn_bf16x2_f32(low, high);
#else
    return ptx::cvt_rn_f16x2_f32(low, high);
#endif
}

__device__ __forceinline__ float2 unpack_pair(unsigned pair) {
    const Element low{static_cast<unsigned short>(pair & 0xffffu)};
    const Element high{static_cast<unsigned short>(pair >> 16)};
    return make_float2(to_float(low), to_float(high));
}

// A pair of float16 numbers in the element type; exact for numbers of e4m3.
__device__ __forceinline__ unsigned pair_of_f16(unsigned halves) {
#if DTYPE_BF16
    return pack_pair(ptx::cvt_f32_f16(static_cast<unsigned short>(halves)),
                     ptx::cvt_f32_f16(static_cast<unsigned short>(halves >> 16)));
#else
    return halves;
#endif
}

// acc[16, 8] += a[16, 16] * b[16, 8], in the element type with FP32 accumulators.
__device__ __forceinline__ void mma_m16n8k16(float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if DTYPE_BF16
    ptx::mma_m16n8k16_bf16(acc, a, b0, b1);
#else
    ptx::mma_m16n8k16_f16(acc, a, b0, b1);
#endif
}
