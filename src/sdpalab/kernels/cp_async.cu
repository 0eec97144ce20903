// cp_async: the kernel of wmma.cu with tiles of K and V on their way while others are computed with.
//
// Idea: a load into registers makes the warp that asks for it wait before it can store the data to shared memory.
// cp.async takes the registers out: a thread says what to copy where, goes on, and later waits for the oldest of what
// it has asked for. With NUM_STAGES tiles in shared memory, NUM_STAGES - 1 are on their way while one is computed with.
// All else is as in the wmma rung (tile/wmma.cuh), so that what the copies are worth is seen alone.
//
// NUM_STAGES = 1 waits for each tile at once, and is left with what cp.async saves by itself: registers, and the way
// through L1. Each stage more costs the room of a tile of K and one of V, and so may cost a block of the SM: shared
// memory, not registers, is what bounds their number here.
//
// Static bars (sm_89, D=64): 0 spills, 0 stack, <= 120 registers, <= 64 KiB shared memory.
// Knobs: BLOCK_M (rows of Q; 16 a warp), BLOCK_N (keys a tile), NUM_STAGES (tiles of K, V in memory).

#include "tile/wmma.cuh"

using Shared = WmmaShared<BLOCK_M, BLOCK_N, NUM_STAGES>;

static_assert(NUM_STAGES >= 1 && NUM_STAGES <= 3, "NUM_STAGES is 1, 2 or 3");

// Starts the copy of a tile. Rows that do not exist become 0: a weight of 0 times what lies there might be NaN.
template <int ROWS>
__device__ __forceinline__ void start_copy(WmmaElement (&dst_smem)[ROWS][QKV_PITCH],
                                           const Element* src,  // [rows_left, HEAD_DIM], global
                                           int rows_left) {
#pragma unroll 2
    for (int e = threadIdx.x * 8; e < ROWS * HEAD_DIM; e += Shared::NUM_THREADS * 8) {
        const int row = e / HEAD_DIM;
        const int offset = row * QKV_PITCH + e % HEAD_DIM;
        ptx::cp_async_cg_16(ptx::smem_address(dst_smem) + offset * 2, src + e, row < rows_left ? 16 : 0);
    }
}

__global__ void __maxnreg__(MAX_REGISTERS)
cp_async_attention(const Element* __restrict__ q,  // [batch, heads, seq_q, HEAD_DIM]
                   const Element* __restrict__ k,  // [batch, heads / group, seq_kv, HEAD_DIM]
                   const Element* __restrict__ v,  // [batch, heads / group, seq_kv, HEAD_DIM]
                   Element* __restrict__ o,        // [batch, heads, seq_q, HEAD_DIM]
                   int seq_q, int seq_kv, int group, float scale,
                   float* __restrict__ lse) {  // [batch, heads, seq_q] or null
    extern __shared__ __align__(32) unsigned char smem_bytes[];
    Shared& smem = *reinterpret_cast<Shared*>(smem_bytes);

    const Head head = head_of_block(q, k, v, o, seq_q, seq_kv, group);
    const ScoreScale score_scale(scale);
    const int block_row = q_tile_of_block() * BLOCK_M;
    const int tiles = tiles_visible(block_row + BLOCK_M - 1, seq_kv, BLOCK_N);
    HalfRow<BLOCK_N> half_row(block_row, seq_kv);

    const auto start = [&](int tile) {
        if (tile < tiles) {
            const int key0 = tile * BLOCK_N;
            auto& stage = smem.stages[tile % NUM_STAGES];
            start_copy(stage.k, head.k + key0 * HEAD_DIM, seq_kv - key0);
            start_copy(stage.v, head.v + key0 * HEAD_DIM, seq_kv - key0);
        }
        // Committed even if empty, so that all but the newest NUM_STAGES - 1 groups are always those of tiles due.
        ptx::cp_async_commit_group();
    };
    start_copy(smem.q, head.q + block_row * HEAD_DIM, seq_q - block_row);  // in the group of the first tile
#pragma unroll
    for (int tile = 0; tile < NUM_STAGES - 1; ++tile) {
        start(tile);
    }
    for (int tile = 0; tile < tiles; ++tile) {
        start(tile + NUM_STAGES - 1);
        ptx::cp_async_wait_group<NUM_STAGES - 1>();
        __syncthreads();  // this tile has come, for all

        half_row.attend(smem, tile % NUM_STAGES, score_scale);
        __syncthreads();  // everyone has read this tile: the next copy may overwrite it
    }
    half_row.store(head.o, lse, seq_q, score_scale);
}
