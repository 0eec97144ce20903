// fp8: FlashAttention-2 on the e4m3 tensor cores of sm_89, which multiply twice as fast as those for 16 bits.
//
// Idea: Q, K, V and P are e4m3, with a float32 scale for each 64 rows and each weight in 2^8 parts (softmax/fp8.cuh). A
// kernel before this one quantises (tile/quantise.cuh), so that a number is rounded once and not once for every block
// that reads it, and K and V cross the memory in half the bytes; its time counts.
//   S = Q K^T   raw scores of m16n8k32; a tile has one scale of K, and a warp one of Q
//   O += s P V  a tile's product starts from 0, and joins O in float32 with a factor s: the scale of its V, and how far
//               its maximum is from the reference of the row
// Sums of the tensor cores are thus never longer than 128 terms, whatever the hardware drops of them.
//
// P stays in the registers. The accumulators of two m16n8 blocks of S are, as packed, the four numbers of the next left
// operand: not in the order of their keys, but V may have its rows in any order, and quantise_blocks wrote them in this
// one. It wrote V^T, too: the right operand runs along the keys, and ldmatrix transposes nothing smaller than 16 bits.
//
// Three bits of fraction in P add to the error of the quantised inputs. P_DTYPE=fp16 does without that part of it: P V
// is two m16n8k16 in place of each m16n8k32, and V, still e4m3 in memory, is widened on its way to them. No weight
// moves here either, and V has the same order (TileWeights).
//
// Static limits (sm_89, D=64, defaults): 0 spills, 0 stack, <= 136 registers, 16 KiB shared memory, 3 blocks an SM.
// Knobs: BLOCK_M (rows of Q; 16 a warp), NUM_STAGES (tiles of K, V in memory), P_DTYPE (e4m3, fp16). A tile is the 64
// keys of a scale.

#include "epilogue/store.cuh"
#include "schedule/head.cuh"
#include "softmax/fp8.cuh"

constexpr int SCALE_ROWS = 64;
constexpr int TILE_N = SCALE_ROWS;
constexpr int WARP_M = 16;
constexpr int NUM_THREADS = BLOCK_M / WARP_M * 32;
constexpr int TILE_BYTES = TILE_N * HEAD_DIM;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // K, then V
constexpr int SMEM_BYTES = NUM_STAGES * STAGE_BYTES;
constexpr int O_BYTES = BLOCK_M * HEAD_DIM * 2;

// To cp.async, ldmatrix and the swizzle, a tile of bytes is one of 16-bit elements, each of them two numbers.
constexpr int ROW_PAIRS = HEAD_DIM / 2;   // Q, K [rows, HEAD_DIM]
constexpr int COLUMN_PAIRS = TILE_N / 2;  // V^T [HEAD_DIM, TILE_N]

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M == 32 || BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 32, 64 or 128");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(O_BYTES <= SMEM_BYTES, "the output passes through the stages");
static_assert(SMEM_BYTES <= 48 * 1024, "two blocks of 48 KiB share an SM of any architecture");

// The weights of a tile, packed as left operands of O += P V.
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

    // v0, v1: the right operand of m16n8k32 for these keys.
    __device__ __forceinline__ void multiply(float (&product)[4], int n, unsigned v0, unsigned v1) const {
        ptx::mma_m16n8k32_e4m3(product, frag[n], v0, v1);
    }
};

// Half as many keys fill an operand. Of the right one, V has both registers in one: the four numbers of sixteen keys
// that a lane holds, in the order of quantise_blocks, are the two of the first register and then those of the second.
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

__device__ __forceinline__ const Element* pairs(const unsigned char* bytes) {
    return reinterpret_cast<const Element*>(bytes);
}

