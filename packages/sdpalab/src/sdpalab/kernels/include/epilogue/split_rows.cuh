// Merge of all that share rows: the warps of a block, each with keys of its own, and the blocks with parts of the keys.
//
// Warps merge through shared memory, blocks through global memory, both in the order of the keys, and neither waits for
// another block: the last one merges. From the accumulators on, a thread has four columns of a row at a time, and rows
// without a query cost nothing: a tile of few queries is small, but its merge is on the critical path of a short step.
#pragma once

#include "epilogue/merge.cuh"
#include "tile/dtype.cuh"

// TILE_ROWS rows of O [TILE_ROWS, COLS] in float32. WARPS_PER_ROW warps share ROWS of them.
template <int TILE_ROWS, int ROWS, int COLS, int WARPS_PER_ROW>
struct SplitTile {
    static constexpr int ROWS_OF_ALL = TILE_ROWS;
    static constexpr int THREADS = TILE_ROWS / ROWS * WARPS_PER_ROW * 32;
    static constexpr int ROW_CHUNKS = COLS / 4;
    static constexpr int PITCH = COLS + 8;  // of a row in shared memory: fragments are stored without bank conflicts
    static constexpr int WARP_FLOATS = ROWS * (PITCH + 2);
    static constexpr int SMEM_BYTES = THREADS / 32 * WARP_FLOATS * 4;
    static constexpr int PART_FLOATS = TILE_ROWS * (COLS + 2);  // O, then a maximum and a sum for each row

    // Four columns of a row, not normalised, and the row's statistics.
    struct Chunk {
        float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        SoftmaxRow row;

        // Adds a part; row.max is the maximum of all parts.
        __device__ __forceinline__ void add(const float4& part, float2 statistics, float scale_log2) {
            const float weight = softmax_weight(statistics.x, row.max, scale_log2);
            row.sum += statistics.y * weight;
            o.x += part.x * weight;
            o.y += part.y * weight;
            o.z += part.z * weight;
            o.w += part.w * weight;
        }
    };

    // Statistics of a row of a warp's part in shared memory.
    static __device__ __forceinline__ float2* statistics_of(float* warp_smem) {
        return reinterpret_cast<float2*>(warp_smem + ROWS * PITCH);
    }

    // Stores the maxima and sums of a warp's rows; lane 4 i has rows i and i + 8.
    template <int BLOCKS>
    static __device__ __forceinline__ void store_statistics(float* warp_smem, const SoftmaxRow (&rows)[BLOCKS][2],
                                                            int lane) {
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; ++i) {
            const SoftmaxRow& row = rows[i / 2][i % 2];
            const float sum = quad_sum(row.sum);
            if (lane % 4 == 0) {
                statistics_of(warp_smem)[8 * i + lane / 4] = make_float2(row.max, sum);
            }
        }
    }

    // Merges the warps that share a row.
    static __device__ __forceinline__ Chunk of_warps(float* smem, int row, int column, float scale_log2) {
        float* const first = smem + row / ROWS * WARPS_PER_ROW * WARP_FLOATS;
        Chunk chunk;
        float2 statistics[WARPS_PER_ROW];
#pragma unroll
        for (int w = 0; w < WARPS_PER_ROW; ++w) {
            statistics[w] = statistics_of(first + w * WARP_FLOATS)[row % ROWS];
            chunk.row.max = fmaxf(chunk.row.max, statistics[w].x);
        }
#pragma unroll
        for (int w = 0; w < WARPS_PER_ROW; ++w) {
            const float* own = first + w * WARP_FLOATS + row % ROWS * PITCH + column;
            chunk.add(*reinterpret_cast<const float4*>(own), statistics[w], scale_log2);
        }
        return chunk;
    }

    // Merges `count` parts in global memory.
    static __device__ __forceinline__ Chunk of_blocks(const float* parts, int count, int row, int column,
                                                      float scale_log2) {
        const float2* const statistics = reinterpret_cast<const float2*>(parts + TILE_ROWS * COLS) + row;
        const float4* const values = reinterpret_cast<const float4*>(parts + row * COLS + column);
        Chunk chunk;
#pragma unroll 8
        for (int i = 0; i < count; ++i) {
            chunk.row.max = fmaxf(chunk.row.max, statistics[i * (PART_FLOATS / 2)].x);
        }
#pragma unroll 8
        for (int i = 0; i < count; ++i) {
            chunk.add(values[i * (PART_FLOATS / 4)], statistics[i * (PART_FLOATS / 2)], scale_log2);
        }
        return chunk;
    }

    // Stores a chunk of a part.
    static __device__ __forceinline__ void store(float* part, const Chunk& chunk, int row, int column) {
        *reinterpret_cast<float4*>(part + row * COLS + column) = chunk.o;
        if (column == 0) {
            reinterpret_cast<float2*>(part + TILE_ROWS * COLS)[row] = make_float2(chunk.row.max, chunk.row.sum);
        }
    }
};

