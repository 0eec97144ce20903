// A tile of attention by one warpgroup: 64 rows of Q, with both products on wgmma and the weights between them in
// registers.
//
// A thread holds parts of rows lane / 4 and lane / 4 + 8 of its warp's 16. Fragments are numbered as in ptx/wgmma.cuh:
// element i of an accumulator belongs to the row of softmax[i / 2 % 2], and packed in pairs it is the left operand of
// the next product.
//
// mainloop/warpgroups.cuh uses Products16 for 16-bit elements, and ProductsE4m3 (tile/warpgroup_fp8.cuh) for e4m3. They
// define the operands' layout in global and in shared memory, the products of a tile, the weights of its scores, and
// the accumulation of its product with V.
#pragma once

#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"
#include "schedule/query_tiles.cuh"
#include "softmax/online.cuh"

// Applies the sign of the scale, the cap and the mask to a tile's scores, in place. columns: policy Seen at this tile
// (mainloop/warpgroups.cuh). ONE_BRANCH: one branch around sign and mask, which most steps skip; it takes registers.
template <bool ONE_BRANCH, int SCORES, class Columns>
__device__ __forceinline__ void mask_scores(float (&s_frag)[SCORES], const ScoreScale& scale, bool masked,
                                            const Columns& columns) {
    constexpr bool TOGETHER = ONE_BRANCH && !Columns::CAPS;
    const bool signs = scale.sign != 1.0f;
    if (!TOGETHER && signs) {
#pragma unroll
        for (float& score : s_frag) {
            score *= scale.sign;
        }
    }
    columns.cap(s_frag, scale.log2);
    if (masked || (TOGETHER && signs)) {
        const float sign = TOGETHER ? scale.sign : 1.0f;
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            s_frag[i] = columns.sees(8 * (i / 4) + i % 2, i / 2 % 2) ? s_frag[i] * sign : NEGATIVE_INFINITY;
        }
    }
}

// Maximum of each of the quad's rows.
template <int SCORES>
__device__ __forceinline__ void row_maxima(float (&tile_max)[2], const float (&s_frag)[SCORES]) {
    tile_max[0] = tile_max[1] = NEGATIVE_INFINITY;
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
        tile_max[i / 2 % 2] = fmaxf(tile_max[i / 2 % 2], s_frag[i]);
    }
    tile_max[0] = quad_max(tile_max[0]);
    tile_max[1] = quad_max(tile_max[1]);
}

// Maximum of each of the quad's rows, or 0 if all its scores are negative: at least the maximum, in half of the
// instructions. As signed integers, the bits of non-negative floats have the same order and those of negative floats
// are negative; sm_90 has an integer maximum of three operands.
template <int SCORES>
__device__ __forceinline__ void row_bounds(float (&bound)[2], const float (&s_frag)[SCORES]) {
    constexpr int CHAINS = 4;  // two a row: half the length
    int largest[CHAINS] = {};
#pragma unroll
    for (int i = 0; i < SCORES; i += 2) {
        int& chain = largest[i / 2 % CHAINS];
        chain = max(max(chain, __float_as_int(s_frag[i])), __float_as_int(s_frag[i + 1]));
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        bound[row] = quad_max(__int_as_float(max(largest[row], largest[row + 2])));
    }
}

// Reduces the sums of a lane's two rows from its own columns to whole rows.
__device__ __forceinline__ void sum_over_quads(SoftmaxRow (&rows)[2]) {
    rows[0].sum = quad_sum(rows[0].sum);
    rows[1].sum = quad_sum(rows[1].sum);
}

// Change of the accumulators' units by a tile's maximum.
struct Rescale {
    bool needed = false;  // uniform in the warp
    float factor[2];      // of either row, if needed
};

// Includes the maxima of a tile's masked scores in the softmax of a lane's two rows. Returns the exponents of the
// weights; rescale: output only.
template <int SCORES>
__device__ __forceinline__ FusedExponents advance_rows(SoftmaxRow (&softmax)[2], Rescale& rescale,
                                                       float (&s_frag)[SCORES], float scale_log2) {
    float tile_max[2];
    row_maxima(tile_max, s_frag);
    rescale.factor[0] = softmax[0].advance(tile_max[0], scale_log2);
    rescale.factor[1] = softmax[1].advance(tile_max[1], scale_log2);
    FusedExponents exponents(softmax, scale_log2);
    if (__any_sync(0xffffffffu, !exponents.in_range())) {
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            s_frag[i] -= softmax[i / 2 % 2].max;
        }
        exponents.subtracted();
    }
    return exponents;
}

