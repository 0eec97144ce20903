// Products of a consumer, a warpgroup that owns 64 keys, with a tile of queries: all 5 on wgmma.
//
//    S^T = K Q^T, dP^T = V dO^T      both operands in shared memory; the accumulators hold [64 keys, STREAM queries]
//    dV += P^T dO, dK += dS^T Q      P^T and dS^T are left operands in registers
//    dQ = dS K                       dS^T of all consumers in shared memory, both operands transposed
//
// Fragments are numbered as in ptx/wgmma.cuh: element 4 n + 2 half + i of an accumulator of S^T belongs to query
// 8 n + 2 (lane % 4) + i and to key 16 warp + lane / 4 + 8 half.
#pragma once

#include "backward/scores.cuh"
#include "mainloop/register_budget.cuh"
#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"
#include "tile/ceil_div.cuh"
#include "tile/swizzle.cuh"

constexpr int CONSUMERS = BLOCK / WARPGROUP_M;
constexpr int PANELS = ceil_div(HEAD_DIM, PANEL_COLUMNS);       // at D = 96 the second one is half zeros, from TMA
constexpr int OWN_PANEL_BYTES = WARPGROUP_M * PANEL_ROW_BYTES;  // of K or V of a consumer
constexpr int OWN_BYTES = PANELS * OWN_PANEL_BYTES;
constexpr int STREAM_PANEL_BYTES = STREAM * PANEL_ROW_BYTES;    // of Q or dO
constexpr int STREAM_BYTES = PANELS * STREAM_PANEL_BYTES;
constexpr int ROW_BLOCKS = STREAM / WARPGROUP_M;                // of 64 queries
constexpr int DS_PANEL_BYTES = BLOCK * PANEL_ROW_BYTES;         // dS^T, [BLOCK keys, 64 queries]
constexpr int DS_BYTES = ROW_BLOCKS * DS_PANEL_BYTES;
// Queries whose scores are computed at once: half as many where a cap or a mask takes registers of its own.
constexpr int PART = WARPGROUP_M / (CONSUMERS > 1 && (ATTN_MASK || SOFTCAP > 0) ? 2 : 1);

static_assert(HEAD_DIM == 64 || HEAD_DIM == 96 || HEAD_DIM == 128, "HEAD_DIM is 64, 96 or 128");
static_assert(BLOCK == 64 || BLOCK == 128, "BLOCK is 64 or 128: 64 keys a consumer");
static_assert(STREAM == 64 || (STREAM == 128 && HEAD_DIM == 64), "STREAM is 64, or 128 for HEAD_DIM 64");
static_assert(CONSUMERS == ROW_BLOCKS * PANELS, "a consumer has 64 rows and a panel of dQ");

// Named barriers; 0 is that of __syncthreads. The last three are one a consumer.
constexpr int ALL_CONSUMERS = 1;
constexpr int ONE_CONSUMER = 2;
constexpr int DQ_FULL = ONE_CONSUMER + CONSUMERS;
constexpr int DQ_EMPTY = DQ_FULL + CONSUMERS;

// Issues acc = a b^T for a tile [64, HEAD_DIM] and PART rows of a tile [STREAM, HEAD_DIM].
__device__ __forceinline__ void issue_scores(float (&acc)[PART / 2], unsigned a_smem, unsigned b_smem) {
    const unsigned long long a = tile_descriptor<WARPGROUP_M>(a_smem);
    const unsigned long long b = tile_descriptor<STREAM>(b_smem);
    ptx::wgmma_mma_async_ss<false>(acc, a, b);
#pragma unroll
    for (int d = 1; d < HEAD_DIM / 16; ++d) {
        ptx::wgmma_mma_async_ss<true>(acc, a + column_step<WARPGROUP_M>(d), b + column_step<STREAM>(d));
    }
    ptx::wgmma_commit_group();
}

// Issues grad[64, HEAD_DIM] += weights[64, PART] x PART rows of a tile [STREAM, HEAD_DIM].
__device__ __forceinline__ void issue_gradient(float (&grad)[HEAD_DIM / 2], const unsigned (&weights)[PART / 4],
                                               unsigned rows_smem) {
    const unsigned long long rows = tile_descriptor<STREAM>(rows_smem);
#pragma unroll
    for (int n = 0; n < PART / 16; ++n) {
        ptx::wgmma_mma_async_rs(grad, weights + 4 * n, rows + row_step(n));
    }
    ptx::wgmma_commit_group();
}

