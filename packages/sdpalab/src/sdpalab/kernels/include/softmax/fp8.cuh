// Softmax over tiles of e4m3 numbers, each tile with a scale of its own: what all kernels have of it, and the weights of
// hopper_fp8 (TileRows; those of fp8 are in softmax/fp8_rows.cuh).
//
// The raw scores of a tile are sums of products of e4m3 numbers; times `unit`, the product of the scales of Q and K,
// they are q k. What was accumulated is in units of a reference, which all tiles share and which is kept in q k.
//
// In TileRows a tile's weights are 2^8 exp(scale * (q k - its own maximum)), and its product with V joins the others in
// float32 with the factor exp(scale * (its maximum - the reference)). So the weights of every tile use all of e4m3; and
// as that factor is on a float32, it may be large, so that the reference nearly always stays what it was at the first
// tile and nothing is rescaled. e4m3 has three bits of fraction between 2^-6 and 448 and nothing below 2^-10, so a weight
// that came out of exp would lose its bits from 0.016 down; times 256, the largest power of two that e4m3 has, eight
// binades more are whole. The factor is an addition to the exponent that an FMA makes anyway, and it divides out with
// the row's sum, which has it too.
//
// NOTES: an exponent is one multiply-add of the raw score, as in FusedExponents. Where the maximum of the tile is beyond
// FUSED_LOG2, it is subtracted from the raw scores first, which is exact where it matters.
#pragma once

#include "softmax/online.cuh"
#include "tile/e4m3.cuh"

constexpr float WEIGHT_EXPONENT = 8.0f;  // probability_scale of the declared numerics is 2 to that
constexpr float WEIGHT_UNIT = 1.0f / 256.0f;
constexpr float LEAST_NORMAL_FLOAT = __builtin_bit_cast(float, 0x00800000u);
constexpr float LARGEST_FLOAT = -LOWEST_FLOAT;

// What turns one tile's raw scores into weights.
struct TileScale {
    float unit;   // > 0: raw score times unit is q k
    float slope;  // unit * |scale| * log2(e), within the normal numbers: times -inf it is -inf, and times 0 it is 0

    __device__ __forceinline__ TileScale(float q_scale, float k_scale, float scale_log2)
        : unit(q_scale * k_scale), slope(fminf(fmaxf(unit * scale_log2, LEAST_NORMAL_FLOAT), LARGEST_FLOAT)) {}
};

// By how much, as a power of 2, a tile's maximum may exceed the reference: sums of 2^31 weights of up to 2^8, times the
// largest |V| of 2^16, then still are floats.
constexpr float REFERENCE_LAG_LOG2 = 64.0f;

// Two rows of a lane in one tile, whose weights are 2^(slope * raw score + offset).
struct TileRows {
    float slope;
    float offset[2];
    float tile_max[2];  // of q k, in units that all tiles share

    // raw_max: of either row's raw scores in the tile; finite, also if it sees none of them.
    __device__ __forceinline__ TileRows(const float (&raw_max)[2], const TileScale& tile) : slope(tile.slope) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            tile_max[row] = raw_max[row] * tile.unit;
            offset[row] = fmaf(-raw_max[row], tile.slope, WEIGHT_EXPONENT);
        }
    }

    // Whether the rounding of the offsets does not matter. Where it does, the caller subtracts the maxima from the raw
    // scores, and has subtracted() say so.
    __device__ __forceinline__ bool in_range() const {
        return fmaxf(fabsf(offset[0]), fabsf(offset[1])) <= FUSED_LOG2;
    }

    __device__ __forceinline__ void subtracted() { offset[0] = offset[1] = WEIGHT_EXPONENT; }

    // Whether a reference, the `max` of the row, may not stay as it is.
    __device__ __forceinline__ bool outgrown(const SoftmaxRow (&rows)[2], float scale_log2) const {
        return fmaxf(tile_max[0] - rows[0].max, tile_max[1] - rows[1].max) * scale_log2 > REFERENCE_LAG_LOG2;
    }

    // Factor on the sums of the tile's weights and of their products with V, once the reference is what it will be.
    __device__ __forceinline__ float factor(const SoftmaxRow (&rows)[2], int row, float scale_log2) const {
        return softmax_weight(tile_max[row], rows[row].max, scale_log2);
    }

    __device__ __forceinline__ float weight(float raw_score, int row) const {
        return ptx::ex2_approx_ftz_f32(fmaf(raw_score, slope, offset[row]));
    }
};

// The sign applied to four e4m3 numbers in one register.
__device__ __forceinline__ unsigned apply_sign_e4m3(const ScoreScale& scale, unsigned numbers) {
    return scale.sign == 0.0f ? 0u : numbers ^ (scale.sign < 0.0f ? 0x80808080u : 0u);
}

// Four e4m3 numbers in one register as float16, which has all of them: the first two, and the others. The conversion
// reads either half of a register, so that taking them apart costs nothing; a shift would be an instruction.
__device__ __forceinline__ uint2 widen_e4m3(unsigned numbers) {
    const ushort2 halves = __builtin_bit_cast(ushort2, numbers);
    return make_uint2(ptx::cvt_rn_f16x2_e4m3x2(halves.x), ptx::cvt_rn_f16x2_e4m3x2(halves.y));
}
