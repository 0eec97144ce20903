// Merge, within the same kernel, of several blocks' partial results over different keys of one tile of queries.
//
// Each block stores its accumulators and softmax statistics to global memory in register order, and increments the
// tile's counter. The last block finds the partial results of all blocks and merges them: no block waits, so residency
// of all blocks is not required. Every block merges in the order of the keys: equal inputs give equal bits.
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

// A block's partial result: for each thread the accumulators of O of its rows, not normalised, and these rows'
// statistics, whose sums are over the thread's own columns. Neighbouring threads have neighbouring float4. A thread has
// two rows in each of BLOCKS blocks.
template <int BLOCKS, int COLS, int THREADS>
struct Partial {
    static constexpr int BLOCK_FLOATS4 = (COLS / 8 + 1) * THREADS;

    float4* mine;  // this thread's first float4

    // Each block has two slots: one for a segment at the beginning of a tile of queries, one for any other. 32 bits
    // index all float4 of 2^16 blocks (flash.py, MAX_CTAS).
    __device__ __forceinline__ Partial(float4* partials, unsigned cta, bool at_beginning, unsigned thread)
        : mine(partials + ((2u * cta + at_beginning) * (BLOCKS * BLOCK_FLOATS4) + thread)) {}

    __device__ __forceinline__ void store(const float (&o_frag)[BLOCKS][COLS / 8][4],
                                          const SoftmaxRow (&rows)[BLOCKS][2]) const {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            float4* own = mine + block * BLOCK_FLOATS4;
            own[0] = make_float4(rows[block][0].max, rows[block][0].sum, rows[block][1].max, rows[block][1].sum);
#pragma unroll
            for (int d = 0; d < COLS / 8; ++d) {
                const float(&o)[4] = o_frag[block][d];
                own[(d + 1) * THREADS] = make_float4(o[0], o[1], o[2], o[3]);
            }
        }
    }

    __device__ __forceinline__ void maxima(SoftmaxRow (&rows)[BLOCKS][2]) const {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const float4 own = mine[block * BLOCK_FLOATS4];
            rows[block][0].max = fmaxf(rows[block][0].max, own.x);
            rows[block][1].max = fmaxf(rows[block][1].max, own.z);
        }
    }

    // Adds this part to the merged result; the reference is the maximum of all parts.
    __device__ __forceinline__ void add_to(float (&o_frag)[BLOCKS][COLS / 8][4], SoftmaxRow (&rows)[BLOCKS][2],
                                           float scale_log2) const {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const float4* own = mine + block * BLOCK_FLOATS4;
            const float4 of_rows = own[0];
            const float weight[2] = {softmax_weight(of_rows.x, rows[block][0].max, scale_log2),
                                     softmax_weight(of_rows.z, rows[block][1].max, scale_log2)};
            rows[block][0].sum += of_rows.y * weight[0];
            rows[block][1].sum += of_rows.w * weight[1];
#pragma unroll
            for (int d = 0; d < COLS / 8; ++d) {
                const float4 o = own[(d + 1) * THREADS];
                o_frag[block][d][0] += o.x * weight[0];
                o_frag[block][d][1] += o.y * weight[0];
                o_frag[block][d][2] += o.z * weight[1];
                o_frag[block][d][3] += o.w * weight[1];
            }
        }
    }
};

// Policy Epilogue of mainloop/warps.cuh for blocks that share tiles of queries.
struct SharedRows {
    float4* partials;
    unsigned* semaphores;

    // Advances the scheduler to the next segment; `more`: if there is one. Returns true, in all threads, in the block
    // that has the merged result of all keys (has_rows: for warps with rows): of the consecutive blocks that share the
    // tile, in order of their keys.
    template <int THREADS, int BLOCKS, int COLS_8, class Scheduler, class Segment>
    __device__ __forceinline__ bool gather(float (&o_frag)[BLOCKS][COLS_8][4], SoftmaxRow (&rows)[BLOCKS][2],
                                           Scheduler& scheduler, const Segment& done, bool& more, int thread,
                                           bool has_rows, float scale_log2) const {
        using Part = Partial<BLOCKS, 8 * COLS_8, THREADS>;
        const auto sharers = scheduler.sharers(done);
        more = scheduler.next(done);
        if (done.whole()) {
            return true;
        }
        if (has_rows) {
            Part(partials, ptx::ctaid_x(), done.begins(), thread).store(o_frag, rows);
        }
        if (!is_last_of(semaphores + done.q_tile_of_all, sharers.count)) {
            return false;
        }
        if (!has_rows) {
            return true;
        }
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
            for (int d = 0; d < COLS_8; ++d) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    o_frag[block][d][i] = 0.0f;
                }
            }
            rows[block][0] = rows[block][1] = SoftmaxRow();
        }
        __builtin_assume(sharers.count > 0);
#pragma unroll 1
        for (int i = 0; i < sharers.count; ++i) {
            Part(partials, sharers.first + i, i == 0, thread).maxima(rows);
        }
#pragma unroll 1
        for (int i = 0; i < sharers.count; ++i) {
            Part(partials, sharers.first + i, i == 0, thread).add_to(o_frag, rows, scale_log2);
        }
        return true;
    }
};
