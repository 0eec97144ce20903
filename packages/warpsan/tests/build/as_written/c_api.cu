#include "c_api.h"

#include <cuda_runtime.h>
#include <errno.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

static char last_error[256];
static double now(void);

__constant__ float weights[3] = {0.25f, 0.5f, 0.25f};
__device__ unsigned int blocks_done;

__global__ void smooth(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n - 1)
        y[i] = weights[0] * x[i - 1] + weights[1] * x[i] + weights[2] * x[i + 1];
    else if (i < n)
        y[i] = x[i];
    if (threadIdx.x == 0) atomicAdd(&blocks_done, 1u);
}

static double now(void) {
    struct timeval tv;
    gettimeofday(&tv, NULL);
    return tv.tv_sec + 1e-6 * tv.tv_usec;
}

LAB_EXPORT int lab_smooth(const float *x, float *y, int n, void *stream)
{
    const int threads = 256;
    smooth<<<4, threads, 0, (cudaStream_t)stream>>>(x, y, n);
    cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) {
        strncpy(last_error, cudaGetErrorString(status), sizeof(last_error) - 1);
        return -EINVAL;
    }
    return 0;
}

const char *lab_last_error(void) { return last_error; }

#ifdef __cplusplus
}
#endif
