// Merge, within the same kernel, of several blocks' partial results over different keys of one tile of queries.
//
// Each block stores its accumulators and softmax statistics to global memory in register order, and increments the
// tile's counter. The last block finds the partial results of all blocks and merges them: no block waits, so residency
// of all blocks is not required. Every block merges in the order of the keys: equal inputs give equal bits.
//
#pragma once

#include "softmax/online.cuh"

// Increments the tile's counter; returns true, in all threads, for the last of `parts` blocks, which resets it to 0.
//
// Release and acquire: the barrier orders the block's stores before its thread 0's atomic operation, that operation
// makes them visible to later blocks, and the second barrier lets all threads read earlier blocks' stores.
__device__ __forceinline__ bool is_last_of(unsigned* semaphore, int parts) {
    __syncthreads();
    const bool last = threadIdx.x == 0 && ptx::atom_inc_acq_rel_gpu_u32(semaphore, parts - 1) == parts - 1u;
    return __syncthreads_or(last);
}

// A block's partial result: for each thread the accumulators of O of its two rows, not normalised, and these rows'
// statistics, whose sums are over the thread's own columns. Neighbouring threads have neighbouring float4.
template <int COLS, int NUM_THREADS>
struct Partial {
    static constexpr int FLOATS4 = (COLS / 8 + 1) * NUM_THREADS;

    float4* mine;  // this thread's first float4

    // Each block has two slots: one for a segment at the beginning of a tile of queries, one for any other. 32 bits
    // index all float4 of 2^16 blocks (flash.py, MAX_CTAS).
    __device__ __forceinline__ Partial(float4* partials, unsigned block, bool at_beginning, unsigned thread)
        : mine(partials + ((2u * block + at_beginning) * FLOATS4 + thread)) {}

    __device__ __forceinline__ void store(const float (&o_frag)[COLS / 8][4], const SoftmaxRow (&softmax)[2]) const {
        mine[0] = make_float4(softmax[0].max, softmax[0].sum, softmax[1].max, softmax[1].sum);
#pragma unroll
        for (int d = 0; d < COLS / 8; ++d) {
            mine[(d + 1) * NUM_THREADS] = make_float4(o_frag[d][0], o_frag[d][1], o_frag[d][2], o_frag[d][3]);
        }
    }

    // Adds this part to the merged result; the reference is the maximum of all parts.
    __device__ __forceinline__ void add_to(float (&o_frag)[COLS / 8][4], SoftmaxRow (&softmax)[2],
                                           float scale_log2) const {
        const float4 rows = mine[0];
        const float weight[2] = {softmax_weight(rows.x, softmax[0].max, scale_log2),
                                 softmax_weight(rows.z, softmax[1].max, scale_log2)};
        softmax[0].sum += rows.y * weight[0];
        softmax[1].sum += rows.w * weight[1];
#pragma unroll
        for (int d = 0; d < COLS / 8; ++d) {
            const float4 o = mine[(d + 1) * NUM_THREADS];
            o_frag[d][0] += o.x * weight[0];
            o_frag[d][1] += o.y * weight[0];
            o_frag[d][2] += o.z * weight[1];
            o_frag[d][3] += o.w * weight[1];
        }
    }
};

// Merged result of the `count` consecutive blocks from `first` on that share a tile of queries, in order of their keys.
template <int COLS, int NUM_THREADS>
__device__ __forceinline__ void merge_partials(float (&o_frag)[COLS / 8][4], SoftmaxRow (&softmax)[2], float4* partials,
                                               int first, int count, int thread, float scale_log2) {
#pragma unroll
    for (int d = 0; d < COLS / 8; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            o_frag[d][i] = 0.0f;
        }
    }
    softmax[0] = softmax[1] = SoftmaxRow();
    __builtin_assume(count > 0);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        const float4 rows = *Partial<COLS, NUM_THREADS>(partials, first + i, i == 0, thread).mine;
        softmax[0].max = fmaxf(softmax[0].max, rows.x);
        softmax[1].max = fmaxf(softmax[1].max, rows.z);
    }
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        Partial<COLS, NUM_THREADS>(partials, first + i, i == 0, thread).add_to(o_frag, softmax, scale_log2);
    }
}
