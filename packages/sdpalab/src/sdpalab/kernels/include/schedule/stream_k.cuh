// Stream-K (Osama, Merrill, Cecka, Garland and Owens 2023) for attention: every block gets the same amount of work.
//
// A unit of work is one tile of queries against one tile of keys that it sees. All units of a problem stand in a row,
// head by head, in a head tile of queries by tile of queries, and each block has the same number of neighbours in it,
// or one more. So the GPU is full to the end whatever the number of tiles. A block's units may begin and end within a
// tile of queries; then several blocks have a segment of it each, which epilogue/merge.cuh puts together. Which block
// has what depends on the grid alone, never on who is first, and no block ever waits for another.
#pragma once

#include "schedule/head.cuh"
#include "softmax/mask.cuh"

// One tile of queries of one head, and the tiles of keys [first, end) of all those, `tiles`, that it sees.
struct Segment {
    unsigned q_tile_of_all;  // its number among the tiles of all heads of all batches
    unsigned head;           // of all query heads of all batches
    int q_tile;              // in the head
    int first;
    int end;
    int tiles;

    __device__ __forceinline__ bool whole() const { return end - first == tiles; }
};

// Tiles of keys that a tile of queries sees.
template <int QUERIES, int KEYS>
__device__ __forceinline__ int key_tiles(int q_tile, int seq_q, int seq_kv) {
    return tiles_visible(min((q_tile + 1) * QUERIES, seq_q) - 1, seq_kv, KEYS);
}

// Division of numbers from 0 to 2^31 - 1 by one that the host passes, through its reciprocal, ceil(2^63 / d).
// That is exact: what it is too large by adds less than n / 2^63 to n / d, which is at least 1 / d below the next
// integer. (Granlund and Montgomery 1994.) A division that the compiler makes is twenty instructions, one after the
// other.
struct Divisor {
    unsigned long long reciprocal;

    __device__ __forceinline__ int divide(int n) const {
        return static_cast<int>(__umul64hi(2u * static_cast<unsigned>(n), reciprocal));
    }
};

// How a problem's units are dealt out: grid = (blocks), of which the first `longer` have one unit more than the others.
struct Shares {
    int q_tiles;  // of a head
    int units_per_head;
    int units_per_block;
    int longer;
    Divisor by_head;    // units_per_head
    Divisor by_tile;    // the units of a tile of queries; causal ones differ, and do not ask for it
    Divisor by_block;   // units_per_block
    Divisor by_longer;  // units_per_block + 1

    __device__ __forceinline__ int begin(int block) const { return block * units_per_block + min(block, longer); }

    // Behind the longer blocks, the units are those of shorter ones from the beginning, were each longer one a unit less.
    __device__ __forceinline__ int block_of(int unit) const {
        const bool in_longer = unit < opaque(longer) * (units_per_block + 1);
        return (in_longer ? by_longer : by_block).divide(in_longer ? unit : unit - longer);
    }
};

// The blocks that share a tile of queries, neighbours in the grid.
struct Sharers {
    int first;
    int count;
};

// A whole tile of queries for each block: grid = (tiles of queries, query heads, batch).
template <int QUERIES, int KEYS>
class OneTile {
public:
    __device__ __forceinline__ OneTile(const Shares&, int seq_q, int seq_kv) : seq_q(seq_q), seq_kv(seq_kv) {}

    __device__ __forceinline__ Segment segment() const {
        const int tiles = key_tiles<QUERIES, KEYS>(q_tile_of_block(), seq_q, seq_kv);
        const unsigned head = q_head_of_block();
        return Segment{head * gridDim.x + q_tile_of_block(), head, q_tile_of_block(), 0, tiles, tiles};
    }

    __device__ __forceinline__ void forget() {}

private:
    int seq_q;
    int seq_kv;
};

// A share of the units for each block, segment by segment. Between two of them the state is one number; all else is
// worked out again where it is needed, which costs less than the registers that would hold it through the main loop.
template <int QUERIES, int KEYS>
class StreamK {
public:
    __device__ __forceinline__ StreamK(const Shares& shares, int seq_q, int seq_kv)
        : shares(shares), seq_q(seq_q), seq_kv(seq_kv), unit(shares.begin(blockIdx.x)) {}

    __device__ __forceinline__ Segment segment() const {
        const int head = shares.by_head.divide(unit);
        const int head_tile = head * shares.q_tiles;
        Segment found{0, static_cast<unsigned>(head), 0, 0, 0};
        int tiles = key_tiles<QUERIES, KEYS>(0, seq_q, seq_kv);
        int begin;  // the first unit of the tile of queries
        if (CAUSAL) {
            begin = head * shares.units_per_head;
            while (unit - begin >= tiles) {
                begin += tiles;
                tiles = key_tiles<QUERIES, KEYS>(++found.q_tile, seq_q, seq_kv);
            }
            found.q_tile_of_all = head_tile + found.q_tile;
        } else {  // the head is worked out only where it is used
            found.q_tile_of_all = shares.by_tile.divide(unit);
            begin = found.q_tile_of_all * tiles;
            found.q_tile = found.q_tile_of_all - head_tile;
        }
        found.first = unit - begin;
        found.end = min(end() - begin, tiles);
        found.tiles = tiles;
        return found;
    }

    // Goes to the next segment; false if there is none.
    __device__ __forceinline__ bool next(const Segment& done) {
        unit += done.end - done.first;
        return unit < end();
    }

    // Makes the compiler work out the segment again from here on.
    __device__ __forceinline__ void forget() { unit = opaque(unit); }

    // The blocks that have a part of the segment's tile of queries.
    __device__ __forceinline__ Sharers sharers(const Segment& segment) const {
        const int begin = unit - segment.first;
        const int first = shares.block_of(begin);
        return Sharers{first, shares.block_of(begin + segment.tiles - 1) - first + 1};
    }

private:
    Shares shares;
    int seq_q;
    int seq_kv;
    int unit;  // the first one of the segment

    __device__ __forceinline__ int end() const { return shares.begin(ptx::ctaid_x() + 1); }
};
