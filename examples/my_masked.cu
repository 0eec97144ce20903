// A user's own kernel for everything that a problem may have beside scale and causal mask: one warp computes one query
// row, each lane a share of the keys, and then of the columns of O.
//
// Of the arrays beside Q, K and V those that the problem lacks are null pointers; the macros say so at compile time.

#include <cuda_fp16.h>
#include <math_constants.h>

__device__ float warp_max(float value) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, lanes));
    }
    return value;
}

__device__ float warp_sum(float value) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, lanes);
    }
    return value;
}

__global__ void __launch_bounds__(32)
one_warp_a_row(const __half* q,            // [batch, heads, seq_q, HEAD_DIM]
               const __half* k,            // [batch, heads / group, seq_kv, HEAD_DIM]
               const __half* v,            // [batch, heads / group, seq_kv, HEAD_DIM]
               __half* o,                  // [batch, heads, seq_q, HEAD_DIM]
               const int* kv_lengths,      // [batch]
               const void* attn_mask,      // [1 or batch, 1 or heads, seq_q, seq_kv], bytes or __half
               const float* alibi_slopes,  // [heads]
               const float* sinks,         // [heads]
               int seq_kv, int group, float scale) {
    extern __shared__ float weights_smem[];  // [seq_kv]: scores, then exp(score - maximum)

    const int row = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, seq_q = gridDim.x, heads = gridDim.y;
    const size_t q_offset = ((size_t(batch) * heads + head) * seq_q + row) * HEAD_DIM;
    const size_t kv_offset = (size_t(batch) * (heads / group) + head / group) * seq_kv * HEAD_DIM;
    const size_t mask_head =
        (ATTN_MASK_PER_BATCH ? batch : 0) * size_t(ATTN_MASK_PER_HEAD ? heads : 1) + (ATTN_MASK_PER_HEAD ? head : 0);
    const size_t mask_offset = (mask_head * seq_q + row) * seq_kv;

    // The keys first to last - 1 are those that causal mask, window and length leave.
    const int right = CAUSAL ? 0 : WINDOW_RIGHT;
    int first = WINDOW_LEFT < 0 ? 0 : max(row - WINDOW_LEFT, 0);
    int last = KV_LENGTHS ? kv_lengths[batch] : seq_kv;
    if (right >= 0) {
        last = min(last, row + right + 1);
    }

    const float sink = SINKS ? sinks[head] : -CUDART_INF_F;
    float maximum = sink;
    for (int j = first + threadIdx.x; j < last; j += 32) {
        float score = 0.0f;
        for (int d = 0; d < HEAD_DIM; ++d) {
            const float key = __half2float(k[kv_offset + size_t(j) * HEAD_DIM + d]);
            score = fmaf(__half2float(q[q_offset + d]), key, score);
        }
        score *= scale;
        if (SOFTCAP > 0.0f) {
            score = float(SOFTCAP) * tanhf(score / float(SOFTCAP));
        }
        if (ALIBI_SLOPES) {
            score -= alibi_slopes[head] * float(abs(row - j));
        }
        if (ATTN_MASK == 1 && !static_cast<const unsigned char*>(attn_mask)[mask_offset + j]) {
            score = -CUDART_INF_F;
        }
        if (ATTN_MASK == 2) {
            score += __half2float(static_cast<const __half*>(attn_mask)[mask_offset + j]);
        }
        weights_smem[j] = score;
        maximum = fmaxf(maximum, score);
    }
    maximum = warp_max(maximum);
    if (maximum == -CUDART_INF_F) {
        maximum = 0.0f;  // the row sees nothing: all weights are 0
    }

    float sum = 0.0f;
    for (int j = first + threadIdx.x; j < last; j += 32) {
        const float weight = expf(weights_smem[j] - maximum);
        weights_smem[j] = weight;
        sum += weight;
    }
    sum = warp_sum(sum) + expf(sink - maximum);
    __syncwarp();  // each lane reads the weights of all

    for (int d = threadIdx.x; d < HEAD_DIM; d += 32) {
        float out = 0.0f;
        for (int j = first; j < last; ++j) {
            out = fmaf(weights_smem[j], __half2float(v[kv_offset + size_t(j) * HEAD_DIM + d]), out);
        }
        o[q_offset + d] = __float2half_rn(sum > 0.0f ? out / sum : 0.0f);
    }
}
