// Quantisation of rows of 16-bit elements to e4m3, with a float32 scale per block of rows or per head, in kernels that
// run before the attention. They are a translation unit of their own, with the macros HEAD_DIM and DTYPE_BF16 only
// (kernels/quantisation.py is the host side).
//
// A block of rows x becomes the numbers nearest to x / s, ties to even, with s = max|x| / 448, or 1 where that is 0;
// both quotients are rounded to float32 first. The result equals the declared one bit for bit, without a division of
// each x (Quotient).
//
// A thread has a patch of 4 rows x 8 columns, and a warp 32 rows x 32 columns: every access of a warp (16 bytes of a
// row of the source, 8 of a row of the result or 4 of a column of it) covers whole sectors. V is transposed in
// registers: a packed word holds four rows of a column instead of four columns of a row.
#pragma once

#include "tile/ceil_div.cuh"
#include "tile/dtype.cuh"
#include "tile/e4m3.cuh"

constexpr int PATCH_ROWS = 4;
constexpr int PATCH_COLUMNS = 8;

template <int ROWS>
constexpr int QUANTISE_THREADS = ROWS / PATCH_ROWS * (HEAD_DIM / PATCH_COLUMNS);

// Order of rows within a block, along a column of the transposed result.
enum class RowOrder {
    natural,
    // Per 16 rows, such that weights stay in place between the products. A lane's accumulators of two neighbouring
    // m16n8 (or wgmma) scores belong to keys 2c, 2c + 1, 8 + 2c and 8 + 2c + 1, where c = lane % 4. Packed in place,
    // they are the left operand of the next product at k = 4c .. 4c + 3; the right operand has the same keys there.
    mma,
};

// The row of the block that stands at `place`.
template <RowOrder ORDER>
__host__ __device__ constexpr int row_at(int place) {
    return ORDER == RowOrder::natural
               ? place
               : place / 16 * 16 + place / 2 % 2 * 8 + place / 4 % 4 * 2 + place % 2;
}

__device__ __forceinline__ float quantisation_scale(float block_max) {
    const float scale = block_max / E4M3_MAX;
    return scale == 0.0f ? 1.0f : scale;
}

// x / scale in two instructions. A division takes more than twenty.
//
// The reciprocal has two terms, whose sum has an error below 2^-44, and so does the quotient before it is rounded to
// float32. Rounding to e4m3 then gives the same result as for a division. The results could differ only if the two lay
// on different sides of a boundary where float32 rounds to a tie of e4m3; but x / scale is at least 2^-35 from any, for
// all x and scales that 16-bit numbers produce (enumerated in the tests). One term, with an error of 2^-23, is too few.
class Quotient {
public:
    __device__ __forceinline__ explicit Quotient(float scale)
        : high(ptx::rcp_approx_ftz_f32(scale)), low(fmaf(-scale, high, 1.0f) * high) {}

    __device__ __forceinline__ float of(float x) const { return fmaf(x, high, x * low); }

    // Whether both terms are normal floats. All scales of float16 are in range.
    static __device__ __forceinline__ bool in_range(float scale) {
        return !DTYPE_BF16 || (scale >= LEAST_SCALE && scale <= 1.0f / LEAST_SCALE);
    }

private:
    static constexpr float LEAST_SCALE = 0x1p-96f;

    float high;
    float low;
};

// The largest x >= 0 over a block of THREADS threads, in all of them. Bit patterns of non-negative numbers have the
// same order as the numbers.
template <int THREADS>
__device__ __forceinline__ float block_max(float x) {
    __shared__ unsigned warp_max_smem[THREADS / 32];
    const unsigned warp_max = __reduce_max_sync(0xffffffffu, __float_as_uint(x));
    if (threadIdx.x % 32 == 0) {
        warp_max_smem[threadIdx.x / 32] = warp_max;
    }
    __syncthreads();
    unsigned largest = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) {
        largest = max(largest, warp_max_smem[warp]);
    }
    return __uint_as_float(largest);
}

// One thread's patch of a block of rows [rows_left or more, HEAD_DIM]. Rows past the end are zeros.
template <RowOrder ORDER>
struct QuantisePatch {
    int place;   // of its first row
    int column;  // the first
    float x[PATCH_ROWS][PATCH_COLUMNS];

