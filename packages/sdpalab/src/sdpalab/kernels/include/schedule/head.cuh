// Work of one block. Every kernel of the ladder has the same parameters and the same grid:
//
//   (const Element* q, const Element* k, const Element* v, Element* o, int seq_q, int seq_kv, int group, float scale,
//    float* lse)
//   grid = (tiles of query rows, query heads, batch);  group = query heads that share one K/V head;
//   lse [batch, query heads, seq_q]: the log-sum-exp of each row, if it is not null.
#pragma once

#include "tile/dtype.cuh"

// The block's own head of each tensor: q, o [seq_q, HEAD_DIM] and k, v [seq_kv, HEAD_DIM], contiguous.
struct Head {
    const Element* q;
    const Element* k;
    const Element* v;
    Element* o;
};

// Number of the block's query head among the heads of all batches.
__device__ __forceinline__ unsigned q_head_of_block() {
    return blockIdx.z * gridDim.y + blockIdx.y;
}

// Offsets between heads are 64-bit: B*H*S*D may exceed 2^31. Within a head 32 bits suffice; the kernels' supports()
// checks that. A batch has `group` times as many query heads as K/V heads, so the numbers over all batches divide, too.
__device__ __forceinline__ Head head_at(unsigned q_head, const Element* q, const Element* k, const Element* v,
                                        Element* o, int seq_q, int seq_kv, int group) {
    const long long q_offset = static_cast<long long>(q_head) * seq_q * HEAD_DIM;
    const long long kv_offset = static_cast<long long>(q_head / group) * seq_kv * HEAD_DIM;
    return Head{q + q_offset, k + kv_offset, v + kv_offset, o + q_offset};
}

__device__ __forceinline__ Head head_of_block(const Element* q, const Element* k, const Element* v, Element* o,
                                              int seq_q, int seq_kv, int group) {
    return head_at(q_head_of_block(), q, k, v, o, seq_q, seq_kv, group);
}

// A head of the log-sum-exp, which is not null: [seq_q].
__device__ __forceinline__ float* lse_at(float* lse, unsigned q_head, int seq_q) {
    return lse + static_cast<long long>(q_head) * seq_q;
}

// The block's own head of the log-sum-exp, which is not null: [seq_q].
__device__ __forceinline__ float* lse_of_block(float* lse, int seq_q) {
    return lse_at(lse, q_head_of_block(), seq_q);
}

// The block's tile of query rows. Causal tiles further down have more keys: they run first, so the short ones finish
// last.
__device__ __forceinline__ int q_tile_of_block() {
    return CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
}

// A row of the block's query head, counted over the heads of all batches.
__device__ __forceinline__ unsigned long long row_of_block(int row, int seq_q) {
    return static_cast<unsigned long long>(q_head_of_block()) * seq_q + row;
}
