// The part of torch's C++ API that extensions use, over the torch of the Python process.
//
// Functions and methods without a declaration here come from torch_names.inc and tensor_methods.inc, which are written for
// each source: a name that the source calls becomes a call of the attribute of that name of torch or of the tensor.
#pragma once
#include "warpsan_cuda.h"

namespace c10 {

enum class ScalarType : int8_t {
  Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, QInt8, QUInt8, QInt32,
  BFloat16, QUInt4x2, QUInt2x4, Bits1x8, Bits2x4, Bits4x2, Bits8, Bits16, Float8_e5m2, Float8_e4m3fn, Undefined = 100
};
inline void encode_enum(std::vector<warpsan_host::Owned>& to, ScalarType type) {
  to.push_back(warpsan_host::of_integer(warpsan_host::DTYPE, static_cast<int64_t>(type)));
}
enum class DeviceType : int8_t { CPU, CUDA };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
inline void encode_enum(std::vector<warpsan_host::Owned>& to, DeviceType type) {
  to.push_back(warpsan_host::of_text(warpsan_host::TEXT, type == kCUDA ? "cuda" : "cpu"));
}
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast };
inline void encode_enum(std::vector<warpsan_host::Owned>&, MemoryFormat) {}
enum class Layout : int8_t { Strided };
constexpr Layout kStrided = Layout::Strided;
inline void encode_enum(std::vector<warpsan_host::Owned>&, Layout) {}

inline const char* toString(ScalarType type) {
  static const std::map<ScalarType, const char*> names = {
      {ScalarType::Byte, "Byte"}, {ScalarType::Char, "Char"}, {ScalarType::Short, "Short"}, {ScalarType::Int, "Int"},
      {ScalarType::Long, "Long"}, {ScalarType::Half, "Half"}, {ScalarType::Float, "Float"}, {ScalarType::Double, "Double"},
      {ScalarType::Bool, "Bool"}, {ScalarType::BFloat16, "BFloat16"}};
  const auto known = names.find(type);
  return known == names.end() ? "unknown" : known->second;
}
inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << toString(type); }
inline size_t elementSize(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: case ScalarType::Char: case ScalarType::Bool:
    case ScalarType::Float8_e5m2: case ScalarType::Float8_e4m3fn: return 1;
    case ScalarType::Short: case ScalarType::Half: case ScalarType::BFloat16: return 2;
    case ScalarType::Int: case ScalarType::Float: return 4;
    default: return 8;
  }
}

struct Device {
  DeviceType type_ = kCUDA;
  int8_t index_ = 0;
  Device(DeviceType type = kCUDA, int8_t index = 0) : type_(type), index_(index) {}
  Device(const std::string& text) : type_(text.rfind("cuda", 0) == 0 ? kCUDA : kCPU) {}
  bool is_cuda() const { return type_ == kCUDA; }
  bool is_cpu() const { return type_ == kCPU; }
  DeviceType type() const { return type_; }
  int8_t index() const { return index_; }
  bool operator==(const Device& other) const { return type_ == other.type_; }
  bool operator!=(const Device& other) const { return type_ != other.type_; }
  std::string str() const { return type_ == kCUDA ? "cuda:0" : "cpu"; }
  void encode(std::vector<warpsan_host::Owned>& to) const { to.push_back(warpsan_host::of_text(warpsan_host::TEXT, str())); }
};
inline std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.str(); }

// Values of 16 bits on the host; kernels take them as __half and __nv_bfloat16.
struct BFloat16 {
  uint16_t x = 0;
  BFloat16() = default;
  BFloat16(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); x = static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16); }
  operator float() const { const uint32_t bits = uint32_t{x} << 16; float value; std::memcpy(&value, &bits, 4); return value; }
};
struct Half {
  uint16_t x = 0;
  Half() = default;
  Half(float value) { const _Float16 half = static_cast<_Float16>(value); std::memcpy(&x, &half, 2); }
  operator float() const { _Float16 half; std::memcpy(&half, &x, 2); return static_cast<float>(half); }
};
struct Float8_e4m3fn { uint8_t x = 0; };
struct Float8_e5m2 { uint8_t x = 0; };

