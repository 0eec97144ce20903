// flash_backward: the gradients of attention in 5 products (FlashAttention-2, Dao 2023), on mma.sync.
//
// Idea: keys stay, queries stream. A CTA keeps the gradients of its keys in registers, and since it has dS already, it
// adds dS K to dQ in global memory instead of leaving dQ to CTAs that would compute S and dP again. S and dP are
// computed transposed, so that P^T and dS^T are left operands in registers; dS^T alone goes through shared memory.
//
// Steps: delta = rowsum(dO O); the sums of dQ are zeroed by their buffer's fill; the main launch; a conversion. dQ is
// read and written once a tile of keys, hence no fewer than 64. The sum's order varies from run to run; with DETERMINISTIC it is
// fixed by semaphores (backward/sum_order.cuh): copies of dQ for each CTA would grow with the GPU, a second pass over S
// and dP costs 2 products of 5, and the semaphores wait only at the start of a launch.
//
// Knobs: BLOCK (keys of a CTA), STREAM (queries a tile), WARP_KEYS and QUERY_WARPS (backward/key_tile.cuh), DO_STAGES,
// DETERMINISTIC; 0 chooses by HEAD_DIM. Ada is limited by its tensor cores: 16 keys a warp, two CTAs an SM. The A100 is
// limited by shared memory: 32 keys a warp, at head_dim 128 with two warps for the same keys.

#include "backward/delta.cuh"
#include "backward/key_loop.cuh"

static_assert(DETERMINISTIC == 0 || DETERMINISTIC == 1, "DETERMINISTIC is 0 or 1");

__global__ void __launch_bounds__(DELTA_THREADS)
    attention_delta(const Element* __restrict__ o, const Element* __restrict__ dout, float* __restrict__ delta,
                    long long rows, int heads) {
    delta_of_rows(o, dout, delta, rows, VARLEN ? heads : 1);
}

__global__ void __launch_bounds__(NUM_THREADS, 1)
    attention_gradients(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                        const Element* __restrict__ dout, const float* __restrict__ lse,
                        const float* __restrict__ delta, float* dq_sums, Element* __restrict__ dk,
                        Element* __restrict__ dv, const int* __restrict__ kv_lengths,
                        const int* __restrict__ q_lengths, const void* __restrict__ attn_mask,
                        const float* __restrict__ alibi_slopes, int seq_q, int seq_kv, int heads, int group,
                        float scale, const int* __restrict__ cu_seqlens_q, const int* __restrict__ cu_seqlens_k,
                        int batch, unsigned* semaphores) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const Tensors tensors{q,          k,         v,         dout,         lse,   delta,  nullptr, dk,    dv,
                          kv_lengths, q_lengths, attn_mask, alibi_slopes, seq_q, seq_kv, heads, group, scale,
                          cu_seqlens_q, cu_seqlens_k, batch};
    const unsigned tiles =
        VARLEN ? PackedEnds{cu_seqlens_k, batch, seq_kv}.all_tiles<BLOCK>() : ceil_div(seq_kv, BLOCK);
#if DETERMINISTIC
    const unsigned kv_heads = gridDim.x / tiles;
    const unsigned ticket = take_ticket(semaphores, gridDim.x, reinterpret_cast<unsigned*>(smem));
    key_tile_gradients(tensors, dq_sums, semaphores + 1, ticket % kv_heads, ticket / kv_heads, smem);
#else
    key_tile_gradients(tensors, dq_sums, semaphores, blockIdx.x / tiles, blockIdx.x % tiles, smem);
#endif
}

__global__ void __launch_bounds__(256)
    attention_dq(const float* __restrict__ sums, Element* __restrict__ dq, int seq_q, int heads, float scale,
                 long long threads, const int* __restrict__ cu_seqlens_q, int batch) {
    convert_dq(sums, dq, seq_q, heads, scale, threads, PackedEnds{cu_seqlens_q, batch, seq_q});
}
