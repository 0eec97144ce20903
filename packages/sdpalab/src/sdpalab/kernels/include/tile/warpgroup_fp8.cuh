// A tile of attention by one warpgroup in e4m3: 64 rows of Q, both products on wgmma, the weights in registers.
//
// The fragments are those of tile/warpgroup.cuh. The weights of two neighbouring blocks of eight keys, packed in place,
// fill a left operand in the order RowOrder::mma of tile/quantise.cuh: V^T has its keys in that order, and weights stay
// in place.
#pragma once

#include "ptx/wgmma_fp8.cuh"
#include "softmax/fp8.cuh"
#include "tile/warpgroup.cuh"

// Both products in e4m3, over blocks of SCALE_ROWS rows with a scale each. A tile's P V starts from 0 and is added to O
// in float32.
//
// Up to D = 128 a thread has registers for that product beside the scores of the next tile (OVERLAPS). Above, the
// product is split into PARTS of columns, two at a time in the registers of the scores.
template <int TILE_KEYS, int SCALE_ROWS>
class ProductsE4m3 {
public:
    static constexpr int KEYS = TILE_KEYS;
    static constexpr int ELEMENT_BYTES = 1;
    static constexpr bool OVERLAPS = HEAD_DIM <= 128;
    static constexpr bool AHEAD = false;  // no registers for the scores of a second tile
    static constexpr int PART_COLUMNS = OVERLAPS ? HEAD_DIM : 64;
    static constexpr int PARTS = HEAD_DIM / PART_COLUMNS;
    static constexpr int PARTS_AT_ONCE = OVERLAPS ? 1 : 2;
    // Accumulators and weights of a thread.
    static constexpr int REGISTERS = HEAD_DIM / 2 + KEYS / 8 + (OVERLAPS ? (HEAD_DIM + KEYS) / 2 : 64);
    static_assert(OVERLAPS || (KEYS <= 128 && PARTS_AT_ONCE * PART_COLUMNS <= 128), "scores or parts of 64 registers");
    static constexpr float WEIGHT_UNIT = ::WEIGHT_UNIT;
    static_assert(SCALE_ROWS % KEYS == 0, "a tile of keys has one scale of K and one of V");

    // Maps of bytes: q [heads, panels, seq_q, PANEL] with boxes [1, panels, 64, PANEL], k [K/V heads, panels, seq_kv,
    // PANEL] with boxes [1, panels, KEYS, PANEL], v [blocks of the K/V heads, HEAD_DIM, SCALE_ROWS] with boxes [1,
    // HEAD_DIM, KEYS]. Heads are those of all batches; quantise_blocks<SCALE_ROWS> writes the scales.
    struct Tensors {
        const TensorMap& q;
        const TensorMap& k;
        const TensorMap& v;
        const float* __restrict__ q_scales;    // [heads, q_blocks]
        const float2* __restrict__ kv_scales;  // [K/V heads, kv_blocks]
        int q_blocks;                          // a head
        int kv_blocks;

        __device__ __forceinline__ void load_q(unsigned q_smem, const Work& work, int row, unsigned full) const {
            ptx::cp_async_bulk_tensor_4d_load(q_smem, q, 0, row, 0, work.q_head, full);
        }

        __device__ __forceinline__ void load_k(unsigned k_smem, const Work& work, int key, unsigned full) const {
            ptx::cp_async_bulk_tensor_4d_load(k_smem, k, 0, key, 0, work.kv_head, full);
        }

        __device__ __forceinline__ void load_v(unsigned v_smem, const Work& work, int key, unsigned full) const {
            ptx::cp_async_bulk_tensor_3d_load(v_smem, v, key % SCALE_ROWS, 0,
                                              work.kv_head * kv_blocks + key / SCALE_ROWS, full);
        }
    };

    static constexpr int PANEL = HEAD_DIM < BYTE_PANEL_COLUMNS ? HEAD_DIM : BYTE_PANEL_COLUMNS;

