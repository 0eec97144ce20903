// Policy Source of mainloop/warps.cuh: tiles of dense tensors of 16-bit elements, by cp.async.
#pragma once

#include "schedule/stream_k.cuh"
#include "tile/copy.cuh"

// Rows of Q and O, [query heads of all batches, seq_q, columns], in tiles of TILE_ROWS. 32 bits number them.
template <int TILE_ROWS, bool PARTIAL_Q>
struct DenseQueries {
    static constexpr int HEADS = 1;  // query heads that share a tile
    static constexpr bool CONTIGUOUS = true;

    int seq_q;

    // Number of a tile's first row among the rows of all heads.
    __device__ __forceinline__ unsigned first_row_of_all(const Segment& segment) const {
        return PARTIAL_Q ? segment.head * seq_q + segment.q_tile * TILE_ROWS : segment.q_tile_of_all * TILE_ROWS;
    }

    // Rows of the tensor from row `row` of a tile on.
    __device__ __forceinline__ int rows_left(const Segment& segment, int row) const {
        return PARTIAL_Q ? seq_q - segment.q_tile * TILE_ROWS - row : TILE_ROWS;
    }
};

// q, o [query heads, seq_q, D or D_V], k [K/V heads, seq_kv, D], v [K/V heads, seq_kv, D_V], contiguous; heads of all
// batches. PARTIAL_Q, PARTIAL_KV: seq_q or seq_kv ends within a tile; rows past the end
// are zeros and are not read: memory there may hold NaN, and a weight of 0 times NaN is NaN.
template <int TILE_ROWS, int KEYS, int D, int D_V, bool PARTIAL_Q, bool PARTIAL_KV_>
struct DenseRows : DenseQueries<TILE_ROWS, PARTIAL_Q> {
    static constexpr int Q_BYTES = TILE_ROWS * D * 2;
    static constexpr int K_BYTES = KEYS * D * 2;
    static constexpr int V_BYTES = KEYS * D_V * 2;
    static constexpr bool PARTIAL_KV = PARTIAL_KV_;

    const Element* __restrict__ q;
    const Element* __restrict__ k;
    const Element* __restrict__ v;
    int seq_kv;
    int keys;            // valid keys of a head, at most seq_kv
    int ahead;           // number of the key on the diagonal of query 0
    Divisor by_kv_head;  // tiles of queries that share a K/V head

    // One thread's share of the copies of a segment.
    template <int THREADS>
    class Copies {
    public:
        __device__ __forceinline__ Copies(const DenseRows& source, const Segment& segment, int thread)
            : source(source), q_copy(thread), k_copy(thread), v_copy(thread) {
            const unsigned kv_head = source.by_kv_head.divide(segment.q_tile_of_all);
            const unsigned row = kv_head * source.seq_kv + segment.first * KEYS;
            k_next = k_copy.bytes_from(row);
            v_next = D == D_V ? k_next : v_copy.bytes_from(row);
        }

        __device__ __forceinline__ void load_q(unsigned q_smem, const Segment& segment) const {
            q_copy.start(q_smem + q_copy.smem_offset,
                         byte_address(source.q, q_copy.bytes_from(source.first_row_of_all(segment))),
                         source.rows_left(segment, q_copy.row));
        }

        // Loads the next tile of K and V; number: of the tile.
        __device__ __forceinline__ void load(unsigned stage_smem, int number) {
            const int rows_left = PARTIAL_KV ? source.keys - number * KEYS - k_copy.row : KEYS;
            k_copy.start(stage_smem + k_copy.smem_offset, byte_address(source.k, k_next), rows_left);
            if constexpr (D == D_V) {  // one offset walks both
                k_copy.start(stage_smem + K_BYTES + k_copy.smem_offset, byte_address(source.v, k_next), rows_left);
            } else {
                const int v_left = PARTIAL_KV ? source.keys - number * KEYS - v_copy.row : KEYS;
                v_copy.start(stage_smem + K_BYTES + v_copy.smem_offset, byte_address(source.v, v_next), v_left);
                v_next += V_BYTES;
            }
            k_next += K_BYTES;
        }

    private:
        const DenseRows& source;
        TileCopy<TILE_ROWS, D, THREADS> q_copy;
        TileCopy<KEYS, D, THREADS> k_copy;
        TileCopy<KEYS, D_V, THREADS> v_copy;
        unsigned long long k_next;
        unsigned long long v_next;

        static __device__ __forceinline__ const void* byte_address(const Element* tensor, unsigned long long bytes) {
            return reinterpret_cast<const unsigned char*>(tensor) + bytes;
        }
    };
};
