// Wrappers of the instructions for thread-block clusters (sm_90), one per PTX instruction and named after it, as in
// ptx/sm80.cuh. CTA is the manual's word for a block.
//
// mapa gives the 32-bit address of another CTA's shared memory. The address is valid after a cluster barrier, which
// shows that the other CTA runs, and until that CTA exits.
#pragma once

#include "ptx/sm90.cuh"

namespace ptx {

// "Special Registers: %cluster_ctarank": number of this CTA in its cluster.
__device__ __forceinline__ unsigned cluster_ctarank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// "Data Movement and Conversion Instructions: mapa": address in CTA `rank` that corresponds to `smem` in this one.
__device__ __forceinline__ unsigned mapa_shared_cluster(unsigned smem, unsigned rank) {
    unsigned remote_smem;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_smem) : "r"(smem), "r"(rank));
    return remote_smem;
}

// "Data Movement and Conversion Instructions: st.async", 16 bytes; the mbarrier at remote_mbar_smem, in the same CTA,
// counts them on arrival.
__device__ __forceinline__ void st_async_v4(unsigned remote_smem, float x, float y, float z, float w,
                                            unsigned remote_mbar_smem) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :
                 : "r"(remote_smem), "f"(x), "f"(y), "f"(z), "f"(w), "r"(remote_mbar_smem)
                 : "memory");
}

// "Data Movement and Conversion Instructions: ld" from another CTA's shared memory, 4 or 16 bytes.
__device__ __forceinline__ float ld_shared_cluster_f32(unsigned remote_smem) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(remote_smem) : "memory");
    return x;
}

__device__ __forceinline__ void ld_shared_cluster_v4(float (&x)[4], unsigned remote_smem) {
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(remote_smem)
                 : "memory");
}

// "Parallel Synchronization: mbarrier.try_wait", as mbarrier_try_wait_parity, with cluster scope: the writes of other
// CTAs of the cluster before their arrivals in the phase are visible afterwards.
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

// "Parallel Synchronization: barrier.cluster". All threads of the cluster arrive and then wait, warp by warp. A
// .relaxed arrival orders nothing; only a fence before it does.
__device__ __forceinline__ void barrier_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.aligned;" : : : "memory");
}

__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
}

__device__ __forceinline__ void barrier_cluster_wait_acquire() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}

}  // namespace ptx
