// Softmax of a warp's two rows a lane over tiles of e4m3 numbers; most steps of the main loop need no maximum.
//
// A tile's weights are 2^(4 + scale * log2(e) * (q k - the row's reference)), and the reference is a maximum of earlier
// tiles. They are computed before the tile's own maximum is known, and their sums verify the reference: a sum of at
// most 448 contains no weight above 448, the largest number of e4m3. Otherwise the references move to the true maxima,
// and the weights are recomputed. Most steps therefore compute no maximum of a tile and exchange none between lanes,
// and all products are added to O with the same factor. A lane has 16 weights of a row in a tile: 16 equal weights are
// 2^4 each, and their sum is within the limit. The first tile has no reference yet, and starts with its maxima.
//
// e4m3 has all its bits from 2^-6 on, and so do weights of 2^-10 of the reference's, fewer where it lags behind. In
// float16 (P_DTYPE of fp8) weights have all their bits down to 2^-18.
//
// NOTES: an exponent is one multiply-add of the raw score, as in FusedExponents. If the rounding of a reference beyond
// FUSED_LOG2 matters, the references move in every tile, and the maxima are subtracted from the raw scores first.
#pragma once

#include "softmax/fp8.cuh"

constexpr float REFERENCE_EXPONENT = 4.0f;  // probability_scale of the declared numerics is 2 to that
constexpr float REFERENCE_UNIT = 1.0f / 16.0f;

struct Fp8Rows {
    SoftmaxRow rows[1][2];  // max: the reference
    float offset[2];        // of either row's exponents, in all tiles until references move
    bool fused;             // the rounding of both offsets is negligible

    // Whether weights with these sums over a lane's columns are valid, in all lanes.
    __device__ __forceinline__ bool fit(const float (&sum)[2]) const {
        return __all_sync(0xffffffffu, fused && sum[0] <= E4M3_MAX && sum[1] <= E4M3_MAX);
    }

    // Moves the references to the tile's maxima, where those are larger. `rescale`: factors on the accumulated values;
    // `now`: offsets of this tile. Returns true, in all lanes, if the caller has to subtract raw_max from the raw
    // scores first. raw_max: finite, also for a row without visible keys.
    __device__ __forceinline__ bool move(float (&rescale)[2], float (&now)[2], const float (&raw_max)[2],
                                         const TileScale& tile, float scale_log2) {
        const float score_max[2] = {raw_max[0] * tile.unit, raw_max[1] * tile.unit};
        fused = true;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            rescale[row] = rows[0][row].advance(score_max[row], scale_log2);
            const float reference = rows[0][row].max * scale_log2;
            now[row] = offset[row] = REFERENCE_EXPONENT - reference;
            fused = fused && fabsf(reference) <= FUSED_LOG2;
        }
        const bool subtract = __any_sync(0xffffffffu, !fused);
        if (subtract) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                now[row] = REFERENCE_EXPONENT + (score_max[row] - rows[0][row].max) * scale_log2;
            }
        }
        return subtract;
    }
};
