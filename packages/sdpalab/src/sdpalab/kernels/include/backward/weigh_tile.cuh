// P and dS of a warp's accumulators of S and dP, 16 owned rows by some streamed ones, packed as left operands.
#pragma once

#include "backward/scores.cuh"

constexpr int STATISTICS_BYTES = 2 * STREAM * static_cast<int>(sizeof(float));  // of a stage: -LSE, then delta

// A lane's -LSE and delta of the pairs in a tile: those of its two rows for owned queries, of its columns, from shared
// memory, for owned keys.
template <bool OWNS_KEYS>
struct Statistics {
    float minus_lse[2];
    float delta[2];
    const float* columns;  // this stage's -LSE, then delta, from the lane's first column on

    __device__ __forceinline__ float2 minus_lse_at(int n, int half) const {
        return OWNS_KEYS ? *reinterpret_cast<const float2*>(columns + 8 * n)
                         : make_float2(minus_lse[half], minus_lse[half]);
    }

    __device__ __forceinline__ float2 delta_at(int n, int half) const {
        return OWNS_KEYS ? *reinterpret_cast<const float2*>(columns + STREAM + 8 * n)
                         : make_float2(delta[half], delta[half]);
    }
};

// P and dS of a lane's pairs in 16 rows and 16 BLOCKS columns, as packed left operands. row, column: the lane's first, in
// the two sequences.
template <bool OWNS_KEYS, bool EDGE, int BLOCKS>
__device__ __forceinline__ void weigh_tile(unsigned (&p)[BLOCKS][4], unsigned (&ds)[BLOCKS][4],
                                           const float (&s)[2 * BLOCKS][4], const float (&dp)[2 * BLOCKS][4],
                                           const HeadScores& scores, const Statistics<OWNS_KEYS>& statistics, int row,
                                           int column) {
#pragma unroll
    for (int n = 0; n < 2 * BLOCKS; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 minus_lse = statistics.minus_lse_at(n, half);
            const float2 delta = statistics.delta_at(n, half);
            float weight[2];
            float gradient[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int own = row + 8 * half;
                const int other = column + 8 * n + i;
                scores.template weigh<EDGE>(weight[i], gradient[i], s[n][2 * half + i], dp[n][2 * half + i],
                                            OWNS_KEYS ? other : own, OWNS_KEYS ? own : other,
                                            i ? minus_lse.y : minus_lse.x, i ? delta.y : delta.x);
            }
            p[n / 2][n % 2 * 2 + half] = pack_pair(weight[0], weight[1]);
            ds[n / 2][n % 2 * 2 + half] = pack_pair(gradient[0], gradient[1]);
        }
    }
}
