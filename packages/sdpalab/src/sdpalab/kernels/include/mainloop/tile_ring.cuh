// Transfer of tiles from TMA to warpgroups on sm_90a, for Hopper kernels of every element type.
//
// One thread, the producer, issues TMA loads into a ring of stages, with a tile of K and one of V in each. All
// consumers (warpgroups with 64 query rows each) read every tile; where groups of consumers divide the keys, those of
// one group read it. Synchronisation uses mbarriers instead of the block's barrier:
//
//   producer   waits until the readers have released the stage (empty), except in the first pass;
//              sets the expected bytes of the tile's mbarrier (full), and issues the TMA load;
//   consumers  wait for the bytes (full), issue a product, wait for it, and release the stage (empty).
//
// Q has a buffer of its own, and q_full. TMA fills rows past the end of a head with zeros and does not store them:
// heads are an axis of the maps, so no tile reaches into the next head. V needs the zeros: its rows meet weights of 0.
//
// The block's threads: the producer's warpgroup, then the consumers. The warpgroups redistribute the block's registers
// at launch among themselves; the total stays the same.
#pragma once

#include "mainloop/register_budget.cuh"
#include "mainloop/ring.cuh"
#include "softmax/mask.cuh"
#include "tile/warpgroup.cuh"

enum Operand { K, V };

// Shared memory. [0] of each pair belongs to K and [1] to V. READERS: consumers that read a tile.
template <int READERS, int STAGES>
struct TileBarriers {
    unsigned long long q_full;
    unsigned long long full[STAGES][2];
    unsigned long long empty[STAGES][2];

    // Called by one thread, followed by fence_mbarrier_init_release_cluster and a barrier for all threads.
    __device__ __forceinline__ void init() {
        ptx::mbarrier_init(ptx::smem_address(&q_full), 1);
#pragma unroll
        for (int i = 0; i < 2 * STAGES; ++i) {
            ptx::mbarrier_init(ptx::smem_address(&full[i / 2][i % 2]), 1);
            ptx::mbarrier_init(ptx::smem_address(&empty[i / 2][i % 2]), READERS);
        }
    }
};

// The ring, [STAGES][K, V], from smem on.
template <int READERS, int STAGES, int TILE_BYTES>
struct TileRing {
    using Position = RingPosition<STAGES>;
    using Barriers = TileBarriers<READERS, STAGES>;

    unsigned smem;
    Barriers& barriers;

    __device__ __forceinline__ unsigned tile(const Position& at, Operand operand) const {
        return smem + (2 * at.stage + operand) * TILE_BYTES;
    }

    // Waits until the producer may load a tile into the stage.
    __device__ __forceinline__ void wait_empty(const Position& at, Operand operand) const {
        mbarrier_wait(barriers.empty[at.stage][operand], at.parity ^ 1);
    }

    // Waits until the readers have read the tile that the producer loaded into the stage.
    __device__ __forceinline__ void wait_read(const Position& at, Operand operand) const {
        mbarrier_wait(barriers.empty[at.stage][operand], at.parity);
    }

    // Sets the expected bytes of a tile and returns its mbarrier, the completion target of the TMA load.
    __device__ __forceinline__ unsigned expect(const Position& at, Operand operand) const {
        const unsigned full = ptx::smem_address(&barriers.full[at.stage][operand]);
        ptx::mbarrier_arrive_expect_tx(full, TILE_BYTES);
        return full;
    }

    // Waits until a consumer may read the tile. never: always false; its operands are computed before the wait.
    __device__ __forceinline__ void wait_full(const Position& at, Operand operand, bool never = false) const {
        if (operand == K) {
            mbarrier_wait<FULL>(stage_barriers(at), at.parity ^ never);
        } else {
            mbarrier_wait<FULL + EACH>(stage_barriers(at), at.parity ^ never);
        }
    }

