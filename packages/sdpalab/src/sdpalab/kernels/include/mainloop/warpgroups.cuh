// The main loop of attention on TMA and wgmma (sm_90a), with policies for its products, its epilogue and its scheduler.
//
// Copies, products and softmax overlap. A producer thread has TMA fill a ring of tiles of K and V
// (mainloop/tile_ring.cuh), and its warpgroup gives its registers to the consumers, warpgroups of 64 query rows each. A
// consumer issues the scores of the next tile before the product of this tile's weights with V, so that the tensor
// cores work while it computes a softmax; consumers issue in turn, so that one's softmax overlaps the other's products.
// Q, K and V stay in shared memory, where wgmma reads them; the weights stay in registers. The first tiles are
// requested before the block's first barrier: their places are free.
//
// Where a thread lacks the registers for that (Products::OVERLAPS), a consumer takes one step after the other, and the
// tensor cores work for another consumer while it computes a softmax.
//
// Where a CTA has few rows, GROUPS groups of consumers have the same ones, and take the tiles of keys in turn: one
// group's softmax overlaps the other's products without further synchronisation, and GroupMerge
// (epilogue/group_merge.cuh) adds up what they have. TMA then loads tiles in rounds, one for each group, and of a round
// all K first.
//
// Where several heads share K and V, HEADS of them may share a tile of queries, too: its rows are those of one query after
// the other, of each all HEADS. Few queries then fill a tile, and K and V are read once for all of these heads.
//
// The policies:
//   Products   Products16 (tile/warpgroup.cuh) or ProductsE4m3 (tile/warpgroup_fp8.cuh)
//   Epilogue   OwnRows (epilogue/warpgroup_store.cuh), or ClusterMerge (epilogue/cluster_merge.cuh) where the CTAs of a
//              cluster have the same rows and a part of the keys each, or GroupMerge and then one of them; in all TMA
//              stores the rows
//   Scheduler  GridTile, or DealtTiles for persistent CTAs (schedule/query_tiles.cuh). The ring does not stop between
//              two tiles of queries: the producer loads the next tile's Q and first K and V while the consumers still
//              compute with the last keys of this one.
//   Seen       KeysToEnd (mainloop/tile_ring.cuh), or KeysOfWindow (mainloop/keys_of_window.cuh): which tiles of keys a
//              tile of queries needs, where a tile is loaded from, which of its keys each row sees, and whether scores
//              are capped
#pragma once

#include "epilogue/warpgroup_store.cuh"
#include "mainloop/tile_ring.cuh"
#include "schedule/query_tiles.cuh"

template <class Products, class Epilogue, class Scheduler, class Seen, int CONSUMERS, int STAGES, int GROUPS = 1,
          int HEADS = 1>
class WarpgroupAttention {
public:
    using Budget = Registers<CONSUMERS>;
    using Tensors = typename Products::Tensors;

    static constexpr int KEYS = Products::KEYS;
    static constexpr int READERS = CONSUMERS / GROUPS;  // of a tile of keys: the consumers of a group
    static constexpr int ROWS = READERS * WARPGROUP_M;
    static constexpr int TURNS = GROUPS == 1 ? CONSUMERS : 1;
    // A lone consumer issues the scores of its second tile before the exponentials of the first, which nothing else would
    // lie beside. On small problems it has no more than two tiles.
    static constexpr bool AHEAD = Products::AHEAD && CONSUMERS == 1 && !Seen::template Columns<KEYS, HEADS>::CAPS;
    static constexpr int Q_BYTES = WARPGROUP_M * HEAD_DIM * Products::ELEMENT_BYTES;  // of one consumer
    static constexpr int O_BYTES = WARPGROUP_M * HEAD_DIM * static_cast<int>(sizeof(Element));
    static constexpr int TILE_BYTES = KEYS * HEAD_DIM * Products::ELEMENT_BYTES;
    static constexpr int O_PLACE = Scheduler::STAYS ? 1 : 0;  // otherwise O takes the place of Q in the end

