// CUDA C++ idioms that pass data between threads: correct with STEP 0, with one error in each other step.
// All arrays are initially zero. test_idioms.py has the table of expected reports.
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/semaphore>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;
using Word = unsigned;
template <cuda::thread_scope S>
using Ref = cuda::atomic_ref<Word, S>;
constexpr auto relaxed = cuda::memory_order_relaxed, acquire = cuda::memory_order_acquire;
constexpr auto release = cuda::memory_order_release, acq_rel = cuda::memory_order_acq_rel;
using Device = Ref<cuda::thread_scope_device>;
using Block = Ref<cuda::thread_scope_block>;

#define IDIOM(name) template <int STEP> __device__ void name(Word* data, Word* flags, Word* out)

// ---- locks between blocks -------------------------------------------------------------------------------------------

IDIOM(spin_lock) {  // 1: no fence behind the lock, 2: none before the unlock, 3: of the block, 4: a plain unlock
    if (threadIdx.x != 0) return;
    while (atomicCAS(flags, 0, 1) != 0) {
    }
    if (STEP == 3) __threadfence_block();
    else if (STEP != 1) __threadfence();
    data[0] += 1;
    if (STEP == 3) __threadfence_block();
    else if (STEP != 2) __threadfence();
    if (STEP == 4) *flags = 0;
    else atomicExch(flags, 0);
}

IDIOM(lock_of_libcu) {  // 1: relaxed lock, 2: relaxed unlock, 3: scope of the block
    if (threadIdx.x != 0) return;
    if constexpr (STEP == 3) {
        Block lock(*flags);
        while (lock.exchange(1, acquire) != 0) {
        }
        data[0] += 1;
        lock.store(0, release);
    } else {
        Device lock(*flags);
        while (lock.exchange(1, STEP == 1 ? relaxed : acquire) != 0) {
        }
        data[0] += 1;
        lock.store(0, STEP == 2 ? relaxed : release);
    }
}

IDIOM(ticket_lock) {  // 1: relaxed wait, 2: relaxed hand-over
    if (threadIdx.x != 0) return;
    Device next(flags[0]), serving(flags[1]);
    const Word mine = next.fetch_add(1, relaxed);
    while (serving.load(STEP == 1 ? relaxed : acquire) != mine) {
    }
    data[0] += 1;
    serving.store(mine + 1, STEP == 2 ? relaxed : release);
}

// One lane after the other, in a warp that diverges.
IDIOM(lock_of_lanes) {  // 1: no fence behind the lock, 2: none before the unlock
    for (bool done = false; !done;) {
        if (atomicCAS(flags, 0, 1) == 0) {
            if (STEP != 1) __threadfence();
            data[0] += 1;
            if (STEP != 2) __threadfence();
            atomicExch(flags, 0);
            done = true;
        }
    }
}

IDIOM(try_lock) {  // a test before the exchange; 1: plain test
    if (threadIdx.x != 0) return;
    Device lock(*flags);
    while (true) {
        const Word seen = STEP == 1 ? *static_cast<Word*>(flags) : lock.load(relaxed);
        if (seen == 0 && lock.exchange(1, acquire) == 0) break;
    }
    data[0] += 1;
    lock.store(0, release);
}

// ---- flags ----------------------------------------------------------------------------------------------------------

// Block 0 writes with all its threads, and block 1 reads with all of its own.
IDIOM(flag_of_blocks) {  // 1, 2: without a barrier in one of them, 3, 4: relaxed, 5: scope of the block
    Device flag(*flags);
    if (blockIdx.x == 0) {
        data[threadIdx.x] = threadIdx.x;
        if (STEP != 1) __syncthreads();
        if constexpr (STEP == 5) {
            if (threadIdx.x == 0) Block(*flags).store(1, release);
        } else if (threadIdx.x == 0) flag.store(1, STEP == 3 ? relaxed : release);
    } else {
        if (threadIdx.x == 0) {
            while (flag.load(STEP == 4 ? relaxed : acquire) == 0) {
            }
        }
        if (STEP != 2) __syncthreads();
        out[threadIdx.x] = data[threadIdx.x ^ 32];
    }
}

// Warp 0 signals warp 1 through shared memory.
IDIOM(volatile_flag) {  // 1, 2: a fence is missing, 3: no volatile
    __shared__ Word slot, ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        slot = data[0] + 7;
        if (STEP != 1) __threadfence_block();
        if (STEP == 3) ready = 1;
        else *const_cast<volatile Word*>(&ready) = 1;
    } else if (threadIdx.x == 32) {
        while (*const_cast<volatile Word*>(&ready) == 0) {
        }
        if (STEP != 2) __threadfence_block();
        out[0] = slot;
    }
}