class IntArrayRef {
  std::vector<int64_t> values_;
 public:
  IntArrayRef() = default;
  IntArrayRef(std::initializer_list<int64_t> values) : values_(values) {}
  IntArrayRef(std::vector<int64_t> values) : values_(std::move(values)) {}
  int64_t operator[](size_t i) const { return values_.at(i); }
  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  int64_t back() const { return values_.back(); }
  int64_t front() const { return values_.front(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  const int64_t* data() const { return values_.data(); }
  std::vector<int64_t> vec() const { return values_; }
  bool operator==(const IntArrayRef& other) const { return values_ == other.values_; }
  bool operator!=(const IntArrayRef& other) const { return values_ != other.values_; }
  void encode(std::vector<warpsan_host::Owned>& to) const { warpsan_host::encode(to, values_); }
  static IntArrayRef decode(const warpsan_host::Value& value) { return warpsan_host::Decoder<std::vector<int64_t>>::of(value); }
};
inline std::ostream& operator<<(std::ostream& out, const IntArrayRef& sizes) {
  out << '[';
  for (size_t i = 0; i < sizes.size(); ++i) out << (i ? ", " : "") << sizes[i];
  return out << ']';
}

struct TensorOptions {
  std::optional<ScalarType> dtype_;
  std::optional<Device> device_;
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(Device device) : device_(device) {}
  TensorOptions(DeviceType device) : device_(Device(device)) {}
  TensorOptions dtype(ScalarType type) const { TensorOptions out = *this; out.dtype_ = type; return out; }
  TensorOptions device(Device device) const { TensorOptions out = *this; out.device_ = device; return out; }
  TensorOptions device(DeviceType device, int index = 0) const { return this->device(Device(device, static_cast<int8_t>(index))); }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions requires_grad(bool = false) const { return *this; }
  TensorOptions memory_format(MemoryFormat) const { return *this; }
  TensorOptions pinned_memory(bool) const { return *this; }
  Device device() const { return device_.value_or(Device()); }
  ScalarType dtype() const { return dtype_.value_or(ScalarType::Float); }
  void encode(std::vector<warpsan_host::Owned>& to) const {
    std::vector<warpsan_host::Owned> one;
    if (dtype_) warpsan_host::encode(one, *dtype_), to.push_back(warpsan_host::keyword("dtype", one.back()));
    if (device_) warpsan_host::encode(one, *device_), to.push_back(warpsan_host::keyword("device", one.back()));
  }
};
template <typename T> using optional = std::optional<T>;
using std::nullopt;

class Error : public std::runtime_error { using std::runtime_error::runtime_error; };

// The name of a C++ type as a dtype.
template <typename T> struct CppTypeToScalarType;
#define WARPSAN_DTYPES(_)                                                                                        \
  _(uint8_t, Byte) _(int8_t, Char) _(int16_t, Short) _(int32_t, Int) _(int64_t, Long) _(c10::Half, Half)          \
  _(float, Float) _(double, Double) _(bool, Bool) _(c10::BFloat16, BFloat16) _(c10::Float8_e5m2, Float8_e5m2)     \
  _(c10::Float8_e4m3fn, Float8_e4m3fn)
#define WARPSAN_DTYPE(type, name) \
  template <> struct CppTypeToScalarType<type> { static constexpr ScalarType value = ScalarType::name; };
WARPSAN_DTYPES(WARPSAN_DTYPE)
#undef WARPSAN_DTYPE

}  // namespace c10

namespace at {

using namespace c10;

template <typename T> struct DefaultPtrTraits { typedef T* PtrType; };
template <typename T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };
template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits, typename Index = int64_t>
struct GenericPackedTensorAccessor {
  typename Traits<T>::PtrType data_;
  Index sizes_[N], strides_[N];
  Index size(Index axis) const { return sizes_[axis]; }
  Index stride(Index axis) const { return strides_[axis]; }
};
template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;
template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits, typename Index = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, Traits, Index>;

// The type of a tensor in torch's first C++ API.
struct DeprecatedTypeProperties {
  ScalarType type_;
  ScalarType scalarType() const { return type_; }
  bool is_cuda() const { return true; }
  operator ScalarType() const { return type_; }
};

class Tensor;
using TwoTensors = std::tuple<Tensor, Tensor>;

class Tensor {
  std::shared_ptr<int64_t> handle_;
  explicit Tensor(int64_t handle)
      : handle_(new int64_t(handle), [](int64_t* each) { warpsan_host::process.release(*each); delete each; }) {}
  template <typename R, typename... A> R call(const char* name, const A&... arguments) const {
    return warpsan_host::call<R>((std::string("Tensor.") + name).c_str(), *this, arguments...);
  }

