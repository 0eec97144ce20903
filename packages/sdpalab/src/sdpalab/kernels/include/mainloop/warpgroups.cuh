// The main loop of attention on TMA and wgmma (sm_90a), with policies for its products, its epilogue and its scheduler.
//
// Copies, products and softmax overlap. A producer thread issues TMA loads into a ring of tiles of K and V
// (mainloop/tile_ring.cuh), and its warpgroup gives its registers to the consumers, warpgroups of 64 query rows each. A
// consumer issues the scores of the next tile before the product of this tile's weights with V, so the tensor cores
// compute during its softmax; consumers issue alternately, so one's softmax overlaps the other's products. Q, K and V
// stay in shared memory, where wgmma reads them; the weights stay in registers. The loads of the first tiles precede
// the block's first barrier: their stages are free.
//
// Threads without the registers for that (OVERLAPS of Products is false) run the steps of a tile one after the other;
// the tensor cores then serve another consumer during the softmax.
//
// In a CTA with few rows, GROUPS groups of consumers share the same rows and alternate tiles of keys: one group's
// softmax overlaps the other's products without further synchronisation, and GroupMerge
// (epilogue/group_merge.cuh) adds their results. TMA then loads tiles in rounds, one tile for each group; within a
// round, all K before all V.
//
//
// With HEADS heads that share K and V, a tile of queries may hold several heads: its rows are ordered by query, then by
// head. Few queries then fill a tile, and K and V are read once for all of these heads.
//
// The policies:
//   Products   Products16 (tile/warpgroup.cuh) or ProductsE4m3 (tile/warpgroup_fp8.cuh)
//   Epilogue   OwnRows (epilogue/own_rows.cuh); ClusterMerge (epilogue/cluster_merge.cuh) if the CTAs of a
//              cluster have the same rows and different keys; or GroupMerge followed by one of them. TMA stores the
//              rows in all cases.
//   Scheduler  GridTile, or DealtTiles for persistent CTAs (schedule/query_tiles.cuh). The ring runs on between two
//              with the last keys of this one.
//   Seen       KeysToEnd (mainloop/tile_ring.cuh), or KeysOfWindow (mainloop/keys_of_window.cuh): first and last key
//              tile of a tile of queries, first key to load of a tile, visible keys of each row, and cap of the scores
//
#pragma once