    static_assert(STAGES >= 2 && STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
    static_assert(CONSUMERS % GROUPS == 0 && STAGES % GROUPS == 0, "whole groups, and a ring of whole rounds");
    static_assert(STAGES >= 2 * GROUPS, "a consumer waits for its next V before it releases the one before");
    static_assert(GROUPS == 1 || !Scheduler::STAYS, "what groups merge has a place for one tile of queries");
    static_assert(WARP_M % HEADS == 0, "whole queries for a warp");
    static_assert(Products::REGISTERS <= Budget::CONSUMER - 32,
                  "accumulators and weights leave a consumer registers for the rest");

    using Ring = TileRing<READERS, STAGES, TILE_BYTES>;
    using Position = typename Ring::Position;

    struct SharedStorage {
        unsigned char rows[1 + O_PLACE][READERS][O_BYTES];  // Q, and O where that has a place of its own
        unsigned char tiles[STAGES][2][TILE_BYTES];         // K, V
        typename Epilogue::template Shared<typename Ring::Barriers> tail;  // partial results, mbarriers
    };
    static_assert(Q_BYTES <= O_BYTES && O_BYTES % SWIZZLE_BYTES == 0 && TILE_BYTES % SWIZZLE_BYTES == 0,
                  "each tile begins where the pattern of the swizzle does");

    // The whole kernel. smem: aligned to SWIZZLE_BYTES; o: map as for store_warp_rows; lse as in schedule/head.cuh.
    static __device__ __forceinline__ void run(SharedStorage& smem, const Tensors& tensors, const TensorMap& o,
                                               const TileOrder& order, int seq_q, int seq_kv, int group, float scale,
                                               float* lse) {
        const Ring ring{ptx::smem_address(smem.tiles), smem.tail.barriers};
        const unsigned q_smem = ptx::smem_address(smem.rows[0]);
        const unsigned o_smem = ptx::smem_address(smem.rows[O_PLACE]);
        Scheduler queries(order);
        Work work = work_on<Scheduler::CTAS, ROWS, HEADS, KEYS, Seen>(queries.tile(), seq_q, seq_kv, group);

        if (threadIdx.x == 0) {
            start(tensors, work, q_smem, ring, smem, seq_kv);
        }
        if (Scheduler::CTAS > 1) {
            // From here on each CTA runs, and its mbarriers count, for the others too.
            ptx::barrier_cluster_arrive_relaxed();
            ptx::barrier_cluster_wait_acquire();
        } else {
            __syncthreads();
        }

        if (threadIdx.x < WARPGROUP) {
            ptx::setmaxnreg_dec<Budget::PRODUCER>();
            if (threadIdx.x == 0) {
                ptx::griddepcontrol_launch_dependents();  // once all CTAs have begun: none of these needs room
                produce(tensors, queries, work, q_smem, ring, seq_q, seq_kv, group);
            }
            return;
        }
        ptx::setmaxnreg_inc<Budget::CONSUMER>();
        const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);  // uniform, as ptxas then knows
        const int consumer = warpgroup - 1;
        const int warp = threadIdx.x / 32 - WARPGROUP / 32;  // of the consumers'
        const int lane = threadIdx.x % 32;
        const int key_group = GROUPS == 1 ? 0 : consumer / READERS;
        const int own = GROUPS == 1 ? consumer : consumer % READERS;  // whose 64 rows of the tile of queries
        const int own_warp = GROUPS == 1 ? warp : warp % (ROWS / WARP_M);
        const ScoreScale score_scale(scale);
        Position at{key_group, 0};
        unsigned q_parity = 0;
        if (consumer == TURNS - 1) {
            pass_turn<TURNS>(consumer);
        }
        for (;;) {
            Products products(tensors, work, score_scale);
            if ((Scheduler::CTAS == 1 && GROUPS == 1) || work.tiles > key_group) {
                if constexpr (Products::OVERLAPS) {
                    attend(products, work, q_smem + own * O_BYTES, q_parity, ring, at, key_group, own, seq_kv);
                } else {
                    attend_in_steps(products, work, q_smem + own * O_BYTES, q_parity, ring, at, own, seq_kv);
                }
            }
            if (!Epilogue::gather(products.o_frag, products.softmax, smem.tail, work.rank, warp, lane,
                                  score_scale.log2)) {
                return;
            }
            if (Scheduler::STAYS) {  // the rows of the tile before were stored from the same place
                wait_stored_rows_read(lane);
                __syncwarp();
            }
            store_warp_rows<HEADS>(o, products.o_frag, products.softmax, lse, score_scale.log2, Products::WEIGHT_UNIT,
                            o_smem + own_warp * (O_BYTES / 4), work.q_head, work.first_row + own_warp * WARP_M, seq_q,
                            lane);
            if (!queries.next()) {
                break;
            }
            work = work_on<Scheduler::CTAS, ROWS, HEADS, KEYS, Seen>(queries.tile(), seq_q, seq_kv, group);
            q_parity ^= 1;
        }
        wait_stored_rows_read(lane);  // the block's shared memory lasts until then
    }

private:
    // Has TMA load this CTA's next tile of K, or of V.
    static __device__ __forceinline__ void load_k(const Tensors& tensors, const Work& work, int tile,
                                                  const Position& at, const Ring& ring, int seq_kv) {
        const unsigned full = ring.expect(at, K);
        tensors.load_k(ring.tile(at, K), work, Seen::template first_loaded<KEYS>(work.first_tile + tile, seq_kv), full);
    }

