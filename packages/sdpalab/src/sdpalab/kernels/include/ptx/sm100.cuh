// Wrappers of the instructions for tensor memory and the products that accumulate there (sm_100a), one per PTX
// instruction and named after it (PTX ISA, "TensorCore 5th Generation Family Instructions"). Only one CTA takes part.
//
// An address of tensor memory has the lane in its upper half and the column in its lower half. A warp accesses the 32
// lanes of its number modulo 4. Loads and stores run on until the warp waits for them; products, until an mbarrier
// that a commit names has been waited for. Threads that synchronise order their operations by a fence before and a
// fence after.
#pragma once

namespace ptx {

// "tcgen05.alloc": the whole warp; the address goes to shared memory.
template <int COLUMNS>
__device__ __forceinline__ void tcgen05_alloc(unsigned place_smem) {
    static_assert(COLUMNS >= 32 && COLUMNS <= 512 && (COLUMNS & (COLUMNS - 1)) == 0, "a power of two from 32 to 512");
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
                 :
                 : "r"(place_smem), "n"(COLUMNS)
                 : "memory");
}

__device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" : : : "memory");
}

// "tcgen05.dealloc": the warp that has allocated.
template <int COLUMNS>
__device__ __forceinline__ void tcgen05_dealloc(unsigned tensor) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" : : "r"(tensor), "n"(COLUMNS) : "memory");
}

// "tcgen05.fence"
__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
    asm volatile("tcgen05.fence::before_thread_sync;" : : : "memory");
}

__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
    asm volatile("tcgen05.fence::after_thread_sync;" : : : "memory");
}

// "tcgen05.mma": one thread; D = A B + D, or A B without `adds`. a, b: descriptors of shared memory.
__device__ __forceinline__ void tcgen05_mma_f16_ss(unsigned d, unsigned long long a, unsigned long long b,
                                                   unsigned instruction, bool adds) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, adds; }"
        :
        : "r"(d), "l"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(adds))
        : "memory");
}

// The same with A in tensor memory, two elements to a cell.
__device__ __forceinline__ void tcgen05_mma_f16_ts(unsigned d, unsigned a, unsigned long long b, unsigned instruction,
                                                   bool adds) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, adds; }"
        :
        : "r"(d), "r"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(adds))
        : "memory");
}

// "tcgen05.commit": arrives once at the mbarrier when this thread's earlier products are complete.
__device__ __forceinline__ void tcgen05_commit(unsigned mbar_smem) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
                 :
                 : "r"(mbar_smem)
                 : "memory");
}

// "tcgen05.ld.32x32b": 32 columns of each lane.
__device__ __forceinline__ void tcgen05_ld_32x32b_x32(float (&x)[32], unsigned tensor) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]), "=f"(x[4]), "=f"(x[5]), "=f"(x[6]), "=f"(x[7]), "=f"(x[8]),
          "=f"(x[9]), "=f"(x[10]), "=f"(x[11]), "=f"(x[12]), "=f"(x[13]), "=f"(x[14]), "=f"(x[15]), "=f"(x[16]),
          "=f"(x[17]), "=f"(x[18]), "=f"(x[19]), "=f"(x[20]), "=f"(x[21]), "=f"(x[22]), "=f"(x[23]), "=f"(x[24]),
          "=f"(x[25]), "=f"(x[26]), "=f"(x[27]), "=f"(x[28]), "=f"(x[29]), "=f"(x[30]), "=f"(x[31])
        : "r"(tensor)
        : "memory");
}

// "tcgen05.st.32x32b": 32 columns of each lane, or 16.
__device__ __forceinline__ void tcgen05_st_32x32b_x32(unsigned tensor, const float (&x)[32]) {
    asm volatile(
        "tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31};"
        :
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]), "f"(x[8]), "f"(x[9]),
          "f"(x[10]), "f"(x[11]), "f"(x[12]), "f"(x[13]), "f"(x[14]), "f"(x[15]), "f"(x[16]), "f"(x[17]), "f"(x[18]),
          "f"(x[19]), "f"(x[20]), "f"(x[21]), "f"(x[22]), "f"(x[23]), "f"(x[24]), "f"(x[25]), "f"(x[26]), "f"(x[27]),
          "f"(x[28]), "f"(x[29]), "f"(x[30]), "f"(x[31]), "r"(tensor)
        : "memory");
}

__device__ __forceinline__ void tcgen05_st_32x32b_x16(unsigned tensor, const unsigned (&x)[16]) {
    asm volatile(
        "tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15};"
        :
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]), "r"(x[8]), "r"(x[9]),
          "r"(x[10]), "r"(x[11]), "r"(x[12]), "r"(x[13]), "r"(x[14]), "r"(x[15]), "r"(tensor)
        : "memory");
}

// "tcgen05.wait": all loads, or all stores, of the warp are complete.
__device__ __forceinline__ void tcgen05_wait_ld() {
    asm volatile("tcgen05.wait::ld.sync.aligned;" : : : "memory");
}

__device__ __forceinline__ void tcgen05_wait_st() {
    asm volatile("tcgen05.wait::st.sync.aligned;" : : : "memory");
}

}  // namespace ptx
