// Products of a CTA that owns a tile of keys, for backward/key_loop.cuh.
//
// QUERY_WARPS warps share WARP_KEYS keys. Of S^T and dP^T each has its part of the tile's queries, [WARP_KEYS,
// WARP_QUERIES]; of dK and dV its part of the columns, [WARP_KEYS, WARP_COLUMNS]. With one such warp the accumulators of
// S^T are left operands of the later products (tile/warp.cuh), and P and dS stay in registers. With two they pass
// through shared memory, because each warp needs the queries of both.
//
// A fragment of Q or dO serves all blocks of 16 keys: 32 keys a warp halve its reads of shared memory, which limit GPUs
// with fast tensor cores (sm_80: 2 clocks for a product, and 2 for its right operand).
#pragma once

#include "backward/entry_rows.cuh"
#include "backward/weigh_tile.cuh"
#include "epilogue/store.cuh"
#include "tile/warp.cuh"

constexpr int KEY_BLOCKS = WARP_KEYS / 16;
constexpr int NUM_WARPS = BLOCK / WARP_KEYS * QUERY_WARPS;
constexpr int NUM_THREADS = 32 * NUM_WARPS;
// A warp goes through its queries in steps whose scores fit the registers beside dK and dV.
constexpr int MOST_QUERIES = KEY_BLOCKS == 1 && HEAD_DIM <= 64 && !ATTN_MASK ? 64 : 32;
constexpr int WARP_QUERIES = STREAM / QUERY_WARPS < MOST_QUERIES ? STREAM / QUERY_WARPS : MOST_QUERIES;
constexpr int QUERY_STEPS = STREAM / QUERY_WARPS / WARP_QUERIES;
constexpr int WARP_COLUMNS = HEAD_DIM / QUERY_WARPS;
constexpr int OWN_BYTES = BLOCK * HEAD_DIM * 2;  // K or V
constexpr int STREAM_BYTES = STREAM * HEAD_DIM * 2;
constexpr int WEIGHTS_BYTES = BLOCK * STREAM * 2;  // dS, or P
constexpr bool SHARED_WEIGHTS = QUERY_WARPS > 1;
// K and V of 16 keys stay in registers; of more, the accumulators need them.
constexpr bool OWN_IN_REGISTERS = KEY_BLOCKS == 1 && HEAD_DIM <= 64;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 96 || HEAD_DIM == 128, "HEAD_DIM is 64, 96 or 128");
static_assert(STREAM == 32 || STREAM == 64, "STREAM is 32 or 64");
static_assert(WARP_KEYS == 16 || WARP_KEYS == 32, "a warp has one or two blocks of 16 keys");
static_assert(QUERY_WARPS == 1 || QUERY_WARPS == 2, "one or two warps share keys");
static_assert(BLOCK % WARP_KEYS == 0 && WARP_QUERIES % 16 == 0 && WARP_COLUMNS % 16 == 0, "whole operands");
static_assert(2 * STREAM <= NUM_THREADS, "each thread loads one statistic of a streamed row at most");
static_assert(ROW_BLOCK_BYTES % 1024 == 0, "the swizzle repeats every 8 rows of 128 bytes");

// K or V of a warp's keys as left operands: fragments in registers, or an address to read them again.
template <bool IN_REGISTERS>
struct OwnKeys {
    unsigned frag[HEAD_DIM / 16][KEY_BLOCKS][4];

    __device__ __forceinline__ explicit OwnKeys(unsigned rows_smem) {
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; ++d) {
            OwnKeys<false>(rows_smem).read(frag[d], d);
        }
    }

    // The lane's operands of columns 16 d to 16 d + 15.
    __device__ __forceinline__ void read(unsigned (&operand)[KEY_BLOCKS][4], int d) const {
#pragma unroll
        for (int block = 0; block < KEY_BLOCKS; ++block) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                operand[block][i] = frag[d][block][i];
            }
        }
    }
};

template <>
struct OwnKeys<false> {
    unsigned rows_smem;  // row_block_offset in the warp's rows

    __device__ __forceinline__ explicit OwnKeys(unsigned rows_smem) : rows_smem(rows_smem) {}

    __device__ __forceinline__ void read(unsigned (&operand)[KEY_BLOCKS][4], int d) const {
#pragma unroll
        for (int block = 0; block < KEY_BLOCKS; ++block) {
            ptx::ldmatrix_x4(operand[block], block_address<HEAD_DIM>(rows_smem, block, d));
        }
    }
};

using OwnTile = OwnKeys<OWN_IN_REGISTERS>;
using Scores = float[KEY_BLOCKS][WARP_QUERIES / 8][4];
using Weights = unsigned[KEY_BLOCKS][WARP_QUERIES / 16][4];
using Gradient = float[KEY_BLOCKS][WARP_COLUMNS / 8][4];

// scores += own x stream^T of 16 columns, for the queries from 16 N on.
template <int N = 0>
__device__ __forceinline__ void multiply_queries(Scores& scores, const unsigned (&own)[KEY_BLOCKS][4],
                                                 unsigned stream_smem) {
    unsigned frag[4];
    ptx::ldmatrix_x4_at<N * ROW_BLOCK_BYTES>(frag, stream_smem);
#pragma unroll
    for (int block = 0; block < KEY_BLOCKS; ++block) {
        mma_m16n8k16(scores[block][2 * N], own[block], frag[0], frag[1]);
        mma_m16n8k16(scores[block][2 * N + 1], own[block], frag[2], frag[3]);
    }
    if constexpr (N + 1 < WARP_QUERIES / 16) {
        multiply_queries<N + 1>(scores, own, stream_smem);
    }
}

