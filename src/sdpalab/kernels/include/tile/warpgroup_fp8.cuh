// A tile of attention by one warpgroup in e4m3: 64 rows of Q, both products on wgmma, the weights in registers.
//
// Beside tile/warpgroup.cuh, whose fragments these are. The weights of two neighbouring blocks of eight keys, packed as
// they are, fill a left operand in the order RowOrder::mma of tile/quantise.cuh: so V^T has its keys, and no weight
// moves.
#pragma once

#include "ptx/wgmma_fp8.cuh"
#include "softmax/fp8.cuh"
#include "tile/warpgroup.cuh"

// Both products in e4m3, of blocks of SCALE_ROWS rows that have a scale each. A tile's P V starts from 0 and joins O in
// float32.
template <int TILE_KEYS, int SCALE_ROWS>
class ProductsE4m3 {
public:
    static constexpr int KEYS = TILE_KEYS;
    static constexpr int ELEMENT_BYTES = 1;
    static constexpr int REGISTERS = HEAD_DIM + KEYS / 2 + KEYS / 8;  // accumulators and weights of a thread
    static constexpr float WEIGHT_UNIT = ::WEIGHT_UNIT;
    static_assert(SCALE_ROWS % KEYS == 0, "a tile of keys has one scale of K and one of V");

    // Maps of bytes: q [heads, seq_q, HEAD_DIM] with boxes [1, 64, HEAD_DIM], k [K/V heads, seq_kv, HEAD_DIM] with
    // boxes [1, KEYS, HEAD_DIM], v [blocks of the K/V heads, HEAD_DIM, SCALE_ROWS] with boxes [1, HEAD_DIM, KEYS].
    // Heads are those of all batches, and scales those of quantise_blocks<SCALE_ROWS>.
    struct Tensors {
        const TensorMap& q;
        const TensorMap& k;
        const TensorMap& v;
        const float* __restrict__ q_scales;    // [heads, q_blocks]
        const float2* __restrict__ kv_scales;  // [K/V heads, kv_blocks]
        int q_blocks;                          // of a head
        int kv_blocks;

        __device__ __forceinline__ void load_q(unsigned q_smem, const Work& work, int row, unsigned full) const {
            ptx::cp_async_bulk_tensor_3d_load(q_smem, q, 0, row, work.q_head, full);
        }

        __device__ __forceinline__ void load_k(unsigned k_smem, const Work& work, int key, unsigned full) const {
            ptx::cp_async_bulk_tensor_3d_load(k_smem, k, 0, key, work.kv_head, full);
        }

        __device__ __forceinline__ void load_v(unsigned v_smem, const Work& work, int key, unsigned full) const {
            ptx::cp_async_bulk_tensor_3d_load(v_smem, v, key % SCALE_ROWS, 0,
                                              work.kv_head * kv_blocks + key / SCALE_ROWS, full);
        }
    };

    static __device__ __forceinline__ unsigned long long q_tile(unsigned smem) {
        return byte_tile_descriptor<HEAD_DIM>(smem);
    }
    static __device__ __forceinline__ unsigned long long k_tile(unsigned smem) {
        return byte_tile_descriptor<HEAD_DIM>(smem);
    }
    static __device__ __forceinline__ unsigned long long v_tile(unsigned smem) {
        return byte_tile_descriptor<KEYS>(smem);
    }

    float o_frag[HEAD_DIM / 2] = {};  // not yet divided by the sums
    SoftmaxRow softmax[2];

    __device__ __forceinline__ ProductsE4m3(const Tensors& tensors, const Work& work, const ScoreScale& scale)
        : scale(scale),
          q_scale(tensors.q_scales[static_cast<long long>(work.q_head) * tensors.q_blocks +
                                   work.first_row / SCALE_ROWS]),
          scales(tensors.kv_scales + work.kv_head * tensors.kv_blocks) {}

    // number: of the tile of keys, in the head. The scale of V of the tile before is still due.
    __device__ __forceinline__ void start_tile(int number) {
        v_scale = tile_scales.y;
        tile_scales = scales[number / (SCALE_ROWS / KEYS)];
    }

