// wmma: both products on tensor cores, through nvcuda::wmma 16x16x16 fragments.
//
// Idea: a warp owns 16 query rows, and one instruction multiplies two 16 x 16 matrices. What that costs is why there is
// a next rung: the layout of a wmma fragment is unspecified, so no thread knows which rows its accumulators belong to,
// and the mask, the row maximum and the rescale all need to know. So every product is stored to shared memory and read
// back by lanes that do know: two lanes share a row, and each has half of it.
//   S = Q K^T            fragments -> scratch_smem -> registers
//   P = weights of S     registers -> p_smem -> fragments
//   O = rescale O + P V  fragments -> scratch_smem -> added to O, which stays in the registers of the row's two lanes
// The next rung, flash, uses mma.sync, whose layout the PTX manual states: there S, P and O never leave the registers.
//
// wmma wants fragments 32-byte aligned and their rows a multiple of 16 bytes apart. 16 bytes of padding a row keep
// both, and put the 8 rows that are read at once into different banks.
//
// Static bars (sm_89, D=64): 0 spills, 0 stack, <= 120 registers, <= 64 KiB shared memory.

#include <mma.h>

#include "head.cuh"
#include "mask.cuh"
#include "softmax.cuh"

namespace wmma = nvcuda::wmma;

constexpr int TILE = 16;  // rows, columns and depth of a fragment
using AFragment = wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, __half, wmma::row_major>;  // of Q and P
using KFragment = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::col_major>;  // columns of K^T
using VFragment = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::row_major>;
using Accumulator = wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float>;

constexpr int NUM_WARPS = BLOCK_M / TILE;
constexpr int THREADS = 32 * NUM_WARPS;
constexpr int OUT_COLS = HEAD_DIM < BLOCK_N ? HEAD_DIM : BLOCK_N;  // columns of P V that fit scratch_smem at once

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
static_assert(!DTYPE_BF16, "this rung computes float16");

// Loads a tile, 16 bytes at a time. Rows that do not exist become 0: a weight of 0 times what lies there might be NaN.
__device__ __forceinline__ void load_tile(const Element* src,  // [rows_left, HEAD_DIM], global
                                          int rows_left,
                                          __half* dst_smem,  // [rows, QKV_PITCH]
                                          int rows) {
#pragma unroll 2
    for (int e = threadIdx.x * 8; e < rows * HEAD_DIM; e += THREADS * 8) {
        const int row = e / HEAD_DIM;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < rows_left) {
            x = *reinterpret_cast<const uint4*>(src + e);
        }
        *reinterpret_cast<uint4*>(&dst_smem[row * QKV_PITCH + e % HEAD_DIM]) = x;
    }
}

__device__ __forceinline__ void load4(float* dst, const float* src_smem) {
    const float4 x = *reinterpret_cast<const float4*>(src_smem);
    dst[0] = x.x, dst[1] = x.y, dst[2] = x.z, dst[3] = x.w;
}

// Rounds 8 values to elements and stores them at once, to either memory.
__device__ __forceinline__ void store8(void* dst, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(dst) =
        make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]), pack_pair(x[6], x[7]));
}

__device__ __forceinline__ void load_b(KFragment& frag, const __half* k_smem, int depth, int col) {
    wmma::load_matrix_sync(frag, &k_smem[col * QKV_PITCH + depth], QKV_PITCH);
}

__device__ __forceinline__ void load_b(VFragment& frag, const __half* v_smem, int depth, int col) {
    wmma::load_matrix_sync(frag, &v_smem[depth * QKV_PITCH + col], QKV_PITCH);
}

