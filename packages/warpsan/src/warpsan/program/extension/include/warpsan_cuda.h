// The CUDA runtime's functions that host code of an extension calls, and its kernels as functions that record a launch.
#pragma once
#include "warpsan_host.h"

#include "vector_types.h"
#include "driver_types.h"
#include "library_types.h"
#ifndef __CUDACC__
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __constant__
#define __shared__
#define __managed__
#ifndef __restrict__
#define __restrict__ __restrict
#endif
#ifndef __align__
#define __align__(n) __attribute__((aligned(n)))
#endif
#define __grid_constant__
#define __cluster_dims__(...)
#define __noinline__ __attribute__((noinline))
#endif
#include "vector_functions.h"

namespace cooperative_groups {}
namespace nvcuda { namespace wmma {} }
namespace cuda { namespace std {} }
using ::std::max;
using ::std::min;
inline int min(unsigned a, int b) { return static_cast<int>(::std::min<unsigned>(a, static_cast<unsigned>(b))); }
template <typename A, typename B, typename = ::std::enable_if_t<!::std::is_same_v<A, B> && ::std::is_arithmetic_v<A> && ::std::is_arithmetic_v<B>>>
::std::common_type_t<A, B> min(A a, B b) { return a < b ? a : b; }
template <typename A, typename B, typename = ::std::enable_if_t<!::std::is_same_v<A, B> && ::std::is_arithmetic_v<A> && ::std::is_arithmetic_v<B>>>
::std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

namespace warpsan_host {

struct Configuration {
  dim3 grid, block, cluster{1, 1, 1};
  size_t dynamic_smem = 0;
  bool cooperative = false;
  const char* file = "";
  int line = 0;
};
inline Configuration next_launch;
inline cudaError_t last_error = cudaSuccess;

// A call of a kernel's host function: a launch, or a question for its name and parameters.
struct Described {
  bool asked = false;
  std::string kernel;
  std::vector<std::string> template_arguments;
  std::vector<uint64_t> sizes;
};
inline Described described;

// The kernel behind a pointer to its host function. In this mode the function reads none of its arguments.
inline Described describe(const void* function) {
  described = {true};
  reinterpret_cast<void (*)()>(const_cast<void*>(function))();
  Described result = described;
  described.asked = false;
  return result;
}

template <typename T> std::string type_name() {
  std::string text = __PRETTY_FUNCTION__;
  const size_t begin = text.find("T = ") + 4;
  size_t end = text.rfind(']');
  const size_t semicolon = text.find("; std::string", begin);
  return text.substr(begin, ::std::min(end, semicolon) - begin);
}
template <typename T> std::string of_type() { return type_name<T>(); }
template <typename T> std::string of_constant(T value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (std::is_enum_v<T>)
    return "(" + type_name<T>() + ")" + std::to_string(static_cast<long long>(value));
  else if constexpr (std::is_integral_v<T>) return "(" + type_name<T>() + ")" + std::to_string(value);
  else return "";
}

inline bool configure(const char* file, int line, dim3 grid, dim3 block, size_t dynamic_smem = 0, cudaStream_t = nullptr) {
  next_launch = {grid, block, {1, 1, 1}, dynamic_smem, false, file, line};
  return false;
}

inline cudaError_t launch(const char* kernel, const std::vector<std::string>& names, const void* const* arguments,
                          const uint64_t* sizes, size_t count) {
  std::vector<const char*> texts;
  for (const std::string& each : names) texts.push_back(each.c_str());
  const Configuration& c = next_launch;
  Launch request{kernel, texts.data(), static_cast<int32_t>(texts.size()),
                 {c.grid.x, c.grid.y, c.grid.z}, {c.block.x, c.block.y, c.block.z},
                 {c.cluster.x, c.cluster.y, c.cluster.z}, c.cooperative, c.dynamic_smem,
                 static_cast<int32_t>(count), arguments, sizes, c.file, c.line};
  const int32_t error = process.launch(&request);
  if (error < 0) throw PythonError();
  if (error) last_error = static_cast<cudaError_t>(error);
  return static_cast<cudaError_t>(error);
}

// The body of each kernel in host code.
template <typename... A>
void kernel(const char* name, const std::vector<std::string>& names, const A&... arguments) {
  if (described.asked) {
    described = {false, name, names, {sizeof(A)...}};
    return;
  }
  const void* pointers[] = {static_cast<const void*>(&arguments)..., nullptr};
  const uint64_t sizes[] = {sizeof(A)..., 0};
  launch(name, names, pointers, sizes, sizeof...(A));
}

inline cudaError_t record(int64_t error) {
  if (error) last_error = static_cast<cudaError_t>(error);
  return static_cast<cudaError_t>(error);
}
template <typename... A> cudaError_t runtime(const char* name, const A&... arguments) {
  return record(call<int64_t>(name, arguments...));
}
template <typename F> const void* address(F function) { return reinterpret_cast<const void*>(function); }
inline std::string entry_of(const Described& each) {
  std::string name = each.kernel;
  for (size_t i = 0; i < each.template_arguments.size(); ++i)
    name += (i ? ", " : "<") + each.template_arguments[i];
  return each.template_arguments.empty() ? name : name + ">";
}

}  // namespace warpsan_host

