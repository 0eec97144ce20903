// Tensors of the backward pass, contiguous, with 64-bit offsets between heads.
#pragma once

#include "tile/dtype.cuh"

struct Tensors {
    const Element* q;       // [batch, heads, seq_q, HEAD_DIM]
    const Element* k;       // [batch, heads / group, seq_kv, HEAD_DIM]
    const Element* v;       // as K
    const Element* dout;    // dO, as Q
    const float* lse;       // [batch, heads, seq_q], natural logarithm
    const float* delta;     // [batch, heads, seq_q]
    Element* dq;            // as Q
    Element* dk;            // as K
    Element* dv;            // as K
    const int* kv_lengths;  // [batch], or null
    const int* q_lengths;   // [batch], or null
    const void* attn_mask;  // [1 or batch, 1 or heads, seq_q, seq_kv], or null
    const float* alibi_slopes;  // [heads], or null
    int seq_q;
    int seq_kv;
    int heads;
    int group;  // query heads that share one K/V head
    float scale;
    const int* cu_seqlens_q = nullptr;  // [batch + 1], or null: the tensors are packed (backward/entry_rows.cuh)
    const int* cu_seqlens_k = nullptr;
    int batch = 0;  // of packed sequences
};

// Offset in elements of a row of one of `seq` rows a head; heads are counted over all batches.
__device__ __forceinline__ long long row_offset(unsigned head, int seq, int row = 0) {
    return (static_cast<long long>(head) * seq + row) * HEAD_DIM;
}

// First entry of the mask for a query head that is counted over all batches: the mask's type is ATTN_MASK.
__device__ __forceinline__ const unsigned char* mask_of_head(const Tensors& tensors, unsigned head) {
    const unsigned batch = head / tensors.heads;
    const long long matrix = ATTN_MASK_PER_HEAD ? (ATTN_MASK_PER_BATCH ? head : head % tensors.heads)
                                                : (ATTN_MASK_PER_BATCH ? batch : 0);
    constexpr int BYTES = ATTN_MASK == 2 ? static_cast<int>(sizeof(Element)) : 1;
    return static_cast<const unsigned char*>(tensors.attn_mask) + matrix * tensors.seq_q * tensors.seq_kv * BYTES;
}
