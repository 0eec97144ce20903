// The main loop of a CTA that owns a tile of keys, on TMA and wgmma (sm_90a).
//
//    warp 0            loads K and V, then Q with its statistics and dO of one tile of queries after the other
//    warp 1            adds the parts of dQ to their sums in global memory (backward/dq_sums.cuh)
//    each warpgroup    from the second on: 64 keys, whose dK and dV stay in its registers
//
// K and V stay in shared memory, where wgmma reads them. There are two buffers of dS, so that one barrier of the
// consumers a tile suffices: a consumer that passes it has waited for its product of dQ of the tile before.
#pragma once

#include "backward/dq_sums.cuh"
#include "backward/tensors.cuh"

constexpr int NUM_THREADS = WARPGROUP * (1 + CONSUMERS);
constexpr int CONSUMER_THREADS = WARPGROUP * CONSUMERS;
constexpr int STATISTICS_BYTES = 2 * STREAM * static_cast<int>(sizeof(float));  // -LSE, then delta
constexpr int DS_STAGES = CONSUMERS > 1 ? 2 : 1;
using Budget = Registers<CONSUMERS>;
using StreamPosition = RingPosition<NUM_STAGES>;

static_assert(NUM_STAGES == 2 || NUM_STAGES == 3, "NUM_STAGES is 2 or 3: the scores of the next tile are ahead");

struct SharedStorage {
    unsigned char k[CONSUMERS][OWN_BYTES];
    unsigned char v[CONSUMERS][OWN_BYTES];
    unsigned char q[NUM_STAGES][STREAM_BYTES];
    unsigned char dout[NUM_STAGES][STREAM_BYTES];
    unsigned char ds[DS_STAGES][DS_BYTES];
    float4 dq[CONSUMERS][DQ_PART / 4];
    float statistics[NUM_STAGES][2 * STREAM];
    QueryBarriers<CONSUMERS, NUM_STAGES> barriers;
    unsigned ticket;  // with DETERMINISTIC
};

// Maps of [heads, rows, HEAD_DIM] with boxes [1, STREAM, 64] for q and dout, and [1, 64, 64] for k, v, dk and dv; heads
// of all batches.
struct Maps {
    const TensorMap& q;
    const TensorMap& k;
    const TensorMap& v;
    const TensorMap& dout;
    const TensorMap& dk;
    const TensorMap& dv;
};

// Loads a tile from row `row` of a head on, panel by panel; columns past the last are zeros.
template <int PANEL_BYTES>
__device__ __forceinline__ void load_panels(const void* tile, const TensorMap& map, int row, unsigned head,
                                            unsigned full) {
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel) {
        ptx::cp_async_bulk_tensor_3d_load(ptx::smem_address(tile) + panel * PANEL_BYTES, map, panel * PANEL_COLUMNS, row,
                                          head, full);
    }
}

// Warp 0, one thread. statistics: as statistics_of_rows writes them; tiles: of queries, a head.
__device__ __forceinline__ void load_tiles(SharedStorage& smem, const Maps& maps, const float* statistics,
                                           QueryCursor at, unsigned kv_head, int first_key, int tiles) {
    if (at.left > 0) {
        const unsigned keys_full = ptx::smem_address(&smem.barriers.keys_full);
        ptx::mbarrier_arrive_expect_tx(keys_full, 2 * CONSUMERS * OWN_BYTES);
#pragma unroll
        for (int i = 0; i < CONSUMERS; ++i) {
            const int key = first_key + i * WARPGROUP_M;
            load_panels<OWN_PANEL_BYTES>(smem.k[i], maps.k, key, kv_head, keys_full);
            load_panels<OWN_PANEL_BYTES>(smem.v[i], maps.v, key, kv_head, keys_full);
        }
    }
    StreamPosition stage;
#pragma unroll 1
    for (; at.left > 0; at.advance(), stage.advance()) {
        const int row = at.tile * STREAM;
        const unsigned q_full = smem.barriers.expect(stage, Q, STREAM_BYTES + STATISTICS_BYTES);
        load_panels<STREAM_PANEL_BYTES>(smem.q[stage.stage], maps.q, row, at.head, q_full);
        const long long tile = static_cast<long long>(at.head) * tiles + at.tile;
        ptx::cp_async_bulk_load(ptx::smem_address(smem.statistics[stage.stage]), statistics + tile * (2 * STREAM),
                                STATISTICS_BYTES, q_full);
        const unsigned do_full = smem.barriers.expect(stage, DO, STREAM_BYTES);
        load_panels<STREAM_PANEL_BYTES>(smem.dout[stage.stage], maps.dout, row, at.head, do_full);
    }
}

