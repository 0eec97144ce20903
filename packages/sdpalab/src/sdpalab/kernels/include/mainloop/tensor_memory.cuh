// The main loop of attention on TMA and tensor memory (sm_100a), with a policy for the keys that a row sees.
//
// Copies, products, softmax and rescaling run in warps of their own (FlashAttention-4): a CTA has TILES tiles of 128
// query rows. One thread issues the loads, and one the products, which run on the tensor cores by themselves. The
// softmax of a tile belongs to a warpgroup with one row a thread, and the correction of all tiles to another one. With
// two tiles, the softmax of one overlaps the products of the other.
//
//   loads        Q once, K and V into a ring; a stage is free when the product that read it is complete
//   products     S = Q K^T of a tile, after the softmax has taken the scores before; O += P V, after P is in tensor
//                memory, over the columns of S, and O has the unit of its maximum
//   softmax      the scores of its rows; the maximum moves only if a row outgrows it (LAG_LOG2); the weights
//   correction   rescales O where the maximum has moved; at the end divides O by the sums and stores it
//
// CTAs of a cluster may share the rows of one tile, SHARERS of them, and divide the keys. Each leaves its partial output in
// shared memory, and adds up the partial results of its share of the rows from that of all.
//
// Tensor memory: S of each tile, then O of each tile.
#pragma once

#include "mainloop/ring.cuh"
#include "schedule/query_tiles.cuh"
#include "softmax/mask.cuh"
#include "softmax/online.cuh"
#include "tile/swizzle.cuh"
#include "tile/tensor_tiles.cuh"

struct AttentionMaps {
    const TensorMap& q;
    const TensorMap& k;
    const TensorMap& v;
    const TensorMap& o;
};

template <class Mask, int TILES, int SHARERS, int KEYS, int STAGES, int ON_FMA>
class TensorMemoryAttention {
public:
    static constexpr int ROWS = TILES * TENSOR_M;
    static constexpr int WARPGROUP = 128;
    // Registers of a thread. The warpgroups redistribute those of launch among themselves.
    static constexpr int AT_LAUNCH = TILES == 2 ? 128 : 168;
    static constexpr int FOR_PRODUCTS = 48, FOR_CORRECTION = 80, FOR_SOFTMAX = TILES == 2 ? 192 : 240;
    static_assert(FOR_PRODUCTS + FOR_CORRECTION + TILES * FOR_SOFTMAX <= (TILES + 2) * AT_LAUNCH,
                  "setmaxnreg.inc waits forever for registers that the block does not have");
    static constexpr int COLUMNS = TILES * (KEYS + HEAD_DIM) > 256 ? 512 : 256;
    static constexpr int ROW_BYTES = TENSOR_M * HEAD_DIM * 2;
    static constexpr int TILE_BYTES = KEYS * HEAD_DIM * 2;

    static_assert(TILES == 1 || TILES == 2, "S and O of two tiles fill tensor memory");
    static_assert(TILES * (KEYS + HEAD_DIM) <= COLUMNS && KEYS <= 128 && KEYS % 32 == 0, "columns of tensor memory");
    static_assert(HEAD_DIM % PANEL_COLUMNS == 0, "whole panels");
    static_assert(SHARERS == 1 || TILES == 1, "CTAs that share rows have one tile of them");

    struct Barriers {
        unsigned long long q_full[TILES];
        unsigned long long full[STAGES][2];   // K, V
        unsigned long long empty[STAGES][2];
        unsigned long long s_full[TILES];
        unsigned long long p_full[TILES];     // P is there, and O has its unit
        unsigned long long o_full[TILES];     // the whole output
        unsigned long long factors[TILES];    // the factors of O, or at the end the sums
    };

    struct SharedStorage {
        unsigned char rows[TILES][ROW_BYTES];  // Q; O at the end
        unsigned char tiles[STAGES][2][TILE_BYTES];
        float factors[TILES][TENSOR_M];
        float maxima[SHARERS > 1 ? TENSOR_M : 1];
        Barriers barriers;
        unsigned tensor;
    };

