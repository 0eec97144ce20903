// fp8: FlashAttention-2 on the e4m3 tensor cores of sm_89, which multiply twice as fast as those for 16 bits.
//
// Idea: Q, K, V and P are e4m3 with a float32 scale per 64 rows; softmax/fp8_rows.cuh has the units of the weights. A
// kernel before this one quantises (tile/quantise.cuh): each number is rounded once instead of once per block that
// reads it, and K and V cross the memory in half the bytes. The time of that kernel counts.
//   S = Q K^T   raw scores of m16n8k32; a tile has one scale of K, and a warp one of Q
//   O += s P V  a tile's product starts from 0; a float32 multiply-add with s, the scale of its V, adds it to O
// Sums in the tensor cores have at most 128 terms, which bounds the bits that the hardware drops.
//
// P stays in the registers. The packed accumulators of two m16n8 blocks of S hold the four numbers of the next left
// operand in another order of keys. The rows of V may have any order, and quantise_blocks writes them in this one. It
// also writes V^T: the right operand runs along the keys, and ldmatrix transposes 16-bit elements only.
//
// Three bits of fraction in P add to the error of the quantised inputs. P_DTYPE=fp16 avoids that part: two m16n8k16
// replace each m16n8k32 of P V, and V, still e4m3 in memory, is widened on its way to them. The weights stay in place
// here too, and V has the same order (TileWeights).
//
// Static limits (sm_89, D=64, defaults): 0 spills, 0 stack, <= 128 registers, 16 KiB shared memory, 4 blocks an SM.
// Knobs: BLOCK_M (rows of Q; 16 a warp), NUM_STAGES (tiles of K, V in memory), P_DTYPE (e4m3, fp16). A tile has 64
// keys, as many as share a scale. RAGGED_Q and RAGGED_KV (seq_q or seq_kv ends within a tile) follow from the problem.

#include "epilogue/store.cuh"
#include "schedule/head.cuh"
#include "softmax/fp8_rows.cuh"
#include "softmax/mask.cuh"
#include "tile/copy.cuh"

constexpr int SCALE_ROWS = 64;
constexpr int TILE_N = SCALE_ROWS;
constexpr int WARP_M = 16;
constexpr int NUM_THREADS = BLOCK_M / WARP_M * 32;
constexpr int TILE_BYTES = TILE_N * HEAD_DIM;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // K, then V
constexpr int SMEM_BYTES = NUM_STAGES * STAGE_BYTES;
constexpr int O_BYTES = BLOCK_M * HEAD_DIM * 2;

// cp.async, ldmatrix and the swizzle treat a tile of bytes as 16-bit elements, two numbers each.
constexpr int ROW_PAIRS = HEAD_DIM / 2;   // Q, K [rows, HEAD_DIM]
constexpr int COLUMN_PAIRS = TILE_N / 2;  // V^T [HEAD_DIM, TILE_N]
constexpr int K_BLOCK_BYTES = 16 * HEAD_DIM;  // from 16 rows to the next: an immediate offset
constexpr int V_BLOCK_BYTES = 16 * TILE_N;
constexpr bool HAS_EDGE = CAUSAL || RAGGED_KV;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M == 32 || BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 32, 64 or 128");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(O_BYTES <= SMEM_BYTES, "the output passes through the stages");
static_assert(SMEM_BYTES <= 48 * 1024, "two blocks of 48 KiB share an SM of any architecture");

// Weights of a tile, packed as left operands of O += P V.
enum class WeightType { e4m3, fp16 };

template <WeightType>
struct TileWeights;

template <>
struct TileWeights<WeightType::e4m3> {
    unsigned frag[TILE_N / 32][4];

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
template <>
struct TileWeights<WeightType::fp16> {
    unsigned frag[TILE_N / 16][4];

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

// Masks a warp's raw scores. keys_left: visible keys of each row, from this lane's first column.
__device__ __forceinline__ void mask_raw_scores(float (&s_frag)[TILE_N / 8][4], const int (&keys_left)[2]) {
#pragma unroll
    for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            s_frag[n][i] = 8 * n + i % 2 < keys_left[i / 2] ? s_frag[n][i] : NEGATIVE_INFINITY;
        }
    }
}

