"""A kernel whose accesses can be counted by hand: one warp, a load, a store with conflicts, and a branch."""

from sdpalab import Config, CudaKernel, Launch, Problem

SOURCE = """\
#include <cuda_fp16.h>
__global__ void strided(const __half* q, const __half* k, const __half* v, __half* o) {
    __shared__ float tile[256];
    const int lane = threadIdx.x;
    const float x = __half2float(q[lane * 64]);
    tile[lane * 8] = x;
    __syncthreads();
    if (lane < 8) {
        o[lane] = __float2half_rn(tile[lane * 8]);
    }
}
"""
LOAD, STORE, RESULT = 5, 6, 9
"""Lines of the source."""


def plan(problem: Problem, config: Config) -> Launch:
    """One warp."""
    return Launch(grid=(1, 1, 1), block=(32, 1, 1), args=("q", "k", "v", "o"))


STRIDED = CudaKernel(name="strided", source=SOURCE, entry="strided", plan=plan)
