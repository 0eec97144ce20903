// scalar: attention with one fused multiply-add at a time; the kernel to read first.
//
// Idea: the seq_q x seq_kv scores are never written to global memory. A warp owns BLOCK_M / NUM_WARPS query rows and
// loops over the keys in tiles of BLOCK_N. Each tile's scores update a running row maximum, a running sum of weights
// and an unnormalised output row; when the maximum grows, sum and output are rescaled. Except for rounding, the result
// equals that of a softmax over all keys at once.
//
// A warp is a grid of 4 row lanes x 8 key lanes. A thread holds ROWS x KEYS scores and ROWS x COLS outputs in
// registers, so each 16 bytes from shared memory feed many multiply-adds. Tiles are converted to floats once, at the
// load, instead of at every use. P goes through shared memory: weights are used by other lanes than compute them.
//
// Static limits (sm_89, D=64): 0 spills, 0 stack, <= 120 registers, <= 64 KiB shared memory.
// Next kernel: wmma, the same loop with both products on tensor cores.

#include "schedule/head.cuh"
#include "softmax/mask.cuh"
#include "softmax/online.cuh"

enum class Sync {
    block,  // all warps load and share one K/V tile, behind __syncthreads
    warp,   // each warp has a K/V tile of its own, behind __syncwarp: more traffic, but no warp waits for another
};
enum class Reduction {
    shuffle,  // the 8 key lanes of a row are reduced through registers
    shared,   // ... through shared memory
};
constexpr Sync sync_policy = Sync::SYNC_POLICY;
constexpr Reduction reduction = Reduction::REDUCE;

constexpr int KEY_LANES = 8;
constexpr int ROW_LANES = 4;
constexpr int WARP_ROWS = BLOCK_M / NUM_WARPS;
constexpr int ROWS = WARP_ROWS / ROW_LANES;  // a thread's rows: row_lane + 4 * i
constexpr int KEYS = BLOCK_N / KEY_LANES;    // a thread's keys: key_lane + 8 * n
constexpr int COLS = HEAD_DIM / KEY_LANES;   // a thread's output columns, four at a time: 8 * c + 4 * key_lane + 0..3
constexpr int TILE_OWNERS = sync_policy == Sync::block ? 1 : NUM_WARPS;
constexpr int TILE_THREADS = 32 * NUM_WARPS / TILE_OWNERS;  // threads that load one tile together

// Row pitches in floats: + 4 puts the rows that 8 key lanes read at once into different banks, + 8 the rows that 4 row
// lanes write at once.
constexpr int QK_PITCH = HEAD_DIM + 4;
constexpr int P_PITCH = BLOCK_N + 8;
constexpr int Q_FLOATS = BLOCK_M * QK_PITCH;
constexpr int K_FLOATS = BLOCK_N * QK_PITCH;
constexpr int V_FLOATS = BLOCK_N * HEAD_DIM;
constexpr int P_FLOATS = BLOCK_M * P_PITCH;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(NUM_WARPS >= 1 && NUM_WARPS <= 32, "a block has 1 to 32 warps");
static_assert(ROWS >= 1 && BLOCK_M == NUM_WARPS * ROW_LANES * ROWS, "BLOCK_M is a multiple of 4 rows a warp");
static_assert(KEYS >= 1 && BLOCK_N == KEY_LANES * KEYS, "BLOCK_N is a multiple of 8 keys");
static_assert(ROWS * (KEYS + COLS) <= 128, "a thread's scores and outputs fit its registers");
static_assert(VEC_WIDTH == 1 || VEC_WIDTH == 2 || VEC_WIDTH == 4 || VEC_WIDTH == 8, "a load is 2, 4, 8 or 16 bytes");

__device__ __forceinline__ void tile_sync() {
    if constexpr (sync_policy == Sync::block) {
        __syncthreads();
    } else {
        __syncwarp();
    }
}

__device__ __forceinline__ void load4(float (&dst)[4], const float* src_smem) {
    const float4 x = *reinterpret_cast<const float4*>(src_smem);
    dst[0] = x.x, dst[1] = x.y, dst[2] = x.z, dst[3] = x.w;
}

