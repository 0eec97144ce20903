// A tile of attention by one warp through nvcuda::wmma: 16 query rows, and keys and values in shared memory.
//
// The layout of a wmma fragment is unspecified, so every product goes through shared memory to lanes that know what
// they hold: two lanes share a row, and each has half of its columns.
//   S = Q K^T            fragments -> scratch -> registers
//   P = weights of S     registers -> p -> fragments
//   O = rescale O + P V  fragments -> scratch -> added to O, which stays in the registers of the row's two lanes
//
// wmma wants fragments 32-byte aligned and their rows a multiple of 16 bytes apart. 16 bytes of padding a row keep
// both, and put the 8 rows that are read at once into different banks.
#pragma once

#include <mma.h>

#include "head.cuh"
#include "mask.cuh"
#include "softmax.cuh"

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

constexpr int NUM_WARPS = BLOCK_M / TILE;
constexpr int NUM_THREADS = 32 * NUM_WARPS;

// The declared bars. Left alone, ptxas takes up to 200 to load further ahead; the caps are found by trial: with them it
// spills nothing on any architecture.
constexpr int MAX_REGISTERS = HEAD_DIM > 64 ? 144 : 120;

constexpr int OUT_COLS = HEAD_DIM < BLOCK_N ? HEAD_DIM : BLOCK_N;  // columns of P V that fit the scratch at once

constexpr int ELEMENT_PAD = 8;  // 16 bytes
constexpr int FLOAT_PAD = 4;    // 16 bytes
constexpr int QKV_PITCH = HEAD_DIM + ELEMENT_PAD;
constexpr int P_PITCH = BLOCK_N + ELEMENT_PAD;
constexpr int SCRATCH_PITCH = BLOCK_N + FLOAT_PAD;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M >= TILE && BLOCK_M % TILE == 0 && NUM_WARPS <= 32,
              "BLOCK_M is 16 rows for each of 32 warps at most");
static_assert(BLOCK_N >= TILE && BLOCK_N % TILE == 0 && HEAD_DIM % OUT_COLS == 0,
              "BLOCK_N is a multiple of 16 that divides HEAD_DIM or exceeds it");

// Shared memory of a block. Q and the stages are for all of it; of P and the scratch, each warp has 16 rows for itself.
template <int STAGES>
struct WmmaShared {
    WmmaElement q[BLOCK_M][QKV_PITCH];
    struct {
        WmmaElement k[BLOCK_N][QKV_PITCH];
        WmmaElement v[BLOCK_N][QKV_PITCH];
    } stages[STAGES];
    WmmaElement p[BLOCK_M][P_PITCH];
    float scratch[BLOCK_M][SCRATCH_PITCH];
};

__device__ __forceinline__ void load4(float* dst, const float* src_smem) {
    const float4 x = *reinterpret_cast<const float4*>(src_smem);
    dst[0] = x.x, dst[1] = x.y, dst[2] = x.z, dst[3] = x.w;
}

// Rounds 8 values to elements and stores them at once, to either memory.
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
                                             float* scratch_smem) {  // [16, SCRATCH_PITCH]
    Accumulator product[COLS / TILE];
#pragma unroll
    for (int n = 0; n < COLS / TILE; ++n) {
        wmma::fill_fragment(product[n], 0.0f);
    }
#pragma unroll 1  // unrolled, the compiler would load every fragment of Q first and hold 30 to 60 more registers
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
        wmma::store_matrix_sync(scratch_smem + n * TILE, product[n], SCRATCH_PITCH, wmma::mem_row_major);
    }
}

// This lane's half of one row: its softmax, whose sum is over that half until the end, and its part of the output.
struct HalfRow {
    static constexpr int KEYS = BLOCK_N / 2;
    static constexpr int COLS = OUT_COLS / 2;

    int row;        // of the head
    int keys_left;  // that it sees, from the next tile on
    SoftmaxRow softmax;
    float acc[HEAD_DIM / OUT_COLS][COLS] = {};

    static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 * TILE; }  // of the block
    static __device__ __forceinline__ int lane_row() { return threadIdx.x % TILE; }       // of the warp
    static __device__ __forceinline__ int half() { return threadIdx.x % 32 / TILE; }      // 0: the left

    __device__ __forceinline__ HalfRow(int block_row, int seq_kv)
        : row(block_row + warp_row() + lane_row()), keys_left(visible_keys(row, seq_kv)) {}

    // Folds in the next tile of keys, which is in that stage. All lanes of the warp at once.
    template <int STAGES>
    __device__ __forceinline__ void attend(WmmaShared<STAGES>& smem, int stage, const ScoreScale& score_scale) {
        WmmaElement* p_smem = smem.p[warp_row()];
        float* scratch_smem = smem.scratch[warp_row()];

        warp_product<KFragment, BLOCK_N, HEAD_DIM>(smem.q[warp_row()], QKV_PITCH, smem.stages[stage].k[0],
                                                   scratch_smem);
        __syncwarp();

        const int col0 = half() * KEYS;
        float s[KEYS];
        float tile_max = NEGATIVE_INFINITY;
#pragma unroll
        for (int n = 0; n < KEYS; n += 4) {
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
        for (int n = 0; n < KEYS; n += 8) {
            float weight[8];
#pragma unroll
            for (int x = 0; x < 8; ++x) {
                weight[x] = softmax_weight(s[n + x], softmax.max, score_scale.log2);
                softmax.sum += weight[x];
            }
            store8(&p_smem[lane_row() * P_PITCH + col0 + n], weight);
        }
        __syncwarp();  // P is complete, and the scores have been read: the scratch is free

#pragma unroll
        for (int part = 0; part < HEAD_DIM / OUT_COLS; ++part) {
            warp_product<VFragment, OUT_COLS, BLOCK_N>(p_smem, P_PITCH, smem.stages[stage].v[0] + part * OUT_COLS,
                                                       scratch_smem);
            __syncwarp();
#pragma unroll
            for (int c = 0; c < COLS; c += 4) {
                float product[4];
                load4(product, &scratch_smem[lane_row() * SCRATCH_PITCH + half() * COLS + c]);
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    acc[part][c + x] = fmaf(acc[part][c + x], rescale, product[x]);
                }
            }
            __syncwarp();  // the scratch has been read
        }
        keys_left -= BLOCK_N;
    }

    // o: of the block's head, [seq_q, HEAD_DIM]. lse: of all heads, or null. unit: what a 1 in V stands for.
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
                for (int c = 0; c < COLS; c += 8) {
                    float out[8];
#pragma unroll
                    for (int x = 0; x < 8; ++x) {
                        out[x] = acc[part][c + x] * normaliser;
                    }
                    store8(&o[row * HEAD_DIM + part * OUT_COLS + half() * COLS + c], out);
                }
            }
        }
    }
};
