// SageAttention's CUDA kernels, quantisation and attention, two heads, compared with double precision:
// sage SEQ_Q [SEQ_KV]
// -DARCH=80, V in FP16; 89 or 90, V in FP8; -DSUMS=32, or 16 on 89: of P V in FP16; -DDIM=64 or 128; -DCAUSAL=0 or 1
#include <cuda.h>

#include "attention.h"
#include "dispatch_utils.h"

// One instance of each kernel, in place of all that the launchers choose from.
#undef DISPATCH_HEAD_DIM
#undef DISPATCH_CAUSAL
#undef DISPATCH_QK_QUANT_GRAN
#undef DISPATCH_RETURN_LSE
#undef DISPATCH_PYTORCH_DTYPE_TO_CTYPE_FP16
#define ONLY(TYPE, NAME, VALUE, ...) { constexpr TYPE NAME = VALUE; __VA_ARGS__ }
#define DISPATCH_HEAD_DIM(value, NAME, ...) ONLY(int, NAME, DIM, __VA_ARGS__)
#define DISPATCH_CAUSAL(value, NAME, ...) ONLY(bool, NAME, CAUSAL, __VA_ARGS__)
#define DISPATCH_QK_QUANT_GRAN(value, NAME, ...) ONLY(int, NAME, 2, __VA_ARGS__)
#define DISPATCH_RETURN_LSE(value, NAME, ...) ONLY(bool, NAME, false, __VA_ARGS__)
#define DISPATCH_PYTORCH_DTYPE_TO_CTYPE_FP16(value, NAME, ...) { using NAME = half; __VA_ARGS__ }

#include "fused/fused.cu"
#if ARCH == 80
#include "qattn/qk_int_sv_f16_cuda_sm80.cu"
#elif SUMS == 16
#include "qattn/sm89_qk_int8_sv_f8_accum_f16_fuse_v_scale_attn_inst_buf.cu"
#define ATTENTION qk_int8_sv_f8_accum_f16_fuse_v_scale_attn_inst_buf
#elif ARCH == 89
#include "qattn/sm89_qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf.cu"
#define ATTENTION qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf
#else
// The driver's call by its entry point, because the program is not linked with the driver.
template <typename... Values>
CUresult encode_tiled(Values... values) {
    decltype(&cuTensorMapEncodeTiled) call = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", reinterpret_cast<void **>(&call), 0, &found));
    return call(values...);
}
#define cuTensorMapEncodeTiled encode_tiled
#include "qattn/qk_int_sv_f8_cuda_sm90.cu"
#define ATTENTION qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf
#endif

constexpr float V_LARGEST = SUMS == 16 ? 2.25f : 448.0f;  // so that sums in FP16 do not overflow
constexpr int Q_BLOCK = ARCH == 90 ? 64 : 128, Q_ROWS = Q_BLOCK / 4, KEYS = ARCH == 90 ? 128 : 64;  // of one scale

template <typename T>
torch::Tensor view(DeviceArray<T> const &array, at::ScalarType type, torch::IntArrayRef sizes) {
    return {array.data, type, sizes};
}

// INT8 of [rows, heads, head_dim] with the scales of so many rows each, [heads, scales], as numbers.
Doubles dequantised(std::vector<int8_t> const &values, std::vector<float> const &scales, int heads, int rows_each) {
    Doubles wide(values.size());
    for (size_t i = 0; i < wide.size(); i++) {
        size_t row = i / (heads * DIM), head = i / DIM % heads;
        wide[i] = double(values[i]) * scales[head * (scales.size() / heads) + row / rows_each];
    }
    return wide;
}

