// FlashAttention-2, backward, FP16, head dimension 64: fa2_backward S; -DCAUSAL=1 for the causal one.
// O and the logarithms of the sums come from double precision, so that the forward kernels need not be built.
#include "fa2_parameters.h"
#include "flash_bwd_launch_template.h"

int main(int count, char **words) {
    const int S = count > 1 ? atoi(words[1]) : 200, rounded = (S + 127) / 128 * 128;
    const size_t size = (size_t)S * HEADS * HEAD_DIM, bytes = size * sizeof(__half);
    const Halves q = normal(size, 1), k = normal(size, 2), v = normal(size, 3), grad = normal(size, 4);
    const Gradients want = attention(q, k, v, &grad, S, HEADS, HEAD_DIM, CAUSAL);
    Halves o(size);
    for (size_t i = 0; i < size; i++) o[i] = __double2half(want.o[i]);
    std::vector<float> lse((size_t)S * HEADS);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < S; i++) {
            double sum = 0;
            for (int j = 0; j < (CAUSAL ? i + 1 : S); j++) {
                double dot = 0;
                for (int d = 0; d < HEAD_DIM; d++)
                    dot += (double)__half2float(q[((size_t)i * HEADS + h) * HEAD_DIM + d]) *
                           (double)__half2float(k[((size_t)j * HEADS + h) * HEAD_DIM + d]);
                sum += std::exp(dot / std::sqrt((double)HEAD_DIM));
            }
            lse[(size_t)h * S + i] = (float)std::log(sum);
        }
    auto p = forward_parameters<FLASH_NAMESPACE::Flash_bwd_params>(q, k, v, S, CAUSAL);
    C10_CUDA_CHECK(cudaMemcpy(p.o_ptr, o.data(), bytes, cudaMemcpyHostToDevice));
    C10_CUDA_CHECK(cudaMemcpy(p.softmax_lse_ptr, lse.data(), lse.size() * sizeof(float), cudaMemcpyHostToDevice));
    p.do_ptr = upload(grad.data(), bytes);
    p.dq_ptr = upload(nullptr, bytes), p.dk_ptr = upload(nullptr, bytes), p.dv_ptr = upload(nullptr, bytes);
    p.dq_accum_ptr = upload(nullptr, (size_t)rounded * HEADS * HEAD_DIM * sizeof(float));
    p.dsoftmax_sum = upload(nullptr, (size_t)rounded * HEADS * sizeof(float));
    p.do_batch_stride = p.dq_batch_stride = p.dk_batch_stride = p.dv_batch_stride = (int64_t)size;
    p.do_row_stride = p.dq_row_stride = p.dk_row_stride = p.dv_row_stride = HEADS * HEAD_DIM;
    p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = HEAD_DIM;
    FLASH_NAMESPACE::run_mha_bwd_hdim64<cutlass::half_t, CAUSAL>(p, 0);
    const bool good[] = {close("dQ", download(p.dq_ptr, size), want.dq, 2e-3),
                         close("dK", download(p.dk_ptr, size), want.dk, 2e-3),
                         close("dV", download(p.dv_ptr, size), want.dv, 2e-3)};
    return good[0] && good[1] && good[2] ? 0 : 1;
}
