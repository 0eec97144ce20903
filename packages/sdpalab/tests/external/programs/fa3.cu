// FlashAttention-3, two heads, compared with double precision: fa3 SEQ_Q [SEQ_KV [SMS]]
// -DHEAD_DIM=64 or 128; -DFP8=0 or 1; -DCAUSAL=0 or 1; -DCLUSTER=1 or 2 blocks; -DPASS=0 forward,
// 2 backward (FP16, HEAD_DIM=64)
#include "attention.h"
#if PASS == 2
#include "flash_bwd_launch_template.h"
#else
#include "flash_fwd_launch_template.h"
#endif

#if FP8
using T = cutlass::float_e4m3_t;
using Output = cutlass::bfloat16_t;
#else
using T = cutlass::half_t;
using Output = cutlass::half_t;
#endif

int main(int argc, char **argv) {
    int seq_q = argc > 1 ? std::atoi(argv[1]) : 200, seq_kv = argc > 2 ? std::atoi(argv[2]) : seq_q;
    Attention a{seq_q, seq_kv, 2, 2, HEAD_DIM, CAUSAL};
    Normal normal;
    auto q = normal.draw<T>(a.queries()), k = normal.draw<T>(a.keys()), v = normal.draw<T>(a.keys());
    DeviceArray<T> device_q(q), device_k(k), device_v(v);
    DeviceArray<Output> device_o(a.queries());
    DeviceArray<float> device_lse(size_t(a.heads) * a.seq_q);
    DeviceArray<int> semaphore(std::vector<int>(4, 0));
    Doubles lse, o = a.forward(to_double(q), to_double(k), to_double(v), lse);
#if PASS == 2
    Flash_bwd_params p = {};
#else
    Flash_fwd_params p = {};
#endif
    p.q_ptr = device_q.data, p.k_ptr = device_k.data, p.v_ptr = device_v.data, p.o_ptr = device_o.data;
    p.softmax_lse_ptr = device_lse.data;
    p.q_batch_stride = p.o_batch_stride = a.queries(), p.k_batch_stride = p.v_batch_stride = a.keys();
    p.q_row_stride = p.o_row_stride = p.k_row_stride = p.v_row_stride = a.heads * a.head_dim;
    p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = a.head_dim, p.v_dim_stride = 1;
    p.b = p.b_k = 1, p.h = a.heads, p.h_k = a.kv_heads;
    p.seqlen_q = p.total_q = a.seq_q, p.seqlen_k = p.total_k = a.seq_kv;
    p.d = p.d_rounded = p.dv = p.dv_rounded = a.head_dim;
    p.seqlen_q_rounded = (a.seq_q + 127) / 128 * 128, p.seqlen_k_rounded = (a.seq_kv + 127) / 128 * 128;
    p.scale_softmax = a.scale(), p.p_dropout = p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255;
    p.window_size_left = -1, p.window_size_right = a.causal ? 0 : -1, p.is_causal = a.causal;
    p.num_splits = 1, p.tile_count_semaphore = semaphore.data, p.is_e4m3 = FP8;
    p.arch = 90, p.num_sm = argc > 3 ? std::atoi(argv[3]) : 3;
#if PASS == 2
    auto grad_o = normal.draw<T>(a.queries());
    device_o.set(from_double<Output>(o)), device_lse.set(from_double<float>(lse));
    DeviceArray<T> device_grad_o(grad_o), device_grad_q(q.size()), device_grad_k(k.size()), device_grad_v(v.size());
    DeviceArray<float> sums(size_t(p.seqlen_q_rounded) * a.heads * a.head_dim);
    DeviceArray<float> products(size_t(p.seqlen_q_rounded) * a.heads), lse_log2(products.count);
    p.do_ptr = device_grad_o.data, p.dq_ptr = device_grad_q.data, p.dk_ptr = device_grad_k.data;
    p.dv_ptr = device_grad_v.data, p.dq_accum_ptr = sums.data;
    p.dsoftmax_sum = products.data, p.softmax_lse_log2_ptr = lse_log2.data;
    p.do_batch_stride = p.dq_batch_stride = a.queries(), p.dk_batch_stride = p.dv_batch_stride = a.keys();
    p.do_row_stride = p.dq_row_stride = p.dk_row_stride = p.dv_row_stride = a.heads * a.head_dim;
    p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = a.head_dim;
    // Tiles of 128 x 128, no varlen, not deterministic, no GQA; stages and layouts are those of its launcher.
    run_flash_bwd<90, HEAD_DIM, 128, 128, T, CAUSAL, false, false, false, false, false, 2, 2, true, false, false, 2, 1, 2,
                  2, false>(p, 0);
    Doubles grad_q, grad_k, grad_v;
    a.backward(to_double(q), to_double(k), to_double(v), to_double(grad_o), grad_q, grad_k, grad_v);
    int wrong = compare("grad_q", device_grad_q.get(), grad_q, 1e-2);
    wrong |= compare("grad_k", device_grad_k.get(), grad_k, 1e-2);
    return wrong | compare("grad_v", device_grad_v.get(), grad_v, 1e-2);
#else
    // No window, softcap, varlen, paged or appended K and V, second Q, packed GQA, split or transposed V.
    run_flash_fwd<90, HEAD_DIM, HEAD_DIM, CLUSTER, T, Output, CAUSAL, false, false, false, false, false, false, false,
                  false, false>(p, 0);
    int wrong = compare("o", device_o.get(), o, FP8 ? 0.1 : 4e-3);
    return wrong | compare("lse", device_lse.get(), lse, FP8 ? 1e-3 : 1e-4);
#endif
}
