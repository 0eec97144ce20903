// Online softmax (Milakov and Gimelshein 2018; FlashAttention-2, Dao 2023), for one row at a time.
//
// A weight is 2^((score - max) * scale_log2) with the true running maximum of the row. NOTES: guards are unnecessary.
// - softmax_weight() subtracts the maximum before scaling: the largest weight is exactly 1. FusedExponents takes one
//   multiply-add a score instead of two instructions. It rounds max * c, so all weights of a row share a factor:
//   at most 2^(2^-15) if max * c is at most FUSED_LOG2, but beyond the exponent range of a float near the FP16 maximum.
//   Above FUSED_LOG2 the maximum is therefore subtracted from the scores first.
// - Hence 0.99 < sum for a row that sees a key. A sum of 0 means a row that sees none; its output is 0.
// - A kernel may let the maximum lag behind (LAG_LOG2). It is still a score of the row, whose weight is 1 as above,
//   and no weight exceeds 2^8.
// - A masked score is -inf. The running maximum starts at the lowest finite float, which every score reaches and
//   which, unlike -inf, can be subtracted from -inf: before the first visible key, weights are 0, not NaN.
// - A negative scale would turn the maximum into a minimum, and a scale of 0 would give 0 * -inf for a masked score.
//   The sign (-1, 0 or 1) is applied to Q or to the scores, exactly, and the softmax has a positive scale.
#pragma once

#include "ptx/sm80.cuh"

constexpr float NEGATIVE_INFINITY = __builtin_bit_cast(float, 0xff800000u);  // NVRTC has no <cmath>
constexpr float NOT_A_NUMBER = __builtin_bit_cast(float, 0x7fffffffu);
constexpr float LOWEST_FLOAT = __builtin_bit_cast(float, 0xff7fffffu);
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

struct ScoreScale {
    float log2;  // > 0: |scale| * log2(e), or 1 where scale is 0
    float sign;  // -1, 0 or 1: factor on Q, or on the scores before masking

    __device__ __forceinline__ explicit ScoreScale(float scale)
        : log2(scale == 0.0f ? 1.0f : fabsf(scale) * LOG2_E), sign(scale == 0.0f ? 0.0f : copysignf(1.0f, scale)) {}

    // Applies the sign to a pair of 16-bit floats in one register, of either type.
    __device__ __forceinline__ unsigned apply_sign(unsigned pair) const {
        return sign == 0.0f ? 0u : pair ^ (sign < 0.0f ? 0x80008000u : 0u);
    }
};

// 2^(factor * x + offset) on idle FMA units instead of the special function unit (FlashAttention-4): the exponent is n
// + f with n the nearest integer, 2^f is a polynomial, and n is added to its exponent field. Nine instructions: the
// saturation of the first one to 0 to 1 is the clamp to -127 to 127.
class PowerOnFma {
public:
    __device__ __forceinline__ PowerOnFma(float factor, float offset)
        : factor(factor * (1.0f / WIDTH)), offset(fmaf(offset, 1.0f / WIDTH, 0.5f)) {}

    // The relative error is at most 8.1e-6 = 2^-16.9, above 2^-126 and for exponents up to 8 (fitted: 2.8e-6; the rest
    // is the rounding of `place`, by a unit in the last place of up to 2^-24 * WIDTH). The polynomial is exactly 1 at
    // 0, and so is 2^0. Exponents below -127, and NaN, give 0; exponents from 127 up give 2^127.
    __device__ __forceinline__ float of(float x) const {
        constexpr float TO_INTEGER = 1.5f * (1 << 23) + LEAST;  // a sum with it has the integer in its lowest bits
        const float place = ptx::fma_rn_sat_f32(x, factor, offset);
        const float shifted = fmaf(place, WIDTH, TO_INTEGER);
        const float f = fmaf(place, WIDTH, TO_INTEGER - shifted);
        float power = fmaf(0x1.3a02ccp-7f, f, 0x1.c9fc46p-5f);
        power = fmaf(power, f, 0x1.ec0378p-3f);
        power = fmaf(power, f, 0x1.62e12cp-1f);
        power = fmaf(power, f, 1.0f);
        return __uint_as_float(__float_as_uint(power) + (__float_as_uint(shifted) << 23));
    }

private:
    static constexpr float LEAST = -127.0f;  // the exponent of 0
    static constexpr float WIDTH = -2 * LEAST;

    float factor;
    float offset;
};

__device__ __forceinline__ float softmax_weight(float score, float reference, float scale_log2) {
    return ptx::ex2_approx_ftz_f32((score - reference) * scale_log2);
}

