// cublas: unfused attention, the baseline of the fused kernels.
//
// Idea: two matrix products of a library with a softmax between them. S = Q K^T goes to memory as floats, this kernel
// turns each row into its weights P in the element type, and O = P V is the second product. The scores stay floats:
// in 16 bits, large logits overflow or become equal. This kernel normalises P before rounding, as the products do not
// treat rows separately.
//
// ROW_WARPS warps share a row and hold BLOCK_N scores at a time in registers. Each thread keeps the maximum and the sum
// of its own keys during the pass over the row; one reduction at the end combines them. The weights are then written
// from the last keys, which are still in registers, back to the first: a row of up to BLOCK_N keys is read once.
//
// Rows of S and P are padded to 8 elements: every access is 16 or 8 bytes wide and covers whole sectors, and rows start
// at multiples of 16 bytes for the products, whatever seq_kv is. The library has no mask: P is zero behind a causal
// row's last key, and the products compute the whole square.
//
// Static limits (every architecture): 0 spills, 0 stack, <= 64 registers, < 1 KiB shared memory, 4 blocks an SM.
// Knobs: BLOCK_M (rows a block), BLOCK_N (keys in registers at a time), NUM_WARPS (of a block).
// Next kernel: wmma, which computes both products itself; S and P never leave the block.

#include "softmax/mask.cuh"
#include "softmax/online.cuh"
#include "tile/dtype.cuh"

constexpr int ROW_WARPS = NUM_WARPS / BLOCK_M;
constexpr int ROW_THREADS = 32 * ROW_WARPS;
constexpr int VEC = 4;
constexpr int ROUND = VEC * ROW_THREADS;  // keys that the threads of a row load with one access each
constexpr int ROUNDS = BLOCK_N / ROUND;

static_assert(NUM_WARPS >= 1 && NUM_WARPS <= 32, "a block has 1 to 32 warps");
static_assert(BLOCK_M >= 1 && NUM_WARPS == BLOCK_M * ROW_WARPS, "the warps are shared out evenly among BLOCK_M rows");
static_assert(ROUNDS >= 1 && BLOCK_N == ROUNDS * ROUND, "BLOCK_N is a multiple of 4 keys for each thread of a row");
static_assert(ROUNDS <= 8, "a thread holds at most 32 scores");

// Loads this thread's scores of BLOCK_N keys: VEC from `key` on, then ROUND further on, and so forth. Keys hidden from
// the row become -inf, whatever the memory holds.
__device__ __forceinline__ void load_scores(float (&s)[ROUNDS][VEC], const float* row_scores,  // [pitch], global
                                            int key, int visible, float sign) {
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i, key += ROUND) {
        float4 in = {};
        if (key < visible) {
            in = *reinterpret_cast<const float4*>(row_scores + key);
        }
        s[i][0] = in.x * sign, s[i][1] = in.y * sign, s[i][2] = in.z * sign, s[i][3] = in.w * sign;
        if (key + VEC > visible) {
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                s[i][j] = key + j < visible ? s[i][j] : NEGATIVE_INFINITY;
            }
        }
    }
}

// Turns scores into exponentials, not normalised yet.
__device__ __forceinline__ void weigh(float (&s)[ROUNDS][VEC], float reference, float scale_log2) {
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            s[i][j] = softmax_weight(s[i][j], reference, scale_log2);
        }
    }
}

// Reduces the threads' statistics of a row; every thread of the row gets the result.
__device__ __forceinline__ SoftmaxRow of_row(SoftmaxRow softmax, float scale_log2) {
    float warp_max = softmax.max;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        warp_max = fmaxf(warp_max, __shfl_xor_sync(0xffffffffu, warp_max, distance));
    }
    softmax.advance(warp_max, scale_log2);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        softmax.sum += __shfl_xor_sync(0xffffffffu, softmax.sum, distance);
    }
    if constexpr (ROW_WARPS > 1) {
        __shared__ float max_smem[NUM_WARPS], sum_smem[NUM_WARPS];
        const int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) {
            max_smem[warp] = softmax.max;
            sum_smem[warp] = softmax.sum;
        }
        __syncthreads();
        softmax = SoftmaxRow{};
#pragma unroll
        for (int i = 0; i < ROW_WARPS; ++i) {
            const int other = warp / ROW_WARPS * ROW_WARPS + i;
            softmax.advance(max_smem[other], scale_log2);
            softmax.sum += sum_smem[other] * softmax_weight(max_smem[other], softmax.max, scale_log2);
        }
    }
    return softmax;
}

__global__ void __launch_bounds__(32 * NUM_WARPS)
softmax_rows(const float* __restrict__ scores,  // [rows, pitch], seq_kv scores a row
             Element* __restrict__ weights,     // [rows, pitch]
             int rows,                          // seq_q of each head
             int seq_q, int seq_kv, int pitch, float scale,
             float* __restrict__ lse) {  // [rows] or null
    const int row = blockIdx.x * BLOCK_M + threadIdx.x / ROW_THREADS;
    const int first_key = threadIdx.x % ROW_THREADS * VEC;
    const int visible = row < rows ? visible_keys(row % seq_q, seq_kv) : 0;
    const float* row_scores = scores + static_cast<long long>(row) * pitch;
    const ScoreScale score_scale(scale);

    float s[ROUNDS][VEC];
    SoftmaxRow own;  // statistics of this thread's keys
    const int tiles = ceil_div(visible, BLOCK_N);
    for (int tile = 0; tile < tiles; ++tile) {
        load_scores(s, row_scores, tile * BLOCK_N + first_key, visible, score_scale.sign);
        float tile_max = NEGATIVE_INFINITY;
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                tile_max = fmaxf(tile_max, s[i][j]);
            }
        }
        own.advance(tile_max, score_scale.log2);
        weigh(s, own.max, score_scale.log2);
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                own.sum += s[i][j];
            }
        }
    }
    const SoftmaxRow softmax = of_row(own, score_scale.log2);
    if (row >= rows) {
        return;
    }
    if (lse != nullptr && first_key == 0) {
        lse[row] = log_sum_exp(softmax.max, softmax.sum, score_scale.log2);
    }

    Element* row_weights = weights + static_cast<long long>(row) * pitch;
#pragma unroll 1
    for (int key = tiles * BLOCK_N + first_key; key < pitch; key += ROUND) {
        *reinterpret_cast<uint2*>(row_weights + key) = make_uint2(0, 0);
    }
    const float normaliser = softmax_normaliser(softmax.sum);
    // The last tile's weights are still in registers, relative to this thread's own maximum.
    float factor = softmax_weight(own.max, softmax.max, score_scale.log2) * normaliser;
    for (int tile = tiles - 1; tile >= 0; --tile) {
        int key = tile * BLOCK_N + first_key;
        if (tile < tiles - 1) {
            load_scores(s, row_scores, key, visible, score_scale.sign);
            weigh(s, softmax.max, score_scale.log2);
            factor = normaliser;
        }
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i, key += ROUND) {
            if (key < pitch) {
                *reinterpret_cast<uint2*>(row_weights + key) =
                    make_uint2(pack_pair(s[i][0] * factor, s[i][1] * factor),
                               pack_pair(s[i][2] * factor, s[i][3] * factor));
            }
        }
    }
}
