// A user's own kernel: one thread computes one query row, from the first key to the last.
//
// The row of Q and the row of O live in the thread's registers. All threads of a block look at the same key at the same
// time, so K and V come from shared memory, where one read serves a whole warp.

#include <cuda_fp16.h>

constexpr int TILE = 32;  // keys in shared memory at a time

__global__ void __launch_bounds__(THREADS)
one_thread_a_row(const __half* q,  // [batch, heads, seq_q, HEAD_DIM]
                 const __half* k,  // [batch, heads / group, seq_kv, HEAD_DIM]
                 const __half* v,  // [batch, heads / group, seq_kv, HEAD_DIM]
                 __half* o,        // [batch, heads, seq_q, HEAD_DIM]
                 int seq_q, int seq_kv, int group, float scale) {
    __shared__ __align__(16) float k_smem[TILE][HEAD_DIM];
    __shared__ __align__(16) float v_smem[TILE][HEAD_DIM];

    const int row = blockIdx.x * THREADS + threadIdx.x;
    const size_t head = size_t(blockIdx.z) * gridDim.y + blockIdx.y;
    const size_t kv_offset = head / group * seq_kv * HEAD_DIM;
    const size_t q_offset = (head * seq_q + row) * HEAD_DIM;

    float q_row[HEAD_DIM] = {};
    float o_row[HEAD_DIM] = {};
    if (row < seq_q) {
#pragma unroll
        for (int d = 0; d < HEAD_DIM; ++d) {
            q_row[d] = scale * __half2float(q[q_offset + d]);
        }
    }

    // How many keys this row sees, and how many the last row of the block sees. A row past the end sees none.
    const int visible = row < seq_q ? (CAUSAL ? min(row + 1, seq_kv) : seq_kv) : 0;
    const int last = CAUSAL ? min((blockIdx.x + 1) * THREADS, seq_kv) : seq_kv;

    float maximum = 0.0f;  // of the scores so far; the first key sets it
    float sum = 0.0f;      // of exp(score - maximum)
    for (int key0 = 0; key0 < last; key0 += TILE) {
        const int keys = min(TILE, seq_kv - key0);
        for (int i = threadIdx.x; i < keys * HEAD_DIM; i += THREADS) {
            k_smem[i / HEAD_DIM][i % HEAD_DIM] = __half2float(k[kv_offset + size_t(key0) * HEAD_DIM + i]);
            v_smem[i / HEAD_DIM][i % HEAD_DIM] = __half2float(v[kv_offset + size_t(key0) * HEAD_DIM + i]);
        }
        __syncthreads();

        for (int j = 0; j < min(keys, visible - key0); ++j) {
            float score = 0.0f;
#pragma unroll
            for (int d = 0; d < HEAD_DIM; ++d) {
                score = fmaf(q_row[d], k_smem[j][d], score);
            }
            if (key0 + j == 0 || score > maximum) {  // what was summed so far was relative to the old maximum
                const float rescale = key0 + j == 0 ? 0.0f : expf(maximum - score);
                maximum = score;
                sum *= rescale;
#pragma unroll
                for (int d = 0; d < HEAD_DIM; ++d) {
                    o_row[d] *= rescale;
                }
            }
            const float weight = expf(score - maximum);
            sum += weight;
#pragma unroll
            for (int d = 0; d < HEAD_DIM; ++d) {
                o_row[d] = fmaf(weight, v_smem[j][d], o_row[d]);
            }
        }
        __syncthreads();
    }

    if (row < seq_q) {
        const float normaliser = 1.0f / sum;
#pragma unroll
        for (int d = 0; d < HEAD_DIM; ++d) {
            o[q_offset + d] = __float2half_rn(o_row[d] * normaliser);
        }
    }
}