// One warp: scratch[16, COLS] = a[16, DEPTH] * b[DEPTH, COLS], where b is K^T or V.
template <class BFragment, int COLS, int DEPTH>
__device__ __forceinline__ void warp_product(const __half* a_smem, int a_pitch, const __half* b_smem,
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

// At least 1 block an SM: without that word the compiler spills a few registers to fit one block more.
__global__ void __launch_bounds__(THREADS, 1)
wmma_attention(const Element* __restrict__ q,  // [batch, heads, seq_q, HEAD_DIM]
               const Element* __restrict__ k,  // [batch, heads / group, seq_kv, HEAD_DIM]
               const Element* __restrict__ v,  // [batch, heads / group, seq_kv, HEAD_DIM]
               Element* __restrict__ o,        // [batch, heads, seq_q, HEAD_DIM]
               int seq_q, int seq_kv, int group, float scale,
               float* __restrict__ lse) {  // [batch, heads, seq_q] or null
    const Head head = head_of_block(q, k, v, o, seq_q, seq_kv, group);
    const ScoreScale score_scale(scale);
    const int warp_row = threadIdx.x / 32 * TILE;  // of the block
    const int lane_row = threadIdx.x % TILE;       // of the warp; this thread has its left or right half
    const int half = threadIdx.x % 32 / TILE;

    // Q, K and V are loaded by the whole block; scratch and P are each warp's own.
    extern __shared__ __align__(32) unsigned char smem[];
    __half* q_smem = reinterpret_cast<__half*>(smem);                                        // [BLOCK_M, QKV_PITCH]
    __half* k_smem = q_smem + BLOCK_M * QKV_PITCH;                                           // [BLOCK_N, QKV_PITCH]
    __half* v_smem = k_smem + BLOCK_N * QKV_PITCH;                                           // [BLOCK_N, QKV_PITCH]
    __half* p_block_smem = v_smem + BLOCK_N * QKV_PITCH;                                     // [BLOCK_M, P_PITCH]
    float* scratch_block_smem = reinterpret_cast<float*>(p_block_smem + BLOCK_M * P_PITCH);  // [BLOCK_M, SCRATCH_PITCH]
    __half* p_smem = p_block_smem + warp_row * P_PITCH;                                      // [16, P_PITCH]
    float* scratch_smem = scratch_block_smem + warp_row * SCRATCH_PITCH;                     // [16, SCRATCH_PITCH]

    const int block_row = q_tile_of_block() * BLOCK_M;
    const int row = block_row + warp_row + lane_row;
    const int visible = visible_keys(row, seq_kv);
    const int tiles = tiles_visible(block_row + BLOCK_M - 1, seq_kv, BLOCK_N);

    SoftmaxRow softmax;  // the sum is over this half row, until the end
    constexpr int HALF_KEYS = BLOCK_N / 2;
    constexpr int HALF_COLS = OUT_COLS / 2;
    float acc[HEAD_DIM / OUT_COLS][HALF_COLS] = {};

    load_tile(head.q + block_row * HEAD_DIM, seq_q - block_row, q_smem, BLOCK_M);
    for (int tile = 0; tile < tiles; ++tile) {
        const int key0 = tile * BLOCK_N;
        load_tile(head.k + key0 * HEAD_DIM, seq_kv - key0, k_smem, BLOCK_N);
        load_tile(head.v + key0 * HEAD_DIM, seq_kv - key0, v_smem, BLOCK_N);
        __syncthreads();

        warp_product<KFragment, BLOCK_N, HEAD_DIM>(q_smem + warp_row * QKV_PITCH, QKV_PITCH, k_smem, scratch_smem);
        __syncwarp();

        const int col0 = half * HALF_KEYS;
        float s[HALF_KEYS];
        float tile_max = NEGATIVE_INFINITY;
#pragma unroll
        for (int n = 0; n < HALF_KEYS; n += 4) {
            load4(&s[n], &scratch_smem[lane_row * SCRATCH_PITCH + col0 + n]);
#pragma unroll
            for (int x = n; x < n + 4; ++x) {
                s[x] = key0 + col0 + x < visible ? s[x] * score_scale.sign : NEGATIVE_INFINITY;
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
            store8(&p_smem[lane_row * P_PITCH + col0 + n], weight);
        }
        __syncwarp();  // P is complete, and the scores have been read: the scratch is free

#pragma unroll
        for (int part = 0; part < HEAD_DIM / OUT_COLS; ++part) {
            warp_product<VFragment, OUT_COLS, BLOCK_N>(p_smem, P_PITCH, v_smem + part * OUT_COLS, scratch_smem);
            __syncwarp();
#pragma unroll
            for (int c = 0; c < HALF_COLS; c += 4) {
                float product[4];
                load4(product, &scratch_smem[lane_row * SCRATCH_PITCH + half * HALF_COLS + c]);
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    acc[part][c + x] = fmaf(acc[part][c + x], rescale, product[x]);
                }
            }
            __syncwarp();  // the scratch has been read
        }
        __syncthreads();  // everyone has read this tile: the next may overwrite it
    }

    const float row_sum = softmax.sum + __shfl_xor_sync(0xffffffffu, softmax.sum, TILE);
    const float normaliser = softmax_normaliser(row_sum);
    if (lse != nullptr && half == 0 && row < seq_q) {
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
                store8(&head.o[row * HEAD_DIM + part * OUT_COLS + half * HALF_COLS + c], out);
            }
        }
    }
}