    __device__ __forceinline__ QuantisePatch(const Element* rows, int rows_left) {
        constexpr int WARPS_A_ROW = HEAD_DIM / 32;
        const int warp = threadIdx.x / 32;
        const int lane = threadIdx.x % 32;
        place = warp / WARPS_A_ROW * 32 + lane / 4 * PATCH_ROWS;
        column = warp % WARPS_A_ROW * 32 + lane % 4 * PATCH_COLUMNS;
#pragma unroll
        for (int i = 0; i < PATCH_ROWS; ++i) {
            uint4 chunk = make_uint4(0, 0, 0, 0);
            if (row(i) < rows_left) {
                chunk = *reinterpret_cast<const uint4*>(rows + row(i) * HEAD_DIM + column);
            }
            const unsigned pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                const float2 elements = unpack_pair(pairs[pair]);
                x[i][2 * pair] = elements.x;
                x[i][2 * pair + 1] = elements.y;
            }
        }
    }

    __device__ __forceinline__ int row(int i) const { return row_at<ORDER>(place + i); }

    __device__ __forceinline__ float largest() const {
        float result = 0.0f;
#pragma unroll
        for (int i = 0; i < PATCH_ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < PATCH_COLUMNS; ++j) {
                result = fmaxf(result, fabsf(x[i][j]));
            }
        }
        return result;
    }

    // Divisor that turns x into x / scale. If a reciprocal is not exact enough, x is divided here.
    __device__ __forceinline__ Quotient quotient(float scale) {
        if (Quotient::in_range(scale)) {
            return Quotient(scale);
        }
#pragma unroll
        for (int i = 0; i < PATCH_ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < PATCH_COLUMNS; ++j) {
                x[i][j] /= scale;
            }
        }
        return Quotient(1.0f);
    }

    // Stores rows [rows_left or more, HEAD_DIM] of bytes; rows past the end are not written.
    __device__ __forceinline__ void store_rows(unsigned char* rows, int rows_left, const Quotient& by_scale) const {
#pragma unroll
        for (int i = 0; i < PATCH_ROWS; ++i) {
            if (row(i) < rows_left) {
                *reinterpret_cast<uint2*>(rows + row(i) * HEAD_DIM + column) =
                    make_uint2(pack_e4m3(by_scale.of(x[i][0]), by_scale.of(x[i][1]), by_scale.of(x[i][2]),
                                         by_scale.of(x[i][3])),
                               pack_e4m3(by_scale.of(x[i][4]), by_scale.of(x[i][5]), by_scale.of(x[i][6]),
                                         by_scale.of(x[i][7])));
            }
        }
    }

    // Stores columns [HEAD_DIM, rows of the block] of bytes, `pitch` apart, in ORDER; rows past the end are zeros.
    __device__ __forceinline__ void store_columns(unsigned char* columns, int pitch, const Quotient& by_scale) const {
#pragma unroll
        for (int j = 0; j < PATCH_COLUMNS; ++j) {
            *reinterpret_cast<unsigned*>(columns + static_cast<long long>(column + j) * pitch + place) =
                pack_e4m3(by_scale.of(x[0][j]), by_scale.of(x[1][j]), by_scale.of(x[2][j]), by_scale.of(x[3][j]));
        }
    }
};

// Work of one block of a grid over the rows of Q, K and V:
// grid = (blocks of ROWS rows in the longer sequence, heads + 2 * kv_heads, batch).
enum class Tensor { q, k, v };

template <int ROWS>
struct RowBlock {
    Tensor tensor;
    long long head;   // among all batches
    int seq;          // rows of the tensor's heads
    int row;          // first of the block, in the head
    int blocks;       // a head

    __device__ __forceinline__ RowBlock(int seq_q, int seq_kv, int heads) {
        const int kv_heads = (static_cast<int>(gridDim.y) - heads) / 2;
        const int y = blockIdx.y;
        tensor = y < heads ? Tensor::q : y < heads + kv_heads ? Tensor::k : Tensor::v;
        head = tensor == Tensor::q ? static_cast<long long>(blockIdx.z) * heads + y
                                   : static_cast<long long>(blockIdx.z) * kv_heads + (y - heads) % kv_heads;
        seq = tensor == Tensor::q ? seq_q : seq_kv;
        row = blockIdx.x * ROWS;
        blocks = ceil_div(seq, ROWS);
    }

    template <class T>
    __device__ __forceinline__ T of(T q, T k, T v) const {
        return tensor == Tensor::q ? q : tensor == Tensor::k ? k : v;
    }

    __device__ __forceinline__ int rows_left() const { return seq - row; }             // <= 0 past the end
    __device__ __forceinline__ long long number() const { return head * blocks + blockIdx.x; }  // in the tensor
    __device__ __forceinline__ long long offset() const { return (head * seq + row) * HEAD_DIM; }
};

