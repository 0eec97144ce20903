// Online softmax over tiles of e4m3 numbers, each tile with a scale of its own.
//
// The raw scores of a tile are sums of products of e4m3 numbers; times `unit`, the product of the scales of Q and K,
// they are q k. The running maximum is kept in the latter, which all tiles share.
//
// Weights are 2^8 exp(scale * (q k - max)). e4m3 has three bits of fraction between 2^-6 and 448 and nothing below
// 2^-10, so a weight that came out of exp would lose its bits from 0.016 down; times 256, the largest power of two that
// e4m3 has, eight binades more are whole. The factor is an addition to the exponent that an FMA makes anyway, and it
// divides out with the row's sum, which has it too. Weights in float16 need it less, but have it for nothing: between
// 2^-14 and 65504 all their bits are whole, so it moves the end of that from 2^-14 to 2^-22 of the largest weight.
//
// NOTES: the maximum of a tile is subtracted from raw scores, which is exact where it matters, before anything is
// multiplied; so the row's largest weight is exactly 2^8. fma(score, unit, -max) would be off by the rounding of max.
#pragma once

#include "softmax/online.cuh"
#include "tile/quantise.cuh"

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

// A row in one tile.
struct TileRow {
    float raw_max;  // of the row's raw scores in the tile; finite, also if it sees none of them
    float offset;   // exponent of the weight of a raw score that is raw_max
    float rescale;  // factor on what was accumulated before

    // Takes the tile into the row's statistics. raw_max must be at least LOWEST_FLOAT.
    __device__ __forceinline__ TileRow(SoftmaxRow& row, float raw_max, const TileScale& tile, float scale_log2)
        : raw_max(raw_max) {
        const float tile_max = raw_max * tile.unit;
        rescale = row.advance(tile_max, scale_log2);
        offset = fmaf(tile_max - row.max, scale_log2, WEIGHT_EXPONENT);
    }

    __device__ __forceinline__ float weight(float raw_score, const TileScale& tile) const {
        return ptx::ex2_approx_ftz_f32(fmaf(raw_score - raw_max, tile.slope, offset));
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