// Folds one tile of keys into the output and the softmax of a warp's rows lane / 4 and lane / 4 + 8.
//
// k_smem, v_smem: this lane's ldmatrix addresses in the tile. keys_left: of each row, from this lane's first column.
__device__ __forceinline__ void attend(float (&o_frag)[HEAD_DIM / 8][4], SoftmaxRow (&softmax)[2],
                                       const unsigned (&q_frag)[HEAD_DIM / 32][4], unsigned k_smem, unsigned v_smem,
                                       const TileScale& tile_scale, float scale_log2, float v_scale, bool masked,
                                       const int (&keys_left)[2]) {
    float s_frag[TILE_N / 8][4] = {};
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 32; ++d) {
#pragma unroll
        for (int n = 0; n < TILE_N / 16; ++n) {
            unsigned k_frag[4];
            ptx::ldmatrix_x4(k_frag, block_address<ROW_PAIRS>(k_smem, n, d));
            ptx::mma_m16n8k32_e4m3(s_frag[2 * n], q_frag[d], k_frag[0], k_frag[1]);
            ptx::mma_m16n8k32_e4m3(s_frag[2 * n + 1], q_frag[d], k_frag[2], k_frag[3]);
        }
    }

    if (masked) {
#pragma unroll
        for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s_frag[n][i] = 8 * n + i % 2 < keys_left[i / 2] ? s_frag[n][i] : NEGATIVE_INFINITY;
            }
        }
    }

    float raw_max[2] = {LOWEST_FLOAT, LOWEST_FLOAT};
#pragma unroll
    for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            raw_max[i / 2] = fmaxf(raw_max[i / 2], s_frag[n][i]);
        }
    }
    raw_max[0] = quad_max(raw_max[0]);
    raw_max[1] = quad_max(raw_max[1]);
    TileRows rows(raw_max, tile_scale);
    if (__any_sync(0xffffffffu, rows.outgrown(softmax, scale_log2) || !rows.in_range())) {
        const float rescale[2] = {softmax[0].advance(rows.tile_max[0], scale_log2),
                                  softmax[1].advance(rows.tile_max[1], scale_log2)};
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; ++d) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                o_frag[d][i] *= rescale[i / 2];
            }
        }
        if (__any_sync(0xffffffffu, !rows.in_range())) {
#pragma unroll
            for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s_frag[n][i] -= raw_max[i / 2];
                }
            }
            rows.subtracted();
        }
    }

    TileWeights<WeightType::P_DTYPE> weights;
    float sum[2] = {};
#pragma unroll
    for (int n = 0; n < TILE_N / 32; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int half = i % 2;
            const float(&s)[4] = s_frag[4 * n + i / 2 * 2];
            const float(&next)[4] = s_frag[4 * n + i / 2 * 2 + 1];
            const float p0 = rows.weight(s[2 * half], half);
            const float p1 = rows.weight(s[2 * half + 1], half);
            const float p2 = rows.weight(next[2 * half], half);
            const float p3 = rows.weight(next[2 * half + 1], half);
            sum[half] += (p0 + p1) + (p2 + p3);
            weights.set(n, i, p0, p1, p2, p3);
        }
    }
    const float factor[2] = {rows.factor(softmax, 0, scale_log2), rows.factor(softmax, 1, scale_log2)};
    softmax[0].sum = fmaf(sum[0], factor[0], softmax[0].sum);
    softmax[1].sum = fmaf(sum[1], factor[1], softmax[1].sum);
    const float join[2] = {v_scale * factor[0], v_scale * factor[1]};

#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        float product[2][4] = {};
#pragma unroll
        for (int n = 0; n < TILE_N / 32; ++n) {
            unsigned v_frag[4];
            ptx::ldmatrix_x4(v_frag, block_address<COLUMN_PAIRS>(v_smem, d, n));
            weights.multiply(product[0], n, v_frag[0], v_frag[1]);
            weights.multiply(product[1], n, v_frag[2], v_frag[3]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float& o = o_frag[2 * d + i / 4][i % 4];
            o = fmaf(product[i / 4][i % 4], join[i % 4 / 2], o);
        }
    }
}

