// wmma: both products on tensor cores, through nvcuda::wmma 16x16x16 fragments.
//
// Idea: a warp owns 16 query rows, and one instruction multiplies two 16 x 16 matrices. What that costs is why there is
// a next rung: the layout of a wmma fragment is unspecified, so no thread knows which rows its accumulators belong to,
// and the mask, the row maximum and the rescale all need to know. So every product is stored to shared memory and read
// back by lanes that do know (tile/wmma.cuh). flash uses mma.sync, whose layout the PTX manual states: there S, P and O
// never leave the registers.
//
// A block loads a tile of K and V, waits for it, computes, and loads the next: nothing is computed while a tile is on
// its way, except by other blocks of the SM. The next rung, cp_async, changes only that.
//
// Static bars (sm_89, D=64): 0 spills, 0 stack, <= 120 registers, <= 64 KiB shared memory.
// Knobs: BLOCK_M (rows of Q; 16 a warp), BLOCK_N (keys a tile).

#include "tile/wmma.cuh"

using Shared = WmmaShared<BLOCK_M, BLOCK_N, 1>;

// Loads a tile, 16 bytes at a time. Rows that do not exist become 0: a weight of 0 times what lies there might be NaN.
template <int ROWS>
__device__ __forceinline__ void load_tile(WmmaElement (&dst_smem)[ROWS][QKV_PITCH],
                                          const Element* src,  // [rows_left, HEAD_DIM], global
                                          int rows_left) {
#pragma unroll 2
    for (int e = threadIdx.x * 8; e < ROWS * HEAD_DIM; e += Shared::NUM_THREADS * 8) {
        const int row = e / HEAD_DIM;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < rows_left) {
            x = *reinterpret_cast<const uint4*>(src + e);
        }
        *reinterpret_cast<uint4*>(&dst_smem[0][row * QKV_PITCH + e % HEAD_DIM]) = x;
    }
}

__global__ void __maxnreg__(MAX_REGISTERS)
wmma_attention(const Element* __restrict__ q,  // [batch, heads, seq_q, HEAD_DIM]
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

    load_tile(smem.q, head.q + block_row * HEAD_DIM, seq_q - block_row);
    for (int tile = 0; tile < tiles; ++tile) {
        const int key0 = tile * BLOCK_N;
        load_tile(smem.stages[0].k, head.k + key0 * HEAD_DIM, seq_kv - key0);
        load_tile(smem.stages[0].v, head.v + key0 * HEAD_DIM, seq_kv - key0);
        __syncthreads();

        half_row.attend(smem, 0, score_scale);
        __syncthreads();  // everyone has read this tile: the next may overwrite it
    }
    half_row.store(head.o, lse, seq_q, score_scale);
}
