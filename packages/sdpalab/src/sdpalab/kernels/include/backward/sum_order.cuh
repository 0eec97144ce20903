// A fixed order of the CTAs that add to the sum of a tile of dQ: in ascending order of their tiles of keys.
//
// Each tile of queries has a semaphore with the number of tiles of keys that were added. A CTA waits until that is its
// own rank among the tiles of keys that the queries see, adds, and passes the semaphore on; the last one leaves 0.
// CTAs take their work by a ticket when they start, tiles of keys in ascending order: a CTA waits only for CTAs that
// have started, so there is no deadlock, whatever the order in which a GPU starts them.
//
// All heads come before the next tile of keys. CTAs of one head then rarely run at the same time, and those that do are
// a tile of queries apart: the wait costs (CTAs of a head on the GPU - 1) tiles of queries at the start of a launch.
#pragma once

#include "backward/scores.cuh"
#include "ptx/gpu_scope.cuh"

// This CTA's ticket, 0 to `ctas` - 1; the counter is 0 again after the last. slot_smem: one word.
__device__ __forceinline__ unsigned take_ticket(unsigned* counter, unsigned ctas, unsigned* slot_smem) {
    if (threadIdx.x == 0) {
        *slot_smem = ptx::atom_inc_acq_rel_gpu_u32(counter, ctas - 1);
    }
    __syncthreads();
    const unsigned ticket = *slot_smem;
    __syncthreads();  // the word is used again
    return ticket;
}

// Waits until the CTA is the next in the order of a tile of queries. Ends with a barrier.
__device__ __forceinline__ void wait_for_rank(const unsigned* semaphore, unsigned rank) {
    if (threadIdx.x == 0) {
        while (ptx::ld_acquire_gpu_u32(semaphore) != rank) {
        }
    }
    __syncthreads();
}

// Lets the next CTA add.
__device__ __forceinline__ void pass_on(unsigned* semaphore, unsigned rank, bool last) {
    __syncthreads();  // all threads have added
    if (threadIdx.x == 0) {
        ptx::st_release_gpu_u32(semaphore, last ? 0 : rank + 1);
    }
}
