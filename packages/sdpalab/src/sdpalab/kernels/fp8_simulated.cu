// fp8_simulated: Q, K and V are kept as e4m3 with one scale a head, and computed with in 16 bits, as wmma does.
//
// Idea: what 8 bits do to the numbers, without 8-bit tensor cores. Each number of e4m3 is one of float16 and of
// bfloat16, so what is dequantised is exact, and the scales never meet it: those of Q and K are part of the scale of
// the scores, that of V of the output's normaliser, all in float32. K and V cross the memory in half the bytes; all
// else costs what it costs in wmma, and the conversion comes on top. fp8, the next kernel, feeds the bytes to the
// tensor cores as they are.
//
// Where this project started, such a kernel passed at S = 64 and gave NaN at S = 512: it held the sum of the weights in
// 8 bits, too, which end at 448. Sums are float32 here. What one scale a head does cost is in the largest number: a
// single outlier takes the precision of all rows, which is why fp8 has a scale for each 64.
//
// A head's largest number must be known before its first is rounded: two steps before the attention, over blocks of
// rows (head_maxima and quantise_heads in tile/quantise.cuh). The maxima of the blocks meet in the second, in whatever
// order.
//
// Static limits (sm_89, D=64): 0 spills, 0 stack, <= 120 registers, <= 64 KiB shared memory.
// Knobs: BLOCK_M (rows of Q; 16 a warp), BLOCK_N (keys a tile).

#include "mainloop/wmma_tiles.cuh"
#include "softmax/fp8.cuh"

// The element that is the e4m3 number; exact in both types.
__device__ __forceinline__ unsigned element_pair(unsigned short numbers) {
    const unsigned halves = ptx::cvt_rn_f16x2_e4m3x2(numbers);
#if DTYPE_BF16
    return pack_pair(ptx::cvt_f32_f16(halves & 0xffffu), ptx::cvt_f32_f16(halves >> 16));
#else
    return halves;
#endif
}

// Eight bytes at a time, dequantised on their way through registers.
struct DequantisingCopy : RegisterCopy {
    using Source = unsigned char;

    static __device__ __forceinline__ void chunk(WmmaElement* tile_smem, int offset, const unsigned char* src,
                                                 bool exists) {
        uint2 x = make_uint2(0, 0);
        if (exists) {
            x = *reinterpret_cast<const uint2*>(src);
        }
        *reinterpret_cast<uint4*>(tile_smem + offset) =
            make_uint4(element_pair(x.x & 0xffffu), element_pair(x.x >> 16), element_pair(x.y & 0xffffu),
                       element_pair(x.y >> 16));
    }
};

__global__ void __maxnreg__(MAX_REGISTERS)
    fp8_simulated_attention(const unsigned char* __restrict__ q_bytes, const unsigned char* __restrict__ k_bytes,
                            const unsigned char* __restrict__ v_bytes, const float* __restrict__ q_scales,
                            const float* __restrict__ k_scales, const float* __restrict__ v_scales,
                            Element* __restrict__ o, int seq_q, int seq_kv, int group, float scale,
                            float* __restrict__ lse) {
    extern __shared__ __align__(32) unsigned char smem_bytes[];
    auto& smem = *reinterpret_cast<WmmaShared<BLOCK_M, BLOCK_N, 1>*>(smem_bytes);

    const long long q_head = q_head_of_block();
    const long long kv_head = q_head_of_block() / group;
    const unsigned char* k_rows = k_bytes + kv_head * seq_kv * HEAD_DIM;
    const unsigned char* v_rows = v_bytes + kv_head * seq_kv * HEAD_DIM;
    ScoreScale score_scale(scale);
    score_scale.log2 = TileScale(q_scales[q_head], k_scales[kv_head], score_scale.log2).slope;
    const int block_row = q_tile_of_block() * BLOCK_M;
    const int tiles = tiles_visible(block_row + BLOCK_M - 1, seq_kv, BLOCK_N);
    HalfRow<BLOCK_N> half_row(block_row, seq_kv);

    attend_tiles<DequantisingCopy>(half_row, smem, q_bytes + (q_head * seq_q + block_row) * HEAD_DIM, k_rows, v_rows,
                                   seq_q - block_row, tiles, seq_kv, score_scale);
    half_row.store(o + q_head * seq_q * HEAD_DIM, lse, seq_q, score_scale, v_scales[kv_head]);
}