// Policy Epilogue of mainloop/warps.cuh for SequenceTile, whose blocks may have parts of the keys.
struct SplitRows {
    float* partials;
    unsigned* semaphores;
    float v_scale;  // of all of V

    // Merges and stores the rows of a block. smem: Tile::SMEM_BYTES that no warp uses any more.
    template <class Tile, class Products, class Source, class Scheduler, class Segment>
    __device__ __forceinline__ void finish(const Products& products, const Source& source, const Scheduler& scheduler,
                                           const Segment& done, float* smem, Element* o, float* lse, float scale_log2,
                                           int thread) const {
        float* const own = smem + thread / 32 * Tile::WARP_FLOATS;
        products.template store_o<Tile::PITCH>(own, thread % 32);
        Tile::store_statistics(own, products.softmax.rows, thread % 32);
        __syncthreads();

        const int end = min(source.rows_left(done, 0), Tile::ROWS_OF_ALL) * Tile::ROW_CHUNKS;
        float* const parts = partials + scheduler.first_part(done) * Tile::PART_FLOATS;
#pragma unroll 1
        for (int at = thread; at < end; at += Tile::THREADS) {
            const int row = at / Tile::ROW_CHUNKS;
            const int column = at % Tile::ROW_CHUNKS * 4;
            const auto chunk = Tile::of_warps(smem, row, column, scale_log2);
            if (done.whole()) {
                store(chunk, source, done, row, column, o, lse, scale_log2);
            } else {
                Tile::store(parts + static_cast<long long>(done.split) * Tile::PART_FLOATS, chunk, row, column);
            }
        }
        if (done.whole() || !is_last_of(semaphores + done.q_tile_of_all, done.splits)) {
            return;
        }
        __builtin_assume(done.splits > 1);
#pragma unroll 1
        for (int at = thread; at < end; at += Tile::THREADS) {
            const int row = at / Tile::ROW_CHUNKS;
            const int column = at % Tile::ROW_CHUNKS * 4;
            const auto chunk = Tile::of_blocks(parts, done.splits, row, column, scale_log2);
            store(chunk, source, done, row, column, o, lse, scale_log2);
        }
    }

private:
    // Stores a chunk of O, normalised, and with column 0 the row's log-sum-exp.
    template <class Chunk, class Source, class Segment>
    __device__ __forceinline__ void store(const Chunk& chunk, const Source& source, const Segment& done, int row,
                                          int column, Element* o, float* lse, float scale_log2) const {
        const float factor = softmax_normaliser(chunk.row.sum) * v_scale;
        const uint2 pairs = make_uint2(pack_pair(chunk.o.x * factor, chunk.o.y * factor),
                                       pack_pair(chunk.o.z * factor, chunk.o.w * factor));
        *reinterpret_cast<uint2*>(o + source.template row_offset<Source::O_COLS>(done, row) + column) = pairs;
        if (lse != nullptr && column == 0) {
            lse[source.lse_offset(done, row)] = log_sum_exp(chunk.row.max, chunk.row.sum, scale_log2);
        }
    }
};
