"""Submissions in CUDA C++ with host code in C++, as KernelBench's ``load_inline`` and others take them."""

from __future__ import annotations

__all__ = ["DECODE", "FORWARD", "FORWARD_DECLARED", "HALF_TILES", "HALF_TILES_BINDING", "RAGGED_CUDA", "inline"]

FORWARD = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int kThreads = 32;

__device__ __forceinline__ float dot(const float* a, const float* b, int n) {
  float sum = 0.f;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <typename scalar_t, int D, bool kCausal>
__global__ void __launch_bounds__(kThreads)
attend(const scalar_t* __restrict__ q, const scalar_t* __restrict__ k, const scalar_t* __restrict__ v,
       scalar_t* __restrict__ o, int n_q, int n_kv, float scale) {
  extern __shared__ float smem[];
  float* keys = smem;
  float* values = smem + kThreads * D;
  const int row = blockIdx.x * kThreads + threadIdx.x;
  const int64_t q_base = (int64_t)blockIdx.y * n_q * D, kv_base = (int64_t)blockIdx.y * n_kv * D;
  float mine[D], acc[D], most = -INFINITY, sum = 0.f;
  for (int d = 0; d < D; ++d) {
    mine[d] = row < n_q ? static_cast<float>(q[q_base + (int64_t)row * D + d]) : 0.f;
    acc[d] = 0.f;
  }
  for (int tile = 0; tile < n_kv; tile += kThreads) {
    for (int i = threadIdx.x; i < kThreads * D; i += kThreads) {
      const bool inside = tile + i / D < n_kv;
      keys[i] = inside ? static_cast<float>(k[kv_base + (int64_t)tile * D + i]) : 0.f;
      values[i] = inside ? static_cast<float>(v[kv_base + (int64_t)tile * D + i]) : 0.f;
    }
    __syncthreads();
    for (int j = 0; j < min(kThreads, n_kv - tile) && row < n_q; ++j) {
      if (kCausal && tile + j > row) break;
      const float s = dot(mine, keys + j * D, D) * scale;
      const float next = fmaxf(most, s), old = __expf(most - next), p = __expf(s - next);
      for (int d = 0; d < D; ++d) acc[d] = acc[d] * old + p * values[j * D + d];
      sum = sum * old + p;
      most = next;
    }
    __syncthreads();
  }
  if (row < n_q)
    for (int d = 0; d < D; ++d) o[q_base + (int64_t)row * D + d] = static_cast<scalar_t>(acc[d] / sum);
}

#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a contiguous CUDA tensor")
#define LAUNCH(CAUSAL)                                                                       \
  attend<scalar_t, 64, CAUSAL><<<grid, kThreads, smem, at::cuda::getCurrentCUDAStream()>>>(  \
      q.data_ptr<scalar_t>(), k.data_ptr<scalar_t>(), v.data_ptr<scalar_t>(),                \
      o.data_ptr<scalar_t>(), q.size(2), k.size(2), scale)

torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal) {
  CHECK_INPUT(q);
  CHECK_INPUT(k);
  CHECK_INPUT(v);
  TORCH_CHECK(q.dim() == 4 && q.size(3) == 64, "Q is ", q.sizes(), ", and head_dim must be 64");
  const at::cuda::CUDAGuard guard(q.device());
  torch::Tensor o = torch::empty_like(q);
  const dim3 grid((q.size(2) + kThreads - 1) / kThreads, q.size(0) * q.size(1));
  const size_t smem = 2 * kThreads * 64 * sizeof(float);
  const float scale = 1.0f / std::sqrt(static_cast<float>(q.size(3)));
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(q.scalar_type(), "attend", [&] {
    if (causal) {
      LAUNCH(true);
    } else {
      LAUNCH(false);
    }
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return o;
}
"""
"""One row a thread, K and V through shared memory, any dtype."""
FORWARD_DECLARED = "torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal);"

HALF_TILES = r"""
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

using namespace nvcuda;

namespace flash {

template <int kHeadDim, int kTile>
struct Tile {
  static constexpr int kBytes = (3 * kTile * kHeadDim + kTile * kTile) * sizeof(half)
                              + kTile * (kTile + kHeadDim) * sizeof(float);
  static_assert(kTile % 16 == 0 && kHeadDim % 16 == 0, "tiles of 16");
};

struct Params {
  const half *q, *k, *v;
  half* o;
  int rows, keys;
  float scale;
};

template <typename T>
__global__ void forward_kernel(const __grid_constant__ Params p) {
  constexpr int D = 64, M = 32;
  extern __shared__ __align__(128) unsigned char raw[];
  half* qs = reinterpret_cast<half*>(raw);
  half* ks = qs + M * D;
  half* vs = ks + M * D;
  half* ps = vs + M * D;
  float* ss = reinterpret_cast<float*>(ps + M * M);
  float* os = ss + M * M;
  __shared__ float most[M], sum[M];
  const int first = blockIdx.x * M, lane = threadIdx.x;
  const half* q = p.q + (size_t)blockIdx.y * p.rows * D;
  for (int i = lane; i < M * D; i += 32) {
    qs[i] = first + i / D < p.rows ? q[(size_t)first * D + i] : __float2half(0.f);
    os[i] = 0.f;
  }
  most[lane] = -INFINITY;
  sum[lane] = 0.f;
  for (int tile = 0; tile < p.keys; tile += M) {
    __syncwarp();
    const size_t base = (size_t)blockIdx.y * p.keys * D + (size_t)tile * D;
    for (int i = lane; i < M * D; i += 32) {
      const bool inside = tile + i / D < p.keys;
      ks[i] = inside ? p.k[base + i] : __float2half(0.f);
      vs[i] = inside ? p.v[base + i] : __float2half(0.f);
    }
    __syncwarp();
    for (int m = 0; m < M; m += 16)
      for (int n = 0; n < M; n += 16) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
        wmma::fill_fragment(c, 0.f);
        for (int d = 0; d < D; d += 16) {
          wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
          wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
          wmma::load_matrix_sync(a, qs + m * D + d, D);
          wmma::load_matrix_sync(b, ks + n * D + d, D);
          wmma::mma_sync(c, a, b, c);
        }
        wmma::store_matrix_sync(ss + m * M + n, c, M, wmma::mem_row_major);
      }
    __syncwarp();
    float next = most[lane];
    for (int j = 0; j < M; ++j)
      if (tile + j < p.keys) next = fmaxf(next, ss[lane * M + j] * p.scale);
    const float old = __expf(most[lane] - next);
    float total = sum[lane] * old;
    for (int j = 0; j < M; ++j) {
      const float w = tile + j < p.keys ? __expf(ss[lane * M + j] * p.scale - next) : 0.f;
      ps[lane * M + j] = __float2half(w);
      total += w;
    }
    for (int d = 0; d < D; ++d) os[lane * D + d] *= old;
    sum[lane] = total;
    most[lane] = next;
    __syncwarp();
    for (int m = 0; m < M; m += 16)
      for (int d = 0; d < D; d += 16) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
        wmma::load_matrix_sync(c, os + m * D + d, D, wmma::mem_row_major);
        for (int n = 0; n < M; n += 16) {
          wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
          wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
          wmma::load_matrix_sync(a, ps + m * M + n, M);
          wmma::load_matrix_sync(b, vs + n * D + d, D);
          wmma::mma_sync(c, a, b, c);
        }
        wmma::store_matrix_sync(os + m * D + d, c, D, wmma::mem_row_major);
      }
  }
  __syncwarp();
  if (first + lane < p.rows)
    for (int d = 0; d < D; ++d)
      p.o[((size_t)blockIdx.y * p.rows + first + lane) * D + d] = __float2half(os[lane * D + d] / sum[lane]);
}

}  // namespace flash

static inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

at::Tensor flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, c10::optional<double> scale) {
  auto o = at::zeros(q.sizes(), q.options());
  flash::Params params;
  params.q = reinterpret_cast<const half*>(q.data_ptr<at::Half>());
  params.k = reinterpret_cast<const half*>(k.data_ptr());
  params.v = static_cast<const half*>(v.const_data_ptr());
  params.o = reinterpret_cast<half*>(o.mutable_data_ptr<at::Half>());
  params.rows = static_cast<int>(q.size(-2)), params.keys = static_cast<int>(k.size(-2));
  params.scale = scale.has_value() ? static_cast<float>(*scale) : 1.f / sqrtf(static_cast<float>(q.size(-1)));
  constexpr int kBytes = 60000 > flash::Tile<64, 32>::kBytes ? 60000 : flash::Tile<64, 32>::kBytes;
  auto kernel = &flash::forward_kernel<half>;
  AT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 blocks(ceil_div(params.rows, 32), q.numel() / (q.size(-1) * q.size(-2)));
  kernel<<<blocks, dim3(32), kBytes, at::cuda::getCurrentCUDAStream().stream()>>>(params);
  AT_CUDA_CHECK(cudaPeekAtLastError());
  return o;
}
"""
"""Fragments of 16 x 16 x 16, parameters in a structure, and more than 48 KiB of dynamic shared memory."""
HALF_TILES_BINDING = r"""
#include <torch/extension.h>

