// libcu++'s synchronisation: barriers, pipelines, semaphores, latches and atomics, compared with the host's sums.
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/semaphore>

#include <cooperative_groups.h>

#include "attention.h"

namespace cg = cooperative_groups;
constexpr int THREADS = 128, TILES = 9;

// Sums of the tiles of a block, which a pipeline of two stages brings to shared memory.
__global__ void with_pipeline(int const *in, int *out) {
    constexpr int STAGES = 2;
    __shared__ alignas(16) int tiles[STAGES][THREADS];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    auto block = cg::this_thread_block();
    auto pipeline = cuda::make_pipeline(block, &state);
    int const *mine = in + blockIdx.x * TILES * THREADS;
    int sum = 0;
    for (int tile = 0, ahead = 0; tile < TILES; tile++) {
        for (; ahead < TILES && ahead < tile + STAGES; ahead++) {
            pipeline.producer_acquire();
            cuda::memcpy_async(block, tiles[ahead % STAGES], mine + ahead * THREADS,
                               cuda::aligned_size_t<16>(sizeof(tiles[0])), pipeline);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        sum += tiles[tile % STAGES][(threadIdx.x + 1) % THREADS];  // of another thread
        pipeline.consumer_release();
    }
    out[blockIdx.x * THREADS + (threadIdx.x + 1) % THREADS] = sum;
}

// The same with a barrier that copies arrive at, and that half of the block only arrives at.
__global__ void with_barrier(int const *in, int *out) {
    __shared__ alignas(16) int tile[THREADS];
    __shared__ cuda::barrier<cuda::thread_scope_block> full, empty;
    auto block = cg::this_thread_block();
    if (threadIdx.x == 0) init(&full, THREADS), init(&empty, THREADS);
    block.sync();
    int const *mine = in + blockIdx.x * TILES * THREADS;
    int sum = 0;
    for (int t = 0; t < TILES; t++) {
        cuda::memcpy_async(block, tile, mine + t * THREADS, cuda::aligned_size_t<16>(sizeof(tile)), full);
        full.arrive_and_wait();
        sum += tile[(threadIdx.x + 1) % THREADS];
        empty.wait(empty.arrive());
    }
    out[blockIdx.x * THREADS + (threadIdx.x + 1) % THREADS] = sum;
}

// Blocks take turns at one number without atomic operations on it; the last to arrive at the latch is waited for.
__global__ void with_semaphore(cuda::binary_semaphore<cuda::thread_scope_device> *turn,
                               cuda::latch<cuda::thread_scope_device> *all, int *number, int *out) {
    if (threadIdx.x != 0) return;
    turn->acquire();
    *number += blockIdx.x + 1;
    turn->release();
    all->arrive_and_wait();
    out[blockIdx.x] = *number;
}

// A message from block to block: plain data, and a flag that is released and acquired.
__global__ void with_atomic(int *data, int *flag, int *out) {
    cuda::atomic_ref<int, cuda::thread_scope_device> ready(*flag);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        *data = 42;
        ready.store(1, cuda::memory_order_release);
    } else {
        while (ready.load(cuda::memory_order_acquire) == 0) {
        }
        out[blockIdx.x] = *data;
    }
}

__global__ void set_up(cuda::binary_semaphore<cuda::thread_scope_device> *turn,
                       cuda::latch<cuda::thread_scope_device> *all, int blocks) {
    new (turn) cuda::binary_semaphore<cuda::thread_scope_device>(1);
    new (all) cuda::latch<cuda::thread_scope_device>(blocks);
}

static int check(char const *name, bool right) {
    std::printf("%s: %s\n", name, right ? "right" : "WRONG");
    return right ? 0 : 1;
}

int main() {
    constexpr int BLOCKS = 3;
    std::vector<int> numbers(BLOCKS * TILES * THREADS), expected(BLOCKS * THREADS), zeros(BLOCKS, 0);
    for (size_t i = 0; i < numbers.size(); i++) numbers[i] = int(i * 2654435761u >> 16);
    for (size_t i = 0; i < numbers.size(); i++) expected[i / (TILES * THREADS) * THREADS + i % THREADS] += numbers[i];
    DeviceArray<int> in(numbers), out(expected.size()), number(zeros), seen(zeros);

    with_pipeline<<<BLOCKS, THREADS>>>(in.data, out.data);
    CHECK(cudaGetLastError());
    int wrong = check("pipeline", out.get() == expected);
    with_barrier<<<BLOCKS, THREADS>>>(in.data, out.data);
    CHECK(cudaGetLastError());
    wrong |= check("barrier", out.get() == expected);

    DeviceArray<cuda::binary_semaphore<cuda::thread_scope_device>> turn(1);
    DeviceArray<cuda::latch<cuda::thread_scope_device>> all(1);
    set_up<<<1, 1>>>(turn.data, all.data, BLOCKS);
    with_semaphore<<<BLOCKS, 32>>>(turn.data, all.data, number.data, seen.data);
    CHECK(cudaGetLastError());
    wrong |= check("semaphore and latch", seen.get() == std::vector<int>(BLOCKS, BLOCKS * (BLOCKS + 1) / 2));

    number.set(zeros), seen.set(zeros);
    with_atomic<<<2, 32>>>(number.data, number.data + 1, seen.data);
    CHECK(cudaGetLastError());
    wrong |= check("atomic_ref", seen.get()[1] == 42);
    return wrong;
}