// The first warp with the lock computes the value; the others read the flag before the lock.
IDIOM(double_checked) {  // 1: the first read is relaxed, 2: it is a plain load, 3: a relaxed store of the flag
    if (threadIdx.x % 32 != 0) return;
    Device lock(flags[0]), made(flags[1]);
    const Word first = STEP == 2 ? flags[1] : made.load(STEP == 1 ? relaxed : acquire);
    if (first == 0) {
        while (lock.exchange(1, acquire) != 0) {
        }
        if (made.load(relaxed) == 0) {
            data[0] = 42;
            made.store(1, STEP == 3 ? relaxed : release);
        }
        lock.store(0, release);
    }
    out[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = data[0];
}

// The waits of libcu++ try, yield and sleep by turns, behind a count and a clock.
IDIOM(wait_of_libcu) {  // 1: a relaxed wait, 2: a relaxed store
    Device flag(*flags);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        data[0] = 5;
        flag.store(1, STEP == 2 ? relaxed : release);
        flag.notify_all();
    } else {
        flag.wait(0, STEP == 1 ? relaxed : acquire);
        out[blockIdx.x] = data[0];
    }
}

IDIOM(semaphore) {  // 0 in memory is a count of none; 1: the writer releases first, 2: a try is taken for the wait
    auto& items = *reinterpret_cast<cuda::counting_semaphore<cuda::thread_scope_device>*>(flags);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        if (STEP == 1) items.release(gridDim.x);
        data[0] = 5;
        if (STEP != 1) items.release(gridDim.x);
    } else {
        if (STEP == 2) (void)items.try_acquire();
        else items.acquire();
        out[blockIdx.x] = data[0];
    }
}

IDIOM(latch) {  // 1: no wait
    using Latch = cuda::latch<cuda::thread_scope_block>;
    __shared__ __align__(alignof(Latch)) char place[sizeof(Latch)];
    __shared__ Word slot[64];
    auto& latch = *reinterpret_cast<Latch*>(place);
    if (threadIdx.x == 0) new (place) Latch(blockDim.x);
    __syncthreads();
    slot[threadIdx.x] = threadIdx.x;
    if (STEP == 1) latch.count_down();
    else latch.arrive_and_wait();
    out[threadIdx.x] = slot[threadIdx.x ^ 32];
}

IDIOM(give_up) {  // a wait with a time limit, after which nothing is read; 1: an early read
    Device flag(*flags);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        data[0] = 5;
        flag.store(1, release);
    } else {
        const long long begin = clock64();
        bool seen = false;
        while (!seen && clock64() - begin < (STEP == 1 ? 1 : 1000)) {
            seen = flag.load(acquire) != 0;
            __nanosleep(20);
        }
        if (seen || STEP == 1) out[blockIdx.x] = data[0];
    }
}

IDIOM(sequence_lock) {  // 1: plain data
    Device sequence(flags[0]);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        sequence.store(1, relaxed);
        cuda::atomic_thread_fence(release, cuda::thread_scope_device);
        if (STEP == 1) data[0] = 5;
        else Device(data[0]).store(5, relaxed);
        sequence.store(2, release);
    } else {
        Word before, value;
        do {
            before = sequence.load(acquire);
            value = STEP == 1 ? data[0] : Device(data[0]).load(relaxed);
            cuda::atomic_thread_fence(acquire, cuda::thread_scope_device);
        } while (before % 2 == 1 || before != sequence.load(relaxed));
        out[blockIdx.x] = value;
    }
}

// Block 0 fills a ring of four slots, and block 1 empties it.
IDIOM(ring) {  // 1, 2: a relaxed store of one of the counters, 3: the writer does not wait
    if (threadIdx.x != 0) return;
    Device head(flags[0]), tail(flags[1]);
    for (Word i = 0; i < 8; ++i) {
        if (blockIdx.x == 0) {
            while (STEP != 3 && i - tail.load(acquire) == 4) {
            }
            data[i % 4] = i;
            head.store(i + 1, STEP == 1 ? relaxed : release);
        } else {
            while (head.load(acquire) <= i) {
            }
            out[i] = data[i % 4];
            tail.store(i + 1, STEP == 2 ? relaxed : release);
        }
    }
}

// ---- many blocks ----------------------------------------------------------------------------------------------------

