// Tiles of keys and of queries that meet.
#pragma once

#include "backward/scores.cuh"
#include "tile/ceil_div.cuh"

// Tiles of queries [first, end) that see a key of the tile, and, for each of them, the tiles of keys that it sees.
struct TilesSeen {
    Entry entry;

    __device__ __forceinline__ Span of_keys(int first_key) const {
        const int end_key = min(first_key + BLOCK, entry.keys);
        const Span rows = first_key < end_key ? entry.queries_of(first_key, end_key - 1) : Span{0, 0};
        return rows.first < rows.end ? Span{rows.first / STREAM, ceil_div(rows.end, STREAM)} : Span{0, 0};
    }

    __device__ __forceinline__ Span of_queries(int tile) const {
        const Span keys = entry.keys_of(tile * STREAM, min((tile + 1) * STREAM, entry.queries) - 1);
        return Span{keys.first / BLOCK, ceil_div(keys.end, BLOCK)};
    }
};
