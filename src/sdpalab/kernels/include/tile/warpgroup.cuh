// A tile of attention by one warpgroup: 64 rows of Q, with both products on wgmma and the weights between them in
// registers.
//
// A thread holds parts of rows lane / 4 and lane / 4 + 8 of its warp's 16. Fragments are as ptx/wgmma.cuh numbers them,
// so element i of an accumulator is in the row of softmax[i / 2 % 2], and packed in pairs it is the left operand of the
// next product.
//
// Products16 is what mainloop/warpgroups.cuh takes for 16-bit elements, and ProductsE4m3 (tile/warpgroup_fp8.cuh) for
// e4m3: where the operands are in global and in shared memory, how a tile's products are issued, how its scores become
// weights, and how its product with V joins the output.
#pragma once

#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"
#include "schedule/query_tiles.cuh"
#include "softmax/online.cuh"

constexpr int WARPGROUP_M = 64;

// Gives a tile's scores the sign of the scale and masks them, in place. Returns the largest that this lane has of
// either row. keys_left: of either row, from this lane's first column of the tile.
template <int SCORES>
__device__ __forceinline__ float2 mask_scores(float (&s_frag)[SCORES], float sign, bool masked,
                                              const int (&keys_left)[2]) {
    if (sign != 1.0f) {
#pragma unroll
        for (float& score : s_frag) {
            score *= sign;
        }
    }
    if (masked) {
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            s_frag[i] = 8 * (i / 4) + i % 2 < keys_left[i / 2 % 2] ? s_frag[i] : NEGATIVE_INFINITY;
        }
    }
    float tile_max[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
        tile_max[i / 2 % 2] = fmaxf(tile_max[i / 2 % 2], s_frag[i]);
    }
    return make_float2(tile_max[0], tile_max[1]);
}

// Both products in 16 bits. P V is added to O in the tensor cores, which the softmax rescales.
template <int TILE_KEYS>
class Products16 {
public:
    static constexpr int KEYS = TILE_KEYS;
    static constexpr int ELEMENT_BYTES = 2;
    static constexpr int REGISTERS = HEAD_DIM / 2 + KEYS / 2 + KEYS / 4;  // accumulators and weights of a thread
    static constexpr float WEIGHT_UNIT = 1.0f;                            // of the sums

    // Maps of q [heads, panels, seq_q, 64] with boxes [1, panels, 64, 64] and of k, v [K/V heads, panels, seq_kv, 64]
    // with boxes [1, panels, KEYS, 64]; panels of 64 columns, heads of all batches. Coordinates are column, row, panel,
    // head.
    struct Tensors {
        const TensorMap& q;
        const TensorMap& k;
        const TensorMap& v;

        __device__ __forceinline__ void load_q(unsigned q_smem, const Work& work, int row, unsigned full) const {
            ptx::cp_async_bulk_tensor_4d_load(q_smem, q, 0, row, 0, work.q_head, full);
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

    __device__ __forceinline__ Products16(const Tensors&, const Work&, const ScoreScale& scale) : scale(scale) {}

    __device__ __forceinline__ void start_tile(int) {}

    // Issues S[64, KEYS] = Q K^T as a group of its own. q, k: descriptors of tiles [64, HEAD_DIM] and [KEYS, HEAD_DIM].
    __device__ __forceinline__ void issue_scores(unsigned long long q, unsigned long long k) {
        ptx::wgmma_mma_async_ss<false>(s_frag, q, k);
#pragma unroll
        for (int d = 1; d < HEAD_DIM / 16; ++d) {
            ptx::wgmma_mma_async_ss<true>(s_frag, q + column_step<WARPGROUP_M>(d), k + column_step<KEYS>(d));
        }
        ptx::wgmma_commit_group();
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

    // Turns the scores into weights, in place, and takes them into the softmax. Returns the factors that rescale what
    // was accumulated of either row. keys_left: as for mask_scores.
    __device__ __forceinline__ float2 weigh(bool masked, const int (&keys_left)[2]) {
        const float2 tile_max = mask_scores(s_frag, scale.sign, masked, keys_left);
        float2 rescale;
        rescale.x = softmax[0].advance(quad_max(tile_max.x), scale.log2);
        rescale.y = softmax[1].advance(quad_max(tile_max.y), scale.log2);
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 2) {
            SoftmaxRow& row = softmax[i / 2 % 2];
            s_frag[i] = softmax_weight(s_frag[i], row.max, scale.log2);
            s_frag[i + 1] = softmax_weight(s_frag[i + 1], row.max, scale.log2);
            row.sum += s_frag[i] + s_frag[i + 1];  // in pairs: half as long a chain of additions
        }
        return rescale;
    }

    // The weights as left operands of the product with V.
    __device__ __forceinline__ void pack_weights() {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) {
            p_frag[i] = pack_pair(s_frag[2 * i], s_frag[2 * i + 1]);
        }
    }

    // Takes in the product of the tile before, in the units of the present maximum.
    __device__ __forceinline__ void join_output(float2 rescale) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; ++i) {
            o_frag[i] *= i / 2 % 2 ? rescale.y : rescale.x;
        }
    }

    // Takes in that of the last tile.
    __device__ __forceinline__ void join_last() {}

private:
    const ScoreScale& scale;
    float s_frag[KEYS / 2];
    unsigned p_frag[KEYS / 4];
};