// Stores factor * grad, [64 keys, HEAD_DIM], by TMA, through own_smem, a tile of K or V that nobody reads any more.
__device__ __forceinline__ void store_gradient(const TensorMap& map, const float (&grad)[HEAD_DIM / 2], float factor,
                                               unsigned own_smem, int first_key, unsigned kv_head, int consumer) {
    const int lane = threadIdx.x % 32;
    const unsigned lane_smem =
        own_smem + row_block_offset<PANEL_COLUMNS>(lane) + threadIdx.x % WARPGROUP / 32 * (16 * PANEL_ROW_BYTES);
    constexpr int BLOCKS = PANEL_COLUMNS / 16;
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        unsigned pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            pairs[i] = pack_pair(factor * grad[8 * d + 2 * i], factor * grad[8 * d + 2 * i + 1]);
        }
        ptx::stmatrix_x4(
            block_address<PANEL_COLUMNS>(lane_smem, 0, d % BLOCKS) + d / BLOCKS * OWN_PANEL_BYTES, pairs);
    }
    ptx::fence_proxy_async_shared_cta();
    ptx::bar_sync(ONE_CONSUMER + consumer, WARPGROUP);
    if (threadIdx.x % WARPGROUP == 0) {
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
            ptx::cp_async_bulk_tensor_3d_store(map, panel * PANEL_COLUMNS, first_key, kv_head,
                                               own_smem + panel * OWN_PANEL_BYTES);
        }
        ptx::cp_async_bulk_commit_group();
    }
}

// A consumer. first_key: of the CTA; kv_head: over all batches.
__device__ __forceinline__ void consume(SharedStorage& smem, const Maps& maps, const Tensors& tensors, QueryCursor at,
                                        const Entry& entry, unsigned kv_head, int first_key, int consumer) {
    const int thread = threadIdx.x % WARPGROUP;
    const int lane = thread % 32;
    const int warp = thread / 32;
    const int own_key = first_key + consumer * WARPGROUP_M;
    const unsigned k_smem = ptx::smem_address(smem.k[consumer]);
    const unsigned v_smem = ptx::smem_address(smem.v[consumer]);
    float dk[HEAD_DIM / 2] = {};
    float dv[HEAD_DIM / 2] = {};
    HeadScores scores{entry, tensors.scale, 0.0f, nullptr, tensors.seq_kv};

    if (at.left > 0) {
        mbarrier_wait(smem.barriers.keys_full, 0);
        if (KV_LENGTHS && entry.keys - own_key < WARPGROUP_M) {
            clear_rows<WARPGROUP_M, WARPGROUP>(smem.k[consumer], entry.keys - own_key, thread);
            clear_rows<WARPGROUP_M, WARPGROUP>(smem.v[consumer], entry.keys - own_key, thread);
            ptx::fence_proxy_async_shared_cta();
            ptx::bar_sync(ONE_CONSUMER + consumer, WARPGROUP);
        }
    }
    // Waits for a tile of Q or dO, and clears its rows past the length.
    const auto wait_for = [&](const StreamPosition& stage, Streamed which, int tile) {
        smem.barriers.wait_full(stage, which);
        const int valid = entry.queries - tile * STREAM;
        if (Q_LENGTHS && valid < STREAM) {
            clear_rows<STREAM, CONSUMER_THREADS>(which == Q ? smem.q[stage.stage] : smem.dout[stage.stage], valid,
                                                 threadIdx.x - WARPGROUP);
            ptx::fence_proxy_async_shared_cta();
            ptx::bar_sync(ALL_CONSUMERS, CONSUMER_THREADS);
        }
    };
    StreamPosition stage;
    int ds_stage = 0;
    unsigned ds[PART / 4];
    bool first_tile = true;
#pragma unroll 1
    for (; at.left > 0; at.advance(), stage.advance(), first_tile = false) {
        const int first_query = at.tile * STREAM;
        const unsigned q_smem = ptx::smem_address(smem.q[stage.stage]);
        const unsigned do_smem = ptx::smem_address(smem.dout[stage.stage]);
        const unsigned ds_smem = ptx::smem_address(smem.ds[ds_stage]);
        if (ALIBI_SLOPES) {
            scores.slope = tensors.alibi_slopes[at.head % tensors.heads];
        }
        if (ATTN_MASK) {
            scores.mask = mask_of_head(tensors, at.head);
        }
        const int key = own_key + warp * WARP_M + lane / 4;
        const Span queries{first_query, min(first_query + STREAM, entry.queries)};
        const bool all_seen = !ATTN_MASK && entry.all_seen(queries, Span{own_key, own_key + WARPGROUP_M});
        wait_for(stage, Q, at.tile);
        wait_for(stage, DO, at.tile);
        unsigned p[PART / 4];
#pragma unroll
        for (int first = 0; first < STREAM; first += PART) {
            if (ATTN_MASK) {
                hold(scores.seq_kv);  // distances between the rows of the mask
            }
            float s[PART / 2];
            float dp[PART / 2];
            hold(dk);
            hold(dv);
            ptx::wgmma_fence();
            issue_scores(s, k_smem, q_smem + first * PANEL_ROW_BYTES);
            issue_scores(dp, v_smem, do_smem + first * PANEL_ROW_BYTES);
            ptx::wgmma_wait_group<1>();  // for S, and dK of the part before
            hold(s);
            hold(dk);
            hold(ds);
            if (first == 0 && !first_tile && thread == 0) {
                smem.barriers.release(stage.before(), Q);
            }
            const int column = first + 2 * (lane % 4);
            const float* const statistics = smem.statistics[stage.stage] + column;
            if (all_seen) {
                weigh_pairs<false>(p, s, scores, statistics, key, first_query + column);
            } else {
                weigh_pairs<true>(p, s, scores, statistics, key, first_query + column);
            }
            if (EARLY_DV) {
                hold(p);
                ptx::wgmma_fence();
                issue_gradient(dv, p, do_smem + first * PANEL_ROW_BYTES);
                ptx::wgmma_wait_group<1>();
            } else {
                ptx::wgmma_wait_group<0>();
            }
            hold(dp);
            score_gradients(p, ds, s, dp, statistics);
            if (DS_STAGES == 1 && first == 0) {
                ptx::bar_sync(ALL_CONSUMERS, CONSUMER_THREADS);  // the product of dQ of the tile before is complete
            }
            store_ds(ds_smem, ds, first, consumer * 4 + warp, lane);
            hold(ds);
            if (!EARLY_DV) {
                hold(p);
            }
            if (first + PART < STREAM) {
                ptx::wgmma_fence();
                issue_gradient(dk, ds, q_smem + first * PANEL_ROW_BYTES);
                continue;
            }
            float dq[PANEL_COLUMNS / 2];
            ptx::fence_proxy_async_shared_cta();
            ptx::bar_sync(ALL_CONSUMERS, CONSUMER_THREADS);
            ptx::wgmma_fence();
            issue_dq(dq, ds_smem, ptx::smem_address(smem.k), consumer);
            if (!EARLY_DV) {
                issue_gradient(dv, p, do_smem + first * PANEL_ROW_BYTES);
            }
            issue_gradient(dk, ds, q_smem + first * PANEL_ROW_BYTES);
            ptx::wgmma_wait_group<EARLY_DV ? 1 : 2>();  // for dQ
            hold(dq);
            hand_over_dq(smem.dq[consumer], dq, consumer);
            ptx::wgmma_wait_group<1>();  // for dV
            hold(dv);
            hold(p);
            if (thread == 0) {
                smem.barriers.release(stage, DO);
            }
        }
        ds_stage = ds_stage + 1 == DS_STAGES ? 0 : ds_stage + 1;
    }
    ptx::wgmma_wait_group<0>();
    hold(dk);

    // V is this consumer's alone; K is part of every consumer's dQ.
    store_gradient(maps.dv, dv, 1.0f, v_smem, own_key, kv_head, consumer);
    ptx::bar_sync(ALL_CONSUMERS, CONSUMER_THREADS);
    store_gradient(maps.dk, dk, tensors.scale, k_smem, own_key, kv_head, consumer);
    if (thread == 0) {
        ptx::cp_async_bulk_wait_group_read<0>();  // the block's shared memory lasts until then
    }
}

