// dQ of a streamed tile of queries, dS x K, by all warps of a CTA that owns a tile of keys; and its sum over such CTAs.
//
// The keys of dS are spread over the warps, so dS^T goes through shared memory; each warp then computes a part of the
// [STREAM, HEAD_DIM] result over all keys of the CTA. dQ is summed in float32 in global memory, in the order of the
// fragments: [head][tile][warp][register][lane]. A red.add of a warp covers 128 consecutive bytes, which [rows,
// columns] would not, and convert_dq() alone needs to know.
#pragma once

#include "backward/key_tile.cuh"
#include "ptx/gpu_scope.cuh"

constexpr int DQ_TILE = STREAM * HEAD_DIM;  // elements
constexpr int DQ_ROWS = DQ_TILE / NUM_WARPS >= 32 * 32 ? 32 : 16;  // of a warp
constexpr int DQ_ROW_BLOCKS = DQ_ROWS / 16;
constexpr int DQ_ROW_WARPS = STREAM / DQ_ROWS;
constexpr int DQ_COL_WARPS = NUM_WARPS / DQ_ROW_WARPS;
constexpr int DQ_COLUMNS = HEAD_DIM / DQ_COL_WARPS;  // of a warp
constexpr int DQ_BLOCKS = DQ_COLUMNS / 8;
constexpr int DQ_REGISTERS = 4 * DQ_ROW_BLOCKS * DQ_BLOCKS;
constexpr int DQ_UNROLL = KEY_BLOCKS == 2 ? 4 : 1;  // of 32 keys

static_assert(NUM_WARPS % DQ_ROW_WARPS == 0 && DQ_COLUMNS % 8 == 0, "each warp has rows and some 8 columns of dQ");
static_assert(DQ_REGISTERS * 32 * NUM_WARPS == DQ_TILE, "the fragments are the tile");
static_assert(BLOCK % 32 == 0, "dQ is computed 32 keys at a time");

using QueryPart = float[DQ_ROW_BLOCKS][DQ_BLOCKS][4];

// A warp's part of dQ. k_smem: the CTA's K, [BLOCK, HEAD_DIM].
struct QueryGradient {
    unsigned ds_smem[DQ_ROW_BLOCKS];  // the lane's addresses for 16 keys by 16 queries, transposed: left operands
    unsigned k_smem[DQ_BLOCKS];  // the lane's address for 32 keys by 8 columns: right operands of two products

    __device__ __forceinline__ QueryGradient(unsigned ds_base, unsigned k_base, int warp, int lane) {
#pragma unroll
        for (int block = 0; block < DQ_ROW_BLOCKS; ++block) {
            ds_smem[block] = block_address<STREAM>(ds_base + col_block_offset<STREAM>(lane), 0,
                                                   warp % DQ_ROW_WARPS * DQ_ROW_BLOCKS + block);
        }
#pragma unroll
        for (int n = 0; n < DQ_BLOCKS; ++n) {
            k_smem[n] = k_base + swizzled_offset<HEAD_DIM>(lane, warp / DQ_ROW_WARPS * DQ_BLOCKS + n);
        }
    }

    // 32 keys at a time. With 16 keys a warp a loop, because more operands would be loaded ahead than registers are free.
    __device__ __forceinline__ void add_products(QueryPart& dq) const {
        constexpr int DS_STEP = 16 * STREAM * 2;
#pragma unroll DQ_UNROLL
        for (int step = 0; step < BLOCK / 32; ++step) {
            unsigned ds[DQ_ROW_BLOCKS][2][4];
#pragma unroll
            for (int block = 0; block < DQ_ROW_BLOCKS; ++block) {
                const unsigned ds_step = ds_smem[block] + step * 2 * DS_STEP;
                ptx::ldmatrix_x4_trans_at<0>(ds[block][0], ds_step);
                ptx::ldmatrix_x4_trans_at<DS_STEP>(ds[block][1], ds_step);
            }
            unsigned k[DQ_BLOCKS][4];
#pragma unroll
            for (int n = 0; n < DQ_BLOCKS; ++n) {
                ptx::ldmatrix_x4_trans_at<0>(k[n], k_smem[n] + step * 32 * HEAD_DIM * 2);
            }
            // All accumulators once, then again: the second product of one does not wait for the first.
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int n = 0; n < DQ_BLOCKS; ++n) {
#pragma unroll
                    for (int block = 0; block < DQ_ROW_BLOCKS; ++block) {
                        mma_m16n8k16(dq[block][n], ds[block][half], k[n][2 * half], k[n][2 * half + 1]);
                    }
                }
            }
        }
    }
};

// Adds a warp's part to the sum of its tile. sum: of the tile, [NUM_WARPS][DQ_REGISTERS][32].
__device__ __forceinline__ void add_to_sum(float* sum, const QueryPart& dq, int warp, int lane) {
    float* const own = sum + warp * DQ_REGISTERS * 32 + lane;
#pragma unroll
    for (int n = 0; n < DQ_ROW_BLOCKS * DQ_BLOCKS; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            ptx::red_add_f32(own + (4 * n + i) * 32, dq[n / DQ_BLOCKS][n % DQ_BLOCKS][i]);
        }
    }
}

// Writes dQ = scale * sum in the element type: 8 columns of a row a thread, two of its float4 from the fragments. Pairs
// of threads share a row, so stores fill whole sectors. grid: the chunks of all tiles of all heads. queries: ends of the
// packed sequences with VARLEN.
__device__ __forceinline__ void convert_dq(const float* sums, Element* dq, int seq_q, int heads, float scale,
                                           long long threads, const PackedEnds& queries) {
    constexpr int CHUNKS = HEAD_DIM / CHUNK_ELEMENTS;
    const long long number = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (number >= threads) {
        return;
    }
    const long long tile = number / (STREAM * CHUNKS);  // over all heads
    const int place = static_cast<int>(number % (STREAM * CHUNKS));
    const int chunk = place / (2 * STREAM) * 2 + place % 2;
    const int row = place / 2 % STREAM;
    const int warp = chunk / DQ_BLOCKS * DQ_ROW_WARPS + row / DQ_ROWS;
    const int first = 4 * (row % DQ_ROWS / 16 * DQ_BLOCKS + chunk % DQ_BLOCKS) + row / 8 % 2 * 2;
    const float4* const parts =
        reinterpret_cast<const float4*>(sums + tile * DQ_TILE + (warp * DQ_REGISTERS + first) * 32 + row % 8 * 4);
    const float4 even = parts[0];
    const float4 odd = parts[8];  // the next register of the same lanes
    const int tiles = VARLEN ? queries.all_tiles<STREAM>() : ceil_div(seq_q, STREAM);
    const long long head = tile / tiles;
    int query = static_cast<int>(tile % tiles) * STREAM + row;
    int rows = seq_q;
    long long dq_row = head * seq_q + query;
    if (VARLEN) {
        const int sequence = queries.sequence_of<STREAM>(static_cast<int>(tile % tiles));
        query -= queries.first_tile<STREAM>(sequence) * STREAM;
        rows = queries.rows(sequence);
        dq_row = static_cast<long long>(queries.first_row(sequence) + query) * heads + head;
    }
    if (query < rows) {
        uint4* const chunks = reinterpret_cast<uint4*>(dq + dq_row * HEAD_DIM);
        chunks[chunk] = make_uint4(pack_pair(even.x * scale, odd.x * scale), pack_pair(even.y * scale, odd.y * scale),
                                   pack_pair(even.z * scale, odd.z * scale), pack_pair(even.w * scale, odd.w * scale));
    }
}