    // After the wait for a product the warpgroup has read the tile: one thread arrives for all.
    __device__ __forceinline__ void release(const Position& at, Operand operand) const {
        if (threadIdx.x % WARPGROUP == 0) {
            if (operand == K) {
                ptx::mbarrier_arrive<EMPTY>(stage_barriers(at));
            } else {
                ptx::mbarrier_arrive<EMPTY + EACH>(stage_barriers(at));
            }
        }
    }

private:
    // Consumers keep one register for all mbarriers of a stage; the rest of the address is an immediate offset.
    static constexpr int EACH = sizeof(unsigned long long);
    static constexpr int FULL = 0;
    static constexpr int EMPTY = sizeof(Barriers::full);  // empty follows full

    __device__ __forceinline__ unsigned stage_barriers(const Position& at) const {
        return ptx::smem_address(barriers.full) + at.stage * static_cast<int>(sizeof(barriers.full[0]));
    }
};

// Consumers issue their products alternately: one consumer's softmax overlaps the other's products, from a block's
// second tile of keys on, in every step of the main loop. Above D = 128 a consumer's products take long enough to
// overlap the other's softmax without further synchronisation. The last consumer arrives for the first before the first
// loop; one arrival is left over after a loop, and the next tile of queries, if any, uses it.
template <int CONSUMERS>
constexpr bool IN_TURN = CONSUMERS > 1 && HEAD_DIM <= 128;
constexpr int FIRST_TURN = 1;  // named barrier of consumer 0; barrier 0 is that of __syncthreads

template <int CONSUMERS>
__device__ __forceinline__ void wait_for_turn(int consumer) {
    if (IN_TURN<CONSUMERS>) {
        ptx::bar_sync(FIRST_TURN + consumer, 2 * WARPGROUP);
    }
}

template <int CONSUMERS>
__device__ __forceinline__ void pass_turn(int consumer) {
    if (IN_TURN<CONSUMERS>) {
        ptx::bar_arrive(FIRST_TURN + (consumer + 1) % CONSUMERS, 2 * WARPGROUP);
    }
}

// Number of visible keys of either row of this thread, from its first column of a tile of KEYS. HEADS rows a query.
template <int KEYS, int HEADS>
class KeysLeft {
public:
    // first_row: of the consumer, in a head; first_tile: of keys.
    __device__ __forceinline__ KeysLeft(int first_row, int first_tile, int seq_kv)
        : of_first_row(visible_keys(first_row / HEADS, seq_kv) - first_tile * KEYS) {
        const int thread = threadIdx.x % WARPGROUP;
        const int row = first_row + thread / 32 * WARP_M + thread % 32 / 4;
        const int before = visible_keys(first_row / HEADS, seq_kv) + 2 * (thread % 4);
        more[0] = visible_keys(row / HEADS, seq_kv) - before;
        more[1] = visible_keys((row + 8) / HEADS, seq_kv) - before;
    }

    // Advances to the next tile.
    __device__ __forceinline__ void advance() { of_first_row -= KEYS; }

    // Whether some row of the consumer does not see all keys of a tile: the first row then does not.
    __device__ __forceinline__ bool at_edge(int) const { return of_first_row < KEYS; }

    // Whether a row of this thread, 0 or 1, sees the key that many columns after its first one of the tile.
    __device__ __forceinline__ bool sees(int column, int row) const { return column < of_first_row + more[row]; }

    static constexpr bool CAPS = false;

    // Scores have no cap.
    template <int SCORES>
    __device__ __forceinline__ void cap(float (&)[SCORES], float) const {}

private:
    int of_first_row;  // of the consumer's first row: the same in all threads
    int more[2];       // visible keys of this thread's rows, counted from its first column
};

// Policy Seen without windows: a row sees all keys up to the last one, or up to its own under a causal mask.
struct KeysToEnd {
    template <int KEYS, int HEADS>
    using Columns = KeysLeft<KEYS, HEADS>;

    template <int KEYS>
    static __device__ __forceinline__ KeyTiles tiles(int, int last_query, int seq_kv) {
        return KeyTiles{0, tiles_visible(last_query, seq_kv, KEYS)};
    }

    // First key to load of a tile.
    template <int KEYS>
    static __device__ __forceinline__ int first_loaded(int tile, int) {
        return tile * KEYS;
    }
};
