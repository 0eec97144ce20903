// Macros of torch's C++ API: checks, dispatch by dtype, and bindings.
#pragma once

namespace warpsan_host {
inline std::string words() { return ""; }
template <typename... A> std::string words(const A&... each) {
  std::ostringstream out;
  (out << ... << each);
  return out.str();
}
}  // namespace warpsan_host

#define TORCH_CHECK(condition, ...)                                                                              \
  do { if (!(condition)) {                                                                                       \
    const std::string warpsan_words = warpsan_host::words(__VA_ARGS__);                                          \
    throw c10::Error(warpsan_words.empty() ? "Expected " #condition " to be true, but got false." : warpsan_words); } } while (0)
#define TORCH_INTERNAL_ASSERT(condition, ...) TORCH_CHECK(condition __VA_OPT__(,) __VA_ARGS__)
#define TORCH_CHECK_EQ(a, b) TORCH_CHECK((a) == (b), "Check failed: " #a " == " #b)
#define TORCH_CHECK_LE(a, b) TORCH_CHECK((a) <= (b), "Check failed: " #a " <= " #b)
#define TORCH_CHECK_LT(a, b) TORCH_CHECK((a) < (b), "Check failed: " #a " < " #b)
#define TORCH_CHECK_GE(a, b) TORCH_CHECK((a) >= (b), "Check failed: " #a " >= " #b)
#define TORCH_CHECK_GT(a, b) TORCH_CHECK((a) > (b), "Check failed: " #a " > " #b)
#define TORCH_CHECK_NE(a, b) TORCH_CHECK((a) != (b), "Check failed: " #a " != " #b)
#define TORCH_CHECK_TYPE(condition, ...) TORCH_CHECK(condition __VA_OPT__(,) __VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) TORCH_CHECK(condition __VA_OPT__(,) __VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(condition, ...) TORCH_CHECK(condition __VA_OPT__(,) __VA_ARGS__)
#define TORCH_WARN(...) (void)0
#define TORCH_WARN_ONCE(...) (void)0
#define AT_ASSERTM(condition, ...) TORCH_CHECK(condition, __VA_ARGS__)
#define AT_ASSERT(condition, ...) TORCH_CHECK(condition __VA_OPT__(,) __VA_ARGS__)
#define AT_CHECK(condition, ...) TORCH_CHECK(condition __VA_OPT__(,) __VA_ARGS__)
#define AT_ERROR(...) throw c10::Error(warpsan_host::words(__VA_ARGS__))
#define CUDA_CHECK_OF_TORCH(expression)                                                                          \
  do { const cudaError_t warpsan_error = (expression);                                                           \
    if (warpsan_error != cudaSuccess) throw c10::Error(std::string("CUDA error: ") + cudaGetErrorString(warpsan_error)); } while (0)
#define C10_CUDA_CHECK(expression) CUDA_CHECK_OF_TORCH(expression)
#define AT_CUDA_CHECK(expression) CUDA_CHECK_OF_TORCH(expression)
#define TORCH_CUDA_CHECK(expression) CUDA_CHECK_OF_TORCH(expression)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() CUDA_CHECK_OF_TORCH(cudaGetLastError())
#define C10_UNUSED [[maybe_unused]]
#define C10_HOST_DEVICE
#define C10_DEVICE
#define C10_LIKELY(x) (x)
#define C10_UNLIKELY(x) (x)
#define TORCH_API

#define AT_PRIVATE_CASE_TYPE_USING_HINT(enum_type, hint, ...) \
  case enum_type: { using hint [[maybe_unused]] = typename warpsan_host::TypeOf<enum_type>::type; return __VA_ARGS__(); }
#define AT_DISPATCH_CASE(enum_type, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(enum_type, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                                      \
  [&] { const at::ScalarType warpsan_type = warpsan_host::scalar_type(TYPE);                                     \
    switch (warpsan_type) { __VA_ARGS__ default:                                                                 \
      throw c10::Error(std::string("\"") + NAME + "\" not implemented for '" + c10::toString(warpsan_type) + "'"); } }()
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) \
  AT_DISPATCH_CASE(at::ScalarType::Double, __VA_ARGS__) AT_DISPATCH_CASE(at::ScalarType::Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...) \
  AT_DISPATCH_CASE(at::ScalarType::Half, __VA_ARGS__) AT_DISPATCH_CASE(at::ScalarType::BFloat16, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(at::ScalarType::Half, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(__VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(TYPE1, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(TYPE1, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(TYPE1, TYPE2, TYPE, NAME, ...)                                           \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(TYPE1, __VA_ARGS__) \
                     AT_DISPATCH_CASE(TYPE2, __VA_ARGS__))

namespace warpsan_host {
template <c10::ScalarType T> struct TypeOf;
#define WARPSAN_DTYPE(cpp, name) template <> struct TypeOf<c10::ScalarType::name> { using type = cpp; };
WARPSAN_DTYPES(WARPSAN_DTYPE)
#undef WARPSAN_DTYPE
inline c10::ScalarType scalar_type(c10::ScalarType type) { return type; }
inline c10::ScalarType scalar_type(const at::Tensor& tensor) { return tensor.scalar_type(); }

// A module of pybind11, or a library of operators: the functions of the extension by name.
inline std::string parameter_name(const char* text) { return text; }
struct Argument {
  std::string name;
  std::vector<Owned> value;
  template <typename T> Argument operator=(const T& each) const {
    Argument out{name, {}};
    encode(out.value, each);
    return out;
  }
  Argument noconvert(bool = true) const { return *this; }
};
struct Extension {
  template <typename F, typename... E> Extension& def(const char* name, F function, const E&... extras) {
    std::vector<Owned> defaults;
    (take(defaults, extras), ...);
    add(name, function, defaults);
    return *this;
  }
  template <typename T> Extension& attr(const T&) { return *this; }
  template <typename T> Extension& operator=(const T&) { return *this; }
  std::string& doc() { static std::string text; return text; }
 private:
  template <typename T> static void take(std::vector<Owned>& defaults, const T& each) {
    if constexpr (std::is_base_of_v<Argument, T>) {
      Owned owned = of_list(KEYWORD, each.value);
      owned.text = each.name;
      owned.tie();
      defaults.push_back(owned);
    }
  }
};
}  // namespace warpsan_host

namespace torch {
// Operators of torch.ops: the functions of TORCH_LIBRARY, by name without their schema.
class Library {
  std::string space_;
  static std::deque<std::string>& names() { static std::deque<std::string> all; return all; }
  template <typename F> Library& add(const std::string& schema, F function) {
    names().push_back(space_ + "::" + schema.substr(schema.find("::") == std::string::npos ? 0 : schema.find("::") + 2).substr(0, schema.find('(')));
    warpsan_host::add(names().back().c_str(), function);
    return *this;
  }

 public:
  explicit Library(const char* space) : space_(space) {}
  Library& def(const char*) { return *this; }
  template <typename F> Library& def(const char* schema, F function) { return add(schema, function); }
  template <typename F> Library& impl(const char* name, F function) { return add(name, function); }
  template <typename K, typename F> Library& impl(const char* name, K, F function) { return add(name, function); }
};
}  // namespace torch
#define WARPSAN_LIBRARY(space, variable, number)                                                                 \
  static void warpsan_library_##number(torch::Library& variable);                                                \
  static const bool warpsan_library_added_##number = [] {                                                        \
    torch::Library library(#space); return warpsan_library_##number(library), true; }();                         \
  static void warpsan_library_##number(torch::Library& variable)
#define TORCH_LIBRARY(space, variable) WARPSAN_LIBRARY(space, variable, 1)
#define TORCH_LIBRARY_FRAGMENT(space, variable) WARPSAN_LIBRARY(space, variable, 2)
#define TORCH_LIBRARY_IMPL(space, key, variable) WARPSAN_LIBRARY(space, variable, 3)

namespace pybind11 {
using module_ = warpsan_host::Extension;
using module = warpsan_host::Extension;
struct arg : warpsan_host::Argument {
  explicit arg(const char* name) : Argument{name, {}} {}
  using Argument::operator=;
};
struct gil_scoped_release {};
template <typename... T> struct call_guard {};
inline std::nullopt_t none() { return std::nullopt; }
namespace literals { inline arg operator""_a(const char* name, size_t) { return arg(name); } }
}  // namespace pybind11
namespace py = pybind11;
#define TORCH_EXTENSION_NAME extension
#define PYBIND11_MODULE(name, variable)                                                                          \
  static void warpsan_module(pybind11::module_& variable);                                                       \
  static const bool warpsan_added = [] { pybind11::module_ module; return warpsan_module(module), true; }();      \
  static void warpsan_module([[maybe_unused]] pybind11::module_& variable)

