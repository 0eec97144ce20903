#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <random>
#include <vector>

#define M 64
#define N 48
#define K 32
#define TILE 16
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define cudaCheck(err) (cudaAssert((err), __FILE__, __LINE__))
#define CUBLAS_CHECK(call)                                                     \
  do {                                                                         \
    cublasStatus_t status = (call);                                            \
    if (status != CUBLAS_STATUS_SUCCESS) {                                     \
      fprintf(stderr, "cuBLAS %d at %s:%d\n", status, __FILE__, __LINE__);     \
      exit(EXIT_FAILURE);                                                      \
    }                                                                          \
  } while (0)

using namespace std;

cublasHandle_t handle;
static int verbose = 0;
const char *names[] = {"naive {", "tiled }"};

void cudaAssert(cudaError_t error, const char *file, int line) {
  if (error != cudaSuccess) {
    printf("%s at %s:%d\n", cudaGetErrorString(error), file, line);
    exit(EXIT_FAILURE);
  }
};

__global__ void gemm_tiled(int m, int n, int k, float alpha, const float *A, const float *B, float beta, float *C) {
  __shared__ float As[TILE][TILE];
  __shared__ float Bs[TILE][TILE];
  const uint row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int tile = 0; tile < CEIL_DIV(k, TILE); ++tile) {
    int a = tile * TILE + threadIdx.x, b = tile * TILE + threadIdx.y;
    As[threadIdx.y][threadIdx.x] = row < m && a < k ? A[row * k + a] : 0.0f;
    Bs[threadIdx.y][threadIdx.x] = b < k && column < n ? B[b * n + column] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; ++i) sum += As[threadIdx.y][i] * Bs[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) C[row * n + column] = alpha * sum + beta * C[row * n + column];
  if (row == 1u << 30) printf("never %f\n", sum);
}

void randomize(vector<float> &values) {
  static default_random_engine engine;
  normal_distribution<float> normal(0, 1);
  for (auto &value : values) value = normal(engine);
}

bool close(const float *a, const float *b, int count) {
  for (int i = 0; i < count; ++i)
    if (fabs(a[i] - b[i]) > 1e-3) return false;
  return true;
}

int main(int argc, char **argv) {
  vector<float> a(M * K), b(K * N), c(M * N), expected(M * N);
  randomize(a);
  randomize(b);
  float *da, *db, *dc, alpha = 1.0f, beta = 0.0f;
  cudaCheck(cudaMalloc(&da, sizeof(float) * M * K));
  cudaCheck(cudaMalloc(&db, sizeof(float) * K * N));
  cudaCheck(cudaMalloc((void **)&dc, sizeof(float) * M * N));
  cudaCheck(cudaMemcpy(da, a.data(), sizeof(float) * M * K, cudaMemcpyHostToDevice));
  CUBLAS_CHECK(cublasCreate(&handle));
  CUBLAS_CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, N, M, K, &alpha, db, N, da, K, &beta, dc, N));
  dim3 blockDim(TILE, TILE);
  dim3 gridDim(CEIL_DIV(N, TILE), CEIL_DIV(M, TILE));
  gemm_tiled<<<gridDim, blockDim>>>(M, N, K, alpha, da, db, beta, dc);
  cudaCheck(cudaDeviceSynchronize());
  std::cout << (close(c.data(), expected.data(), M * N) ? "ok" : "wrong") << std::endl;
  return 0;
}
