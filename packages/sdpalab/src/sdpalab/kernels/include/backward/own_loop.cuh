// The main loop of a CTA that owns a tile of keys (dK, dV) or of queries (dQ): backward/own_tile.cuh has its products.
//
// A CTA with owned keys goes through the queries of all heads of its group, so that dK and dV are summed in float32
// registers and rounded once. cp.async fills a stage while the other is used; one barrier per tile means both that the
// tile has arrived for all warps and that all warps have left the stage which the next copy overwrites.
#pragma once

#include "backward/own_tile.cuh"
#include "tile/ceil_div.cuh"

constexpr int NUM_STAGES = 2;
constexpr int STAGE_BYTES = 2 * STREAM_BYTES;
// Owned tiles whose fragments stay in registers pass through the last stage.
constexpr int OWN_OFFSET = (OWN_IN_REGISTERS ? NUM_STAGES - 1 : NUM_STAGES) * STAGE_BYTES;
constexpr int TILES_BYTES =
    OWN_OFFSET + 2 * OWN_BYTES > NUM_STAGES * STAGE_BYTES ? OWN_OFFSET + 2 * OWN_BYTES : NUM_STAGES * STAGE_BYTES;
constexpr int SMEM_BYTES = TILES_BYTES + NUM_STAGES * STATISTICS_BYTES;

// The streamed tiles in which the owned rows see, or are seen by, a row; none if the span is empty.
template <bool OWNS_KEYS>
__device__ __forceinline__ Span streamed_tiles(const Entry& entry, int first_row) {
    const int end_row = min(first_row + BLOCK, OWNS_KEYS ? entry.keys : entry.queries);
    if (first_row >= end_row) {
        return Span{0, 0};
    }
    const Span rows =
        OWNS_KEYS ? entry.queries_of(first_row, end_row - 1) : entry.keys_of(first_row, end_row - 1);
    return rows.first < rows.end ? Span{rows.first / STREAM, ceil_div(rows.end, STREAM)} : Span{0, 0};
}

// head: the CTA's K/V head or query head, over all batches. smem: SMEM_BYTES, a multiple of 1,024.
template <bool OWNS_KEYS>
__device__ __forceinline__ void own_tile_gradients(const Tensors& tensors, unsigned head, int own_tile,
                                                   unsigned char* smem) {
    const unsigned smem_base = ptx::smem_address(smem);
    float* const statistics_smem = reinterpret_cast<float*>(smem + TILES_BYTES);  // [NUM_STAGES][2][STREAM]
    const int thread = threadIdx.x;
    const int warp = thread / 32;
    const int lane = thread % 32;

    const int group = tensors.group;
    const int own_seq = OWNS_KEYS ? tensors.seq_kv : tensors.seq_q;
    const int stream_seq = OWNS_KEYS ? tensors.seq_q : tensors.seq_kv;
    const unsigned first_q_head = OWNS_KEYS ? head * group : head;
    const unsigned first_stream_head = OWNS_KEYS ? first_q_head : head / group;
    const Entry entry(first_q_head / tensors.heads, tensors.kv_lengths, tensors.q_lengths, tensors.seq_q,
                      tensors.seq_kv);
    const int own_rows = OWNS_KEYS ? entry.keys : entry.queries;
    const int stream_rows = OWNS_KEYS ? entry.queries : entry.keys;
    const int first_row = own_tile * BLOCK;
    const Span tiles = streamed_tiles<OWNS_KEYS>(entry, first_row);
    int left = (tiles.end - tiles.first) * (OWNS_KEYS ? group : 1);  // streamed tiles that are not yet loaded

    const PanelCopy<BLOCK, HEAD_DIM, NUM_THREADS> own_copy(thread);
    const PanelCopy<STREAM, HEAD_DIM, NUM_THREADS> stream_copy(thread);
    const long long own_offset = row_offset(head, own_seq, first_row);
    own_copy.start(smem_base + OWN_OFFSET, (OWNS_KEYS ? tensors.k : tensors.q) + own_offset, own_rows - first_row);
    own_copy.start(smem_base + OWN_OFFSET + OWN_BYTES, (OWNS_KEYS ? tensors.v : tensors.dout) + own_offset,
                   own_rows - first_row);
    ptx::cp_async_commit_group();

    // The next streamed tile to load, and its head. A thread also loads one statistic of its rows: -LSE or delta.
    int load_tile = tiles.first;
    unsigned load_head = first_stream_head;
    float statistic = 0.0f;
    const auto load = [&](int stage) {
        if (left > 0) {
            const int row = load_tile * STREAM;
            const long long offset = row_offset(load_head, stream_seq, row);
            const unsigned stage_smem = smem_base + stage * STAGE_BYTES;
            stream_copy.start(stage_smem, (OWNS_KEYS ? tensors.q : tensors.k) + offset, stream_rows - row);
            stream_copy.start(stage_smem + STREAM_BYTES, (OWNS_KEYS ? tensors.dout : tensors.v) + offset,
                              stream_rows - row);
            if (OWNS_KEYS && thread < 2 * STREAM) {
                const bool valid = row + thread % STREAM < stream_rows;
                const float* const source = thread < STREAM ? tensors.lse : tensors.delta;
                const float loaded =
                    valid ? source[static_cast<long long>(load_head) * stream_seq + row + thread % STREAM] : 0.0f;
                statistic = thread < STREAM ? minus_lse_of(loaded, valid) : loaded;
            }
            load_head += load_tile + 1 == tiles.end;
            load_tile = load_tile + 1 == tiles.end ? tiles.first : load_tile + 1;
        }
        --left;
        ptx::cp_async_commit_group();  // an empty group, too: the newest group is then always the tile ahead
    };
    const auto keep_statistic = [&](int stage) {
        if (OWNS_KEYS && thread < 2 * STREAM) {
            statistics_smem[stage * 2 * STREAM + thread] = statistic;
        }
    };
    int tiles_left = left;
    load(0);
    keep_statistic(0);

    const int row = warp * WARP_M + lane / 4;
    Statistics<OWNS_KEYS> statistics;
    if (!OWNS_KEYS) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const bool valid = first_row + row + 8 * half < own_rows;
            const long long at = static_cast<long long>(head) * own_seq + first_row + row + 8 * half;
            statistics.minus_lse[half] = minus_lse_of(valid ? tensors.lse[at] : 0.0f, valid);
            statistics.delta[half] = valid ? tensors.delta[at] : 0.0f;
        }
    }
    HeadScores scores{entry, tensors.scale, 0.0f, nullptr, tensors.seq_kv};

    ptx::cp_async_wait_group<1>();
    __syncthreads();
    const unsigned own_smem = smem_base + OWN_OFFSET + warp * ROW_BLOCK_BYTES + row_block_offset<HEAD_DIM>(lane);
    const Own own0(own_smem);
    const Own own1(own_smem + OWN_BYTES);

    float grad0[HEAD_DIM / 8][4] = {};
    float grad1[HEAD_DIM / 8][4] = {};
    int tile = tiles.first;
    unsigned q_head = first_q_head;
    int stage = 0;
