// cub's reductions, scans and sorts, compared with the host's: cub_algorithms COUNT
#include <algorithm>
#include <numeric>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include "attention.h"

constexpr int THREADS = 128;

// Each block: the sum of its numbers, and their sums up to each.
__global__ void block_sums(int const *in, int count, int *sums, int *prefixes) {
    using Reduce = cub::BlockReduce<int, THREADS>;
    using Scan = cub::BlockScan<int, THREADS>;
    __shared__ union {
        typename Reduce::TempStorage reduce;
        typename Scan::TempStorage scan;
    } storage;
    int at = blockIdx.x * THREADS + threadIdx.x, value = at < count ? in[at] : 0, prefix;
    int sum = Reduce(storage.reduce).Sum(value);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    __syncthreads();
    Scan(storage.scan).InclusiveSum(value, prefix);
    if (at < count) prefixes[at] = prefix;
}

struct IsOdd {
    __host__ __device__ bool operator()(int x) const { return x % 2 != 0; }
};

// A device-wide algorithm is called twice: for the size of its memory, and to run.
template <typename Call>
void run(Call call) {
    size_t bytes = 0;
    CHECK(call(nullptr, bytes));
    DeviceArray<char> storage(bytes);
    CHECK(call(storage.data, bytes));
}

static int check(char const *name, bool right) {
    std::printf("%s: %s\n", name, right ? "right" : "WRONG");
    return right ? 0 : 1;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? std::atoi(argv[1]) : 3000, blocks = (count + THREADS - 1) / THREADS, wrong = 0;
    std::vector<int> keys(count), places(count);
    for (int i = 0; i < count; i++) keys[i] = int(unsigned(i) * 2654435761u >> 20) - 2000, places[i] = i;
    DeviceArray<int> in(keys), values(places), out(count), out_values(count), sums(blocks), total(1);

    block_sums<<<blocks, THREADS>>>(in.data, count, sums.data, out.data);
    CHECK(cudaGetLastError());
    std::vector<int> expected(count), expected_sums(blocks);
    for (int i = 0; i < count; i++) {
        expected[i] = keys[i] + (i % THREADS ? expected[i - 1] : 0);
        expected_sums[i / THREADS] += keys[i];
    }
    wrong |= check("BlockScan", out.get() == expected) | check("BlockReduce", sums.get() == expected_sums);

    run([&](void *storage, size_t &bytes) { return cub::DeviceReduce::Sum(storage, bytes, in.data, total.data, count); });
    wrong |= check("DeviceReduce", total.get()[0] == std::accumulate(keys.begin(), keys.end(), 0));

    run([&](void *storage, size_t &bytes) {
        return cub::DeviceScan::ExclusiveSum(storage, bytes, in.data, out.data, count);
    });
    for (int i = 0; i < count; i++) expected[i] = i ? expected[i - 1] + keys[i - 1] : 0;
    wrong |= check("DeviceScan", out.get() == expected);

    run([&](void *storage, size_t &bytes) {
        return cub::DeviceSelect::If(storage, bytes, in.data, out.data, total.data, count, IsOdd{});
    });
    expected.clear();
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(expected), IsOdd{});
    auto selected = out.get();
    selected.resize(total.get()[0]);
    wrong |= check("DeviceSelect", selected == expected);

    run([&](void *storage, size_t &bytes) {
        return cub::DeviceRadixSort::SortPairs(storage, bytes, in.data, out.data, values.data, out_values.data, count);
    });
    std::stable_sort(places.begin(), places.end(), [&](int a, int b) { return keys[a] < keys[b]; });
    wrong |= check("DeviceRadixSort", out_values.get() == places);
    return wrong;
}
