// Wrappers of instructions of sm_80 with an immediate offset in bytes, one per PTX instruction and named after it, as
// in ptx/sm80.cuh. A constant distance from an address in a register then needs no addition.
#pragma once

#include "ptx/sm80.cuh"

namespace ptx {

// "Data Movement and Conversion Instructions: cp.async", as cp_async_cg_16, from src_global + SRC_OFFSET to dst_smem +
// DST_OFFSET.
template <int DST_OFFSET, int SRC_OFFSET>
__device__ __forceinline__ void cp_async_cg_16_at(unsigned dst_smem, const void* src_global, unsigned src_bytes) {
    asm volatile("cp.async.cg.shared.global [%0+%3], [%1+%4], 16, %2;"
                 :
                 : "r"(dst_smem), "l"(src_global), "r"(src_bytes), "n"(DST_OFFSET), "n"(SRC_OFFSET)
                 : "memory");
}

// "Warp Level Matrix Load Instruction: ldmatrix", as ldmatrix_x4, from row_smem + OFFSET.
template <int OFFSET>
__device__ __forceinline__ void ldmatrix_x4_at(unsigned (&frag)[4], unsigned row_smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(frag[0]), "=r"(frag[1]), "=r"(frag[2]), "=r"(frag[3])
                 : "r"(row_smem), "n"(OFFSET)
                 : "memory");
}

// The same with each 8x8 matrix transposed.
template <int OFFSET>
__device__ __forceinline__ void ldmatrix_x4_trans_at(unsigned (&frag)[4], unsigned row_smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(frag[0]), "=r"(frag[1]), "=r"(frag[2]), "=r"(frag[3])
                 : "r"(row_smem), "n"(OFFSET)
                 : "memory");
}

// "Data Movement and Conversion Instructions: st", to smem + OFFSET.
template <int OFFSET>
__device__ __forceinline__ void st_shared_u32_at(unsigned smem, unsigned x) {
    asm volatile("st.shared.u32 [%0+%2], %1;" : : "r"(smem), "r"(x), "n"(OFFSET) : "memory");
}

// "Data Movement and Conversion Instructions: ld", from smem + OFFSET.
template <int OFFSET>
__device__ __forceinline__ uint2 ld_shared_v2_u32_at(unsigned smem) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2+%3];" : "=r"(x.x), "=r"(x.y) : "r"(smem), "n"(OFFSET) : "memory");
    return x;
}

template <int OFFSET>
__device__ __forceinline__ uint4 ld_shared_v4_u32_at(unsigned smem) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(smem), "n"(OFFSET)
                 : "memory");
    return x;
}

}  // namespace ptx
