// cp_async: the kernel of wmma.cu with asynchronous copies of the next tiles of K and V.
//
// Idea: a load into registers stalls its warp until the data can be stored to shared memory. cp.async copies to shared
// memory without registers: a thread issues copies, continues, and later waits for the oldest of them. With NUM_STAGES
// tiles in shared memory, NUM_STAGES - 1 are in flight during the products of one. The rest of the code is that of the
// wmma kernel (mainloop/wmma_tiles.cuh), so the difference in time is the effect of the copies alone.
//
// NUM_STAGES = 1 waits for each tile at once; cp.async then saves registers and the path through L1 only. Each further
// stage takes the shared memory of one tile of K and one of V, and may cost a block per SM: shared memory, not
// registers, bounds the blocks here.
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