    static __device__ __forceinline__ void load_v(const Tensors& tensors, const Work& work, int tile,
                                                  const Position& at, const Ring& ring, int seq_kv) {
        const unsigned full = ring.expect(at, V);
        tensors.load_v(ring.tile(at, V), work, Seen::template first_loaded<KEYS>(work.first_tile + tile, seq_kv), full);
    }

    static __device__ __forceinline__ void load_q(const Tensors& tensors, const Work& work, unsigned q_smem,
                                                  const Ring& ring) {
        const unsigned full = ptx::smem_address(&ring.barriers.q_full);
        ptx::mbarrier_arrive_expect_tx(full, READERS * Q_BYTES);
#pragma unroll
        for (int i = 0; i < READERS; ++i) {
            tensors.load_q(q_smem + i * O_BYTES, work, work.first_row + i * WARPGROUP_M, full);
        }
    }

    // Has TMA load the next tile of each group, as far as there are any. refills: a place is not free from the start.
    static __device__ __forceinline__ void load_round(const Tensors& tensors, const Work& work, int tile, Position& at,
                                                      const Ring& ring, int seq_kv, bool refills) {
        const int many = GROUPS == 1 ? 1 : min(GROUPS, work.tiles - tile);
        Position k_at = at;
#pragma unroll 1
        for (int i = 0; i < many; ++i) {
            if (refills) {
                ring.wait_empty(k_at, K);
            }
            load_k(tensors, work, tile + i, k_at, ring, seq_kv);
            k_at.advance();
        }
#pragma unroll 1
        for (int i = 0; i < many; ++i) {
            if (refills) {
                ring.wait_empty(at, V);
            }
            load_v(tensors, work, tile + i, at, ring, seq_kv);
            at.advance();
        }
    }

    // One thread makes the mbarriers, and has TMA load Q and as many tiles as there are stages.
    static __device__ __forceinline__ void start(const Tensors& tensors, const Work& work, unsigned q_smem,
                                                 const Ring& ring, SharedStorage& smem, int seq_kv) {
        ptx::prefetch_tensormap(tensors.q);
        ptx::prefetch_tensormap(tensors.k);
        ptx::prefetch_tensormap(tensors.v);
        ring.barriers.init();
        smem.tail.init();
        // All that comes before has overlapped the kernel before this one. The fence and the barrier behind it pass the
        // wait on, to a CTA without keys as well: it stores rows that others of its cluster have read.
        ptx::griddepcontrol_wait();
        ptx::fence_mbarrier_init_release_cluster();
        smem.tail.expect();
        if (work.tiles > 0) {  // otherwise no consumer would wait for Q
            load_q(tensors, work, q_smem, ring);
        }
        Position at;
#pragma unroll 1
        for (int tile = 0; tile < min(STAGES, work.tiles); tile += GROUPS) {
            load_round(tensors, work, tile, at, ring, seq_kv, false);
        }
    }

