// Products of one warp in e4m3, for mainloop/warps.cuh: 16 rows of Q against tiles of KEYS keys that share a scale
// each.
//
//   S = Q K^T   raw scores of m16n8k32; a tile has one scale of K, and a warp one of Q
//   O += s P V  a tile's product starts from 0; a float32 multiply-add with s, the scale of its V, adds it to O
// Sums in the tensor cores have at most 128 terms, which bounds the bits that the hardware drops.
//
// P stays in the registers. The packed accumulators of two m16n8 blocks of S hold the four numbers of the next left
// operand in another order of keys. The rows of V may have any order, and quantise_blocks writes them in this one. It
// also writes V^T: the right operand runs along the keys, and ldmatrix transposes 16-bit elements only.
#pragma once

#include "mainloop/fp8_blocks.cuh"
#include "softmax/fp8_rows.cuh"

// Weights of a tile, packed as left operands of O += P V.
enum class WeightType { e4m3, fp16 };

template <WeightType, int KEYS>
struct TileWeights;

template <int KEYS>
struct TileWeights<WeightType::e4m3, KEYS> {
    unsigned frag[KEYS / 32][4];

    // Register i of keys 32n .. 32n + 31: a row's weights of two keys in one block of eight, and of two in the next.
    __device__ __forceinline__ void set(int n, int i, float p0, float p1, float p2, float p3) {
        frag[n][i] = pack_e4m3(p0, p1, p2, p3);
    }

    // v0, v1: right operand of m16n8k32 for these keys.
    __device__ __forceinline__ void multiply(float (&product)[4], int n, unsigned v0, unsigned v1) const {
        ptx::mma_m16n8k32_e4m3(product, frag[n], v0, v1);
    }
};

// Half as many keys fill an operand. One register of V holds both registers of the right operand: of the four numbers
// of sixteen keys in a lane (order of quantise_blocks), two belong to the first register and two to the second.
template <int KEYS>
struct TileWeights<WeightType::fp16, KEYS> {
    unsigned frag[KEYS / 16][4];

    __device__ __forceinline__ void set(int n, int i, float p0, float p1, float p2, float p3) {
        frag[2 * n + i / 2][i % 2] = ptx::cvt_rn_f16x2_f32(p0, p1);
        frag[2 * n + i / 2][i % 2 + 2] = ptx::cvt_rn_f16x2_f32(p2, p3);
    }

    __device__ __forceinline__ void multiply(float (&product)[4], int n, unsigned v0, unsigned v1) const {
        const uint2 first = widen_e4m3(v0);
        const uint2 second = widen_e4m3(v1);
        ptx::mma_m16n8k16_f16(product, frag[2 * n], first.x, first.y);
        ptx::mma_m16n8k16_f16(product, frag[2 * n + 1], second.x, second.y);
    }
};

template <int TILE_ROWS, int KEYS_, int D, WeightType WEIGHTS>
class WarpProductsE4m3 {
public:
    static constexpr int ROWS = 16;
    static constexpr int KEYS = KEYS_;
    static constexpr int WARPS_PER_ROW = 1;
    static constexpr int COLS = D;
    static constexpr int BLOCKS = 1;
    static constexpr bool Q_IN_REGISTERS = true;
    static constexpr bool PEELS_FIRST_TILE = true;
    static constexpr float WEIGHT_UNIT = REFERENCE_UNIT;
    static_assert(KEYS % 32 == 0 && D % 32 == 0, "whole operands of m16n8k32");

    using Scores = float[1][KEYS / 8][4];

    float o_frag[1][D / 8][4] = {};
    Fp8Rows softmax;

    // q_smem: the tile of Q. The scales of K and V are loaded a tile ahead.
    template <class Source, class Segment>
    __device__ __forceinline__ WarpProductsE4m3(const Source& source, const Segment& segment, unsigned q_smem, int warp,
                                                int lane, float, const ScoreScale& score_scale)
        : scale_log2(score_scale.log2),
          q_scale(source.q_scale(segment, warp * ROWS)),
          kv_scales(source.kv_scales_of(segment)),
          next_scales(kv_scales[0]),
          next_tile(opaque(0)) {
#pragma unroll
        for (int d = 0; d < D / 32; ++d) {
            ptx::ldmatrix_x4(q_frag[d], block_address<D / 2>(q_smem + row_block_offset<D / 2>(lane), warp, d));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                q_frag[d][i] = apply_sign_e4m3(score_scale, q_frag[d][i]);
            }
        }
    }

    // This lane's ldmatrix address in a tile of K, or of V^T, from its beginning.
    static __device__ __forceinline__ unsigned k_offset(int lane) { return col_block_offset<D / 2>(lane); }
    static __device__ __forceinline__ unsigned v_offset(int lane) { return col_block_offset<KEYS / 2>(lane); }

    // Takes the scales of the tile at hand. more: another tile follows.
    __device__ __forceinline__ void start_tile(bool more) {
        scales = next_scales;
        if (more) {
            next_scales = kv_scales[++next_tile];
        }
    }

    __device__ __forceinline__ void multiply_scores(Scores& s_frag, unsigned k_smem) const {
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s_frag[0][n][i] = 0.0f;
            }
        }
