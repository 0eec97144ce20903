// Softmax over tiles of e4m3 numbers, each tile with a scale of its own: common parts, and the weights of hopper_fp8
// (TileRows; softmax/fp8_rows.cuh has those of fp8).
//
// The raw scores of a tile are sums of products of e4m3 numbers; times `unit`, the product of the scales of Q and K,
// they equal q k. Accumulated values are in units of a reference in terms of q k, common to all tiles.
//
// In TileRows a tile's weights are 2^8 exp(scale * (q k - its own maximum)), and its product with V joins the others in
// float32 with the factor exp(scale * (its maximum - the reference)). The weights of every tile thus use the whole
// range of e4m3. The factor multiplies a float32 and may be large, so the reference nearly always stays that of the
// first tile and nothing is rescaled. e4m3 has three bits of fraction between 2^-6 and 448 and nothing below 2^-10: a
// weight straight from exp would lose bits below 0.016. Times 256, the largest power of two of e4m3, eight more binades
// keep all bits. The factor is a constant in the exponent, added by an FMA that is needed anyway, and cancels in the
// division by the row's sum, which has the same factor.
//
// NOTES: an exponent is one multiply-add of the raw score, as in FusedExponents. If the maximum of the tile exceeds
// FUSED_LOG2, it is subtracted from the raw scores first, which is exact where it matters.
#pragma once

#include "softmax/online.cuh"
#include "tile/e4m3.cuh"

constexpr float WEIGHT_EXPONENT = 8.0f;  // probability_scale of the declared numerics is 2 to that
constexpr float WEIGHT_UNIT = 1.0f / 256.0f;
constexpr float LEAST_NORMAL_FLOAT = __builtin_bit_cast(float, 0x00800000u);
constexpr float LARGEST_FLOAT = -LOWEST_FLOAT;

// Parameters that turn one tile's raw scores into weights.
struct TileScale {
    float unit;   // > 0: raw score times unit is q k
    float slope;  // unit * |scale| * log2(e), within the normal numbers: times -inf it is -inf, and times 0 it is 0

    __device__ __forceinline__ TileScale(float q_scale, float k_scale, float scale_log2)
        : unit(q_scale * k_scale), slope(fminf(fmaxf(unit * scale_log2, LEAST_NORMAL_FLOAT), LARGEST_FLOAT)) {}
};

// Largest excess, as a power of 2, of a tile's maximum over the reference: sums of 2^31 weights of up to 2^8, times the
// largest |V| of 2^16, still fit a float then.
constexpr float REFERENCE_LAG_LOG2 = 64.0f;

// Two rows of a lane in one tile; the weights are 2^(slope * raw score + offset).
struct TileRows {
    float slope;
    float offset[2];
    float tile_max[2];  // in terms of q k, the unit of all tiles

    // raw_max: either row's largest raw score in the tile; finite, also for a row without visible keys in it.
    __device__ __forceinline__ TileRows(const float (&raw_max)[2], const TileScale& tile) : slope(tile.slope) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            tile_max[row] = raw_max[row] * tile.unit;
            offset[row] = fmaf(-raw_max[row], tile.slope, WEIGHT_EXPONENT);
        }
    }

    // Whether the rounding of the offsets is negligible. If not, the caller subtracts the maxima from the raw scores,
    // and calls subtracted().
    __device__ __forceinline__ bool in_range() const {
        return fmaxf(fabsf(offset[0]), fabsf(offset[1])) <= FUSED_LOG2;
    }

    __device__ __forceinline__ void subtracted() { offset[0] = offset[1] = WEIGHT_EXPONENT; }

    // Whether a reference, the `max` of the row, has to move.
    __device__ __forceinline__ bool outgrown(const SoftmaxRow (&rows)[2], float scale_log2) const {
        return fmaxf(tile_max[0] - rows[0].max, tile_max[1] - rows[1].max) * scale_log2 > REFERENCE_LAG_LOG2;
    }

    // Factor on the sums of the tile's weights and of their products with V, after the references have moved.
    __device__ __forceinline__ float factor(const SoftmaxRow (&rows)[2], int row, float scale_log2) const {
        return softmax_weight(tile_max[row], rows[row].max, scale_log2);
    }

    __device__ __forceinline__ float weight(float raw_score, int row) const {
        return ptx::ex2_approx_ftz_f32(fmaf(raw_score, slope, offset[row]));
    }
};

// Applies the sign to four e4m3 numbers in one register.
__device__ __forceinline__ unsigned apply_sign_e4m3(const ScoreScale& scale, unsigned numbers) {
    return scale.sign == 0.0f ? 0u : numbers ^ (scale.sign < 0.0f ? 0x80808080u : 0u);
}