    // The whole kernel. o: [query heads of all batches, seq_q, HEAD_DIM]; lse as in schedule/head.cuh; grid = (SHARERS
    // times tiles of ROWS queries, query heads, batch).
    static __device__ __forceinline__ void run(SharedStorage& smem, const AttentionMaps& maps, Element* o, int seq_q,
                                               int seq_kv, int group, float scale, float* lse) {
        const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        const int first_row = GridTile<SHARERS>({}).tile().number * ROWS;
        const KeyTiles seen = own_share(
            Mask::template tiles<KEYS>(first_row, min(first_row + ROWS, seq_q) - 1, seq_kv));
        if (warp == PRODUCTS_WARP) {
            ptx::tcgen05_alloc<COLUMNS>(ptx::smem_address(&smem.tensor));
            ptx::tcgen05_relinquish_alloc_permit();
        }
        if (threadIdx.x == 0) {
            init(smem.barriers);
            ptx::fence_mbarrier_init_release_cluster();
        }
        ptx::griddepcontrol_wait();
        ptx::tcgen05_fence_before_thread_sync();
        __syncthreads();
        ptx::tcgen05_fence_after_thread_sync();
        const unsigned tensor = smem.tensor;
        if (threadIdx.x == 0) {
            ptx::griddepcontrol_launch_dependents();
        }

        if (warp >= PRODUCTS_WARP) {
            ptx::setmaxnreg_dec<FOR_PRODUCTS>();
            if (warp == PRODUCTS_WARP && threadIdx.x % 32 == 0) {
                multiply(smem, tensor, seen.end - seen.first);
            }
            if (warp == PRODUCTS_WARP + 1 && threadIdx.x % 32 == 0) {
                load(smem, maps, seen, first_row, group);
            }
        } else if (warp >= 4 * TILES) {
            ptx::setmaxnreg_dec<FOR_CORRECTION>();
            correct(smem, maps, tensor, seen.end - seen.first, first_row);
        } else {
            ptx::setmaxnreg_inc<FOR_SOFTMAX>();
            weigh(smem, tensor, seen, warp / 4, first_row, seq_q, seq_kv, ScoreScale(scale), lse);
        }
        ptx::tcgen05_fence_before_thread_sync();
        __syncthreads();
        if (warp == PRODUCTS_WARP) {
            ptx::tcgen05_fence_after_thread_sync();
            ptx::tcgen05_dealloc<COLUMNS>(tensor);
        }
        if constexpr (SHARERS > 1) {
            ptx::barrier_cluster_arrive();  // the partial results are there
            ptx::barrier_cluster_wait_acquire();
            if (warp >= 4 * TILES && warp < PRODUCTS_WARP) {
                merge(smem, o, first_row, seq_q, ScoreScale(scale).log2, lse);
            }
            ptx::barrier_cluster_arrive();  // and have been read
            ptx::barrier_cluster_wait_acquire();
        }
    }

private:
    static constexpr int PRODUCTS_WARP = 4 * (TILES + 1);
    enum Operand { K, V };

    // The part of a tile's keys that this CTA of the cluster takes; the last ones may have none.
    static __device__ __forceinline__ KeyTiles own_share(const KeyTiles& seen) {
        if constexpr (SHARERS == 1) {
            return seen;
        }
        const int each = ceil_div(seen.end - seen.first, SHARERS);
        const int first = min(seen.first + static_cast<int>(ptx::cluster_ctarank()) * each, seen.end);
        return KeyTiles{first, min(first + each, seen.end)};
    }

    static __device__ __forceinline__ void init(Barriers& barriers) {
        const auto each = [](unsigned long long& mbarrier, int arrivals) {
            ptx::mbarrier_init(ptx::smem_address(&mbarrier), arrivals);
        };
#pragma unroll
        for (int i = 0; i < 2 * STAGES; ++i) {
            each(barriers.full[i / 2][i % 2], 1);
            each(barriers.empty[i / 2][i % 2], 1);
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            each(barriers.q_full[tile], 1);
            each(barriers.s_full[tile], 1);
            each(barriers.p_full[tile], 2 * WARPGROUP);
            each(barriers.o_full[tile], 1);
            each(barriers.factors[tile], WARPGROUP);
        }
    }

    static __device__ __forceinline__ unsigned scores(unsigned tensor, int tile) { return tensor + tile * KEYS; }