#pragma unroll 1
    for (; tiles_left > 0; --tiles_left) {
        ptx::cp_async_wait_group<0>();
        __syncthreads();
        load(stage ^ 1);
        const unsigned col_smem = smem_base + stage * STAGE_BYTES + col_block_offset<HEAD_DIM>(lane);
        float s[STREAM / 8][4];
        float dp[STREAM / 8][4];
        multiply_own(s, own0, col_smem);
        multiply_own(dp, own1, col_smem + STREAM_BYTES);

        if (ALIBI_SLOPES) {
            scores.slope = tensors.alibi_slopes[q_head % tensors.heads];
        }
        if (ATTN_MASK) {
            scores.mask = mask_of_head(tensors, q_head);
        }
        statistics.columns = statistics_smem + stage * 2 * STREAM + 2 * (lane % 4);
        // A tile of keys that ends behind the sequence has zeros there, which no query may see.
        const int first_of_stream = tile * STREAM;
        const Span own{first_row, OWNS_KEYS ? first_row + BLOCK : min(first_row + BLOCK, own_rows)};
        const Span streamed{first_of_stream,
                            OWNS_KEYS ? min(first_of_stream + STREAM, stream_rows) : first_of_stream + STREAM};
        const bool plain = !ATTN_MASK && entry.all_seen(OWNS_KEYS ? streamed : own, OWNS_KEYS ? own : streamed);
        unsigned p[STREAM / 16][4];
        unsigned ds[STREAM / 16][4];
        const int column = first_of_stream + 2 * (lane % 4);
        if (plain) {
            weigh_tile<OWNS_KEYS, false>(p, ds, s, dp, scores, statistics, first_row + row, column);
        } else {
            weigh_tile<OWNS_KEYS, true>(p, ds, s, dp, scores, statistics, first_row + row, column);
        }

        const unsigned row_smem = smem_base + stage * STAGE_BYTES + row_block_offset<HEAD_DIM>(lane);
        if (OWNS_KEYS) {
            add_gradient(grad1, p, row_smem + STREAM_BYTES);
        }
        add_gradient(grad0, ds, row_smem);
        keep_statistic(stage ^ 1);
        q_head += OWNS_KEYS && tile + 1 == tiles.end;
        tile = tile + 1 == tiles.end ? tiles.first : tile + 1;
        stage ^= 1;
    }

    __syncthreads();  // the results overwrite shared memory that other warps may still read
    const int warp_row = warp * WARP_M;
    const int rows_left = own_seq - first_row - warp_row;  // past the length, too: those rows are zeros
    const unsigned warp_smem = smem_base + OWN_OFFSET + warp * ROW_BLOCK_BYTES;
    const long long out_offset = own_offset + warp_row * HEAD_DIM;
    store_scaled_rows<HEAD_DIM>((OWNS_KEYS ? tensors.dk : tensors.dq) + out_offset, rows_left, grad0, tensors.scale,
                                warp_smem, lane);
    if (OWNS_KEYS) {
        __syncwarp();  // dV overwrites the rows of dK
        store_scaled_rows<HEAD_DIM>(tensors.dv + out_offset, rows_left, grad1, 1.0f, warp_smem, lane);
    }
}
