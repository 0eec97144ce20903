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
    const int thread = threadIdx.x;
    const int warp = thread / 32;
    const int lane = thread % 32;
    int most = 1;  // tiles of keys of the longest sequence
    for (int number = thread; number < sequences.count; number += THREADS) {
        most = max(most, ceil_div(sequences.at(number).kv_rows, KEYS));
    }
    const auto largest_of_warp = [](int x) {
        for (int distance = 16; distance > 0; distance /= 2) {
            x = max(x, __shfl_xor_sync(0xffffffffu, x, distance));
        }
        return x;
    };
    most = largest_of_warp(most);
    if (lane == 0) {
        sums[warp] = most;
    }
    counts[thread] = 0;
    __syncthreads();
    most = largest_of_warp(sums[lane]);

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
        sum += lane >= distance ? before : 0;
    }
    if (lane == 31) {
        sums[warp] = sum;
    }
    __syncthreads();
    int before = lane < warp ? sums[lane] : 0;
    for (int distance = 16; distance > 0; distance /= 2) {
        before += __shfl_xor_sync(0xffffffffu, before, distance);
    }
    counts[thread] = sum - own + before;
    __syncthreads();
    for (int tile = thread; tile < tiles; tile += THREADS) {
        order[atomicAdd(&counts[tile == thread ? own_bucket : bucket_of(tile)], 1)] = tile;
    }
}
