// Seed and offset of a random generator without PyTorch: none, as no program of the gallery has dropout.
#pragma once
#include <cstdint>
#include <tuple>

#include <ATen/cuda/CUDAGeneratorImpl.h>

namespace at::cuda::philox {
__host__ __device__ inline std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState) { return {0, 0}; }
} // namespace at::cuda::philox