// Largest raw score of each row in the tile; finite, also for a row that sees none of the keys.
__device__ __forceinline__ void largest_scores(float (&raw_max)[2], const float (&s_frag)[TILE_N / 8][4]) {
    raw_max[0] = HAS_EDGE ? LOWEST_FLOAT : s_frag[0][0];
    raw_max[1] = HAS_EDGE ? LOWEST_FLOAT : s_frag[0][2];
#pragma unroll
    for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            raw_max[i / 2] = fmaxf(raw_max[i / 2], s_frag[n][i]);
        }
    }
    raw_max[0] = quad_max(raw_max[0]);
    raw_max[1] = quad_max(raw_max[1]);
}

// O[16, 16 D on] += v_scale * P V: the tile's product starts from 0.
template <int D = 0>
__device__ __forceinline__ void join_products(float (&o_frag)[HEAD_DIM / 8][4],
                                              const TileWeights<WeightType::P_DTYPE>& weights, unsigned v_smem,
                                              float v_scale) {
    float product[2][4] = {};
#pragma unroll
    for (int n = 0; n < TILE_N / 32; ++n) {
        unsigned v_frag[4];
        ptx::ldmatrix_x4_at<D * V_BLOCK_BYTES>(v_frag, block_address<COLUMN_PAIRS>(v_smem, 0, n));
        weights.multiply(product[0], n, v_frag[0], v_frag[1]);
        weights.multiply(product[1], n, v_frag[2], v_frag[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float& o = o_frag[2 * D + i / 4][i % 4];
        o = fmaf(product[i / 4][i % 4], v_scale, o);
    }
    if constexpr (D + 1 < HEAD_DIM / 16) {
        join_products<D + 1>(o_frag, weights, v_smem, v_scale);
    }
}

// Packs the weights 2^(slope * raw score + offset) of a tile; `sum`: over this lane's columns in either row.
__device__ __forceinline__ void weigh(TileWeights<WeightType::P_DTYPE>& weights, float (&sum)[2],
                                      const float (&s_frag)[TILE_N / 8][4], float slope, const float (&offset)[2]) {
    const auto weight = [&](float raw_score, int row) {
        return ptx::ex2_approx_ftz_f32(fmaf(raw_score, slope, offset[row]));
    };
#pragma unroll
    for (int n = 0; n < TILE_N / 32; ++n) {
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

// Adds one tile's raw scores to the output and the softmax of a warp's rows lane / 4 and lane / 4 + 8.
//
// first: no reference and nothing to rescale yet. v_smem: this lane's ldmatrix address in the tile.
__device__ __forceinline__ void attend(float (&o_frag)[HEAD_DIM / 8][4], Fp8Rows& softmax,
                                       float (&s_frag)[TILE_N / 8][4], unsigned v_smem, const TileScale& tile_scale,
                                       float scale_log2, float v_scale, bool first) {
    TileWeights<WeightType::P_DTYPE> weights;
    float sum[2];
    bool fit = false;
    if (!first) {
        weigh(weights, sum, s_frag, tile_scale.slope, softmax.offset);
        fit = softmax.fit(sum);
    }
    if (!fit) {
        float raw_max[2];
        largest_scores(raw_max, s_frag);
        float rescale[2];
        float offset[2];
        const bool subtract = softmax.move(rescale, offset, raw_max, tile_scale, scale_log2);
        if (!first) {
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 8; ++d) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    o_frag[d][i] *= rescale[i / 2];
                }
            }
        }
        if (subtract) {
#pragma unroll
            for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s_frag[n][i] -= raw_max[i / 2];
                }
            }
        }
        weigh(weights, sum, s_frag, tile_scale.slope, offset);
    }
    softmax.rows[0].sum += sum[0];
    softmax.rows[1].sum += sum[1];

    join_products(o_frag, weights, v_smem, v_scale);
}

