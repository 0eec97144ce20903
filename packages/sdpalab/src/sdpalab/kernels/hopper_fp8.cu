// hopper_fp8: both products on the e4m3 tensor cores of sm_90a, which multiply twice as fast as those for 16 bits.
//
// Idea: the main loop of hopper.cu (mainloop/warpgroups.cuh) with products in 8 bits (tile/warpgroup_fp8.cuh). A kernel
// before this one quantises Q, K and V, with a float32 scale for each 128 rows (tile/quantise.cuh); its time counts.
// wgmma does not transpose 8-bit operands: both run along k. The quantising kernel therefore writes V^T, with the keys
// in the order of the packed accumulators of S, which are the next left operand: the weights stay in place.
//
// Each tile's P V starts from 0 and is added to O in float32; its factors are the scale of its V and the exponential of
// its own maximum less the row's reference. The cost is a second accumulator and D / 2 multiply-adds a thread and tile.
// The gain is a scale per block of V, weights over the whole range of e4m3 in each tile, no rescale, and at most 128
// terms per sum in the tensor cores: Hopper's e4m3 units keep fewer bits than float32 (ptx/wgmma_fp8.cuh).
//
// SPLIT CTAs of a cluster take the same rows and a part of the keys each, and merge their results as hopper's do
// (epilogue/cluster_merge.cuh): few rows then occupy all SMs.
//
// Static limits: 0 spills, 0 stack; at most 168 registers a thread at launch, redistributed among the warpgroups.
// Knobs: BLOCK_M (rows of Q; 64 a consumer), BLOCK_N (keys a tile), NUM_STAGES (tiles of K, V in memory), SPLIT.

#include "epilogue/cluster_merge.cuh"
#include "mainloop/warpgroups.cuh"
#include "tile/warpgroup_fp8.cuh"

constexpr int SCALE_ROWS = 128;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "HEAD_DIM is 64, 128 or 256");
static_assert(BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 64 or 128");
static_assert(BLOCK_N == 64 || BLOCK_N == 128, "BLOCK_N is 64 or 128");
static_assert(SPLIT == 1 || SPLIT == 2 || SPLIT == 4, "SPLIT is 1, 2 or 4");
static_assert(SCALE_ROWS % BLOCK_M == 0, "a tile of queries has one scale");

#if SPLIT > 1
using Epilogue = ClusterMerge<SPLIT, BLOCK_M / WARP_M>;
#else
using Epilogue = OwnRows;
#endif
using Products = ProductsE4m3<BLOCK_N, SCALE_ROWS>;
using Attention =
    WarpgroupAttention<Products, Epilogue, GridTile<SPLIT>, KeysToEnd, BLOCK_M / WARPGROUP_M, NUM_STAGES>;

// ProductsE4m3 states the maps of q, k and v, and the scales; o: map [heads, panels, seq_q, 64] with boxes [1, panels,
// 16, 64], panels of 64 columns. grid as in schedule/query_tiles.cuh, clusters of SPLIT; lse as in schedule/head.cuh.
__global__ void __maxnreg__(Attention::Budget::AT_LAUNCH)
    hopper_fp8_attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                         const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o,
                         const float* __restrict__ q_scales, const float2* __restrict__ kv_scales, int seq_q,
                         int seq_kv, int group, float scale, float* __restrict__ lse) {
    extern __shared__ __align__(SWIZZLE_BYTES) unsigned char smem_bytes[];
    const int q_blocks = ceil_div(seq_q, SCALE_ROWS);
    const int kv_blocks = ceil_div(seq_kv, SCALE_ROWS);
    const Products::Tensors tensors{q, k, v, q_scales, kv_scales, q_blocks, kv_blocks};
    Attention::run(*reinterpret_cast<Attention::SharedStorage*>(smem_bytes), tensors, o, {}, seq_q, seq_kv, group,
                   scale, lse);
}
