// hopper_backward: the gradients of attention in 5 products (FlashAttention-3, Shah et al. 2024), on TMA and wgmma.
//
// Idea: as in flash_backward, keys stay, queries stream, and S and dP are computed transposed, so that P^T and dS^T are
// left operands in registers. Here one warp loads tiles, and another adds dQ to its sum by bulk reductions; warpgroups
// compute. Each of these consumers owns 64 keys, and they share dS^T through shared memory for dQ.
//
// Steps: the rows' statistics, -LSE and delta; the sums of dQ are zeroed by their buffer's fill; the main launch; a
// conversion. With programmatic launches each begins while the one before ends. DETERMINISTIC fixes the order of the
// sums by semaphores, as in flash_backward (backward/sum_order.cuh).
//
// Static limits: 0 spills, 0 stack; at most 168 registers a thread at launch, redistributed among the warpgroups.
// Knobs: BLOCK (keys of a CTA, 64 a consumer), STREAM (queries a tile), NUM_STAGES (tiles of Q and dO in memory),
// DETERMINISTIC.

#include "backward/row_statistics.cuh"
#include "backward/sum_order.cuh"
#include "backward/warpgroup_loop.cuh"

static_assert(DETERMINISTIC == 0 || DETERMINISTIC == 1, "DETERMINISTIC is 0 or 1");

__global__ void __launch_bounds__(DELTA_THREADS)
    attention_statistics(const Element* __restrict__ o, const Element* __restrict__ dout,
                         const float* __restrict__ lse, const int* __restrict__ q_lengths,
                         float* __restrict__ statistics, int seq_q, int heads, long long rows) {
    ptx::griddepcontrol_launch_dependents();
    statistics_of_rows(o, dout, lse, q_lengths, statistics, seq_q, heads, ceil_div(seq_q, STREAM), rows);
}

// Maps as in backward/warpgroup_loop.cuh. grid: tiles of keys of all K/V heads.
__global__ void __maxnreg__(Budget::AT_LAUNCH)
    attention_gradients(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                        const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dout,
                        const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv,
                        const float* __restrict__ statistics, float* sums, const int* __restrict__ kv_lengths,
                        const int* __restrict__ q_lengths, const void* __restrict__ attn_mask,
                        const float* __restrict__ alibi_slopes, int seq_q, int seq_kv, int heads, int group,
                        float scale, unsigned* semaphores) {
    extern __shared__ __align__(SWIZZLE_BYTES) unsigned char smem_bytes[];
    SharedStorage& smem = *reinterpret_cast<SharedStorage*>(smem_bytes);
    const Tensors tensors{nullptr,    nullptr,   nullptr,   nullptr,      nullptr, nullptr, nullptr, nullptr, nullptr,
                          kv_lengths, q_lengths, attn_mask, alibi_slopes, seq_q,   seq_kv,  heads,   group,   scale};
    if (threadIdx.x == 0) {
        smem.barriers.init();
        ptx::fence_mbarrier_init_release_cluster();
    }
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
    const unsigned tiles = ceil_div(seq_kv, BLOCK);
#if DETERMINISTIC
    const unsigned kv_heads = gridDim.x / tiles;
    const unsigned ticket = take_ticket(semaphores, gridDim.x, &smem.ticket);
    key_tile_gradients(smem, {q, k, v, dout, dk, dv}, tensors, statistics, sums, semaphores + 1, ticket % kv_heads,
                       ticket / kv_heads);
#else
    __syncthreads();
    key_tile_gradients(smem, {q, k, v, dout, dk, dv}, tensors, statistics, sums, semaphores, blockIdx.x / tiles,
                       blockIdx.x % tiles);
#endif
}

__global__ void __launch_bounds__(256)
    attention_dq(const float* __restrict__ sums, Element* __restrict__ dq, int seq_q, float scale, long long threads) {
    ptx::griddepcontrol_wait();
    convert_dq(sums, dq, seq_q, ceil_div(seq_q, STREAM), scale, threads);
}