// The bytes and scales are those of quantise_blocks<SCALE_ROWS>, V in blocks one behind the other.
//
// There is no bound on registers: left alone, ptxas takes 133 at D=64 on sm_89. Given 128, it spills.
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

    // Q, through the stage that is filled last.
    const unsigned q_smem = smem_base + (NUM_STAGES - 1) * STAGE_BYTES;
    const TileCopy<BLOCK_M, ROW_PAIRS, NUM_THREADS> q_copy(threadIdx.x);
    q_copy.start(q_smem + q_copy.smem_offset,
                 pairs(q_bytes + (q_head * seq_q + first_row) * HEAD_DIM) + q_copy.global_offset,
                 seq_q - first_row - q_copy.row);
    ptx::cp_async_commit_group();

    // The stages go round; what is loaded is always NUM_STAGES - 1 tiles ahead of what is computed.
    const auto after = [](unsigned stage) { return stage == SMEM_BYTES - STAGE_BYTES ? 0 : stage + STAGE_BYTES; };
    const TileCopy<TILE_N, ROW_PAIRS, NUM_THREADS> k_copy(threadIdx.x);
    const TileCopy<HEAD_DIM, COLUMN_PAIRS, NUM_THREADS> v_copy(threadIdx.x);
    const unsigned char* k_head = k_bytes + kv_head * seq_kv * HEAD_DIM;
    const unsigned char* v_head = v_bytes + kv_head * all_tiles * TILE_BYTES;
    int next = threadIdx.x * CHUNK_BYTES;  // in both: their tiles are of one size, and lie one behind the other
    int rows_left = seq_kv - k_copy.row;
    unsigned load_stage = 0;
    const auto load = [&](int tile) {
        if (tile < tiles) {
            k_copy.start(smem_base + load_stage + k_copy.smem_offset, pairs(k_head + next), rows_left);
            v_copy.start(smem_base + load_stage + TILE_BYTES + v_copy.smem_offset, pairs(v_head + next), HEAD_DIM);
            next += TILE_BYTES;
            rows_left -= TILE_N;
            load_stage = after(load_stage);
        }
        // Committed even if empty, so that the newest NUM_STAGES - 1 groups are always those of the tiles ahead.
        ptx::cp_async_commit_group();
    };
#pragma unroll
    for (int tile = 0; tile < NUM_STAGES - 1; ++tile) {
        load(tile);
    }

    const ScoreScale score_scale(scale);
    const int first_of_warp = min(first_row + warp * WARP_M, seq_q - 1);  // past the end, any scale will do
    const float q_scale = q_scales[q_head * ceil_div(seq_q, SCALE_ROWS) + first_of_warp / SCALE_ROWS];
    kv_scales += kv_head * all_tiles;
    float2 next_scales = kv_scales[0];

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
    SoftmaxRow softmax[2];
    const int row = first_row + warp * WARP_M + lane / 4;
    const int column = 2 * (lane % 4);
    int keys_left[2] = {visible_keys(row, seq_kv) - column, visible_keys(row + 8, seq_kv) - column};
    const unsigned k_smem = smem_base + col_block_offset<ROW_PAIRS>(lane);
    const unsigned v_smem = smem_base + TILE_BYTES + col_block_offset<COLUMN_PAIRS>(lane);
    unsigned stage = 0;
    int tile = 0;
#pragma unroll 1
    do {  // there is a tile: every row sees key 0
        ptx::cp_async_wait_group<NUM_STAGES - 2>();
        __syncthreads();
        load(tile + NUM_STAGES - 1);
        const float2 scales = next_scales;
        if (tile + 1 < tiles) {
            next_scales = kv_scales[tile + 1];
        }
        const TileScale tile_scale(q_scale, scales.x, score_scale.log2);
        attend(o_frag, softmax, q_frag, k_smem + stage, v_smem + stage, tile_scale, score_scale.log2, scales.y,
               tile >= unmasked, keys_left);
        keys_left[0] -= TILE_N;
        keys_left[1] -= TILE_N;
        stage = after(stage);
    } while (++tile < tiles);

    const int warp_row = q_tile_of_block() * BLOCK_M + static_cast<int>(threadIdx.x) / 32 * WARP_M;
    unsigned o_pairs[HEAD_DIM / 8][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float row_sum = quad_sum(softmax[half].sum);
        const float factor = softmax_normaliser(row_sum);
        const int lse_row = warp_row + lane / 4 + 8 * half;
        if (lse != nullptr && lane % 4 == 0 && lse_row < seq_q) {
            lse_of_block(lse, seq_q)[lse_row] =
                log_sum_exp(softmax[half].max, row_sum * WEIGHT_UNIT, ScoreScale(scale).log2);
        }
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; ++d) {
            o_pairs[d][half] = pack_pair(o_frag[d][2 * half] * factor, o_frag[d][2 * half + 1] * factor);
        }
    }
    __syncthreads();  // the output goes where other warps may still read keys
    store_warp_tile<HEAD_DIM>(o + (q_head * seq_q + warp_row) * HEAD_DIM, seq_q - warp_row, o_pairs,
                              smem + warp * WARP_M * HEAD_DIM * 2, lane);
}
