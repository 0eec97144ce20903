// The main loop of attention on mma.sync (sm_80 and later), with policies for its products, its epilogue, its
// scheduler, its mask and its source of tiles.
//
// Each warp owns 16 or 32 query rows with their whole softmax. Shared memory holds a ring of stages with a tile of K
// and one of V each; loads run STAGES - 1 tiles ahead of the computation. One barrier per tile of keys has two
// purposes: the tile has arrived for all warps, and all warps have left the stage that the next copy overwrites.
// Masking and rescaling sit behind warp-uniform branches, since few tiles need them.
//
// The policies, as in mainloop/warpgroups.cuh:
//   Products   WarpProducts16 (tile/warp_products.cuh) or WarpProductsE4m3 (tile/warp_fp8.cuh); of
//              WARPS_PER_ROW warps that share rows, each has keys of its own
//   Epilogue   OwnRows (epilogue/own_rows.cuh), SharedRows (epilogue/merge.cuh) if blocks share tiles of queries, or
//              SplitRows (epilogue/split_rows.cuh) if warps do, too
//   Scheduler  OneTile or StreamK (schedule/stream_k.cuh), or SequenceTile (schedule/sequence.cuh): segments of a
//              block, each a tile of queries with some tiles of keys
//   Mask       CausalMask (softmax/mask.cuh) or WindowMask (softmax/window.cuh)
//   Source     DenseRows (mainloop/dense_rows.cuh), Fp8Blocks (mainloop/fp8_blocks.cuh), or SequenceRows
//              (mainloop/sequence_rows.cuh) for packed sequences and pages: where tiles come from
#pragma once

#include "epilogue/split_rows.cuh"
#include "epilogue/store.cuh"
#include "softmax/online.cuh"

template <class Products_, class Epilogue, class Scheduler, class Mask, class Source, int TILE_ROWS, int STAGES>
class WarpAttention {
public:
    using Products = Products_;
    static constexpr int KEYS = Products::KEYS;  // of a warp
    static constexpr int WARPS_PER_ROW = Products::WARPS_PER_ROW;
    static constexpr int TILE_KEYS = KEYS * WARPS_PER_ROW;
    using Unmasked = typename Mask::template Unmasked<TILE_KEYS>;
    static constexpr int ROWS = Products::ROWS;  // of a warp
    static constexpr int BLOCKS = Products::BLOCKS;
    static constexpr int COLS = Products::COLS;
    static constexpr int THREADS = TILE_ROWS / ROWS * WARPS_PER_ROW * 32;
    static constexpr int STAGE_BYTES = Source::K_BYTES + Source::V_BYTES;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
    static constexpr int O_BYTES = TILE_ROWS * COLS * 2;
    // Q passes through the stage filled last, or stays behind the ring.
    static constexpr int Q_OFFSET = Products::Q_IN_REGISTERS ? RING_BYTES - STAGE_BYTES : RING_BYTES;
    static constexpr int Q_END = Q_OFFSET + Source::Q_BYTES;
    using Split = SplitTile<TILE_ROWS, ROWS, COLS, WARPS_PER_ROW>;
    static constexpr bool MERGES_WARPS = WARPS_PER_ROW > 1;
    static constexpr int LOOP_BYTES = RING_BYTES > Q_END ? RING_BYTES : Q_END;
    static constexpr int SMEM_BYTES =
        MERGES_WARPS && Split::SMEM_BYTES > LOOP_BYTES ? Split::SMEM_BYTES : LOOP_BYTES;
    static constexpr bool HAS_EDGE = Mask::HIDES || Source::PARTIAL_KV;