// Both products in 16 bits. The tensor cores add P V to O, which the softmax rescales. PowerOnFma computes ON_FMA of 64
// weights.
//
// The softmax is lazy: the reference maximum of the weights stays until a row outgrows it (LAG_LOG2). Threads with
// FREE_REGISTERS for the scores beside the weights detect that in the weights' sums, and then recompute the weights;
// other threads detect it beforehand in bounds of the scores.
template <int TILE_KEYS, int ON_FMA, int FREE_REGISTERS, int HEADS = 1>
class Products16 {
public:
    static constexpr int KEYS = TILE_KEYS;
    static constexpr int ELEMENT_BYTES = 2;
    static constexpr int REGISTERS = HEAD_DIM / 2 + KEYS / 2 + KEYS / 4;  // accumulators and weights of a thread
    static constexpr bool OVERLAPS = true;
    static constexpr bool CHECKS_SUMS = REGISTERS + KEYS / 2 <= FREE_REGISTERS;
    static constexpr bool AHEAD = CHECKS_SUMS && HEAD_DIM == 64;  // registers for the scores of a second tile
    static constexpr float WEIGHT_UNIT = 1.0f;                            // unit of the sums

    // Maps of q [heads, panels, seq_q, 64] with boxes [1, panels, 64, 64] and of k, v [K/V heads, panels, seq_kv, 64]
    // with boxes [1, panels, KEYS, 64]; panels of 64 columns, heads of all batches. Coordinates are column, row, panel,
    // head. With several HEADS in a tile of queries (Work), q is [heads / HEADS, panels, seq_q, HEADS, 64] with boxes
    // [1, panels, 64 / HEADS, HEADS, 64].
    struct Tensors {
        const TensorMap& q;
        const TensorMap& k;
        const TensorMap& v;

        __device__ __forceinline__ void load_q(unsigned q_smem, const Work& work, int row, unsigned full) const {
            if constexpr (HEADS == 1) {
                ptx::cp_async_bulk_tensor_4d_load(q_smem, q, 0, row, 0, work.q_head, full);
            } else {
                ptx::cp_async_bulk_tensor_5d_load(q_smem, q, 0, 0, row / HEADS, 0, work.q_head, full);
            }
        }

        __device__ __forceinline__ void load_k(unsigned k_smem, const Work& work, int key, unsigned full) const {
            ptx::cp_async_bulk_tensor_4d_load(k_smem, k, 0, key, 0, work.kv_head, full);
        }

        __device__ __forceinline__ void load_v(unsigned v_smem, const Work& work, int key, unsigned full) const {
            ptx::cp_async_bulk_tensor_4d_load(v_smem, v, 0, key, 0, work.kv_head, full);
        }
    };

    static __device__ __forceinline__ unsigned long long q_tile(unsigned smem) {
        return tile_descriptor<WARPGROUP_M>(smem);
    }
    static __device__ __forceinline__ unsigned long long k_tile(unsigned smem) { return tile_descriptor<KEYS>(smem); }
    static __device__ __forceinline__ unsigned long long v_tile(unsigned smem) { return tile_descriptor<KEYS>(smem); }

    float o_frag[HEAD_DIM / 2] = {};  // not yet divided by the sums
    SoftmaxRow softmax[2];

    __device__ __forceinline__ Products16(const Tensors&, const Work&, const ScoreScale& scale)
        : scale(scale), exponents(softmax, scale.log2), powers{exponents.power(0), exponents.power(1)} {}

    __device__ __forceinline__ void start_tile(int) {}

    // Issues S[64, KEYS] = Q K^T as a group of its own. q, k: descriptors of tiles [64, HEAD_DIM] and [KEYS, HEAD_DIM].
    __device__ __forceinline__ void issue_scores(unsigned long long q, unsigned long long k) { issue(s_frag, q, k); }

    // The same for the next tile, concurrent with this one. take_next_scores(): after the wait for them.
    __device__ __forceinline__ void issue_next_scores(unsigned long long q, unsigned long long k) {
        issue(next_s_frag, q, k);
    }

