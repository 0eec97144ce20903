// The entry points that Python calls.
#include "warpsan_torch.h"

namespace warpsan_host {
inline std::string failure;
inline Owned result;
}  // namespace warpsan_host

extern "C" {
void warpsan_bind(const warpsan_host::Process* process) { warpsan_host::process = *process; }
int32_t warpsan_count() { return static_cast<int32_t>(warpsan_host::functions().size()); }
const char* warpsan_name(int32_t i) { return warpsan_host::functions()[i].name.c_str(); }
int32_t warpsan_parameters(int32_t i) { return static_cast<int32_t>(warpsan_host::functions()[i].defaults.size()); }
const warpsan_host::Value* warpsan_parameter(int32_t i, int32_t number) {
  return &warpsan_host::functions()[i].defaults[number].value;
}
// 0: result holds the function's result; 1: a C++ exception with that text; 2: the exception of a call of Python.
int32_t warpsan_call(int32_t i, const warpsan_host::Value* arguments, int32_t count, warpsan_host::Value* out) {
  try {
    warpsan_host::result = warpsan_host::functions()[i].call(arguments, count);
    *out = warpsan_host::result.value;
    return 0;
  } catch (const warpsan_host::PythonError&) {
    return 2;
  } catch (const std::exception& error) {
    warpsan_host::failure = error.what();
  } catch (...) {
    warpsan_host::failure = "an exception that is no std::exception";
  }
  return 1;
}
const char* warpsan_failure() { return warpsan_host::failure.c_str(); }
void warpsan_forget() { warpsan_host::result = warpsan_host::Owned(); }
}
