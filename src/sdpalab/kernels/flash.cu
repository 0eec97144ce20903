// flash: FlashAttention-2 (Dao 2023) for sm_80 and later, on mma.sync.
//
// Idea: P never leaves the registers. The accumulator layout of S = Q K^T is the operand layout of O += P V, so the
// weights are packed where they are and fed to the next mma. Each warp owns 16 query rows with their whole softmax, Q
// stays in registers for the whole kernel, and shared memory holds only K and V, filled by cp.async a tile ahead.
//
// One barrier a tile: it says that the tile has arrived for all, and that all have left the stage which the next copy
// overwrites. Tiles go from key 0 up, so that every row meets a visible key in the first one; only those on the
// causal or the ragged edge take the branch that masks.
//
// Static bars (sm_89, D=64, default knobs): 0 spills, 0 stack, <= 120 registers, 32 KiB shared memory, 3 blocks an SM.
// Knobs: BLOCK_M (rows of Q; 16 a warp), BLOCK_N (keys a tile; 0: by HEAD_DIM), NUM_STAGES (tiles of K, V in memory).

#include "head.cuh"
#include "mask.cuh"
#include "softmax.cuh"
#include "store.cuh"
#include "tile.cuh"

// Above D = 64 the accumulator of O takes the registers that 64 keys of scores would need.
constexpr int TILE_N = BLOCK_N ? BLOCK_N : HEAD_DIM > 64 ? 32 : 64;
constexpr int WARP_M = 16;
constexpr int NUM_THREADS = BLOCK_M / WARP_M * 32;
constexpr int TILE_BYTES = TILE_N * HEAD_DIM * 2;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // K, then V
constexpr int SMEM_BYTES = NUM_STAGES * STAGE_BYTES;
constexpr int Q_BYTES = BLOCK_M * HEAD_DIM * 2;

// Registers. FRAGMENTS are those of Q, O and S that a thread holds at once; addresses, the softmax and what ldmatrix
// has in flight come on top. Left alone, ptxas takes about 135 at D=64 to load further ahead. The caps are found by
// trial: with them it spills nothing on any architecture.
constexpr int FRAGMENTS = HEAD_DIM / 4 + HEAD_DIM / 2 + TILE_N / 2;
constexpr int MAX_REGISTERS = FRAGMENTS <= 80 ? 128 : 184;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M == 32 || BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 32, 64 or 128");
static_assert(TILE_N == 32 || TILE_N == 64, "BLOCK_N is 0, 32 or 64");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(Q_BYTES <= STAGE_BYTES, "Q passes through one stage");
static_assert(NUM_THREADS * CHUNK_ELEMENTS / HEAD_DIM % 8 == 0, "the swizzle must be the same in each pass");
static_assert(SMEM_BYTES <= 48 * 1024, "two blocks of 48 KiB share an SM of any architecture");

// Folds one tile of keys into the output and the softmax of a warp's rows lane / 4 and lane / 4 + 8.
//
// k_smem, v_smem: this lane's ldmatrix addresses in the tile. keys_left: of each row, from this lane's first column.
__device__ __forceinline__ void attend(float (&o_frag)[HEAD_DIM / 8][4], SoftmaxRow (&softmax)[2],
                                       const unsigned (&q_frag)[HEAD_DIM / 16][4], unsigned k_smem, unsigned v_smem,
                                       float scale_log2, bool masked, const int (&keys_left)[2]) {
    float s_frag[TILE_N / 8][4] = {};
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
#pragma unroll
        for (int n = 0; n < TILE_N / 16; ++n) {
            unsigned k_frag[4];
            ptx::ldmatrix_x4(k_frag, block_address<HEAD_DIM>(k_smem, n, d));
            mma_m16n8k16(s_frag[2 * n], q_frag[d], k_frag[0], k_frag[1]);
            mma_m16n8k16(s_frag[2 * n + 1], q_frag[d], k_frag[2], k_frag[3]);
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

    float tile_max[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
#pragma unroll
    for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            tile_max[i / 2] = fmaxf(tile_max[i / 2], s_frag[n][i]);
        }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float rescale = softmax[half].advance(quad_max(tile_max[half]), scale_log2);
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; ++d) {
            o_frag[d][2 * half] *= rescale;
            o_frag[d][2 * half + 1] *= rescale;
        }
    }

