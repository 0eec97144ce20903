// Stream-K (Osama, Merrill, Cecka, Garland and Owens 2023) for attention: every block gets the same amount of work.
//
// A unit of work is one tile of queries against one visible tile of keys. Units are numbered consecutively, head by
// head and within a head by tile of queries. Each block gets an interval of them, and interval lengths differ by one at
// most: the GPU is full to the end for any number of tiles. Intervals may begin and end within a tile of queries; the
// blocks that share it each compute a segment, and epilogue/merge.cuh merges them. The assignment depends on the grid
// alone, never on timing, and no block waits for another.
#pragma once

#include "schedule/divisor.cuh"
#include "schedule/head.cuh"
#include "softmax/mask.cuh"

// One tile of queries of one head, and the key tiles [first, end) of the `tiles` that it sees.
struct Segment {
    unsigned q_tile_of_all;  // number among the tiles of all heads of all batches
    unsigned head;           // among the query heads of all batches
    int q_tile;              // in the head
    int first;
    int end;
    int tiles;

    __device__ __forceinline__ bool whole() const { return end - first == tiles; }
    __device__ __forceinline__ bool begins() const { return first == 0; }
};

// Number of key tiles that a tile of queries sees.
template <int QUERIES, int KEYS>
__device__ __forceinline__ int key_tiles(int q_tile, int seq_q, int seq_kv) {
    return tiles_visible(min((q_tile + 1) * QUERIES, seq_q) - 1, seq_kv, KEYS);
}

// Distribution of a problem's units: grid = (blocks); the first `longer` blocks have one unit more than the others.
struct Shares {
    int q_tiles;  // a head
    int units_per_head;
    int units_per_block;
    int longer;
    Divisor by_head;    // units_per_head
    Divisor by_tile;    // units of a tile of queries; unused for causal tiles, which differ
    Divisor by_block;   // units_per_block
    Divisor by_longer;  // units_per_block + 1

    __device__ __forceinline__ int begin(int block) const { return block * units_per_block + min(block, longer); }

    // After the longer blocks, units are numbered as if all blocks were short and each longer one had a unit less.
    __device__ __forceinline__ int block_of(int unit) const {
        const bool in_longer = unit < opaque(longer) * (units_per_block + 1);
        return (in_longer ? by_longer : by_block).divide(in_longer ? unit : unit - longer);
    }
};

// Consecutive blocks of the grid that share a tile of queries.
struct Sharers {
    int first;
    int count;
};

// One block for each whole tile of queries, with the keys that they see under the policy Mask: grid = (tiles of
// queries, query heads, batch).
template <int QUERIES, int KEYS, class Mask>
class OneTile {
public:
    __device__ __forceinline__ OneTile(int seq_q, int seq_kv, int ahead = 0)
        : seq_q(seq_q), seq_kv(seq_kv), ahead(ahead) {}

    __device__ __forceinline__ Segment segment() const {
        const int first_row = q_tile_of_block() * QUERIES;
        const int last_row = min(first_row + QUERIES, seq_q) - 1;
        const KeyTiles seen = Mask::template tiles<KEYS>(first_row + ahead, last_row + ahead, seq_kv);
        const unsigned head = q_head_of_block();
        const int tiles = seen.end - seen.first;
        return Segment{head * gridDim.x + q_tile_of_block(), head, q_tile_of_block(), seen.first, seen.end, tiles};
    }

    __device__ __forceinline__ void recompute() {}

private:
    int seq_q;
    int seq_kv;
    int ahead;
};

// An interval of units per block, processed segment by segment. The state between segments is one number; the rest is
// recomputed where needed, which costs less than keeping it in registers through the main loop.
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
        int begin;  // first unit of the tile of queries
        if (CAUSAL) {
            begin = head * shares.units_per_head;
            while (unit - begin >= tiles) {
                begin += tiles;
                tiles = key_tiles<QUERIES, KEYS>(++found.q_tile, seq_q, seq_kv);
            }
            found.q_tile_of_all = head_tile + found.q_tile;
        } else {  // the head is computed only at its use
            found.q_tile_of_all = shares.by_tile.divide(unit);
            begin = found.q_tile_of_all * tiles;
            found.q_tile = found.q_tile_of_all - head_tile;
        }
        found.first = unit - begin;
        found.end = min(end() - begin, tiles);
        found.tiles = tiles;
        return found;
    }

    // Advances to the next segment; false if there is none.
    __device__ __forceinline__ bool next(const Segment& done) {
        unit += done.end - done.first;
        return unit < end();
    }

    // Forces the compiler to recompute the segment from here on.
    __device__ __forceinline__ void recompute() { unit = opaque(unit); }

    // Number of blocks that have a part of the segment's tile of queries.
    __device__ __forceinline__ Sharers sharers(const Segment& segment) const {
        const int begin = unit - segment.first;
        const int first = shares.block_of(begin);
        return Sharers{first, shares.block_of(begin + segment.tiles - 1) - first + 1};
    }

private:
    Shares shares;
    int seq_q;
    int seq_kv;
    int unit;  // first unit of the segment

    __device__ __forceinline__ int end() const { return shares.begin(ptx::ctaid_x() + 1); }
};
