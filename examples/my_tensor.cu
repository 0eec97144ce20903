// D = A B^T with the tensor cores of a Blackwell GPU (sm_100a): A [128, K], B [64, K] in FP16, D [128, 64] in FP32.
//
//     warpsan sanitize my_tensor.cu   # my_tensor.json has the launch
//
// One block copies 64 columns of A and B at a time to shared memory, multiplies them there, and adds to D in tensor
// memory. It shows the order that tensor memory needs, not speed: no copy overlaps a product.

#include <cuda_fp16.h>
#include <stdint.h>

constexpr int M = 128, N = 64, K = 192, STEP = 64;

// The last 3 bits of a row number exchange 16-byte chunks: the swizzle of 128 bytes.
__device__ void copy_rows(__half* tile, const __half* source, int rows, int first) {
    for (int i = threadIdx.x; i < rows * 8; i += blockDim.x) {
        const int row = i / 8, chunk = i % 8;
        *(uint4*)&tile[row * STEP + (chunk ^ row % 8) * 8] = *(const uint4*)&source[row * K + first + chunk * 8];
    }
}

// Rows of 128 bytes, 1024 bytes to the next eight rows, the swizzle of 128 bytes.
__device__ uint64_t descriptor(uint32_t tile) {
    return (tile & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

__global__ void product(const __half* a, const __half* b, float* d) {
    __shared__ __align__(1024) __half a_tile[M * STEP], b_tile[N * STEP];
    __shared__ uint64_t done;
    __shared__ uint32_t place;
    const uint32_t done_smem = __cvta_generic_to_shared(&done), place_smem = __cvta_generic_to_shared(&place);
    const uint32_t a_smem = __cvta_generic_to_shared(a_tile), b_smem = __cvta_generic_to_shared(b_tile);
    const int warp = threadIdx.x / 32;
    if (warp == 0) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(place_smem) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(done_smem) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const uint32_t sums = place;
    const uint32_t instruction = 1 << 4 | N / 8 << 17 | M / 16 << 24;

    for (int step = 0; step < K / STEP; ++step) {
        copy_rows(a_tile, a, M, step * STEP);
        copy_rows(b_tile, b, N, step * STEP);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int k = 0; k < STEP / 16; ++k) {
                asm volatile(
                    "{ .reg .pred adds; setp.ne.b32 adds, %4, 0;\n"
                    "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, adds; }" ::"r"(sums),
                    "l"(descriptor(a_smem + 32 * k)), "l"(descriptor(b_smem + 32 * k)), "r"(instruction),
                    "r"(step + k)
                    : "memory");
            }
            asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(done_smem)
                         : "memory");
        }
        uint32_t over = 0;  // the product has read the tiles
        while (!over) {
            asm volatile(
                "{ .reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                "selp.b32 %0, 1, 0, over; }"
                : "=r"(over)
                : "r"(done_smem), "r"(step & 1)
                : "memory");
        }
    }

    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    for (int column = 0; column < N; column += 4) {
        uint32_t x[4];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(sums + (32 * warp << 16) + column));
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        for (int i = 0; i < 4; ++i) {
            d[threadIdx.x * N + column + i] = __uint_as_float(x[i]);
        }
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    if (warp == 0) {
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(sums));
    }
}
