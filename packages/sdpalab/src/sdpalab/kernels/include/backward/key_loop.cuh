// The main loop of a CTA that owns a tile of keys and computes its part of all three gradients, 5 products a tile.
//
//    S^T = K Q^T, dP^T = V dO^T     P^T, dS^T stay in registers as left operands     dV += P^T dO, dK += dS^T Q
//    dS^T through shared memory     dQ = dS K by all warps, added to its sum in global memory
//
// Two barriers a tile of queries. The first: its Q and dO have arrived for all warps, and all have left the stage which
// the copies of the next overwrite. The second: dS^T is complete, and all warps have left dO, so that with one stage of
// dO its next tile is copied behind the products of dQ.
#pragma once

#include "backward/query_gradient.cuh"
#include "backward/sum_order.cuh"
#include "backward/tiles_seen.cuh"
#include "tile/panels.cuh"

constexpr int Q_OFFSET = 2 * OWN_BYTES;  // behind K and V
constexpr int DO_OFFSET = Q_OFFSET + 2 * STREAM_BYTES;
constexpr int DS_OFFSET = DO_OFFSET + DO_STAGES * STREAM_BYTES;
constexpr int STATISTICS_OFFSET = DS_OFFSET + DS_BYTES;

static_assert(DO_STAGES == 1 || DO_STAGES == 2, "DO_STAGES is 1 or 2");
static_assert(DS_BYTES % 1024 == 0, "the swizzle repeats every 8 rows of 128 bytes");

// This thread's warp and lane, read again at each place: values derived from them then occupy no registers between.
struct Place {
    int warp;
    int lane;

    __device__ __forceinline__ Place() : warp(ptx::tid_x() / 32), lane(ptx::tid_x() % 32) {}
};

