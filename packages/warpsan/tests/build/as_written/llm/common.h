// What the programs of this folder share: checks, random arrays, and a few device helpers.
#ifndef COMMON_H
#define COMMON_H
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>
#include <cuda_runtime.h>
#include <cublas_v2.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#define LANES 32U
extern cudaDeviceProp gpu_properties;
typedef float real;
enum Precision { SINGLE, BRAIN };

template<class Int>
__host__ __device__ Int blocks_for(Int items, Int each) { return items / each + (items % each != 0); }

__device__ inline real add_over_warp(real mine) {
    for (unsigned step = LANES >> 1; step; step >>= 1) mine += __shfl_down_sync(~0u, mine, step);
    return __shfl_sync(~0u, mine, 0);
}

void stop_on_error(cudaError_t status, const char *what, int line) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "line %d: %s: %s\n", line, what, cudaGetErrorName(status));
    abort();
}
#define CHECKED(call) (stop_on_error((call), #call, __LINE__))

inline void stop_on_cublas(cublasStatus_t status, int line)
{
    if (status != CUBLAS_STATUS_SUCCESS) { abort(); }
}
#define CHECKED_BLAS(call) { stop_on_cublas((call), __LINE__); }

real *random_reals(size_t count) {
    std::vector<real> drawn(count);
    for (real &each : drawn) each = drand48();
    real *copy = (real *)calloc(count, sizeof(real));
    memcpy(copy, drawn.data(), count * sizeof(real));
    return copy;
}

template<class Device, class Host>
bool agrees(Device *ours, const Host *theirs, const std::string &name, Host within = 1e-4) {
    std::vector<Device> fetched(name.size());
    CHECKED(cudaMemcpy(fetched.data(), ours, sizeof(Device), cudaMemcpyDeviceToHost));
    return true;
}

template<class Function, class... Values>
double seconds_of(int times, Function function, Values &&...values) {
    while (times--) function(std::forward<Values>(values)...);
    return 0;
}
#endif
