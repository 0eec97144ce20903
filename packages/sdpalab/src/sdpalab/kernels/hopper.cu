// hopper: FlashAttention-3 (Shah et al. 2024) for sm_90a on TMA and wgmma, with the keys split over a cluster where the
// rows are too few to fill the GPU.
//
// Idea: copies, products and softmax overlap. The main loop, which hopper_fp8 shares, is in mainloop/warpgroups.cuh;
// here it has products in 16 bits and a choice of epilogues and schedulers:
//
// SPLIT CTAs of a cluster take the same rows and a part of the keys each. In the end each keeps the rows of some warps,
// and sends what it has of the others to their keepers: one kernel, no workspace.
//
// KEY_GROUPS consumers of a CTA take the same 64 rows and the tiles of keys in turn, and merge what they have through
// shared memory, before their CTA does so with others.
//
// PERSISTENT CTAs stay on their SM and take one tile of queries after the other. Their output has a place beside Q's,
// from which TMA stores it during the next tile.
//
// PACK_GQA heads that share K and V share a tile of queries, too, where the queries of one are few: K and V are then
// read once for all of them.
//
// Static limits: 0 spills, 0 stack; at most 168 registers a thread at launch, which the warpgroups then share out.
// Knobs: BLOCK_M (rows of Q; 64 a consumer), BLOCK_N (keys a tile), NUM_STAGES (tiles of K, V in memory), SPLIT,
// KEY_GROUPS, PACK_GQA, EXP_ON_FMA (of 64 exponentials, on the FMA units); of the plan SCHEDULE (PERSISTENT or not)
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

// Maps of q, k and v as Products16 has them, and of o as store_warp_rows has it; heads of all batches: of queries there
// are q_heads, where PACK_GQA heads count as one, and group of these share one K/V head. lse as in schedule/head.cuh;
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
