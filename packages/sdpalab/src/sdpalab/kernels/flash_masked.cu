// flash for windows, soft caps and key lengths: the main loop of flash.cu with another mask. A file of its own keeps
// the code of a plain problem free of them.
//
// Differences: the first tile of keys is at the window's left side; a tile at either edge is masked on both sides; a
// block computes a whole tile of queries (no STREAM_K). The soft cap applies to the scores before the mask, in units of
// the unscaled score.
//
// A length may leave a tile of queries without keys: the block then computes with the first tile, fully masked.

#include "epilogue/own_rows.cuh"
#include "mainloop/dense_rows.cuh"
#include "mainloop/warps.cuh"
#include "schedule/stream_k.cuh"
#include "softmax/window.cuh"
#include "tile/warp_products.cuh"

constexpr int TILE_N = BLOCK_N ? BLOCK_N : HEAD_DIM > 64 ? 32 : 64;
constexpr bool Q_IN_REGISTERS = ROWS_PER_WARP * HEAD_DIM <= 16 * 128;
constexpr bool WIDE = HEAD_DIM > 128 || ROWS_PER_WARP > 16 || TILE_N * HEAD_DIM > 64 * 64;
constexpr int MAX_REGISTERS = WIDE ? 255 : HEAD_DIM > 64 ? 192 : HEAD_DIM > 32 ? 160 : 128;

using Scheduler = OneTile<BLOCK_M, TILE_N, WindowMask>;
using Products = WarpProducts16<ROWS_PER_WARP, BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM_V, Q_IN_REGISTERS, EXP_ON_FMA>;
using Source = DenseRows<BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM_V, RAGGED_Q, KV_LENGTHS || RAGGED_KV>;
using Attention = WarpAttention<Products, OwnRows, Scheduler, WindowMask, Source, BLOCK_M, NUM_STAGES>;

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256, "HEAD_DIM is 32, 64, 96, 128, 192 or 256");
static_assert(BLOCK_M == 32 || BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 32, 64 or 128");
static_assert(TILE_N == 32 || TILE_N == 64 || TILE_N == 128, "BLOCK_N is 0, 32, 64 or 128");
static_assert(!STREAM_K, "a block has a whole tile of queries");

__global__ void __maxnreg__(MAX_REGISTERS)
    flash_attention(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                    Element* __restrict__ o, int seq_q, int seq_kv, int group, float scale, float* __restrict__ lse,
                    unsigned long long by_kv_head, const int* __restrict__ q_lengths,
                    const int* __restrict__ kv_lengths) {
    extern __shared__ __align__(1024) unsigned char smem[];  // [NUM_STAGES][K, V][TILE_N, HEAD_DIM]
    const int keys = KV_LENGTHS ? kv_lengths[blockIdx.z] : seq_kv;
    const int queries = Q_LENGTHS ? q_lengths[blockIdx.z] : seq_q;
    const int ahead = BOTTOM_RIGHT ? keys - queries : 0;
    const Source source{{seq_q}, q, k, v, seq_kv, keys, ahead, {by_kv_head}};
    Attention::run(ptx::smem_address(smem), source, Scheduler(seq_q, keys, ahead), OwnRows(), o, lse, scale);
}
