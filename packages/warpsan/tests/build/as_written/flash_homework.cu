// Attention of one head a block: a warp takes the keys in strips, and keeps its running results in global memory.
#include <torch/types.h>
#include <cuda_runtime.h>
#include <cstdio>

static constexpr int STRIP = 32;

// weights [STRIP] of one query row against a strip of keys; returns the largest score.
__device__ float score_strip(const float *query, const float *strip, float *weights, int width, float scale)
{
    float largest = -INFINITY;
    for (int key = 0; key < STRIP; ++key) {
        float dot = 0.f;
        for (int c = 0; c < width; ++c) dot = fmaf(query[c], strip[key * width + c], dot);
        weights[key] = dot * scale;
        largest = fmaxf(largest, weights[key]);
    }
    return largest;
}

// out begins as zeros, denominator as zeros, and peak as -inf: each strip of keys is merged into them.
__global__ void attend_in_strips(const float *queries, const float *keys, const float *values, float *out,
                                 float *denominator, float *peak, int length, int width, float scale)
{
    extern __shared__ float pool[];
    float *key_strip = pool, *value_strip = pool + STRIP * width, *weights = pool + 2 * STRIP * width;
    const int lane = threadIdx.x;
    const size_t head = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    const size_t first = head * length;

    for (int strip = 0; strip < length; strip += STRIP) {
        for (int at = lane; at < STRIP * width; at += STRIP) {
            key_strip[at] = keys[(first + strip) * width + at];
            value_strip[at] = values[(first + strip) * width + at];
        }
        __syncthreads();
        for (int row = lane; row < length; row += STRIP) {
            const size_t place = first + row;
            float *mine = weights + lane * STRIP;
            const float top = score_strip(queries + place * width, key_strip, mine, width, scale);
            const float before = peak[place], after = fmaxf(before, top);
            const float fade = expf(before - after);
            float added = 0.f;
            for (int key = 0; key < STRIP; ++key) added += mine[key] = expf(mine[key] - after);
            const float total = denominator[place] * fade + added;
            for (int c = 0; c < width; ++c) {
                float mixed = out[place * width + c] * denominator[place] * fade;
                for (int key = 0; key < STRIP; ++key) mixed += mine[key] * value_strip[key * width + c];
                out[place * width + c] = mixed / total;
            }
            denominator[place] = total;
            peak[place] = after;
        }
        __syncthreads();
    }
}

torch::Tensor attend(torch::Tensor queries, torch::Tensor keys, torch::Tensor values)
{
    const int batch = queries.size(0), heads = queries.size(1), length = queries.size(2), width = queries.size(3);
    torch::Tensor out = torch::zeros_like(queries);
    torch::Tensor denominator = torch::zeros({batch, heads, length}, queries.options());
    torch::Tensor peak = torch::full({batch, heads, length}, -INFINITY, queries.options());
    const size_t bytes = sizeof(float) * (2 * STRIP * width + STRIP * STRIP);
    if (bytes > 48 * 1024) fprintf(stderr, "%zu bytes of shared memory\n", bytes);
    attend_in_strips<<<dim3(heads, batch), STRIP, bytes>>>(
        queries.data_ptr<float>(), keys.data_ptr<float>(), values.data_ptr<float>(), out.data_ptr<float>(),
        denominator.data_ptr<float>(), peak.data_ptr<float>(), length, width, 1.0f / sqrtf(width));
    return out;
}
