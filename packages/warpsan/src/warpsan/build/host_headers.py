"""Host headers: names that device code cannot include, and the declarations that nvcc includes implicitly."""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["IMPLICIT_HEADERS", "implicit_includes", "is_device_std", "is_host_header"]

_STANDARD = """
any cassert cctype cerrno charconv clocale codecvt condition_variable csetjmp csignal cstdarg ctime cuchar cwchar
cwctype deque exception execution fenv.h filesystem format forward_list fstream future generator iomanip ios iosfwd
iostream istream list locale map memory_resource mutex new ostream print queue random regex scoped_allocator set
shared_mutex sstream stack stacktrace stdexcept stop_token streambuf string string_view strstream syncstream
system_error thread typeindex typeinfo unordered_map unordered_set valarray vector
ctype.h dirent.h dlfcn.h errno.h fcntl.h getopt.h libgen.h locale.h malloc.h memory.h omp.h poll.h pthread.h pwd.h
sched.h semaphore.h setjmp.h signal.h stdarg.h stdbool.h strings.h time.h unistd.h wchar.h windows.h Windows.h
immintrin.h xmmintrin.h emmintrin.h x86intrin.h cpuid.h
"""
_LIBRARIES = (
    r"(torch|ATen|c10|caffe2|THC|TH|pybind11|nanobind|numpy|tensorflow|xla|boost|gtest|gmock|benchmark|nlohmann|fmt"
    r"|spdlog|glog|gflags|Eigen|opencv2|opencv4|sys|arpa|netinet|linux|bits|ext|mach|google|absl|tbb|thrust/system"
    r"|nvtx3|cutlass/util|cutlass/profiler|rapidjson|yaml-cpp|CLI|cxxopts|rmm|raft|dlpack|cudnn_frontend)/.+"
)
_CUDA = (
    r"(cublas\w*|cusparse\w*|cusolver\w*|cufftw?|cufftXt|cufftMp|curand|cudnn\w*|nccl\w*|nvml|nvToolsExt\w*|nvtx\w*|npp\w*"
    r"|cuda_profiler_api|cudaProfiler|cupti\w*|mpi|nvrtc|nvJitLink|cuda_gl_interop|cudaGL|cudaEGL|cuda_occupancy|cufile"
    r"|helper_(?!math)\w+|exception|drvapi_error_string|Python|json|gtest|catch|doctest|numa|cblas|mkl\w*|lodepng|stb_\w+)\.h(pp)?"
)
_THRUST_ON_THE_DEVICE = r"thrust/(complex|functional|pair|tuple|swap)\.h"
_CUB = r"cub/(cub|device/.+|util_allocator)\.cuh"
_PATTERN = re.compile(f"{_LIBRARIES}|{_CUDA}|{_CUB}|(?!{_THRUST_ON_THE_DEVICE})thrust/.+")
_NAMES = frozenset(_STANDARD.split())


def is_host_header(name: str) -> bool:
    """Whether a header is host-only: of the C++ library, the system, PyTorch, cuBLAS and others."""
    return name in _NAMES or _PATTERN.fullmatch(name) is not None


IMPLICIT_HEADERS = {
    "math.h": "INFINITY|NAN|HUGE_VALF?|M_[A-Z0-9_]+",
    "stdint.h": "u?int(_fast|_least)?(8|16|32|64|ptr|max)_t",
    "limits.h": "U?(CHAR|SHRT|INT|LONG|LLONG)_(MAX|MIN)",
    "float.h": "(FLT|DBL)_[A-Z_]+",
}
"""Headers that nvcc includes implicitly and NVRTC does not, with the names that need them."""

_FROM_HOST_HEADERS = {
    **IMPLICIT_HEADERS,
    "cuda_fp16.h": "half|half2|__half|__half2|__half2_raw|__half_raw|Half",
    "cuda_bf16.h": "__nv_bfloat16|__nv_bfloat162|nv_bfloat16|nv_bfloat162|BFloat16",
    "cuda_fp8.h": "__nv_fp8_e4m3|__nv_fp8_e5m2|__nv_fp8\\w+",
}
_STD = {
    "algorithm": "min|max|clamp|swap|fill|copy",
    "array": "array",
    "cmath": "f?abs|r?sqrt|cbrt|exp2?|expm1|log(2|10|1p)?|pow|ceil|floor|trunc|round|fm(a|in|ax|od)|is(nan|inf|finite)"
    "|tanh?|sinh?|cosh?|erfc?|copysign|hypot",
    "cstddef": "size_t|ptrdiff_t|nullptr_t|byte",
    "cstdint": IMPLICIT_HEADERS["stdint.h"],
    "functional": "plus|minus|multiplies|less|greater",
    "limits": "numeric_limits",
    "tuple": "tuple|make_tuple|get|tie|tuple_size\\w*|tuple_element\\w*",
    "type_traits": (
        "is_\\w+|enable_if\\w*|conditional\\w*|integral_constant|bool_constant|true_type|false_type|decay\\w*|remove_\\w+"
        "|add_\\w+|make_(un)?signed\\w*|underlying_type\\w*|common_type\\w*|invoke_result\\w*|void_t"
    ),
    "utility": "move|forward|pair|make_pair|declval|exchange|(make_)?(index|integer)_sequence",
}
_TYPES_OF_GLIBC = {"uint": "unsigned int", "ushort": "unsigned short", "ulong": "unsigned long", "ssize_t": "long"}


