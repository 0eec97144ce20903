// The main loop of a CTA that owns a tile of keys and computes its part of all three gradients, 5 products a tile.
//
//    S^T = K Q^T, dP^T = V dO^T     P^T, dS^T as left operands     dV += P^T dO, dK += dS^T Q     (backward/key_tile.cuh)
//    dS^T through shared memory     dQ = dS K by all warps, added to its sum in global memory
//
// Two barriers a tile of queries. The first: its Q and dO have arrived for all warps, and all have left the stage which
// the copies of the next overwrite. The second: dS^T is complete, and all warps have left dO, so that with one stage of
// dO its next tile is copied behind the products of dQ.
#pragma once

#include "backward/query_gradient.cuh"
#include "backward/sum_order.cuh"
#include "backward/tiles_seen.cuh"

constexpr int Q_OFFSET = 2 * OWN_BYTES;  // behind K and V
constexpr int DO_OFFSET = Q_OFFSET + 2 * STREAM_BYTES;
constexpr int DS_OFFSET = DO_OFFSET + DO_STAGES * STREAM_BYTES;
constexpr int P_OFFSET = DS_OFFSET + WEIGHTS_BYTES;
constexpr int STATISTICS_OFFSET = P_OFFSET + (SHARED_WEIGHTS ? WEIGHTS_BYTES : 0);

static_assert(DO_STAGES == 1 || DO_STAGES == 2, "DO_STAGES is 1 or 2");
static_assert(WEIGHTS_BYTES % 1024 == 0, "the swizzle repeats every 8 rows of 128 bytes");

// This thread's warp and lane, read again at each place: values derived from them then occupy no registers between.
struct Place {
    int warp;
    int lane;

    __device__ __forceinline__ Place() : warp(ptx::tid_x() / 32), lane(ptx::tid_x() % 32) {}

    // The warp's first key in the tile, and its part of the queries and of the columns.
    __device__ __forceinline__ int key() const { return warp / QUERY_WARPS * WARP_KEYS; }
    __device__ __forceinline__ int part() const { return warp % QUERY_WARPS; }
};

