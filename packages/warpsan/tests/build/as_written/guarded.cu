// Conditionals, odd macros and literals around device code.
#include <math.h>
#ifndef __CUDACC_RTC__
#include <gtest/gtest.h>
#include <iostream>
#endif
#ifdef USE_ROCM
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime_api.h>
#endif

#if defined(__CUDACC__)
#define HD __host__ __device__
#else
#define HD
#endif
#define INLINE_HD HD inline
#define LAUNCH(threads) __launch_bounds__(threads)
#define DEFINE_UNARY(name, expression)                       \
  __global__ void name##_kernel(float* x, int n) {           \
    const int i = blockIdx.x * blockDim.x + threadIdx.x;     \
    if (i < n) {                                             \
      const float v = x[i];                                  \
      x[i] = expression;                                     \
    }                                                        \
  }                                                          \
  void name(float* x, int n) { name##_kernel<<<1, 1>>>(x, n); }
#define KERNEL(name) extern "C" __global__ void name

/* An old version: void host() { } } */
#if 0
void unfinished() {
#endif

static const char* const banner = R"delimiter(
#include "nothing.h"
void not_code() { "
)delimiter";
char quote = '"', brace = '{', back = '\'';
const long big = 1'000'000;

INLINE_HD float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); }
INLINE_HD int round_up(int value, int unit) {
  return (value + unit - 1) / unit * unit;
}

#ifdef FAST
__device__ float activate(float v) {
#else
__device__ float activate(float v) {
  v = v * 1.0f;
#endif
  return gelu(v);
}

KERNEL(activate_all)(float* __restrict__ x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < round_up(n, 32); i += gridDim.x * blockDim.x) {
#ifdef CHECKED
    if (i >= n) {
      return;
    }
#else
    if (i < n)
#endif
      x[i] = activate(x[i]);
  }
}

template <typename F>
LAUNCH(256) __global__ void apply(float* x, int n, F f) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = f(x[i]);
}

struct Square {
  HD float operator()(float v) const { return v * v; }
};

template <typename F>
void apply_all(float* x, int n, F f) {
  apply<<<(n + 255) / 256, 256>>>(x, n, f);
}

void squares(float* x, int n) {
  apply_all(x, n, Square{});
  apply_all(x, n, [] __device__(float v) { return v * v; });
}

#ifdef WITH_TESTS
TEST(Activate, Works) {
  EXPECT_EQ(1, 1);
}
#elif defined(WITH_MAIN)
int main() { return 0; }
#else
int entry_point(int argc, char** argv)
{
  std::cout << banner << big << brace;
  return 0;
}
#endif
