// Which tiles of queries a block works on: one of its own in the grid, or (persistent) one after the other until all
// are done.
#pragma once

#include "ptx/cluster.cuh"
#include "schedule/head.cuh"
#include "softmax/mask.cuh"

struct QueryTile {
    int q_head;  // of all batches
    int number;  // in the head
};

// How persistent blocks go through the tiles.
struct TileOrder {
    unsigned tiles_per_head;
    unsigned q_heads;         // of all batches
    unsigned heads_at_once;   // under a causal mask, whose tiles are mixed: no fewer tiles than there are blocks
    unsigned rounds_at_once;  // in which those are dealt out
};

// A scheduler says whether a CTA STAYS for several tiles, and how many CTAS of a cluster share one.

// grid = (SHARERS times tiles of queries, query heads, batch): so many neighbours share a tile.
template <int SHARERS>
class GridTile {
public:
    static constexpr bool STAYS = false;
    static constexpr int CTAS = SHARERS;

    __device__ __forceinline__ explicit GridTile(const TileOrder&) {}

    // Causal tiles further down have more keys: they go first, so that the last to finish are the short ones.
    __device__ __forceinline__ QueryTile tile() const {
        const int tiles = gridDim.x / SHARERS;
        const int number = blockIdx.x / SHARERS;
        return QueryTile{static_cast<int>(q_head_of_block()), CAUSAL ? tiles - 1 - number : number};
    }

    __device__ __forceinline__ bool next() { return false; }
};

// grid = (blocks), no more than there are tiles, which are dealt out to them in rounds, head by head. A block computes
// its own tiles without communication.
//
// Under a causal mask tiles are long and short. Those of heads_at_once heads are dealt out from the longest to the
// shortest, and every second round backwards: who had the longest of one round has the shortest of the next, so that
// all blocks end together. The next heads begin with a round of their own. Not all heads are mixed, so that several
// blocks still read the same K and V at about the same time.
class DealtTiles {
public:
    static constexpr bool STAYS = true;
    static constexpr int CTAS = 1;

    __device__ __forceinline__ explicit DealtTiles(const TileOrder& order) : order(order) {}

    __device__ __forceinline__ QueryTile tile() const {
        const unsigned heads = CAUSAL ? mixed_heads() : 1;
        const unsigned left = CAUSAL ? place() : place() % order.tiles_per_head;
        const unsigned head = CAUSAL ? first_head() + left % heads : place() / order.tiles_per_head;
        return QueryTile{static_cast<int>(head), static_cast<int>(order.tiles_per_head - 1 - left / heads)};
    }

    // Goes to the next tile; false if there is none.
    __device__ __forceinline__ bool next() {
        do {
            ++round;
            if (CAUSAL ? first_head() >= order.q_heads : place() >= order.q_heads * order.tiles_per_head) {
                return false;
            }
        } while (CAUSAL && place() >= mixed_heads() * order.tiles_per_head);
        return true;
    }

private:
    TileOrder order;
    unsigned round = 0;

    __device__ __forceinline__ unsigned first_head() const {
        return round / order.rounds_at_once * order.heads_at_once;
    }

    __device__ __forceinline__ unsigned mixed_heads() const {
        return min(order.heads_at_once, order.q_heads - first_head());
    }

    // Of the block's tile in this round, among those that are mixed. What it takes is read again each time: a producer
    // has no registers to keep it in.
    __device__ __forceinline__ unsigned place() const {
        const unsigned blocks = opaque(static_cast<int>(gridDim.x));
        const unsigned block = ptx::ctaid_x();
        if (CAUSAL) {
            return round % order.rounds_at_once * blocks + (round % 2 ? blocks - 1 - block : block);
        }
        return round * blocks + block;
    }
};

// What a CTA works on at a time: its rows, counted in one head, and its tiles of keys. Where HEADS heads of a group share
// a tile, they count as one head: row HEADS i + j is query i of the j-th of them, and q_head the number of such heads.
struct Work {
    unsigned rank;  // in the cluster
    int q_head;     // of all batches
    int kv_head;
    int first_row;
    int first_tile;
    int tiles;
};

// The work of this CTA, one of CTAS that share a tile of queries: all its rows, and a part of the keys that they see,
// by the policy Seen (mainloop/warpgroups.cuh). group: heads, as above, that share one K/V head.
template <int CTAS, int ROWS, int HEADS, int KEYS, class Seen>
__device__ __forceinline__ Work work_on(const QueryTile& tile, int seq_q, int seq_kv, int group) {
    const unsigned rank = CTAS > 1 ? ptx::cluster_ctarank() : 0;
    const int first_row = tile.number * ROWS;
    const KeyTiles seen =
        Seen::template tiles<KEYS>(first_row / HEADS, min((first_row + ROWS) / HEADS, seq_q) - 1, seq_kv);
    const int all_tiles = seen.end - seen.first;
    const int share = ceil_div(all_tiles, CTAS);  // the last CTAs have less, or none
    const int before = CTAS > 1 ? min(static_cast<int>(rank) * share, all_tiles) : 0;
    int kv_head = tile.q_head;
    if (group != 1) {
        kv_head /= group;  // the first copies wait for these hundred clocks
    }
    return Work{rank, tile.q_head, kv_head, first_row, seen.first + before, min(share, all_tiles - before)};
}
