// cub's radix sort: cub_sort N.
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#define CHECK(x) do { cudaError_t e = x; if (e) { printf("%d: %s\n", __LINE__, cudaGetErrorString(e)); return 1; } } while (0)
int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 3000;
    std::vector<unsigned> h(n), back(n);
    for (int i = 0; i < n; i++) h[i] = (unsigned)i * 2654435761u;
    unsigned *in, *out; void *temp = nullptr; size_t bytes = 0;
    CHECK(cudaMalloc(&in, n * 4)); CHECK(cudaMalloc(&out, n * 4));
    CHECK(cudaMemcpy(in, h.data(), n * 4, cudaMemcpyHostToDevice));
    CHECK(cub::DeviceRadixSort::SortKeys(temp, bytes, in, out, n));
    CHECK(cudaMalloc(&temp, bytes));
    CHECK(cub::DeviceRadixSort::SortKeys(temp, bytes, in, out, n));
    CHECK(cudaMemcpy(back.data(), out, n * 4, cudaMemcpyDeviceToHost));
    std::sort(h.begin(), h.end());
    puts(h == back ? "sorted" : "WRONG");
    return h != back;
}