    // Issues S[64, KEYS] = Q K^T, raw, as a group of its own. q, k: descriptors of tiles [64, HEAD_DIM] and
    // [KEYS, HEAD_DIM].
    __device__ __forceinline__ void issue_scores(unsigned long long q, unsigned long long k) {
        ptx::wgmma_mma_async_e4m3_ss<false>(s_frag, q, k);
#pragma unroll
        for (int d = 1; d < HEAD_DIM / 32; ++d) {
            ptx::wgmma_mma_async_e4m3_ss<true>(s_frag, q + byte_column_step(d), k + byte_column_step(d));
        }
        ptx::wgmma_commit_group();
    }

    // Issues a tile's own product[64, HEAD_DIM] = P V, raw, as a group of its own. v: descriptor of V^T [HEAD_DIM,
    // KEYS].
    __device__ __forceinline__ void issue_output(unsigned long long v) {
        ptx::wgmma_mma_async_e4m3_rs<false>(product, p_frag, v);
#pragma unroll
        for (int n = 1; n < KEYS / 32; ++n) {
            ptx::wgmma_mma_async_e4m3_rs<true>(product, p_frag + 4 * n, v + byte_column_step(n));
        }
        ptx::wgmma_commit_group();
    }

    __device__ __forceinline__ void hold_scores() { hold(s_frag); }
    __device__ __forceinline__ void hold_output() { hold(product); }
    __device__ __forceinline__ void hold_weights() { hold(p_frag); }

    // Turns the raw scores into weights, in place, and takes them into the softmax. Returns the factors that rescale
    // what was accumulated of either row. keys_left: as for mask_scores.
    __device__ __forceinline__ float2 weigh(bool masked, const int (&keys_left)[2]) {
        const TileScale tile(q_scale, tile_scales.x, scale.log2);
        const float2 raw_max = mask_scores(s_frag, scale.sign, masked, keys_left);
        const TileRow rows[2] = {TileRow(softmax[0], fmaxf(quad_max(raw_max.x), LOWEST_FLOAT), tile, scale.log2),
                                 TileRow(softmax[1], fmaxf(quad_max(raw_max.y), LOWEST_FLOAT), tile, scale.log2)};
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 2) {
            const int row = i / 2 % 2;
            s_frag[i] = rows[row].weight(s_frag[i], tile);
            s_frag[i + 1] = rows[row].weight(s_frag[i + 1], tile);
            softmax[row].sum += s_frag[i] + s_frag[i + 1];
        }
        return make_float2(rows[0].rescale, rows[1].rescale);
    }

    // The weights as left operands: of each 16 keys, the four of row lane / 4 and then those of row lane / 4 + 8.
    __device__ __forceinline__ void pack_weights() {
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
            const float* s = s_frag + i / 2 * 8 + i % 2 * 2;
            p_frag[i] = pack_e4m3(s[0], s[1], s[4], s[5]);
        }
    }

    // Takes in the product of the tile before, in the units of the present maximum.
    __device__ __forceinline__ void join_output(float2 rescale) { join(v_scale, rescale); }

    // Takes in that of the last tile.
    __device__ __forceinline__ void join_last() { join(tile_scales.y, make_float2(1.0f, 1.0f)); }

private:
    const ScoreScale& scale;
    const float q_scale;
    const float2* __restrict__ scales;  // of K and V, for each block of the head
    float2 tile_scales;                 // of the tile whose scores are computed
    float v_scale;                      // of the tile before
    float s_frag[KEYS / 2];
    float product[HEAD_DIM / 2];
    unsigned p_frag[KEYS / 8];

    // O = (O + unit * product) * rescale: a tile's product joins the others in float32, in units that all share.
    __device__ __forceinline__ void join(float unit, float2 rescale) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; ++i) {
            const float factor = i / 2 % 2 ? rescale.y : rescale.x;
            o_frag[i] = fmaf(product[i], unit * factor, o_frag[i] * factor);
        }
    }
};