// Issues a consumer's part of dQ: rows consumer % ROW_BLOCKS and panel consumer / ROW_BLOCKS, in units of 64. ds_smem:
// [ROW_BLOCKS][BLOCK keys, 64 queries]; k_smem: [CONSUMERS][PANELS][64 keys, 64].
__device__ __forceinline__ void issue_dq(float (&dq)[PANEL_COLUMNS / 2], unsigned ds_smem, unsigned k_smem,
                                         int consumer) {
    const unsigned long long ds = tile_descriptor<BLOCK>(ds_smem + consumer % ROW_BLOCKS * DS_PANEL_BYTES);
    const unsigned long long k = tile_descriptor<WARPGROUP_M>(k_smem + consumer / ROW_BLOCKS * OWN_PANEL_BYTES);
    ptx::wgmma_mma_async_ss<false, true>(dq, ds, k);
#pragma unroll
    for (int n = 1; n < BLOCK / 16; ++n) {
        constexpr int STEPS = WARPGROUP_M / 16;  // within the keys of a consumer
        const unsigned long long keys = k + n / STEPS * (OWN_BYTES / 16);
        ptx::wgmma_mma_async_ss<true, true>(dq, ds + row_step(n), keys + row_step(n % STEPS));
    }
    ptx::wgmma_commit_group();
}

// Computes the weights of scores: s becomes P^T of a lane's pairs, and slopes the derivatives of a soft cap, if any.
// statistics: of the tile, from the lane's first query on; key, query: the lane's first.
template <bool EDGE>
__device__ __forceinline__ void weigh_pairs(float (&s)[PART / 2], float (&slopes)[PART / 2], const HeadScores& scores,
                                            const float* statistics, int key, int query) {
    Span seen[2];  // queries that see either key, from the lane's first on
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own = key + 8 * half;
        const Span queries = scores.entry.queries_of(own, own);
        seen[half] = Span{queries.first - query, own < scores.entry.keys ? queries.end - query : 0};
    }
#pragma unroll
    for (int n = 0; n < PART / 8; ++n) {
        const float2 minus_lse = *reinterpret_cast<const float2*>(statistics + 8 * n);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int at = 4 * n + 2 * half + i;
                const int column = 8 * n + i;
                s[at] = scores.template weight<EDGE>(slopes[at], s[at], query + column, key + 8 * half,
                                                     i ? minus_lse.y : minus_lse.x,
                                                     column >= seen[half].first && column < seen[half].end);
            }
        }
    }
}

// P^T and dS^T as packed left operands; weights and slopes as weigh_pairs leaves them.
__device__ __forceinline__ void pack_pairs(unsigned (&p)[PART / 4], unsigned (&ds)[PART / 4],
                                           const float (&weights)[PART / 2], const float (&slopes)[PART / 2],
                                           const float (&dp)[PART / 2], const float* statistics) {
#pragma unroll
    for (int n = 0; n < PART / 8; ++n) {
        const float2 delta = *reinterpret_cast<const float2*>(statistics + STREAM + 8 * n);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = 4 * n + 2 * half;
            float gradient[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                gradient[i] = weights[at + i] * (dp[at + i] - (i ? delta.y : delta.x));
                if constexpr (SOFTCAP > 0) {
                    gradient[i] *= slopes[at + i];
                }
            }
            p[2 * n + half] = pack_pair(weights[at], weights[at + 1]);
            ds[2 * n + half] = pack_pair(gradient[0], gradient[1]);
        }
    }
}

// Stores a warp's dS^T, [16 keys, PART queries], from query `first` of the tile on. warp: among all consumers'.
__device__ __forceinline__ void store_ds(unsigned ds_smem, const unsigned (&ds)[PART / 4], int first, int warp,
                                         int lane) {
    const unsigned lane_smem = ds_smem + row_block_offset<PANEL_COLUMNS>(lane) + warp * (16 * PANEL_ROW_BYTES) +
                               first / PANEL_COLUMNS * DS_PANEL_BYTES;
#pragma unroll
    for (int n = 0; n < PART / 16; ++n) {
        const unsigned frag[4] = {ds[4 * n], ds[4 * n + 1], ds[4 * n + 2], ds[4 * n + 3]};
        ptx::stmatrix_x4(block_address<PANEL_COLUMNS>(lane_smem, 0, first % PANEL_COLUMNS / 16 + n), frag);
    }
}

// Fills rows from `first` on of a tile [ROWS, HEAD_DIM] with zeros, by THREADS threads: memory behind a length may hold
// NaN, and 0 * NaN is NaN. The caller orders the writes before the products.
template <int ROWS, int THREADS>
__device__ __forceinline__ void clear_rows(unsigned char* tile, int first, int thread) {
    constexpr int CHUNKS = PANEL_ROW_BYTES / CHUNK_BYTES;
#pragma unroll 1
    for (int place = max(first, 0) * CHUNKS + thread; place < ROWS * CHUNKS; place += THREADS) {
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
            reinterpret_cast<uint4*>(tile + panel * ROWS * PANEL_ROW_BYTES)[place] = make_uint4(0, 0, 0, 0);
        }
    }
}
