// FlashAttention-2, forward, FP16, head dimension 64, two heads, without mask: fa2_forward S. Compared with double precision.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_fp16.h>
#include "flash.h"
#include "flash_fwd_launch_template.h"
#define CHECK(call) C10_CUDA_CHECK(call)
int main(int argc, char **argv) {
    const int S = argc > 1 ? atoi(argv[1]) : 200, H = 2, D = 64;
    const size_t count = (size_t)S * H * D;
    std::vector<__half> q(count), k(count), v(count), o(count);
    unsigned seed = 1;
    auto draw = [&] { float sum = 0; for (int i = 0; i < 12; i++) sum += (seed = seed * 1664525u + 1013904223u) / 4294967296.0f; return __float2half(sum - 6); };
    for (auto *each : {&q, &k, &v}) for (auto &x : *each) x = draw();
    void *dq, *dk, *dv, *dout, *lse;
    for (auto p : {&dq, &dk, &dv, &dout}) CHECK(cudaMalloc(p, count * 2));
    CHECK(cudaMalloc(&lse, (size_t)S * H * 4));
    CHECK(cudaMemcpy(dq, q.data(), count * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dk, k.data(), count * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dv, v.data(), count * 2, cudaMemcpyHostToDevice));
    FLASH_NAMESPACE::Flash_fwd_params p = {};
    p.q_ptr = dq, p.k_ptr = dk, p.v_ptr = dv, p.o_ptr = dout, p.softmax_lse_ptr = lse;
    p.q_batch_stride = p.k_batch_stride = p.v_batch_stride = p.o_batch_stride = count;
    p.q_row_stride = p.k_row_stride = p.v_row_stride = p.o_row_stride = H * D;
    p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = D;
    p.b = 1, p.h = p.h_k = H, p.h_h_k_ratio = 1;
    p.seqlen_q = p.seqlen_k = S, p.d = p.d_rounded = D;
    p.seqlen_q_rounded = p.seqlen_k_rounded = (S + 127) / 128 * 128;
    p.scale_softmax = 1 / std::sqrt((float)D), p.scale_softmax_log2 = p.scale_softmax * 1.44269504f;
    p.p_dropout = 1, p.p_dropout_in_uint8_t = 255, p.rp_dropout = 1, p.scale_softmax_rp_dropout = p.scale_softmax;
    p.window_size_left = p.window_size_right = -1, p.is_seqlens_k_cumulative = true;
    FLASH_NAMESPACE::run_mha_fwd_hdim64<cutlass::half_t, false>(p, 0);
    CHECK(cudaMemcpy(o.data(), dout, count * 2, cudaMemcpyDeviceToHost));
    double worst = 0;
    for (int h = 0; h < H; h++) for (int i = 0; i < S; i += 7) {
        std::vector<double> w(S); double top = -1e300, sum = 0;
        auto at = [&](std::vector<__half> &x, int s, int d) { return (double)__half2float(x[((size_t)s * H + h) * D + d]); };
        for (int j = 0; j < S; j++) { double dot = 0; for (int d = 0; d < D; d++) dot += at(q, i, d) * at(k, j, d); w[j] = dot / std::sqrt((double)D); top = std::fmax(top, w[j]); }
        for (double &x : w) sum += x = std::exp(x - top);
        for (int d = 0; d < D; d++) { double want = 0; for (int j = 0; j < S; j++) want += w[j] / sum * at(v, j, d); worst = std::fmax(worst, std::fabs(want - at(o, i, d))); }
    }
    std::printf("S=%d: largest error %.2e, %s\n", S, worst, worst < 2e-3 ? "right" : "WRONG");
    return worst < 2e-3 ? 0 : 1;
}
