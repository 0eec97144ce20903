// flash: FlashAttention-2 (Dao 2023) for sm_80 and later, on mma.sync.
//
// Idea: P never leaves the registers. The accumulator layout of S = Q K^T is the operand layout of O += P V, so each
// lane packs its weights in place for the next mma. Each warp owns 16 query rows with their whole softmax, Q stays in
// registers for a tile of queries, and shared memory holds only K and V, filled by cp.async one tile ahead.
//
// One barrier per tile of keys has two purposes: the tile has arrived for all warps, and all warps have left the stage
// that the next copy overwrites. Masking and rescaling sit behind warp-uniform branches, since few tiles need them: the
// mask on the causal or the ragged edge, the rescaling of O when a row's scores outgrow its old maximum.
//
// Two schedules exist. Without STREAM_K a block computes one tile of queries over all its keys. With STREAM_K as many
// blocks as the GPU holds get equal numbers of key tiles, and blocks that share a tile of queries merge their partial
// results (schedule/stream_k.cuh, epilogue/merge.cuh): 64 tiles of queries, as on the mission shape, leave half of an
// L4 idle otherwise.
//
// Static limits (sm_89, D=64, defaults): 0 spills, 0 stack, <= 128 registers, 32 KiB shared memory, 3 blocks an SM.
// Knobs: BLOCK_M (rows of Q; 16 a warp), BLOCK_N (keys a tile; 0: by HEAD_DIM), NUM_STAGES (tiles of K, V in memory);
// the plan adds SCHEDULE and NUM_CTAS. STREAM_K, RAGGED_Q and RAGGED_KV (seq_q or seq_kv ends within a tile) follow
// from plan and problem.

#include "epilogue/merge.cuh"
#include "epilogue/store.cuh"
#include "schedule/head.cuh"
#include "schedule/stream_k.cuh"
#include "softmax/mask.cuh"
#include "tile/copy.cuh"
#include "tile/warp.cuh"

// Above D = 64 the accumulator of O takes the registers that 64 keys of scores would need.
constexpr int TILE_N = BLOCK_N ? BLOCK_N : HEAD_DIM > 64 ? 32 : 64;
constexpr int NUM_THREADS = BLOCK_M / WARP_M * 32;
constexpr int TILE_BYTES = TILE_N * HEAD_DIM * 2;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // K, then V
constexpr int SMEM_BYTES = NUM_STAGES * STAGE_BYTES;
constexpr int Q_BYTES = BLOCK_M * HEAD_DIM * 2;
constexpr bool HAS_EDGE = CAUSAL || RAGGED_KV;

#if STREAM_K
using Work = StreamK<BLOCK_M, TILE_N>;
#else
using Work = OneTile<BLOCK_M, TILE_N>;
#endif

// Registers. The fragments of Q, O and S take 80 at D=64 and 112 at D=128; addresses, the softmax and ldmatrix results
// in flight come on top. Without a cap, ptxas takes up to 150 at D=64 to load further ahead. The caps come from trials:
// ptxas spills nothing on any architecture, and three blocks of four warps fit the registers of an SM at D=64.
constexpr bool NEEDS_MORE = HAS_EDGE || __CUDA_ARCH__ >= 1000;
constexpr int MAX_REGISTERS = HEAD_DIM > 64 ? 184 : HEAD_DIM > 32 && NEEDS_MORE ? 160 : 128;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M == 32 || BLOCK_M == 64, "BLOCK_M is 32 or 64");
static_assert(TILE_N == 32 || TILE_N == 64, "BLOCK_N is 0, 32 or 64");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(EXP_ON_FMA >= 0 && EXP_ON_FMA <= 2, "EXP_ON_FMA is 0, 1 or 2");
static_assert(Q_BYTES <= STAGE_BYTES, "Q passes through one stage");
static_assert(SMEM_BYTES <= 48 * 1024, "two blocks of 48 KiB share an SM of any architecture");

// The previous and the next stage of the ring; with two stages they are the same.
__device__ __forceinline__ unsigned stage_after(unsigned stage) {
    return NUM_STAGES == 2 ? stage ^ STAGE_BYTES : stage == SMEM_BYTES - STAGE_BYTES ? 0 : stage + STAGE_BYTES;
}

__device__ __forceinline__ unsigned stage_before(unsigned stage) {
    return NUM_STAGES == 2 ? stage ^ STAGE_BYTES : stage == 0 ? SMEM_BYTES - STAGE_BYTES : stage - STAGE_BYTES;
}

