// The order in which tiles of queries run: those with the most keys first.
//
// Blocks of a grid start in their order, each when an SM has room. A long tile that starts last leaves the other SMs
// idle; in this order the last ones are the shortest (longest processing time first; Graham 1969). One block sorts the
// tiles by counting, in buckets of about equal numbers of keys: the order within a bucket does not matter.
#pragma once

#include "schedule/sequence.cuh"

// order [tiles]: numbers of the tiles of all sequences. grid = (1), THREADS threads.
template <int ROWS, int KEYS, int HEADS, class Mask, int THREADS>
__device__ __forceinline__ void longest_first(const Sequences& sequences, int tiles, int* order) {
    constexpr int BUCKETS = THREADS;
    static_assert(THREADS == 1024, "a lane for each warp's sum");
    __shared__ int counts[BUCKETS];
    __shared__ int sums[THREADS / 32];
    __shared__ int most;
    const int thread = threadIdx.x;
    counts[thread] = 0;
    if (thread == 0) {
        most = 1;
    }
    __syncthreads();
    int own_most = 0;
    for (int number = thread; number < sequences.count; number += THREADS) {
        own_most = max(own_most, ceil_div(sequences.at(number).kv_rows, KEYS));
    }
    if (own_most > 1) {
        atomicMax(&most, own_most);
    }
    __syncthreads();

    // Bucket 0 has the longest tiles, the last one those without rows.
    const auto bucket_of = [&](int tile) {
        const SequenceRange range = sequences.template range_of<ROWS, KEYS, HEADS, Mask>(tile);
        const long long place = static_cast<long long>(range.keys.end - range.keys.first) * (BUCKETS - 2) / most;
        return range.has_rows ? max(BUCKETS - 2 - static_cast<int>(place), 0) : BUCKETS - 1;
    };
    const int own_bucket = thread < tiles ? bucket_of(thread) : 0;  // of the first tile: most lists have no second
    for (int tile = thread; tile < tiles; tile += THREADS) {
        atomicAdd(&counts[tile == thread ? own_bucket : bucket_of(tile)], 1);
    }
    __syncthreads();

    // Exclusive prefix sum: first place of each bucket.
    const int own = counts[thread];
    int sum = own;
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, sum, distance);
        sum += thread % 32 >= distance ? before : 0;
    }
    if (thread % 32 == 31) {
        sums[thread / 32] = sum;
    }
    __syncthreads();
    int before = thread % 32 < thread / 32 ? sums[thread % 32] : 0;
    for (int distance = 16; distance > 0; distance /= 2) {
        before += __shfl_xor_sync(0xffffffffu, before, distance);
    }
    counts[thread] = sum - own + before;
    __syncthreads();
    for (int tile = thread; tile < tiles; tile += THREADS) {
        order[atomicAdd(&counts[tile == thread ? own_bucket : bucket_of(tile)], 1)] = tile;
    }
}
