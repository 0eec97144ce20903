// flash for windows, soft caps and key lengths: the main loop of flash.cu, restricted to the key tiles that a tile of
// queries sees. A file of its own keeps the code of a plain problem unchanged byte for byte.
//
// Differences: the first tile of keys is at the window's left side; a tile at either edge is masked on both sides; the
// maximum moves with each tile instead of lazily; a block computes a whole tile of queries (no STREAM_K). The soft cap
// applies to the scores before the mask, in units of the unscaled score.
//
// A length may leave a tile of queries without keys: the block then computes with the first tile, fully masked.

#include "epilogue/store.cuh"
#include "schedule/head.cuh"
#include "softmax/window.cuh"
#include "tile/copy.cuh"
#include "tile/warp.cuh"

constexpr int TILE_N = BLOCK_N ? BLOCK_N : HEAD_DIM > 64 ? 32 : 64;
constexpr int NUM_THREADS = BLOCK_M / WARP_M * 32;
constexpr int TILE_BYTES = TILE_N * HEAD_DIM * 2;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // K, then V
constexpr int SMEM_BYTES = NUM_STAGES * STAGE_BYTES;
constexpr int MAX_REGISTERS = HEAD_DIM > 64 ? 192 : HEAD_DIM > 32 ? 160 : 128;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M == 32 || BLOCK_M == 64, "BLOCK_M is 32 or 64");
static_assert(TILE_N == 32 || TILE_N == 64, "BLOCK_N is 0, 32 or 64");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(BLOCK_M * HEAD_DIM * 2 <= STAGE_BYTES, "Q passes through one stage");
static_assert(!STREAM_K, "a block has a whole tile of queries");

__global__ void __maxnreg__(MAX_REGISTERS)
    flash_attention(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ o, int seq_q, int seq_kv, int group, float scale, float* __restrict__ lse,
                    const int* __restrict__ kv_lengths) {
    extern __shared__ __align__(1024) unsigned char smem[];  // [NUM_STAGES][K, V][TILE_N, HEAD_DIM]
    const unsigned smem_base = ptx::smem_address(smem);
    const int thread = threadIdx.x;
    const int warp = thread / 32;
    const int lane = thread % 32;

    const Head head = head_of_block(q, k, v, o, seq_q, seq_kv, group);
    const int keys = KV_LENGTHS ? kv_lengths[blockIdx.z] : seq_kv;
    const int first_row = q_tile_of_block() * BLOCK_M;
    const int last_row = min(first_row + BLOCK_M, seq_q) - 1;
    const KeyTiles tiles = tiles_seen<TILE_N>(first_row, last_row, keys);

    const unsigned q_smem = smem_base + (NUM_STAGES - 1) * STAGE_BYTES;  // Q passes through the stage filled last
    const TileCopy<BLOCK_M, HEAD_DIM, NUM_THREADS> q_copy(thread);
    const TileCopy<TILE_N, HEAD_DIM, NUM_THREADS> kv_copy(thread);
    const unsigned copy_smem = smem_base + kv_copy.smem_offset;
    const unsigned k_smem = smem_base + col_block_offset<HEAD_DIM>(lane);
    const unsigned v_smem = smem_base + TILE_BYTES + row_block_offset<HEAD_DIM>(lane);
    const ScoreScale score_scale(scale);
    q_copy.start(q_smem + q_copy.smem_offset, head.q + first_row * HEAD_DIM + q_copy.global_offset,
                 seq_q - first_row - q_copy.row);
    ptx::cp_async_commit_group();

    // The stages form a ring; loads run NUM_STAGES - 1 tiles ahead of the computation. Rows from `keys` on are zeros:
    // memory behind a length may hold NaN, and a weight of 0 times NaN is NaN.
    const auto load = [&](int tile, unsigned stage) {
        if (tile < tiles.end) {
            const int rows_left = keys - tile * TILE_N - kv_copy.row;
            const int offset = tile * TILE_N * HEAD_DIM + kv_copy.global_offset;
            kv_copy.start(copy_smem + stage, head.k + offset, rows_left);
            kv_copy.start(copy_smem + stage + TILE_BYTES, head.v + offset, rows_left);
        }
        // Commits empty groups too: the newest NUM_STAGES - 1 groups then always belong to the tiles ahead.
        ptx::cp_async_commit_group();
    };
#pragma unroll
    for (int ahead = 0; ahead < NUM_STAGES - 1; ++ahead) {
        load(tiles.first + ahead, ahead * STAGE_BYTES);
    }

    ptx::cp_async_wait_group<NUM_STAGES - 1>();
    __syncthreads();
    unsigned q_frag[HEAD_DIM / 16][4];
    load_q(q_frag, q_smem + warp * WARP_M * HEAD_DIM * 2 + row_block_offset<HEAD_DIM>(lane));
    if (score_scale.sign != 1.0f) {
        apply_sign(q_frag, score_scale);
    }

    float o_frag[HEAD_DIM / 8][4] = {};
    SoftmaxRow softmax[2];
    const int row = first_row + warp * WARP_M + lane / 4;
    unsigned stage = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; ++tile) {
        ptx::cp_async_wait_group<NUM_STAGES - 2>();
        __syncthreads();
        load(tile + NUM_STAGES - 1, stage == 0 ? SMEM_BYTES - STAGE_BYTES : stage - STAGE_BYTES);
        float s_frag[TILE_N / 8][4];
        multiply_scores<TILE_N>(s_frag, q_frag, k_smem + stage);
        if (SOFTCAP > 0) {
            const SoftCap capped(score_scale.log2);
#pragma unroll
            for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s_frag[n][i] = capped(s_frag[n][i]);
                }
            }
        }
        if (at_edge<TILE_N>(tile, first_row, last_row, keys)) {
            const int column = tile * TILE_N + 2 * (lane % 4);
#pragma unroll
            for (int n = 0; n < TILE_N / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int key = column + 8 * n + i % 2;
                    const int query = row + 8 * (i / 2);
                    const bool seen = key >= first_key(query) && key < end_key(query, keys);
                    s_frag[n][i] = seen ? s_frag[n][i] : NEGATIVE_INFINITY;
                }
            }
        }
        advance_softmax<TILE_N>(softmax, o_frag, s_frag, score_scale.log2);
        add_output<TILE_N, EXP_ON_FMA>(o_frag, softmax, s_frag, v_smem + stage,
                                       ExactExponents{softmax, score_scale.log2});
        stage = stage == SMEM_BYTES - STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    }

    ptx::cp_async_wait_group<0>();
    __syncthreads();  // the output overwrites shared memory that other warps may still read keys from
    const int warp_row = first_row + warp * WARP_M;
    unsigned o_pairs[HEAD_DIM / 8][2];
    finish_rows(o_pairs, o_frag, softmax, lse, row_of_block(warp_row, seq_q), seq_q - warp_row, score_scale.log2, lane);
    store_warp_tile<HEAD_DIM>(head.o + warp_row * HEAD_DIM, seq_q - warp_row, o_pairs,
                              smem_base + warp * WARP_M * HEAD_DIM * 2, lane);
}
