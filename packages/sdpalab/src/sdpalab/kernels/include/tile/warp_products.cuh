// Products of one warp on mma.sync, for mainloop/warps.cuh: ROWS rows of Q, 16 or 32, with the weights between both
// products in registers, where the accumulator layout of S = Q K^T is the operand layout of O += P V.
//
// Every 16 rows are a block with fragments of its own: a lane holds parts of its rows lane / 4 and lane / 4 + 8, and
// element i of an accumulator frag[n] is column 8n + 2 (lane % 4) + i % 2 of row lane / 4 + 8 (i / 2). One fragment of
// K or V serves all blocks: 32 rows halve the reads of shared memory a product. Tiles in shared memory have the layout
// of tile/swizzle.cuh, and an address is the lane's ldmatrix address.
#pragma once

#include "softmax/lazy.cuh"
#include "tile/swizzle.cuh"

// Products in 16 bits: S[ROWS, KEYS] = Q K^T over D columns, O[ROWS, D_V] += P V. PowerOnFma computes the last
// ON_FMA of a lane's four pairs of weights. Without Q_IN_REGISTERS the fragments of Q are read again for each tile
// of keys, and Q, [TILE_ROWS, D] with the rows of all warps, stays in shared memory. WARPS_PER_ROW warps share rows, and each
// has KEYS of a tile's keys. BY_ROW: LazySoftmax.
template <int ROWS_, int TILE_ROWS, int KEYS_, int D, int D_V, bool Q_IN_REGISTERS_, int ON_FMA = 0, int WARPS_PER_ROW_ = 1,
          bool BY_ROW = false>
class WarpProducts16 {
public:
    static constexpr int ROWS = ROWS_;
    static constexpr int KEYS = KEYS_;
    static constexpr int WARPS_PER_ROW = WARPS_PER_ROW_;
    static constexpr int TILE_KEYS = KEYS * WARPS_PER_ROW;
    static constexpr int COLS = D_V;
    static constexpr int BLOCKS = ROWS / 16;
    static constexpr int K_ROW_BYTES = PANEL<D> * 2;
    static constexpr int V_ROW_BYTES = PANEL<D_V> * 2;
    static constexpr bool Q_IN_REGISTERS = Q_IN_REGISTERS_;
    static constexpr bool PEELS_FIRST_TILE = false;
    static constexpr float WEIGHT_UNIT = 1.0f;
    static_assert(ROWS == 16 || ROWS == 32, "a warp has one or two blocks of 16 rows");
    static_assert(KEYS % 16 == 0 && D % 16 == 0 && D_V % 16 == 0, "whole operands of m16n8k16");
    static_assert(ON_FMA >= 0 && ON_FMA <= 4, "a lane has four pairs of weights in 16 keys");

    using Scores = float[BLOCKS][KEYS / 8][4];

    float o_frag[BLOCKS][D_V / 8][4] = {};
    LazySoftmax<BLOCKS, BY_ROW> softmax;

    // q_smem: the tile of Q. scale: |scale| is that of the softmax, and its sign is applied to Q.
    template <class Source, class Segment>
    __device__ __forceinline__ WarpProducts16(const Source&, const Segment&, unsigned q_smem, int warp, int lane,
                                              float scale, const ScoreScale& score_scale)
        : softmax(score_scale.log2),
          q_smem(q_smem + warp * (ROWS * PANEL<D> * 2) + row_block_offset<PANEL<D>>(lane)),
          score_scale(score_scale) {
        if constexpr (Q_IN_REGISTERS) {
#pragma unroll
            for (int d = 0; d < D / 16; ++d) {
                load_q(q_frag[d], d);
            }
            if (!(scale > 0.0f)) {
#pragma unroll
                for (int d = 0; d < D / 16; ++d) {
                    apply_sign(q_frag[d]);
                }
            }
        }
    }

    // This lane's ldmatrix address in a tile of K, or of V, from its beginning.
    static __device__ __forceinline__ unsigned k_offset(int lane) { return col_block_offset<PANEL<D>>(lane); }
    static __device__ __forceinline__ unsigned v_offset(int lane) { return row_block_offset<PANEL<D_V>>(lane); }

    __device__ __forceinline__ void start_tile(bool) {}