#include "epilogue/own_rows.cuh"
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
    static constexpr int READERS = CONSUMERS / GROUPS;  // a tile's readers: the consumers of a group
    static constexpr int ROWS = READERS * WARPGROUP_M;
    static constexpr int TURNS = GROUPS == 1 ? CONSUMERS : 1;
    // A lone consumer issues the scores of its second tile before the exponentials of the first, which would overlap
    // nothing otherwise. Small problems have two tiles a consumer at most.
    static constexpr bool AHEAD = Products::AHEAD && CONSUMERS == 1 && !Seen::template Columns<KEYS, HEADS>::CAPS;
    static constexpr int Q_BYTES = WARPGROUP_M * HEAD_DIM * Products::ELEMENT_BYTES;  // of one consumer
    static constexpr int O_BYTES = WARPGROUP_M * HEAD_DIM * static_cast<int>(sizeof(Element));
    static constexpr int TILE_BYTES = KEYS * HEAD_DIM * Products::ELEMENT_BYTES;
    static constexpr int O_PLACE = Scheduler::STAYS ? 1 : 0;  // 0: O overwrites Q at the end

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
        unsigned char rows[1 + O_PLACE][READERS][O_BYTES];  // Q, and O if it has its own buffer
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
            // All CTAs of the cluster run from here on, and may use each other's mbarriers.
            ptx::barrier_cluster_arrive_relaxed();
            ptx::barrier_cluster_wait_acquire();
        } else {
            __syncthreads();
        }

        if (threadIdx.x < WARPGROUP) {
            ptx::setmaxnreg_dec<Budget::PRODUCER>();
            if (threadIdx.x == 0) {
                ptx::griddepcontrol_launch_dependents();  // all CTAs have begun: none of these waits for an SM
                produce(tensors, queries, work, q_smem, ring, seq_q, seq_kv, group);
            }
            return;
        }
        ptx::setmaxnreg_inc<Budget::CONSUMER>();
        const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);  // uniform to ptxas
        const int consumer = warpgroup - 1;
        const int warp = threadIdx.x / 32 - WARPGROUP / 32;  // among the consumers' warps
        const int lane = threadIdx.x % 32;
        const int key_group = GROUPS == 1 ? 0 : consumer / READERS;
        const int own = GROUPS == 1 ? consumer : consumer % READERS;  // index of its 64 rows in the tile of queries
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
            if (Scheduler::STAYS) {  // the same buffer held the previous tile's rows for the store
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
    // Issues the TMA load of this CTA's next tile of K, or of V.
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

    // Issues the loads of each group's next tile, as far as there are any. refills: stages are not free from the start.
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

    // One thread initialises the mbarriers, and issues the loads of Q and of as many tiles as there are stages.
    static __device__ __forceinline__ void start(const Tensors& tensors, const Work& work, unsigned q_smem,
                                                 const Ring& ring, SharedStorage& smem, int seq_kv) {
        ptx::prefetch_tensormap(tensors.q);
        ptx::prefetch_tensormap(tensors.k);
        ptx::prefetch_tensormap(tensors.v);
        ring.barriers.init();
        smem.tail.init();
        // The code up to here overlaps the previous kernel. The fence and the barrier after it order the wait for all
        // threads, also in a CTA without keys: it stores rows that others of its cluster have read.
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

    // The same thread issues all other loads as stages become free, those of the CTA's next rows too. The buffer of Q
    // is free when all consumers have read the last K that was multiplied with it.
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

    // Descriptors of a stage's tiles. Only the low word depends on the stage, which costs one instruction; a whole
    // descriptor has no known bits for ptxas, and the steps along k become 64-bit additions.
    static __device__ __forceinline__ unsigned long long k_tile(const Ring& ring, const Position& at) {
        return of_stage(Products::k_tile(ring.tile(Position{}, K)), at.stage);
    }

    static __device__ __forceinline__ unsigned long long v_tile(const Ring& ring, const Position& at) {
        return of_stage(Products::v_tile(ring.tile(Position{}, V)), at.stage);
    }

    // first: descriptor of the first stage's tile. Addresses are in units of 16 bytes; no sum overflows their field.
    static __device__ __forceinline__ unsigned long long of_stage(unsigned long long first, int stage) {
        const unsigned low = static_cast<unsigned>(first) + stage * (2 * TILE_BYTES / 16);
        return first >> 32 << 32 | low;
    }

    // Scores of a tile and product of the previous weights with V, overlapped with the softmax. ISSUED: the scores are
    // in flight already. at: position of the previous tile; afterwards of this one.
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
            products.hold_scores();  // of the previous tile: prevents copies behind the fence
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
        // V is not needed yet. Without a branch here ptxas moves the next wait up to the last one, and without a branch
        // that depends on the sums it moves exponentials behind the next wait: the weights are then computed after the
        // product instead of beside it.
        ring.wait_full(at, V, products.never());

        ptx::wgmma_wait_group<0>();
        products.hold_output();
        products.hold_weights();
        ring.release(before, V);
        products.pack_weights();
        products.join_output(rescale);
    }

    // One warpgroup's 64 rows of a tile of queries over its group's tiles of keys, at least one. at: position of the
    // first tile; afterwards of the one after the last.
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
        if (Scheduler::STAYS) {  // otherwise no producer waits for it
            ring.release(at, V);
        }
        at.advance();
    }

    // The same without registers for the scores of a tile beside the product of another: the steps of a tile run one
    // after the other, and overlap only those of the other consumers.
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
