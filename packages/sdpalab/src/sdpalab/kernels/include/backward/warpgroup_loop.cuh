// The main loop of a CTA that owns a tile of keys, on TMA and wgmma (sm_90a).
//
//    warp 0            loads K and V, then Q with its statistics and dO of one tile of queries after the other
//    warp 1            adds the parts of dQ to their sums in global memory (backward/dq_sums.cuh)
//    each warpgroup    from the second on: 64 keys, whose dK and dV stay in its registers
//
// K and V stay in shared memory, where wgmma reads them. The consumers are in backward/warpgroup_consumer.cuh.
#pragma once

#include "backward/dq_sums.cuh"
#include "backward/warpgroup_consumer.cuh"

// Loads a tile from row `row` of a head on, panel by panel; columns past the last are zeros.
template <int PANEL_BYTES>
__device__ __forceinline__ void load_panels(const void* tile, const TensorMap& map, int row, unsigned head,
                                            unsigned full) {
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel) {
        const unsigned panel_smem = ptx::smem_address(tile) + panel * PANEL_BYTES;
        ptx::cp_async_bulk_tensor_3d_load(panel_smem, map, panel * PANEL_COLUMNS, row, head, full);
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
        const int number = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0) - 1;  // uniform to ptxas
        Consumer consumer(smem, tensors, at, entry, first_key, number);
        consumer.run();
        consumer.store(maps, kv_head);
    }
}
