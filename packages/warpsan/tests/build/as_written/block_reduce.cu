#include <cub/cub.cuh>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <iostream>

struct Options {
  std::string name;
  std::vector<int> sizes;
  int repeats = 10;
};

template <typename T, int BLOCK>
__global__ void row_norms(const T* x, T* out, int columns) {
  typedef cub::BlockReduce<T, BLOCK> Reduce;
  __shared__ typename Reduce::TempStorage storage;
  T sum = 0;
  for (int c = threadIdx.x; c < columns; c += BLOCK) {
    const T value = x[blockIdx.x * columns + c];
    sum += value * value;
  }
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sqrt(sum);
}

template <typename T>
T largest(const thrust::device_vector<T>& values) {
  return thrust::reduce(values.begin(), values.end(), T(0), thrust::maximum<T>());
}

int main() {
  Options options;
  thrust::device_vector<float> x(4 * 100, 1.f), out(4);
  row_norms<float, 64><<<4, 64>>>(x.data().get(), out.data().get(), 100);
  std::cout << largest(out) << options.repeats << "\n";
}
