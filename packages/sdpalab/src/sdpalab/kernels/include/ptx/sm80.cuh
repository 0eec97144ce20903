// One wrapper per PTX instruction, named after it. Sections are those of the PTX ISA manual, "Instruction Set".
//
// Wrappers that touch memory are volatile and clobber memory, so the compiler keeps their order with barriers and other
// accesses; pure arithmetic is neither, so the compiler may move and merge it. A shared address is the 32-bit value of
// smem_address().
#pragma once

namespace ptx {

__device__ __forceinline__ unsigned smem_address(const void* smem_pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(smem_pointer));
}

// "Special Registers: %tid, %ctaid". Unlike threadIdx and blockIdx, these are re-read at each use; neither they nor
// values derived from them occupy registers between uses.
__device__ __forceinline__ int tid_x() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    __builtin_assume(x >= 0 && x < 1024);
    return x;
}

__device__ __forceinline__ int ctaid_x() {
    int x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    __builtin_assume(x >= 0);
    return x;
}

// "Data Movement and Conversion Instructions: cp.async". Copies src_bytes (0..16) and fills the rest of the 16 with
// zeros; .cg keeps the line out of L1, for data that one block reads once.
__device__ __forceinline__ void cp_async_cg_16(unsigned dst_smem, const void* src_global, unsigned src_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(dst_smem), "l"(src_global), "r"(src_bytes)
                 : "memory");
}

// "... cp.async.commit_group"
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" : : : "memory");
}

// "... cp.async.wait_group": returns when at most PENDING of this thread's newest groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

// "Parallel Synchronization: barrier": of `threads` threads in whole warps. Barrier 0 is that of __syncthreads.
__device__ __forceinline__ void bar_sync(unsigned barrier, unsigned threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}

// The same without waiting: this thread's earlier accesses are complete for the threads that wait at the barrier.
__device__ __forceinline__ void bar_arrive(unsigned barrier, unsigned threads) {
    asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}

// "Warp Level Matrix Load Instruction: ldmatrix". Four 8x8 matrices of 16-bit elements; lane 8*i + r names row r of
// matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&frag)[4], unsigned row_smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(frag[0]), "=r"(frag[1]), "=r"(frag[2]), "=r"(frag[3])
                 : "r"(row_smem)
                 : "memory");
}

// The same with each 8x8 matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&frag)[4], unsigned row_smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(frag[0]), "=r"(frag[1]), "=r"(frag[2]), "=r"(frag[3])
                 : "r"(row_smem)
                 : "memory");
}

// "Parallel Synchronization and Communication Instructions: atom". Adds 1, or wraps from `bound` to 0; returns the old
// value. Releases this thread's earlier accesses and acquires those that other threads released, at GPU scope.
__device__ __forceinline__ unsigned atom_inc_acq_rel_gpu_u32(unsigned* global, unsigned bound) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(global), "r"(bound)
                 : "memory");
    return before;
}

// "Matrix Multiply-Accumulate Instructions: mma", m16n8k16, A row-major, B column-major, FP32 accumulators: acc[16, 8]
// += a[16, 16] * b[16, 8]. Input and output sums are separate operands: tied operands would cost the compiler extra
// moves.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(acc[0]), "=f"(acc[1]), "=f"(acc[2]), "=f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1),
          "f"(acc[0]), "f"(acc[1]), "f"(acc[2]), "f"(acc[3]));
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(acc[0]), "=f"(acc[1]), "=f"(acc[2]), "=f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1),
          "f"(acc[0]), "f"(acc[1]), "f"(acc[2]), "f"(acc[3]));
}

// "Floating Point Instructions: fma" with .sat: the result clamped to 0 to 1; NaN becomes 0.
__device__ __forceinline__ float fma_rn_sat_f32(float a, float b, float c) {
    float d;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}

// "Floating Point Instructions: ex2". 2 ulp; 0 gives exactly 1, -inf gives 0, results below 2^-126 give 0. Without
// .ftz each exponential would cost three more instructions for subnormal weights, which do not change a sum of at
// least 1.
__device__ __forceinline__ float ex2_approx_ftz_f32(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// "Floating Point Instructions: lg2". Within 2^-22, absolutely between 0.5 and 2 and relatively elsewhere.
__device__ __forceinline__ float lg2_approx_ftz_f32(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// "Floating Point Instructions: rcp". 1 ulp.
__device__ __forceinline__ float rcp_approx_ftz_f32(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// "Data Movement and Conversion Instructions: cvt", round to nearest even, the first value in the low half.
__device__ __forceinline__ unsigned cvt_rn_f16x2_f32(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ unsigned cvt_rn_bf16x2_f32(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ unsigned short cvt_rn_f16_f32(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ unsigned short cvt_rn_bf16_f32(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ float cvt_f32_f16(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

}  // namespace ptx

// Not an instruction: returns the same value with its origin hidden from the compiler, for the reason of ptx::tid_x().
__device__ __forceinline__ int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

__device__ __forceinline__ float opaque(float x) {
    asm volatile("" : "+f"(x));
    return x;
}
