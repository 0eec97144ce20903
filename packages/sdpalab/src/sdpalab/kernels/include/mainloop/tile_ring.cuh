// How tiles get from TMA to warpgroups on sm_90a: what the Hopper kernels share, whatever the type of the elements.
//
// One thread, the producer, has TMA fill a ring of stages, a tile of K and one of V in each. Every tile is read by all
// consumers, warpgroups with 64 query rows each, or by those of one group where groups of consumers share out the keys.
// Its way, with mbarriers in the place of the block's barrier:
//
//   producer   waits until its readers have read what was there before (empty); in the first pass it need not;
//              has the tile's mbarrier (full) expect its bytes, and TMA load them;
//   consumers  wait for the bytes (full), issue a product, wait for that, and say that they have read (empty).
//
// Q has a place of its own, and q_full. TMA fills what is past the end of a head with zeros and stores nothing there:
// heads are an axis of the maps, so no tile reaches into the next. The zeros matter for V, whose rows meet weights of 0.
//
// The block's threads: the producer's warpgroup, then the consumers. What registers a block has at launch is what its
// warpgroups keep and take later, all together.
#pragma once

#include "mainloop/ring.cuh"
#include "softmax/mask.cuh"
#include "tile/warpgroup.cuh"

constexpr int WARPGROUP = 128;
constexpr int WARP_M = 16;

// With one consumer two blocks share an SM, unless a product with an accumulator of O for D = 256 would not fit into
// what a thread has at launch, which ptxas refuses.
template <int CONSUMERS>
struct Registers {
    static constexpr int AT_LAUNCH = CONSUMERS == 2 || HEAD_DIM == 256 ? 168 : 128;
    static constexpr int PRODUCER = CONSUMERS == 3 ? 32 : 24;
    static constexpr int CONSUMER = CONSUMERS == 3 ? 160 : AT_LAUNCH == 128 ? 232 : 240;
    static_assert(PRODUCER + CONSUMERS * CONSUMER <= (1 + CONSUMERS) * AT_LAUNCH,
                  "setmaxnreg.inc waits forever for registers that the block does not have");
};

enum Operand { K, V };

// In shared memory. Of each pair, [0] is K's and [1] V's. READERS: consumers that read a tile.
template <int READERS, int STAGES>
struct TileBarriers {
    unsigned long long q_full;
    unsigned long long full[STAGES][2];
    unsigned long long empty[STAGES][2];

    // By one thread; it then has fence_mbarrier_init_release_cluster to execute, and the others a barrier to meet it at.
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

    // Returns when the producer may load a tile there.
    __device__ __forceinline__ void wait_empty(const Position& at, Operand operand) const {
        mbarrier_wait(barriers.empty[at.stage][operand], at.parity ^ 1);
    }

    // Returns when its readers have read the tile that the producer has had loaded there.
    __device__ __forceinline__ void wait_read(const Position& at, Operand operand) const {
        mbarrier_wait(barriers.empty[at.stage][operand], at.parity);
    }

    // Announces a tile. Returns the mbarrier, which TMA is to tell of its bytes.
    __device__ __forceinline__ unsigned expect(const Position& at, Operand operand) const {
        const unsigned full = ptx::smem_address(&barriers.full[at.stage][operand]);
        ptx::mbarrier_arrive_expect_tx(full, TILE_BYTES);
        return full;
    }

    // Returns when a consumer may read the tile. never: false, but what it is computed from is computed before the wait.
    __device__ __forceinline__ void wait_full(const Position& at, Operand operand, bool never = false) const {
        if (operand == K) {
            mbarrier_wait<FULL>(stage_barriers(at), at.parity ^ never);
        } else {
            mbarrier_wait<FULL + EACH>(stage_barriers(at), at.parity ^ never);
        }
    }

    // Once a product has been waited for, its warpgroup has read the tile: one thread says so for all.
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
    // Consumers have one register for all mbarriers of a stage, and the rest of the address in the instruction.
    static constexpr int EACH = sizeof(unsigned long long);
    static constexpr int FULL = 0;
    static constexpr int EMPTY = sizeof(Barriers::full);  // empty is behind full

    __device__ __forceinline__ unsigned stage_barriers(const Position& at) const {
        return ptx::smem_address(barriers.full) + at.stage * static_cast<int>(sizeof(barriers.full[0]));
    }
};

// Consumers issue their products in turn, so that one's softmax falls on the other's products: from a block's second
// tile of keys on, in every turn of the main loop. Above D = 128 a consumer's products take so long that the other's
// softmax falls on them without further synchronisation. The last consumer passes a turn to the first before the first
// loop; after a loop the first has one again, for the next tile of queries, or for nobody.
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

// How many keys either row of this thread sees, from its first column of a tile of KEYS on. HEADS rows are one query's.
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

    // Goes to the next tile.
    __device__ __forceinline__ void advance() { of_first_row -= KEYS; }

    // Whether some row of the consumer does not see all keys of a tile: then the first one does not.
    __device__ __forceinline__ bool at_edge(int) const { return of_first_row < KEYS; }

    // Whether a row of this thread, 0 or 1, sees the key that many columns after its first one of the tile.
    __device__ __forceinline__ bool sees(int column, int row) const { return column < of_first_row + more[row]; }

    static constexpr bool CAPS = false;

    // Scores are not capped.
    template <int SCORES>
    __device__ __forceinline__ void cap(float (&)[SCORES], float) const {}

private:
    int of_first_row;  // of the consumer: the same in all threads
    int more[2];       // that this thread's rows see, counted from its first column
};

// The policy Seen of kernels without windows: a row sees all keys up to the last, or up to its own.
struct KeysToEnd {
    template <int KEYS, int HEADS>
    using Columns = KeysLeft<KEYS, HEADS>;

    template <int KEYS>
    static __device__ __forceinline__ KeyTiles tiles(int, int last_query, int seq_kv) {
        return KeyTiles{0, tiles_visible(last_query, seq_kv, KEYS)};
    }

    // The first key that is loaded of a tile.
    template <int KEYS>
    static __device__ __forceinline__ int first_loaded(int tile, int) {
        return tile * KEYS;
    }
};