    // k_smem: a tile of K.
    __device__ __forceinline__ void multiply_scores(Scores& s_frag, unsigned k_smem) {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s_frag[block][n][i] = 0.0f;
                }
            }
        }
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            if constexpr (!Q_IN_REGISTERS) {
                load_q(q_frag[0], d);
                if (score_scale.sign != 1.0f) {
                    apply_sign(q_frag[0]);
                }
            }
            multiply_columns(s_frag, q_frag[Q_IN_REGISTERS ? d : 0], column_address<D, TILE_KEYS>(k_smem, d));
        }
    }

    // Updates the maxima with the tile's, and rescales O where they moved.
    __device__ __forceinline__ void online_softmax(Scores& s_frag, bool) {
        softmax.advance(o_frag, s_frag, score_scale.log2);
    }

    // O += P V, 16 keys at a time, including the weights and their sums. v_smem: a tile of V. Starts at key 16 N.
    template <int N = 0>
    __device__ __forceinline__ void add_output(const Scores& s_frag, unsigned v_smem) {
        unsigned p_frag[BLOCKS][4];
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int half = i % 2;
                const float(&s)[4] = s_frag[block][2 * N + i / 2];
                const bool on_fma = i >= 4 - ON_FMA;
                const float p0 = softmax.weight(block, s[2 * half], half, on_fma);
                const float p1 = softmax.weight(block, s[2 * half + 1], half, on_fma);
                softmax.rows[block][half].sum += p0 + p1;
                p_frag[block][i] = pack_pair(p0, p1);
            }
        }
#pragma unroll
        for (int d = 0; d < D_V / 16; ++d) {
            unsigned v_frag[4];
            ptx::ldmatrix_x4_trans_at<N * 16 * PANEL<D_V> * 2>(v_frag, column_address<D_V, TILE_KEYS>(v_smem, d));
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {
                mma_m16n8k16(o_frag[block][2 * d], p_frag[block], v_frag[0], v_frag[1]);
                mma_m16n8k16(o_frag[block][2 * d + 1], p_frag[block], v_frag[2], v_frag[3]);
            }
        }
        if constexpr (N + 1 < KEYS / 16) {
            add_output<N + 1>(s_frag, v_smem);
        }
    }

    // Stores O, not normalised, as rows of PITCH floats.
    template <int PITCH>
    __device__ __forceinline__ void store_o(float* rows, int lane) const {
        float* const own = rows + lane / 4 * PITCH + 2 * (lane % 4);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
            for (int d = 0; d < D_V / 8; ++d) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float2 pair = make_float2(o_frag[block][d][2 * half], o_frag[block][d][2 * half + 1]);
                    *reinterpret_cast<float2*>(own + (16 * block + 8 * half) * PITCH + 8 * d) = pair;
                }
            }
        }
    }

private:
    unsigned q_smem;
    ScoreScale score_scale;
    unsigned q_frag[Q_IN_REGISTERS ? D / 16 : 1][BLOCKS][4];

    // Columns 16 d on of Q.
    __device__ __forceinline__ void load_q(unsigned (&frag)[BLOCKS][4], int d) const {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            ptx::ldmatrix_x4(frag[block], column_address<D, TILE_ROWS>(q_smem, d) + block * (16 * PANEL<D> * 2));
        }
    }

    __device__ __forceinline__ void apply_sign(unsigned (&frag)[BLOCKS][4]) const {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                frag[block][i] = score_scale.apply_sign(frag[block][i]);
            }
        }
    }

    // S += Q K^T of 16 columns, for the keys from 16 N on. frag: these columns of Q. k_smem: same, key 0.
    template <int N = 0>
    static __device__ __forceinline__ void multiply_columns(Scores& s_frag, const unsigned (&frag)[BLOCKS][4],
                                                            unsigned k_smem) {
        unsigned k_frag[4];
        ptx::ldmatrix_x4_at<N * 16 * PANEL<D> * 2>(k_frag, k_smem);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            mma_m16n8k16(s_frag[block][2 * N], frag[block], k_frag[0], k_frag[1]);
            mma_m16n8k16(s_frag[block][2 * N + 1], frag[block], k_frag[2], k_frag[3]);
        }
        if constexpr (N + 1 < KEYS / 16) {
            multiply_columns<N + 1>(s_frag, frag, k_smem);
        }
    }
};
