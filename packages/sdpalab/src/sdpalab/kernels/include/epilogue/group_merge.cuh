// Merge, through shared memory, of partial results of groups of consumers of one CTA that have the same query rows and
// different keys.
//
// One group is the keeper of each 16 rows; its warp reads the results that the other groups' warps write, lane by lane
// as between CTAs of a cluster (epilogue/cluster_merge.cuh). Writers arrive at a barrier and may exit; the keeper waits
// at it. All products of the CTA are complete by then: O may overwrite Q.
#pragma once

#include "epilogue/cluster_merge.cuh"

constexpr int GROUP_BARRIER = 1;  // named barrier of the merge; barrier 0 is that of __syncthreads

// Writes a warp's result to the buffer of the keeper's warp.
__device__ __forceinline__ void write_partial(const float (&o_frag)[HEAD_DIM / 2], const SoftmaxRow (&softmax)[2],
                                              PartialTile& partial, int lane) {
    partial.softmax[lane] = make_float4(softmax[0].max, softmax[0].sum, softmax[1].max, softmax[1].sum);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i) {
        partial.o[i][lane] = make_float4(o_frag[4 * i], o_frag[4 * i + 1], o_frag[4 * i + 2], o_frag[4 * i + 3]);
    }
}

// Epilogue of GROUPS groups that have the same WARPS warps of rows; the epilogue Then follows for the group that holds
// the result over all keys of the CTA. GROUPS is a power of two.
template <int GROUPS, int WARPS, class Then>
struct GroupMerge {
    struct Partials {
        PartialTile of_groups[GROUPS - 1][WARPS];
    };

    template <class TileBarriers>
    struct Shared : Partials, Then::template Shared<TileBarriers> {};

    // Merges a warp's rows of all groups and CTAs in one warp; returns false in the other warps.
    template <class TileBarriers>
    static __device__ __forceinline__ bool gather(float (&o_frag)[HEAD_DIM / 2], SoftmaxRow (&softmax)[2],
                                                  Shared<TileBarriers>& shared, unsigned rank, int warp, int lane,
                                                  float scale_log2) {
        constexpr int THREADS = 32 * GROUPS * WARPS;
        const int group = warp / WARPS;
        const int rows = warp % WARPS;
        const int keeper = rows % GROUPS;
        if (group != keeper) {
            write_partial(o_frag, softmax, shared.of_groups[(group ^ keeper) - 1][rows], lane);
            ptx::bar_arrive(GROUP_BARRIER, THREADS);
            return false;
        }
        ptx::bar_sync(GROUP_BARRIER, THREADS);
#pragma unroll
        for (int other = 0; other < GROUPS - 1; ++other) {
            merge_partial(o_frag, softmax, shared.of_groups[other][rows], scale_log2, lane);
        }
        return Then::gather(o_frag, softmax, shared, rank, rows, lane, scale_log2);
    }
};
