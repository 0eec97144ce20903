// hopper for windows, soft caps and key lengths: the main loop of hopper.cu with another policy for visible keys
// (mainloop/keys_of_window.cuh).
//
// Differences: the first tile of keys is at the window's left side; a tile at either edge is masked on both sides; a
// row may see no key in its first tiles, or none at all. A CTA computes a whole tile of queries, and a consumer its
// rows: SPLIT and KEY_GROUPS are 1, and PERSISTENT is 0. A length may leave a tile of queries without keys: the CTA
// then computes with the first tile, fully masked. PACK_GQA is as in hopper.cu.
//
// A tile that a length cuts is loaded further to the left and ends with the last valid key: memory behind a length may
// hold NaN, and a weight of 0 times NaN is NaN. Its first keys belong to the tile before, and are masked.

#include "mainloop/keys_of_window.cuh"
#include "mainloop/warpgroups.cuh"
#include "tile/warpgroup.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "HEAD_DIM is 64, 128 or 256");
static_assert(BLOCK_M == 64 || BLOCK_M == 128 || BLOCK_M == 192, "BLOCK_M is 64, 128 or 192");
static_assert(BLOCK_N == 64 || BLOCK_N == 80 || BLOCK_N == 128 || BLOCK_N == 176, "BLOCK_N is 64, 80, 128 or 176");
static_assert(EXP_ON_FMA >= 0 && EXP_ON_FMA <= 16, "EXP_ON_FMA is 0 to 16");
static_assert(SPLIT == 1 && KEY_GROUPS == 1 && !PERSISTENT, "a consumer has 64 rows to itself");
static_assert(PACK_GQA >= 1 && WARP_M % PACK_GQA == 0, "PACK_GQA is 1, 2, 4, 8 or 16");

using Products = Products16<BLOCK_N, EXP_ON_FMA, Registers<BLOCK_M / WARPGROUP_M>::CONSUMER - 32, PACK_GQA>;
using Attention =
    WarpgroupAttention<Products, OwnRows, GridTile<1>, KeysOfWindow, BLOCK_M / WARPGROUP_M, NUM_STAGES, 1, PACK_GQA>;

// Maps and lse as in hopper.cu; grid = (tiles of query rows, query heads / PACK_GQA, batch); kv_lengths [batch], or null.
__global__ void __maxnreg__(Attention::Budget::AT_LAUNCH)
    hopper_attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                     const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o, int seq_q, int seq_kv,
                     int group, float scale, float* __restrict__ lse, const int* __restrict__ kv_lengths) {
    extern __shared__ __align__(SWIZZLE_BYTES) unsigned char smem_bytes[];
    if (KV_LENGTHS) {
        ptx::griddepcontrol_wait();
    }
    const int keys = KV_LENGTHS ? kv_lengths[blockIdx.z] : seq_kv;
    Attention::run(*reinterpret_cast<Attention::SharedStorage*>(smem_bytes), {q, k, v}, o, {}, seq_q, keys, group,
                   scale, lse);
}
