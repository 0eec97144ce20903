/*
Each row less its mean, over its deviation. A warp a row.

    nvcc layernorm.cu -o layernorm && ./layernorm 1
*/
#include <stdio.h>
#include <cuda_runtime.h>
#include "common.h"
namespace groups = cooperative_groups;

cudaDeviceProp gpu_properties;

// On the host, to compare with.

void normalise_on_host(real *to, const real *from, int rows, int width) {
    for (int row = 0; row < rows; row++) {
        double sum = 0, squares = 0;
        for (int c = 0; c < width; c++) { sum += from[row * width + c]; squares += from[row * width + c] * from[row * width + c]; }
        for (int c = 0; c < width; c++) { to[row * width + c] = (from[row * width + c] - sum / width) / sqrt(squares); }
    }
}

// On the device.

__global__ void means(real *to, const real *from, int rows, int width) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    real part = 0;
    if (row < rows)
        for (int c = threadIdx.x; c < width; c += LANES) part += from[row * width + c];
    part = add_over_warp(part);
    if (row < rows && threadIdx.x == 0) to[row] = part / width;
}

__global__ void normalise(real *__restrict__ to, const real *__restrict__ from, int rows, int width) {
    auto warp = groups::tiled_partition<32>(groups::this_thread_block());
    const int row = blockIdx.x * (blockDim.x / LANES) + warp.meta_group_rank();
    if (row >= rows) return;
    from += row * width;
    to += row * width;
    real first = 0, second = 0;
    for (int c = warp.thread_rank(); c < width; c += LANES) first += from[c];
    const real mean = groups::reduce(warp, first, groups::plus<real>()) / width;
    for (int c = warp.thread_rank(); c < width; c += LANES) second = fmaf(from[c] - mean, from[c] - mean, second);
    const real spread = groups::reduce(warp, second, groups::plus<real>()) / width;
    for (int c = warp.thread_rank(); c < width; c += LANES) to[c] = (from[c] - mean) * rsqrtf(spread + FLT_EPSILON);
}

// Launchers.

void launch_normalise(real *to, const real *from, int rows, int width, const int threads) {
    normalise<<<blocks_for(rows, threads / 32), threads>>>(to, from, rows, width);
    CHECKED(cudaPeekAtLastError());
}

int main(int count, char **words) {
    const int rows = 512, width = 384;
    real *from = random_reals(rows * width);
    for (int threads : {64, 128, 512}) {
        seconds_of(10, launch_normalise, from, from, rows, width, threads);
        if (!agrees(from, from, "normalise", 1e-5f)) puts("differs");
    }
    free(from);
    return count - 1;
}
