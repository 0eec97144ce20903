// Visible keys of a query under a window, a length of its batch entry and the causal mask; and the soft cap. All are
// aligned to the top left, as in softmax/mask.cuh. A row may see no key here, and its keys may begin anywhere.
#pragma once

#include "softmax/mask.cuh"
#include "softmax/online.cuh"

#if !defined(WINDOW_LEFT) || !defined(WINDOW_RIGHT) || !defined(SOFTCAP) || !defined(KV_LENGTHS)
#error "define WINDOW_LEFT, WINDOW_RIGHT (-1: no bound), SOFTCAP (0: none) and KV_LENGTHS (0 or 1)"
#endif

constexpr int KEYS_AFTER = CAUSAL ? 0 : WINDOW_RIGHT;

// Query `row` sees the keys first_key .. end_key - 1 of `keys`; none if the interval is empty.
__device__ __forceinline__ int first_key(int row) {
    return WINDOW_LEFT < 0 ? 0 : max(row - WINDOW_LEFT, 0);
}

__device__ __forceinline__ int end_key(int row, int keys) {
    return KEYS_AFTER < 0 ? keys : min(row + KEYS_AFTER + 1, keys);
}

// Tiles of KEYS keys, [first, end), in which any row from first_row to last_row sees a key. A tile of queries without
// visible keys has the first tile, fully masked: its rows then have weights of 0, not the content of uninitialised
// memory.
template <int KEYS>
__device__ __forceinline__ KeyTiles tiles_seen(int first_row, int last_row, int keys) {
    const KeyTiles seen{first_key(first_row) / KEYS, (end_key(last_row, keys) + KEYS - 1) / KEYS};
    return seen.first < seen.end ? seen : KeyTiles{0, 1};
}

// Whether some row from first_row to last_row does not see all of a tile's keys.
template <int KEYS>
__device__ __forceinline__ bool at_edge(int tile, int first_row, int last_row, int keys) {
    return (tile + 1) * KEYS > end_key(first_row, keys) || tile * KEYS < first_key(last_row);
}

// softcap * tanh(score / softcap) of an unscaled score: both are in units of 1 / |scale|. The absolute error of tanh is
// two units of 2^-23, from the exponential and the reciprocal.
struct SoftCap {
    float cap;
    float to_exponent;  // factor to an exponent of 2: 2 log2(e) / cap

    __device__ __forceinline__ explicit SoftCap(float scale_log2)
        : cap(float(SOFTCAP) * LOG2_E / scale_log2), to_exponent(2.0f * scale_log2 / float(SOFTCAP)) {}

    __device__ __forceinline__ float operator()(float score) const {
        const float power = ptx::ex2_approx_ftz_f32(score * to_exponent);
        return cap * (1.0f - 2.0f * ptx::rcp_approx_ftz_f32(1.0f + power));
    }
};

// Policy Mask of a problem with a window, lengths or a soft cap; see CausalMask.
struct WindowMask {
    static constexpr bool HIDES = true;
    static constexpr bool CAPS = SOFTCAP > 0;

    template <int KEYS>
    static __device__ __forceinline__ KeyTiles tiles(int first_query, int last_query, int keys) {
        return tiles_seen<KEYS>(first_query, last_query, keys);
    }

    template <int KEYS>
    struct Unmasked {
        int first;
        int end;

        __device__ __forceinline__ Unmasked(int first_query, int last_query, int keys)
            : first(ceil_div(first_key(last_query), KEYS)), end(end_key(first_query, keys) / KEYS) {}

        __device__ __forceinline__ bool contains(int tile) const {
            return tile < end && (WINDOW_LEFT < 0 || tile >= first);
        }
    };

    struct Row {
        int first;
        int end;

        __device__ __forceinline__ Row(int query, int keys, int first_column)
            : first(first_key(query) - first_column), end(end_key(query, keys) - first_column) {}

        __device__ __forceinline__ bool sees(int key) const { return key < end && (WINDOW_LEFT < 0 || key >= first); }
    };

    template <int BLOCKS, int KEYS_8>
    static __device__ __forceinline__ void cap(float (&scores)[BLOCKS][KEYS_8][4], float scale_log2) {
        const SoftCap capped(scale_log2);
#pragma unroll
        for (auto& block : scores) {
#pragma unroll
            for (auto& four : block) {
#pragma unroll
                for (float& score : four) {
                    score = capped(score);
                }
            }
        }
    }
};
