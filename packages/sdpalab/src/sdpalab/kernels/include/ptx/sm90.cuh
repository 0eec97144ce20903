// Wrappers of the instructions of sm_90, one per PTX instruction and named after it, as in ptx/sm80.cuh: tensor maps,
// TMA, mbarriers, stmatrix and register budgets. The matrix products are in ptx/wgmma.cuh.
#pragma once

#include "ptx/sm80.cuh"

// CUtensorMap of the driver, opaque here. Kernel parameters have type `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};
static_assert(sizeof(TensorMap) == 128, "the driver's CUtensorMap has 128 bytes");

namespace ptx {

// "Data Movement and Conversion Instructions: prefetch": loads the descriptor into TMA's descriptor cache.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

// "Data Movement: Tensor copy: cp.async.bulk.tensor". One thread loads a box of three axes, coordinates innermost
// first; the mbarrier counts its bytes, including those outside the tensor, which are zeros. dst_smem: aligned to the
// length of the swizzle's pattern. (The address of one's own CTA is also valid in shared::cluster.)
__device__ __forceinline__ void cp_async_bulk_tensor_3d_load(unsigned dst_smem, const TensorMap& map, int c0, int c1,
                                                             int c2, unsigned mbar_smem) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
        :
        : "r"(dst_smem), "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(mbar_smem)
        : "memory");
}

// The same with four axes.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_load(unsigned dst_smem, const TensorMap& map, int c0, int c1,
                                                             int c2, int c3, unsigned mbar_smem) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];"
        :
        : "r"(dst_smem), "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(mbar_smem)
        : "memory");
}

// The same with five axes.
__device__ __forceinline__ void cp_async_bulk_tensor_5d_load(unsigned dst_smem, const TensorMap& map, int c0, int c1,
                                                             int c2, int c3, int c4, unsigned mbar_smem) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
        :
        : "r"(dst_smem), "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(mbar_smem)
        : "memory");
}

// A store; elements outside the tensor are not written. Its completion belongs to the thread's bulk group.
__device__ __forceinline__ void cp_async_bulk_tensor_3d_store(const TensorMap& map, int c0, int c1, int c2,
                                                              unsigned src_smem) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :
                 : "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(src_smem)
                 : "memory");
}

// The same with four axes.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_store(const TensorMap& map, int c0, int c1, int c2, int c3,
                                                              unsigned src_smem) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
                 :
                 : "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(src_smem)
                 : "memory");
}

// The same with five axes.
__device__ __forceinline__ void cp_async_bulk_tensor_5d_store(const TensorMap& map, int c0, int c1, int c2, int c3,
                                                              int c4, unsigned src_smem) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];"
                 :
                 : "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(src_smem)
                 : "memory");
}

// "Data Movement: cp.async.bulk". One thread loads `bytes` bytes, a multiple of 16, between addresses that are multiples
// of 16; the mbarrier counts them.
__device__ __forceinline__ void cp_async_bulk_load(unsigned dst_smem, const void* src_global, unsigned bytes,
                                                   unsigned mbar_smem) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :
                 : "r"(dst_smem), "l"(src_global), "r"(bytes), "r"(mbar_smem)
                 : "memory");
}

// "Data Movement: cp.reduce.async.bulk". Adds float32 values to those in global memory, each atomically and in any
// order; sizes and addresses as above. Its completion belongs to the thread's bulk group.
__device__ __forceinline__ void cp_reduce_async_bulk_add_f32(float* dst_global, unsigned src_smem, unsigned bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 :
                 : "l"(dst_global), "r"(src_smem), "r"(bytes)
                 : "memory");
}

// "... cp.async.bulk.commit_group"
__device__ __forceinline__ void cp_async_bulk_commit_group() {
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

// "... cp.async.bulk.wait_group.read": returns when all but PENDING of this thread's newest groups have read their
// source. Their writes reach global memory at the latest when the kernel ends.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(PENDING) : "memory");
}

// The same without .read: their writes are complete, and visible to this thread.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
    asm volatile("cp.async.bulk.wait_group %0;" : : "n"(PENDING) : "memory");
}

// "Parallel Synchronization: membar, fence", between the generic proxy and the async one: writes to shared memory by
// this thread, and by threads it has synchronised with, are visible to later TMA and wgmma operations.
__device__ __forceinline__ void fence_proxy_async_shared_cta() {
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

// The same for mbarriers that this thread has initialised; other blocks of the cluster are included.
__device__ __forceinline__ void fence_mbarrier_init_release_cluster() {
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

// "Parallel Synchronization: mbarrier.init": phases of `arrivals` arrivals.
__device__ __forceinline__ void mbarrier_init(unsigned mbar_smem, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(mbar_smem), "r"(arrivals) : "memory");
}

// "... mbarrier.arrive", count 1. OFFSET: bytes of the mbarrier from mbar_smem, an immediate offset without an
// instruction of its own.
template <int OFFSET = 0>
__device__ __forceinline__ void mbarrier_arrive(unsigned mbar_smem) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0+%1];" : : "r"(mbar_smem), "n"(OFFSET) : "memory");
}

// The same after "mbarrier.expect_tx": the phase completes after that many more bytes.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned mbar_smem, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(mbar_smem), "r"(bytes) : "memory");
}

// "... mbarrier.try_wait": true if the phase of that parity is over. It may suspend the thread before returning false.
template <int OFFSET = 0>
__device__ __forceinline__ bool mbarrier_try_wait_parity(unsigned mbar_smem, unsigned parity) {
    unsigned over;
    asm volatile(
        "{ .reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1+%3], %2;\n"
        "selp.b32 %0, 1, 0, over; }"
        : "=r"(over)
        : "r"(mbar_smem), "r"(parity), "n"(OFFSET)
        : "memory");
    return over;
}

// "Warp Level Matrix Store Instruction: stmatrix". Four 8x8 matrices of 16-bit elements; lane 8*i + r names row r of
// matrix i, as for ldmatrix_x4.
__device__ __forceinline__ void stmatrix_x4(unsigned row_smem, const unsigned (&frag)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(row_smem), "r"(frag[0]), "r"(frag[1]), "r"(frag[2]), "r"(frag[3])
                 : "memory");
}

// "Data Movement and Conversion Instructions: st", 16 bytes to shared memory.
__device__ __forceinline__ void st_shared_v4(unsigned smem, const unsigned (&x)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(smem), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

// "Parallel Synchronization: griddepcontrol", for launches with programmatic stream serialization; without it these do
// nothing. Waits until the grids that this one depends on are complete and their writes are visible.
__device__ __forceinline__ void griddepcontrol_wait() {
    asm volatile("griddepcontrol.wait;" : : : "memory");
}

// Allows the dependent grid to begin once all blocks have executed this or exited.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}

// "Miscellaneous Instructions: setmaxnreg": the whole warpgroup keeps REGISTERS registers a thread and releases the
// rest to the block's pool, or requests the missing ones from the pool and waits for them.
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
    static_assert(REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS % 8 == 0, "a multiple of 8 from 24 to 256");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
    static_assert(REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS % 8 == 0, "a multiple of 8 from 24 to 256");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(REGISTERS));
}

}  // namespace ptx
