// Values that host code of an extension exchanges with the Python process that loaded it.
//
// call() passes named operations to Python: functions and methods of torch, and functions of the CUDA runtime. A tensor
// is a handle of an object there. An exception of Python becomes PythonError, which ends the entry point.
#pragma once
#include <algorithm>
#include <array>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace warpsan_host {

enum Kind : int32_t { NONE, INTEGER, REAL, BOOLEAN, TEXT, TENSOR, LIST, DTYPE, KEYWORD, TUPLE };

struct Value {
  int32_t kind = NONE;
  int32_t count = 0;
  int64_t integer = 0;
  double real = 0;
  const char* text = nullptr;
  Value* items = nullptr;
};

struct Launch {
  const char* kernel;
  const char* const* template_arguments;
  int32_t template_count;
  uint32_t grid[3], block[3], cluster[3];
  int32_t cooperative;
  uint64_t dynamic_smem;
  int32_t count;
  const void* const* arguments;
  const uint64_t* sizes;
  const char* file;
  int32_t line;
};

struct Process {
  int32_t (*call)(const char* name, const Value* arguments, int32_t count, Value* result);
  void (*release)(int64_t tensor);
  int32_t (*launch)(const Launch* launch);
};

inline Process process;

struct PythonError : std::runtime_error {
  PythonError() : std::runtime_error("a call of Python failed") {}
};

// A value with the memory behind its pointers.
struct Owned {
  Value value;
  std::vector<Owned> children;
  std::vector<Value> items;
  std::string text;
  std::shared_ptr<void> object;  // keeps a tensor's handle

  Owned() = default;
  Owned(const Owned& other) : value(other.value), children(other.children), text(other.text), object(other.object) { tie(); }
  Owned& operator=(const Owned& other) {
    value = other.value, children = other.children, text = other.text, object = other.object;
    tie();
    return *this;
  }
  void tie() {
    items.clear();
    for (Owned& each : children) items.push_back(each.value);
    value.items = items.data();
    value.count = static_cast<int32_t>(items.size());
    value.text = text.c_str();
  }
};

inline Owned of_kind(Kind kind) {
  Owned owned;
  owned.value.kind = kind;
  return owned;
}
inline Owned of_integer(Kind kind, int64_t integer) {
  Owned owned = of_kind(kind);
  owned.value.integer = integer;
  return owned;
}
inline Owned of_text(Kind kind, std::string text) {
  Owned owned = of_kind(kind);
  owned.text = std::move(text);
  owned.tie();
  return owned;
}
inline Owned of_list(Kind kind, std::vector<Owned> children) {
  Owned owned = of_kind(kind);
  owned.children = std::move(children);
  owned.tie();
  return owned;
}
inline Owned keyword(const char* name, const Owned& value) {
  Owned owned = of_list(KEYWORD, {value});
  owned.text = name;
  owned.tie();
  return owned;
}

// Encoders of arguments; a type of the facade has a member function encode(std::vector<Owned>&).
template <typename T, typename = void> struct encodes_itself : std::false_type {};
template <typename T>
struct encodes_itself<T, std::void_t<decltype(std::declval<const T&>().encode(std::declval<std::vector<Owned>&>()))>>
    : std::true_type {};

template <typename T> void encode(std::vector<Owned>& to, const T& value);

inline void encode_one(std::vector<Owned>& to, const char* value) { to.push_back(of_text(TEXT, value)); }
inline void encode_one(std::vector<Owned>& to, const std::string& value) { to.push_back(of_text(TEXT, value)); }
inline void encode_one(std::vector<Owned>& to, std::nullopt_t) { to.push_back(of_kind(NONE)); }
inline void encode_one(std::vector<Owned>& to, std::nullptr_t) { to.push_back(of_integer(INTEGER, 0)); }
template <typename T> void encode_one(std::vector<Owned>& to, const std::optional<T>& value) {
  if (value) encode(to, *value); else to.push_back(of_kind(NONE));
}
template <typename T> void encode_one(std::vector<Owned>& to, const std::vector<T>& values) {
  std::vector<Owned> children;
  for (const T& each : values) encode(children, each);
  to.push_back(of_list(LIST, children));
}
template <typename T> void encode_one(std::vector<Owned>& to, T* pointer) {
  to.push_back(of_integer(INTEGER, reinterpret_cast<int64_t>(pointer)));
}

template <typename T> void encode(std::vector<Owned>& to, const T& value) {
  if constexpr (encodes_itself<T>::value) {
    value.encode(to);
  } else if constexpr (std::is_same_v<T, bool>) {
    to.push_back(of_integer(BOOLEAN, value));
  } else if constexpr (std::is_enum_v<T>) {
    encode_enum(to, value);
  } else if constexpr (std::is_integral_v<T>) {
    to.push_back(of_integer(INTEGER, static_cast<int64_t>(value)));
  } else if constexpr (std::is_floating_point_v<T>) {
    Owned owned = of_kind(REAL);
    owned.value.real = static_cast<double>(value);
    to.push_back(owned);
  } else {
    encode_one(to, value);
  }
}

