// Policy Seen for windows, key lengths and soft caps (mainloop/warpgroups.cuh), based on softmax/window.cuh.
#pragma once

#include "mainloop/tile_ring.cuh"
#include "softmax/window.cuh"

// Visible keys of either row of this thread, counted from its first column of a tile of KEYS, and the cap of the
// scores. HEADS consecutive rows belong to one query.
template <int KEYS, int HEADS>
class WindowColumns {
public:
    // first_row: of the consumer, in a head; first_tile: of keys. keys: length of the batch entry.
    __device__ __forceinline__ WindowColumns(int first_row, int first_tile, int keys)
        : first_row(first_row), first_tile(first_tile), keys(keys), keys_left(keys - first_tile * KEYS) {
        const int thread = threadIdx.x % WARPGROUP;
        const int row = first_row + thread / 32 * WARP_M + thread % 32 / 4;
        const int column = first_tile * KEYS + own_column();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            first[i] = first_key((row + 8 * i) / HEADS) - column;
            end[i] = end_key((row + 8 * i) / HEADS, keys) - column;
        }
        follow_cut();
    }

    // Advances to the next tile.
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            first[i] -= KEYS;
            end[i] -= KEYS;
        }
        keys_left -= KEYS;
        follow_cut();
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
    int keys_left;  // from the present tile's beginning on
    int first[2];
    int end[2];

    // This thread's first column of a tile.
    static __device__ __forceinline__ int own_column() { return 2 * static_cast<int>(threadIdx.x % 4); }

    // The last tile, if the length cuts it, was loaded further to the left (first_loaded): masks the keys that the
    // previous tile had.
    __device__ __forceinline__ void follow_cut() {
        if (KV_LENGTHS && keys_left < KEYS) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                first[i] = max(first[i], -own_column()) + KEYS - keys_left;
                end[i] += KEYS - keys_left;
            }
        }
    }
};

struct KeysOfWindow {
    template <int KEYS, int HEADS>
    using Columns = WindowColumns<KEYS, HEADS>;

    template <int KEYS>
    static __device__ __forceinline__ KeyTiles tiles(int first_query, int last_query, int keys) {
        return tiles_seen<KEYS>(first_query, last_query, keys);
    }

    // First key to load of a tile. A tile that the length cuts ends with the last valid key; TMA fills keys before the
    // first one with zeros.
    template <int KEYS>
    static __device__ __forceinline__ int first_loaded(int tile, int keys) {
        return KV_LENGTHS ? min(tile * KEYS, keys - KEYS) : tile * KEYS;
    }
};
