// The softmax of softmax/fp8.cuh for a warp's two rows a lane, with tile and reference compared in base 2: what a tile's
// maximum exceeds the reference by is at once what is tested and the exponent of the factor on its sums.
//
// NOTES: a maximum to base 2 is rounded, by 2^-14 at most where it is within FUSED_LOG2. Offset and factor of a tile come
// of the same rounded number, so that their product is off by the rounding of the reference alone, which all tiles
// share. Beyond FUSED_LOG2, and where the reference moves, all is computed from differences of the scores themselves.
#pragma once

#include "softmax/fp8.cuh"

struct Fp8Rows {
    SoftmaxRow rows[2];
    float reference[2];  // that of rows, to base 2
    float slope;         // of the tile: its weights are 2^(slope * raw score + offset)
    float offset[2];
    float above[2];  // log2 of the factor on sums of the tile

    __device__ __forceinline__ explicit Fp8Rows(float scale_log2) { refer(scale_log2); }

    // Takes in a tile's largest raw scores, which are finite also if a row sees none. True, in all lanes, if that was
    // all; otherwise move() has to follow.
    __device__ __forceinline__ bool advance(const float (&raw_max)[2], const TileScale& tile) {
        const float top[2] = {raw_max[0] * tile.slope, raw_max[1] * tile.slope};
        slope = tile.slope;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            offset[row] = WEIGHT_EXPONENT - top[row];
            above[row] = top[row] - reference[row];
        }
        const bool in_range = fmaxf(fabsf(top[0]), fabsf(top[1])) <= FUSED_LOG2;
        const bool reached = fmaxf(above[0], above[1]) <= REFERENCE_LAG_LOG2;
        return __all_sync(0xffffffffu, in_range && reached);
    }

    // Moves the references to the tile's maxima, and returns in `rescale` the factors on what was accumulated. True, in
    // all lanes, if the caller has to subtract raw_max from the raw scores.
    __device__ __forceinline__ bool move(float (&rescale)[2], const float (&raw_max)[2], const TileScale& tile,
                                         float scale_log2) {
        const float score_max[2] = {raw_max[0] * tile.unit, raw_max[1] * tile.unit};
        const bool in_range = fmaxf(fabsf(raw_max[0] * slope), fabsf(raw_max[1] * slope)) <= FUSED_LOG2;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            rescale[row] = rows[row].advance(score_max[row], scale_log2);
            above[row] = (score_max[row] - rows[row].max) * scale_log2;
        }
        refer(scale_log2);
        const bool subtract = __any_sync(0xffffffffu, !in_range);
        if (subtract) {
            offset[0] = offset[1] = WEIGHT_EXPONENT;
        }
        return subtract;
    }

    __device__ __forceinline__ float weight(float raw_score, int row) const {
        return ptx::ex2_approx_ftz_f32(fmaf(raw_score, slope, offset[row]));
    }

    // Factor on the sums of the tile's weights and of their products with V.
    __device__ __forceinline__ float factor(int row) const { return ptx::ex2_approx_ftz_f32(above[row]); }

private:
    __device__ __forceinline__ void refer(float scale_log2) {
        reference[0] = rows[0].max * scale_log2;
        reference[1] = rows[1].max * scale_log2;
    }
};
