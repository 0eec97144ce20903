#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>
#include <cfloat>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

namespace lab {
namespace ops {

using at::Tensor;
using std::tuple;
namespace F = torch::nn::functional;

struct Params {
  const float* q;
  const float* k;
  const float* v;
  float* o;
  int rows, keys;
  float scale;
  std::string describe() const { return "rows " + std::to_string(rows); }
  Params() = default;
  Params(const Tensor& q, float s) : q(q.data_ptr<float>()), scale(s) {}
};

enum class Mode { kForward, kBackward };

template <int HEAD_DIM>
__global__ void __launch_bounds__(64) attention(const float* __restrict__ q, const float* __restrict__ k,
                                                const float* __restrict__ v, float* __restrict__ o, int seq_q,
                                                int seq_kv, int group, float scale) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  const int kv_head = blockIdx.y / group, heads = gridDim.y;
  if (row >= seq_q) return;
  const size_t base = ((size_t)blockIdx.z * heads + blockIdx.y) * seq_q + row;
  const size_t kv_base = ((size_t)blockIdx.z * (heads / group) + kv_head) * seq_kv;
  float acc[HEAD_DIM] = {};
  float top = -FLT_MAX, sum = 0.f;
  for (int j = 0; j < seq_kv; ++j) {
    float score = 0.f;
    for (int d = 0; d < HEAD_DIM; ++d) score += q[base * HEAD_DIM + d] * k[(kv_base + j) * HEAD_DIM + d];
    score *= scale;
    const float next = fmaxf(top, score);
    const float old = expf(top - next), p = expf(score - next);
    sum = sum * old + p;
    for (int d = 0; d < HEAD_DIM; ++d) acc[d] = acc[d] * old + p * v[(kv_base + j) * HEAD_DIM + d];
    top = next;
  }
  for (int d = 0; d < HEAD_DIM; ++d) o[base * HEAD_DIM + d] = acc[d] / sum;
}

template <int HEAD_DIM>
static void run(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& o, double scale) {
  const dim3 grid((q.size(2) + 63) / 64, q.size(1), q.size(0));
  auto stream = at::cuda::getCurrentCUDAStream().stream();
  attention<HEAD_DIM><<<grid, 64, 0, stream>>>(q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(),
                                               o.data_ptr<float>(), q.size(2), k.size(2), q.size(1) / k.size(1), scale);
}

tuple<Tensor, Mode> attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale) {
  c10::cuda::CUDAGuard guard(q.device());
  Tensor o = at::empty_like(q);
  switch (q.size(3)) {
    case 32: run<32>(q, k, v, o, scale.value_or(1.0)); break;
    case 64: run<64>(q, k, v, o, scale.value_or(1.0)); break;
    default: TORCH_CHECK(false, "head_dim ", q.size(3));
  }
  return {o, Mode::kForward};
}

}  // namespace ops
}  // namespace lab

TORCH_LIBRARY(lab, m) {
  m.def("attention(Tensor q, Tensor k, Tensor v, float? scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(lab, CUDA, m) { m.impl("attention", &lab::ops::attention_forward); }