    __device__ __forceinline__ void take_next_scores() {
        hold(next_s_frag);
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) {
            s_frag[i] = next_s_frag[i];
        }
    }

    // Issues O[64, HEAD_DIM] += P V as a group of its own. v: descriptor of a tile [KEYS, HEAD_DIM].
    __device__ __forceinline__ void issue_output(unsigned long long v) {
#pragma unroll
        for (int n = 0; n < KEYS / 16; ++n) {
            ptx::wgmma_mma_async_rs(o_frag, p_frag + 4 * n, v + row_step(n));
        }
        ptx::wgmma_commit_group();
    }

    __device__ __forceinline__ void hold_scores() { hold(s_frag); }
    __device__ __forceinline__ void hold_output() { hold(o_frag); }
    __device__ __forceinline__ void hold_weights() { hold(p_frag); }
    __device__ __forceinline__ void hold_unpacked() { hold(w_frag); }

    // Always false. The branch on it makes ptxas schedule the exponentials before the next wait.
    __device__ __forceinline__ bool never() const {
        return !CHECKS_SUMS && softmax[0].sum + softmax[1].sum < 0.0f;
    }

    // Computes weights of the scores, and adds them to the softmax. columns: as for mask_scores.
    template <class Columns>
    __device__ __forceinline__ Rescale weigh(bool masked, const Columns& columns) {
        return weigh<false>(masked, columns, [] {});
    }

    // The same for the FIRST tile or another; before_exponentials() runs just before the exponentials.
    template <bool FIRST, class Columns, class Call>
    __device__ __forceinline__ Rescale weigh(bool masked, const Columns& columns, const Call& before_exponentials) {
        mask_scores<CHECKS_SUMS>(s_frag, scale, masked, columns);
        Rescale rescale;
        if (!FIRST) {
            bool stays;
            if (CHECKS_SUMS) {
                exponentiate<ON_FMA>(exponents, powers);
                stays = sum[0] <= LARGEST_WEIGHT && sum[1] <= LARGEST_WEIGHT;
            } else {
                float bound[2];
                row_bounds(bound, s_frag);
                stays = exponents.reach(bound);
            }
            rescale.needed = __any_sync(0xffffffffu, !stays);
        }
        FusedExponents of_tile = exponents;
        if (FIRST || rescale.needed) {
            of_tile = advance_rows(softmax, rescale, s_frag, scale.log2);
            exponents = FusedExponents(softmax, scale.log2);
            exponents.forbid_out_of_range();
            before_exponentials();
            if (CHECKS_SUMS) {
                exponentiate<FIRST && AHEAD ? ON_FMA : 0>(of_tile, {of_tile.power(0), of_tile.power(1)});
                powers[0] = exponents.power(0);
                powers[1] = exponents.power(1);
            }
        }
        if (!CHECKS_SUMS) {
            exponentiate<FIRST ? 0 : ON_FMA>(of_tile, {of_tile.power(0), of_tile.power(1)});
        }
        softmax[0].sum += sum[0];
        softmax[1].sum += sum[1];
        return rescale;
    }

    // Weights as left operands of the product with V.
    __device__ __forceinline__ void pack_weights() {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) {
            p_frag[i] = pack_pair(w_frag[2 * i], w_frag[2 * i + 1]);
        }
    }

    // Rescales O, with the previous tile's product, to the present maximum.
    __device__ __forceinline__ void join_output(const Rescale& rescale) {
        if (rescale.needed) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) {
                o_frag[i] *= rescale.factor[i / 2 % 2];
            }
        }
    }

    // Completes O with the last tile's product.
    __device__ __forceinline__ void join_last() {}

private:
    const ScoreScale& scale;
    FusedExponents exponents;  // relative to the maxima so far
    PowerOnFma powers[2];      // the same, of either row
    float s_frag[KEYS / 2];
    float next_s_frag[KEYS / 2];
    float w_frag[KEYS / 2];
    float sum[2];  // sums of the tile's weights in either row
    unsigned p_frag[KEYS / 4];

    static __device__ __forceinline__ void issue(float (&scores)[KEYS / 2], unsigned long long q,
                                                 unsigned long long k) {
        ptx::wgmma_mma_async_ss<false>(scores, q, k);
#pragma unroll
        for (int d = 1; d < HEAD_DIM / 16; ++d) {
            ptx::wgmma_mma_async_ss<true>(scores, q + column_step<WARPGROUP_M>(d), k + column_step<KEYS>(d));
        }
        ptx::wgmma_commit_group();
    }

    // powers: the same exponents, for either row.
    template <int MANY>
    __device__ __forceinline__ void exponentiate(const FusedExponents& exponents, const PowerOnFma (&powers)[2]) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 2) {
            const int row = i / 2 % 2;
#pragma unroll
            for (int j = i; j < i + 2; ++j) {
                w_frag[j] = j * MANY % 64 < 64 - MANY ? exponents.weight(s_frag[j], row) : powers[row].of(s_frag[j]);
            }
            const float pair = w_frag[i] + w_frag[i + 1];  // halves the chain of additions
            sum[row] = i < 4 ? pair : sum[row] + pair;
        }
    }
};
