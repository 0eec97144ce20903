// The paged attention of vLLM, FP16, one query a sequence, compared with double precision.
// -DPARTITIONS=0: paged_attention_v1; 1: partitions of 512 keys and the reduction (v2). Pages of 16 rows in shuffled
// order, four heads over two; rows of a page behind the end of a sequence are NaN, and entries of the block table
// behind the last page are -1.
#include "attention.h"
#include "attention/attention_kernels.cuh"

#include <cuda_fp16.h>

constexpr int HEADS = 4, KV_HEADS = 2, DIM = 64, PAGE = 16, THREADS = 128, PARTITION = 512, SEQUENCES = 4;
constexpr int LENGTHS[SEQUENCES] = {700, 1, 16, 173};
constexpr int LONGEST = 700, TABLE_WIDTH = (LONGEST + PAGE - 1) / PAGE + 1;
using Half = uint16_t;  // as vLLM holds float16

int main() {
    Normal normal;
    std::vector<int> table, lengths(LENGTHS, LENGTHS + SEQUENCES);
    std::vector<__half> q, k(size_t(SEQUENCES) * TABLE_WIDTH * PAGE * KV_HEADS * DIM, __half(NAN)), v(k);
    std::vector<Doubles> expected;
    int const pages = SEQUENCES * TABLE_WIDTH;
    for (int n = 0; n < SEQUENCES; n++) {
        Attention a{1, LENGTHS[n], HEADS, KV_HEADS, DIM, false};
        auto own_q = normal.draw<__half>(a.queries()), own_k = normal.draw<__half>(a.keys()),
             own_v = normal.draw<__half>(a.keys());
        q.insert(q.end(), own_q.begin(), own_q.end());
        for (int number = 0; number < TABLE_WIDTH; number++)
            table.push_back(number * PAGE < LENGTHS[n] ? (7 * (n * TABLE_WIDTH + number) + 3) % pages : -1);
        for (int j = 0; j < LENGTHS[n]; j++)
            for (int head = 0; head < KV_HEADS; head++)
                for (int d = 0; d < DIM; d++) {
                    size_t page = (size_t(table[n * TABLE_WIDTH + j / PAGE]) * KV_HEADS + head) * DIM * PAGE;
                    k[page + (d / 8 * PAGE + j % PAGE) * 8 + d % 8] = own_k[(size_t(j) * KV_HEADS + head) * DIM + d];
                    v[page + d * PAGE + j % PAGE] = own_v[(size_t(j) * KV_HEADS + head) * DIM + d];
                }
        Doubles lse;
        expected.push_back(a.forward(to_double(own_q), to_double(own_k), to_double(own_v), lse));
    }
    DeviceArray<__half> device_q(q), device_k(k), device_v(v), device_o(q.size());
    DeviceArray<int> device_table(table), device_lengths(lengths);
    DeviceArray<float> one(std::vector<float>{1.0f});
    auto const as = [](DeviceArray<__half> const &array) { return reinterpret_cast<Half *>(array.data); };
    float const scale = 1.0f / std::sqrt(float(DIM));
    int const page_stride = KV_HEADS * DIM * PAGE, head_stride = DIM * PAGE;
    constexpr auto AUTO = vllm::Fp8KVCacheDataType::kAuto;
#if PARTITIONS
    constexpr int COUNT = (LONGEST + PARTITION - 1) / PARTITION;
    DeviceArray<__half> parts(q.size() * COUNT);
    DeviceArray<float> sums(SEQUENCES * HEADS * COUNT), maxima(SEQUENCES * HEADS * COUNT);
    int const shared = std::max(PARTITION, THREADS / 32 / 2 * DIM) * sizeof(float);
    vllm::paged_attention_v2_kernel<Half, Half, DIM, PAGE, THREADS, AUTO, false, PARTITION>
        <<<dim3(HEADS, SEQUENCES, COUNT), THREADS, shared>>>(
            sums.data, maxima.data, as(parts), as(device_q), as(device_k), as(device_v), KV_HEADS, scale,
            device_table.data, device_lengths.data, TABLE_WIDTH, nullptr, HEADS * DIM, page_stride, head_stride,
            one.data, one.data, 0, 0, 0, 64, 0);
    vllm::paged_attention_v2_reduce_kernel<Half, DIM, THREADS, PARTITION>
        <<<dim3(HEADS, SEQUENCES), THREADS, 2 * COUNT * sizeof(float)>>>(as(device_o), sums.data, maxima.data,
                                                                         as(parts), device_lengths.data, COUNT);
#else
    int const shared = std::max((TABLE_WIDTH - 1) * PAGE, THREADS / 32 / 2 * DIM) * sizeof(float);
    vllm::paged_attention_v1_kernel<Half, Half, DIM, PAGE, THREADS, AUTO, false>
        <<<dim3(HEADS, SEQUENCES, 1), THREADS, shared>>>(
            as(device_o), as(device_q), as(device_k), as(device_v), KV_HEADS, scale, device_table.data,
            device_lengths.data, TABLE_WIDTH, nullptr, HEADS * DIM, page_stride, head_stride, one.data, one.data, 0, 0,
            0, 64, 0);
#endif
    CHECK(cudaDeviceSynchronize());
    auto const o = device_o.get();
    int wrong = 0;
    for (int n = 0; n < SEQUENCES; n++) {
        auto const first = o.begin() + n * HEADS * DIM;
        wrong |= compare("o", std::vector<__half>(first, first + HEADS * DIM), expected[n], 4e-3);
    }
    return wrong;
}
