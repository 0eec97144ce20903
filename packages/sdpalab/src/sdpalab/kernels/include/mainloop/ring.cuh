// A ring of stages in shared memory, with mbarriers between producers and consumers.
#pragma once

#include "ptx/sm90.cuh"

// Waits until the mbarrier's phase of that parity is over. Before the first phase, one of parity 1 counts as over.
template <int OFFSET = 0>
__device__ __forceinline__ void mbarrier_wait(unsigned mbar_smem, unsigned parity) {
    while (!ptx::mbarrier_try_wait_parity<OFFSET>(mbar_smem, parity)) {
    }
}

__device__ __forceinline__ void mbarrier_wait(const unsigned long long& mbarrier, unsigned parity) {
    mbarrier_wait(ptx::smem_address(&mbarrier), parity);
}

// A position in the ring, and the parity of the phases of this pass through it. The producer of a stage waits for the
// end of the phase before, in which the stage was read: that of the other parity.
template <int STAGES>
struct RingPosition {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        const bool wraps = stage + 1 == STAGES;
        stage = wraps ? 0 : stage + 1;
        parity ^= wraps;
    }

    __device__ __forceinline__ RingPosition after() const {
        RingPosition next = *this;
        next.advance();
        return next;
    }

    __device__ __forceinline__ RingPosition before() const {
        return stage == 0 ? RingPosition{STAGES - 1, parity ^ 1} : RingPosition{stage - 1, parity};
    }
};
