// hopper: FlashAttention-3 (Shah et al. 2024) for sm_90a on TMA and wgmma, with the keys split over a cluster where the
// rows are too few to fill the GPU.
//
// Idea: copies, products and softmax overlap. The main loop, shared with hopper_fp8, is in mainloop/warpgroups.cuh;
// this kernel has products in 16 bits and a choice of epilogues and schedulers:
//
// SPLIT CTAs of a cluster take the same rows and a part of the keys each. In the epilogue each CTA keeps the rows of
// some warps and sends its partial results of the others to their keepers: one kernel, no workspace.
//
// KEY_GROUPS consumers of a CTA take the same 64 rows and alternate tiles of keys; they merge their partial results
// through shared memory before the CTA merges with others.
//
// PERSISTENT CTAs stay on their SM and process one tile of queries after the other. The output has shared memory of its
// own beside Q's, and TMA stores it during the next tile.
//
// PACK_GQA heads that share K and V also share a tile of queries where one head has few queries: K and V are then read
// once for all of them.
//
// Static limits: 0 spills, 0 stack; at most 168 registers a thread at launch, redistributed among the warpgroups.
// Knobs: BLOCK_M (rows of Q; 64 a consumer), BLOCK_N (keys a tile), NUM_STAGES (tiles of K, V in memory), SPLIT,
// KEY_GROUPS, PACK_GQA, EXP_ON_FMA (exponentials per 64 on the FMA units); the plan adds SCHEDULE (PERSISTENT or not)
// and NUM_CTAS.

#include "epilogue/cluster_merge.cuh"
#include "epilogue/group_merge.cuh"
#include "mainloop/warpgroups.cuh"
#include "tile/warpgroup.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "HEAD_DIM is 64, 128 or 256");
static_assert(BLOCK_M == 64 || BLOCK_M == 128 || BLOCK_M == 192, "BLOCK_M is 64, 128 or 192");
static_assert(BLOCK_N == 64 || BLOCK_N == 80 || BLOCK_N == 128 || BLOCK_N == 176, "BLOCK_N is 64, 80, 128 or 176");
static_assert(SPLIT == 1 || SPLIT == 2 || SPLIT == 4 || SPLIT == 8, "SPLIT is 1, 2, 4 or 8");
static_assert(EXP_ON_FMA >= 0 && EXP_ON_FMA <= 16, "EXP_ON_FMA is 0 to 16");
static_assert(!PERSISTENT || SPLIT == 1, "persistent CTAs split no keys");
static_assert(KEY_GROUPS == 1 || KEY_GROUPS == 2, "KEY_GROUPS is 1 or 2");
static_assert(KEY_GROUPS == 1 || BLOCK_M == WARPGROUP_M, "groups have the same 64 rows");
static_assert(PACK_GQA >= 1 && WARP_M % PACK_GQA == 0, "PACK_GQA is 1, 2, 4, 8 or 16");

constexpr int CONSUMERS = BLOCK_M / WARPGROUP_M * KEY_GROUPS;

#if PERSISTENT
using Scheduler = DealtTiles;
#else
using Scheduler = GridTile<SPLIT>;
#endif
#if SPLIT > 1
using OfCtas = ClusterMerge<SPLIT, BLOCK_M / WARP_M>;
#else
using OfCtas = OwnRows;
#endif
#if KEY_GROUPS > 1
using Epilogue = GroupMerge<KEY_GROUPS, BLOCK_M / WARP_M, OfCtas>;
#else
using Epilogue = OfCtas;
#endif
using Products = Products16<BLOCK_N, EXP_ON_FMA, Registers<CONSUMERS>::CONSUMER - 32, PACK_GQA>;
using Attention =
    WarpgroupAttention<Products, Epilogue, Scheduler, KeysToEnd, CONSUMERS, NUM_STAGES, KEY_GROUPS, PACK_GQA>;

// Products16 states the maps of q, k and v, and store_warp_rows that of o. They cover the heads of all batches: q_heads
// query heads, where PACK_GQA heads count as one, and `group` of these share one K/V head. lse as in schedule/head.cuh;
// grid, heads_at_once and rounds_at_once as in schedule/query_tiles.cuh.
__global__ void __maxnreg__(Attention::Budget::AT_LAUNCH)
    hopper_attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                     const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o, int seq_q, int seq_kv,
                     int group, float scale, float* __restrict__ lse, unsigned q_heads, unsigned heads_at_once,
                     unsigned rounds_at_once) {
    extern __shared__ __align__(SWIZZLE_BYTES) unsigned char smem_bytes[];
    const unsigned tiles_per_head = ceil_div(seq_q * PACK_GQA, BLOCK_M);
    Attention::run(*reinterpret_cast<Attention::SharedStorage*>(smem_bytes), {q, k, v}, o,
                   {tiles_per_head, q_heads, heads_at_once, rounds_at_once}, seq_q, seq_kv, group, scale, lse);
}
