// blackwell: FlashAttention-4 (Zadouri et al. 2026) for sm_100a on TMA and tensor memory.
//
// Idea: the tensor cores of a B200 are faster than its exponentials and its shared memory. Scores and output lie in
// tensor memory, where the products accumulate; weights go there, too, and are the left operand of the product with V.
// Each row belongs to one thread, so that its maximum and its sum need no shuffles. The main loop is in
// mainloop/tensor_memory.cuh.
//
// Two tiles of 128 rows in a CTA alternate: the softmax of one overlaps the products of the other. A part of the
// exponentials runs on the FMA units, and O is rescaled only where the maximum outgrows a threshold, by warps of their
// own. Where the rows are too few to fill the GPU, SPLIT CTAs of a cluster take one tile of rows and a part of the keys
// each.
//
// Static limits: 0 spills, 0 stack; at most 168 registers a thread at launch.
// Knobs: Q_TILES (of 128 query rows), SPLIT (CTAs that share them), NUM_STAGES (tiles of K, V in memory), EXP_ON_FMA (exponentials per 64 on the FMA
// units).

#include "mainloop/tensor_memory.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(NUM_STAGES >= 1 && NUM_STAGES <= 4, "NUM_STAGES is 1 to 4");
static_assert(SPLIT == 1 || SPLIT == 2 || SPLIT == 4, "SPLIT is 1, 2 or 4");
static_assert(EXP_ON_FMA >= 0 && EXP_ON_FMA <= 32, "EXP_ON_FMA is 0 to 32");

using Attention = TensorMemoryAttention<CausalMask, Q_TILES, SPLIT, 128, NUM_STAGES, EXP_ON_FMA>;

// Maps of [heads, panels, rows, 64]: boxes [1, panels, 128, 64] of q, k and v, and [1, panels, 32, 64] of o. lse as in
// schedule/head.cuh, and o_rows as o there; grid = (SPLIT times tiles of query rows, query heads, batch).
__global__ void __maxnreg__(Attention::AT_LAUNCH)
    blackwell_attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                        const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o,
                        Element* __restrict__ o_rows, int seq_q, int seq_kv, int group, float scale,
                        float* __restrict__ lse) {
    extern __shared__ __align__(SWIZZLE_BYTES) unsigned char smem_bytes[];
    Attention::run(*reinterpret_cast<Attention::SharedStorage*>(smem_bytes), {q, k, v, o}, o_rows, seq_q, seq_kv, group,
                   scale, lse);
}
