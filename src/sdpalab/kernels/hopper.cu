// hopper: FlashAttention-3 (Shah et al. 2024) for sm_90a on TMA and wgmma, with the keys split over a cluster where the
// rows are too few to fill the GPU.
//
// Idea: nobody waits for what somebody else can do meanwhile. A producer has TMA fill a ring of tiles of K and V and
// gives its registers to the consumers, warpgroups of 64 query rows each. A consumer issues the scores of the next tile
// before the product of this tile's weights with V, so that the tensor cores work while it computes a softmax, and
// consumers issue in turn, so that one's softmax falls on the other's products. Q, K and V stay in shared memory, where
// wgmma reads them; the weights never leave the registers.
//
// How a tile gets from TMA to the consumers is told in mainloop/tile_ring.cuh. The first tiles are under way before
// anybody else knows the mbarriers: their places are free.
//
// SPLIT CTAs of a cluster take the same rows and a part of the keys each. In the end each keeps the rows of some warps,
// and sends what it has of the others to their keepers: one kernel, no workspace.
//
// PERSISTENT CTAs stay on their SM and take one tile of queries after the other (schedule/query_tiles.cuh). The ring
// does not stop between two of them: the producer loads the next tile's Q and first K and V while the consumers are
// still busy with the last keys of this one. Their output has a place beside Q's, from which TMA stores it during the
// next tile.
//
// Static bars: 0 spills, 0 stack; at most 168 registers a thread at launch, which the warpgroups then share out.
// Knobs: BLOCK_M (rows of Q; 64 a consumer), BLOCK_N (keys a tile), NUM_STAGES (tiles of K, V in memory), SPLIT; of the
// plan SCHEDULE (PERSISTENT or not) and NUM_CTAS.

#include "epilogue/cluster_merge.cuh"
#include "schedule/query_tiles.cuh"
#include "mainloop/tile_ring.cuh"
#include "epilogue/warpgroup_store.cuh"

constexpr int CONSUMERS = BLOCK_M / WARPGROUP_M;
constexpr int KEPT_WARPS = BLOCK_M / WARP_M / SPLIT;  // whose rows a CTA stores
constexpr int Q_BYTES = WARPGROUP_M * HEAD_DIM * 2;   // of one consumer
constexpr int WARP_O_BYTES = WARP_M * HEAD_DIM * 2;
constexpr int TILE_BYTES = BLOCK_N * HEAD_DIM * 2;
constexpr int O_OFFSET = PERSISTENT ? CONSUMERS * Q_BYTES : 0;  // otherwise O takes the place of Q in the end
constexpr int RING_OFFSET = O_OFFSET + CONSUMERS * Q_BYTES;
constexpr int PARTIAL_OFFSET = RING_OFFSET + NUM_STAGES * 2 * TILE_BYTES;
constexpr int PARTIAL_BYTES = (SPLIT - 1) * KEPT_WARPS * static_cast<int>(sizeof(Partial));
constexpr int BARRIERS_OFFSET = PARTIAL_OFFSET + PARTIAL_BYTES;
using Budget = Registers<CONSUMERS>;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "HEAD_DIM is 64, 128 or 256");
static_assert(BLOCK_M == 64 || BLOCK_M == 128 || BLOCK_M == 192, "BLOCK_M is 64, 128 or 192");
static_assert(BLOCK_N == 64 || BLOCK_N == 80 || BLOCK_N == 128 || BLOCK_N == 176, "BLOCK_N is 64, 80, 128 or 176");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(SPLIT == 1 || SPLIT == 2 || SPLIT == 4, "SPLIT is 1, 2 or 4");
static_assert(!PERSISTENT || SPLIT == 1, "persistent CTAs split no keys");
static_assert(HEAD_DIM / 2 + BLOCK_N / 2 + BLOCK_N / 4 <= Budget::CONSUMER - 32,
              "accumulators of O and S and the weights leave a consumer registers for the rest");

using Ring = TileRing<CONSUMERS, NUM_STAGES, TILE_BYTES>;
using Position = Ring::Position;

// Behind the tiles in shared memory.
struct Barriers {
    unsigned long long partials_full;
    Ring::Barriers tiles;
};