    static_assert(STAGES >= 2 && STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
    static_assert(O_BYTES <= SMEM_BYTES, "the output passes through the shared memory of the tiles");
    static_assert(!MERGES_WARPS || !Source::CONTIGUOUS, "warps that share rows store them by row");

    // The whole kernel. smem: SMEM_BYTES, aligned to 1,024; o, lse: rows as numbered by the source, lse may be null.
    static __device__ __forceinline__ void run(unsigned smem, const Source& source, Scheduler scheduler,
                                               const Epilogue& epilogue, Element* o, float* lse, float scale) {
        bool more;
#pragma unroll 1
        do {
            const auto segment = scheduler.segment();
            const int thread = ptx::tid_x();
            const int warp = thread / 32;
            const int lane = thread % 32;
            typename Source::template Copies<THREADS> copies(source, segment, thread);
            const float scale_here = opaque(scale);
            const ScoreScale score_scale(scale_here);
            copies.load_q(smem + Q_OFFSET, segment);
            ptx::cp_async_commit_group();

            int left = segment.end - segment.first;  // tiles of keys left, the present one included
            const auto load = [&](int ahead, unsigned stage) {
                if (left > ahead) {
                    copies.load(smem + stage, segment.end - left + ahead);
                }
                // Commits empty groups too: the newest STAGES - 1 groups then always belong to the tiles ahead.
                ptx::cp_async_commit_group();
            };
#pragma unroll
            for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
                load(ahead, ahead * STAGE_BYTES);
            }

            ptx::cp_async_wait_group<STAGES - 1>();
            __syncthreads();
            Products products(source, segment, smem + Q_OFFSET, warp / WARPS_PER_ROW, lane, scale_here, score_scale);
            const Unmasked all_visible = unmasked(source, segment);
            unsigned k_smem = smem + Products::k_offset(lane);
            unsigned v_smem = smem + Source::K_BYTES + Products::v_offset(lane);
            if constexpr (WARPS_PER_ROW > 1) {
                k_smem += warp % WARPS_PER_ROW * (KEYS * Products::K_ROW_BYTES);
                v_smem += warp % WARPS_PER_ROW * (KEYS * Products::V_ROW_BYTES);
            }
            unsigned stage = 0;
            const auto step = [&](bool first) {
                ptx::cp_async_wait_group<STAGES - 2>();
                __syncthreads();
                load(STAGES - 1, stage_before(stage));
                products.start_tile(left > 1);
                if (!Source::CONTIGUOUS && source.rows_left(segment, warp / WARPS_PER_ROW * ROWS) <= 0) {
                    stage = stage_after(stage);
                    return;  // a warp without rows only copies
                }
                attend(products, all_visible, source, segment.q_tile, segment.end - left, k_smem + stage,
                       v_smem + stage, score_scale.log2, first);
                stage = stage_after(stage);
            };
            if constexpr (Products::PEELS_FIRST_TILE) {
                step(true);
#pragma unroll 1
                while (--left > 0) {
                    step(false);
                }
            } else {
#pragma unroll 1
                do {
                    step(false);
                } while (--left > 0);
            }

            // Recomputed here: keeping the position through the loop would cost registers.
            scheduler.recompute();
            const auto done = scheduler.segment();
            const int done_thread = ptx::tid_x();
            if constexpr (MERGES_WARPS) {
                __syncthreads();  // the merge overwrites shared memory that other warps may still read keys from
                epilogue.template finish<Split>(products, source, scheduler, done,
                                                static_cast<float*>(__cvta_shared_to_generic(smem)), o, lse,
                                                score_scale.log2, done_thread);
                return;
            } else {
                const bool has_rows = Source::CONTIGUOUS || source.rows_left(done, done_thread / 32 * ROWS) > 0;
                if (!epilogue.template gather<THREADS>(products.o_frag, products.softmax.rows, scheduler, done, more,
                                                       done_thread, has_rows, score_scale.log2)) {
                    continue;
                }
                __syncthreads();  // the output overwrites shared memory that other warps may still read keys from
                store(products, source, done, smem, o, lse, score_scale.log2, done_thread);
            }
            if (more) {
                __syncthreads();  // the next tile's copies overwrite the output's shared memory
            }
        } while (more);
    }

    // Tiles of keys that all rows of a tile of queries see in full.
    template <class Segment>
    static __device__ __forceinline__ Unmasked unmasked(const Source& source, const Segment& segment) {
        const int first_row = segment.q_tile * TILE_ROWS;
        return Unmasked(first_row / Source::HEADS + source.ahead,
                        (first_row + TILE_ROWS - 1) / Source::HEADS + source.ahead, source.keys);
    }

