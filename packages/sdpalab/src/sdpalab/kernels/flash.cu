// flash: FlashAttention-2 (Dao 2023) for sm_80 and later, on mma.sync.
//
// Idea: P never leaves the registers. The accumulator layout of S = Q K^T is the operand layout of O += P V, so each
// lane packs its weights in place for the next mma. Each warp owns query rows with their whole softmax, Q stays in
// registers for a tile of queries up to D=128, and shared memory holds only K and V, filled by cp.async one tile ahead.
// The main loop, shared with flash_masked, warp_specialized and fp8, is in mainloop/warps.cuh.
//
// Two schedules exist. Without STREAM_K a block computes one tile of queries over all its keys. With STREAM_K as many
// blocks as the GPU holds get equal numbers of key tiles, and blocks that share a tile of queries merge their partial
// results (schedule/stream_k.cuh, epilogue/merge.cuh): 64 tiles of queries, as on the mission shape, leave half of an
// L4 idle otherwise.
//
// Static limits (sm_89, D=64, defaults): 0 spills, 0 stack, <= 128 registers, 32 KiB shared memory, 3 blocks an SM.
// Knobs: BLOCK_M (rows of Q), ROWS_PER_WARP (16 or 32 of them), BLOCK_N (keys a tile; 0: by HEAD_DIM), NUM_STAGES (tiles
// of K, V in memory); the plan adds SCHEDULE and NUM_CTAS. STREAM_K, RAGGED_Q and RAGGED_KV (seq_q or seq_kv ends within a tile) follow
// from plan and problem.

#include "epilogue/merge.cuh"
#include "epilogue/own_rows.cuh"
#include "mainloop/dense_rows.cuh"
#include "mainloop/warps.cuh"
#include "schedule/stream_k.cuh"
#include "softmax/mask.cuh"
#include "tile/warp_products.cuh"

// Above D = 64 the accumulator of O takes the registers that 64 keys of scores would need.
constexpr int TILE_N = BLOCK_N ? BLOCK_N : HEAD_DIM > 64 ? 32 : 64;
constexpr bool Q_IN_REGISTERS = ROWS_PER_WARP * HEAD_DIM <= 16 * 128;
#if STREAM_K
using Scheduler = StreamK<BLOCK_M, TILE_N>;
using Epilogue = SharedRows;
#else
using Scheduler = OneTile<BLOCK_M, TILE_N, CausalMask>;
using Epilogue = OwnRows;
#endif
using Products = WarpProducts16<ROWS_PER_WARP, BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM, Q_IN_REGISTERS, EXP_ON_FMA>;
using Source = DenseRows<BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM, RAGGED_Q, RAGGED_KV>;
using Attention = WarpAttention<Products, Epilogue, Scheduler, CausalMask, Source, BLOCK_M, NUM_STAGES>;

// Registers. The fragments of Q, O and S take 80 at D=64 and 112 at D=128; addresses, the softmax and ldmatrix results
// in flight come on top. Without a cap, ptxas takes up to 150 at D=64 to load further ahead. The caps come from trials:
// ptxas spills nothing on any architecture, and three blocks of four warps fit the registers of an SM at D=64.
constexpr bool NEEDS_MORE = Attention::HAS_EDGE || __CUDA_ARCH__ >= 1000;
constexpr bool WIDE = HEAD_DIM > 128 || ROWS_PER_WARP > 16 || TILE_N * HEAD_DIM > 64 * 64;
constexpr int MAX_REGISTERS = WIDE ? 255 : HEAD_DIM > 64 ? 184 : HEAD_DIM > 32 && NEEDS_MORE ? 160 : 128;

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256, "HEAD_DIM is 32, 64, 96, 128, 192 or 256");
static_assert(BLOCK_M == 32 || BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 32, 64 or 128");
static_assert(TILE_N == 32 || TILE_N == 64 || TILE_N == 128, "BLOCK_N is 0, 32, 64 or 128");
static_assert(EXP_ON_FMA >= 0 && EXP_ON_FMA <= 2, "EXP_ON_FMA is 0, 1 or 2");
static_assert(Attention::SMEM_BYTES <= 99 * 1024, "a block of sm_86 and sm_89 has at most 99 KiB");

__global__ void __maxnreg__(MAX_REGISTERS)
    flash_attention(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ o, int seq_q, int seq_kv, int group, float scale, float* __restrict__ lse,
                    float4* partials, unsigned* semaphores, int q_tiles, int units_per_head, int units_per_block,
                    int longer, unsigned long long by_head, unsigned long long by_tile, unsigned long long by_block,
                    unsigned long long by_longer, unsigned long long by_kv_head) {
    extern __shared__ __align__(1024) unsigned char smem[];  // [NUM_STAGES][K, V][TILE_N, HEAD_DIM]
    const Source source{{seq_q}, q, k, v, seq_kv, seq_kv, 0, {by_kv_head}};
#if STREAM_K
    const Shares shares{q_tiles,   units_per_head, units_per_block, longer,
                        {by_head}, {by_tile},      {by_block},      {by_longer}};
    const Scheduler scheduler(shares, seq_q, seq_kv);
    const Epilogue epilogue{partials, semaphores};
#else
    const Scheduler scheduler(seq_q, seq_kv);
    const Epilogue epilogue;
#endif
    Attention::run(ptx::smem_address(smem), source, scheduler, epilogue, o, lse, scale);
}