#if PERSISTENT
using QueryTiles = DealtTiles;
#else
using QueryTiles = GridTile<SPLIT>;
#endif

// What a CTA works on at a time: its rows, counted in one head, and its tiles of keys.
struct Work {
    unsigned rank;  // in the cluster
    int q_head;     // of all batches
    int kv_head;
    int first_row;
    int first_tile;
    int tiles;
};

__device__ __forceinline__ Work work_on(const QueryTile& tile, int seq_q, int seq_kv, int group) {
    const unsigned rank = SPLIT > 1 ? ptx::cluster_ctarank() : 0;
    const int first_row = tile.number * BLOCK_M;
    const int all_tiles = tiles_visible(min(first_row + BLOCK_M, seq_q) - 1, seq_kv, BLOCK_N);
    const int share = ceil_div(all_tiles, SPLIT);  // the last CTAs have less, or none
    const int first_tile = SPLIT > 1 ? min(static_cast<int>(rank) * share, all_tiles) : 0;
    return Work{rank, tile.q_head, tile.q_head / group, first_row, first_tile, min(share, all_tiles - first_tile)};
}

// Has TMA load this CTA's next tile of K or V. Coordinates are column, row, panel, head.
__device__ __forceinline__ void load(const TensorMap& map, Operand operand, const Work& work, int tile,
                                     const Position& at, const Ring& ring) {
    const unsigned full = ring.expect(at, operand);
    ptx::cp_async_bulk_tensor_4d_load(ring.tile(at, operand), map, 0, (work.first_tile + tile) * BLOCK_N, 0,
                                      work.kv_head, full);
}

__device__ __forceinline__ void load_q(const TensorMap& q, const Work& work, unsigned q_smem,
                                       const unsigned long long& q_full) {
    const unsigned full = ptx::smem_address(&q_full);
    ptx::mbarrier_arrive_expect_tx(full, CONSUMERS * Q_BYTES);
#pragma unroll
    for (int i = 0; i < CONSUMERS; ++i) {
        ptx::cp_async_bulk_tensor_4d_load(q_smem + i * Q_BYTES, q, 0, work.first_row + i * WARPGROUP_M, 0, work.q_head,
                                          full);
    }
}

// One thread makes the mbarriers, and has TMA load Q and as many tiles as there are stages.
__device__ __forceinline__ void start(const TensorMap& q, const TensorMap& k, const TensorMap& v, const Work& work,
                                      unsigned q_smem, const Ring& ring, Barriers& barriers) {
    ptx::prefetch_tensormap(q);
    ptx::prefetch_tensormap(k);
    ptx::prefetch_tensormap(v);
    barriers.tiles.init();
    if (SPLIT > 1) {
        ptx::mbarrier_init(ptx::smem_address(&barriers.partials_full), 1);
    }
    ptx::fence_mbarrier_init_release_cluster();
    if (SPLIT > 1) {
        ptx::mbarrier_arrive_expect_tx(ptx::smem_address(&barriers.partials_full), PARTIAL_BYTES);
    }
    if (work.tiles > 0) {  // otherwise nobody would wait for Q
        load_q(q, work, q_smem, barriers.tiles.q_full);
    }
    Position at;
#pragma unroll 1
    for (int tile = 0; tile < min(NUM_STAGES, work.tiles); ++tile) {
        load(k, K, work, tile, at, ring);
        load(v, V, work, tile, at, ring);
        at.advance();
    }
}

// The same thread has TMA load all other tiles as their places become free, those of the CTA's next rows too. The place
// of Q is free when all consumers have read the last K that it was multiplied with.
__device__ __forceinline__ void produce(const TensorMap& q, const TensorMap& k, const TensorMap& v, QueryTiles& queries,
                                        Work work, unsigned q_smem, const Ring& ring, int seq_q, int seq_kv,
                                        int group) {
    int tile = NUM_STAGES;
    Position at{0, 1};  // the second pass
    if (PERSISTENT && work.tiles < NUM_STAGES) {
        at = Position{work.tiles, 0};  // still the first
    }
    for (;;) {
#pragma unroll 1
        for (; tile < work.tiles; ++tile) {
            ring.wait_empty(at, K);
            load(k, K, work, tile, at, ring);
            ring.wait_empty(at, V);
            load(v, V, work, tile, at, ring);
            at.advance();
        }
        if (!queries.next()) {
            return;
        }
        work = work_on(queries.tile(), seq_q, seq_kv, group);
        ring.wait_empty(at, K);
        load(k, K, work, 0, at, ring);
        ring.wait_read(at.before(), K);
        load_q(q, work, q_smem, ring.barriers.q_full);
        ring.wait_empty(at, V);
        load(v, V, work, 0, at, ring);
        at.advance();
        tile = 1;
    }
}

