// A consumer of the main loop of backward/warpgroup_loop.cuh: a warpgroup that owns 64 keys.
//
//    S^T = K Q^T, dP^T = V dO^T     P beside the product of dP     dS to shared memory     dV += P dO, dK += dS Q
//    dQ = dS K when all consumers have stored dS
//
// A consumer issues dV and dK before it waits for the others, and no barrier stops it: the consumers drift apart by some
// products, and the weights of one overlap the products of another. There are two buffers of dS. A consumer that has
// found one full may write the other: all consumers have waited for their last product with it before that.
//
// NOTES: ptxas serialises products whose registers it cannot follow. No product is in flight between two tiles, and
// hold() keeps copies of registers ahead of the fences.
#pragma once

#include "backward/dq_sums.cuh"
#include "backward/tensors.cuh"

constexpr int NUM_THREADS = WARPGROUP * (1 + CONSUMERS);
constexpr int CONSUMER_THREADS = WARPGROUP * CONSUMERS;
constexpr int STATISTICS_BYTES = 2 * STREAM * static_cast<int>(sizeof(float));  // -LSE, then delta
using Budget = Registers<CONSUMERS>;
using StreamPosition = RingPosition<NUM_STAGES>;
using DsPosition = RingPosition<DS_STAGES>;

static_assert(NUM_STAGES >= 1 && NUM_STAGES <= 3, "NUM_STAGES is 1, 2 or 3");

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

class Consumer {
public:
    // first_key: of the CTA; number: of the consumer.
    __device__ __forceinline__ Consumer(SharedStorage& smem, const Tensors& tensors, const QueryCursor& first,
                                        const Entry& entry, int first_key, int number)
        : smem(smem),
          tensors(tensors),
          at(first),
          own_key(first_key + number * WARPGROUP_M),
          number(number),
          thread(threadIdx.x % WARPGROUP),
          k_smem(ptx::smem_address(smem.k[number])),
          v_smem(ptx::smem_address(smem.v[number])),
          scores{entry, tensors.scale, 0.0f, nullptr, tensors.seq_kv} {}

    __device__ __forceinline__ void run() {
        if (at.left > 0) {
            wait_for_keys();
        }
#pragma unroll 1
        for (; at.left > 0; at.advance(), stage.advance(), ds_stage.advance()) {
            if (ALIBI_SLOPES) {
                scores.slope = tensors.alibi_slopes[at.head % tensors.heads];
            }
            if (ATTN_MASK) {
                scores.mask = mask_of_head(tensors, at.head);
            }
            wait_for(Q);
            wait_for(DO);
            add_part<0>();
            float dq[PANEL_COLUMNS / 2];
            issue_dq_of_tile(dq);
            ptx::wgmma_wait_group<0>();
            hold(dk);
            hold(dv);
            hold(p);
            hold(ds);
            hold(dq);
            if (thread == 0) {
                smem.barriers.release(stage, Q);
                smem.barriers.release(stage, DO);
            }
            hand_over_dq(smem.dq[number], dq, number);
        }
    }

    // Writes dV and dK; zeros if no query sees a key. V is this consumer's alone; K is part of every consumer's dQ.
    __device__ __forceinline__ void store(const Maps& maps, unsigned kv_head) {
        store_gradient(maps.dv, dv, 1.0f, v_smem, own_key, kv_head, number);
        ptx::bar_sync(ALL_CONSUMERS, CONSUMER_THREADS);
        store_gradient(maps.dk, dk, tensors.scale, k_smem, own_key, kv_head, number);
        if (thread == 0) {
            ptx::cp_async_bulk_wait_group_read<0>();  // the block's shared memory lasts until then
        }
    }

private:
    SharedStorage& smem;
    const Tensors& tensors;
    QueryCursor at;
    StreamPosition stage;
    DsPosition ds_stage;
    int own_key;
    int number;
    int thread;
    unsigned k_smem;
    unsigned v_smem;
    HeadScores scores;
    float dk[HEAD_DIM / 2] = {};
    float dv[HEAD_DIM / 2] = {};
    unsigned p[PART / 4];
    unsigned ds[PART / 4];

