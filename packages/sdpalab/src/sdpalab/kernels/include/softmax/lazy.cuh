// Online softmax of a warp's accumulators with a lagging maximum (FlashAttention-4): the maximum moves, and O is
// rescaled, only if a row's scores have outgrown it.
#pragma once

#include "softmax/online.cuh"

// BLOCKS blocks of 16 rows, two rows a lane in each. BY_ROW: only the maxima move that have to, so that the bits of a
// row do not depend on the other rows of its warp. Otherwise all of a warp's maxima move together.
template <int BLOCKS, bool BY_ROW = false>
struct LazySoftmax {
    SoftmaxRow rows[BLOCKS][2];
    FusedExponents exponents[BLOCKS];
    float lag = NOT_A_NUMBER;  // largest exponent that a tile may reach; NaN (always false) before the first tile, and
                               // -inf after the maxima were subtracted: the exponents do not suit the next tile then

    __device__ __forceinline__ explicit LazySoftmax(float scale_log2) { set_exponents(scale_log2); }

    __device__ __forceinline__ float weight(int block, float score, int row, bool on_fma = false) const {
        return exponents[block].weight(score, row, on_fma);
    }

    // Updates the rows' maxima with a tile's, and sets `exponents` to the tile's.
    template <int COLS_8, int KEYS_8>
    __device__ __forceinline__ void advance(float (&o_frag)[BLOCKS][COLS_8][4], float (&s_frag)[BLOCKS][KEYS_8][4],
                                            float scale_log2) {
        float tile_max[BLOCKS][2];
        float largest = NEGATIVE_INFINITY;
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            row_maxima(tile_max[block], s_frag[block]);
            const float exponent =
                fmaxf(exponents[block].of(tile_max[block][0], 0), exponents[block].of(tile_max[block][1], 1));
            largest = block == 0 ? exponent : fmaxf(largest, exponent);
        }
        if (__all_sync(0xffffffffu, largest <= lag)) {
            return;
        }
        const bool first = !(lag == lag);  // nothing to rescale
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            if constexpr (BY_ROW) {
                const FusedExponents before(rows[block], scale_log2);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if (before.of(tile_max[block][half], half) <= LAG_LOG2 && before.in_range(half)) {
                        tile_max[block][half] = rows[block][half].max;
                    }
                }
            }
            const float rescale[2] = {rows[block][0].advance(tile_max[block][0], scale_log2),
                                      rows[block][1].advance(tile_max[block][1], scale_log2)};
            if (!first) {
                rescale_o(o_frag[block], rescale);
            }
        }
        set_exponents(scale_log2);
        lag = LAG_LOG2;
        bool in_range = true;
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            in_range = in_range && exponents[block].in_range();
        }
        if (__any_sync(0xffffffffu, !in_range)) {
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {
                if constexpr (BY_ROW) {
                    const bool out[2] = {!exponents[block].in_range(0), !exponents[block].in_range(1)};
                    const float subtrahend[2] = {out[0] ? rows[block][0].max : 0.0f,
                                                 out[1] ? rows[block][1].max : 0.0f};
                    subtract(s_frag[block], subtrahend);
                    exponents[block].subtracted(out);
                } else {
                    const float maxima[2] = {rows[block][0].max, rows[block][1].max};
                    subtract(s_frag[block], maxima);
                    exponents[block].subtracted();
                }
            }
            lag = NEGATIVE_INFINITY;
        }
    }

private:
    __device__ __forceinline__ void set_exponents(float scale_log2) {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            exponents[block] = FusedExponents(rows[block], scale_log2);
        }
    }

    // The maximum of each row over the tile.
    template <int KEYS_8>
    static __device__ __forceinline__ void row_maxima(float (&tile_max)[2], const float (&s_frag)[KEYS_8][4]) {
        tile_max[0] = s_frag[0][0];
        tile_max[1] = s_frag[0][2];
#pragma unroll
        for (int n = 0; n < KEYS_8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                tile_max[i / 2] = fmaxf(tile_max[i / 2], s_frag[n][i]);
            }
        }
        tile_max[0] = quad_max(tile_max[0]);
        tile_max[1] = quad_max(tile_max[1]);
    }

    template <int KEYS_8>
    static __device__ __forceinline__ void subtract(float (&s_frag)[KEYS_8][4], const float (&subtrahend)[2]) {
#pragma unroll
        for (int n = 0; n < KEYS_8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s_frag[n][i] -= subtrahend[i / 2];
            }
        }
    }
};
