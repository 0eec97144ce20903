// wmma: both products on tensor cores, through nvcuda::wmma 16x16x16 fragments.
//
// Idea: a warp owns 16 query rows, and one instruction multiplies two 16 x 16 matrices. The drawback leads to later
// kernels: the layout of a wmma fragment is unspecified, so the rows of a thread's accumulators are unknown, but the
// mask, the row maximum and the rescale depend on them. Every product is therefore stored to shared memory and read
// back by lanes with a known layout (tile/wmma.cuh). flash uses mma.sync, whose layout the PTX manual states: there S,
// P and O never leave the registers.
//
// A block loads a tile of K and V, waits for it, computes, and loads the next: only other blocks of the SM compute
// while a tile is in flight. The next kernel, cp_async, changes only that: both have the main loop of
// mainloop/wmma_tiles.cuh.
//
// Static limits (sm_89, D=64): 0 spills, 0 stack, <= 120 registers, <= 64 KiB shared memory.
// Knobs: BLOCK_M (rows of Q; 16 a warp), BLOCK_N (keys a tile).

#include "mainloop/wmma_tiles.cuh"

__global__ void __maxnreg__(MAX_REGISTERS)
    wmma_attention(const Element* __restrict__ q,  // [batch, heads, seq_q, HEAD_DIM]
                    const Element* __restrict__ k,  // [batch, heads / group, seq_kv, HEAD_DIM]
                    const Element* __restrict__ v,  // [batch, heads / group, seq_kv, HEAD_DIM]
                    Element* __restrict__ o,        // [batch, heads, seq_q, HEAD_DIM]
                    int seq_q, int seq_kv, int group, float scale,
                    float* __restrict__ lse) {  // [batch, heads, seq_q] or null
    wmma_block<RegisterCopy, BLOCK_M, BLOCK_N, 1>(q, k, v, o, seq_q, seq_kv, group, scale, lse);
}
