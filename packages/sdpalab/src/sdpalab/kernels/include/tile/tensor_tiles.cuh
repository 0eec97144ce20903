// Tiles for the products of sm_100: descriptors of shared memory and of instructions, and rows of tensor memory.
//
// A tile in shared memory is a sequence of panels of 64 columns, [HEAD_DIM / 64][rows, 64], with the swizzle of 128
// bytes; TMA loads it with the maps of the warpgroup kernels.
#pragma once

#include "ptx/sm100.cuh"
#include "ptx/sm90.cuh"
#include "tile/operand_panels.cuh"

constexpr int TENSOR_M = 128;  // rows of a product: the lanes of tensor memory

// Instruction descriptor of a product [128, K] * [K, N] with sums in FP32 (PTX ISA, "Instruction descriptor").
// B_COLUMNS: whether the columns of B, not K, are contiguous.
template <int N, bool B_COLUMNS>
constexpr unsigned PRODUCT =
    1u << 4 | (DTYPE_BF16 ? 1u << 7 | 1u << 10 : 0u) | (B_COLUMNS ? 1u << 16 : 0u) | N / 8u << 17 | TENSOR_M / 16u << 24;

// Descriptor of an operand in shared memory (PTX ISA, "Shared memory descriptor"), in panels of `rows` rows. K runs
// along the columns (Q, K), or along the rows (V): the next panel then has the next 64 columns of the product.
__device__ __forceinline__ unsigned long long operand_descriptor(unsigned smem, int rows) {
    const unsigned long long next_panel = rows * 128 / 16;
    return (smem & 0x3ffffu) >> 4 | next_panel << 16 | static_cast<unsigned long long>(SWIZZLE_BYTES / 16) << 32 |
           1ull << 46 | 2ull << 61;
}

// D = A B^T, [128, KEYS], over HEAD_DIM: Q and K in shared memory.
template <int KEYS>
__device__ __forceinline__ void issue_scores(unsigned d, unsigned long long q, unsigned long long k) {
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; ++step) {
        ptx::tcgen05_mma_f16_ss(d, q + column_step<TENSOR_M>(step), k + column_step<KEYS>(step), PRODUCT<KEYS, false>,
                                step > 0);
    }
}

// D += P V, or P V without `adds`, [128, HEAD_DIM], over KEYS: P in tensor memory.
template <int KEYS>
__device__ __forceinline__ void issue_output(unsigned d, unsigned p, unsigned long long v, bool adds) {
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step) {
        ptx::tcgen05_mma_f16_ts(d, p + 8 * step, v + row_step(step), PRODUCT<HEAD_DIM, true>, adds || step > 0);
    }
}

// Address of a warp's lanes from a column on.
__device__ __forceinline__ unsigned own_lanes(unsigned tensor) {
    return tensor + (threadIdx.x / 32 % 4 << 21);
}