    static __device__ __forceinline__ unsigned output(unsigned tensor, int tile) {
        return tensor + TILES * KEYS + tile * HEAD_DIM;
    }

    static __device__ __forceinline__ void arrive(const unsigned long long& mbarrier) {
        ptx::mbarrier_arrive(ptx::smem_address(&mbarrier));
    }

    // ---- loads ----

    static __device__ __forceinline__ void load(SharedStorage& smem, const AttentionMaps& maps, const KeyTiles& seen,
                                                int first_row, int group) {
        const int q_head = static_cast<int>(q_head_of_block()), kv_head = q_head / group;
        RingPosition<STAGES> at;
        const auto load_tile = [&](Operand operand, int tile) {
            mbarrier_wait(smem.barriers.empty[at.stage][operand], at.parity ^ 1);
            const unsigned full = ptx::smem_address(&smem.barriers.full[at.stage][operand]);
            ptx::mbarrier_arrive_expect_tx(full, TILE_BYTES);
            ptx::cp_async_bulk_tensor_4d_load(ptx::smem_address(smem.tiles[at.stage][operand]),
                                              operand == K ? maps.k : maps.v, 0, tile * KEYS, 0, kv_head, full);
        };
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const unsigned full = ptx::smem_address(&smem.barriers.q_full[tile]);
            ptx::mbarrier_arrive_expect_tx(full, ROW_BYTES);
            ptx::cp_async_bulk_tensor_4d_load(ptx::smem_address(smem.rows[tile]), maps.q, 0,
                                              first_row + tile * TENSOR_M, 0, q_head, full);
            if (tile == 0 && (SHARERS == 1 || seen.first < seen.end)) {
                load_tile(K, seen.first);
            }
        }
#pragma unroll 1
        for (int tile = seen.first; tile < seen.end; ++tile) {
            if (tile > seen.first) {
                load_tile(K, tile);
            }
            load_tile(V, tile);
            at.advance();
        }
    }

    // ---- products ----

    static __device__ __forceinline__ void multiply(SharedStorage& smem, unsigned tensor, int tiles) {
        Barriers& barriers = smem.barriers;
        RingPosition<STAGES> k_at, v_at;
        const auto descriptor = [&](const RingPosition<STAGES>& at, Operand operand) {
            return operand_descriptor(ptx::smem_address(smem.tiles[at.stage][operand]), KEYS);
        };
        const auto scores_of = [&](int tile) {
            issue_scores<KEYS>(scores(tensor, tile),
                               operand_descriptor(ptx::smem_address(smem.rows[tile]), TENSOR_M), descriptor(k_at, K));
            ptx::tcgen05_commit(ptx::smem_address(&barriers.s_full[tile]));
        };
        const auto release = [&](RingPosition<STAGES>& at, Operand operand) {
            ptx::tcgen05_commit(ptx::smem_address(&barriers.empty[at.stage][operand]));
            at.advance();
        };
        if (SHARERS > 1 && tiles == 0) {
            return;
        }
        mbarrier_wait(barriers.full[k_at.stage][K], k_at.parity);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            mbarrier_wait(barriers.q_full[tile], 0);
            scores_of(tile);
        }
        release(k_at, K);
