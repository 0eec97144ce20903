// Products of one warp on mma.sync, for mainloop/warps.cuh: ROWS rows of Q, 16 or 32, with the weights between both
// products in registers, where the accumulator layout of S = Q K^T is the operand layout of O += P V.
//
// Every 16 rows are a block with fragments of its own: a lane holds parts of its rows lane / 4 and lane / 4 + 8, and
// element i of an accumulator frag[n] is column 8n + 2 (lane % 4) + i % 2 of row lane / 4 + 8 (i / 2). One fragment of
// K or V serves all blocks: 32 rows halve the reads of shared memory a product. Tiles in shared memory have the layout
// of tile/swizzle.cuh, and an address is the lane's ldmatrix address.
#pragma once

#include "softmax/lazy.cuh"
#include "tile/e4m3.cuh"
#include "tile/swizzle.cuh"

// Products in 16 bits: S[ROWS, KEYS] = Q K^T over D columns, O[ROWS, D_V] += P V. PowerOnFma computes the last
// ON_FMA of a lane's four pairs of weights. Without Q_IN_REGISTERS the fragments of Q are read again for each tile
// of keys, and Q, [TILE_ROWS, D] with the rows of all warps, stays in shared memory. WARPS_PER_ROW warps share rows,
// and each has KEYS of a tile's keys. BY_ROW: LazySoftmax.
//
// E4M3_KV: K and V are numbers of e4m3, two in each 16-bit element of their tiles, and become the type of Q in
// registers. ldmatrix moves pairs of them, which decides their order: a lane has four consecutive columns of K, so Q is
// read in that order, too, and products with the even and the odd columns of V are separate accumulators.
template <int ROWS_, int TILE_ROWS, int KEYS_, int D, int D_V, bool Q_IN_REGISTERS_, int ON_FMA = 0,
          int WARPS_PER_ROW_ = 1, bool BY_ROW = false, bool E4M3_KV = false>
class WarpProducts16 {
public:
    static constexpr int ROWS = ROWS_;
    static constexpr int KEYS = KEYS_;
    static constexpr int WARPS_PER_ROW = WARPS_PER_ROW_;
    static constexpr int TILE_KEYS = KEYS * WARPS_PER_ROW;
    static constexpr int COLS = D_V;
    static constexpr int BLOCKS = ROWS / 16;
    static constexpr int K_COLS = D / (E4M3_KV ? 2 : 1);  // 16-bit elements
    static constexpr int V_COLS = D_V / (E4M3_KV ? 2 : 1);
    static constexpr int K_ROW_BYTES = PANEL<K_COLS> * 2;
    static constexpr int V_ROW_BYTES = PANEL<V_COLS> * 2;
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
          q_smem(q_smem + warp * (ROWS * PANEL<D> * 2) + q_offset(lane)),
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
    static __device__ __forceinline__ unsigned k_offset(int lane) { return col_block_offset<PANEL<K_COLS>>(lane); }
    static __device__ __forceinline__ unsigned v_offset(int lane) { return row_block_offset<PANEL<V_COLS>>(lane); }

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
        constexpr int STEPS = E4M3_KV ? 2 : 1;  // of 16 columns, with one fragment of K
#pragma unroll
        for (int d = 0; d < D / 16; d += STEPS) {
            if constexpr (!Q_IN_REGISTERS) {
#pragma unroll
                for (int i = 0; i < STEPS; ++i) {
                    load_q(q_frag[i], d + i);
                    if (score_scale.sign != 1.0f) {
                        apply_sign(q_frag[i]);
                    }
                }
            }
            multiply_columns(s_frag, &q_frag[Q_IN_REGISTERS ? d : 0],
                             column_address<K_COLS, TILE_KEYS>(k_smem, d / STEPS));
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
        for (int d = 0; d < V_COLS / 16; ++d) {
            unsigned v_frag[4];
            ptx::ldmatrix_x4_trans_at<N * 16 * V_ROW_BYTES>(v_frag, column_address<V_COLS, TILE_KEYS>(v_smem, d));
            if constexpr (E4M3_KV) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {  // 16 columns each
                    const uint2 first = widen(__byte_perm(v_frag[2 * i], 0, 0x3120));
                    const uint2 second = widen(__byte_perm(v_frag[2 * i + 1], 0, 0x3120));
#pragma unroll
                    for (int block = 0; block < BLOCKS; ++block) {
                        mma_m16n8k16(o_frag[block][4 * d + 2 * i], p_frag[block], first.x, second.x);
                        mma_m16n8k16(o_frag[block][4 * d + 2 * i + 1], p_frag[block], first.y, second.y);
                    }
                }
            } else {
#pragma unroll
                for (int block = 0; block < BLOCKS; ++block) {
                    mma_m16n8k16(o_frag[block][2 * d], p_frag[block], v_frag[0], v_frag[1]);
                    mma_m16n8k16(o_frag[block][2 * d + 1], p_frag[block], v_frag[2], v_frag[3]);
                }
            }
        }
        if constexpr (N + 1 < KEYS / 16) {
            add_output<N + 1>(s_frag, v_smem);
        }
    }

    // Stores O, not normalised, as rows of PITCH floats.
    template <int PITCH>
    __device__ __forceinline__ void store_o(float* rows, int lane) const {
        float* const own = rows + lane / 4 * PITCH + (E4M3_KV ? 4 : 2) * (lane % 4);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
            for (int d = 0; d < D_V / 8; ++d) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float(&o)[4] = o_frag[block][d];
                    float* const at = own + (16 * block + 8 * half) * PITCH + 8 * d;
                    if constexpr (!E4M3_KV) {
                        *reinterpret_cast<float2*>(at) = make_float2(o[2 * half], o[2 * half + 1]);
                    } else if (d % 2 == 0) {
                        const float(&odd)[4] = o_frag[block][d + 1];
                        *reinterpret_cast<float4*>(at) =
                            make_float4(o[2 * half], odd[2 * half], o[2 * half + 1], odd[2 * half + 1]);
                    }
                }
            }
        }
    }