#pragma unroll
        for (int d = 0; d < D / 32; ++d) {
            multiply_columns(s_frag[0], q_frag[d], block_address<D / 2>(k_smem, 0, d));
        }
    }

    // Computes the packed weights of the raw scores, and their sums; moves the references and rescales O if the weights
    // do not fit them. first: there are no references, and O is 0.
    __device__ __forceinline__ void online_softmax(Scores& s_frag, bool first) {
        const TileScale tile(q_scale, scales.x, scale_log2);
        float sum[2];
        bool fit = false;
        if (!first) {
            compute_weights(sum, s_frag[0], tile.slope, softmax.offset);
            fit = softmax.fit(sum);
        }
        if (!fit) {
            float raw_max[2];
            largest_scores(raw_max, s_frag[0]);
            float rescale[2];
            float offset[2];
            const bool subtract = softmax.move(rescale, offset, raw_max, tile, scale_log2);
            if (!first) {
                rescale_o(o_frag[0], rescale);
            }
            if (subtract) {
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        s_frag[0][n][i] -= raw_max[i / 2];
                    }
                }
            }
            compute_weights(sum, s_frag[0], tile.slope, offset);
        }
        softmax.rows[0][0].sum += sum[0];
        softmax.rows[0][1].sum += sum[1];
    }

    // O[16, 16 N on] += v_scale * P V: the tile's product starts from 0. v_smem: a tile of V^T.
    template <int N = 0>
    __device__ __forceinline__ void add_output(const Scores& s_frag, unsigned v_smem) {
        float product[2][4] = {};
#pragma unroll
        for (int n = 0; n < KEYS / 32; ++n) {
            unsigned v_frag[4];
            ptx::ldmatrix_x4_at<N * 16 * KEYS>(v_frag, block_address<KEYS / 2>(v_smem, 0, n));
            weights.multiply(product[0], n, v_frag[0], v_frag[1]);
            weights.multiply(product[1], n, v_frag[2], v_frag[3]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float& o = o_frag[0][2 * N + i / 4][i % 4];
            o = fmaf(product[i / 4][i % 4], scales.y, o);
        }
        if constexpr (N + 1 < D / 16) {
            add_output<N + 1>(s_frag, v_smem);
        }
    }

private:
    unsigned q_frag[D / 32][4];
    TileWeights<WEIGHTS, KEYS> weights;
    float scale_log2;
    float q_scale;
    float2 scales;  // of the tile's K and V
    const float2* kv_scales;
    float2 next_scales;
    int next_tile;

    // Raw scores += Q K^T of 32 columns, for the keys from 16 N on. frag: these columns of Q. k_smem: same, key 0.
    template <int N = 0>
    static __device__ __forceinline__ void multiply_columns(float (&s_frag)[KEYS / 8][4], const unsigned (&frag)[4],
                                                            unsigned k_smem) {
        unsigned k_frag[4];
        ptx::ldmatrix_x4_at<N * 16 * D>(k_frag, k_smem);
        ptx::mma_m16n8k32_e4m3(s_frag[2 * N], frag, k_frag[0], k_frag[1]);
        ptx::mma_m16n8k32_e4m3(s_frag[2 * N + 1], frag, k_frag[2], k_frag[3]);
        if constexpr (N + 1 < KEYS / 16) {
            multiply_columns<N + 1>(s_frag, frag, k_smem);
        }
    }

    // Largest raw score of each row in the tile; finite, also for a row that sees none of the keys.
    static __device__ __forceinline__ void largest_scores(float (&raw_max)[2], const float (&s_frag)[KEYS / 8][4]) {
        raw_max[0] = raw_max[1] = LOWEST_FLOAT;
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                raw_max[i / 2] = fmaxf(raw_max[i / 2], s_frag[n][i]);
            }
        }
        raw_max[0] = quad_max(raw_max[0]);
        raw_max[1] = quad_max(raw_max[1]);
    }

    // Packs the weights 2^(slope * raw score + offset) of a tile; `sum`: over this lane's columns in either row.
    __device__ __forceinline__ void compute_weights(float (&sum)[2], const float (&s_frag)[KEYS / 8][4], float slope,
                                                    const float (&offset)[2]) {
        const auto weight = [&](float raw_score, int row) {
            return ptx::ex2_approx_ftz_f32(fmaf(raw_score, slope, offset[row]));
        };
#pragma unroll
        for (int n = 0; n < KEYS / 32; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int half = i % 2;
                const float(&s)[4] = s_frag[4 * n + i / 2 * 2];
                const float(&next)[4] = s_frag[4 * n + i / 2 * 2 + 1];
                const float p0 = weight(s[2 * half], half);
                const float p1 = weight(s[2 * half + 1], half);
                const float p2 = weight(next[2 * half], half);
                const float p3 = weight(next[2 * half + 1], half);
                const float four = (p0 + p1) + (p2 + p3);
                sum[half] = n == 0 && i < 2 ? four : sum[half] + four;
                weights.set(n, i, p0, p1, p2, p3);
            }
        }
    }
};
