// cub's radix sort: cub_sort N.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cub/device/device_radix_sort.cuh>
#include <vector>

static void check(cudaError_t error) {
    if (error != cudaSuccess) std::printf("%s\n", cudaGetErrorString(error)), std::exit(1);
}

int main(int count, char **words) {
    const int n = count > 1 ? atoi(words[1]) : 3000;
    std::vector<uint32_t> keys(n), sorted(n);
    for (int i = 0; i < n; i++) keys[i] = (uint32_t)i * 2654435761u;
    uint32_t *in, *out;
    void *space = nullptr;
    size_t bytes = 0;
    check(cudaMalloc(&in, n * sizeof *in));
    check(cudaMalloc(&out, n * sizeof *out));
    check(cudaMemcpy(in, keys.data(), n * sizeof *in, cudaMemcpyHostToDevice));
    check(cub::DeviceRadixSort::SortKeys(space, bytes, in, out, n));
    check(cudaMalloc(&space, bytes));
    check(cub::DeviceRadixSort::SortKeys(space, bytes, in, out, n));
    check(cudaMemcpy(sorted.data(), out, n * sizeof *out, cudaMemcpyDeviceToHost));
    std::sort(keys.begin(), keys.end());
    std::printf("%s\n", keys == sorted ? "right" : "WRONG");
    return keys == sorted ? 0 : 1;
}
