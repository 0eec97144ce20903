// Wrappers of what a thread-block cluster has (sm_90), one per PTX instruction and named after it, as in ptx/sm80.cuh.
// Here CTA is the manual's word for a block.
//
// An address in another CTA's shared memory is what mapa gives, in 32 bits. It may be used from the barrier of the
// cluster on that says that the other CTA runs, and as long as that has not exited.
#pragma once

#include "ptx/sm90.cuh"

namespace ptx {

// "Special Registers: %cluster_ctarank": this CTA's number in its cluster.
__device__ __forceinline__ unsigned cluster_ctarank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// "Data Movement and Conversion Instructions: mapa": where CTA `rank` has what this one has at `smem`.
__device__ __forceinline__ unsigned mapa_shared_cluster(unsigned smem, unsigned rank) {
    unsigned remote_smem;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_smem) : "r"(smem), "r"(rank));
    return remote_smem;
}

// "Data Movement and Conversion Instructions: st.async", 16 bytes, which the mbarrier at remote_mbar_smem, in the same
// CTA, counts when they are there.
__device__ __forceinline__ void st_async_v4(unsigned remote_smem, float x, float y, float z, float w,
                                            unsigned remote_mbar_smem) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :
                 : "r"(remote_smem), "f"(x), "f"(y), "f"(z), "f"(w), "r"(remote_mbar_smem)
                 : "memory");
}

// "Parallel Synchronization: mbarrier.try_wait", as mbarrier_try_wait_parity: what other CTAs of the cluster did before
// they took part in the phase is seen, too.
__device__ __forceinline__ bool mbarrier_try_wait_parity_acquire_cluster(unsigned mbar_smem, unsigned parity) {
    unsigned over;
    asm volatile(
        "{ .reg .pred over;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], %2;\n"
        "selp.b32 %0, 1, 0, over; }"
        : "=r"(over)
        : "r"(mbar_smem), "r"(parity)
        : "memory");
    return over;
}

// "Parallel Synchronization: barrier.cluster". All threads of the cluster arrive and then wait, warp by warp. A .relaxed
// arrival passes on no more than a fence before it.
__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
}

__device__ __forceinline__ void barrier_cluster_wait_acquire() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}

}  // namespace ptx