// Each block adds the published sum of its predecessor to its own; a counter numbers the blocks.
IDIOM(look_back) {  // 1: no fence before the state, 2: none behind it, 3: the state is read plainly
    __shared__ Word number, before;
    if (threadIdx.x == 0) number = atomicAdd(flags, 1);
    __syncthreads();
    Word* state = flags + 1;
    if (threadIdx.x == 0) {
        before = 0;
        if (number > 0) {
            Device last(state[number - 1]);
            while ((STEP == 3 ? state[number - 1] : last.load(relaxed)) == 0) {
                if (STEP == 3) break;
            }
            if (STEP != 2) __threadfence();
            before = data[number - 1];
        }
        data[number] = before + 3;
        if (STEP != 1) __threadfence();
        Device(state[number]).store(1, relaxed);
    }
    __syncthreads();
    out[number * blockDim.x + threadIdx.x] = before + threadIdx.x;
}

// The value and its state in one word of 64 bits: no fence is needed.
IDIOM(look_back_in_one_word) {  // 1: plain words
    auto* words = reinterpret_cast<unsigned long long*>(data);
    if (threadIdx.x != 0) return;
    const Word number = atomicAdd(flags, 1);
    Word sum = 0;
    if (number > 0) {
        cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> last(words[number - 1]);
        unsigned long long seen;
        do {
            seen = STEP == 1 ? *const_cast<unsigned long long*>(words + number - 1) : last.load(relaxed);
        } while (STEP != 1 && seen >> 32 == 0);
        sum = static_cast<Word>(seen);
    }
    const unsigned long long mine = 1ull << 32 | (sum + 3);
    if (STEP == 1) words[number] = mine;
    else cuda::atomic_ref<unsigned long long, cuda::thread_scope_device>(words[number]).store(mine, relaxed);
    out[number] = sum;
}