#pragma unroll 1
        for (int step = 0; step < tiles; ++step) {
            const bool more = step + 1 < tiles;
            mbarrier_wait(barriers.full[v_at.stage][V], v_at.parity);
            if (more) {
                mbarrier_wait(barriers.full[k_at.stage][K], k_at.parity);
            }
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                mbarrier_wait(barriers.p_full[tile], step & 1);
                ptx::tcgen05_fence_after_thread_sync();
                issue_output<KEYS>(output(tensor, tile), scores(tensor, tile), descriptor(v_at, V), step > 0);
                if (more) {
                    scores_of(tile);  // its arrival is that of the output, too
                } else {
                    ptx::tcgen05_commit(ptx::smem_address(&barriers.o_full[tile]));
                }
            }
            release(v_at, V);
            if (more) {
                release(k_at, K);
            }
        }
    }

    // ---- softmax ----

    // A row of scores in registers, and its weights.
    struct Scores {
        float s[KEYS];

        __device__ __forceinline__ void load(unsigned tensor) {
#pragma unroll
            for (int i = 0; i < KEYS / 32; ++i) {
                ptx::tcgen05_ld_32x32b_x32(*reinterpret_cast<float(*)[32]>(s + 32 * i), tensor + 32 * i);
            }
            ptx::tcgen05_wait_ld();
        }

        __device__ __forceinline__ float max() const {
            float largest[4];
#pragma unroll
            for (int i = 0; i < KEYS; ++i) {
                largest[i % 4] = i < 4 ? s[i] : fmaxf(largest[i % 4], s[i]);
            }
            return fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
        }

        // Replaces the scores by the weights 2^(score * factor + offset), and returns their sum.
        __device__ __forceinline__ float exponentiate(float factor, float offset) {
            const PowerOnFma power(factor, offset);
            float sums[4];
#pragma unroll
            for (int i = 0; i < KEYS; ++i) {
                const bool on_fma = i * ON_FMA % 64 >= 64 - ON_FMA;
                s[i] = on_fma ? power.of(s[i]) : ptx::ex2_approx_ftz_f32(fmaf(s[i], factor, offset));
                sums[i % 4] = i < 4 ? s[i] : sums[i % 4] + s[i];
            }
            return (sums[0] + sums[1]) + (sums[2] + sums[3]);
        }

        // Stores the weights as left operand of the product with V.
        __device__ __forceinline__ void store(unsigned tensor) const {
#pragma unroll
            for (int i = 0; i < KEYS / 32; ++i) {
                unsigned pairs[16];
#pragma unroll
                for (int j = 0; j < 16; ++j) {
                    pairs[j] = pack_pair(s[32 * i + 2 * j], s[32 * i + 2 * j + 1]);
                }
                ptx::tcgen05_st_32x32b_x16(tensor + 16 * i, pairs);
            }
            ptx::tcgen05_wait_st();
        }
    };

    static __device__ __forceinline__ void weigh(SharedStorage& smem, unsigned tensor, const KeyTiles& seen, int tile,
                                                 int first_row, int seq_q, int seq_kv, const ScoreScale& scale,
                                                 float* lse) {
        const int own = threadIdx.x % WARPGROUP;  // row in the tile
        const int first = first_row + tile * TENSOR_M;
        const int row = first + own;
        const typename Mask::template Unmasked<KEYS> unmasked(first, first + TENSOR_M - 1, seq_kv);
        const unsigned scores_tensor = own_lanes(scores(tensor, tile));
        SoftmaxRow softmax;
        unsigned parity = 0;
#pragma unroll 1
        for (int key_tile = seen.first; key_tile < seen.end; ++key_tile) {
            mbarrier_wait(smem.barriers.s_full[tile], parity);
            ptx::tcgen05_fence_after_thread_sync();
            Scores scores;
            scores.load(scores_tensor);
            if (scale.sign != 1.0f) {
#pragma unroll
                for (float& score : scores.s) {
                    score *= scale.sign;
                }
            }
            if (!unmasked.contains(key_tile)) {
                const typename Mask::Row visible(row, seq_kv, key_tile * KEYS);
#pragma unroll
                for (int key = 0; key < KEYS; ++key) {
                    scores.s[key] = visible.sees(key) ? scores.s[key] : NEGATIVE_INFINITY;
                }
            }
            const float tile_max = scores.max();
            float factor = 1.0f;
            if ((tile_max - softmax.max) * scale.log2 > LAG_LOG2) {
                factor = softmax.advance(tile_max, scale.log2);
            }
            pass_factor(smem, tile, own, factor, key_tile > seen.first, parity);

            float offset = -softmax.max * scale.log2;
            if (__any_sync(0xffffffffu, fabsf(offset) > FUSED_LOG2)) {
#pragma unroll
                for (float& score : scores.s) {
                    score -= softmax.max;
                }
                offset = 0.0f;
            }
            softmax.sum += scores.exponentiate(scale.log2, offset);
            scores.store(scores_tensor);
            ptx::tcgen05_fence_before_thread_sync();
            arrive(smem.barriers.p_full[tile]);
            parity ^= 1;
        }
        if constexpr (SHARERS > 1) {
            smem.maxima[own] = softmax.max;
            pass_factor(smem, tile, own, softmax.sum, seen.first < seen.end, parity);
            return;
        }
        pass_factor(smem, tile, own, softmax_normaliser(softmax.sum), true, parity);
        if (lse != nullptr && row < seq_q) {
            lse_of_block(lse, seq_q)[row] = log_sum_exp(softmax.max, softmax.sum, scale.log2);
        }
    }

    // Passes a row's factor to the correction, which has read the one before (has_before) when it arrived at p_full.
    static __device__ __forceinline__ void pass_factor(SharedStorage& smem, int tile, int row, float factor,
                                                       bool has_before, unsigned parity) {
        if (has_before) {
            mbarrier_wait(smem.barriers.p_full[tile], parity ^ 1);
        }
        smem.factors[tile][row] = factor;
        arrive(smem.barriers.factors[tile]);
    }

    // ---- correction ----

    static __device__ __forceinline__ void correct(SharedStorage& smem, const AttentionMaps& maps, unsigned tensor,
                                                   int tiles, int first_row) {
        const int own = threadIdx.x % WARPGROUP;
#pragma unroll 1
        for (int step = 0; step < tiles; ++step) {
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                mbarrier_wait(smem.barriers.factors[tile], step & 1);
                const float factor = smem.factors[tile][own];
                if (step > 0 && __any_sync(0xffffffffu, factor != 1.0f)) {
                    ptx::tcgen05_fence_after_thread_sync();
                    rescale(own_lanes(output(tensor, tile)), factor);
                    ptx::tcgen05_fence_before_thread_sync();
                }
                arrive(smem.barriers.p_full[tile]);
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            mbarrier_wait(smem.barriers.q_full[tile], 0);  // the store takes Q's buffer
            mbarrier_wait(smem.barriers.factors[tile], tiles & 1);
            if (SHARERS == 1 || tiles > 0) {
                mbarrier_wait(smem.barriers.o_full[tile], 0);
                ptx::tcgen05_fence_after_thread_sync();
            }
            if constexpr (SHARERS > 1) {
                store_partial(smem, own_lanes(output(tensor, tile)), tiles > 0);
            } else {
                store(smem, maps.o, own_lanes(output(tensor, tile)), tile, first_row + tile * TENSOR_M);
            }
        }
        ptx::cp_async_bulk_wait_group_read<0>();  // the block's shared memory lasts until then
    }

    static __device__ __forceinline__ void rescale(unsigned tensor, float factor) {
#pragma unroll 1
        for (int i = 0; i < HEAD_DIM / 32; ++i) {
            float o[32];
            ptx::tcgen05_ld_32x32b_x32(o, tensor + 32 * i);
            ptx::tcgen05_wait_ld();
#pragma unroll
            for (float& each : o) {
                each *= factor;
            }
            ptx::tcgen05_st_32x32b_x32(tensor + 32 * i, o);
        }
        ptx::tcgen05_wait_st();
    }

    // ---- a cluster that shares rows ----

    // Place of four columns of a row of partial output, in the ring, which no copy or product uses any more.
    static __device__ __forceinline__ unsigned partial(const SharedStorage& smem, int row, int four) {
        static_assert(sizeof(SharedStorage::tiles) >= TENSOR_M * HEAD_DIM * sizeof(float), "the ring holds all rows");
        return ptx::smem_address(smem.tiles) + (row * (HEAD_DIM / 4) + (four ^ row % 8)) * 16;
    }

    static __device__ __forceinline__ void store_partial(SharedStorage& smem, unsigned tensor, bool any) {
        const int own = threadIdx.x % WARPGROUP;
#pragma unroll 1
        for (int i = 0; i < HEAD_DIM / 32; ++i) {
            float o[32] = {};
            if (any) {
                ptx::tcgen05_ld_32x32b_x32(o, tensor + 32 * i);
                ptx::tcgen05_wait_ld();
            }
#pragma unroll
            for (int four = 0; four < 8; ++four) {
                unsigned bits[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    bits[j] = __float_as_uint(o[4 * four + j]);
                }
                ptx::st_shared_v4(partial(smem, own, 8 * i + four), bits);
            }
        }
    }

    // Adds up the partial results of this CTA's share of the rows, SHARERS threads a row, and stores them.
    static __device__ __forceinline__ void merge(const SharedStorage& smem, Element* o, int first_row, int seq_q,
                                                 float scale_log2, float* lse) {
        constexpr int COLUMNS_EACH = HEAD_DIM / SHARERS;
        const int thread = threadIdx.x % WARPGROUP, part = thread % SHARERS;
        const int own = static_cast<int>(ptx::cluster_ctarank()) * (TENSOR_M / SHARERS) + thread / SHARERS;
        const int row = first_row + own;
        const auto of = [](const void* place, int rank) {
            return ptx::mapa_shared_cluster(ptx::smem_address(place), rank);
        };
        float weights[SHARERS], row_max = LOWEST_FLOAT, row_sum = 0.0f;
#pragma unroll
        for (int rank = 0; rank < SHARERS; ++rank) {
            weights[rank] = ptx::ld_shared_cluster_f32(of(&smem.maxima[own], rank));
            row_max = fmaxf(row_max, weights[rank]);
        }
#pragma unroll
        for (int rank = 0; rank < SHARERS; ++rank) {
            weights[rank] = softmax_weight(weights[rank], row_max, scale_log2);
            row_sum += weights[rank] * ptx::ld_shared_cluster_f32(of(&smem.factors[0][own], rank));
        }
        if (row >= seq_q) {
            return;
        }
        if (lse != nullptr && part == 0) {
            lse_of_block(lse, seq_q)[row] = log_sum_exp(row_max, row_sum, scale_log2);
        }
        const float normaliser = softmax_normaliser(row_sum);
        Element* out = o + row_of_block(row, seq_q) * HEAD_DIM + part * COLUMNS_EACH;
#pragma unroll
        for (int eight = 0; eight < COLUMNS_EACH / 8; ++eight) {
            float sums[8] = {};
#pragma unroll
            for (int rank = 0; rank < SHARERS; ++rank) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float four[4];
                    const int column = part * COLUMNS_EACH / 4 + 2 * eight + half;
                    ptx::ld_shared_cluster_v4(four, ptx::mapa_shared_cluster(partial(smem, own, column), rank));
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        sums[4 * half + j] = fmaf(weights[rank], four[j], sums[4 * half + j]);
                    }
                }
            }
            uint4 packed;
            packed.x = pack_pair(sums[0] * normaliser, sums[1] * normaliser);
            packed.y = pack_pair(sums[2] * normaliser, sums[3] * normaliser);
            packed.z = pack_pair(sums[4] * normaliser, sums[5] * normaliser);
            packed.w = pack_pair(sums[6] * normaliser, sums[7] * normaliser);
            reinterpret_cast<uint4*>(out)[eight] = packed;
        }
    }

    // Each warp stores its 32 rows, divided by their sums: through Q's buffer, which no product reads any more.
    static __device__ __forceinline__ void store(SharedStorage& smem, const TensorMap& o_map, unsigned tensor, int tile,
                                                 int row) {
        const int own = threadIdx.x % WARPGROUP, warp_row = own / 32 * 32;
        const float normaliser = smem.factors[tile][own];
        const unsigned rows = ptx::smem_address(smem.rows[tile]) + warp_row * HEAD_DIM * 2;
#pragma unroll 1
        for (int i = 0; i < HEAD_DIM / 32; ++i) {
            float o[32];
            ptx::tcgen05_ld_32x32b_x32(o, tensor + 32 * i);
            ptx::tcgen05_wait_ld();
            const unsigned panel = rows + i / 2 * (32 * 128);
#pragma unroll
            for (int chunk = 0; chunk < 4; ++chunk) {
                unsigned pairs[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    pairs[j] = pack_pair(o[8 * chunk + 2 * j] * normaliser, o[8 * chunk + 2 * j + 1] * normaliser);
                }
                ptx::st_shared_v4(panel + swizzled_offset<PANEL_COLUMNS>(own % 32, i % 2 * 4 + chunk), pairs);
            }
        }
        ptx::fence_proxy_async_shared_cta();
        __syncwarp();
        if (own % 32 == 0) {
            ptx::cp_async_bulk_tensor_4d_store(o_map, 0, row + warp_row, 0, static_cast<int>(q_head_of_block()), rows);
            ptx::cp_async_bulk_commit_group();
        }
    }
};