// Writes Q and K as rows, V as columns, each block of ROWS rows with its scale. QUANTISE_THREADS<ROWS> threads.
//
// At least 1 block an SM: without this bound the compiler may spill a few registers to fit one block more.
//
// A head of V has ceil(seq_kv / ROWS) blocks [HEAD_DIM, ROWS] in RowOrder::mma: v_pitch bytes from a column to the next
// and v_block_stride from a block to the next. (ROWS, ROWS * HEAD_DIM) gives consecutive blocks, and
// (all blocks * ROWS, ROWS) gives V^T with its rows padded by zeros.
template <int ROWS>
__global__ void __launch_bounds__(QUANTISE_THREADS<ROWS>, 1)
    quantise_blocks(const Element* __restrict__ q,        // [batch, heads, seq_q, HEAD_DIM]
                    const Element* __restrict__ k,        // [batch, kv_heads, seq_kv, HEAD_DIM]
                    const Element* __restrict__ v,        // [batch, kv_heads, seq_kv, HEAD_DIM]
                    unsigned char* __restrict__ q_bytes,  // as q
                    unsigned char* __restrict__ k_bytes,  // as k
                    unsigned char* __restrict__ v_bytes,  // [batch, kv_heads], blocks
                    float* __restrict__ q_scales,         // [batch, heads, blocks of seq_q]
                    float2* __restrict__ kv_scales,       // [batch, kv_heads, blocks of seq_kv]: scales of K and V
                    int seq_q, int seq_kv, int heads, int v_pitch, int v_block_stride) {
    constexpr int THREADS = QUANTISE_THREADS<ROWS>;
    static_assert(ROWS % 32 == 0 && THREADS <= 1024, "a warp has 32 rows, and a block at most 32 warps");
    const RowBlock<ROWS> block(seq_q, seq_kv, heads);
    if (block.rows_left() <= 0) {
        return;
    }
    const Element* rows = block.of(q, k, v) + block.offset();
    float scale;
    if (block.tensor == Tensor::v) {
        QuantisePatch<RowOrder::mma> patch(rows, block.rows_left());
        scale = quantisation_scale(block_max<THREADS>(patch.largest()));
        unsigned char* head = v_bytes + block.head * block.blocks * ROWS * HEAD_DIM;
        patch.store_columns(head + static_cast<long long>(blockIdx.x) * v_block_stride, v_pitch, patch.quotient(scale));
    } else {
        QuantisePatch<RowOrder::natural> patch(rows, block.rows_left());
        scale = quantisation_scale(block_max<THREADS>(patch.largest()));
        patch.store_rows(block.of(q_bytes, k_bytes, v_bytes) + block.offset(), block.rows_left(),
                         patch.quotient(scale));
    }
    if (threadIdx.x == 0) {
        float2* kv_scale = kv_scales + block.number();
        *block.of(q_scales + block.number(), &kv_scale->x, &kv_scale->y) = scale;
    }
}

// Computes max|x| of each block of rows.
template <int ROWS>
__global__ void __launch_bounds__(QUANTISE_THREADS<ROWS>, 1)
    head_maxima(const Element* __restrict__ q,  // [batch, heads, seq_q, HEAD_DIM]
                const Element* __restrict__ k,  // [batch, kv_heads, seq_kv, HEAD_DIM]
                const Element* __restrict__ v,  // [batch, kv_heads, seq_kv, HEAD_DIM]
                float* __restrict__ q_maxima,   // [batch, heads, blocks of seq_q]
                float* __restrict__ k_maxima,   // [batch, kv_heads, blocks of seq_kv]
                float* __restrict__ v_maxima,   // [batch, kv_heads, blocks of seq_kv]
                int seq_q, int seq_kv, int heads) {
    const RowBlock<ROWS> block(seq_q, seq_kv, heads);
    if (block.rows_left() <= 0) {
        return;
    }
    const QuantisePatch<RowOrder::natural> patch(block.of(q, k, v) + block.offset(), block.rows_left());
    const float largest = block_max<QUANTISE_THREADS<ROWS>>(patch.largest());
    if (threadIdx.x == 0) {
        block.of(q_maxima, k_maxima, v_maxima)[block.number()] = largest;
    }
}

// Quantises each head's rows with the scale of its largest maximum.
template <int ROWS>
__global__ void __launch_bounds__(QUANTISE_THREADS<ROWS>, 1)
    quantise_heads(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                   const float* __restrict__ q_maxima, const float* __restrict__ k_maxima,
                   const float* __restrict__ v_maxima, unsigned char* __restrict__ q_bytes,
                   unsigned char* __restrict__ k_bytes, unsigned char* __restrict__ v_bytes,
                   float* __restrict__ q_scales,  // [batch, heads]
                   float* __restrict__ k_scales,  // [batch, kv_heads]
                   float* __restrict__ v_scales,  // [batch, kv_heads]
                   int seq_q, int seq_kv, int heads) {
    const RowBlock<ROWS> block(seq_q, seq_kv, heads);
    if (block.rows_left() <= 0) {
        return;
    }
    QuantisePatch<RowOrder::natural> patch(block.of(q, k, v) + block.offset(), block.rows_left());
    const float* maxima = block.of(q_maxima, k_maxima, v_maxima) + block.head * block.blocks;
    float largest = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < block.blocks; i += QUANTISE_THREADS<ROWS>) {
        largest = fmaxf(largest, maxima[i]);
    }
    const float scale = quantisation_scale(block_max<QUANTISE_THREADS<ROWS>>(largest));
    patch.store_rows(block.of(q_bytes, k_bytes, v_bytes) + block.offset(), block.rows_left(),
                     patch.quotient(scale));
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        block.of(q_scales, k_scales, v_scales)[block.head] = scale;
    }
}