    static __device__ __forceinline__ unsigned long long q_tile(unsigned smem) {
        return byte_tile_descriptor<PANEL>(smem);
    }
    static __device__ __forceinline__ unsigned long long k_tile(unsigned smem) {
        return byte_tile_descriptor<PANEL>(smem);
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
          scales(&tensors.kv_scales[work.kv_head * tensors.kv_blocks].x + threadIdx.x % 2),
          last_block(tensors.kv_blocks - 1),
          next_scale(scale_of(work.first_tile)) {}

    // number: of the tile of keys, in the head; tiles are consecutive. The product of the previous tile is still to be
    // added.
    __device__ __forceinline__ void start_tile(int number) {
        due_unit[0] = unit[0];
        due_unit[1] = unit[1];
        lane_scale = next_scale;
        next_scale = scale_of(number + 1);  // one step ahead, so no product waits for L2
    }

    // Issues S[64, KEYS] = Q K^T, raw, as a group of its own. q, k: descriptors of tiles [64, HEAD_DIM] and
    // [KEYS, HEAD_DIM].
    __device__ __forceinline__ void issue_scores(unsigned long long q, unsigned long long k) {
        ptx::wgmma_mma_async_e4m3_ss<false>(s_frag, q, k);
#pragma unroll
        for (int d = 1; d < HEAD_DIM / 32; ++d) {
            ptx::wgmma_mma_async_e4m3_ss<true>(s_frag, q + byte_column_step<WARPGROUP_M>(d),
                                                   k + byte_column_step<KEYS>(d));
        }
        ptx::wgmma_commit_group();
    }

    __device__ __forceinline__ void issue_next_scores(unsigned long long, unsigned long long) {}  // not AHEAD

    // Issues a tile's own product[64, HEAD_DIM] = P V, raw, as a group of its own, if registers hold it as a whole.
    // v: descriptor of V^T [HEAD_DIM, KEYS].
    __device__ __forceinline__ void issue_output(unsigned long long v) { issue_part(0, v); }

    __device__ __forceinline__ void hold_scores() { hold(s_frag); }
    __device__ __forceinline__ void hold_output() { hold(product[0]); }
    __device__ __forceinline__ void hold_weights() { hold(p_frag); }
    __device__ __forceinline__ void hold_unpacked() { hold(s_frag); }

    // Always false, as in Products16: the branch on it delays the next wait until all weights are computed.
    __device__ __forceinline__ bool never() const { return softmax[0].sum + softmax[1].sum < 0.0f; }

    // Turns the raw scores into weights, in place, and adds them to the softmax. columns: as for mask_scores.
    template <class Columns>
    __device__ __forceinline__ Rescale weigh(bool masked, const Columns& columns) {
        return weigh<false>(masked, columns, [] {});
    }

    // The same for the first tile or another.
    template <bool, class Columns, class Call>
    __device__ __forceinline__ Rescale weigh(bool masked, const Columns& columns, const Call&) {
        const int lane = threadIdx.x % 32;
        const float2 tile_scales = make_float2(__shfl_sync(0xffffffffu, lane_scale, lane & ~1),
                                               __shfl_sync(0xffffffffu, lane_scale, lane | 1));
        const TileScale tile(q_scale, tile_scales.x, scale.log2);
        mask_scores<false>(s_frag, scale, masked, columns);
        float raw_max[2];
        row_bounds(raw_max, s_frag);
        if (__any_sync(0xffffffffu, fminf(raw_max[0], raw_max[1]) == 0.0f)) {  // possibly bounds, not maxima
            row_maxima(raw_max, s_frag);
            raw_max[0] = fmaxf(raw_max[0], LOWEST_FLOAT);
            raw_max[1] = fmaxf(raw_max[1], LOWEST_FLOAT);
        }
        TileRows rows(raw_max, tile);
        Rescale rescale;
        rescale.needed = __any_sync(0xffffffffu, rows.outgrown(softmax, scale.log2) || !rows.in_range());
        if (rescale.needed) {
            rescale.factor[0] = softmax[0].advance(rows.tile_max[0], scale.log2);
            rescale.factor[1] = softmax[1].advance(rows.tile_max[1], scale.log2);
            if (__any_sync(0xffffffffu, !rows.in_range())) {
#pragma unroll
                for (int i = 0; i < KEYS / 2; ++i) {
                    s_frag[i] -= raw_max[i / 2 % 2];
                }
                rows.subtracted();
            }
        }
        float sum[2] = {};
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 2) {
            const int row = i / 2 % 2;
            s_frag[i] = rows.weight(s_frag[i], row);
            s_frag[i + 1] = rows.weight(s_frag[i + 1], row);
            sum[row] += s_frag[i] + s_frag[i + 1];
        }
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const float factor = rows.factor(softmax, row, scale.log2);
            softmax[row].sum = fmaf(sum[row], factor, softmax[row].sum);
            unit[row] = factor * tile_scales.y;
        }
        return rescale;
    }

    // Weights as left operands: of each 16 keys, the four of row lane / 4 and then those of row lane / 4 + 8.
    __device__ __forceinline__ void pack_weights() {
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
            const float* s = s_frag + i / 2 * 8 + i % 2 * 2;
            p_frag[i] = pack_e4m3(s[0], s[1], s[4], s[5]);
        }
    }

    // Adds the previous tile's product to O, and rescales O to the present reference.
    __device__ __forceinline__ void join_output(const Rescale& rescale) {
        join(due_unit);
        bring_to_reference(rescale);
    }

    // Adds the last tile's product to O.
    __device__ __forceinline__ void join_last() { join(unit); }

    // Computes and adds a tile's whole product part by part: one part is added while the next one is computed. No
    // product is in flight afterwards. v: as above.
    __device__ __forceinline__ void add_output(unsigned long long v, const Rescale& rescale) {
        bring_to_reference(rescale);
        ptx::wgmma_fence();
        issue_part(0, v);
#pragma unroll
        for (int part = 1; part < PARTS; ++part) {
            if (part >= PARTS_AT_ONCE) {  // its registers have been read
                ptx::wgmma_fence();
            }
            issue_part(part, v);
            ptx::wgmma_wait_group<1>();
            hold(product[(part - 1) % PARTS_AT_ONCE]);
            join(unit, part - 1);
        }
        ptx::wgmma_wait_group<0>();
        hold(product[(PARTS - 1) % PARTS_AT_ONCE]);
        hold_weights();
        join(unit, PARTS - 1);
    }