// One warpgroup's 64 rows, from row first_row on: the output, not yet divided by the sums, and the softmax. at: of the
// first tile of keys; afterwards of the one behind the last.
__device__ __forceinline__ void attend(float (&o_frag)[HEAD_DIM / 2], SoftmaxRow (&softmax)[2],
                                       const ScoreScale& score_scale, const Work& work, unsigned q_smem,
                                       unsigned q_parity, const Ring& ring, Position& at, int consumer, int first_row,
                                       int seq_kv) {
    const int unmasked = tiles_unmasked(first_row, seq_kv, BLOCK_N) - work.first_tile;
    KeysLeft<BLOCK_N> keys_left(first_row, work.first_tile, seq_kv);
    const unsigned long long q = tile_descriptor<WARPGROUP_M>(q_smem + consumer * Q_BYTES);
    const auto descriptor = [&](const Position& at, Operand operand) {
        return tile_descriptor<BLOCK_N>(ring.tile(at, operand));
    };

    float s_frag[BLOCK_N / 2];
    unsigned p_frag[BLOCK_N / 4];

    mbarrier_wait(ring.barriers.q_full, q_parity);
    ring.wait_full(at, K);
    ptx::wgmma_fence();
    issue_scores(s_frag, q, descriptor(at, K));
    ptx::wgmma_wait_group<0>();
    hold(s_frag);
    ring.release(at, K);
    weigh(s_frag, softmax, score_scale, 0 >= unmasked, keys_left.of_row);
    pack_weights(p_frag, s_frag);
    ring.wait_full(at, V);

#pragma unroll 1
    for (int tile = 1; tile < work.tiles; ++tile) {
        const Position before = at;
        at.advance();
        keys_left.advance();
        ring.wait_full(at, K);
        wait_for_turn<CONSUMERS>(consumer, tile);
        ptx::wgmma_fence();
        issue_scores(s_frag, q, descriptor(at, K));
        issue_output(o_frag, p_frag, descriptor(before, V));
        pass_turn<CONSUMERS>(consumer, tile, work.tiles);

        ptx::wgmma_wait_group<1>();
        hold(s_frag);
        ring.release(at, K);
        const float2 rescale = weigh(s_frag, softmax, score_scale, tile >= unmasked, keys_left.of_row);
        hold(s_frag);
        // V is not needed yet. But without a branch here ptxas moves the next wait up to the last one, and the weights
        // are computed after the product instead of beside it.
        ring.wait_full(at, V);

        ptx::wgmma_wait_group<0>();
        hold(o_frag);
        hold(p_frag);
        ring.release(before, V);
        pack_weights(p_frag, s_frag);
        rescale_output(o_frag, rescale);
    }
    ptx::wgmma_fence();
    issue_output(o_frag, p_frag, descriptor(at, V));
    ptx::wgmma_wait_group<0>();
    hold(o_frag);
    if (PERSISTENT) {  // otherwise nobody waits for that
        ring.release(at, V);
    }
    at.advance();
}

// Gathers the partial results of a warp's rows in the CTA of the cluster that keeps them; false in the others, whose
// part has been sent there. partials: [SPLIT - 1][KEPT_WARPS].
__device__ __forceinline__ bool gather(float (&o_frag)[HEAD_DIM / 2], SoftmaxRow (&softmax)[2], const Partial* partials,
                                       const Barriers& barriers, unsigned rank, int warp, int lane, float scale_log2) {
    const unsigned keeper = warp / KEPT_WARPS;
    const Partial* of_warp = partials + warp % KEPT_WARPS;
    if (rank != keeper) {
        const Partial& place = of_warp[((rank ^ keeper) - 1) * KEPT_WARPS];
        send_partial(o_frag, softmax, place, barriers.partials_full, keeper, lane);
        return false;
    }
    cluster_mbarrier_wait(barriers.partials_full);
#pragma unroll
    for (int other = 0; other < SPLIT - 1; ++other) {
        merge_partial(o_frag, softmax, of_warp[other * KEPT_WARPS], scale_log2, lane);
    }
    return true;
}

