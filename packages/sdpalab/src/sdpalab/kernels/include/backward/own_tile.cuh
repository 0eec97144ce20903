// Gradients of one tile of rows that a CTA owns, while the rows of the other side stream through shared memory.
//
// Owned keys (K, V) meet streamed queries (Q, dO), and the reverse; the products are the same:
//
//    S = own0 x stream0^T    dP = own1 x stream1^T    grad0 += dS x stream0    grad1 += P x stream1 (owned keys only)
//
// so that grad0 is dK or dQ, and grad1 is dV. A warp owns 16 rows. The accumulators of S and dP have the layout of the
// left operand of the later products (tile/warp.cuh): P and dS, transposed for owned keys, never leave the registers.
#pragma once

#include "backward/tensors.cuh"
#include "backward/weigh_tile.cuh"
#include "tile/panels.cuh"
#include "tile/warp.cuh"

constexpr int NUM_THREADS = BLOCK / WARP_M * 32;
constexpr int OWN_BYTES = BLOCK * HEAD_DIM * 2;  // one of the two owned tiles
constexpr int STREAM_BYTES = STREAM * HEAD_DIM * 2;
// Owned fragments of up to 64 columns stay in registers; above, the accumulators of dK and dV need those registers.
constexpr bool OWN_IN_REGISTERS = HEAD_DIM <= 64;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 96 || HEAD_DIM == 128, "HEAD_DIM is 64, 96 or 128");
static_assert(BLOCK == 64 || BLOCK == 128, "BLOCK is 64 or 128");
static_assert(STREAM == 32 || (STREAM == 64 && HEAD_DIM == 64), "STREAM is 32, or 64 for HEAD_DIM 64");
static_assert(2 * STREAM <= NUM_THREADS, "each thread loads one statistic of a streamed row at most");
static_assert(ROW_BLOCK_BYTES % 1024 == 0, "the swizzle repeats every 8 rows of 128 bytes");

// One of the two owned tiles as left operands: fragments in registers, or an address to read them again.
template <bool IN_REGISTERS>
struct OwnRows {
    unsigned frag[HEAD_DIM / 16][4];

    __device__ __forceinline__ explicit OwnRows(unsigned rows_smem) { load_q(frag, rows_smem); }

    // The lane's operand of columns 16 d to 16 d + 15.
    __device__ __forceinline__ void read(unsigned (&operand)[4], int d) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            operand[i] = frag[d][i];
        }
    }
};

template <>
struct OwnRows<false> {
    unsigned rows_smem;

    __device__ __forceinline__ explicit OwnRows(unsigned rows_smem) : rows_smem(rows_smem) {}

    __device__ __forceinline__ void read(unsigned (&operand)[4], int d) const {
        ptx::ldmatrix_x4(operand, block_address<HEAD_DIM>(rows_smem, 0, d));
    }
};

using Own = OwnRows<OWN_IN_REGISTERS>;

// scores[16, STREAM] = own x stream^T. stream_smem: col_block_offset in the streamed tile.
template <class Rows>
__device__ __forceinline__ void multiply_own(float (&scores)[STREAM / 8][4], const Rows& own, unsigned stream_smem) {
#pragma unroll
    for (int n = 0; n < STREAM / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scores[n][i] = 0.0f;
        }
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        unsigned operand[4];
        own.read(operand, d);
        multiply_columns<STREAM>(scores, operand, block_address<HEAD_DIM>(stream_smem, 0, d));
    }
}

// grad[16, 16 columns] += weights[16, STREAM] x stream, from row 16 N of the streamed tile on.
template <int N = 0>
__device__ __forceinline__ void add_columns(float (&left)[4], float (&right)[4],
                                            const unsigned (&weights)[STREAM / 16][4], unsigned stream_smem) {
    unsigned frag[4];
    ptx::ldmatrix_x4_trans_at<N * ROW_BLOCK_BYTES>(frag, stream_smem);
    mma_m16n8k16(left, weights[N], frag[0], frag[1]);
    mma_m16n8k16(right, weights[N], frag[2], frag[3]);
    if constexpr (N + 1 < STREAM / 16) {
        add_columns<N + 1>(left, right, weights, stream_smem);
    }
}

// grad[16, HEAD_DIM] += weights x stream. stream_smem: row_block_offset in the streamed tile.
__device__ __forceinline__ void add_gradient(float (&grad)[HEAD_DIM / 8][4], const unsigned (&weights)[STREAM / 16][4],
                                             unsigned stream_smem) {
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        add_columns(grad[2 * d], grad[2 * d + 1], weights, block_address<HEAD_DIM>(stream_smem, 0, d));
    }
}
