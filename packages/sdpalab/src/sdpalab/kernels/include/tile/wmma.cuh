// A tile of attention by one warp through nvcuda::wmma: 16 query rows, and keys and values in shared memory.
//
// The layout of a wmma fragment is unspecified, so every product goes through shared memory to lanes with a known
// layout: two lanes share a row, and each has half of its columns.
//   S = Q K^T            fragments -> scratch -> registers
//   P = weights of S     registers -> p -> fragments
//   O = rescale O + P V  fragments -> scratch -> added to O, which stays in the registers of the row's two lanes
//
// wmma requires fragments 32-byte aligned and their rows a multiple of 16 bytes apart. 16 bytes of padding a row
// satisfy both, and place the 8 rows that are read at once in different banks.
#pragma once

#include <mma.h>

#include "schedule/head.cuh"
#include "softmax/mask.cuh"
#include "softmax/online.cuh"

namespace wmma = nvcuda::wmma;

constexpr int TILE = 16;  // rows, columns and depth of a fragment
#if DTYPE_BF16
using WmmaElement = __nv_bfloat16;
#else
using WmmaElement = __half;
#endif
using AFragment = wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, WmmaElement, wmma::row_major>;  // of Q and P
using KFragment = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, WmmaElement, wmma::col_major>;  // columns of K^T
using VFragment = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, WmmaElement, wmma::row_major>;
using Accumulator = wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float>;

constexpr int ELEMENT_PAD = 8;  // 16 bytes
constexpr int FLOAT_PAD = 4;    // 16 bytes
constexpr int QKV_PITCH = HEAD_DIM + ELEMENT_PAD;

// The declared limits. Without them ptxas takes up to 200 registers to load further ahead; the caps come from trials:
// ptxas spills nothing on any architecture.
constexpr int MAX_REGISTERS = HEAD_DIM > 64 ? 144 : 120;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");

// Shared memory of a block with ROWS query rows. All warps share Q and the stages of KEYS keys each; each warp has 16
// rows of P and of the scratch for itself.
template <int ROWS, int KEYS, int STAGES>
struct WmmaShared {
    static constexpr int NUM_THREADS = ROWS / TILE * 32;
    static_assert(ROWS >= TILE && ROWS % TILE == 0 && NUM_THREADS <= 1024,
                  "BLOCK_M is 16 rows for each of 32 warps at most");

    WmmaElement q[ROWS][QKV_PITCH];
    struct {
        WmmaElement k[KEYS][QKV_PITCH];
        WmmaElement v[KEYS][QKV_PITCH];
    } stages[STAGES];
    WmmaElement p[ROWS][KEYS + ELEMENT_PAD];
    float scratch[ROWS][KEYS + FLOAT_PAD];
};

__device__ __forceinline__ void load4(float* dst, const float* src_smem) {
    const float4 x = *reinterpret_cast<const float4*>(src_smem);
    dst[0] = x.x, dst[1] = x.y, dst[2] = x.z, dst[3] = x.w;
}

// Rounds 8 values to elements and stores them at once, to shared or global memory.
__device__ __forceinline__ void store8(void* dst, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(dst) =
        make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]), pack_pair(x[6], x[7]));
}

__device__ __forceinline__ void load_b(KFragment& frag, const WmmaElement* k_smem, int depth, int col) {
    wmma::load_matrix_sync(frag, &k_smem[col * QKV_PITCH + depth], QKV_PITCH);
}

__device__ __forceinline__ void load_b(VFragment& frag, const WmmaElement* v_smem, int depth, int col) {
    wmma::load_matrix_sync(frag, &v_smem[depth * QKV_PITCH + col], QKV_PITCH);
}