__device__ __forceinline__ const void* byte_address(const Element* tensor, unsigned long long bytes) {
    return reinterpret_cast<const unsigned char*>(tensor) + bytes;
}

// Softmax of a warp's two rows a lane with a lagging maximum: the maximum moves, and the accumulators are rescaled,
// only if a row's scores have outgrown it.
struct LazySoftmax {
    SoftmaxRow rows[2];
    FusedExponents exponents;
    float lag = NOT_A_NUMBER;  // largest exponent that a tile may reach; NaN (always false) before the first tile, and
                               // -inf after the maxima were subtracted: the exponents do not suit the next tile then

    __device__ __forceinline__ explicit LazySoftmax(float scale_log2) : exponents(rows, scale_log2) {}

    // Updates the rows' maxima with a tile's, and sets `exponents` to the tile's.
    __device__ __forceinline__ void advance(float (&o_frag)[HEAD_DIM / 8][4], float (&s_frag)[TILE_N / 8][4],
                                            float scale_log2, bool first) {
        float tile_max[2];
        row_maxima<TILE_N>(tile_max, s_frag);
        if (__all_sync(0xffffffffu, fmaxf(exponents.of(tile_max[0], 0), exponents.of(tile_max[1], 1)) <= lag)) {
            return;
        }
        const float rescale[2] = {rows[0].advance(tile_max[0], scale_log2), rows[1].advance(tile_max[1], scale_log2)};
        if (!first) {  // nothing was accumulated before the first tile
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 8; ++d) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    o_frag[d][i] *= rescale[i / 2];
                }
            }
        }
        exponents = FusedExponents(rows, scale_log2);
        lag = LAG_LOG2;
        if (__any_sync(0xffffffffu, !exponents.in_range())) {
#pragma unroll
            for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s_frag[n][i] -= rows[i / 2].max;
                }
            }
            exponents.subtracted();
            lag = NEGATIVE_INFINITY;
        }
    }
};

// Number of a tile's first query row among the rows of all heads.
__device__ __forceinline__ unsigned first_row_of_all(const Segment& segment, int seq_q) {
    return RAGGED_Q ? segment.head * seq_q + segment.q_tile * BLOCK_M : segment.q_tile_of_all * BLOCK_M;
}