// Factor on a row's output; 0 for a row that sees no key.
__device__ __forceinline__ float softmax_normaliser(float row_sum) {
    return row_sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz_f32(row_sum);
}

// Natural logarithm of the sum of exp(scale * score) over the keys that a row sees; -inf for a row that sees none.
__device__ __forceinline__ float log_sum_exp(float row_max, float row_sum, float scale_log2) {
    return (row_max * scale_log2 + ptx::lg2_approx_ftz_f32(row_sum)) * LN_2;
}

// Largest lag, as a power of 2, of a row's maximum behind its scores (FlashAttention-4): most tiles then need no
// rescaling. A weight of up to 2^8 has the same relative rounding as one up to 1; but the largest weight is then not a
// power of two, and is rounded itself.
constexpr float LAG_LOG2 = 8.0f;
constexpr float LARGEST_WEIGHT = 256.0f;  // 2^LAG_LOG2

// Statistics of one row over the tiles so far; lanes that share a row may each keep a sum over their own columns.
struct SoftmaxRow {
    float max = LOWEST_FLOAT;
    float sum = 0.0f;

    // Includes the maximum over a new tile's columns. Returns the factor that rescales the accumulated values.
    __device__ __forceinline__ float advance(float tile_max, float scale_log2) {
        const float previous = max;
        max = fmaxf(previous, tile_max);
        const float rescale = softmax_weight(previous, max, scale_log2);
        sum *= rescale;
        return rescale;
    }
};

// Largest max * scale_log2 of fused exponents. Its rounding error is 2^-15 at most, equal for the exponents of all
// weights of a row; P in 16 bits has an error of 2^-12 of each weight.
constexpr float FUSED_LOG2 = 1024.0f;

// Weights of a lane's two rows, with one multiply-add an exponent. They are not in_range() before the first tile, whose
// maximum is unknown.
struct FusedExponents {
    float scale_log2;
    float offset[2];  // added to the scaled scores of either row

    FusedExponents() = default;

    __device__ __forceinline__ FusedExponents(const SoftmaxRow (&rows)[2], float scale_log2)
        : scale_log2(scale_log2), offset{-rows[0].max * scale_log2, -rows[1].max * scale_log2} {}

    // Whether the rounding of the offsets is negligible. If not, the caller subtracts the maxima from the scores, and
    // calls subtracted().
    __device__ __forceinline__ bool in_range() const { return fmaxf(fabsf(offset[0]), fabsf(offset[1])) <= FUSED_LOG2; }

    __device__ __forceinline__ bool in_range(int row) const { return fabsf(offset[row]) <= FUSED_LOG2; }

    __device__ __forceinline__ void subtracted() { offset[0] = offset[1] = 0.0f; }

    // The same for some rows.
    __device__ __forceinline__ void subtracted(const bool (&rows)[2]) {
        offset[0] = rows[0] ? 0.0f : offset[0];
        offset[1] = rows[1] ? 0.0f : offset[1];
    }

    // Sets out-of-range offsets to NaN; the check of the weights' sum then fails and the tile is recomputed.
    __device__ __forceinline__ void forbid_out_of_range() {
#pragma unroll
        for (float& each : offset) {
            each = fabsf(each) <= FUSED_LOG2 ? each : NOT_A_NUMBER;
        }
    }

    // Whether a row's maximum has to move before a tile with these maxima. Otherwise nothing is rescaled.
    __device__ __forceinline__ bool outgrown_by(const float (&tile_max)[2]) const {
        return fmaxf(of(tile_max[0], 0), of(tile_max[1], 1)) > LAG_LOG2;
    }

    // The same for upper bounds of either row's scores, and exponents whose out-of-range offsets are forbidden.
    __device__ __forceinline__ bool reach(const float (&bound)[2]) const {
        return of(bound[0], 0) <= LAG_LOG2 && of(bound[1], 1) <= LAG_LOG2;
    }

    __device__ __forceinline__ float of(float score, int row) const { return fmaf(score, scale_log2, offset[row]); }

    __device__ __forceinline__ float weight(float score, int row, bool on_fma = false) const {
        return on_fma ? power(row).of(score) : ptx::ex2_approx_ftz_f32(of(score, row));
    }

    __device__ __forceinline__ PowerOnFma power(int row) const { return PowerOnFma(scale_log2, offset[row]); }
};

// Reductions over the four lanes that hold one row of an mma accumulator.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Rescales accumulators frag[n][i] of rows i / 2.
template <int COLS_8>
__device__ __forceinline__ void rescale_o(float (&o_frag)[COLS_8][4], const float (&factor)[2]) {
#pragma unroll
    for (int d = 0; d < COLS_8; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            o_frag[d][i] *= factor[i / 2];
        }
    }
}