    __device__ __forceinline__ void wait_for_keys() {
        mbarrier_wait(smem.barriers.keys_full, 0);
        const int valid = scores.entry.keys - own_key;
        if (KV_LENGTHS && valid < WARPGROUP_M) {
            clear_rows<WARPGROUP_M, WARPGROUP>(smem.k[number], valid, thread);
            clear_rows<WARPGROUP_M, WARPGROUP>(smem.v[number], valid, thread);
            ptx::fence_proxy_async_shared_cta();
            ptx::bar_sync(ONE_CONSUMER + number, WARPGROUP);
        }
    }

    // Waits for this tile of Q or dO, and clears its rows past the length.
    __device__ __forceinline__ void wait_for(Streamed which) {
        smem.barriers.wait_full(stage, which);
        const int valid = scores.entry.queries - at.tile * STREAM;
        if (Q_LENGTHS && valid < STREAM) {
            clear_rows<STREAM, CONSUMER_THREADS>(which == Q ? smem.q[stage.stage] : smem.dout[stage.stage], valid,
                                                 threadIdx.x - WARPGROUP);
            ptx::fence_proxy_async_shared_cta();
            ptx::bar_sync(ALL_CONSUMERS, CONSUMER_THREADS);
        }
    }

    // Waits until all consumers have stored dS, and issues this one's part of dQ.
    __device__ __forceinline__ void issue_dq_of_tile(float (&dq)[PANEL_COLUMNS / 2]) {
        mbarrier_wait(smem.barriers.ds_full[ds_stage.stage], ds_stage.parity);
        ptx::wgmma_fence();
        issue_dq(dq, ptx::smem_address(smem.ds[ds_stage.stage]), ptx::smem_address(smem.k), number);
    }

    // The tile's queries from FIRST on.
    template <int FIRST>
    __device__ __forceinline__ void add_part() {
        const unsigned q_smem = ptx::smem_address(smem.q[stage.stage]) + FIRST * PANEL_ROW_BYTES;
        const unsigned do_smem = ptx::smem_address(smem.dout[stage.stage]) + FIRST * PANEL_ROW_BYTES;
        float s[PART / 2];
        float dp[PART / 2];
        ptx::wgmma_fence();
        issue_scores(s, k_smem, q_smem);
        issue_scores(dp, v_smem, do_smem);
        ptx::wgmma_wait_group<1>();  // for S
        hold(s);
        if constexpr (FIRST > 0) {  // dV and dK of the part before
            hold(dk);
            hold(dv);
            hold(p);
            hold(ds);
        }
        float slopes[PART / 2];
        const int lane = thread % 32;
        const int column = FIRST + 2 * (lane % 4);
        const float* const statistics = smem.statistics[stage.stage] + column;
        weigh(s, slopes, statistics, at.tile * STREAM + column);
        ptx::wgmma_wait_group<0>();
        hold(dp);
        pack_pairs(p, ds, s, slopes, dp, statistics);
        store_ds(ptx::smem_address(smem.ds[ds_stage.stage]), ds, FIRST, number * 4 + thread / 32, lane);
        if constexpr (FIRST + PART == STREAM) {
            ptx::fence_proxy_async_shared_cta();
            __syncwarp();
            if (lane == 0) {
                ptx::mbarrier_arrive(ptx::smem_address(&smem.barriers.ds_full[ds_stage.stage]));
            }
        }
        hold(p);
        hold(ds);
        hold(dk);
        hold(dv);
        ptx::wgmma_fence();
        issue_gradient(dv, p, do_smem);
        issue_gradient(dk, ds, q_smem);
        if constexpr (FIRST + PART < STREAM) {
            add_part<FIRST + PART>();
        }
    }

    // query: the lane's first of the part.
    __device__ __forceinline__ void weigh(float (&s)[PART / 2], float (&slopes)[PART / 2], const float* statistics,
                                          int query) {
        if (ATTN_MASK) {
            hold(scores.seq_kv);  // distances between the rows of the mask
        }
        const int first_query = at.tile * STREAM;
        const int key = own_key + thread / 32 * WARP_M + thread % 32 / 4;
        const Span queries{first_query, min(first_query + STREAM, scores.entry.queries)};
        if (!ATTN_MASK && scores.entry.all_seen(queries, Span{own_key, own_key + WARPGROUP_M})) {
            weigh_pairs<false>(s, slopes, scores, statistics, key, query);
        } else {
            weigh_pairs<true>(s, slopes, scores, statistics, key, query);
        }
    }
};