// The last block to arrive sums the values of all blocks.
IDIOM(last_block) {  // 1: no fence before the count, 2: none behind it, 3: fences of the block, 4: a count of the block
    __shared__ bool last;
    data[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
    if (STEP == 3) __threadfence_block();
    else if (STEP != 1) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = (STEP == 4 ? atomicAdd_block(flags, 1) : atomicAdd(flags, 1)) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    if (STEP == 3) __threadfence_block();
    else if (STEP != 2) __threadfence();
    Word sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += data[i * blockDim.x + threadIdx.x];
    out[threadIdx.x] = sum;
}

// As in the CUDA C++ Programming Guide: volatile results, no fence behind the count, and the last block resets it.
IDIOM(reset_of_the_count) {  // 1: the first block resets it, 2: all blocks do
    volatile Word* results = data;
    if (threadIdx.x != 0) return;
    results[blockIdx.x] = blockIdx.x;
    __threadfence();
    const Word before = atomicAdd(flags, 1);
    if (STEP == 0 && before != gridDim.x - 1) return;
    if (STEP == 1 && before != 0) return;
    Word sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += results[i];
    out[0] = sum;
    *flags = 0;
}

IDIOM(last_block_of_libcu) {  // 1: relaxed count, 2: release alone, 3: acquire alone
    __shared__ bool last;
    data[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
    __syncthreads();
    constexpr auto order = STEP == 1 ? relaxed : STEP == 2 ? release : STEP == 3 ? acquire : acq_rel;
    if (threadIdx.x == 0) last = Device(*flags).fetch_add(1, order) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    Word sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += data[i * blockDim.x + threadIdx.x];
    out[threadIdx.x] = sum;
}

// Blocks push items to a queue, and each pops one item of any block.
IDIOM(queue) {  // 1: the slot's state is relaxed, 2: the reader waits for the tail, and not for the slot
    if (threadIdx.x != 0) return;
    Device tail(flags[0]), head(flags[1]);
    const Word slot = tail.fetch_add(1, relaxed);
    data[slot] = blockIdx.x + 1;
    Device(flags[2 + slot]).store(1, STEP == 1 ? relaxed : release);
    const Word mine = gridDim.x - 1 - head.fetch_add(1, relaxed);
    if (STEP == 2) {
        while (tail.load(acquire) <= mine) {
        }
    } else {
        while (Device(flags[2 + mine]).load(acquire) == 0) {
        }
    }
    out[mine] = data[mine];
}

IDIOM(counter_of_blocks) {  // each block has a counter of its own; 1: all blocks share one
    atomicAdd_block(flags + (STEP == 1 ? 0 : blockIdx.x), 1);
}

IDIOM(grid_sync) {  // 1: without it, 2: a barrier of the block in its place
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = i;
    if (STEP == 0) cg::this_grid().sync();
    if (STEP == 2) __syncthreads();
    out[i] = data[(i + blockDim.x) % (gridDim.x * blockDim.x)];
}

// ---- a block --------------------------------------------------------------------------------------------------------

IDIOM(histogram) {  // 1, 2: a barrier is missing, 3: no atomic
    __shared__ Word bins[8];
    if (threadIdx.x < 8) bins[threadIdx.x] = 0;
    if (STEP != 1) __syncthreads();
    if (STEP == 3) bins[threadIdx.x % 8] += 1;
    else atomicAdd(bins + threadIdx.x % 8, 1);
    if (STEP != 2) __syncthreads();
    if (threadIdx.x < 8) atomicAdd(out + threadIdx.x, bins[threadIdx.x]);
}

IDIOM(two_buffers) {  // 1: one buffer, with one barrier a turn
    __shared__ Word tile[2][64];
    Word sum = 0;
    for (int turn = 0; turn < 4; ++turn) {
        Word* here = tile[STEP == 1 ? 0 : turn % 2];
        here[threadIdx.x] = data[64 * turn + threadIdx.x];
        __syncthreads();
        sum += here[threadIdx.x ^ 32];
    }
    out[threadIdx.x] = sum;
}

IDIOM(tree) {  // 1: no barrier in the loop, 2: the last five steps without __syncwarp
    __shared__ Word part[128];
    part[threadIdx.x] = threadIdx.x;
    __syncthreads();
    for (int half = 64; half >= 32; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        if (STEP != 1) __syncthreads();
    }
    if (threadIdx.x < 32) {
        for (int half = 16; half > 0; half /= 2) {
            Word other = 0;
            if (threadIdx.x < half) other = part[threadIdx.x + half];
            if (STEP != 2) __syncwarp();
            if (threadIdx.x < half) part[threadIdx.x] += other;
            if (STEP != 2) __syncwarp();
        }
    }
    if (threadIdx.x == 0) out[0] = part[0];
}

// A reading and a writing half of the block, and named barriers between them.
__device__ void named(int name, int count, bool waits) {
    if (waits) asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(count) : "memory");
    else asm volatile("bar.arrive %0, %1;" : : "r"(name), "r"(count) : "memory");
}

IDIOM(named_barriers) {  // 1: the writer does not wait for the slot, 2: one barrier for both, 3: another count
    __shared__ Word slot[2][64];
    const int t = threadIdx.x % 64;
    for (int turn = 0; turn < 4; ++turn) {
        const int stage = turn % 2, full = 1 + stage, empty = STEP == 2 ? full : 3 + stage;
        if (threadIdx.x < 64) {
            if (turn >= 2 && STEP != 1) named(empty, 128, true);
            slot[stage][t] = data[64 * turn + t];
            named(full, STEP == 3 ? 96 : 128, false);
        } else {
            named(full, 128, true);
            out[64 * turn + t] = slot[stage][t];
            if (turn < 2 && STEP != 1) named(empty, 128, false);
        }
    }
}

IDIOM(barrier_of_libcu) {  // 1: no wait, 2: no barrier behind the initialisation
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ Word slot[64];
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    if (STEP != 2) __syncthreads();
    slot[threadIdx.x] = threadIdx.x;
    auto token = barrier.arrive();
    if (STEP != 1) barrier.wait(cuda::std::move(token));
    out[threadIdx.x] = slot[threadIdx.x ^ 32];
}

IDIOM(prefetch) {  // cp.async, one tile ahead; 1: a wait for too few, 2, 3: a barrier is missing
    __shared__ Word stage[2][64];
    const unsigned t = threadIdx.x;
    Word sum = 0;
    for (int turn = -1; turn < 4; ++turn) {
        if (turn < 3) __pipeline_memcpy_async(&stage[(turn + 1) % 2][t], data + 64 * (turn + 1) + t, sizeof(Word));
        __pipeline_commit();
        if (turn < 0) continue;
        __pipeline_wait_prior(STEP == 1 ? 2 : 1);
        if (STEP != 2) __syncthreads();
        sum += stage[turn % 2][t ^ 32];
        if (STEP != 3) __syncthreads();
    }
    out[t] = sum;
}

// ---- a warp ---------------------------------------------------------------------------------------------------------

IDIOM(aggregated) {  // one atomic operation for the active lanes; 1: a plain addition of the leader
    if (data[threadIdx.x] != 0 || threadIdx.x % 3 == 0) return;
    const auto group = cg::coalesced_threads();
    Word first = 0;
    if (group.thread_rank() == 0) {
        if (STEP == 1) {
            first = *flags;
            *flags = first + group.size();
        } else first = atomicAdd(flags, group.size());
    }
    out[group.shfl(first, 0) + group.thread_rank()] = threadIdx.x + 1;
}

IDIOM(tiles) {  // groups of eight lanes; 1: without their sync, 2: a sync of four lanes
    __shared__ Word slot[64];
    const auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    const auto small = cg::tiled_partition<4>(cg::this_thread_block());
    slot[threadIdx.x] = threadIdx.x;
    if (STEP == 0) tile.sync();
    if (STEP == 2) small.sync();
    out[threadIdx.x] = slot[threadIdx.x ^ 4];
}

IDIOM(vote) {  // in a branch of half a warp; 1: with the mask of a whole warp
    const unsigned mask = STEP == 1 ? 0xffffffffu : __ballot_sync(0xffffffffu, threadIdx.x % 32 < 16);
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __ballot_sync(mask, threadIdx.x % 2 == 0);
    __syncthreads();
}

IDIOM(shuffle) {  // of half a warp; 1: from an inactive lane
    if (threadIdx.x % 32 >= 16) {
        out[threadIdx.x] = data[threadIdx.x];
    } else {
        out[threadIdx.x] = __shfl_sync(STEP == 1 ? 0xffffffffu : 0xffffu, threadIdx.x, STEP == 1 ? 20 : threadIdx.x ^ 1);
    }
    __syncthreads();
}

// ---- a cluster ------------------------------------------------------------------------------------------------------

IDIOM(exchange) {  // 1, 2: one of the two barriers is missing, 3: a barrier of the block, 4: a relaxed arrival
    __shared__ Word slot[64];
    auto cluster = cg::this_cluster();
    slot[threadIdx.x] = 64 * blockIdx.x + threadIdx.x;
    if (STEP == 3) __syncthreads();
    else if (STEP == 4) {
        asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" : : : "memory");
    } else if (STEP != 1) cluster.sync();
    const Word* other = cluster.map_shared_rank(slot, cluster.block_rank() ^ 1);
    out[64 * blockIdx.x + threadIdx.x] = other[threadIdx.x];
    if (STEP != 2) cluster.sync();
}

IDIOM(flag_in_a_cluster) {  // in the other block's shared memory; 1: relaxed, 2: scope of the block
    __shared__ Word slot[64], ready;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) ready = 0;
    cluster.sync();
    Word* to = cluster.map_shared_rank(slot, 1);
    Word* flag = cluster.map_shared_rank(&ready, 1);
    if (cluster.block_rank() == 0) {
        to[threadIdx.x] = threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) {
            if constexpr (STEP == 2) Block(*flag).store(1, release);
            else Device(*flag).store(1, STEP == 1 ? relaxed : release);
        }
    } else {
        if (threadIdx.x == 0) {
            while (Device(ready).load(acquire) == 0) {
            }
        }
        __syncthreads();
        out[threadIdx.x] = slot[threadIdx.x];
    }
    cluster.sync();
}

