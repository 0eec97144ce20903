// flash_backward_two_pass: the gradients of attention without atomics (FlexAttention's form), on mma.sync.
//
// Idea: each gradient has one owner. A CTA that owns a tile of keys goes through the queries and keeps dK and dV in
// registers; a CTA that owns a tile of queries goes through the keys and keeps dQ. S and dP are computed by both, 7
// products where 5 would do, and nothing is added up in global memory: equal bits from run to run, and no workspace but
// delta. P and dS are recomputed from the log-sum-exp; both kinds of CTA share one loop (backward/own_loop.cuh), because
// the accumulators of S^T = K Q^T and of S = Q K^T are left operands alike.
//
// One launch has both: CTAs with keys first, which have 4 products a tile and all heads of a group. delta is a small
// step before it (backward/delta.cuh).
//
// Knobs: BLOCK (owned rows, 16 a warp), STREAM (streamed rows a tile); 0 chooses by HEAD_DIM.

#include "backward/delta.cuh"
#include "backward/own_loop.cuh"

// D = 64: three CTAs of 4 warps share the registers of an SM. Above, dK and dV alone are up to 128 registers.
constexpr int MAX_REGISTERS = 255;

__global__ void __launch_bounds__(DELTA_THREADS)
    attention_delta(const Element* __restrict__ o, const Element* __restrict__ dout, float* __restrict__ delta,
                    long long rows) {
    delta_of_rows(o, dout, delta, rows);
}

__global__ void __maxnreg__(MAX_REGISTERS)
    attention_gradients(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                        const Element* __restrict__ dout, const float* __restrict__ lse,
                        const float* __restrict__ delta, Element* __restrict__ dq, Element* __restrict__ dk,
                        Element* __restrict__ dv, const int* __restrict__ kv_lengths,
                        const int* __restrict__ q_lengths, const void* __restrict__ attn_mask,
                        const float* __restrict__ alibi_slopes, int seq_q, int seq_kv, int heads, int group,
                        float scale, int key_ctas) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const Tensors tensors{q,          k,         v,         dout,         lse,   delta,  dq,    dk,    dv,
                          kv_lengths, q_lengths, attn_mask, alibi_slopes, seq_q, seq_kv, heads, group, scale};
    const int cta = blockIdx.x;
    if (cta < key_ctas) {
        const int tiles = ceil_div(seq_kv, BLOCK);
        own_tile_gradients<true>(tensors, cta / tiles, cta % tiles, smem);
    } else {
        const int tiles = ceil_div(seq_q, BLOCK);
        const int number = cta - key_ctas;
        // Causal tiles further down have more keys: they run first, so the short ones finish last.
        const int tile = CAUSAL ? tiles - 1 - number % tiles : number % tiles;
        own_tile_gradients<false>(tensors, number / tiles, tile, smem);
    }
}
