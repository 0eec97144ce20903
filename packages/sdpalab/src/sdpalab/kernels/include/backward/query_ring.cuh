// Transfer of tiles of queries from TMA to the consumers of a CTA that owns keys (sm_90a): Q with its statistics, and
// dO, each with mbarriers of its own, in a ring of stages.
#pragma once

#include "backward/tiles_seen.cuh"
#include "mainloop/ring.cuh"

// The tiles of queries of all heads of a group, in the order in which the CTA takes them.
struct QueryCursor {
    Span tiles;
    int tile;
    unsigned head;  // over all batches
    int left;

    __device__ __forceinline__ QueryCursor(const Span& tiles, unsigned first_head, int group)
        : tiles(tiles), tile(tiles.first), head(first_head), left((tiles.end - tiles.first) * group) {}

    __device__ __forceinline__ void advance() {
        const bool wraps = tile + 1 == tiles.end;
        tile = wraps ? tiles.first : tile + 1;
        head += wraps;
        --left;
    }
};

enum Streamed { Q, DO };

constexpr int DS_STAGES = 2;

template <int READERS, int STAGES>
struct QueryBarriers {
    unsigned long long keys_full;  // K and V
    unsigned long long ds_full[DS_STAGES];  // dS of all consumers
    unsigned long long full[STAGES][2];
    unsigned long long empty[STAGES][2];

    // Called by one thread, followed by fence_mbarrier_init_release_cluster and a barrier for all threads.
    __device__ __forceinline__ void init() {
        ptx::mbarrier_init(ptx::smem_address(&keys_full), 1);
#pragma unroll
        for (int i = 0; i < DS_STAGES; ++i) {
            ptx::mbarrier_init(ptx::smem_address(&ds_full[i]), 4 * READERS);  // one a warp
        }
#pragma unroll
        for (int i = 0; i < 2 * STAGES; ++i) {
            ptx::mbarrier_init(ptx::smem_address(&full[i / 2][i % 2]), 1);
            ptx::mbarrier_init(ptx::smem_address(&empty[i / 2][i % 2]), READERS);
        }
    }

    // Producer: waits until the consumers have read the stage, and expects the bytes of the next tile.
    __device__ __forceinline__ unsigned expect(const RingPosition<STAGES>& at, Streamed which, unsigned bytes) {
        mbarrier_wait(empty[at.stage][which], at.parity ^ 1);
        const unsigned smem = ptx::smem_address(&full[at.stage][which]);
        ptx::mbarrier_arrive_expect_tx(smem, bytes);
        return smem;
    }

    __device__ __forceinline__ void wait_full(const RingPosition<STAGES>& at, Streamed which) const {
        mbarrier_wait(full[at.stage][which], at.parity);
    }

    // Called by one thread of a consumer, after the wait for the products that read the tile.
    __device__ __forceinline__ void release(const RingPosition<STAGES>& at, Streamed which) {
        ptx::mbarrier_arrive(ptx::smem_address(&empty[at.stage][which]));
    }
};
