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
