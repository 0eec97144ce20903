// Sequences of a batch whose rows are packed, or whose keys are in pages, and the tiles of their queries.
//
// Layouts (sdpalab/layout.py): with VARLEN, sequence b of Q has the rows cu_seqlens_q[b] to cu_seqlens_q[b + 1],
// otherwise seq_q rows each. Keys begin at row cu_seqlens_k[b], or are in pages. Their number is kv_lengths[b] with
// LENGTHS, otherwise the distance of two ends.
#pragma once

#include "schedule/divisor.cuh"
#include "softmax/mask.cuh"

#if !defined(VARLEN) || !defined(LENGTHS) || !defined(BOTTOM_RIGHT)
#error "define VARLEN, LENGTHS and BOTTOM_RIGHT as 0 or 1"
#endif

struct Sequence {
    long long q_row;   // the first
    long long kv_row;  // the first; 0 for keys in pages
    int q_rows;
    int kv_rows;

    // Number of the key on the diagonal of query 0.
    __device__ __forceinline__ int ahead() const { return BOTTOM_RIGHT ? kv_rows - q_rows : 0; }
};

// A tile of a sequence's queries, and the tiles of keys that its rows see.
struct SequenceRange {
    int number;  // of the sequence
    Sequence sequence;
    int q_tile;  // in the sequence
    bool has_rows;
    KeyTiles keys;
};

struct Sequences {
    const int* __restrict__ cu_seqlens_q;  // [count + 1], or null
    const int* __restrict__ cu_seqlens_k;  // [count + 1], or null
    const int* __restrict__ kv_lengths;    // [count], or null
    int count;
    int seq_q;

    __device__ __forceinline__ Sequence at(int number) const {
        Sequence found{static_cast<long long>(number) * seq_q, 0, seq_q, 0};
        if (VARLEN) {
            found.q_row = cu_seqlens_q[number];
            found.q_rows = cu_seqlens_q[number + 1] - cu_seqlens_q[number];
        }
        if (cu_seqlens_k != nullptr) {
            found.kv_row = cu_seqlens_k[number];
            found.kv_rows = cu_seqlens_k[number + 1] - cu_seqlens_k[number];
        }
        if (LENGTHS) {
            found.kv_rows = kv_lengths[number];
        }
        return found;
    }

    // Number of the first tile of a sequence, in tiles of ROWS rows with HEADS rows a query. With VARLEN it is an upper
    // bound of the tiles before it that needs no sum over the sequences: floor((a + b) / ROWS) + 1 is at least
    // floor(a / ROWS) + ceil(b / ROWS). Some tiles then have no rows.
    template <int ROWS, int HEADS>
    __device__ __forceinline__ int first_tile(int number) const {
        return VARLEN ? static_cast<int>(static_cast<long long>(cu_seqlens_q[number]) * HEADS / ROWS) + number
                      : number * ceil_div(seq_q * HEADS, ROWS);
    }

    // Number of the sequence that a tile belongs to.
    template <int ROWS, int HEADS>
    __device__ __forceinline__ int sequence_of(int tile) const {
        if (!VARLEN) {
            const int tiles = ceil_div(seq_q * HEADS, ROWS);
            return tiles == 1 ? tile : tile / tiles;  // a division takes longer than most of a step of decoding
        }
        int first = 0;
        int end = count;
        while (end - first > 1) {
            const int middle = (first + end) / 2;
            if (first_tile<ROWS, HEADS>(middle) <= tile) {
                first = middle;
            } else {
                end = middle;
            }
        }
        return first;
    }