    // The same thread has TMA load all other tiles as their places become free, those of the CTA's next rows too. The
    // place of Q is free when all consumers have read the last K that it was multiplied with.
    static __device__ __forceinline__ void produce(const Tensors& tensors, Scheduler& queries, Work work,
                                                   unsigned q_smem, const Ring& ring, int seq_q, int seq_kv,
                                                   int group) {
        int tile = STAGES;
        Position at{0, 1};  // the second pass
        if (Scheduler::STAYS && work.tiles < STAGES) {
            at = Position{work.tiles, 0};  // still the first
        }
        for (;;) {
#pragma unroll 1
            for (; tile < work.tiles; tile += GROUPS) {
                load_round(tensors, work, tile, at, ring, seq_kv, true);
            }
            if (!queries.next()) {
                return;
            }
            work = work_on<Scheduler::CTAS, ROWS, HEADS, KEYS, Seen>(queries.tile(), seq_q, seq_kv, group);
            ring.wait_empty(at, K);
            load_k(tensors, work, 0, at, ring, seq_kv);
            ring.wait_read(at.before(), K);
            load_q(tensors, work, q_smem, ring);
            ring.wait_empty(at, V);
            load_v(tensors, work, 0, at, ring, seq_kv);
            at.advance();
            tile = 1;
        }
    }

    // Descriptors of a stage's tiles. Only the low word depends on the stage: one instruction in place of the whole
    // descriptor, since ptxas then knows no bits of it and adds the steps along k as 64-bit numbers.
    static __device__ __forceinline__ unsigned long long k_tile(const Ring& ring, const Position& at) {
        return of_stage(Products::k_tile(ring.tile(Position{}, K)), at.stage);
    }

    static __device__ __forceinline__ unsigned long long v_tile(const Ring& ring, const Position& at) {
        return of_stage(Products::v_tile(ring.tile(Position{}, V)), at.stage);
    }

    // first: descriptor of the first stage's tile. Addresses are in units of 16 bytes, and no sum leaves their field.
    static __device__ __forceinline__ unsigned long long of_stage(unsigned long long first, int stage) {
        const unsigned low = static_cast<unsigned>(first) + stage * (2 * TILE_BYTES / 16);
        return first >> 32 << 32 | low;
    }

    // The scores of a tile and the product of the one before with V, and the softmax of the one beside the other. ISSUED: its
    // scores have been. at: of the tile before; afterwards of this one.
    template <bool ISSUED, class Columns>
    static __device__ __forceinline__ void turn(Products& products, Columns& columns, unsigned long long q,
                                                const Ring& ring, Position& at, int tile, int consumer) {
        const Position before = at;
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            at.advance();
            columns.advance();
        }
        if (!ISSUED) {
            ring.wait_full(at, K);
            wait_for_turn<TURNS>(consumer);
            products.hold_scores();  // those of the tile before: none is copied behind the fence
        }
        ptx::wgmma_fence();
        if (!ISSUED) {
            products.issue_scores(q, k_tile(ring, at));
        }
        products.issue_output(v_tile(ring, before));
        pass_turn<TURNS>(consumer);

        ptx::wgmma_wait_group<1>();
        if constexpr (ISSUED) {
            products.take_next_scores();
        }
        products.hold_scores();
        ring.release(at, K);
        const Rescale rescale = products.weigh(columns.at_edge(tile), columns);
        products.hold_unpacked();
        // V is not needed yet. But without a branch here ptxas moves the next wait up to the last one, and without
        // one that depends on the sums it moves exponentials behind the next wait: then the weights are computed
        // after the product instead of beside it.
        ring.wait_full(at, V, products.never());

