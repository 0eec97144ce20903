#include <mma.h>
#include <cuda_fp16.h>
#include <cstdio>
#include <curand.h>
#include <cublas_v2.h>
using namespace nvcuda;
using element = half;

#define OK(call) { complain((call), __LINE__); }
void complain(cudaError_t status, int line) {
   if (status) fprintf(stderr, "line %d: %s\n", line, cudaGetErrorName(status));
}

#define SIDE 32

const int TILE = 16;
static constexpr int DEPTH = TILE;
static const int EXIT_CODES[4] = {0, 2, 3, 4};

enum Layout { ROWS, COLUMNS = 4 };
constexpr bool by_rows(Layout layout) { return layout == ROWS; }
template <Layout L> struct Operand { static constexpr bool rows = by_rows(L); };
static_assert(Operand<ROWS>::rows, "rows");
static_assert(sizeof(element) == 2, "two bytes");

// A warp computes one tile of product = factor * left * right, all matrices by rows.
__global__ void multiply_tiles(const element *left, const element *right, float *product, int side, float factor) {
   const int down = TILE * (blockIdx.x * (blockDim.x / warpSize) + threadIdx.x / warpSize);
   const int along = TILE * (blockIdx.y * blockDim.y + threadIdx.y);
   if (!Operand<ROWS>::rows || down >= side || along >= side) return;
   wmma::fragment<wmma::accumulator, TILE, TILE, DEPTH, float> sum;
   wmma::fill_fragment(sum, 0.f);
   for (int step = 0; step < side; step += DEPTH) {
      wmma::fragment<wmma::matrix_a, TILE, TILE, DEPTH, element, wmma::row_major> one;
      wmma::fragment<wmma::matrix_b, TILE, TILE, DEPTH, element, wmma::row_major> other;
      wmma::load_matrix_sync(one, left + down * side + step, side);
      wmma::load_matrix_sync(other, right + step * side + along, side);
      wmma::mma_sync(sum, one, other, sum);
   }
   for (float &each : sum.x) each *= factor;
   wmma::store_matrix_sync(product + down * side + along, sum, side, wmma::mem_row_major);
}

int main() {
   dim3 tiles;
   dim3 threads;
   threads.x = 64;
   threads.y = 2;
   tiles.x = SIDE / (TILE * threads.x / 32);
   tiles.y = SIDE / (TILE * threads.y);
   element *left = 0, *right = 0; float *product = 0;
   multiply_tiles <<< tiles, threads >>> (left, right, product, SIDE, 2.f);
   OK(cudaDeviceSynchronize());
   return EXIT_CODES[0];
}
