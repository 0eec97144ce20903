// The kernels of CUTLASS's example 88 (attention for Hopper), FP16, two heads, compared with double precision:
// cutlass_fmha SEQ_Q [SEQ_KV]
// -DPASS=0 forward, 2 backward (as many keys as queries); -DCAUSAL=0 or 1, as many keys as queries;
// -DSCHEDULE=KernelTma, KernelTmaWarpSpecializedCooperative or KernelTmaWarpSpecializedPingpong, of the forward
#include "attention.h"
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"

#include "collective/fmha_fusion.hpp"
#include "device/device_universal.hpp"
#include "device/fmha_device_bwd.hpp"
#include "kernel/fmha_kernel_builder.hpp"

using namespace cute;
using T = cutlass::half_t;
constexpr int HEAD_DIM = 64;
using Masks = std::conditional_t<CAUSAL, cutlass::fmha::collective::CausalFusion,
                                 cutlass::fmha::collective::ResidualFusion>;
#if PASS == 2
using Operation = cutlass::fmha::device::FmhaBwd<T, float, Shape<_64, _128, Int<HEAD_DIM>>, Masks>;
#else
using Schedule = cutlass::gemm::SCHEDULE;
using TileShape = std::conditional_t<std::is_same_v<Schedule, cutlass::gemm::KernelTma>, Shape<_64, _128, Int<HEAD_DIM>>,
                                Shape<_128, _64, Int<HEAD_DIM>>>;
using Strides = tuple<int, _1, tuple<int, int>>;  // of a row, an element, a batch and a head
using Operation = cutlass::device::Universal<cutlass::fmha::kernel::FmhaBuilder<
    T, float, float, TileShape, Strides, Strides, Strides, Masks, Schedule>::Kernel>;
#endif

int main(int argc, char **argv) {
    int seq_q = argc > 1 ? std::atoi(argv[1]) : 200, seq_kv = argc > 2 ? std::atoi(argv[2]) : seq_q;
    Attention a{seq_q, seq_kv, 2, 2, HEAD_DIM, CAUSAL};
    Normal normal;
    auto q = normal.draw<T>(a.queries()), k = normal.draw<T>(a.keys()), v = normal.draw<T>(a.keys());
    DeviceArray<T> device_q(q), device_k(k), device_v(v), device_o(a.queries());
    int lse_rows = (a.seq_q + 7) / 8 * 8, row = a.heads * HEAD_DIM, queries = a.queries(), keys = a.keys();
    DeviceArray<float> device_lse(size_t(a.heads) * lse_rows);
    Doubles lse, o = a.forward(to_double(q), to_double(k), to_double(v), lse);
    Operation operation;
    cutlass::KernelHardwareInfo hardware;
    hardware.sm_count = 3;
    auto problem = make_tuple(1, a.heads, a.seq_q, a.seq_kv, HEAD_DIM);
#if PASS == 2
    auto grad_o = normal.draw<T>(a.queries());
    std::vector<float> padded_lse(device_lse.count, 0);
    for (size_t i = 0; i < lse.size(); i++) padded_lse[i / a.seq_q * lse_rows + i % a.seq_q] = float(lse[i]);
    device_o.set(from_double<T>(o)), device_lse.set(padded_lse);
    DeviceArray<T> device_grad_o(grad_o), device_grad_q(q.size()), device_grad_k(k.size()), device_grad_v(v.size());
    auto of_q = make_stride(queries, HEAD_DIM, row, _1{}), of_k = make_stride(keys, HEAD_DIM, row, _1{});
    Operation::Arguments arguments{
        problem, device_q.data, of_q, device_k.data, of_k, device_v.data, of_k, device_o.data, of_q, device_lse.data,
        make_stride(a.heads * lse_rows, lse_rows, _1{}), device_grad_o.data, of_q, device_grad_q.data, of_q,
        device_grad_k.data, of_k, device_grad_v.data, of_k, hardware};
#else
    Strides of_q{row, _1{}, {queries, HEAD_DIM}}, of_k{row, _1{}, {keys, HEAD_DIM}};
    Operation::Arguments arguments{
        problem,
        {device_q.data, of_q, device_k.data, of_k, device_v.data, of_k},
        {device_o.data, of_q, device_lse.data, make_stride(_1{}, make_stride(a.heads * lse_rows, lse_rows))},
        hardware};
#endif
    DeviceArray<char> workspace(Operation::get_workspace_size(arguments) + 1);
    bool ran = operation.can_implement(arguments) == cutlass::Status::kSuccess &&
               operation.run(arguments, workspace.data) == cutlass::Status::kSuccess;
    if (!ran) return std::printf("CUTLASS does not run it\n"), 1;
    CHECK(cudaDeviceSynchronize());
#if PASS == 2
    Doubles grad_q, grad_k, grad_v;
    a.backward(to_double(q), to_double(k), to_double(v), to_double(grad_o), grad_q, grad_k, grad_v);
    int wrong = compare("grad_q", device_grad_q.get(), grad_q, 1e-2);
    wrong |= compare("grad_k", device_grad_k.get(), grad_k, 1e-2);
    return wrong | compare("grad_v", device_grad_v.get(), grad_v, 1e-2);
#else
    auto padded_lse = device_lse.get();
    std::vector<float> device_rows;
    for (size_t i = 0; i < lse.size(); i++) device_rows.push_back(padded_lse[i / a.seq_q * lse_rows + i % a.seq_q]);
    int wrong = compare("o", device_o.get(), o, 4e-3);
    return wrong | compare("lse", device_rows, lse, 1e-4);
#endif
}