inline Value call_values(const char* name, std::vector<Owned>& arguments) {
  std::vector<Value> values;
  for (const Owned& each : arguments) values.push_back(each.value);
  Value result;
  if (process.call(name, values.data(), static_cast<int32_t>(values.size()), &result)) throw PythonError();
  return result;
}

template <typename R> struct Decoder;

template <typename R, typename... A> R call(const char* name, const A&... arguments) {
  std::vector<Owned> encoded;
  (encode(encoded, arguments), ...);
  const Value result = call_values(name, encoded);
  if constexpr (!std::is_void_v<R>) return Decoder<std::remove_cv_t<std::remove_reference_t<R>>>::of(result);
}

template <typename R> struct Decoder {
  static R of(const Value& value) {
    if constexpr (std::is_same_v<R, bool>) return value.kind == REAL ? value.real != 0 : value.integer != 0;
    else if constexpr (std::is_enum_v<R>) return static_cast<R>(value.integer);
    else if constexpr (std::is_integral_v<R>)
      return value.kind == REAL ? static_cast<R>(value.real) : static_cast<R>(value.integer);
    else if constexpr (std::is_floating_point_v<R>)
      return value.kind == REAL ? static_cast<R>(value.real) : static_cast<R>(value.integer);
    else if constexpr (std::is_pointer_v<R>) return reinterpret_cast<R>(value.integer);
    else return R::decode(value);
  }
};
template <> struct Decoder<std::string> {
  static std::string of(const Value& value) { return value.text ? value.text : ""; }
};
template <typename T> struct Decoder<std::vector<T>> {
  static std::vector<T> of(const Value& value) {
    std::vector<T> items;
    for (int32_t i = 0; i < value.count; ++i) items.push_back(Decoder<T>::of(value.items[i]));
    return items;
  }
};
template <typename T> struct Decoder<std::optional<T>> {
  static std::optional<T> of(const Value& value) {
    if (value.kind == NONE) return std::nullopt;
    return Decoder<T>::of(value);
  }
};
template <typename... T> struct Decoder<std::tuple<T...>> {
  static std::tuple<T...> of(const Value& value) { return of(value, std::index_sequence_for<T...>()); }
  template <size_t... I> static std::tuple<T...> of(const Value& value, std::index_sequence<I...>) {
    return {Decoder<T>::of(value.items[I])...};
  }
};

// Functions that Python may call.
struct Function {
  std::string name;
  std::function<Owned(const Value*, int32_t)> call;
  std::vector<Owned> defaults;  // KEYWORD values: the name of each parameter, and its default value if it has one
};
inline std::vector<Function>& functions() {
  static std::vector<Function> all;
  return all;
}

template <typename R> Owned encoded(const R& result) {
  std::vector<Owned> out;
  if constexpr (requires { std::tuple_size<R>::value; }) {
    std::apply([&](const auto&... each) { (encode(out, each), ...); }, result);
    return of_list(TUPLE, out);
  } else {
    encode(out, result);
    return out.front();
  }
}

template <typename R, typename F, typename... A, size_t... I>
Owned invoked(F& function, const Value* arguments, std::tuple<A...>*, std::index_sequence<I...>) {
  std::tuple<std::decay_t<A>...> decoded{Decoder<std::decay_t<A>>::of(arguments[I])...};
  if constexpr (std::is_void_v<R>) {
    function(static_cast<std::decay_t<A>&>(std::get<I>(decoded))...);
    return of_kind(NONE);
  } else {
    return encoded<std::decay_t<R>>(function(static_cast<std::decay_t<A>&>(std::get<I>(decoded))...));
  }
}

template <typename R, typename... A, typename F> void add_as(const char* name, F function, std::vector<Owned> defaults) {
  auto run = [function, name](const Value* arguments, int32_t count) mutable {
    if (count != static_cast<int32_t>(sizeof...(A)))
      throw std::invalid_argument(std::string(name) + " takes " + std::to_string(sizeof...(A)) + " arguments, and " +
                                  std::to_string(count) + " were given");
    return invoked<R>(function, arguments, static_cast<std::tuple<A...>*>(nullptr), std::index_sequence_for<A...>());
  };
  functions().push_back({name, run, std::move(defaults)});
}
template <typename R, typename... A> void add(const char* name, R (*function)(A...), std::vector<Owned> defaults = {}) {
  add_as<R, A...>(name, function, std::move(defaults));
}
template <typename R, typename F, typename... A>
void add_object(const char* name, F function, R (F::*)(A...) const, std::vector<Owned> defaults) {
  add_as<R, A...>(name, function, std::move(defaults));
}
template <typename F> void add(const char* name, F function, std::vector<Owned> defaults = {}) {
  add_object(name, function, &F::operator(), std::move(defaults));
}

}  // namespace warpsan_host
