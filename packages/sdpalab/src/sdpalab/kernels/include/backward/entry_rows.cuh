// Rows of a batch entry in the tensors: dense, or packed sequences (VARLEN; sdpalab/layout.py).
//
// Dense: a head's rows follow each other, and heads are counted over all batches. Packed: rows of Q are [seq_q, heads,
// HEAD_DIM] and sequence b has those from cu_seqlens_q[b] on, K and V likewise; statistics of rows are [heads, seq_q].
// Rows behind the last sequence are one more sequence, without keys: their gradients are zeros.
#pragma once

#include "backward/scores.cuh"
#include "backward/tensors.cuh"
#include "tile/ceil_div.cuh"
#include "tile/panels.cuh"

#ifndef VARLEN
#error "define VARLEN as 0 or 1"
#endif

// Ends of packed sequences, and their tiles of ROWS rows.
struct PackedEnds {
    const int* __restrict__ ends;  // [count + 1]
    int count;
    int total;  // rows

    __device__ __forceinline__ int first_row(int number) const { return ends[number]; }
    __device__ __forceinline__ int rows(int number) const {
        return (number < count ? ends[number + 1] : total) - ends[number];
    }

    // Number of a sequence's first tile: an upper bound of the tiles before it that needs no sum over the sequences,
    // because floor((a + b) / ROWS) + 1 is at least floor(a / ROWS) + ceil(b / ROWS). Some tiles then have no rows.
    template <int ROWS>
    __device__ __forceinline__ int first_tile(int number) const {
        return ends[number] / ROWS + number;
    }

    template <int ROWS>
    __device__ __forceinline__ int all_tiles() const {
        return total / ROWS + count + 1;
    }

    template <int ROWS>
    __device__ __forceinline__ int sequence_of(int tile) const {
        int first = 0;
        int end = count + 1;
        while (end - first > 1) {
            const int middle = (first + end) / 2;
            if (first_tile<ROWS>(middle) <= tile) {
                first = middle;
            } else {
                end = middle;
            }
        }
        return first;
    }
};

// The entry of a tile of keys. Heads: over all batches, or with VARLEN of one query or key.
struct EntryRows {
    int number;
    int q_first;  // row
    int q_rows;
    int kv_first;
    int kv_rows;
    int key_tile;      // in the entry
    int first_q_tile;  // of the entry, among those of a head
    int all_q_tiles;   // of a head

    // tile: of keys, among those of kv_head.
    __device__ __forceinline__ EntryRows(const Tensors& tensors, unsigned kv_head, int tile) {
        if (VARLEN) {
            const PackedEnds queries{tensors.cu_seqlens_q, tensors.batch, tensors.seq_q};
            const PackedEnds keys{tensors.cu_seqlens_k, tensors.batch, tensors.seq_kv};
            number = keys.sequence_of<BLOCK>(tile);
            q_first = queries.first_row(number);
            q_rows = queries.rows(number);
            kv_first = keys.first_row(number);
            kv_rows = keys.rows(number);
            key_tile = tile - keys.first_tile<BLOCK>(number);
            first_q_tile = queries.first_tile<STREAM>(number);
            all_q_tiles = queries.all_tiles<STREAM>();
        } else {
            number = kv_head * tensors.group / tensors.heads;
            q_first = kv_first = first_q_tile = 0;
            q_rows = tensors.seq_q;
            kv_rows = tensors.seq_kv;
            key_tile = tile;
            all_q_tiles = ceil_div(tensors.seq_q, STREAM);
        }
    }

    // Valid rows; none behind the last sequence.
    __device__ __forceinline__ Entry valid(const Tensors& tensors) const {
        const bool behind = VARLEN && number == tensors.batch;
        Entry entry(behind ? 0 : number, tensors.kv_lengths, tensors.q_lengths, q_rows, kv_rows);
        entry.keys = behind ? 0 : entry.keys;
        return entry;
    }

    __device__ __forceinline__ long long q_offset(const Tensors& tensors, unsigned head, int row) const {
        return VARLEN ? (static_cast<long long>(q_first + row) * tensors.heads + head) * HEAD_DIM
                      : row_offset(head, tensors.seq_q, row);
    }

    __device__ __forceinline__ long long kv_offset(const Tensors& tensors, unsigned kv_head, int row) const {
        return VARLEN ? (static_cast<long long>(kv_first + row) * (tensors.heads / tensors.group) + kv_head) * HEAD_DIM
                      : row_offset(kv_head, tensors.seq_kv, row);
    }

    __device__ __forceinline__ long long statistic(const Tensors& tensors, unsigned head, int row) const {
        return static_cast<long long>(head) * tensors.seq_q + q_first + row;
    }

    // The tile of dQ's sums of a tile of the entry's queries.
    __device__ __forceinline__ long long sum_tile(unsigned head, int tile) const {
        return static_cast<long long>(head) * all_q_tiles + first_q_tile + tile;
    }
};

// Elements from a row to the next.
__device__ __forceinline__ int q_pitch(const Tensors& tensors) {
    return VARLEN ? tensors.heads * HEAD_DIM : HEAD_DIM;
}

__device__ __forceinline__ int kv_pitch(const Tensors& tensors) {
    return VARLEN ? tensors.heads / tensors.group * HEAD_DIM : HEAD_DIM;
}

// Copies a tile of rows with that pitch (tile/panels.cuh).
template <int ROWS, int NUM_THREADS>
__device__ __forceinline__ void copy_rows(unsigned tile_smem, const Element* tile, int rows_left, int pitch) {
    const PanelCopy<ROWS, HEAD_DIM, NUM_THREADS> copy(ptx::tid_x());
    if constexpr (VARLEN) {
        copy.start_pitched(tile_smem, tile, rows_left, pitch);
    } else {
        copy.start(tile_smem, tile, rows_left);
    }
}
