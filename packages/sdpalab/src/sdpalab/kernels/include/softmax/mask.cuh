// Visible keys of a query. Causal is aligned to the top left: query i sees keys 0..i, also when seq_q != seq_kv.
//
// Every row sees key 0, so a kernel that visits tiles in ascending order meets a visible key in its first tile.
#pragma once

#include "tile/ceil_div.cuh"

#ifndef CAUSAL
#error "define CAUSAL as 0 or 1"
#endif

// Query `row` sees exactly the keys 0 .. visible_keys - 1; one comparison covers the causal and the ragged edge.
__device__ __forceinline__ int visible_keys(int row, int seq_kv) {
    return CAUSAL ? min(row + 1, seq_kv) : seq_kv;
}

// Tiles of keys, [first, end).
struct KeyTiles {
    int first;
    int end;
};

// Tiles of BLOCK_N keys in which any row up to last_row sees a key; later tiles are never loaded.
__device__ __forceinline__ int tiles_visible(int last_row, int seq_kv, int block_n) {
    return ceil_div(visible_keys(last_row, seq_kv), block_n);
}

// Leading tiles of BLOCK_N keys that every row from first_row on sees in full: they need no mask.
__device__ __forceinline__ int tiles_unmasked(int first_row, int seq_kv, int block_n) {
    return visible_keys(first_row, seq_kv) / block_n;
}

// Policy Mask of a problem without windows: a row sees all keys up to the last one, or up to its own under a causal
// mask. Queries are numbered by the key that the diagonal gives them.
struct CausalMask {
    static constexpr bool HIDES = CAUSAL;  // keys before the last one
    static constexpr bool CAPS = false;

    // Tiles of KEYS keys in which any of the queries sees a key.
    template <int KEYS>
    static __device__ __forceinline__ KeyTiles tiles(int, int last_query, int keys) {
        return KeyTiles{0, tiles_visible(last_query, keys, KEYS)};
    }

    // Tiles of KEYS keys that every query sees in full.
    template <int KEYS>
    struct Unmasked {
        int end;

        __device__ __forceinline__ Unmasked(int first_query, int, int keys)
            : end(tiles_unmasked(first_query, keys, KEYS)) {}
        __device__ __forceinline__ bool contains(int tile) const { return tile < end; }
    };

    // Keys that a query sees, from key `first` on.
    struct Row {
        int keys_left;

        __device__ __forceinline__ Row(int query, int keys, int first) : keys_left(visible_keys(query, keys) - first) {}
        __device__ __forceinline__ bool sees(int key) const { return key < keys_left; }
    };
};
