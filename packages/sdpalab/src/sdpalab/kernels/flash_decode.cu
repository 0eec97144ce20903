// flash_decode: few queries of each sequence against a paged cache, with the keys split over several blocks.
//
// Idea: the keys of a tile are divided among NUM_SPLITS blocks, so that a few sequences fill the GPU. Each block stores
// its partial result, and the last one to finish merges them in the order of the keys (epilogue/merge.cuh): one launch.
// Within a block, KEY_WARPS warps share rows and divide the keys of a tile: a tile of queries has few rows. PACK_GQA
// query heads share a tile, so K and V are read once for all of them.
//
// SPLIT_KEYS fixes the size of a part in place of their number. The result of a query then has the same bits in every
// batch, and beside any other queries of its sequence.
//
// E4M3_CACHE: pages hold e4m3, and a scale for each head of K and of V. The numbers become the type of Q in registers,
// without an error; the scale of K is a factor of the scores, that of V of the output.
//
// Knobs: BLOCK_M (rows of Q), ROWS_PER_WARP (16 or 32 of them), KEY_WARPS, BLOCK_N (keys of a warp in a tile),
// NUM_STAGES (tiles of K, V in memory), PACK_GQA, SPLIT_KEYS; the plan adds NUM_SPLITS.

#include "epilogue/split_rows.cuh"
#include "mainloop/sequence_rows.cuh"
#include "mainloop/warps.cuh"
#include "softmax/window.cuh"
#include "tile/warp_products.cuh"

constexpr int TILE_N = BLOCK_N * KEY_WARPS;
constexpr bool Q_IN_REGISTERS = ROWS_PER_WARP * HEAD_DIM <= 16 * 128;

using Scheduler = SequenceTile<BLOCK_M, TILE_N, PACK_GQA, WindowMask, SPLIT_KEYS / TILE_N>;
using Products = WarpProducts16<ROWS_PER_WARP, BLOCK_M, BLOCK_N, HEAD_DIM, HEAD_DIM_V, Q_IN_REGISTERS, 0, KEY_WARPS,
                                true, E4M3_CACHE>;
constexpr int SHARE = E4M3_CACHE ? 2 : 1;  // numbers of K or V in an element
using Source = SequenceRows<BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM_V, PACK_GQA, PAGE_SIZE, SHARE>;
using Attention = WarpAttention<Products, SplitRows, Scheduler, WindowMask, Source, BLOCK_M, NUM_STAGES>;

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256, "HEAD_DIM is 32, 64, 96, 128, 192 or 256");
static_assert(SPLIT_KEYS % TILE_N == 0, "parts have whole tiles");
static_assert(PAGE_SIZE > 0, "keys and values are in pages");
static_assert(Attention::SMEM_BYTES <= 99 * 1024, "a block of sm_86 and sm_89 has at most 99 KiB");

// q, o [sequences, seq_q, q_heads, columns], or [rows, q_heads, columns] with VARLEN; k, v [pages, PAGE_SIZE, kv_heads,
// columns], in e4m3 two columns an element; k_scale, v_scale [kv_heads], or null; block_table [sequences, max_pages];
// lse [sequences, q_heads, seq_q] or [q_heads, rows], or null; grid = (q_heads / PACK_GQA, tiles of all sequences,
// splits).
__global__ void flash_decode(const Element* __restrict__ q, const Element* __restrict__ k,
                             const Element* __restrict__ v, Element* __restrict__ o, float* __restrict__ lse,
                             const int* __restrict__ cu_seqlens_q, const int* __restrict__ kv_lengths,
                             const int* __restrict__ block_table, const float* __restrict__ k_scale,
                             const float* __restrict__ v_scale, int sequences, int seq_q, int total_q, int q_heads,
                             int kv_heads, int max_pages, int splits, unsigned long long by_splits, float* partials,
                             unsigned* semaphores, float scale) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const Scheduler scheduler({cu_seqlens_q, nullptr, kv_lengths, sequences, seq_q}, nullptr, splits,
                              Divisor{by_splits});
    if (!scheduler.has_work()) {
        return;
    }
    const Sequence& sequence = scheduler.sequence;
    const int head = scheduler.head * PACK_GQA;
    const int kv_head = scheduler.head / GROUP_PARTS;
    const long long row = sequence.q_row * q_heads + head;
    const int* const pages = block_table + static_cast<long long>(scheduler.number) * max_pages;
    const int lse_pitch = VARLEN ? total_q : seq_q;
    const Source source{q + row * HEAD_DIM,
                        k + kv_head * Source::K_COLS,
                        v + kv_head * Source::V_COLS,
                        pages,
                        sequence.q_rows,
                        sequence.kv_rows,
                        sequence.ahead(),
                        q_heads,
                        kv_heads,
                        lse_pitch};
    const long long first_row = VARLEN ? sequence.q_row : sequence.q_row * q_heads;
    float* const own_lse = lse == nullptr ? nullptr : lse + first_row + static_cast<long long>(head) * lse_pitch;
    if (E4M3_CACHE) {
        scale *= k_scale[kv_head];
    }
    const SplitRows epilogue{partials, semaphores, E4M3_CACHE ? v_scale[kv_head] : 1.0f};
    Attention::run(ptx::smem_address(smem), source, scheduler, epilogue, o + row * HEAD_DIM_V, own_lse, scale);
}