// The whole kernel. kv_head: over all batches; sums, semaphores: as in backward/dq_sums.cuh.
__device__ __forceinline__ void key_tile_gradients(SharedStorage& smem, const Maps& maps, const Tensors& tensors,
                                                   const float* statistics, float* sums, unsigned* semaphores,
                                                   unsigned kv_head, int key_tile) {
    const unsigned first_head = kv_head * tensors.group;
    const Entry entry(first_head / tensors.heads, tensors.kv_lengths, tensors.q_lengths, tensors.seq_q, tensors.seq_kv);
    const int first_key = key_tile * BLOCK;
    const TilesSeen seen{entry};
    const QueryCursor at(seen.of_keys(first_key), first_head, tensors.group);
    const int tiles = ceil_div(tensors.seq_q, STREAM);
    if (threadIdx.x < WARPGROUP) {
        ptx::setmaxnreg_dec<Budget::PRODUCER>();
        if (threadIdx.x == 0) {
            load_tiles(smem, maps, statistics, at, kv_head, first_key, tiles);
        } else if (threadIdx.x / 32 == 1) {
            add_up_dq(sums, semaphores, at, seen, key_tile, tiles, ptx::smem_address(smem.dq), threadIdx.x % 32);
        }
    } else {
        ptx::setmaxnreg_inc<Budget::CONSUMER>();
        const int consumer = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0) - 1;  // uniform to ptxas
        consume(smem, maps, tensors, at, entry, kv_head, first_key, consumer);
    }
}
