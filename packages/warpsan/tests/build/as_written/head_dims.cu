#pragma once
#include <cuda_fp16.h>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#define DEVICE_INLINE __device__ __forceinline__
#ifndef WARPS
#define WARPS 4
#endif
#define KERNEL_BOUNDS(threads) __launch_bounds__(threads, 1)

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <typename T>
constexpr T align_up(T value, T unit) {
  return ceil_div(value, unit) * unit;
}

// What a launch is made with; the host asks it for sizes.
template <int kHeadDim_, typename Element_ = half>
struct Traits {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kThreads = 32 * WARPS;
  static constexpr int kVectors = kHeadDim / 8;
  static constexpr int smem_bytes() { return align_up(kThreads * kHeadDim * int(sizeof(Element)), 16); }
  static void check(int device) {
    if (device < 0) throw std::runtime_error("no device");
  }
  static_assert(kHeadDim % 8 == 0, "whole vectors");
};

template <int D>
struct Traits<D, void>;

struct Arguments {
  const void* x;
  void* y;
  int rows;
  Arguments(const void* x, void* y, int rows) : x(x), y(y), rows(rows) {}
  ~Arguments() {}
  bool operator==(const Arguments& other) const { return x == other.x; }
  friend bool same(const Arguments& a, const Arguments& b) { return a == b; }
};

DEVICE_INLINE float scaled(half value, float by) { return __half2float(value) * by; }

template <typename T>
KERNEL_BOUNDS(T::kThreads)
__global__ void scale_rows(const typename T::Element* x, typename T::Element* y, int rows, float by) {
  extern __shared__ __align__(16) unsigned char smem[];
  auto* tile = reinterpret_cast<typename T::Element*>(smem);
  constexpr int tiles = ceil_div(T::kHeadDim, T::kVectors);
  const int row = blockIdx.x * T::kThreads + threadIdx.x;
  if (row >= rows) return;
  for (int i = 0; i < tiles * T::kVectors; ++i) tile[threadIdx.x * T::kHeadDim + i] = x[row * T::kHeadDim + i];
  for (int i = 0; i < T::kHeadDim; ++i)
    y[row * T::kHeadDim + i] = __float2half(scaled(tile[threadIdx.x * T::kHeadDim + i], by));
}

template <typename T>
void launch(const Arguments& args, cudaStream_t stream) {
  constexpr int smem = T::smem_bytes();
  auto kernel = &scale_rows<T>;
  if constexpr (smem > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  }
  const int blocks = ceil_div(args.rows, T::kThreads);
  kernel<<<blocks, T::kThreads, smem, stream>>>(
      static_cast<const half*>(args.x), static_cast<half*>(args.y), args.rows, 2.f);
}

void dispatch(const Arguments& args, int head_dim, cudaStream_t stream) {
  switch (head_dim) {
#define CASE(D) \
  case D:       \
    return launch<Traits<D>>(args, stream)
    CASE(32);
    CASE(64);
    CASE(128);
#undef CASE
  }
  throw std::invalid_argument("head_dim");
}

template void launch<Traits<64>>(const Arguments&, cudaStream_t);
template __global__ void scale_rows<Traits<32>>(const half*, half*, int, float);