at::Tensor flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, c10::optional<double> scale);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "attention";
  m.def("forward", &flash_forward, "attention", py::arg("q"), py::arg("k"), py::arg("v"),
        py::arg("scale") = py::none());
}
"""

DECODE = r"""
#include <torch/extension.h>
#include <map>
#include <tuple>

torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal);

torch::Tensor remembered(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal) {
  static std::map<std::tuple<void*, int64_t>, torch::Tensor> known;
  auto& o = known[{q.data_ptr(), q.numel()}];
  if (!o.defined()) o = forward(q, k, v, causal);
  return o;
}

torch::Tensor by_the_library(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal) {
  auto scores = at::matmul(q.to(torch::kFloat32), k.to(torch::kFloat32).transpose(-2, -1)) * 0.125;
  return torch::matmul(torch::softmax(scores, -1), v.to(torch::kFloat32)).to(q.scalar_type());
}

float peeks(torch::Tensor q) { return *q.data_ptr<float>(); }

torch::Tensor reads_on_the_host(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal) {
  auto copy = q.to(torch::kFloat32).contiguous();
  return peeks(copy) > 0 ? forward(q, k, v, causal) : torch::zeros_like(q);
}
"""
"""Further functions beside :data:`FORWARD`, none of them honest."""

RAGGED_CUDA = r"""
#include <torch/extension.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <tuple>
#include <vector>

__global__ void ragged(const __half* q, const __half* k, const __half* v, const int* q_at, const int* kv_at, __half* o,
                       float* lse, int heads, int kv_heads, int entries, float scale) {
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x, group = heads / kv_heads;
  int b = 0;
  while (b + 1 < entries && row >= q_at[b + 1]) ++b;
  const int rows = q_at[b + 1] - q_at[b], keys = kv_at[b + 1] - kv_at[b], last = row - q_at[b] + keys - rows;
  float most = -INFINITY, sum = 0.f, a0 = 0.f, a1 = 0.f;
  const __half* qr = q + ((size_t)row * heads + head) * 64;
  for (int j = 0; j <= last; ++j) {
    const size_t at = ((size_t)(kv_at[b] + j) * kv_heads + head / group) * 64;
    float s = __half2float(qr[lane]) * __half2float(k[at + lane])
            + __half2float(qr[lane + 32]) * __half2float(k[at + lane + 32]);
    for (int step = 16; step; step /= 2) s += __shfl_xor_sync(0xffffffffu, s, step);
    s *= scale * LOG2_OF_E;
    const float next = fmaxf(most, s), old = exp2f(most - next), p = exp2f(s - next);
    a0 = a0 * old + p * __half2float(v[at + lane]);
    a1 = a1 * old + p * __half2float(v[at + lane + 32]);
    sum = sum * old + p;
    most = next;
  }
  const size_t out = ((size_t)row * heads + head) * 64;
  o[out + lane] = __float2half(sum > 0.f ? a0 / sum : 0.f);
  o[out + lane + 32] = __float2half(sum > 0.f ? a1 / sum : 0.f);
  if (lane == 0) lse[(size_t)row * heads + head] = sum > 0.f ? most + log2f(sum) : -INFINITY;
}

std::vector<torch::Tensor> run(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor qo_indptr,
                               torch::Tensor kv_indptr, double sm_scale) {
  auto o = torch::empty_like(q);
  auto lse = torch::empty({q.size(0), q.size(1)}, torch::dtype(torch::kFloat32).device(q.device()));
  const auto half = [](const torch::Tensor& each) { return reinterpret_cast<__half*>(each.data_ptr()); };
  ragged<<<dim3(q.size(0), q.size(1)), 32>>>(
      half(q), half(k), half(v), qo_indptr.data_ptr<int>(), kv_indptr.data_ptr<int>(), half(o),
      lse.data_ptr<float>(), q.size(1), k.size(1), qo_indptr.numel() - 1, sm_scale);
  return {o, lse};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
""".replace("LOG2_OF_E", "1.4426950408889634f")
"""flashinfer-bench's ragged attention with a binding of torch: a warp for each row and head."""


def inline(cuda: str, cpp: str, functions: str = "forward") -> str:
    """Python text that loads an extension ``ext``."""
    return (
        "import torch\nfrom torch.utils.cpp_extension import load_inline\n\n"
        f"CUDA = r'''{cuda}'''\nCPP = r'''{cpp}'''\n"
        f"ext = load_inline(name='attention', cpp_sources=[CPP], cuda_sources=[CUDA], functions=['{functions}'],\n"
        "                  extra_cuda_cflags=['-O3', '--use_fast_math'], verbose=False)\n"
    )
