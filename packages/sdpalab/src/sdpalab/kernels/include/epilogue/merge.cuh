// Partial results of one tile of queries, by several blocks over different keys, put together in the same kernel.
//
// Each block leaves its accumulators and its softmax statistics in global memory, as they lie in its registers, and
// counts itself in at the tile's semaphore. The last block finds all of them there and merges them: no block waits, so
// that none has to be resident. The order of merging is that of the keys in every block, so that equal inputs give
// equal bits.
#pragma once

#include "softmax/online.cuh"

// Adds 1 to the tile's semaphore; true, in all threads, for the last of `parts` blocks, which leaves it at 0.
//
// Release and acquire: the barrier brings the block's stores before its thread 0's atomic operation, that operation
// makes them visible to later blocks, and the barrier behind it lets all threads see what was said before.
__device__ __forceinline__ bool is_last_of(unsigned* semaphore, int parts) {
    __syncthreads();
    const bool last = threadIdx.x == 0 && ptx::atom_inc_acq_rel_gpu_u32(semaphore, parts - 1) == parts - 1u;
    return __syncthreads_or(last);
}

// A block's partial result: of each thread the accumulators of O of its two rows, not normalised, and those rows'
// statistics, of which it has a sum over its own columns. float4 by float4, neighbouring threads side by side.
template <int COLS, int NUM_THREADS>
struct Partial {
    static constexpr int FLOATS4 = (COLS / 8 + 1) * NUM_THREADS;

    float4* mine;  // this thread's first float4

    // Each block has two places: one for a segment at the beginning of a tile of queries, one for any other. 32 bits
    // number all float4 of 2^16 blocks (flash.py, MAX_CTAS).
    __device__ __forceinline__ Partial(float4* partials, unsigned block, bool at_beginning, unsigned thread)
        : mine(partials + ((2u * block + at_beginning) * FLOATS4 + thread)) {}

    __device__ __forceinline__ void store(const float (&o_frag)[COLS / 8][4], const SoftmaxRow (&softmax)[2]) const {
        mine[0] = make_float4(softmax[0].max, softmax[0].sum, softmax[1].max, softmax[1].sum);
#pragma unroll
        for (int d = 0; d < COLS / 8; ++d) {
            mine[(d + 1) * NUM_THREADS] = make_float4(o_frag[d][0], o_frag[d][1], o_frag[d][2], o_frag[d][3]);
        }
    }

    // Adds it to what was merged so far, whose softmax is taken from the maximum of all parts.
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

// The result of all `count` blocks from `first` on, which share a tile of queries, in the order of their keys.
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
