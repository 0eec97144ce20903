// One wrapper per PTX instruction, named after it. Sections are those of the PTX ISA manual, "Instruction Set".
//
// What touches memory is volatile and clobbers memory, so that the compiler keeps it in order with barriers and other
// accesses; pure arithmetic is neither, so that it may be moved and merged. A shared address is the 32-bit one that
// smem_address() gives.
#pragma once

namespace ptx {

__device__ __forceinline__ unsigned smem_address(const void* smem_pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(smem_pointer));
}

// "Special Registers: %tid, %ctaid". Unlike threadIdx and blockIdx, read anew at each place, so that neither they nor
// what follows from them is kept in registers from one place to the next.
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

// The same without waiting: what this thread has read and written before is done for those who wait there.
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

}  // namespace ptx
