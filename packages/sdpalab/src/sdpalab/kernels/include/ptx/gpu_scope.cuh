// Wrappers of instructions that order or combine accesses of several CTAs to global memory, as in ptx/sm80.cuh.
#pragma once

namespace ptx {

// "Parallel Synchronization and Communication Instructions: red". Relaxed, at GPU scope; no result.
__device__ __forceinline__ void red_add_f32(float* global, float x) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" : : "l"(global), "f"(x) : "memory");
}

// "Data Movement and Conversion Instructions: ld", acquire at GPU scope.
__device__ __forceinline__ unsigned ld_acquire_gpu_u32(const unsigned* global) {
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(global) : "memory");
    return x;
}

// "Data Movement and Conversion Instructions: st", release at GPU scope: also releases the accesses of threads that met
// this one at a barrier before.
__device__ __forceinline__ void st_release_gpu_u32(unsigned* global, unsigned x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(global), "r"(x) : "memory");
}

}  // namespace ptx
