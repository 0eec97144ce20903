// fp8_simulated: Q, K and V stored as e4m3 with one scale a head, and multiplied in 16 bits as in wmma.
//
// Idea: the numerical effect of 8 bits without 8-bit tensor cores. float16 and bfloat16 represent every e4m3
// number, so dequantisation is exact and needs no scales: the scales of Q and K are part of the scale of the
// scores, that of V of the output's normaliser, all in float32. K and V cross the memory in half the bytes; all
// other costs are those of wmma, plus the conversion. fp8, the next kernel, feeds the bytes to the tensor cores
// directly.
//
// An earlier kernel of this kind passed at S = 64 and gave NaN at S = 512: it summed the weights in 8 bits, whose
// largest number is 448. Sums are float32 here. The cost of one scale a head comes with its largest number: a single
// outlier takes precision from all rows, so fp8 has a scale for each 64 rows.
//
// A head's largest number must be known before its first number is rounded: two steps precede the attention, over
// blocks of rows (head_maxima and quantise_heads in tile/quantise.cuh). The second step reduces the maxima of the
// blocks, in any order.
//
// Static limits (sm_89, D=64): 0 spills, 0 stack, <= 120 registers, <= 64 KiB shared memory.
// Knobs: BLOCK_M (rows of Q; 16 a warp), BLOCK_N (keys a tile).

#include "mainloop/wmma_tiles.cuh"
#include "softmax/fp8.cuh"

// Converts an e4m3 number to the element type; exact in both types.
__device__ __forceinline__ unsigned element_pair(unsigned short numbers) {
    const unsigned halves = ptx::cvt_rn_f16x2_e4m3x2(numbers);
#if DTYPE_BF16
    return pack_pair(ptx::cvt_f32_f16(halves & 0xffffu), ptx::cvt_f32_f16(halves >> 16));
#else
    return halves;
#endif
}

// Copies eight bytes at a time and dequantises them in registers.
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