#define ENTRY(name, step)                                                                    \
    extern "C" __global__ void name##_##step(Word* data, Word* flags, Word* out) {           \
        name<step>(data, flags, out);                                                        \
    }
#define TWO(name) ENTRY(name, 0) ENTRY(name, 1)
#define THREE(name) TWO(name) ENTRY(name, 2)
#define FOUR(name) THREE(name) ENTRY(name, 3)
#define FIVE(name) FOUR(name) ENTRY(name, 4)
FIVE(spin_lock)
FOUR(lock_of_libcu)
THREE(ticket_lock)
THREE(lock_of_lanes)
TWO(try_lock)
FIVE(flag_of_blocks)
ENTRY(flag_of_blocks, 5)
FOUR(volatile_flag)
FOUR(double_checked)
THREE(wait_of_libcu)
THREE(semaphore)
TWO(latch)
TWO(give_up)
TWO(sequence_lock)
FOUR(ring)
FOUR(look_back)
TWO(look_back_in_one_word)
FIVE(last_block)
THREE(reset_of_the_count)
FOUR(last_block_of_libcu)
THREE(queue)
TWO(counter_of_blocks)
THREE(grid_sync)
FOUR(histogram)
TWO(two_buffers)
THREE(tree)
FOUR(named_barriers)
THREE(barrier_of_libcu)
FOUR(prefetch)
TWO(aggregated)
THREE(tiles)
TWO(vote)
TWO(shuffle)
FIVE(exchange)
THREE(flag_in_a_cluster)
