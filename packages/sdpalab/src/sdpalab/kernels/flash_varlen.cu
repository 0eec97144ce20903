// flash_varlen: the main loop of flash.cu for sequences of different lengths that are packed in one array.
//
// The grid depends on the number of rows and of sequences, not on their lengths: a block finds its sequence and tile by
// a binary search in cu_seqlens_q (schedule/sequence.cuh), and exits if the tile has no rows. Before a grid of several
// waves, one block lists the tiles with the longest first (schedule/longest_first.cuh).
//
// Knobs: BLOCK_M (rows of Q), ROWS_PER_WARP (16 or 32 of them), BLOCK_N (keys a tile; 0: by HEAD_DIM), NUM_STAGES
// (tiles of K, V in memory), PACK_GQA (query heads of a K/V head that share a tile); the plan adds ORDER.

#include "epilogue/own_rows.cuh"
#include "mainloop/sequence_rows.cuh"
#include "mainloop/warps.cuh"
#include "schedule/longest_first.cuh"
#include "softmax/window.cuh"
#include "tile/warp_products.cuh"

constexpr int TILE_N = BLOCK_N ? BLOCK_N : HEAD_DIM > 64 ? 32 : 64;
constexpr int ORDER_THREADS = 1024;
constexpr bool Q_IN_REGISTERS = ROWS_PER_WARP * HEAD_DIM <= 16 * 128;

using Scheduler = SequenceTile<BLOCK_M, TILE_N, PACK_GQA, WindowMask, 0>;
using Products = WarpProducts16<ROWS_PER_WARP, BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM_V, Q_IN_REGISTERS>;
using Source = SequenceRows<BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM_V, PACK_GQA, 0>;
using Attention = WarpAttention<Products, OwnRows, Scheduler, WindowMask, Source, BLOCK_M, NUM_STAGES>;

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256, "HEAD_DIM is 32, 64, 96, 128, 192 or 256");
static_assert(Attention::SMEM_BYTES <= 99 * 1024, "a block of sm_86 and sm_89 has at most 99 KiB");

// q, o [total_q, q_heads, columns], k, v [total_k, kv_heads, columns]; lse [q_heads, total_q], or null;
// order: order_tiles(), or null; grid = (q_heads / PACK_GQA; tiles of all sequences, at least total_q * PACK_GQA /
// BLOCK_M + sequences).
__global__ void flash_varlen(const Element* __restrict__ q, const Element* __restrict__ k,
                             const Element* __restrict__ v, Element* __restrict__ o, float* __restrict__ lse,
                             const int* __restrict__ cu_seqlens_q, const int* __restrict__ cu_seqlens_k,
                             const int* __restrict__ kv_lengths, const int* __restrict__ order, int sequences,
                             int total_q, int q_heads, int kv_heads, float scale) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const Scheduler scheduler({cu_seqlens_q, cu_seqlens_k, kv_lengths, sequences, 0}, order, 1, Divisor());
    if (!scheduler.has_work()) {
        return;
    }
    const Sequence& sequence = scheduler.sequence;
    const int head = scheduler.head * PACK_GQA;
    const int kv_head = scheduler.head / GROUP_PARTS;
    const long long row = sequence.q_row * q_heads + head;
    const long long key = sequence.kv_row * kv_heads + kv_head;
    const Source source{q + row * HEAD_DIM,
                        k + key * HEAD_DIM,
                        v + key * HEAD_DIM_V,
                        nullptr,
                        sequence.q_rows,
                        sequence.kv_rows,
                        sequence.ahead(),
                        q_heads,
                        kv_heads,
                        total_q};
    float* const own_lse = lse == nullptr ? nullptr : lse + static_cast<long long>(head) * total_q + sequence.q_row;
    Attention::run(ptx::smem_address(smem), source, scheduler, OwnRows(), o + row * HEAD_DIM_V, own_lse, scale);
}

// order [tiles]. grid = (1), ORDER_THREADS threads.
__global__ void order_tiles(const int* __restrict__ cu_seqlens_q, const int* __restrict__ cu_seqlens_k,
                            const int* __restrict__ kv_lengths, int sequences, int tiles, int* order) {
    longest_first<BLOCK_M, TILE_N, PACK_GQA, WindowMask, ORDER_THREADS>(
        {cu_seqlens_q, cu_seqlens_k, kv_lengths, sequences, 0}, tiles, order);
}
