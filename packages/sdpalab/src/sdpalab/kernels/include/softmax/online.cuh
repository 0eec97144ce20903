// Online softmax (Milakov and Gimelshein 2018; FlashAttention-2, Dao 2023), for one row at a time.
//
// A weight is 2^((score - max) * scale_log2) with the true running maximum of the row. NOTES: why there are no guards.
// - softmax_weight() subtracts the maximum before it is scaled: then the largest weight is exactly 1. FusedExponents has
//   one multiply-add a score in place of two instructions. It rounds max * c, and all weights of a row share the factor
//   that comes of it: at most 2^(2^-15) where max * c is at most FUSED_LOG2, and beyond the exponent range of a float
//   near the FP16 maximum. Where it is more, the maximum is subtracted from the scores first.
// - So 0.99 < sum for a row that sees a key. A sum of 0 means a row that sees none; its output is 0.
// - A kernel may let the maximum lag behind (LAG_LOG2). It is then still a score of the row, whose weight is 1 as above,
//   and no weight is above 2^8.
// - A masked score is -inf. The running maximum starts at the lowest finite float, which every score reaches and
//   which, unlike -inf, can be subtracted from -inf: without a visible key so far, weights are 0, not NaN.
// - A negative scale would turn the maximum into a minimum, and a scale of 0 would make 0 * -inf of a masked score.
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
    float sign;  // -1, 0 or 1: what to multiply Q, or the scores before masking, by

    __device__ __forceinline__ explicit ScoreScale(float scale)
        : log2(scale == 0.0f ? 1.0f : fabsf(scale) * LOG2_E), sign(scale == 0.0f ? 0.0f : copysignf(1.0f, scale)) {}

    // The sign applied to a pair of 16-bit floats in one register, of either type.
    __device__ __forceinline__ unsigned apply_sign(unsigned pair) const {
        return sign == 0.0f ? 0u : pair ^ (sign < 0.0f ? 0x80008000u : 0u);
    }
};

// 2^(factor * x + offset) without the special function unit, on FMA units that have nothing else to do
// (FlashAttention-4): the exponent is n + f with n the nearest integer, and n is added to the exponent of 2^f, which is a
// polynomial. Nine instructions, as the clamp to -127 to 127 is the saturation of the first one, to 0 to 1.
class PowerOnFma {
public:
    __device__ __forceinline__ PowerOnFma(float factor, float offset)
        : factor(factor * (1.0f / WIDTH)), offset(fmaf(offset, 1.0f / WIDTH, 0.5f)) {}

    // The relative error is at most 8.1e-6 = 2^-16.9, above 2^-126 and for exponents up to 8 (fitted: 2.8e-6; the rest is
    // the rounding of `place`, by a unit in the last place of up to 2^-24 * WIDTH). As the polynomial is exactly 1 at 0,
    // so is 2^0. What is below -127 gives 0, as does NaN; 127 and all above give 2^127.
    __device__ __forceinline__ float of(float x) const {
        constexpr float TO_INTEGER = 1.5f * (1 << 23) + LEAST;  // a sum with it is an integer, in its lowest bits
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

// Factor on a row's output; 0 for a row that saw no key.
__device__ __forceinline__ float softmax_normaliser(float row_sum) {
    return row_sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz_f32(row_sum);
}

// Natural logarithm of the sum of exp(scale * score) over the keys a row sees; -inf for a row that saw none.
__device__ __forceinline__ float log_sum_exp(float row_max, float row_sum, float scale_log2) {
    return (row_max * scale_log2 + ptx::lg2_approx_ftz_f32(row_sum)) * LN_2;
}

// By how much, as a power of 2, a row's scores may outgrow the maximum that its weights are taken from
// (FlashAttention-4), so that most tiles need no rescaling. A weight of up to 2^8 has the relative rounding of one up
// to 1; but the largest is then no power of two, and is rounded itself.
constexpr float LAG_LOG2 = 8.0f;
constexpr float LARGEST_WEIGHT = 256.0f;  // 2 to that

// Statistics of one row over the tiles so far; where lanes share a row, each may keep a sum over its own columns.
struct SoftmaxRow {
    float max = LOWEST_FLOAT;
    float sum = 0.0f;

    // Takes in the maximum over a new tile's columns. Returns the factor that rescales what was accumulated.
    __device__ __forceinline__ float advance(float tile_max, float scale_log2) {
        const float previous = max;
        max = fmaxf(previous, tile_max);
        const float rescale = softmax_weight(previous, max, scale_log2);
        sum *= rescale;
        return rescale;
    }
};

// The weights of a lane's two rows, their maxima subtracted first.
struct ExactExponents {
    const SoftmaxRow (&rows)[2];
    float scale_log2;

    // on_fma: known as the kernel is compiled.
    __device__ __forceinline__ float weight(float score, int row, bool on_fma = false) const {
        const float below = score - rows[row].max;
        return on_fma ? PowerOnFma(scale_log2, 0.0f).of(below) : ptx::ex2_approx_ftz_f32(below * scale_log2);
    }
};

// The largest max * scale_log2 of fused exponents. Its rounding is off by 2^-15 at most, and so are the exponents of all
// weights of a row alike; P in 16 bits is off by 2^-12 of each weight.
constexpr float FUSED_LOG2 = 1024.0f;

// The weights of a lane's two rows, with one multiply-add an exponent. Before the first tile, whose maximum is
// not known, they are not in_range().
struct FusedExponents {
    float scale_log2;
    float offset[2];  // to the scaled scores of either row

    __device__ __forceinline__ FusedExponents(const SoftmaxRow (&rows)[2], float scale_log2)
        : scale_log2(scale_log2), offset{-rows[0].max * scale_log2, -rows[1].max * scale_log2} {}

    // Whether the rounding of the offsets does not matter. Where it does, the caller subtracts the maxima from the
    // scores, and has subtracted() say so.
    __device__ __forceinline__ bool in_range() const {
        return fmaxf(fabsf(offset[0]), fabsf(offset[1])) <= FUSED_LOG2;
    }

    __device__ __forceinline__ void subtracted() { offset[0] = offset[1] = 0.0f; }

    // Makes NaN of all weights whose exponents would not be in range, so that a look at their sum finds them.
    __device__ __forceinline__ void forbid_out_of_range() {
#pragma unroll
        for (float& each : offset) {
            each = fabsf(each) <= FUSED_LOG2 ? each : NOT_A_NUMBER;
        }
    }

    // Whether a row's maximum may not stay as it is before a tile with these maxima. If it stays, nothing is rescaled.
    __device__ __forceinline__ bool outgrown_by(const float (&tile_max)[2]) const {
        return fmaxf(of(tile_max[0], 0), of(tile_max[1], 1)) > LAG_LOG2;
    }

    // The same of bounds of either row's scores, for exponents of which those out of range are forbidden.
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