        ptx::wgmma_wait_group<0>();
        products.hold_output();
        products.hold_weights();
        ring.release(before, V);
        products.pack_weights();
        products.join_output(rescale);
    }

    // One warpgroup's 64 rows of a tile of queries, with the tiles of keys of its group, of which there is one at least.
    // at: of its first tile; afterwards of the one behind the last.
    static __device__ __forceinline__ void attend(Products& products, const Work& work, unsigned q_smem,
                                                  unsigned q_parity, const Ring& ring, Position& at, int key_group,
                                                  int consumer, int seq_kv) {
        const int first_row = work.first_row + consumer * WARPGROUP_M;
        const int first_tile = work.first_tile + key_group;
        const int tiles = work.tiles - key_group;  // from that one on
        typename Seen::template Columns<KEYS, HEADS> columns(first_row, first_tile, seq_kv);
        const unsigned long long q = Products::q_tile(q_smem);
        const auto k = [&](const Position& at) { return k_tile(ring, at); };

        products.start_tile(first_tile);
        mbarrier_wait(ring.barriers.q_full, q_parity);
        ring.wait_full(at, K);
        ptx::wgmma_fence();
        products.issue_scores(q, k(at));
        ptx::wgmma_wait_group<0>();
        products.hold_scores();
        ring.release(at, K);
        int tile = GROUPS;
        if (AHEAD && tiles > 1) {
            const Position next = at.after();
            products.template weigh<true>(columns.at_edge(0), columns, [&] {
                ring.wait_full(next, K);
                products.hold_output();  // zeros so far: ptxas would set them behind the fence
                ptx::wgmma_fence();
                products.issue_next_scores(q, k(next));
            });
            products.pack_weights();
            ring.wait_full(at, V);
            products.start_tile(first_tile + tile);
            turn<AHEAD>(products, columns, q, ring, at, tile++, consumer);
        } else {
            products.template weigh<true>(columns.at_edge(0), columns, [] {});
            products.pack_weights();
            ring.wait_full(at, V);
        }
#pragma unroll 1
        for (; tile < tiles; tile += GROUPS) {
            products.start_tile(first_tile + tile);
            turn<false>(products, columns, q, ring, at, tile, consumer);
        }
        ptx::wgmma_fence();
        products.issue_output(v_tile(ring, at));
        sum_over_quads(products.softmax);  // beside the product
        ptx::wgmma_wait_group<0>();
        products.hold_output();
        products.join_last();
        if (Scheduler::STAYS) {  // otherwise nobody waits for that
            ring.release(at, V);
        }
        at.advance();
    }

    // The same where a thread has no registers for the scores of a tile beside the product of another: the steps of a
    // tile follow each other, and overlap those of the other consumers alone.
    static __device__ __forceinline__ void attend_in_steps(Products& products, const Work& work, unsigned q_smem,
                                                           unsigned q_parity, const Ring& ring, Position& at,
                                                           int consumer, int seq_kv) {
        static_assert(GROUPS == 1 && !IN_TURN<CONSUMERS>, "all tiles of keys, and no consumer waits for its turn");
        typename Seen::template Columns<KEYS, HEADS> columns(work.first_row + consumer * WARPGROUP_M, work.first_tile,
                                                             seq_kv);
        const unsigned long long q = Products::q_tile(q_smem);
        mbarrier_wait(ring.barriers.q_full, q_parity);
#pragma unroll 1
        for (int tile = 0; tile < work.tiles; ++tile) {
            products.start_tile(work.first_tile + tile);
            ring.wait_full(at, K);
            ptx::wgmma_fence();
            products.issue_scores(q, k_tile(ring, at));
            ptx::wgmma_wait_group<0>();
            products.hold_scores();
            ring.release(at, K);
            const bool masked = columns.at_edge(tile);
            const Rescale rescale = products.weigh(masked, columns);
            products.pack_weights();
            ring.wait_full(at, V);
            products.add_output(v_tile(ring, at), rescale);
            ring.release(at, V);
            at.advance();
            columns.advance();
        }
        sum_over_quads(products.softmax);
    }
};