_ACCESSORS = """\
namespace at {
template <typename T> struct DefaultPtrTraits { typedef T* PtrType; };
template <typename T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };
template <typename T, unsigned long N, template <typename> class Traits = DefaultPtrTraits, typename Index = long>
struct TensorAccessor {
  typename Traits<T>::PtrType data_;
  const Index *sizes_, *strides_;
  __device__ auto operator[](Index i) const {
    return TensorAccessor<T, N - 1, Traits, Index>{data_ + strides_[0] * i, sizes_ + 1, strides_ + 1};
  }
  __device__ Index size(Index axis) const { return sizes_[axis]; }
  __device__ Index stride(Index axis) const { return strides_[axis]; }
  __device__ auto data() const { return data_; }
};
template <typename T, template <typename> class Traits, typename Index>
struct TensorAccessor<T, 1, Traits, Index> {
  typename Traits<T>::PtrType data_;
  const Index *sizes_, *strides_;
  __device__ T& operator[](Index i) const { return data_[strides_[0] * i]; }
  __device__ Index size(Index axis) const { return sizes_[axis]; }
  __device__ Index stride(Index axis) const { return strides_[axis]; }
  __device__ auto data() const { return data_; }
};
template <typename T, unsigned long N, template <typename> class Traits = DefaultPtrTraits, typename Index = long>
struct GenericPackedTensorAccessor {
  typename Traits<T>::PtrType data_;
  Index sizes_[N], strides_[N];
  __device__ decltype(auto) operator[](Index i) const {
    return TensorAccessor<T, N, Traits, Index>{data_, sizes_, strides_}[i];
  }
  __device__ Index size(Index axis) const { return sizes_[axis]; }
  __device__ Index stride(Index axis) const { return strides_[axis]; }
  __device__ auto data() const { return data_; }
};
template <typename T, unsigned long N, template <typename> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int>;
template <typename T, unsigned long N, template <typename> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, long>;
template <typename T, unsigned long N, template <typename> class Traits = DefaultPtrTraits, typename Index = long>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, Traits, Index>;
}
namespace torch { using namespace at; }
"""
"""Kernel views of tensors, passed by value: a pointer, sizes and strides (PyTorch, "Custom C++ and CUDA Extensions").
"""


def is_device_std(name: str) -> bool:
    """Whether libcu++ defines a std name in its device headers."""
    return any(re.fullmatch(pattern, name) for pattern in _STD.values())


def implicit_includes(words: Collection[str], declared: Collection[str]) -> str:
    """Lines that replace the implicit includes of nvcc and the host headers of a source.

    Parameters
    ----------
    words : collection of str
        Identifiers in the device code.
    declared : collection of str
        Names that the source declares or defines.
    """
    missing = set(words) - set(declared)
    names = {
        header
        for table in (_FROM_HOST_HEADERS, *([_STD] if "std" in words else []))
        for header, pattern in table.items()
        if any(re.fullmatch(pattern, word) for word in missing)
    }
    lines = [f"#include <{name}>" for name in sorted(names)]
    lines += [f"typedef {kind} {name};" for name, kind in _TYPES_OF_GLIBC.items() if name in missing]
    if missing & {"at", "c10", "torch"} and missing & {"Half", "BFloat16"}:
        types = [("Half", "__half", "cuda_fp16.h"), ("BFloat16", "__nv_bfloat16", "cuda_bf16.h")]
        aliases = " ".join(f"using {name} = {kind};" for name, kind, _ in types if name in missing)
        lines += [f"namespace {space} {{ {aliases} }}" for space in ("at", "c10", "torch")]
    if any(re.fullmatch(r"(Generic)?(Packed)?TensorAccessor(32|64)?", word) for word in missing):
        lines += [_ACCESSORS]
    if missing & {"C10_HOST_DEVICE", "C10_DEVICE"}:
        lines += ["#define C10_HOST_DEVICE __host__ __device__", "#define C10_DEVICE __device__"]
    return "".join(f"{line}\n" for line in lines)
