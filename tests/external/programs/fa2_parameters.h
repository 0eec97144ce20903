// Parameters of FlashAttention-2 for one batch of [S, H, 64] halves, as its Python binding would fill them in.
#pragma once
#include "attention.h"
#include "flash.h"
#include <c10/cuda/CUDAException.h>
#include <cutlass/numeric_types.h>

constexpr int HEADS = 2, HEAD_DIM = 64;

inline void *upload(const void *data, size_t bytes) {
    void *device;
    C10_CUDA_CHECK(cudaMalloc(&device, bytes));
    if (data) C10_CUDA_CHECK(cudaMemcpy(device, data, bytes, cudaMemcpyHostToDevice));
    return device;
}

inline Halves download(const void *device, size_t count) {
    Halves host(count);
    C10_CUDA_CHECK(cudaMemcpy(host.data(), device, count * sizeof(__half), cudaMemcpyDeviceToHost));
    return host;
}

template <class Parameters> Parameters forward_parameters(const Halves &q, const Halves &k, const Halves &v, int S, bool causal) {
    Parameters p = {};
    const size_t bytes = q.size() * sizeof(__half);
    p.q_ptr = upload(q.data(), bytes), p.k_ptr = upload(k.data(), bytes), p.v_ptr = upload(v.data(), bytes);
    p.o_ptr = upload(nullptr, bytes), p.softmax_lse_ptr = upload(nullptr, (size_t)S * HEADS * sizeof(float));
    p.q_batch_stride = p.k_batch_stride = p.v_batch_stride = p.o_batch_stride = (int64_t)q.size();
    p.q_row_stride = p.k_row_stride = p.v_row_stride = p.o_row_stride = HEADS * HEAD_DIM;
    p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = HEAD_DIM;
    p.b = 1, p.h = p.h_k = HEADS, p.h_h_k_ratio = 1;
    p.seqlen_q = p.seqlen_k = S, p.d = p.d_rounded = HEAD_DIM;
    p.seqlen_q_rounded = p.seqlen_k_rounded = (S + 127) / 128 * 128;
    p.scale_softmax = 1 / std::sqrt((float)HEAD_DIM), p.scale_softmax_log2 = p.scale_softmax * (float)M_LOG2E;
    p.p_dropout = 1, p.p_dropout_in_uint8_t = 255, p.rp_dropout = 1, p.scale_softmax_rp_dropout = p.scale_softmax;
    p.is_causal = causal, p.window_size_left = -1, p.window_size_right = causal ? 0 : -1;
    p.is_seqlens_k_cumulative = true;
    return p;
}