// Loads a tile as floats. Rows past the end become 0, whatever the memory holds: a weight of 0 times NaN is NaN.
__device__ __forceinline__ void load_tile(const Element* src,  // [rows_left, HEAD_DIM], global
                                          int rows_left,
                                          float* dst_smem,  // [rows, pitch]
                                          int rows, int pitch, int thread, int threads) {
    constexpr int STORE_WIDTH = VEC_WIDTH < 4 ? VEC_WIDTH : 4;
    struct alignas(2 * VEC_WIDTH) Elements {
        Element x[VEC_WIDTH];
    };
    struct alignas(4 * STORE_WIDTH) Floats {
        float x[STORE_WIDTH];
    };
#pragma unroll 2
    for (int e = thread * VEC_WIDTH; e < rows * HEAD_DIM; e += threads * VEC_WIDTH) {
        const int row = e / HEAD_DIM;
        Elements in{};
        if (row < rows_left) {
            in = *reinterpret_cast<const Elements*>(src + e);
        }
        float* dst = &dst_smem[row * pitch + e % HEAD_DIM];
#pragma unroll
        for (int w = 0; w < VEC_WIDTH; w += STORE_WIDTH) {
            Floats out;
#pragma unroll
            for (int x = 0; x < STORE_WIDTH; ++x) {
                out.x[x] = to_float(in.x[w + x]);
            }
            *reinterpret_cast<Floats*>(&dst[w]) = out;
        }
    }
}

struct Max {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// Reduces each of a thread's rows over the 8 key lanes; all 8 get the result.
template <class Op>
__device__ __forceinline__ void reduce_rows(float (&x)[ROWS], float* partial_smem,  // [WARP_ROWS, KEY_LANES]
                                            int row_lane, int key_lane, Op op) {
    if constexpr (reduction == Reduction::shuffle) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int distance = KEY_LANES / 2; distance > 0; distance /= 2) {
                x[i] = op(x[i], __shfl_xor_sync(0xffffffffu, x[i], distance));
            }
        }
    } else {
        __syncwarp();  // the previous reduction's partial results have been read
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            partial_smem[(row_lane + ROW_LANES * i) * KEY_LANES + key_lane] = x[i];
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float a[4], b[4];
            load4(a, &partial_smem[(row_lane + ROW_LANES * i) * KEY_LANES]);
            load4(b, &partial_smem[(row_lane + ROW_LANES * i) * KEY_LANES + 4]);
            x[i] = op(op(op(a[0], a[1]), op(a[2], a[3])), op(op(b[0], b[1]), op(b[2], b[3])));
        }
    }
}

// At least 1 block an SM: without this bound the compiler spills a few registers to fit one block more.
__global__ void __launch_bounds__(32 * NUM_WARPS, 1)
scalar_attention(const Element* __restrict__ q,  // [batch, heads, seq_q, HEAD_DIM]
                 const Element* __restrict__ k,  // [batch, heads / group, seq_kv, HEAD_DIM]
                 const Element* __restrict__ v,  // [batch, heads / group, seq_kv, HEAD_DIM]
                 Element* __restrict__ o,        // [batch, heads, seq_q, HEAD_DIM]
                 int seq_q, int seq_kv, int group, float scale,
                 float* __restrict__ lse) {  // [batch, heads, seq_q] or null
    const Head head = head_of_block(q, k, v, o, seq_q, seq_kv, group);
    const ScoreScale score_scale(scale);
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int row_lane = lane / KEY_LANES;
    const int key_lane = lane % KEY_LANES;
    const int tile_owner = sync_policy == Sync::block ? 0 : warp;
    const int tile_thread = sync_policy == Sync::block ? threadIdx.x : lane;

    // Warps share K and V only; Q, P and the partial reductions are each warp's own rows.
    extern __shared__ __align__(16) float smem[];
    float* k_smem = smem + tile_owner * (K_FLOATS + V_FLOATS);  // [BLOCK_N, QK_PITCH]
    float* v_smem = k_smem + K_FLOATS;                          // [BLOCK_N, HEAD_DIM]
    float* q_block_smem = smem + TILE_OWNERS * (K_FLOATS + V_FLOATS);
    float* q_smem = q_block_smem + warp * WARP_ROWS * QK_PITCH;                              // [WARP_ROWS, QK_PITCH]
    float* p_smem = q_block_smem + Q_FLOATS + warp * WARP_ROWS * P_PITCH;                    // [WARP_ROWS, P_PITCH]
    float* partial_smem = q_block_smem + Q_FLOATS + P_FLOATS + warp * WARP_ROWS * KEY_LANES;  // [WARP_ROWS, KEY_LANES]

    const int block_row = q_tile_of_block() * BLOCK_M;
    const int warp_row = block_row + warp * WARP_ROWS;
    const int last_row = sync_policy == Sync::block ? block_row + BLOCK_M - 1 : warp_row + WARP_ROWS - 1;
    const int tiles = tiles_visible(last_row, seq_kv, BLOCK_N);

    SoftmaxRow softmax[ROWS];  // each lane sums over its own keys; one reduction at the end combines the sums
    float acc[ROWS][COLS] = {};

    load_tile(head.q + warp_row * HEAD_DIM, seq_q - warp_row, q_smem, WARP_ROWS, QK_PITCH, lane, 32);
    for (int tile = 0; tile < tiles; ++tile) {
        const int key0 = tile * BLOCK_N;
        load_tile(head.k + key0 * HEAD_DIM, seq_kv - key0, k_smem, BLOCK_N, QK_PITCH, tile_thread, TILE_THREADS);
        load_tile(head.v + key0 * HEAD_DIM, seq_kv - key0, v_smem, BLOCK_N, HEAD_DIM, tile_thread, TILE_THREADS);
        tile_sync();

        // S = Q K^T
        float s[ROWS][KEYS] = {};
#pragma unroll 2
        for (int d = 0; d < HEAD_DIM; d += 4) {
            float q_reg[ROWS][4];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                load4(q_reg[i], &q_smem[(row_lane + ROW_LANES * i) * QK_PITCH + d]);
            }
#pragma unroll
            for (int n = 0; n < KEYS; ++n) {
                float k_reg[4];
                load4(k_reg, &k_smem[(key_lane + KEY_LANES * n) * QK_PITCH + d]);
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                    for (int x = 0; x < 4; ++x) {
                        s[i][n] = fmaf(q_reg[i][x], k_reg[x], s[i][n]);
                    }
                }
            }
        }

        float tile_max[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int visible = visible_keys(warp_row + row_lane + ROW_LANES * i, seq_kv);
            tile_max[i] = NEGATIVE_INFINITY;
#pragma unroll
            for (int n = 0; n < KEYS; ++n) {
                const int key = key0 + key_lane + KEY_LANES * n;
                s[i][n] = key < visible ? s[i][n] * score_scale.sign : NEGATIVE_INFINITY;
                tile_max[i] = fmaxf(tile_max[i], s[i][n]);
            }
        }
        reduce_rows(tile_max, partial_smem, row_lane, key_lane, Max{});

