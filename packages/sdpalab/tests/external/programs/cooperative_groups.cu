// Cooperative groups: sums over tiles, blocks, clusters and the whole grid, compared with the host's: COUNT
#include <numeric>

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "attention.h"

namespace cg = cooperative_groups;
constexpr int THREADS = 96, CLUSTER = 2;

// One sum in three steps: by tiles of a block, by block, and over the grid after grid.sync().
__global__ void grid_sum(int const *in, int count, int *partial, int *out) {
    __shared__ int of_tiles[THREADS / 16];
    auto grid = cg::this_grid();
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<16>(block);
    int sum = 0;
    for (int i = grid.thread_rank(); i < count; i += grid.size()) sum += in[i];
    sum = cg::reduce(tile, sum, cg::plus<int>());
    if (tile.thread_rank() == 0) of_tiles[tile.meta_group_rank()] = sum;
    block.sync();
    if (block.thread_rank() == 0) {
        sum = 0;
        for (int each : of_tiles) sum += each;
        partial[blockIdx.x] = sum;
    }
    grid.sync();
    if (grid.thread_rank() == 0) {
        sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += partial[b];
        *out = sum;
    }
}

// Sums up to each number of a warp, of those that are even.
__global__ void warp_scan(int const *in, int *out) {
    __shared__ int numbers[32];
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    cg::memcpy_async(warp, numbers, in, sizeof(numbers));
    cg::wait(warp);
    int value = numbers[31 - warp.thread_rank()];
    out[warp.thread_rank()] = 0;
    if (value % 2 == 0) out[warp.thread_rank()] = cg::inclusive_scan(cg::coalesced_threads(), value);
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
// Each block of a cluster reads what its neighbour has in shared memory.
__global__ void __cluster_dims__(CLUSTER, 1, 1) cluster_exchange(int const *in, int *out) {
    __shared__ int mine[THREADS];
    auto cluster = cg::this_cluster();
    mine[threadIdx.x] = in[blockIdx.x * THREADS + threadIdx.x];
    cluster.sync();
    int *other = cluster.map_shared_rank(mine, (cluster.block_rank() + 1) % CLUSTER);
    out[blockIdx.x * THREADS + threadIdx.x] = other[THREADS - 1 - threadIdx.x];
    cluster.sync();  // the neighbour may still be reading
}
#endif

static int check(char const *name, bool right) {
    std::printf("%s: %s\n", name, right ? "right" : "WRONG");
    return right ? 0 : 1;
}

int main(int argc, char **argv) {
    constexpr int BLOCKS = 4;
    int count = argc > 1 ? std::atoi(argv[1]) : 1000;
    std::vector<int> numbers(count);
    for (int i = 0; i < count; i++) numbers[i] = int(unsigned(i) * 2654435761u >> 18);
    DeviceArray<int> in(numbers), partial(BLOCKS), out(BLOCKS * THREADS);
    void *arguments[] = {&in.data, &count, &partial.data, &out.data};
    CHECK(cudaLaunchCooperativeKernel((void *)grid_sum, BLOCKS, THREADS, arguments, 0, nullptr));
    int wrong = check("grid", out.get()[0] == std::accumulate(numbers.begin(), numbers.end(), 0));

    warp_scan<<<1, 32>>>(in.data, out.data);
    CHECK(cudaGetLastError());
    std::vector<int> expected(32);
    for (int i = 0, sum = 0; i < 32; i++) expected[i] = numbers[31 - i] % 2 ? 0 : sum += numbers[31 - i];
    auto scanned = out.get();
    scanned.resize(32);
    wrong |= check("warp", scanned == expected);

    cluster_exchange<<<BLOCKS, THREADS>>>(in.data, out.data);
    CHECK(cudaGetLastError());
    expected.resize(BLOCKS * THREADS);
    for (int b = 0; b < BLOCKS; b++)
        for (int t = 0; t < THREADS; t++) expected[b * THREADS + t] = numbers[(b ^ 1) * THREADS + THREADS - 1 - t];
    wrong |= check("cluster", out.get() == expected);
    return wrong;
}