private:
    const ScoreScale& scale;
    const float q_scale;
    // Even lanes load scales of K, and odd ones of V. ptxas would move warp-uniform values to uniform registers
    // directly after the load, and wait for the load there.
    const float* __restrict__ scales;  // one pair per block of the head
    const int last_block;
    float lane_scale;                  // of the tile whose scores are computed
    float next_scale;
    float unit[2];                     // of the tile's product, in either row: scale of V times scale of the weights
    float due_unit[2];                 // the same of the previous tile
    float s_frag[KEYS / 2];
    float product[PARTS_AT_ONCE][PART_COLUMNS / 2];
    unsigned p_frag[KEYS / 8];

    // This lane's scale of a tile of keys; past the head's end, of its last block.
    __device__ __forceinline__ float scale_of(int number) const {
        return scales[2 * min(number / (SCALE_ROWS / KEYS), last_block)];
    }

    // Issues part number `part` of a tile's product, PART_COLUMNS columns wide.
    __device__ __forceinline__ void issue_part(int part, unsigned long long v) {
        float(&columns)[PART_COLUMNS / 2] = product[part % PARTS_AT_ONCE];
        v += byte_row_step<KEYS>(part * PART_COLUMNS);
        ptx::wgmma_mma_async_e4m3_rs<false>(columns, p_frag, v);
#pragma unroll
        for (int n = 1; n < KEYS / 32; ++n) {
            ptx::wgmma_mma_async_e4m3_rs<true>(columns, p_frag + 4 * n, v + byte_column_step<HEAD_DIM>(n));
        }
        ptx::wgmma_commit_group();
    }

    // O = O + unit * product for a part of a tile's product: float32, in the common units.
    __device__ __forceinline__ void join(const float (&unit)[2], int part = 0) {
#pragma unroll
        for (int i = 0; i < PART_COLUMNS / 2; ++i) {
            float& o = o_frag[part * (PART_COLUMNS / 2) + i];
            o = fmaf(product[part % PARTS_AT_ONCE][i], unit[i / 2 % 2], o);
        }
    }

    __device__ __forceinline__ void bring_to_reference(const Rescale& rescale) {
        if (rescale.needed) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) {
                o_frag[i] *= rescale.factor[i / 2 % 2];
            }
        }
    }
};