// kv_head, tile_of_head: EntryRows. sums: [heads of all batches][tiles of queries][DQ_TILE], zeros at first. semaphores: one a tile
// of queries in the order of sums, read with DETERMINISTIC alone. smem: STATISTICS_OFFSET + 2 STATISTICS_BYTES, aligned
// to 1,024.
__device__ __forceinline__ void key_tile_gradients(const Tensors& tensors, float* sums, unsigned* semaphores,
                                                   unsigned kv_head, int tile_of_head, unsigned char* smem) {
    const unsigned smem_base = ptx::smem_address(smem);
    float* const statistics_smem = reinterpret_cast<float*>(smem + STATISTICS_OFFSET);  // [2][2][STREAM]

    const int group = tensors.group;
    const unsigned first_q_head = kv_head * group;
    const EntryRows rows(tensors, kv_head, tile_of_head);
    const Entry entry = rows.valid(tensors);
    const int key_tile = rows.key_tile;
    const int first_key = key_tile * BLOCK;
    const TilesSeen seen{entry};
    const Span tiles = seen.of_keys(first_key);
    const int own_pitch = kv_pitch(tensors);

    const long long own_offset = rows.kv_offset(tensors, kv_head, first_key);
    const int keys_left = entry.keys - first_key;
    copy_rows<BLOCK, NUM_THREADS>(smem_base, tensors.k + own_offset, keys_left, own_pitch);
    copy_rows<BLOCK, NUM_THREADS>(smem_base + OWN_BYTES, tensors.v + own_offset, keys_left, own_pitch);
    ptx::cp_async_commit_group();

    // Loads of a tile of queries of a head: Q and the statistics, and dO.
    float statistic = 0.0f;
    const auto load_q = [&](int stage, unsigned head, int tile) {
        const int thread = ptx::tid_x();
        const int row = tile * STREAM;
        copy_rows<STREAM, NUM_THREADS>(smem_base + Q_OFFSET + stage * STREAM_BYTES,
                                       tensors.q + rows.q_offset(tensors, head, row), entry.queries - row,
                                       q_pitch(tensors));
        if (thread < 2 * STREAM) {
            const bool valid = row + thread % STREAM < entry.queries;
            const float* const source = thread < STREAM ? tensors.lse : tensors.delta;
            const float loaded = valid ? source[rows.statistic(tensors, head, row + thread % STREAM)] : 0.0f;
            statistic = thread < STREAM ? minus_lse_of(loaded, valid) : loaded;
        }
    };
    const auto load_do = [&](int stage, unsigned head, int tile) {
        const int row = tile * STREAM;
        copy_rows<STREAM, NUM_THREADS>(smem_base + DO_OFFSET + (DO_STAGES == 2 ? stage : 0) * STREAM_BYTES,
                                       tensors.dout + rows.q_offset(tensors, head, row), entry.queries - row,
                                       q_pitch(tensors));
    };
    const auto keep_statistic = [&](int stage) {
        const int thread = ptx::tid_x();
        if (thread < 2 * STREAM) {
            statistics_smem[stage * 2 * STREAM + thread] = statistic;
        }
    };
    int tile = tiles.first;
    unsigned q_head = first_q_head;
    int tiles_left = (tiles.end - tiles.first) * group;
    if (tiles_left > 0) {
        load_q(0, q_head, tile);
        load_do(0, q_head, tile);
    }
    ptx::cp_async_commit_group();
    keep_statistic(0);

    ptx::cp_async_wait_group<1>();
    __syncthreads();
    const Place at;
    const unsigned own_smem = smem_base + at.key() * (HEAD_DIM * 2) + row_block_offset<HEAD_DIM>(at.lane);
    const OwnTile own_k(own_smem);
    const OwnTile own_v(own_smem + OWN_BYTES);
    HeadScores scores{entry, tensors.scale, 0.0f, nullptr, tensors.seq_kv};
    Statistics<true> statistics;

    Gradient dk = {};
    Gradient dv = {};
    int stage = 0;
    const auto next_tile = [&] { return tile + 1 == tiles.end ? tiles.first : tile + 1; };
#pragma unroll 1
    for (; tiles_left > 0; --tiles_left) {
        ptx::cp_async_wait_group<0>();
        __syncthreads();
        if (tiles_left > 1) {
            load_q(stage ^ 1, q_head + (tile + 1 == tiles.end), next_tile());
            if (DO_STAGES == 2) {
                load_do(stage ^ 1, q_head + (tile + 1 == tiles.end), next_tile());
            }
        }
        const unsigned q_smem = smem_base + Q_OFFSET + stage * STREAM_BYTES;
        const unsigned do_smem = smem_base + DO_OFFSET + (DO_STAGES == 2 ? stage : 0) * STREAM_BYTES;
        const Place at;
        statistics.columns = statistics_smem + stage * 2 * STREAM + 2 * (at.lane % 4);
        if (ALIBI_SLOPES) {
            scores.slope = tensors.alibi_slopes[q_head % tensors.heads];
        }
        if (ATTN_MASK) {
            scores.mask = mask_of_head(tensors, q_head);
        }
        // A tile of keys that ends behind the sequence has zeros there, which no query may see.
        const Span queries{tile * STREAM, min((tile + 1) * STREAM, entry.queries)};
        const bool plain = !ATTN_MASK && entry.all_seen(queries, Span{first_key, first_key + BLOCK});
#pragma unroll 1
        for (int step = 0; step < QUERY_STEPS; ++step) {
            const Place at;
            const int first_row = (at.part() * QUERY_STEPS + step) * WARP_QUERIES;
            Weights p;
            Weights ds;
            {
                Scores s;
                Scores dp;
                const unsigned part_smem = first_row * (HEAD_DIM * 2) + col_block_offset<HEAD_DIM>(at.lane);
                multiply_own(s, own_k, q_smem + part_smem);
                multiply_own(dp, own_v, do_smem + part_smem);
                Statistics<true> part = statistics;
                part.columns += first_row;
                const int key = first_key + at.key() + at.lane / 4;
                const int query = tile * STREAM + first_row + 2 * (at.lane % 4);
#pragma unroll
                for (int block = 0; block < KEY_BLOCKS; ++block) {
                    if (plain) {
                        weigh_tile<true, false>(p[block], ds[block], s[block], dp[block], scores, part,
                                                key + 16 * block, query);
                    } else {
                        weigh_tile<true, true>(p[block], ds[block], s[block], dp[block], scores, part,
                                               key + 16 * block, query);
                    }
                }
            }
            const Place storing;
            store_weights(smem_base + DS_OFFSET, ds, storing.key(), first_row, storing.lane);
            if constexpr (SHARED_WEIGHTS) {
                store_weights(smem_base + P_OFFSET, p, storing.key(), first_row, storing.lane);
            } else {
                const unsigned rows_smem = first_row * (HEAD_DIM * 2) + row_block_offset<HEAD_DIM>(storing.lane);
                add_gradient(dv, p, do_smem + rows_smem);
                add_gradient(dk, ds, q_smem + rows_smem);
            }
        }
        if constexpr (SHARED_WEIGHTS) {
            const Place adding;
            ptx::bar_sync(1 + adding.warp / QUERY_WARPS, 32 * QUERY_WARPS);  // the warps of these keys have stored
            const unsigned rows_smem = row_block_offset<HEAD_DIM>(adding.lane);
            const int first_columns = adding.part() * (WARP_COLUMNS / 16);
            const unsigned weights_smem = smem_base + adding.key() * (STREAM * 2) + row_block_offset<STREAM>(adding.lane);
            add_gradient(dv, WeightsInShared{weights_smem + P_OFFSET}, do_smem + rows_smem, first_columns);
            add_gradient(dk, WeightsInShared{weights_smem + DS_OFFSET}, q_smem + rows_smem, first_columns);
        }
        __syncthreads();
        if (DO_STAGES == 1 && tiles_left > 1) {
            load_do(stage ^ 1, q_head + (tile + 1 == tiles.end), next_tile());
        }
        ptx::cp_async_commit_group();
        keep_statistic(stage ^ 1);
        QueryPart dq = {};
        const Place adding;
        QueryGradient(smem_base + DS_OFFSET, smem_base, adding.warp, adding.lane).add_products(dq);
        const long long sum = rows.sum_tile(q_head, tile);
        if (DETERMINISTIC) {
            const Span keys = seen.of_queries(tile);
            wait_for_rank(semaphores + sum, key_tile - keys.first);
            add_to_sum(sums + sum * DQ_TILE, dq, adding.warp, adding.lane);
            pass_on(semaphores + sum, key_tile - keys.first, key_tile + 1 == keys.end);
        } else {
            add_to_sum(sums + sum * DQ_TILE, dq, adding.warp, adding.lane);
        }
        q_head += tile + 1 == tiles.end;
        tile = next_tile();
        stage ^= 1;
    }

    if (!DETERMINISTIC) {  // the order of the sums has a barrier behind the last use of K
        __syncthreads();  // the results overwrite K, which other warps may still read
    }
    const Place done;
    const int rows_left = rows.kv_rows - first_key - done.key();  // past the length, too: those rows are zeros
    const unsigned warp_smem = smem_base + done.warp * (16 * WARP_COLUMNS * 2);
    const long long out_offset = own_offset + static_cast<long long>(done.key()) * own_pitch;
    store_gradient(tensors.dk + out_offset, rows_left, own_pitch, dk, tensors.scale, done.part(), warp_smem, done.lane);
    store_gradient(tensors.dv + out_offset, rows_left, own_pitch, dv, 1.0f, done.part(), warp_smem, done.lane);
}
