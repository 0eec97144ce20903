#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <chrono>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
using namespace cooperative_groups;
namespace cg = cooperative_groups;
using namespace std::chrono;
using Clock = std::chrono::high_resolution_clock;

class Timer {
 public:
  Timer() : start_(Clock::now()) {}
  virtual ~Timer();
  double elapsed() const;

 private:
  Clock::time_point start_;
  std::map<std::string, std::vector<double>> laps;
};

Timer::~Timer() { std::cout << std::setw(8) << elapsed() << '\n'; }
double Timer::elapsed() const { return duration_cast<microseconds>(Clock::now() - start_).count() * 1e-6; }

__device__ float block_sum(float value, thread_block block, float* part) {
  part[block.thread_rank()] = value;
  block.sync();
  for (int half = block.size() / 2; half > 0; half >>= 1) {
    if (block.thread_rank() < half) part[block.thread_rank()] += part[block.thread_rank() + half];
    block.sync();
  }
  return part[0];
}

extern "C" __global__ void total(const float* x, float* partial, float* out, int n) {
  extern __shared__ float part[];
  cg::grid_group grid = cg::this_grid();
  float value = 0;
  for (int i = grid.thread_rank(); i < n; i += grid.size()) value += x[i];
  value = block_sum(value, this_thread_block(), part);
  if (threadIdx.x == 0) partial[blockIdx.x] = value;
  grid.sync();
  if (grid.thread_rank() == 0) {
    for (int b = 1; b < gridDim.x; ++b) value += partial[b];
    *out = value;
  }
}

int main() {
  int n = 1 << 12, device = 0;
  const int threads = 128;
  auto timer = std::make_unique<Timer>();
  float *x = nullptr, *partial, *out;
  cudaMallocManaged(&x, n * sizeof(float));
  std::function<void()> go = [&]() {
    void* args[] = {&x, &partial, &out, &n};
    cudaLaunchCooperativeKernel((void*)total, dim3(4), dim3(threads), args, threads * sizeof(float), 0);
  };
  std::thread worker(go);
  worker.join();
  std::ostringstream text;
  text << R"(a raw "string" with } and { and <<<1, 2>>>)";
  return 0;
}
