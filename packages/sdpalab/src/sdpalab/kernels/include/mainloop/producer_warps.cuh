// The main loop of mainloop/warps.cuh with warps that only copy, and warps that only compute.
//
// PRODUCER_WARPS warps after those of the products keep a ring of tiles of K and V filled with cp.async. Each stage has
// two named barriers for all threads. One side arrives without waiting (bar.arrive), the other waits (bar.sync), as in
// the PTX manual's producer-consumer pattern. `full`: the copies of a tile have landed; each producer waits for its
// own. `empty`: every consumer has read the tile.
#pragma once

#include "mainloop/ring.cuh"
#include "mainloop/warps.cuh"

// Attention: a WarpAttention of blocks with one tile of queries each.
template <class Attention, int STAGES, int PRODUCER_WARPS>
class ProducerWarps {
public:
    static constexpr int CONSUMERS = Attention::THREADS;  // threads, the block's first
    static constexpr int PRODUCERS = PRODUCER_WARPS * 32;
    static constexpr int THREADS = CONSUMERS + PRODUCERS;

    // The whole kernel, as WarpAttention::run.
    template <class Source, class Scheduler>
    static __device__ __forceinline__ void run(unsigned smem, const Source& source, const Scheduler& scheduler,
                                               Element* o, float* lse, float scale) {
        const auto segment = scheduler.segment();
        if (threadIdx.x >= CONSUMERS) {
            produce(smem, source, segment);
        } else {
            consume(smem, source, segment, o, lse, scale);
        }
    }

private:
    using Position = RingPosition<STAGES>;
    using Products = typename Attention::Products;

    // Named barriers; 0 is that of __syncthreads.
    static constexpr unsigned ALL_READ = 1 + 2 * STAGES;
    static_assert(ALL_READ < 16, "a block has 16 barriers");
    static_assert(!Products::PEELS_FIRST_TILE, "all tiles are equal");
    static_assert(Products::Q_IN_REGISTERS, "Q passes through the last stage, which the ring uses last");

    static __device__ __forceinline__ unsigned full(const Position& at) { return 1 + at.stage; }
    static __device__ __forceinline__ unsigned empty(const Position& at) { return 1 + STAGES + at.stage; }

    // Copies Q and then the tiles, each as soon as its stage is free, and signals the landed ones.
    template <class Source, class Segment>
    static __device__ __forceinline__ void produce(unsigned smem, const Source& source, const Segment& segment) {
        typename Source::template Copies<PRODUCERS> copies(source, segment, threadIdx.x - CONSUMERS);
        copies.load_q(smem + Attention::Q_OFFSET, segment);  // in the group of the first tile

        // While a tile is computed, the next one has landed or is waited for, and IN_FLIGHT more are in flight.
        constexpr int IN_FLIGHT = STAGES - 2;
        const int tiles = segment.end - segment.first;
        Position loading;
        Position landing;
#pragma unroll 1
        for (int tile = 0; tile < tiles + IN_FLIGHT; ++tile) {
            if (tile < tiles) {
                if (tile >= STAGES - 1) {  // before, its stage was unused: Q has the last one
                    ptx::bar_sync(empty(loading), THREADS);
                }
                copies.load(smem + loading.stage * Attention::STAGE_BYTES, segment.first + tile);
                loading.advance();
            }
            // Commits empty groups too: the newest IN_FLIGHT groups then always belong to tiles after the landing one.
            ptx::cp_async_commit_group();
            if (tile >= IN_FLIGHT) {
                ptx::cp_async_wait_group<IN_FLIGHT>();
                ptx::bar_arrive(full(landing), THREADS);
                landing.advance();
            }
        }
    }

    // Computes one warp's rows.
    template <class Source, class Segment>
    static __device__ __forceinline__ void consume(unsigned smem, const Source& source, const Segment& segment,
                                                   Element* o, float* lse, float scale) {
        const int lane = threadIdx.x % 32;
        const ScoreScale score_scale(scale);
        const auto unmasked = Attention::unmasked(source, segment);
        const unsigned k_smem = smem + Products::k_offset(lane);
        const unsigned v_smem = smem + Source::K_BYTES + Products::v_offset(lane);
        int left = segment.end - segment.first;  // tiles of keys left, the present one included
        // Signals that a stage has been read; no producer waits for it unless `ahead` tiles later it has another one.
        const auto release = [&](const Position& at, int ahead) {
            if (left > ahead) {
                ptx::bar_arrive(empty(at), THREADS);
            }
        };

        Position at;
        ptx::bar_sync(full(at), THREADS);
        Products products(source, segment, smem + Attention::Q_OFFSET, threadIdx.x / 32, lane, scale, score_scale);
        release(Position{STAGES - 1}, STAGES - 1);
#pragma unroll 1
        do {
            const unsigned stage = at.stage * Attention::STAGE_BYTES;
            products.start_tile(left > 1);
            Attention::attend(products, unmasked, source, segment.q_tile, segment.end - left, k_smem + stage,
                              v_smem + stage, score_scale.log2, false);
            release(at, STAGES);
            at.advance();
            if (left > 1) {
                ptx::bar_sync(full(at), THREADS);
            }
        } while (--left > 0);
        ptx::bar_sync(ALL_READ, CONSUMERS);  // the output overwrites shared memory that other warps may still read
        Attention::store(products, source, segment, smem, o, lse, score_scale.log2, threadIdx.x);
    }
};
