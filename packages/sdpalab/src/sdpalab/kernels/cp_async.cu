// cp_async: the kernel of wmma.cu with tiles of K and V on their way while others are computed with.
//
// Idea: a load into registers makes its warp wait before it can store the data to shared memory.
// cp.async takes the registers out: a thread says what to copy where, goes on, and later waits for the oldest of its
// copies. With NUM_STAGES tiles in shared memory, NUM_STAGES - 1 are on their way while one is computed with. All else
// is as in the wmma kernel (mainloop/wmma_tiles.cuh), so that what the copies are worth is seen alone.
//
// NUM_STAGES = 1 waits for each tile at once, and is left with what cp.async saves by itself: registers, and the way
// through L1. Each stage more costs the room of a tile of K and one of V, and so may cost a block of the SM: shared
// memory, not registers, is what bounds their number here.
//
// Static limits (sm_89, D=64): 0 spills, 0 stack, <= 120 registers, <= 64 KiB shared memory.
// Knobs: BLOCK_M (rows of Q; 16 a warp), BLOCK_N (keys a tile), NUM_STAGES (tiles of K, V in memory).

#include "mainloop/wmma_tiles.cuh"

static_assert(NUM_STAGES >= 1 && NUM_STAGES <= 3, "NUM_STAGES is 1, 2 or 3");

__global__ void __maxnreg__(MAX_REGISTERS)
    cp_async_attention(const Element* __restrict__ q,  // [batch, heads, seq_q, HEAD_DIM]
                        const Element* __restrict__ k,  // [batch, heads / group, seq_kv, HEAD_DIM]
                        const Element* __restrict__ v,  // [batch, heads / group, seq_kv, HEAD_DIM]
                        Element* __restrict__ o,        // [batch, heads, seq_q, HEAD_DIM]
                        int seq_q, int seq_kv, int group, float scale,
                        float* __restrict__ lse) {  // [batch, heads, seq_q] or null
    wmma_block<AsyncCopy, BLOCK_M, BLOCK_N, NUM_STAGES>(q, k, v, o, seq_q, seq_kv, group, scale, lse);
}
