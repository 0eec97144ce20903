// Merge, through distributed shared memory, of partial results of CTAs of a cluster that have the same query rows and
// different keys.
//
// One CTA keeps the accumulators of a warp's 16 rows. The other CTAs send theirs to it lane by lane, without any
// rearrangement; an mbarrier of the keeper counts the bytes. A sender may exit at once; the keeper waits for all
// senders.
#pragma once

#include "mainloop/ring.cuh"
#include "ptx/cluster.cuh"
#include "softmax/online.cuh"

// A warp's 16 rows of another CTA's partial result, lane by lane.
struct PartialTile {
    float4 o[HEAD_DIM / 8][32];  // accumulators, four a piece
    float4 softmax[32];          // maximum and sum of row lane / 4, then of row lane / 4 + 8
};

// Sends a warp's result to CTA `rank`. partial, arrived: buffer and mbarrier in that CTA.
__device__ __forceinline__ void send_partial(const float (&o_frag)[HEAD_DIM / 2], const SoftmaxRow (&softmax)[2],
                                             const PartialTile& partial, const unsigned long long& arrived, unsigned rank,
                                             int lane) {
    const unsigned mbar_there = ptx::mapa_shared_cluster(ptx::smem_address(&arrived), rank);
    const unsigned o_there = ptx::mapa_shared_cluster(ptx::smem_address(&partial.o[0][lane]), rank);
    const unsigned softmax_there = ptx::mapa_shared_cluster(ptx::smem_address(&partial.softmax[lane]), rank);
    ptx::st_async_v4(softmax_there, softmax[0].max, softmax[0].sum, softmax[1].max, softmax[1].sum, mbar_there);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i) {
        ptx::st_async_v4(o_there + i * sizeof(partial.o[0]), o_frag[4 * i], o_frag[4 * i + 1], o_frag[4 * i + 2],
                         o_frag[4 * i + 3], mbar_there);
    }
}

// Waits for the end of the mbarrier's first phase, which other CTAs complete.
__device__ __forceinline__ void cluster_mbarrier_wait(const unsigned long long& mbarrier) {
    while (!ptx::mbarrier_try_wait_parity_acquire_cluster(ptx::smem_address(&mbarrier), 0)) {
    }
}

// Merges a partial result of another CTA. A CTA without keys has a sum of 0 and the lowest maximum: its factor is 0.
__device__ __forceinline__ void merge_partial(float (&o_frag)[HEAD_DIM / 2], SoftmaxRow (&softmax)[2],
                                              const PartialTile& partial, float scale_log2, int lane) {
    const float4 other = partial.softmax[lane];
    const float other_max[2] = {other.x, other.z};
    const float other_sum[2] = {other.y, other.w};
    float own_factor[2];
    float other_factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        own_factor[half] = softmax[half].advance(other_max[half], scale_log2);
        other_factor[half] = softmax_weight(other_max[half], softmax[half].max, scale_log2);
        softmax[half].sum += other_sum[half] * other_factor[half];
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i) {
        const float4 more = partial.o[i][lane];
        o_frag[4 * i] = o_frag[4 * i] * own_factor[0] + more.x * other_factor[0];
        o_frag[4 * i + 1] = o_frag[4 * i + 1] * own_factor[0] + more.y * other_factor[0];
        o_frag[4 * i + 2] = o_frag[4 * i + 2] * own_factor[1] + more.z * other_factor[1];
        o_frag[4 * i + 3] = o_frag[4 * i + 3] * own_factor[1] + more.w * other_factor[1];
    }
}

// Epilogue of CTAS CTAs that have the same WARPS warps of rows: each CTA keeps the rows of some warps, and sends its
// results of the others to their keepers. With more CTAs than warps, the last ones only send.
template <int CTAS, int WARPS>
struct ClusterMerge {
    static constexpr int KEPT_WARPS = WARPS < CTAS ? 1 : WARPS / CTAS;  // in each of the first CTAs, or in all

    template <class TileBarriers>
    struct Shared {
        PartialTile partials[CTAS - 1][KEPT_WARPS];
        unsigned long long partials_full;
        TileBarriers barriers;

        __device__ __forceinline__ void init() { ptx::mbarrier_init(ptx::smem_address(&partials_full), 1); }

        __device__ __forceinline__ void expect() {
            ptx::mbarrier_arrive_expect_tx(ptx::smem_address(&partials_full), sizeof(partials));
        }
    };

    // Merges the partial results of a warp's rows in the CTA that keeps them; returns false in the other CTAs, which
    // send their part.
    template <class TileBarriers>
    static __device__ __forceinline__ bool gather(float (&o_frag)[HEAD_DIM / 2], SoftmaxRow (&softmax)[2],
                                                  const Shared<TileBarriers>& shared, unsigned rank, int warp, int lane,
                                                  float scale_log2) {
        const unsigned keeper = warp / KEPT_WARPS;
        const int place = warp % KEPT_WARPS;
        if (rank != keeper) {
            const PartialTile& partial = shared.partials[(rank ^ keeper) - 1][place];
            send_partial(o_frag, softmax, partial, shared.partials_full, keeper, lane);
            return false;
        }
        cluster_mbarrier_wait(shared.partials_full);
#pragma unroll
        for (int other = 0; other < CTAS - 1; ++other) {
            merge_partial(o_frag, softmax, shared.partials[other][place], scale_log2, lane);
        }
        return true;
    }
};