#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float rescale = softmax[i].advance(tile_max[i], score_scale.log2);
#pragma unroll
            for (int c = 0; c < COLS; ++c) {
                acc[i][c] *= rescale;
            }
#pragma unroll
            for (int n = 0; n < KEYS; ++n) {
                const float weight = softmax_weight(s[i][n], softmax[i].max, score_scale.log2);
                softmax[i].sum += weight;
                p_smem[(row_lane + ROW_LANES * i) * P_PITCH + key_lane + KEY_LANES * n] = weight;
            }
        }
        __syncwarp();

        // O += P V
#pragma unroll 1
        for (int n = 0; n < BLOCK_N; n += 4) {
            float p_reg[ROWS][4];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                load4(p_reg[i], &p_smem[(row_lane + ROW_LANES * i) * P_PITCH + n]);
            }
#pragma unroll
            for (int x = 0; x < 4; ++x) {
#pragma unroll
                for (int c = 0; c < COLS; c += 4) {
                    float v_reg[4];
                    load4(v_reg, &v_smem[(n + x) * HEAD_DIM + KEY_LANES * c + 4 * key_lane]);
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
                        for (int y = 0; y < 4; ++y) {
                            acc[i][c + y] = fmaf(p_reg[i][x], v_reg[y], acc[i][c + y]);
                        }
                    }
                }
            }
        }
        tile_sync();  // everyone has read this tile: the next may overwrite it
    }

    float row_sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        row_sum[i] = softmax[i].sum;
    }
    reduce_rows(row_sum, partial_smem, row_lane, key_lane, Sum{});
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = warp_row + row_lane + ROW_LANES * i;
        if (row < seq_q) {
            const float normaliser = softmax_normaliser(row_sum[i]);
            if (lse != nullptr && key_lane == 0) {
                lse_of_block(lse, seq_q)[row] = log_sum_exp(softmax[i].max, row_sum[i], score_scale.log2);
            }
#pragma unroll
            for (int c = 0; c < COLS; c += 4) {
                *reinterpret_cast<uint2*>(&head.o[row * HEAD_DIM + KEY_LANES * c + 4 * key_lane]) =
                    make_uint2(pack_pair(acc[i][c] * normaliser, acc[i][c + 1] * normaliser),
                               pack_pair(acc[i][c + 2] * normaliser, acc[i][c + 3] * normaliser));
            }
        }
    }
}
