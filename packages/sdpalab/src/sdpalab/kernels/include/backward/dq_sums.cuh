// Sums of dQ in float32, added up by TMA: a consumer's part goes through shared memory, and a warp adds it to global
// memory by bulk reductions while the consumers compute.
//
// The sums have the order of the accumulators, [head][tile][consumer][column block][thread][4], so that neither the
// stores to shared memory have bank conflicts nor the reductions have gaps. convert_dq() alone depends on it.
#pragma once

#include "backward/query_ring.cuh"
#include "backward/warpgroup_tile.cuh"
#include "ptx/gpu_scope.cuh"

constexpr int DQ_TILE = STREAM * HEAD_DIM;  // elements
constexpr int DQ_PART = WARPGROUP_M * PANEL_COLUMNS;  // of a consumer; the last one has fewer at D = 96
constexpr int DQ_PART_BYTES = DQ_PART * static_cast<int>(sizeof(float));

// Columns of a consumer's part.
__device__ __forceinline__ int dq_columns(int consumer) {
    return HEAD_DIM % PANEL_COLUMNS == 0 ? PANEL_COLUMNS
                                         : min(HEAD_DIM - consumer / ROW_BLOCKS * PANEL_COLUMNS, PANEL_COLUMNS);
}

// Named barriers between a consumer and the warp that adds.
constexpr int DQ_THREADS = WARPGROUP + 32;

// A consumer's side. dq_smem: of its part, [column blocks][WARPGROUP] float4.
__device__ __forceinline__ void hand_over_dq(float4* dq_smem, const float (&dq)[PANEL_COLUMNS / 2], int consumer) {
    ptx::bar_sync(DQ_EMPTY + consumer, DQ_THREADS);
    float4* const own = dq_smem + threadIdx.x % WARPGROUP;
#pragma unroll
    for (int n = 0; n < PANEL_COLUMNS / 8; ++n) {
        if (8 * n < dq_columns(consumer)) {
            own[n * WARPGROUP] = make_float4(dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]);
        }
    }
    ptx::fence_proxy_async_shared_cta();
    ptx::bar_arrive(DQ_FULL + consumer, DQ_THREADS);
}

// Returns the parts' shared memory to the consumers, from CONSUMER on, as TMA has read it. more: there is a next tile.
template <int CONSUMER = 0>
__device__ __forceinline__ void return_parts(bool more, int lane) {
    if constexpr (CONSUMER < CONSUMERS) {
        if (lane == 0) {
            ptx::cp_async_bulk_wait_group_read<CONSUMERS - 1 - CONSUMER>();
        }
        __syncwarp();
        if (more) {
            ptx::bar_arrive(DQ_EMPTY + CONSUMER, DQ_THREADS);
        }
        return_parts<CONSUMER + 1>(more, lane);
    }
}

// The adding warp. sums, semaphores: as for key_tile_gradients; parts_smem: [CONSUMERS][DQ_PART] floats. With
// DETERMINISTIC the order is that of backward/sum_order.cuh; the next CTA may add when the reductions are complete, not
// only read.
__device__ __forceinline__ void add_up_dq(float* sums, unsigned* semaphores, QueryCursor at, const TilesSeen& seen,
                                          int key_tile, int tiles, unsigned parts_smem, int lane) {
    if (at.left > 0) {
#pragma unroll
        for (int consumer = 0; consumer < CONSUMERS; ++consumer) {
            ptx::bar_arrive(DQ_EMPTY + consumer, DQ_THREADS);
        }
    }
#pragma unroll 1
    for (; at.left > 0; at.advance()) {
        const long long tile = static_cast<long long>(at.head) * tiles + at.tile;
        const Span keys = DETERMINISTIC ? seen.of_queries(at.tile) : Span{0, 0};
        if (DETERMINISTIC) {
            if (lane == 0) {
                while (ptx::ld_acquire_gpu_u32(semaphores + tile) != static_cast<unsigned>(key_tile - keys.first)) {
                }
            }
            __syncwarp();  // the barriers below are for whole warps
        }
#pragma unroll
        for (int consumer = 0; consumer < CONSUMERS; ++consumer) {
            ptx::bar_sync(DQ_FULL + consumer, DQ_THREADS);
            if (lane == 0) {
                ptx::cp_reduce_async_bulk_add_f32(sums + tile * DQ_TILE + consumer * DQ_PART,
                                                  parts_smem + consumer * DQ_PART_BYTES,
                                                  dq_columns(consumer) * WARPGROUP_M * 4);
                ptx::cp_async_bulk_commit_group();
            }
        }
        return_parts(at.left > 1, lane);
        if (DETERMINISTIC && lane == 0) {
            ptx::cp_async_bulk_wait_group<0>();
            ptx::st_release_gpu_u32(semaphores + tile, key_tile + 1 == keys.end ? 0 : key_tile - keys.first + 1);
        }
    }
}

// Transposes a matrix of 4 x 4 words, of which each lane of a quad has a row.
__device__ __forceinline__ void transpose_in_quads(unsigned (&row)[4], int lane) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if ((i & distance) == 0) {
                unsigned& lower_word = row[i];
                unsigned& upper_word = row[i + distance];
                const unsigned other = __shfl_xor_sync(0xffffffffu, upper ? lower_word : upper_word, distance);
                lower_word = upper ? other : lower_word;
                upper_word = upper ? upper_word : other;
            }
        }
    }
}

// Writes dQ = scale * sum in the element type. A thread reads four neighbouring column blocks of its accumulators, and
// writes 8 columns of two rows: HEAD_DIM / 16 threads a row of all tiles of all heads, `tiles` a head, and whole warps.
__device__ __forceinline__ void convert_dq(const float* sums, Element* dq, int seq_q, int tiles, float scale,
                                           long long threads) {
    const long long number = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (number >= threads) {
        return;
    }
    const long long tile = number / (DQ_TILE / 16);  // over all heads
    const int place = static_cast<int>(number % (DQ_TILE / 16));
    const int consumer = place / (DQ_PART / 16);
    const int blocks = place % (DQ_PART / 16) / WARPGROUP;  // four of 8 columns
    const int thread = place % WARPGROUP;
    const float4* const quads =
        reinterpret_cast<const float4*>(sums + tile * DQ_TILE + consumer * DQ_PART) + blocks * 4 * WARPGROUP + thread;
    unsigned rows[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 four = quads[i * WARPGROUP];
        rows[0][i] = pack_pair(four.x * scale, four.y * scale);
        rows[1][i] = pack_pair(four.z * scale, four.w * scale);
    }
    const int chunk = consumer / ROW_BLOCKS * (PANEL_COLUMNS / 8) + blocks * 4 + thread % 4;
    const int row = consumer % ROW_BLOCKS * WARPGROUP_M + thread / 32 * WARP_M + thread % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        transpose_in_quads(rows[half], thread);
        const int query = static_cast<int>(tile % tiles) * STREAM + row + 8 * half;
        if (query < seq_q) {
            reinterpret_cast<uint4*>(dq + ((tile / tiles) * seq_q + query) * HEAD_DIM)[chunk] =
                make_uint4(rows[half][0], rows[half][1], rows[half][2], rows[half][3]);
        }
    }
}
