// Policy Source of mainloop/warps.cuh: tiles of e4m3 numbers as quantise_blocks<KEYS> writes them (tile/quantise.cuh).
#pragma once

#include "mainloop/dense_rows.cuh"

// q_bytes [query heads, seq_q, D], k_bytes [K/V heads, seq_kv, D]; v_bytes [K/V heads, blocks, D, KEYS]: V^T of each
// block of KEYS keys; q_scales [query heads, blocks of KEYS rows], kv_scales [K/V heads, blocks]: of K, and of V.
//
// cp.async, ldmatrix and the swizzle treat a tile of bytes as 16-bit elements, two numbers each.
template <int TILE_ROWS, int KEYS, int D, bool PARTIAL_Q, bool PARTIAL_KV_>
struct Fp8Blocks : DenseQueries<TILE_ROWS, PARTIAL_Q> {
    static constexpr int Q_BYTES = TILE_ROWS * D;
    static constexpr int K_BYTES = KEYS * D;
    static constexpr int V_BYTES = KEYS * D;
    static constexpr bool PARTIAL_KV = PARTIAL_KV_;

    const unsigned char* __restrict__ q_bytes;
    const unsigned char* __restrict__ k_bytes;
    const unsigned char* __restrict__ v_bytes;
    const float* __restrict__ q_scales;
    const float2* __restrict__ kv_scales;
    int keys;   // of a head
    int ahead;  // number of the key on the diagonal of query 0
    Divisor by_kv_head;

    // Scale of the block that has a row of a tile; any scale is right past the end.
    __device__ __forceinline__ float q_scale(const Segment& segment, int row) const {
        const int row_of_head = min(segment.q_tile * TILE_ROWS + row, this->seq_q - 1);
        return q_scales[segment.head * ceil_div(this->seq_q, KEYS) + row_of_head / KEYS];
    }

    // From the segment's first tile of keys on.
    __device__ __forceinline__ const float2* kv_scales_of(const Segment& segment) const {
        return kv_scales + block_of_all(segment);
    }

    template <int THREADS>
    class Copies {
    public:
        __device__ __forceinline__ Copies(const Fp8Blocks& source, const Segment& segment, int thread)
            : source(source), q_copy(thread), k_copy(thread), v_copy(thread) {
            const unsigned kv_head = source.by_kv_head.divide(segment.q_tile_of_all);
            k_next = source.k_bytes + k_copy.bytes_from(kv_head * source.keys + segment.first * KEYS);
            v_next = source.v_bytes + v_copy.bytes_from(source.block_of_all(segment) * D);
        }

        __device__ __forceinline__ void load_q(unsigned q_smem, const Segment& segment) const {
            q_copy.start(q_smem + q_copy.smem_offset,
                         source.q_bytes + q_copy.bytes_from(source.first_row_of_all(segment)),
                         source.rows_left(segment, q_copy.row));
        }

        // Loads the next tile of K and V^T; number: of the tile.
        __device__ __forceinline__ void load(unsigned stage_smem, int number) {
            const int rows_left = PARTIAL_KV ? source.keys - number * KEYS - k_copy.row : KEYS;
            k_copy.start(stage_smem + k_copy.smem_offset, k_next, rows_left);
            v_copy.start(stage_smem + K_BYTES + v_copy.smem_offset, v_next, D);
            k_next += K_BYTES;
            v_next += V_BYTES;
        }

    private:
        const Fp8Blocks& source;
        TileCopy<TILE_ROWS, D / 2, THREADS> q_copy;
        TileCopy<KEYS, D / 2, THREADS> k_copy;
        TileCopy<D, KEYS / 2, THREADS> v_copy;
        const unsigned char* k_next;
        const unsigned char* v_next;
    };

private:
    // Number of the segment's first block of keys among those of all heads.
    __device__ __forceinline__ unsigned block_of_all(const Segment& segment) const {
        return by_kv_head.divide(segment.q_tile_of_all) * ceil_div(keys, KEYS) + segment.first;
    }
};