// scores = own x stream^T. stream_smem: col_block_offset in the warp's part of the tile of queries.
template <class Own>
__device__ __forceinline__ void multiply_own(Scores& scores, const Own& own, unsigned stream_smem) {
#pragma unroll
    for (auto& block : scores) {
#pragma unroll
        for (auto& four : block) {
#pragma unroll
            for (float& score : four) {
                score = 0.0f;
            }
        }
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        unsigned operand[KEY_BLOCKS][4];
        own.read(operand, d);
        multiply_queries(scores, operand, block_address<HEAD_DIM>(stream_smem, 0, d));
    }
}

// P^T or dS^T of a warp's keys as left operands, from shared memory: [WARP_KEYS, STREAM].
struct WeightsInShared {
    unsigned rows_smem;  // row_block_offset in the warp's rows

    __device__ __forceinline__ void read(unsigned (&operand)[KEY_BLOCKS][4], int n) const {
#pragma unroll
        for (int block = 0; block < KEY_BLOCKS; ++block) {
            ptx::ldmatrix_x4(operand[block], block_address<STREAM>(rows_smem, block, n));
        }
    }
};

// grad[WARP_KEYS, WARP_COLUMNS] += weights x stream, for the queries from 16 N on. weights: of these queries.
// stream_smem: row_block_offset in the streamed tile. first: the warp's first block of 16 columns.
template <int N>
__device__ __forceinline__ void add_queries(Gradient& grad, const unsigned (&weights)[KEY_BLOCKS][4],
                                            unsigned stream_smem, int first) {
#pragma unroll
    for (int d = 0; d < WARP_COLUMNS / 16; ++d) {
        unsigned frag[4];
        ptx::ldmatrix_x4_trans_at<N * ROW_BLOCK_BYTES>(frag, block_address<HEAD_DIM>(stream_smem, 0, first + d));
#pragma unroll
        for (int block = 0; block < KEY_BLOCKS; ++block) {
            mma_m16n8k16(grad[block][2 * d], weights[block], frag[0], frag[1]);
            mma_m16n8k16(grad[block][2 * d + 1], weights[block], frag[2], frag[3]);
        }
    }
}

template <int N = 0>
__device__ __forceinline__ void add_gradient(Gradient& grad, const WeightsInShared& weights, unsigned stream_smem,
                                             int first) {
    unsigned operand[KEY_BLOCKS][4];
    weights.read(operand, N);
    add_queries<N>(grad, operand, stream_smem, first);
    if constexpr (N + 1 < STREAM / 16) {
        add_gradient<N + 1>(grad, weights, stream_smem, first);
    }
}

// The same with the weights in registers, for a step's queries and all columns. stream_smem: from these queries on.
template <int N = 0>
__device__ __forceinline__ void add_gradient(Gradient& grad, const Weights& weights, unsigned stream_smem) {
    unsigned operand[KEY_BLOCKS][4];
#pragma unroll
    for (int block = 0; block < KEY_BLOCKS; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            operand[block][i] = weights[block][N][i];
        }
    }
    add_queries<N>(grad, operand, stream_smem, 0);
    if constexpr (N + 1 < WARP_QUERIES / 16) {
        add_gradient<N + 1>(grad, weights, stream_smem);
    }
}

// Stores a warp's P^T or dS^T, [WARP_KEYS, WARP_QUERIES], as part of the CTA's rows, [BLOCK, STREAM]. row: the warp's
// first. query: the first.
__device__ __forceinline__ void store_weights(unsigned tile_smem, const Weights& weights, int row, int query, int lane) {
#pragma unroll
    for (int block = 0; block < KEY_BLOCKS; ++block) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned row_smem = tile_smem + 4 * (lane % 4) +
                                      swizzled_offset<STREAM>(row + 16 * block + lane / 4 + 8 * half,
                                                              query / CHUNK_ELEMENTS);
#pragma unroll
            for (int n = 0; n < WARP_QUERIES / 8; ++n) {
                ptx::st_shared_u32_at<0>(row_smem ^ (n * CHUNK_BYTES), weights[block][n / 2][n % 2 * 2 + half]);
            }
        }
    }
}

// Stores factor * grad as rows of HEAD_DIM elements, `pitch` elements apart, from column WARP_COLUMNS part on. rows: the
// warp's first. warp_smem: [16, WARP_COLUMNS] of this warp alone.
__device__ __forceinline__ void store_gradient(Element* rows, int rows_left, int pitch, const Gradient& grad,
                                               float factor, int part, unsigned warp_smem, int lane) {
    constexpr int CHUNKS = PANEL<WARP_COLUMNS> / CHUNK_ELEMENTS;
    const int row_chunks = pitch / CHUNK_ELEMENTS;
#pragma unroll
    for (int block = 0; block < KEY_BLOCKS; ++block) {
        unsigned pairs[WARP_COLUMNS / 8][2];
#pragma unroll
        for (int n = 0; n < WARP_COLUMNS / 8; ++n) {
            pairs[n][0] = pack_pair(factor * grad[block][n][0], factor * grad[block][n][1]);
            pairs[n][1] = pack_pair(factor * grad[block][n][2], factor * grad[block][n][3]);
        }
        uint4* const chunks = reinterpret_cast<uint4*>(rows + 16LL * block * pitch + part * WARP_COLUMNS) +
                              lane / CHUNKS * row_chunks + lane % CHUNKS;
        store_scattered_rows<WARP_COLUMNS>([&](int row, int panel) { return chunks + row * row_chunks + panel * CHUNKS; },
                                           rows_left - 16 * block, pairs, warp_smem, lane);
        __syncwarp();  // the next rows overwrite these
    }
}