    // Adds a tile of keys to the result. first: it is the first one.
    static __device__ __forceinline__ void attend(Products& products, const Unmasked& unmasked, const Source& source,
                                                  int q_tile, int tile, unsigned k_smem, unsigned v_smem,
                                                  float scale_log2, bool first) {
        typename Products::Scores scores;
        products.multiply_scores(scores, k_smem);
        if constexpr (Mask::CAPS) {
            Mask::cap(scores, scale_log2);
        }
        if (HAS_EDGE && !unmasked.contains(tile)) {
            const int thread = threadIdx.x;
            const int row = q_tile * TILE_ROWS + thread / 32 / WARPS_PER_ROW * ROWS + thread % 32 / 4;
            const int first_key = tile * TILE_KEYS + thread / 32 % WARPS_PER_ROW * KEYS;
            apply_mask(scores, row, first_key + 2 * (thread % 4), source);
        }
        products.online_softmax(scores, first);
        products.add_output(scores, v_smem);
    }

    // Stores a warp's rows of the output and their log-sum-exp, through shared memory that no warp reads any more.
    template <class Segment>
    static __device__ __forceinline__ void store(const Products& products, const Source& source, const Segment& segment,
                                                 unsigned smem, Element* o, float* lse, float scale_log2, int thread) {
        const int warp_row = thread / 32 * ROWS;
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const int block_row = warp_row + 16 * block;
            const int rows_left = source.rows_left(segment, block_row);
            const int lane = thread % 32;
            const unsigned block_smem = smem + block_row * COLS * 2;
            unsigned o_pairs[COLS / 8][2];
            const auto lse_offset = [&](int row) {
                if constexpr (Source::CONTIGUOUS) {
                    return static_cast<unsigned long long>(source.first_row_of_all(segment) + block_row) + row;
                } else {
                    return source.lse_offset(segment, block_row + row);
                }
            };
            normalise_rows(o_pairs, products.o_frag[block], products.softmax.rows[block], lse, lse_offset, rows_left,
                           scale_log2, Products::WEIGHT_UNIT, lane);
            if constexpr (Source::CONTIGUOUS) {
                const unsigned long long row_of_all = source.first_row_of_all(segment) + block_row;
                store_warp_tile<COLS>(o + row_of_all * COLS, rows_left, o_pairs, block_smem, lane);
            } else {
                constexpr int CHUNKS = PANEL<COLS> / CHUNK_ELEMENTS;
                const auto destination = [&](int row, int panel) {
                    const int own = block_row + row + lane / CHUNKS;
                    Element* first = o + source.template row_offset<COLS>(segment, own) + panel * PANEL<COLS>;
                    return reinterpret_cast<uint4*>(first) + lane % CHUNKS;
                };
                store_scattered_rows<COLS>(destination, rows_left, o_pairs, block_smem, lane);
            }
        }
    }

private:
    // The next and the previous stage of the ring; with two stages they are the same.
    static __device__ __forceinline__ unsigned stage_after(unsigned stage) {
        return STAGES == 2 ? stage ^ STAGE_BYTES : stage == RING_BYTES - STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    }

    static __device__ __forceinline__ unsigned stage_before(unsigned stage) {
        return STAGES == 2 ? stage ^ STAGE_BYTES : stage == 0 ? RING_BYTES - STAGE_BYTES : stage - STAGE_BYTES;
    }

    // row: this lane's first. first_key: of this lane's columns.
    static __device__ __forceinline__ void apply_mask(typename Products::Scores& scores, int row, int first_key,
                                                      const Source& source) {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const int query = (row + 16 * block) / Source::HEADS + source.ahead;
            const int next_query = (row + 16 * block + 8) / Source::HEADS + source.ahead;
            const typename Mask::Row rows[2] = {{query, source.keys, first_key}, {next_query, source.keys, first_key}};
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& score = scores[block][n][i];
                    score = rows[i / 2].sees(8 * n + i % 2) ? score : NEGATIVE_INFINITY;
                }
            }
        }
    }
};
