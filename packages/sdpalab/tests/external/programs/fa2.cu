// FlashAttention-2, FP16, two heads, compared with double precision: fa2 SEQ_Q [SEQ_KV [KV_HEADS [SPLITS]]]
// -DPASS=0 forward, 1 split-KV and combine, 2 backward; -DCAUSAL=0 or 1; -DHEAD_DIM=64 or 128
#include "attention.h"
#include "flash.h"
#if PASS == 2
#include "flash_bwd_launch_template.h"
#else
#include "flash_fwd_launch_template.h"
#endif

#define JOINED(a, b) a##b
#define NAME(a, b) JOINED(a, b)

using T = cutlass::half_t;

// What forward and backward have in common: lengths, strides, scale and mask.
template <typename Params>
Params parameters(Attention const &a, DeviceArray<T> &q, DeviceArray<T> &k, DeviceArray<T> &v, DeviceArray<T> &o,
                  DeviceArray<float> &lse) {
    Params p = {};
    p.q_ptr = q.data, p.k_ptr = k.data, p.v_ptr = v.data, p.o_ptr = o.data, p.softmax_lse_ptr = lse.data;
    p.q_batch_stride = p.o_batch_stride = a.queries(), p.k_batch_stride = p.v_batch_stride = a.keys();
    p.q_row_stride = p.o_row_stride = a.heads * a.head_dim;
    p.k_row_stride = p.v_row_stride = a.kv_heads * a.head_dim;
    p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = a.head_dim;
    p.b = 1, p.h = a.heads, p.h_k = a.kv_heads, p.h_h_k_ratio = a.heads / a.kv_heads;
    p.seqlen_q = p.total_q = a.seq_q, p.seqlen_k = a.seq_kv, p.d = p.d_rounded = a.head_dim;
    p.seqlen_q_rounded = (a.seq_q + 127) / 128 * 128, p.seqlen_k_rounded = (a.seq_kv + 127) / 128 * 128;
    p.scale_softmax = a.scale(), p.scale_softmax_log2 = a.scale() * 1.44269504088896;
    p.p_dropout = p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255, p.scale_softmax_rp_dropout = p.scale_softmax;
    p.window_size_left = -1, p.window_size_right = a.causal ? 0 : -1, p.is_causal = a.causal;
    p.is_seqlens_k_cumulative = true;
    return p;
}

int main(int argc, char **argv) {
    int seq_q = argc > 1 ? std::atoi(argv[1]) : 200, seq_kv = argc > 2 ? std::atoi(argv[2]) : seq_q;
    Attention a{seq_q, seq_kv, 2, argc > 3 ? std::atoi(argv[3]) : 2, HEAD_DIM, CAUSAL};
    Normal normal;
    auto q = normal.draw<T>(a.queries()), k = normal.draw<T>(a.keys()), v = normal.draw<T>(a.keys());
    DeviceArray<T> device_q(q), device_k(k), device_v(v), device_o(a.queries());
    DeviceArray<float> device_lse(size_t(a.heads) * a.seq_q);
    Doubles lse, o = a.forward(to_double(q), to_double(k), to_double(v), lse);
#if PASS < 2
    auto p = parameters<FLASH_NAMESPACE::Flash_fwd_params>(a, device_q, device_k, device_v, device_o, device_lse);
#if PASS == 0
    FLASH_NAMESPACE::NAME(run_mha_fwd_hdim, HEAD_DIM)<T, CAUSAL>(p, 0);
#else
    p.num_splits = argc > 4 ? std::atoi(argv[4]) : 3;
    DeviceArray<float> partial_o(p.num_splits * a.queries()), partial_lse(p.num_splits * device_lse.count);
    p.oaccum_ptr = partial_o.data, p.softmax_lseaccum_ptr = partial_lse.data;
    FLASH_NAMESPACE::run_mha_fwd_splitkv_dispatch<T, HEAD_DIM, CAUSAL>(p, 0);
#endif
    int wrong = compare("o", device_o.get(), o, 4e-3);
    return wrong | compare("lse", device_lse.get(), lse, 1e-4);
#else
    auto grad_o = normal.draw<T>(a.queries());
    DeviceArray<T> device_grad_o(grad_o), device_grad_q(q.size()), device_grad_k(k.size()), device_grad_v(v.size());
    device_o.set(from_double<T>(o)), device_lse.set(from_double<float>(lse));
    auto p = parameters<FLASH_NAMESPACE::Flash_bwd_params>(a, device_q, device_k, device_v, device_o, device_lse);
    DeviceArray<float> sums(size_t(p.seqlen_q_rounded) * a.heads * a.head_dim);
    DeviceArray<float> products(size_t(p.seqlen_q_rounded) * a.heads);
    p.do_ptr = device_grad_o.data, p.dq_ptr = device_grad_q.data, p.dk_ptr = device_grad_k.data;
    p.dv_ptr = device_grad_v.data, p.dq_accum_ptr = sums.data, p.dsoftmax_sum = products.data;
    p.do_batch_stride = p.dq_batch_stride = a.queries(), p.dk_batch_stride = p.dv_batch_stride = a.keys();
    p.do_row_stride = p.dq_row_stride = p.dk_row_stride = p.dv_row_stride = a.heads * a.head_dim;
    p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = a.head_dim;
    FLASH_NAMESPACE::NAME(run_mha_bwd_hdim, HEAD_DIM)<T, CAUSAL>(p, 0);
    Doubles grad_q, grad_k, grad_v;
    a.backward(to_double(q), to_double(k), to_double(v), to_double(grad_o), grad_q, grad_k, grad_v);
    int wrong = compare("grad_q", device_grad_q.get(), grad_q, 1e-2);
    wrong |= compare("grad_k", device_grad_k.get(), grad_k, 1e-2);
    return wrong | compare("grad_v", device_grad_v.get(), grad_v, 1e-2);
#endif
}
