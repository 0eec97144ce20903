// Policy Source of mainloop/warps.cuh: rows of sequences, [rows, heads, columns], and pages of a cache, by cp.async.
#pragma once

#include "schedule/sequence.cuh"
#include "tile/copy.cuh"

// One K/V head of a sequence with HEADS query heads: row HEADS i + j of a tile is query i of the j-th of them.
//
// PAGE > 0: k, v [pages, PAGE, K/V heads, columns], and key j of the sequence is row j % PAGE of page pages[j / PAGE].
// Otherwise its keys are consecutive rows. With SHARE = 2 an element of K and V holds two numbers of e4m3. Keys from
// `keys` on are zeros: neither their rows nor entries of `pages` for them are read.
template <int TILE_ROWS, int KEYS, int D, int D_V, int HEADS_, int PAGE, int SHARE = 1>
struct SequenceRows {
    static constexpr int HEADS = HEADS_;
    static constexpr int O_COLS = D_V;
    static constexpr int Q_BYTES = TILE_ROWS * D * 2;
    static constexpr int K_COLS = D / SHARE;
    static constexpr int V_COLS = D_V / SHARE;
    static constexpr int K_BYTES = KEYS * K_COLS * 2;
    static constexpr int V_BYTES = KEYS * V_COLS * 2;
    static constexpr bool PARTIAL_KV = true;
    static constexpr bool CONTIGUOUS = false;

    const Element* __restrict__ q;  // the sequence's first query in the first of these heads
    const Element* __restrict__ k;  // the sequence's first key in this head, or row 0 of page 0
    const Element* __restrict__ v;
    const int* __restrict__ pages;
    int q_rows;
    int keys;
    int ahead;      // number of the key on the diagonal of query 0
    int q_heads;    // of a query
    int kv_heads;   // of a key
    int lse_pitch;  // from one head of the log-sum-exp to the next

    template <class Segment>
    __device__ __forceinline__ int rows_left(const Segment& segment, int row) const {
        return q_rows * HEADS - segment.q_tile * TILE_ROWS - row;
    }

    // First element of a row of a tile in a tensor [rows, query heads, COLS], from that of the sequence's first row.
    template <int COLS, class Segment>
    __device__ __forceinline__ long long row_offset(const Segment& segment, int row) const {
        const int at = segment.q_tile * TILE_ROWS + row;
        return (static_cast<long long>(at / HEADS) * q_heads + at % HEADS) * COLS;
    }

    // Place of a row of a tile in the log-sum-exp, from that of the sequence's first row.
    template <class Segment>
    __device__ __forceinline__ long long lse_offset(const Segment& segment, int row) const {
        const int at = segment.q_tile * TILE_ROWS + row;
        return static_cast<long long>(at % HEADS) * lse_pitch + at / HEADS;
    }

    template <int THREADS>
    class Copies {
    public:
        template <class Segment>
        __device__ __forceinline__ Copies(const SequenceRows& source, const Segment& segment, int thread)
            : source(source), q_copy(thread), k_copy(thread), v_copy(thread), page(page_of(segment.first)) {}

        template <class Segment>
        __device__ __forceinline__ void load_q(unsigned q_smem, const Segment& segment) const {
            q_copy.start_rows(q_smem, source.rows_left(segment, q_copy.row),
                              [&](int row) { return source.q + source.template row_offset<D>(segment, row); });
        }

        // Loads tile `number` of K and V; calls have consecutive numbers, from the segment's first on.
        __device__ __forceinline__ void load(unsigned stage_smem, int number) {
            load_tile<K_COLS>(k_copy, stage_smem, source.k, number);
            load_tile<V_COLS>(v_copy, stage_smem + K_BYTES, source.v, number);
            page = page_of(number + 1);
        }

    private:
        const SequenceRows& source;
        TileCopy<TILE_ROWS, D, THREADS> q_copy;
        TileCopy<KEYS, K_COLS, THREADS> k_copy;
        TileCopy<KEYS, V_COLS, THREADS> v_copy;
        int page;  // of the next tile, if a page holds whole tiles: its entry is loaded a tile ahead

        __device__ __forceinline__ int page_of(int number) const {
            const int first = number * KEYS;
            return PAGE > 0 && PAGE % KEYS == 0 && first < source.keys ? source.pages[first / PAGE] : 0;
        }

        template <int COLS, class Copy>
        __device__ __forceinline__ void load_tile(const Copy& copy, unsigned smem, const Element* tensor,
                                                  int number) const {
            const int first = number * KEYS;
            const int pitch = source.kv_heads * COLS;
            if constexpr (PAGE == 0 || PAGE % KEYS == 0) {
                constexpr int SIZE = PAGE == 0 ? 1 : PAGE;
                const long long at = PAGE == 0 ? first : static_cast<long long>(page) * PAGE + first % SIZE;
                const Element* tile = tensor + at * pitch;
                copy.start_rows(smem, source.keys - first - copy.row, [&](int row) {
                    return tile + copy.row * pitch + (row - copy.row) * static_cast<long long>(pitch);
                });
            } else {
                copy.start_rows(smem, source.keys - first - copy.row, [&](int row) {
                    const int key = first + row;
                    const int entry = key < source.keys ? source.pages[key / PAGE] : 0;
                    return tensor + (static_cast<long long>(entry) * PAGE + key % PAGE) * pitch;
                });
            }
        }
    };
};