// kv_head: over all batches. sums: [batch * heads][tiles of queries][DQ_TILE], zeros at first. semaphores: one a tile
// of queries in the order of sums, read with DETERMINISTIC alone. smem: STATISTICS_OFFSET + 2 STATISTICS_BYTES, aligned
// to 1,024.
__device__ __forceinline__ void key_tile_gradients(const Tensors& tensors, float* sums, unsigned* semaphores,
                                                   unsigned kv_head, int key_tile, unsigned char* smem) {
    const unsigned smem_base = ptx::smem_address(smem);
    float* const statistics_smem = reinterpret_cast<float*>(smem + STATISTICS_OFFSET);  // [2][2][STREAM]

    const int group = tensors.group;
    const unsigned first_q_head = kv_head * group;
    const Entry entry(first_q_head / tensors.heads, tensors.kv_lengths, tensors.q_lengths, tensors.seq_q,
                      tensors.seq_kv);
    const int first_key = key_tile * BLOCK;
    const TilesSeen seen{entry};
    const Span tiles = seen.of_keys(first_key);
    const int all_q_tiles = ceil_div(tensors.seq_q, STREAM);

    const PanelCopy<BLOCK, HEAD_DIM, NUM_THREADS> own_copy(ptx::tid_x());
    const long long own_offset = row_offset(kv_head, tensors.seq_kv, first_key);
    own_copy.start(smem_base, tensors.k + own_offset, entry.keys - first_key);
    own_copy.start(smem_base + OWN_BYTES, tensors.v + own_offset, entry.keys - first_key);
    ptx::cp_async_commit_group();

    // The next tile to load: Q and the statistics first, dO with them or, with one stage, behind the second barrier.
    int left = (tiles.end - tiles.first) * group;  // tiles not yet loaded
    int load_tile = tiles.first;
    unsigned load_head = first_q_head;
    float statistic = 0.0f;
    const auto load_do = [&](int stage) {
        if (left > 0) {
            const PanelCopy<STREAM, HEAD_DIM, NUM_THREADS> stream_copy(ptx::tid_x());
            const int row = load_tile * STREAM;
            stream_copy.start(smem_base + DO_OFFSET + (DO_STAGES == 2 ? stage : 0) * STREAM_BYTES,
                              tensors.dout + row_offset(load_head, tensors.seq_q, row), entry.queries - row);
        }
        ptx::cp_async_commit_group();
    };
    const auto load_q = [&](int stage) {
        if (left > 0) {
            const int thread = ptx::tid_x();
            const PanelCopy<STREAM, HEAD_DIM, NUM_THREADS> stream_copy(thread);
            const int row = load_tile * STREAM;
            stream_copy.start(smem_base + Q_OFFSET + stage * STREAM_BYTES,
                              tensors.q + row_offset(load_head, tensors.seq_q, row), entry.queries - row);
            if (thread < 2 * STREAM) {
                const bool valid = row + thread % STREAM < entry.queries;
                const float* const source = thread < STREAM ? tensors.lse : tensors.delta;
                const float loaded =
                    valid ? source[static_cast<long long>(load_head) * tensors.seq_q + row + thread % STREAM] : 0.0f;
                statistic = thread < STREAM ? minus_lse_of(loaded, valid) : loaded;
            }
        }
    };
    const auto next_load = [&] {
        load_head += load_tile + 1 == tiles.end;
        load_tile = load_tile + 1 == tiles.end ? tiles.first : load_tile + 1;
        --left;
    };
    const auto keep_statistic = [&](int stage) {
        const int thread = ptx::tid_x();
        if (thread < 2 * STREAM) {
            statistics_smem[stage * 2 * STREAM + thread] = statistic;
        }
    };
    int tiles_left = left;
    load_q(0);
    load_do(0);
    next_load();
    keep_statistic(0);

    ptx::cp_async_wait_group<1>();
    __syncthreads();
    const Place at;
    const unsigned own_smem = smem_base + at.warp * ROW_BLOCK_BYTES + row_block_offset<HEAD_DIM>(at.lane);
    const Own own_k(own_smem);
    const Own own_v(own_smem + OWN_BYTES);
    HeadScores scores{entry, tensors.scale, 0.0f, nullptr, tensors.seq_kv};
    Statistics<true> statistics;

    float dk[HEAD_DIM / 8][4] = {};
    float dv[HEAD_DIM / 8][4] = {};
    int tile = tiles.first;
    unsigned q_head = first_q_head;
    int stage = 0;
#pragma unroll 1
    for (; tiles_left > 0; --tiles_left) {
        ptx::cp_async_wait_group<0>();
        __syncthreads();
        load_q(stage ^ 1);
        if (DO_STAGES == 2) {
            load_do(stage ^ 1);
            next_load();
        }
        const unsigned q_smem = smem_base + Q_OFFSET + stage * STREAM_BYTES;
        const unsigned do_smem = smem_base + DO_OFFSET + (DO_STAGES == 2 ? stage : 0) * STREAM_BYTES;
        unsigned p[STREAM / 16][4];
        unsigned ds[STREAM / 16][4];
        {
            float s[STREAM / 8][4];
            float dp[STREAM / 8][4];
            const Place at;
            multiply_own(s, own_k, q_smem + col_block_offset<HEAD_DIM>(at.lane));
            multiply_own(dp, own_v, do_smem + col_block_offset<HEAD_DIM>(at.lane));
            if (ALIBI_SLOPES) {
                scores.slope = tensors.alibi_slopes[q_head % tensors.heads];
            }
            if (ATTN_MASK) {
                scores.mask = mask_of_head(tensors, q_head);
            }
            const int key = first_key + at.warp * WARP_M + at.lane / 4;
            statistics.columns = statistics_smem + stage * 2 * STREAM + 2 * (at.lane % 4);
            // A tile of keys that ends behind the sequence has zeros there, which no query may see.
            const Span queries{tile * STREAM, min((tile + 1) * STREAM, entry.queries)};
            const int query = tile * STREAM + 2 * (at.lane % 4);
            if (!ATTN_MASK && entry.all_seen(queries, Span{first_key, first_key + BLOCK})) {
                weigh_tile<true, false>(p, ds, s, dp, scores, statistics, key, query);
            } else {
                weigh_tile<true, true>(p, ds, s, dp, scores, statistics, key, query);
            }
        }
        const Place storing;
        store_ds(smem_base + DS_OFFSET, ds, storing.warp, storing.lane);
        add_gradient(dv, p, do_smem + row_block_offset<HEAD_DIM>(storing.lane));
        add_gradient(dk, ds, q_smem + row_block_offset<HEAD_DIM>(storing.lane));
        __syncthreads();
        if (DO_STAGES == 1) {
            load_do(stage ^ 1);
            next_load();
        }
        keep_statistic(stage ^ 1);
        float dq[DQ_BLOCKS][4] = {};
        const Place adding;
        QueryGradient(smem_base + DS_OFFSET, smem_base, adding.warp, adding.lane).add_products(dq);
        const long long sum = static_cast<long long>(q_head) * all_q_tiles + tile;
        if (DETERMINISTIC) {
            const Span keys = seen.of_queries(tile);
            wait_for_rank(semaphores + sum, key_tile - keys.first);
            add_to_sum(sums + sum * DQ_TILE, dq, adding.warp, adding.lane);
            pass_on(semaphores + sum, key_tile - keys.first, key_tile + 1 == keys.end);
        } else {
            add_to_sum(sums + sum * DQ_TILE, dq, adding.warp, adding.lane);
        }
        q_head += tile + 1 == tiles.end;
        tile = tile + 1 == tiles.end ? tiles.first : tile + 1;
        stage ^= 1;
    }

    if (!DETERMINISTIC) {  // the order of the sums has a barrier behind the last use of K
        __syncthreads();  // the results overwrite K, which other warps may still read
    }
    const Place done;
    const int warp_row = done.warp * WARP_M;
    const int rows_left = tensors.seq_kv - first_key - warp_row;  // past the length, too: those rows are zeros
    const unsigned warp_smem = smem_base + done.warp * ROW_BLOCK_BYTES;
    const long long out_offset = own_offset + warp_row * HEAD_DIM;
    store_scaled_rows<HEAD_DIM>(tensors.dk + out_offset, rows_left, dk, tensors.scale, warp_smem, done.lane);
    __syncwarp();  // dV overwrites the rows of dK
    store_scaled_rows<HEAD_DIM>(tensors.dv + out_offset, rows_left, dv, 1.0f, warp_smem, done.lane);
}
