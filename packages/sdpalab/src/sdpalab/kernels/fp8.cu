// fp8: FlashAttention-2 on the e4m3 tensor cores of sm_89, which multiply twice as fast as those for 16 bits.
//
// Idea: Q, K, V and P are e4m3 with a float32 scale per 64 rows; softmax/fp8_rows.cuh has the units of the weights. A
// kernel before this one quantises (tile/quantise.cuh): each number is rounded once instead of once per block that
// reads it, and K and V cross the memory in half the bytes. The time of that kernel counts.
// The main loop is that of flash.cu, with the products of tile/warp_fp8.cuh.
//
// Three bits of fraction in P add to the error of the quantised inputs. P_DTYPE=fp16 avoids that part: two m16n8k16
// replace each m16n8k32 of P V, and V, still e4m3 in memory, is widened on its way to them. The weights stay in place
// here too, and V has the same order (TileWeights).
//
// Static limits (sm_89, D=64, defaults): 0 spills, 0 stack, <= 128 registers, 16 KiB shared memory, 4 blocks an SM.
// Knobs: BLOCK_M (rows of Q; 16 a warp), NUM_STAGES (tiles of K, V in memory), P_DTYPE (e4m3, fp16). A tile has 64
// keys, as many as share a scale. RAGGED_Q and RAGGED_KV (seq_q or seq_kv ends within a tile) follow from the problem.

#include "epilogue/own_rows.cuh"
#include "mainloop/fp8_blocks.cuh"
#include "mainloop/warps.cuh"
#include "schedule/stream_k.cuh"
#include "softmax/mask.cuh"
#include "tile/warp_fp8.cuh"

constexpr int SCALE_ROWS = 64;

using Scheduler = OneTile<BLOCK_M, SCALE_ROWS, CausalMask>;
using Products = WarpProductsE4m3<BLOCK_M, SCALE_ROWS, HEAD_DIM, WeightType::P_DTYPE>;
using Source = Fp8Blocks<BLOCK_M, SCALE_ROWS, HEAD_DIM, RAGGED_Q, RAGGED_KV>;
using Attention = WarpAttention<Products, OwnRows, Scheduler, CausalMask, Source, BLOCK_M, NUM_STAGES>;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M == 32 || BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 32, 64 or 128");
static_assert(Attention::SMEM_BYTES <= 48 * 1024, "two blocks of 48 KiB share an SM of any architecture");

// Bytes and scales come from quantise_blocks<SCALE_ROWS>; the blocks of V are consecutive.
//
// Registers have no bound: ptxas takes 123 at D=64 on sm_89 without one.
__global__ void fp8_attention(const unsigned char* __restrict__ q_bytes, const unsigned char* __restrict__ k_bytes,
                              const unsigned char* __restrict__ v_bytes, const float* __restrict__ q_scales,
                              const float2* __restrict__ kv_scales, Element* __restrict__ o, int seq_q, int seq_kv,
                              int group, float scale, float* __restrict__ lse, unsigned long long by_kv_head) {
    // [NUM_STAGES], each K [SCALE_ROWS, HEAD_DIM] and V^T [HEAD_DIM, SCALE_ROWS]
    extern __shared__ __align__(1024) unsigned char smem[];
    const Source source{{seq_q}, q_bytes, k_bytes, v_bytes, q_scales, kv_scales, seq_kv, 0, {by_kv_head}};
    Attention::run(ptx::smem_address(smem), source, Scheduler(seq_q, seq_kv), OwnRows(), o, lse, scale);
}