    // The tile of a number, of ROWS rows with HEADS rows a query, against tiles of KEYS keys.
    template <int ROWS, int KEYS, int HEADS, class Mask>
    __device__ __forceinline__ SequenceRange range_of(int tile) const {
        SequenceRange range;
        range.number = sequence_of<ROWS, HEADS>(tile);
        range.sequence = at(range.number);
        range.q_tile = tile - first_tile<ROWS, HEADS>(range.number);
        range.has_rows = range.q_tile * ROWS < range.sequence.q_rows * HEADS;
        const int ahead = range.sequence.ahead();
        const int first_query = range.q_tile * ROWS / HEADS;
        const int last_query = min(((range.q_tile + 1) * ROWS - 1) / HEADS, range.sequence.q_rows - 1);
        range.keys = Mask::template tiles<KEYS>(first_query + ahead, last_query + ahead, range.sequence.kv_rows);
        return range;
    }
};

// Policy Scheduler of mainloop/warps.cuh: a tile of a sequence's queries, and one part of the keys that they see. The
// partial results of a tile follow each other: grid = (heads of K/V or parts of their groups, tiles of all sequences,
// `splits` parts). Blocks start in the order of the grid: all heads of a tile, then those of the next.
//
// SPLIT_TILES: parts end at multiples of so many tiles of keys, independent of the batch and of the other rows; 0:
// equal parts. A tile has at least one part: if its rows see no key, that part has the first tile, fully masked.
template <int ROWS, int KEYS, int HEADS, class Mask, int SPLIT_TILES>
class SequenceTile {
public:
    struct Segment {
        unsigned q_tile_of_all;
        int q_tile;  // in the sequence
        int first;
        int end;
        int split;
        int splits;  // with tiles of keys

        __device__ __forceinline__ bool whole() const { return splits == 1; }
    };

    int head;    // of K/V, or a part of its group
    int number;  // of the sequence
    Sequence sequence;

    // order: numbers of tiles in the order of the grid (schedule/longest_first.cuh), or null: under a causal mask a
    // sequence's later tiles have more keys, and run first. by_splits: divides by `splits`.
    __device__ __forceinline__ SequenceTile(const Sequences& sequences, const int* order, int splits, Divisor by_splits)
        : most_splits(splits) {
        const int tiles = gridDim.y;
        const int place = blockIdx.y;
        const int tile = order != nullptr ? order[place] : CAUSAL ? tiles - 1 - place : place;
        head = blockIdx.x;
        found.split = splits > 1 ? blockIdx.z : 0;
        found.q_tile_of_all = head * tiles + place;
        const SequenceRange range = sequences.template range_of<ROWS, KEYS, HEADS, Mask>(tile);
        number = range.number;
        sequence = range.sequence;
        has_rows = range.has_rows;
        found.q_tile = range.q_tile;
        const KeyTiles seen = range.keys;
        if (splits == 1) {
            found.splits = 1;
            found.first = seen.first;
            found.end = seen.end;
        } else if (SPLIT_TILES > 0) {
            constexpr int PART = SPLIT_TILES > 0 ? SPLIT_TILES : 1;
            const int first_part = seen.first / PART;
            found.splits = ceil_div(seen.end, PART) - first_part;
            found.first = max((first_part + found.split) * PART, seen.first);
            found.end = min((first_part + found.split + 1) * PART, seen.end);
        } else {  // the first `longer` parts have a tile more
            const int tiles_of_all = seen.end - seen.first;
            const int part = by_splits.divide(tiles_of_all);
            const int longer = tiles_of_all - part * splits;
            found.splits = min(splits, tiles_of_all);
            found.first = seen.first + found.split * part + min(found.split, longer);
            found.end = found.first + part + (found.split < longer);
        }
    }

    // False for a block without rows or keys: it has nothing to do.
    __device__ __forceinline__ bool has_work() const {
        return has_rows && found.split < found.splits;
    }

    __device__ __forceinline__ Segment segment() const { return found; }
    __device__ __forceinline__ void recompute() {}
    __device__ __forceinline__ bool next(const Segment&) const { return false; }

    // Number of a tile's first part among those of all tiles.
    __device__ __forceinline__ long long first_part(const Segment& segment) const {
        return static_cast<long long>(segment.q_tile_of_all) * most_splits;
    }

private:
    Segment found;
    int most_splits;
    bool has_rows;
};