#pragma unroll
    for (int n = 0; n < TILE_N / 16; ++n) {
        unsigned p_frag[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int half = i % 2;
            const float(&s)[4] = s_frag[2 * n + i / 2];
            const float p0 = softmax_weight(s[2 * half], softmax[half].max, scale_log2);
            const float p1 = softmax_weight(s[2 * half + 1], softmax[half].max, scale_log2);
            softmax[half].sum += p0 + p1;
            p_frag[i] = pack_pair(p0, p1);
        }
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; ++d) {
            unsigned v_frag[4];
            ptx::ldmatrix_x4_trans(v_frag, block_address<HEAD_DIM>(v_smem, n, d));
            mma_m16n8k16(o_frag[2 * d], p_frag, v_frag[0], v_frag[1]);
            mma_m16n8k16(o_frag[2 * d + 1], p_frag, v_frag[2], v_frag[3]);
        }
    }
}

__global__ void __maxnreg__(MAX_REGISTERS)
    flash_attention(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ o, int seq_q, int seq_kv, int group, float scale, float* __restrict__ lse) {
    extern __shared__ __align__(1024) unsigned char smem[];  // [NUM_STAGES][K, V][TILE_N, HEAD_DIM]

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const Head head = head_of_block(q, k, v, o, seq_q, seq_kv, group);
    const int first_row = q_tile_of_block() * BLOCK_M;
    const int last_row = min(first_row + BLOCK_M, seq_q) - 1;
    const int tiles = tiles_visible(last_row, seq_kv, TILE_N);
    const int unmasked = tiles_unmasked(first_row, seq_kv, TILE_N);
    const unsigned smem_base = ptx::smem_address(smem);

    // Q, through the stage that is filled last.
    const unsigned q_smem = smem_base + (NUM_STAGES - 1) * STAGE_BYTES;
    const TileCopy<BLOCK_M, HEAD_DIM, NUM_THREADS> q_copy(threadIdx.x);
    q_copy.start(q_smem + q_copy.smem_offset, head.q + first_row * HEAD_DIM + q_copy.global_offset,
                 seq_q - first_row - q_copy.row);
    ptx::cp_async_commit_group();

    // The stages go round; what is loaded is always NUM_STAGES - 1 tiles ahead of what is computed.
    const auto after = [](unsigned stage) { return stage == SMEM_BYTES - STAGE_BYTES ? 0 : stage + STAGE_BYTES; };
    const TileCopy<TILE_N, HEAD_DIM, NUM_THREADS> kv_copy(threadIdx.x);
    const unsigned copy_smem = smem_base + kv_copy.smem_offset;
    long long kv_next = head.k - k + kv_copy.global_offset;  // K and V have one shape: one offset walks both
    int rows_left = seq_kv - kv_copy.row;
    unsigned load_stage = 0;
    const auto load = [&](int tile) {
        if (tile < tiles) {
            kv_copy.start(copy_smem + load_stage, k + kv_next, rows_left);
            kv_copy.start(copy_smem + load_stage + TILE_BYTES, v + kv_next, rows_left);
            kv_next += TILE_N * HEAD_DIM;
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

    ptx::cp_async_wait_group<NUM_STAGES - 1>();
    __syncthreads();
    const ScoreScale score_scale(scale);
    unsigned q_frag[HEAD_DIM / 16][4];
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        ptx::ldmatrix_x4(q_frag[d], block_address<HEAD_DIM>(q_smem + row_block_offset<HEAD_DIM>(lane), warp, d));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            q_frag[d][i] = score_scale.apply_sign(q_frag[d][i]);
        }
    }

    float o_frag[HEAD_DIM / 8][4] = {};
    SoftmaxRow softmax[2];
    const int row = first_row + warp * WARP_M + lane / 4;
    const int column = 2 * (lane % 4);
    int keys_left[2] = {visible_keys(row, seq_kv) - column, visible_keys(row + 8, seq_kv) - column};
    const unsigned k_smem = smem_base + col_block_offset<HEAD_DIM>(lane);
    const unsigned v_smem = smem_base + TILE_BYTES + row_block_offset<HEAD_DIM>(lane);
    unsigned stage = 0;
    int tile = 0;
#pragma unroll 1
    do {  // there is a tile: every row sees key 0
        ptx::cp_async_wait_group<NUM_STAGES - 2>();
        __syncthreads();
        load(tile + NUM_STAGES - 1);
        attend(o_frag, softmax, q_frag, k_smem + stage, v_smem + stage, score_scale.log2, tile >= unmasked, keys_left);
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
            lse_of_block(lse, seq_q)[lse_row] = log_sum_exp(softmax[half].max, row_sum, ScoreScale(scale).log2);
        }
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; ++d) {
            o_pairs[d][half] = pack_pair(o_frag[d][2 * half] * factor, o_frag[d][2 * half + 1] * factor);
        }
    }
    __syncthreads();  // the output goes where other warps may still read keys
    store_warp_tile<HEAD_DIM>(head.o + warp_row * HEAD_DIM, seq_q - warp_row, o_pairs,
                              smem + warp * WARP_M * HEAD_DIM * 2, lane);
}