// Raw scores += Q K^T of 32 columns, for the keys from 16 N on. q_frag: these columns of Q. k_smem: same, row 0.
template <int N = 0>
__device__ __forceinline__ void multiply_raw_columns(float (&s_frag)[TILE_N / 8][4], const unsigned (&q_frag)[4],
                                                     unsigned k_smem) {
    unsigned k_frag[4];
    ptx::ldmatrix_x4_at<N * K_BLOCK_BYTES>(k_frag, k_smem);
    ptx::mma_m16n8k32_e4m3(s_frag[2 * N], q_frag, k_frag[0], k_frag[1]);
    ptx::mma_m16n8k32_e4m3(s_frag[2 * N + 1], q_frag, k_frag[2], k_frag[3]);
    if constexpr (N + 1 < TILE_N / 16) {
        multiply_raw_columns<N + 1>(s_frag, q_frag, k_smem);
    }
}

// Computes the raw scores of a tile. k_smem: this lane's ldmatrix address in the tile.
__device__ __forceinline__ void multiply_raw_scores(float (&s_frag)[TILE_N / 8][4],
                                                    const unsigned (&q_frag)[HEAD_DIM / 32][4], unsigned k_smem) {
#pragma unroll
    for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            s_frag[n][i] = 0.0f;
        }
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 32; ++d) {
        multiply_raw_columns(s_frag, q_frag[d], block_address<ROW_PAIRS>(k_smem, 0, d));
    }
}

// Bytes and scales come from quantise_blocks<SCALE_ROWS>; the blocks of V are consecutive.
//
// Registers have no bound: ptxas takes 123 at D=64 on sm_89 without one.
__global__ void fp8_attention(const unsigned char* __restrict__ q_bytes, const unsigned char* __restrict__ k_bytes,
                              const unsigned char* __restrict__ v_bytes, const float* __restrict__ q_scales,
                              const float2* __restrict__ kv_scales, Element* __restrict__ o, int seq_q, int seq_kv,
                              int group, float scale, float* __restrict__ lse) {
    // [NUM_STAGES], each K [TILE_N, HEAD_DIM] and V^T [HEAD_DIM, TILE_N]
    extern __shared__ __align__(1024) unsigned char smem[];

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const long long q_head = q_head_of_block();
    const long long kv_head = q_head_of_block() / group;
    const int first_row = q_tile_of_block() * BLOCK_M;
    const int last_row = min(first_row + BLOCK_M, seq_q) - 1;
    const int all_tiles = ceil_div(seq_kv, TILE_N);
    const int tiles = tiles_visible(last_row, seq_kv, TILE_N);
    const int unmasked = tiles_unmasked(first_row, seq_kv, TILE_N);
    const unsigned smem_base = ptx::smem_address(smem);

    // Loads Q through the stage that is filled last.
    const unsigned q_smem = smem_base + (NUM_STAGES - 1) * STAGE_BYTES;
    const TileCopy<BLOCK_M, ROW_PAIRS, NUM_THREADS> q_copy(threadIdx.x);
    q_copy.start(q_smem + q_copy.smem_offset,
                 q_bytes + (q_head * seq_q + first_row) * HEAD_DIM + 2 * q_copy.global_offset,
                 RAGGED_Q ? seq_q - first_row - q_copy.row : BLOCK_M);
    ptx::cp_async_commit_group();

    // The stages form a ring; with two stages, the next one is also the previous one. Loads run NUM_STAGES - 1 tiles
    // ahead of the computation.
    const auto after = [](unsigned stage) {
        return NUM_STAGES == 2 ? stage ^ STAGE_BYTES : stage == SMEM_BYTES - STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    };
    const TileCopy<TILE_N, ROW_PAIRS, NUM_THREADS> k_copy(threadIdx.x);
    const TileCopy<HEAD_DIM, COLUMN_PAIRS, NUM_THREADS> v_copy(threadIdx.x);
    const unsigned char* k_next = k_bytes + kv_head * seq_kv * HEAD_DIM + 2 * k_copy.global_offset;
    const unsigned char* v_next = v_bytes + kv_head * all_tiles * TILE_BYTES + 2 * v_copy.global_offset;
    unsigned load_stage = 0;
    int left = opaque(tiles);  // tiles left, the present one included
    const auto load = [&](int ahead) {
        if (left > ahead) {
            const int rows_left = RAGGED_KV ? seq_kv - (tiles - left + ahead) * TILE_N - k_copy.row : TILE_N;
            k_copy.start(smem_base + k_copy.smem_offset + load_stage, k_next, rows_left);
            v_copy.start(smem_base + TILE_BYTES + v_copy.smem_offset + load_stage, v_next, HEAD_DIM);
            k_next += TILE_BYTES;
            v_next += TILE_BYTES;
            load_stage = after(load_stage);
        }
        // Commits empty groups too: the newest NUM_STAGES - 1 groups then always belong to the tiles ahead.
        ptx::cp_async_commit_group();
    };
#pragma unroll
    for (int ahead = 0; ahead < NUM_STAGES - 1; ++ahead) {
        load(ahead);
    }

    const ScoreScale score_scale(scale);
    const int first_of_warp = min(first_row + warp * WARP_M, seq_q - 1);  // any scale is right past the end
    const float q_scale = q_scales[q_head * ceil_div(seq_q, SCALE_ROWS) + first_of_warp / SCALE_ROWS];
    kv_scales += kv_head * all_tiles;
    float2 next_scales = kv_scales[0];
    int next_tile = opaque(0);

    ptx::cp_async_wait_group<NUM_STAGES - 1>();
    __syncthreads();
    unsigned q_frag[HEAD_DIM / 32][4];
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 32; ++d) {
        ptx::ldmatrix_x4(q_frag[d], block_address<ROW_PAIRS>(q_smem + row_block_offset<ROW_PAIRS>(lane), warp, d));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            q_frag[d][i] = apply_sign_e4m3(score_scale, q_frag[d][i]);
        }
    }

    float o_frag[HEAD_DIM / 8][4] = {};
    Fp8Rows softmax;
    const unsigned k_smem = smem_base + col_block_offset<ROW_PAIRS>(lane);
    const unsigned v_smem = smem_base + TILE_BYTES + col_block_offset<COLUMN_PAIRS>(lane);
    unsigned stage = 0;
    const auto compute_tile = [&](bool first) {
        ptx::cp_async_wait_group<NUM_STAGES - 2>();
        __syncthreads();
        load(NUM_STAGES - 1);
        const float2 scales = next_scales;
        if (left > 1) {
            next_scales = kv_scales[++next_tile];
        }
        float s_frag[TILE_N / 8][4];
        multiply_raw_scores(s_frag, q_frag, k_smem + stage);
        const int tile = tiles - left;
        if (HAS_EDGE && tile >= unmasked) {
            const int thread = ptx::tid_x();
            const int row = first_row + thread / 32 * WARP_M + thread % 32 / 4;
            const int column = tile * TILE_N + 2 * (thread % 4);
            const int keys_left[2] = {visible_keys(row, seq_kv) - column, visible_keys(row + 8, seq_kv) - column};
            mask_raw_scores(s_frag, keys_left);
        }
        const TileScale tile_scale(q_scale, scales.x, score_scale.log2);
        attend(o_frag, softmax, s_frag, v_smem + stage, tile_scale, score_scale.log2, scales.y, first);
        stage = after(stage);
    };
    compute_tile(true);  // every row sees key 0: the loop has at least one tile