#define CUDART_CB
inline cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  const auto kernel = warpsan_host::describe(function);
  return warpsan_host::runtime("cudaFuncSetAttribute", warpsan_host::entry_of(kernel), static_cast<int64_t>(attribute), value);
}
template <typename F> cudaError_t cudaFuncSetAttribute(F* function, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(warpsan_host::address(function), attribute, value);
}
template <typename F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
template <typename F> cudaError_t cudaFuncSetSharedMemConfig(F, int) { return cudaSuccess; }
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t smem) {
  *blocks = static_cast<int>(warpsan_host::call<int64_t>("occupancy", threads, static_cast<int64_t>(smem)));
  return cudaSuccess;
}
template <typename F> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F* function, int threads, size_t smem) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, warpsan_host::address(function), threads, smem);
}
template <typename F> cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, F, size_t = 0, int = 0) {
  *grid = 132, *block = 256;
  return cudaSuccess;
}
namespace warpsan_host {
inline cudaError_t launch_at(const void* function, dim3 grid, dim3 block, void** arguments, size_t smem, bool cooperative) {
  const Described kernel = describe(function);
  next_launch = {grid, block, {1, 1, 1}, smem, cooperative, "", 0};
  return launch(kernel.kernel.c_str(), kernel.template_arguments, arguments, kernel.sizes.data(), kernel.sizes.size());
}
}  // namespace warpsan_host
inline cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t smem, cudaStream_t) {
  return warpsan_host::launch_at(function, grid, block, arguments, smem, false);
}
inline cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t smem, cudaStream_t) {
  return warpsan_host::launch_at(function, grid, block, arguments, smem, true);
}
template <typename F>
cudaError_t cudaLaunchKernel(F* function, dim3 grid, dim3 block, void** arguments, size_t smem = 0, cudaStream_t = nullptr) {
  return warpsan_host::launch_at(warpsan_host::address(function), grid, block, arguments, smem, false);
}
template <typename F>
cudaError_t cudaLaunchCooperativeKernel(F* function, dim3 grid, dim3 block, void** arguments, size_t smem = 0, cudaStream_t = nullptr) {
  return warpsan_host::launch_at(warpsan_host::address(function), grid, block, arguments, smem, true);
}
template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*function)(P...), A&&... arguments) {
  warpsan_host::next_launch = {config->gridDim, config->blockDim, {1, 1, 1}, config->dynamicSmemBytes, false, "", 0};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& each = config->attrs[i];
    if (each.id == cudaLaunchAttributeClusterDimension)
      warpsan_host::next_launch.cluster = {each.val.clusterDim.x, each.val.clusterDim.y, each.val.clusterDim.z};
    if (each.id == cudaLaunchAttributeCooperative) warpsan_host::next_launch.cooperative = each.val.cooperative;
  }
  warpsan_host::last_error = cudaSuccess;
  function(static_cast<P>(std::forward<A>(arguments))...);
  return warpsan_host::last_error;
}

inline cudaError_t cudaGetLastError() {
  const cudaError_t error = warpsan_host::last_error;
  warpsan_host::last_error = cudaSuccess;
  return error;
}
inline cudaError_t cudaPeekAtLastError() { return warpsan_host::last_error; }
inline const char* cudaGetErrorString(cudaError_t error) {
  static std::string text;
  text = warpsan_host::call<std::string>("error text", static_cast<int64_t>(error));
  return text.c_str();
}
inline const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
inline cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = reinterpret_cast<void*>(warpsan_host::call<int64_t>("allocate", static_cast<int64_t>(bytes)));
  return *pointer || !bytes ? cudaSuccess : warpsan_host::record(cudaErrorMemoryAllocation);
}
inline cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
inline cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return *pointer = std::malloc(bytes), cudaSuccess; }
template <typename T> cudaError_t cudaMalloc(T** pointer, size_t bytes) { return cudaMalloc(reinterpret_cast<void**>(pointer), bytes); }
template <typename T> cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
template <typename T> cudaError_t cudaMallocHost(T** pointer, size_t bytes) { return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes); }
inline cudaError_t cudaFree(void* pointer) { return warpsan_host::runtime("cudaFree", pointer); }
inline cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
inline cudaError_t cudaFreeHost(void* pointer) { return std::free(pointer), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return warpsan_host::runtime("cudaMemcpy", to, from, static_cast<int64_t>(bytes));
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t = nullptr) {
  return cudaMemcpy(to, from, bytes, kind);
}
inline cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return warpsan_host::runtime("cudaMemset", pointer, value, static_cast<int64_t>(bytes));
}
inline cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t = nullptr) {
  return cudaMemset(pointer, value, bytes);
}
#define cudaMemcpyToSymbol(symbol, ...) warpsan_host_to_symbol(#symbol, __VA_ARGS__)
#define cudaMemcpyToSymbolAsync(symbol, ...) warpsan_host_to_symbol(#symbol, __VA_ARGS__)
inline cudaError_t warpsan_host_to_symbol(const char* name, const void* from, size_t bytes, size_t offset = 0,
                                          cudaMemcpyKind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) {
  return warpsan_host::runtime("cudaMemcpyToSymbol", name, from, static_cast<int64_t>(bytes), static_cast<int64_t>(offset));
}
inline cudaError_t cudaDeviceSynchronize() { return warpsan_host::last_error; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return warpsan_host::last_error; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = static_cast<int>(warpsan_host::call<int64_t>("device attribute", static_cast<int64_t>(attribute)));
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  return warpsan_host::runtime("cudaGetDeviceProperties", static_cast<void*>(properties), static_cast<int64_t>(sizeof(*properties)));
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = reinterpret_cast<cudaStream_t>(new char), cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = reinterpret_cast<cudaEvent_t>(new char), cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
