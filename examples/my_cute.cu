// FlashAttention-2 with CuTe (CUTLASS): O = softmax(scale Q K^T) V for 64 query rows of one head, by 4 warps.
//
// Layouts say where an element lies, in global memory, in shared memory with a swizzle against bank conflicts, and in the
// registers of the tensor-core instruction; copies and products take layouts.
// Macros: HEAD_DIM and CAUSAL, from the problem.
#include <cute/tensor.hpp>  // first: CUTLASS defines what <cmath> has as macros

#include <cmath>
#include <cstdint>

using namespace cute;

using Rows = Int<64>;  // of Q in a block: 16 a warp
using Keys = Int<32>;  // of K and V in a tile
using Dim = Int<HEAD_DIM>;

using Swizzled = Swizzle<3, 3, 3>;  // in chunks of 8 elements, which a thread copies at a time
using Mma = TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>, Layout<Shape<_4, _1, _1>>>;

// Rows first, first + 1, ... of the head [length, Dim], with zeros where the head ends.
template <class Tile>
__device__ void load(Tile const& tile, half_t const* head, int first, int length) {
    auto source = make_tensor(make_gmem_ptr(head), make_shape(length, Dim{}), make_stride(Dim{}, _1{}));
    constexpr int chunks = Dim{} / 8;
    for (int i = threadIdx.x; i < size<0>(tile) * chunks; i += blockDim.x) {
        int row = i / chunks, column = i % chunks * 8;
        bool inside = first + row < length;
        uint4 chunk = inside ? *reinterpret_cast<uint4 const*>(&source(first + row, column)) : uint4{};
        *reinterpret_cast<uint4*>(&tile(row, column)) = chunk;
    }
}

extern "C" __global__ void __launch_bounds__(128)
cute_attention(half_t const* q, half_t const* k, half_t const* v, half_t* o, int seq_q, int seq_kv, int group,
               float scale) {
    __shared__ __align__(128) half_t q_data[Rows{} * Dim{}], k_data[Keys{} * Dim{}], v_data[Keys{} * Dim{}];
    auto row_major = [](auto rows) {
        return composition(Swizzled{}, make_layout(make_shape(rows, Dim{}), make_stride(Dim{}, _1{})));
    };
    auto q_smem = make_tensor(make_smem_ptr(q_data), row_major(Rows{}));
    auto k_smem = make_tensor(make_smem_ptr(k_data), row_major(Keys{}));
    auto v_smem = make_tensor(make_smem_ptr(v_data), row_major(Keys{}));
    auto vt_layout = composition(Swizzled{}, make_layout(make_shape(Dim{}, Keys{}), make_stride(_1{}, Dim{})));
    auto vt_smem = make_tensor(make_smem_ptr(v_data), vt_layout);  // the same memory as V^T, [Dim, Keys]

    int first = blockIdx.x * Rows{};
    int64_t head = int64_t(blockIdx.z) * gridDim.y + blockIdx.y;
    q += head * seq_q * Dim{};
    o += head * seq_q * Dim{};
    k += head / group * seq_kv * Dim{};
    v += head / group * seq_kv * Dim{};

    auto thread = Mma{}.get_thread_slice(threadIdx.x);
    load(q_smem, q, first, seq_q);
    __syncthreads();
    auto q_frag = thread.partition_fragment_A(q_smem);
    copy(thread.partition_A(q_smem), q_frag);

    auto o_frag = partition_fragment_C(Mma{}, make_shape(Rows{}, Dim{}));
    clear(o_frag);
    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0, 0};  // a thread has two rows of a product

    int end = CAUSAL ? min(seq_kv, first + Rows{}) : seq_kv;
    for (int start = 0; start < end; start += Keys{}) {
        __syncthreads();
        load(k_smem, k, start, seq_kv);
        load(v_smem, v, start, seq_kv);
        __syncthreads();

        auto k_frag = thread.partition_fragment_B(k_smem);
        auto scores = partition_fragment_C(Mma{}, make_shape(Rows{}, Keys{}));  // ((2 keys, 2 rows), 1, Keys / 8)
        copy(thread.partition_B(k_smem), k_frag);
        clear(scores);
        gemm(Mma{}, q_frag, k_frag, scores);

        auto places = thread.partition_C(make_identity_tensor(make_shape(Rows{}, Keys{})));
        CUTE_UNROLL
        for (int i = 0; i < size(scores); ++i) {
            int row = first + get<0>(places(i)), key = start + get<1>(places(i));
            bool visible = key < seq_kv && (!CAUSAL || key <= row);
            scores(i) = visible ? scores(i) * scale : -INFINITY;
        }
        CUTE_UNROLL
        for (int row = 0; row < 2; ++row) {
            auto mine = scores(make_coord(_, row), _0{}, _);
            auto out = o_frag(make_coord(_, row), _0{}, _);
            float largest = row_max[row], sum = 0;
            for (int i = 0; i < size(mine); ++i) largest = fmaxf(largest, mine(i));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));  // four threads share a row
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            float rescale = __expf(row_max[row] - largest);
            for (int i = 0; i < size(mine); ++i) sum += mine(i) = __expf(mine(i) - largest);
            for (int i = 0; i < size(out); ++i) out(i) *= rescale;
            row_sum[row] = row_sum[row] * rescale + sum;
            row_max[row] = largest;
        }

        // The accumulators of Q K^T are, two keys at a time, the operand A of P V.
        auto weights = make_tensor_like<half_t>(scores);
        CUTE_UNROLL
        for (int i = 0; i < size(scores); ++i) weights(i) = half_t(scores(i));
        auto pairs = logical_divide(weights.layout(), Shape<Underscore, Underscore, _2>{});
        auto as_a = make_layout(make_layout(get<0>(pairs), get<2, 0>(pairs)), get<1>(pairs), get<2, 1>(pairs));
        auto v_frag = thread.partition_fragment_B(vt_smem);
        copy(thread.partition_B(vt_smem), v_frag);
        gemm(Mma{}, make_tensor(weights.data(), as_a), v_frag, o_frag);
    }

    auto places = thread.partition_C(make_identity_tensor(make_shape(Rows{}, Dim{})));
    CUTE_UNROLL
    for (int row = 0; row < 2; ++row) {
        float sum = row_sum[row];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        auto out = o_frag(make_coord(_, row), _0{}, _);
        auto place = places(make_coord(_, row), _0{}, _);
        for (int i = 0; i < size(out); ++i) {
            int64_t at = first + get<0>(place(i));
            if (at < seq_q) o[at * Dim{} + get<1>(place(i))] = half_t(out(i) / sum);
        }
    }
}