 public:
  Tensor() = default;
  void encode(std::vector<warpsan_host::Owned>& to) const {
    to.push_back(handle_ ? warpsan_host::of_integer(warpsan_host::TENSOR, *handle_) : warpsan_host::of_kind(warpsan_host::NONE));
    to.back().object = handle_;
  }
  static Tensor decode(const warpsan_host::Value& value) {
    if (value.kind == warpsan_host::NONE) return Tensor();
    if (value.kind != warpsan_host::TENSOR) throw std::invalid_argument("a tensor was expected");
    return Tensor(value.integer);
  }
  bool defined() const { return handle_ != nullptr; }
  bool has_value() const { return defined(); }
  int64_t size(int64_t axis) const { return call<int64_t>("size", axis); }
  int64_t stride(int64_t axis) const { return call<int64_t>("stride", axis); }
  int64_t dim() const { return call<int64_t>("dim"); }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const { return call<int64_t>("numel"); }
  int64_t nbytes() const { return numel() * element_size(); }
  int64_t element_size() const { return call<int64_t>("element_size"); }
  size_t itemsize() const { return static_cast<size_t>(element_size()); }
  int64_t storage_offset() const { return call<int64_t>("storage_offset"); }
  IntArrayRef sizes() const { return call<IntArrayRef>("size"); }
  IntArrayRef strides() const { return call<IntArrayRef>("stride"); }
  ScalarType scalar_type() const { return static_cast<ScalarType>(call<int64_t>("dtype number")); }
  ScalarType dtype() const { return scalar_type(); }
  DeprecatedTypeProperties type() const { return {scalar_type()}; }
  Device device() const { return Device(kCUDA); }
  int8_t get_device() const { return 0; }
  bool is_cuda() const { return true; }
  bool is_cpu() const { return false; }
  Layout layout() const { return kStrided; }
  bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const { return call<bool>("is_contiguous"); }
  bool requires_grad() const { return call<bool>("requires_grad value"); }
  bool is_floating_point() const { return call<bool>("is_floating_point"); }
  bool is_same(const Tensor& other) const { return handle_ == other.handle_; }
  bool equal(const Tensor& other) const { return call<bool>("equal", other); }
  bool is_same_size(const Tensor& other) const { return sizes() == other.sizes(); }
  TensorOptions options() const { return TensorOptions(scalar_type()).device(kCUDA); }
  Tensor contiguous(MemoryFormat = MemoryFormat::Contiguous) const { return call<Tensor>("contiguous"); }
  Tensor cuda() const { return *this; }
  Tensor cpu() const { return call<Tensor>("clone"); }
  Tensor toType(ScalarType type) const { return call<Tensor>("to", type); }
  template <typename... A> Tensor to(const A&... arguments) const { return call<Tensor>("to", arguments...); }
  template <typename T> T item() const { return call<T>("item"); }
  template <typename T> T* data_ptr() const {
    if constexpr (!std::is_void_v<T>) {
      using Known = std::remove_cv_t<T>;
      if constexpr (requires { CppTypeToScalarType<Known>::value; }) {
        if (scalar_type() != CppTypeToScalarType<Known>::value)
          throw Error(std::string("expected scalar type ") + toString(CppTypeToScalarType<Known>::value) + " but found " + toString(scalar_type()));
      }
    }
    return reinterpret_cast<T*>(call<int64_t>("data_ptr"));
  }
  void* data_ptr() const { return data_ptr<void>(); }
  template <typename T> const T* const_data_ptr() const { return data_ptr<T>(); }
  template <typename T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  const void* const_data_ptr() const { return data_ptr<void>(); }
  void* mutable_data_ptr() const { return data_ptr<void>(); }
  template <typename T> T* data() const { return data_ptr<T>(); }
  template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits, typename Index = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, Index> generic_packed_accessor() const {
    if (dim() != static_cast<int64_t>(N)) throw Error("packed_accessor of " + std::to_string(N) + " axes for a tensor of " + std::to_string(dim()));
    GenericPackedTensorAccessor<T, N, Traits, Index> out{data_ptr<T>(), {}, {}};
    for (size_t i = 0; i < N; ++i) out.sizes_[i] = static_cast<Index>(size(i)), out.strides_[i] = static_cast<Index>(stride(i));
    return out;
  }
  template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits>
  auto packed_accessor32() const { return generic_packed_accessor<T, N, Traits, int32_t>(); }
  template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits>
  auto packed_accessor64() const { return generic_packed_accessor<T, N, Traits, int64_t>(); }
  template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits, typename Index = int64_t>
  auto packed_accessor() const { return generic_packed_accessor<T, N, Traits, Index>(); }
  Tensor operator[](int64_t i) const { return call<Tensor>("select", 0, i); }
  Tensor operator-() const { return call<Tensor>("neg"); }
  template <typename A> Tensor operator+(const A& a) const { return call<Tensor>("__add__", a); }
  template <typename A> Tensor operator-(const A& a) const { return call<Tensor>("__sub__", a); }
  template <typename A> Tensor operator*(const A& a) const { return call<Tensor>("__mul__", a); }
  template <typename A> Tensor operator/(const A& a) const { return call<Tensor>("__truediv__", a); }
  template <typename A> Tensor operator<(const A& a) const { return call<Tensor>("__lt__", a); }
  template <typename A> Tensor operator>(const A& a) const { return call<Tensor>("__gt__", a); }
  template <typename A> Tensor operator<=(const A& a) const { return call<Tensor>("__le__", a); }
  template <typename A> Tensor operator>=(const A& a) const { return call<Tensor>("__ge__", a); }
  template <typename A> Tensor operator==(const A& a) const { return call<Tensor>("__eq__", a); }
  template <typename A> Tensor operator!=(const A& a) const { return call<Tensor>("__ne__", a); }
  template <typename A> Tensor& operator-=(const A& a) { return call<Tensor>("sub_", a), *this; }
  template <typename A> Tensor& operator/=(const A& a) { return call<Tensor>("div_", a), *this; }
  template <typename A> Tensor& operator+=(const A& a) { return call<Tensor>("add_", a), *this; }
  template <typename A> Tensor& operator*=(const A& a) { return call<Tensor>("mul_", a), *this; }
#define WARPSAN_METHOD(name, Result)                                                                            \
  template <typename... A> Result name(IntArrayRef first, const A&... rest) const { return call<Result>(#name, first, rest...); } \
  template <typename... A> Result name(const A&... arguments) const { return call<Result>(#name, arguments...); }
#include "tensor_methods.inc"
#undef WARPSAN_METHOD
};
template <typename A, typename = std::enable_if_t<std::is_arithmetic_v<A>>> Tensor operator*(A a, const Tensor& b) { return b * a; }
template <typename A, typename = std::enable_if_t<std::is_arithmetic_v<A>>> Tensor operator+(A a, const Tensor& b) { return b + a; }

using TensorList = std::vector<Tensor>;

inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions device(Device each) { return TensorOptions(each); }
inline TensorOptions device(DeviceType each, int = 0) { return TensorOptions(each); }
#define WARPSAN_FUNCTION(name, Result)                                                                           \
  template <typename... A> Result name(std::initializer_list<int64_t> first, const A&... rest) { return warpsan_host::call<Result>("torch." #name, IntArrayRef(first), rest...); } \
  template <typename... A> Result name(std::initializer_list<Tensor> first, const A&... rest) { return warpsan_host::call<Result>("torch." #name, TensorList(first), rest...); } \
  template <typename... A> Result name(const Tensor& first, std::initializer_list<int64_t> second, const A&... rest) { return warpsan_host::call<Result>("torch." #name, first, IntArrayRef(second), rest...); } \
  template <typename... A> Result name(const A&... arguments) { return warpsan_host::call<Result>("torch." #name, arguments...); }
#include "torch_names.inc"
#undef WARPSAN_FUNCTION

constexpr ScalarType kByte = ScalarType::Byte, kUInt8 = ScalarType::Byte, kChar = ScalarType::Char, kInt8 = ScalarType::Char,
  kShort = ScalarType::Short, kInt16 = ScalarType::Short, kInt = ScalarType::Int, kInt32 = ScalarType::Int,
  kLong = ScalarType::Long, kInt64 = ScalarType::Long, kHalf = ScalarType::Half, kFloat16 = ScalarType::Half,
  kFloat = ScalarType::Float, kFloat32 = ScalarType::Float, kDouble = ScalarType::Double, kFloat64 = ScalarType::Double,
  kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16, kFloat8_e4m3fn = ScalarType::Float8_e4m3fn,
  kFloat8_e5m2 = ScalarType::Float8_e5m2;

template <typename T> struct OpMathType { using type = T; };
template <> struct OpMathType<Half> { using type = float; };
template <> struct OpMathType<BFloat16> { using type = float; };
template <typename T> using opmath_type = typename OpMathType<T>::type;
template <typename T, bool> using acc_type = opmath_type<T>;

template <typename T> T ceil_div(T a, T b) { return (a + b - 1) / b; }

namespace cuda {
struct CUDAStream {
  cudaStream_t stream() const { return nullptr; }
  operator cudaStream_t() const { return nullptr; }
  int8_t device_index() const { return 0; }
  void synchronize() const {}
};
inline CUDAStream getCurrentCUDAStream(int = 0) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = 0) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, int = 0) { return {}; }
inline const cudaDeviceProp* getCurrentDeviceProperties() {
  static cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  return &properties;
}
inline const cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); }
inline int warp_size() { return 32; }
struct CUDAGuard { template <typename... A> explicit CUDAGuard(const A&...) {} };
using OptionalCUDAGuard = CUDAGuard;
struct CUDAStreamGuard { template <typename... A> explicit CUDAStreamGuard(const A&...) {} };
template <typename T> T ATenCeilDiv(T a, T b) { return (a + b - 1) / b; }
}  // namespace cuda
inline cuda::CUDAGuard device_guard(const Tensor&) { return cuda::CUDAGuard(0); }
using DeviceGuard = cuda::CUDAGuard;
struct NoGradGuard {};
struct AutoNonVariableTypeMode { explicit AutoNonVariableTypeMode(bool = true) {} };
}  // namespace at

namespace c10::cuda {
using at::cuda::CUDAGuard;
using at::cuda::CUDAStream;
using at::cuda::CUDAStreamGuard;
using at::cuda::getCurrentCUDAStream;
using at::cuda::getDefaultCUDAStream;
using at::cuda::getStreamFromPool;
using at::cuda::OptionalCUDAGuard;
inline int current_device() { return 0; }
}  // namespace c10::cuda
namespace c10 { using at::IntArrayRef; using at::NoGradGuard; inline at::cuda::CUDAGuard OptionalDeviceGuard() { return at::cuda::CUDAGuard(0); } }

namespace torch {
using namespace at;
namespace cuda { using namespace at::cuda; inline bool is_available() { return true; } inline void synchronize() {} }
namespace autograd {}
namespace headeronly { using namespace c10; }
// Types with implicit conversions of torch's own API.
template <typename F> F wrap_pybind_function(F function) { return function; }
}  // namespace torch
#ifndef WARPSAN_NO_TORCH_SHORTHAND
namespace caffe2 { using c10::ScalarType; }
#endif

#include "warpsan_macros.h"
