// Policy Epilogue, of either main loop, of blocks that have all keys of their rows: no merge.
#pragma once

#include "softmax/online.cuh"

struct OwnRows {
    // For mainloop/warps.cuh.
    template <int THREADS, int BLOCKS, int COLS_8, class Scheduler, class Segment>
    __device__ __forceinline__ bool gather(float (&)[BLOCKS][COLS_8][4], SoftmaxRow (&)[BLOCKS][2], Scheduler&,
                                           const Segment&, bool& more, int, bool, float) const {
        more = false;
        return true;
    }

    // For mainloop/warpgroups.cuh.
    template <class TileBarriers>
    struct Shared {
        TileBarriers barriers;

        __device__ __forceinline__ void init() {}
        __device__ __forceinline__ void expect() {}
    };

    template <int FLOATS, class TileBarriers>
    static __device__ __forceinline__ bool gather(float (&)[FLOATS], SoftmaxRow (&)[2], const Shared<TileBarriers>&,
                                                  unsigned, int, int, float) {
        return true;
    }
};