int main(int argc, char **argv) {
    int seq_q = argc > 1 ? std::atoi(argv[1]) : 200, seq_kv = argc > 2 ? std::atoi(argv[2]) : seq_q;
    Attention a{seq_q, seq_kv, 2, 2, DIM, CAUSAL};
    Normal normal;
    auto q = normal.draw<half>(a.queries()), k = normal.draw<half>(a.keys()), v = normal.draw<half>(a.keys());
    Doubles wide_v = to_double(v), unused;
    int q_scales = (seq_q + Q_BLOCK - 1) / Q_BLOCK * 4, k_scales = (seq_kv + KEYS - 1) / KEYS;
    DeviceArray<half> device_q(q), device_k(k), device_o(a.queries());
    DeviceArray<int8_t> q_int8(q.size()), k_int8(k.size());
    DeviceArray<float> q_scale(a.heads * q_scales), k_scale(a.heads * k_scales);
    auto of_q = view(q_int8, torch::kInt8, {1, seq_q, a.heads, DIM});
    auto of_k = view(k_int8, torch::kInt8, {1, seq_kv, a.heads, DIM});
    auto of_o = view(device_o, torch::kHalf, {1, seq_q, a.heads, DIM});
    auto of_q_scale = view(q_scale, torch::kFloat, {1, a.heads, q_scales});
    auto of_k_scale = view(k_scale, torch::kFloat, {1, a.heads, k_scales});
    quant_per_warp_int8_cuda(view(device_q, torch::kHalf, of_q.sizes()), of_q, of_q_scale, Q_BLOCK, Q_ROWS, 0);
    quant_per_block_int8_cuda(view(device_k, torch::kHalf, of_k.sizes()), of_k, of_k_scale, KEYS, 0);
#if ARCH == 80
    DeviceArray<half> device_v(v);
    qk_int8_sv_f16_accum_f32_attn(of_q, of_k, view(device_v, torch::kHalf, of_k.sizes()), of_o, of_q_scale,
                                  of_k_scale, 0, CAUSAL, 2, float(a.scale()), 0);
#else
    // V is transposed, in the order that the products take, with zeros up to whole tiles: [head_dim, heads, keys]. For
    // Hopper SageAttention's Python code appends the zeros itself.
    int padded = (seq_kv + KEYS - 1) / KEYS * KEYS, rows = ARCH == 90 ? padded : seq_kv;
    size_t count = size_t(padded) * a.heads * DIM;
    v.resize(size_t(rows) * a.heads * DIM, half(0));
    DeviceArray<half> device_v(v), transposed(count);
    DeviceArray<__nv_fp8_e4m3> v_fp8(count);
    DeviceArray<float> v_scale(a.heads * DIM);
    auto of_v = view(v_fp8, at::ScalarType::Float8_e4m3fn, {1, DIM, a.heads, padded});
    auto of_transposed = view(transposed, torch::kHalf, of_v.sizes());
    auto of_v_scale = view(v_scale, torch::kFloat, {1, a.heads, DIM});
    transpose_pad_permute_cuda(view(device_v, torch::kHalf, {1, rows, a.heads, DIM}), of_transposed, 0);
    scale_fuse_quant_cuda(of_transposed, of_v, of_v_scale, rows, V_LARGEST, 0);
    ATTENTION(of_q, of_k, of_v, of_o, of_q_scale, of_k_scale, of_v_scale, 0, CAUSAL, 2, float(a.scale()), 0);
#endif
    CHECK(cudaDeviceSynchronize());
    Doubles rounded_v = wide_v;
#if ARCH != 80
    auto fp8 = v_fp8.get();
    auto scales = v_scale.get();
    for (size_t i = 0; i < rounded_v.size(); i++) {
        size_t key = i / (a.heads * DIM), column = i % (a.heads * DIM), head = column / DIM, d = column % DIM;
        size_t place = key / 16 * 16 + key % 16 / 8 * 2 + key / 2 % 4 * 4 + key % 2;
        rounded_v[i] = double(float(fp8[(d * a.heads + head) * padded + place])) * scales[head * DIM + d];
    }
#endif
    Doubles rounded_q = dequantised(q_int8.get(), q_scale.get(), a.heads, Q_ROWS);
    Doubles rounded_k = dequantised(k_int8.get(), k_scale.get(), a.heads, KEYS);
    int wrong = compare("quantised v", rounded_v, wide_v, 0.2);
    wrong |= compare("quantised q", rounded_q, to_double(q), 0.02);
    wrong |= compare("quantised k", rounded_k, to_double(k), 0.02);
    Doubles o = a.forward(rounded_q, rounded_k, rounded_v, unused);
    wrong |= compare("o of the quantised", device_o.get(), o, ARCH == 80 ? 4e-3 : 0.1);
    o = a.forward(to_double(q), to_double(k), wide_v, unused);
    return wrong | compare("o", device_o.get(), o, ARCH == 80 ? 0.05 : 0.2);
}