__global__ void __maxnreg__(MAX_REGISTERS)
    flash_attention(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ o, int seq_q, int seq_kv, int group, float scale, float* __restrict__ lse,
                    float4* partials, unsigned* semaphores, int q_tiles, int units_per_head, int units_per_block,
                    int longer, unsigned long long by_head, unsigned long long by_tile, unsigned long long by_block,
                    unsigned long long by_longer, unsigned long long by_kv_head) {
    extern __shared__ __align__(1024) unsigned char smem[];  // [NUM_STAGES][K, V][TILE_N, HEAD_DIM]
    const unsigned smem_base = ptx::smem_address(smem);

    const Shares shares{q_tiles,   units_per_head, units_per_block, longer,
                        {by_head}, {by_tile},      {by_block},      {by_longer}};
    Work work(shares, seq_q, seq_kv);
    bool more;
#pragma unroll 1
    do {
        const Segment segment = work.segment();
        const int thread = ptx::tid_x();
        const int warp = thread / 32;
        const int lane = thread % 32;
        const unsigned q_smem = smem_base + (NUM_STAGES - 1) * STAGE_BYTES;  // Q passes through the stage filled last
        const TileCopy<BLOCK_M, HEAD_DIM, NUM_THREADS> q_copy(thread);
        const TileCopy<TILE_N, HEAD_DIM, NUM_THREADS> kv_copy(thread);
        const unsigned copy_smem = smem_base + kv_copy.smem_offset;
        const unsigned k_smem = smem_base + col_block_offset<HEAD_DIM>(lane);
        const unsigned v_smem = smem_base + TILE_BYTES + row_block_offset<HEAD_DIM>(lane);
        const float scale_here = opaque(scale);
        const ScoreScale score_scale(scale_here);
        const int first_row = segment.q_tile * BLOCK_M;
        q_copy.start(q_smem + q_copy.smem_offset, byte_address(q, q_copy.bytes_from(first_row_of_all(segment, seq_q))),
                     RAGGED_Q ? seq_q - first_row - q_copy.row : BLOCK_M);
        ptx::cp_async_commit_group();

        // Loads run NUM_STAGES - 1 tiles ahead of the computation.
        // K and V have one shape: one offset walks both.
        const unsigned kv_head = Divisor{by_kv_head}.divide(segment.q_tile_of_all);
        unsigned long long kv_next = kv_copy.bytes_from(kv_head * seq_kv + segment.first * TILE_N);
        int left = segment.end - segment.first;  // tiles of keys left, the present one included
        const auto load = [&](int ahead, unsigned stage) {
            if (left > ahead) {
                const int rows_left =
                    RAGGED_KV ? seq_kv - (segment.end - left + ahead) * TILE_N - kv_copy.row : TILE_N;
                kv_copy.start(copy_smem + stage, byte_address(k, kv_next), rows_left);
                kv_copy.start(copy_smem + stage + TILE_BYTES, byte_address(v, kv_next), rows_left);
                kv_next += TILE_BYTES;
            }
            // Commits empty groups too: the newest NUM_STAGES - 1 groups then always belong to the tiles ahead.
            ptx::cp_async_commit_group();
        };
#pragma unroll
        for (int ahead = 0; ahead < NUM_STAGES - 1; ++ahead) {
            load(ahead, ahead * STAGE_BYTES);
        }

        ptx::cp_async_wait_group<NUM_STAGES - 1>();
        __syncthreads();
        unsigned q_frag[HEAD_DIM / 16][4];
        load_q(q_frag, q_smem + warp * WARP_M * HEAD_DIM * 2 + row_block_offset<HEAD_DIM>(lane));
        if (!(scale_here > 0.0f)) {
            apply_sign(q_frag, score_scale);
        }

        float o_frag[HEAD_DIM / 8][4] = {};
        LazySoftmax softmax(score_scale.log2);
        const int unmasked = HAS_EDGE ? tiles_unmasked(first_row, seq_kv, TILE_N) : segment.end;
        const int row = first_row + warp * WARP_M + lane / 4;
        unsigned stage = 0;
#pragma unroll 1
        do {
            ptx::cp_async_wait_group<NUM_STAGES - 2>();
            __syncthreads();
            load(NUM_STAGES - 1, stage_before(stage));
            float s_frag[TILE_N / 8][4];
            multiply_scores<TILE_N>(s_frag, q_frag, k_smem + stage);
            const int tile = segment.end - left;
            if (HAS_EDGE && tile >= unmasked) {
                const int column = tile * TILE_N + 2 * (thread % 4);
                const int keys_left[2] = {visible_keys(row, seq_kv) - column, visible_keys(row + 8, seq_kv) - column};
                mask_scores<TILE_N>(s_frag, keys_left);
            }
            softmax.advance(o_frag, s_frag, score_scale.log2, left == segment.end - segment.first);
            add_output<TILE_N, EXP_ON_FMA>(o_frag, softmax.rows, s_frag, v_smem + stage, softmax.exponents);
            stage = stage_after(stage);
        } while (--left > 0);

        // Recomputed here: keeping the position through the loop would cost registers.
        work.forget();
        const Segment done = work.segment();
        const int done_thread = ptx::tid_x();
        const int done_warp_row = done_thread / 32 * WARP_M;
#if STREAM_K
        const Sharers sharers = work.sharers(done);
        more = work.next(done);
        if (!done.whole()) {
            Partial<HEAD_DIM, NUM_THREADS>(partials, ptx::ctaid_x(), done.first == 0, done_thread)
                .store(o_frag, softmax.rows);
            if (!is_last_of(semaphores + done.q_tile_of_all, sharers.count)) {
                continue;
            }
            merge_partials<HEAD_DIM, NUM_THREADS>(o_frag, softmax.rows, partials, sharers.first, sharers.count,
                                                  done_thread, score_scale.log2);
        }
#else
        more = false;
#endif
        __syncthreads();  // the output overwrites shared memory that other warps may still read keys from
        const int done_lane = done_thread % 32;
        const unsigned row_of_all = first_row_of_all(done, seq_q) + done_warp_row;
        const int rows_left = RAGGED_Q ? seq_q - done.q_tile * BLOCK_M - done_warp_row : WARP_M;
        unsigned o_pairs[HEAD_DIM / 8][2];
        finish_rows(o_pairs, o_frag, softmax.rows, lse, row_of_all, rows_left, score_scale.log2, done_lane);
        store_warp_tile<HEAD_DIM>(o + static_cast<unsigned long long>(row_of_all) * HEAD_DIM, rows_left, o_pairs,
                                  smem_base + done_warp_row * HEAD_DIM * 2, done_lane);
        if (more) {
            __syncthreads();  // the next tile's copies overwrite the output's shared memory
        }
    } while (more);
}