#pragma unroll 1
    while (--left > 0) {
        compute_tile(false);
    }

    const int warp_row = q_tile_of_block() * BLOCK_M + static_cast<int>(threadIdx.x) / 32 * WARP_M;
    const int rows_left = RAGGED_Q ? seq_q - warp_row : WARP_M;
    unsigned o_pairs[HEAD_DIM / 8][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float row_sum = quad_sum(softmax.rows[half].sum);
        const float factor = softmax_normaliser(row_sum);
        const int lse_row = lane / 4 + 8 * half;
        if (lse != nullptr && lane % 4 == 0 && lse_row < rows_left) {
            lse_of_block(lse, seq_q)[warp_row + lse_row] =
                log_sum_exp(softmax.rows[half].max, row_sum * REFERENCE_UNIT, ScoreScale(scale).log2);
        }
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; ++d) {
            o_pairs[d][half] = pack_pair(o_frag[d][2 * half] * factor, o_frag[d][2 * half + 1] * factor);
        }
    }
    __syncthreads();  // the output overwrites shared memory that other warps may still read keys from
    store_warp_tile<HEAD_DIM>(o + (q_head * seq_q + warp_row) * HEAD_DIM, rows_left, o_pairs,
                              smem_base + warp * WARP_M * HEAD_DIM * 2, lane);
}
