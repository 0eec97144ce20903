// The two macros of PyTorch's header of this name that FlashAttention's launchers use, without PyTorch.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define C10_CUDA_CHECK(call)                                                                  \
    do {                                                                                      \
        cudaError_t error = call;                                                             \
        if (error != cudaSuccess) {                                                           \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));        \
            std::exit(1);                                                                     \
        }                                                                                     \
    } while (0)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
