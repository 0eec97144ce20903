// -LSE and delta of the rows of each tile of queries, in one piece that a bulk copy loads: [head][tile][2][STREAM].
//
// Rows without keys, and rows past the end of their batch entry, have -LSE = -inf and delta = 0, so that their weights
// are 0. A copy of LSE costs 4 bytes a row; loaded as it is, LSE would have no alignment for TMA at odd lengths.
#pragma once

#include "backward/delta.cuh"
#include "backward/scores.cuh"

// tiles: of queries, a head. rows: of all tiles of all heads.
__device__ __forceinline__ void statistics_of_rows(const Element* o, const Element* dout, const float* lse,
                                                   const int* q_lengths, float* statistics, int seq_q, int heads,
                                                   int tiles, long long rows) {
    const long long place = delta_row();
    const unsigned head = static_cast<unsigned>(place / (tiles * STREAM));
    const int row = static_cast<int>(place % (tiles * STREAM));
    const int queries = place >= rows ? 0 : Q_LENGTHS ? q_lengths[head / heads] : seq_q;
    const bool valid = row < queries;
    const long long source = static_cast<long long>(head) * seq_q + row;
    const float delta = delta_of_row(o, dout, source, valid);
    if (place < rows && threadIdx.x % DELTA_LANES == 0) {
        float* const of_tile = statistics + place / STREAM * (2 * STREAM) + place % STREAM;
        of_tile[0] = minus_lse_of(valid ? lse[source] : 0.0f, valid);
        of_tile[STREAM] = delta;
    }
}