private:
    unsigned q_smem;
    ScoreScale score_scale;
    unsigned q_frag[Q_IN_REGISTERS ? D / 16 : E4M3_KV ? 2 : 1][BLOCKS][4];

    // This lane's address in its warp's rows of Q: of ldmatrix, or of the first of its four columns.
    static __device__ __forceinline__ unsigned q_offset(int lane) {
        return E4M3_KV ? swizzled_offset<PANEL<D>>(lane / 4, lane % 4 / 2) + lane % 2 * 8
                       : row_block_offset<PANEL<D>>(lane);
    }

    // Columns 16 d on of Q.
    __device__ __forceinline__ void load_q(unsigned (&frag)[BLOCKS][4], int d) const {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const unsigned lane_smem = column_address<D, TILE_ROWS>(q_smem, d) + block * (16 * PANEL<D> * 2);
            if constexpr (E4M3_KV) {
                const uint2 first = ptx::ld_shared_v2_u32_at<0>(lane_smem);
                const uint2 second = ptx::ld_shared_v2_u32_at<8 * PANEL<D> * 2>(lane_smem);
                frag[block][0] = first.x;
                frag[block][1] = second.x;
                frag[block][2] = first.y;
                frag[block][3] = second.y;
            } else {
                ptx::ldmatrix_x4(frag[block], lane_smem);
            }
        }
    }

    // Four numbers of e4m3 as two pairs in the type of Q.
    static __device__ __forceinline__ uint2 widen(unsigned numbers) {
        const uint2 halves = widen_e4m3(numbers);
        return make_uint2(pair_of_f16(halves.x), pair_of_f16(halves.y));
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

    // S += Q K^T of 16 columns, or 32 of e4m3, for the keys from 16 N on. frags: these columns of Q. k_smem: same, key
    // 0.
    template <int N = 0>
    static __device__ __forceinline__ void multiply_columns(Scores& s_frag, const unsigned (*frags)[BLOCKS][4],
                                                            unsigned k_smem) {
        unsigned k_frag[4];
        ptx::ldmatrix_x4_at<N * 16 * K_ROW_BYTES>(k_frag, k_smem);
        if constexpr (E4M3_KV) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint2 pairs = widen(k_frag[i]);
#pragma unroll
                for (int block = 0; block < BLOCKS; ++block) {
                    mma_m16n8k16(s_frag[block][2 * N + i / 2], frags[i % 2][block], pairs.x, pairs.y);
                }
            }
        } else {
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {
                mma_m16n8k16(s_frag[block][2 * N], (*frags)[block], k_frag[0], k_frag[1]);
                mma_m16n8k16(s_frag[block][2 * N + 1], (*frags)[block], k_frag[2], k_frag[3]);
            }
        }
        if constexpr (N + 1 < KEYS / 16) {
            multiply_columns<N + 1>(s_frag, frags, k_smem);
        }
    }
};