// Maps of q, o [heads, panels, seq_q, 64] with boxes [1, panels, 64, 64] and [1, panels, 16, 64], and of k, v
// [K/V heads, panels, seq_kv, 64] with boxes [1, panels, BLOCK_N, 64]; panels of 64 columns, heads of all batches: of
// queries there are q_heads. lse as in schedule/head.cuh; grid, heads_at_once and rounds_at_once as in
// schedule/query_tiles.cuh.
__global__ void __maxnreg__(Budget::AT_LAUNCH)
    hopper_attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                     const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o, int seq_q, int seq_kv,
                     int group, float scale, float* __restrict__ lse, unsigned q_heads, unsigned heads_at_once,
                     unsigned rounds_at_once) {
    // Q, O if persistent, [NUM_STAGES][K, V], partials, barriers
    extern __shared__ __align__(SWIZZLE_BYTES) unsigned char smem_bytes[];
    Barriers& barriers = *reinterpret_cast<Barriers*>(smem_bytes + BARRIERS_OFFSET);
    const unsigned smem = ptx::smem_address(smem_bytes);
    const Ring ring{smem + RING_OFFSET, barriers.tiles};
    const unsigned tiles_per_head = ceil_div(seq_q, BLOCK_M);
    QueryTiles queries(TileOrder{tiles_per_head, q_heads, heads_at_once, rounds_at_once});
    Work work = work_on(queries.tile(), seq_q, seq_kv, group);

    if (threadIdx.x == 0) {
        start(q, k, v, work, smem, ring, barriers);
    }
    if (SPLIT > 1) {
        // From here on each CTA runs, and its mbarriers count, for the others too.
        ptx::barrier_cluster_arrive_relaxed();
        ptx::barrier_cluster_wait_acquire();
    } else {
        __syncthreads();
    }

    if (threadIdx.x < WARPGROUP) {
        ptx::setmaxnreg_dec<Budget::PRODUCER>();
        if (threadIdx.x == 0) {
            produce(q, k, v, queries, work, smem, ring, seq_q, seq_kv, group);
        }
        return;
    }
    ptx::setmaxnreg_inc<Budget::CONSUMER>();
    const int consumer = threadIdx.x / WARPGROUP - 1;
    const int warp = threadIdx.x / 32 - WARPGROUP / 32;  // of the consumers'
    const int lane = threadIdx.x % 32;
    const ScoreScale score_scale(scale);
    Partial* partials = reinterpret_cast<Partial*>(smem_bytes + PARTIAL_OFFSET);
    Position at;
    unsigned q_parity = 0;
    for (;;) {
        float o_frag[HEAD_DIM / 2] = {};
        SoftmaxRow softmax[2];
        if (SPLIT == 1 || work.tiles > 0) {
            attend(o_frag, softmax, score_scale, work, smem, q_parity, ring, at, consumer,
                   work.first_row + consumer * WARPGROUP_M, seq_kv);
        }
        if (SPLIT > 1 && !gather(o_frag, softmax, partials, barriers, work.rank, warp, lane, score_scale.log2)) {
            return;
        }
        if (PERSISTENT) {  // the rows of the tile before were stored from the same place
            wait_stored_rows_read(lane);
            __syncwarp();
        }
        store_warp_rows(o, o_frag, softmax, lse, score_scale.log2, 1.0f, smem + O_OFFSET + warp * WARP_O_BYTES,
                        work.q_head, work.first_row + warp * WARP_M, seq_q, lane);
        if (!queries.next()) {
            break;
        }
        work = work_on(queries.tile(), seq_q, seq_kv, group);
        q_parity ^= 1;
    }
    wait_stored_rows_read(lane);  // the block's shared memory lasts until then
}
