// Tiles of queries of a block: one tile by its place in the grid, or (persistent) one after the other until all are
// done.
#pragma once

#include "ptx/cluster.cuh"
#include "schedule/head.cuh"
#include "softmax/mask.cuh"

struct QueryTile {
    int q_head;  // among those of all batches
    int number;  // in the head
};

// Order in which persistent blocks process the tiles.
struct TileOrder {
    unsigned tiles_per_head;
    unsigned q_heads;         // of all batches
    unsigned heads_at_once;   // heads whose tiles are mixed under a causal mask: at least as many tiles as blocks
    unsigned rounds_at_once;  // rounds that assign those tiles
};

// A scheduler declares whether a CTA processes several tiles (STAYS), and the number of CTAS of a cluster per tile.

// grid = (SHARERS times tiles of queries, query heads, batch): SHARERS neighbours share a tile.
template <int SHARERS>
class GridTile {
public:
    static constexpr bool STAYS = false;
    static constexpr int CTAS = SHARERS;

    __device__ __forceinline__ explicit GridTile(const TileOrder&) {}

    // Causal tiles further down have more keys: they run first, so the short ones finish last.
    __device__ __forceinline__ QueryTile tile() const {
        const int tiles = gridDim.x / SHARERS;
        const int number = blockIdx.x / SHARERS;
        return QueryTile{static_cast<int>(q_head_of_block()), CAUSAL ? tiles - 1 - number : number};
    }

    __device__ __forceinline__ bool next() { return false; }
};

// grid = (blocks), at most one per tile. Blocks get tiles in rounds, head by head, and compute the numbers of their
// tiles without communication.
//
// Under a causal mask tiles differ in length. The tiles of heads_at_once heads are assigned from the longest to the
// shortest, in reverse order in every second round: the block with the longest tile of one round gets the shortest of
// the next, so all blocks end at about the same time. The next heads begin with a new round. Mixing only some heads
// keeps several blocks on the same K and V at about the same time.
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

    // Advances to the next tile; false if there is none.
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

    // Number of the block's tile in this round, among the mixed ones. Special registers are re-read each time: the
    // producer has no registers to keep their values.
    __device__ __forceinline__ unsigned place() const {
        const unsigned blocks = opaque(static_cast<int>(gridDim.x));
        const unsigned block = ptx::ctaid_x();
        if (CAUSAL) {
            return round % order.rounds_at_once * blocks + (round % 2 ? blocks - 1 - block : block);
        }
        return round * blocks + block;
    }
};

// Current work of a CTA: its rows, counted in one head, and its tiles of keys. HEADS heads of a group that share a tile
// count as one head: row HEADS i + j is query i of the j-th of them, and q_head the number of such heads.
struct Work {
    unsigned rank;  // of the CTA in the cluster
    int q_head;     // among those of all batches
    int kv_head;
    int first_row;
    int first_tile;
    int tiles;
};

// Work of this CTA, one of CTAS that share a tile of queries: all rows of the tile, and a part of the keys that they
// see under the policy Seen (mainloop/warpgroups.cuh). group: heads, as above, that share one K/V head.
template <int CTAS, int ROWS, int HEADS, int KEYS, class Seen>
__device__ __forceinline__ Work work_on(const QueryTile& tile, int seq_q, int seq_kv, int group) {
    const unsigned rank = CTAS > 1 ? ptx::cluster_ctarank() : 0;
    const int first_row = tile.number * ROWS;
    const KeyTiles seen =
        Seen::template tiles<KEYS>(first_row / HEADS, min((first_row + ROWS) / HEADS, seq_q) - 1, seq_kv);
    const int all_tiles = seen.end - seen.first;
    const int share = ceil_div(all_tiles, CTAS);  // the last CTAs get fewer, or none
    const int before = CTAS > 1 ? min(static_cast<int>(rank) * share, all_tiles) : 0;
    int kv_head = tile.q_head;
    if (group != 1) {
        kv_head /= group;  // delays the first copies by about a hundred clocks
    }
    return Work{rank, tile.q_head, kv_head, first_row, seen.first + before, min(share, all_tiles - before)};
}