// One warp: scratch[16, COLS] = a[16, DEPTH] * b[DEPTH, COLS], where b is K^T or V.
template <class BFragment, int COLS, int DEPTH>
__device__ __forceinline__ void warp_product(const WmmaElement* a_smem, int a_pitch, const WmmaElement* b_smem,
                                             float* scratch_smem, int scratch_pitch) {
    Accumulator product[COLS / TILE];
#pragma unroll
    for (int n = 0; n < COLS / TILE; ++n) {
        wmma::fill_fragment(product[n], 0.0f);
    }
#pragma unroll 1  // unrolled, the compiler loads every fragment of Q first and holds 30 to 60 more registers
    for (int depth = 0; depth < DEPTH; depth += TILE) {
        AFragment a;
        wmma::load_matrix_sync(a, a_smem + depth, a_pitch);
#pragma unroll
        for (int n = 0; n < COLS / TILE; ++n) {
            BFragment b;
            load_b(b, b_smem, depth, n * TILE);
            wmma::mma_sync(product[n], a, b, product[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < COLS / TILE; ++n) {
        wmma::store_matrix_sync(scratch_smem + n * TILE, product[n], scratch_pitch, wmma::mem_row_major);
    }
}

// This lane's half of one row: its softmax, with a sum over that half until the end, and its part of the output.
template <int KEYS>
struct HalfRow {
    static constexpr int P_PITCH = KEYS + ELEMENT_PAD;
    static constexpr int SCRATCH_PITCH = KEYS + FLOAT_PAD;
    static constexpr int OUT_COLS = HEAD_DIM < KEYS ? HEAD_DIM : KEYS;  // columns of P V that fit the scratch at once
    static constexpr int HALF_KEYS = KEYS / 2;
    static constexpr int HALF_COLS = OUT_COLS / 2;
    static_assert(KEYS >= TILE && KEYS % TILE == 0 && HEAD_DIM % OUT_COLS == 0,
                  "BLOCK_N is a multiple of 16 that divides HEAD_DIM or exceeds it");

    int row;        // in the head
    int keys_left;  // visible ones, from the next tile on
    SoftmaxRow softmax;
    float acc[HEAD_DIM / OUT_COLS][HALF_COLS] = {};

    static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 * TILE; }  // in the block
    static __device__ __forceinline__ int lane_row() { return threadIdx.x % TILE; }       // in the warp
    static __device__ __forceinline__ int half() { return threadIdx.x % 32 / TILE; }      // 0: the left

    __device__ __forceinline__ HalfRow(int block_row, int seq_kv)
        : row(block_row + warp_row() + lane_row()), keys_left(visible_keys(row, seq_kv)) {}

    // Adds the next tile of keys, which is in that stage, to the row. Called by all lanes of the warp together.
    template <int ROWS, int STAGES>
    __device__ __forceinline__ void attend(WmmaShared<ROWS, KEYS, STAGES>& smem, int stage,
                                           const ScoreScale& score_scale) {
        WmmaElement* p_smem = smem.p[warp_row()];
        float* scratch_smem = smem.scratch[warp_row()];

        warp_product<KFragment, KEYS, HEAD_DIM>(smem.q[warp_row()], QKV_PITCH, smem.stages[stage].k[0],
                                                scratch_smem, SCRATCH_PITCH);
        __syncwarp();

        const int col0 = half() * HALF_KEYS;
        float s[HALF_KEYS];
        float tile_max = NEGATIVE_INFINITY;
#pragma unroll
        for (int n = 0; n < HALF_KEYS; n += 4) {
            load4(&s[n], &scratch_smem[lane_row() * SCRATCH_PITCH + col0 + n]);
#pragma unroll
            for (int x = n; x < n + 4; ++x) {
                s[x] = col0 + x < keys_left ? s[x] * score_scale.sign : NEGATIVE_INFINITY;
                tile_max = fmaxf(tile_max, s[x]);
            }
        }
        tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, TILE));

        const float rescale = softmax.advance(tile_max, score_scale.log2);
#pragma unroll
        for (int n = 0; n < HALF_KEYS; n += 8) {
            float weight[8];
#pragma unroll
            for (int x = 0; x < 8; ++x) {
                weight[x] = softmax_weight(s[n + x], softmax.max, score_scale.log2);
                softmax.sum += weight[x];
            }
            store8(&p_smem[lane_row() * P_PITCH + col0 + n], weight);
        }
        __syncwarp();  // P is complete and the scores have been read: the scratch is free

#pragma unroll
        for (int part = 0; part < HEAD_DIM / OUT_COLS; ++part) {
            warp_product<VFragment, OUT_COLS, KEYS>(p_smem, P_PITCH, smem.stages[stage].v[0] + part * OUT_COLS,
                                                    scratch_smem, SCRATCH_PITCH);
            __syncwarp();
#pragma unroll
            for (int c = 0; c < HALF_COLS; c += 4) {
                float product[4];
                load4(product, &scratch_smem[lane_row() * SCRATCH_PITCH + half() * HALF_COLS + c]);
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    acc[part][c + x] = fmaf(acc[part][c + x], rescale, product[x]);
                }
            }
            __syncwarp();  // the scratch has been read
        }
        keys_left -= KEYS;
    }

    // o: the block's head, [seq_q, HEAD_DIM]. lse: all heads, or null. unit: value of a 1 in V.
    __device__ __forceinline__ void store(Element* o, float* lse, int seq_q, const ScoreScale& score_scale,
                                          float unit = 1.0f) const {
        const float row_sum = softmax.sum + __shfl_xor_sync(0xffffffffu, softmax.sum, TILE);
        const float normaliser = softmax_normaliser(row_sum) * unit;
        if (lse != nullptr && half() == 0 && row < seq_q) {
            lse_of_block(lse, seq_q)[row] = log_sum_exp(softmax.max, row_sum, score_scale.log2);
        }
        if (row < seq_q) {
#pragma unroll
            for (int part = 0; part < HEAD_DIM / OUT_COLS; ++part) {
#pragma unroll
                for (int c = 0; c < HALF_COLS; c += 8) {
                    float out[8];
#pragma unroll
                    for (int x = 0; x < 8; ++x) {
                        out[x] = acc[part][c + x] * normaliser;
                    }
                    store8(&o[row * HEAD_DIM + part * OUT_COLS + half() * HALF_COLS + c], out);
                }
            }
        }
    }
};
