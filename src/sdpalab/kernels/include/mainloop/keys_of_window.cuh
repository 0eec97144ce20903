// The policy Seen of kernels with windows, key lengths and soft caps (mainloop/warpgroups.cuh), by softmax/window.cuh.
#pragma once

#include "mainloop/tile_ring.cuh"
#include "softmax/window.cuh"

// Which keys either row of this thread sees, from its first column of a tile of KEYS on; and the cap of their scores.
// HEADS rows are one query's.
template <int KEYS, int HEADS>
class WindowColumns {
public:
    // first_row: of the consumer, in a head; first_tile: of keys. keys: of the batch entry.
    __device__ __forceinline__ WindowColumns(int first_row, int first_tile, int keys)
        : first_row(first_row), first_tile(first_tile), keys(keys) {
        const int thread = threadIdx.x % WARPGROUP;
        const int row = first_row + thread / 32 * WARP_M + thread % 32 / 4;
        const int column = first_tile * KEYS + 2 * (thread % 4);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            first[i] = first_key((row + 8 * i) / HEADS) - column;
            end[i] = end_key((row + 8 * i) / HEADS, keys) - column;
        }
    }

    // Goes to the next tile.
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            first[i] -= KEYS;
            end[i] -= KEYS;
        }
    }

    __device__ __forceinline__ bool at_edge(int tile) const {
        return ::at_edge<KEYS>(first_tile + tile, first_row / HEADS, (first_row + WARPGROUP_M - 1) / HEADS, keys);
    }

    __device__ __forceinline__ bool sees(int column, int row) const {
        return column >= first[row] && column < end[row];
    }

    static constexpr bool CAPS = SOFTCAP > 0;

    template <int SCORES>
    __device__ __forceinline__ void cap(float (&s_frag)[SCORES], float scale_log2) const {
        if (SOFTCAP > 0) {
            const SoftCap capped(scale_log2);
#pragma unroll
            for (float& score : s_frag) {
                score = capped(score);
            }
        }
    }

private:
    int first_row;
    int first_tile;
    int keys;
    int first[2];
    int end[2];
};

struct KeysOfWindow {
    template <int KEYS, int HEADS>
    using Columns = WindowColumns<KEYS, HEADS>;

    template <int KEYS>
    static __device__ __forceinline__ KeyTiles tiles(int first_query, int last_query, int keys) {
        return tiles_seen<KEYS>(first_query, last_query, keys);
    }
};
