"""C and C++ standard headers for device code: libcu++ headers under their usual names.

NVRTC has no standard library. libcu++ (pip: ``nvidia-cuda-cccl``) provides one for device code, in ``cuda/std/`` and
``cuda::std``. A source for nvcc includes ``<cstdint>`` and uses ``std::uint32_t``; these headers map both to libcu++.

Source: libcu++ manual, "Standard API"; CUDA C++ Programming Guide, "C++ Language Support" (NVRTC's built-in names).
"""

from __future__ import annotations

__all__ = ["standard_header"]

_C_HEADERS = (
    "assert",
    "complex",
    "float",
    "inttypes",
    "limits",
    "math",
    "stddef",
    "stdint",
    "stdio",
    "stdlib",
    "string",
)
"""C headers, each named ``X.h`` in C and ``cX`` in C++."""

_STD = "namespace std { using namespace cuda::std; }\n"

_MATH = """\
#include <cuda/std/cmath>
#ifndef HUGE_VAL
#define HUGE_VALF INFINITY
#define HUGE_VAL cuda::std::numeric_limits<double>::infinity()
#endif
#ifndef M_PI
#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
"""
"""Macros of C99, 7.12, and of POSIX. libcu++ defines INFINITY and NAN; NVRTC has the functions in the global namespace.
"""

_FLOAT = """\
#ifndef FLT_MAX
#define FLT_RADIX 2
#define FLT_MANT_DIG 24
#define FLT_DIG 6
#define FLT_MIN_EXP (-125)
#define FLT_MAX_EXP 128
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MANT_DIG 53
#define DBL_DIG 15
#define DBL_MIN_EXP (-1021)
#define DBL_MAX_EXP 1024
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#endif
"""
"""Macros of C99, 5.2.4.2.2, for binary32 and binary64."""

_TEXTS = {
    "math": _MATH,
    "float": _FLOAT,
    # assert, printf, memcpy, memset, malloc and free are built into NVRTC.
    "assert": "",
    "inttypes": "#include <cuda/std/cstdint>\n",
    "stdio": "",
    "string": "",
    "stdlib": "",
}
"""Text in addition to, or in place of, the libcu++ header of a C header."""

_CPP_HEADERS = {
    "algorithm": "cuda/std/__algorithm_",
    **{
        name: f"cuda/std/{name}"
        for name in (
            *("array", "atomic", "barrier", "bit", "bitset", "chrono", "complex", "concepts", "expected", "functional"),
            *("initializer_list", "inplace_vector", "iterator", "latch", "limits", "mdspan", "memory", "numbers"),
            *("numeric", "optional", "ranges", "ratio", "semaphore", "source_location", "span", "tuple"),
            *("type_traits", "utility", "variant", "version"),
        )
    },
}

_CUB = "".join(
    f"#include <cub/{group}/{group}_{name}.cuh>\n"
    for group, names in (
        ("block", "adjacent_difference discontinuity exchange histogram load merge_sort radix_sort reduce scan store"),
        ("warp", "exchange load merge_sort reduce scan store"),
    )
    for name in names.split()
)
"""CUB headers for device code; the rest of ``cub/cub.cuh`` is for the host."""


def standard_header(name: str) -> str | None:
    """NVRTC's text of a standard header such as ``cstdint`` or ``math.h``, or of CUB; None for any other header."""
    in_c = name.endswith(".h")
    stem = name.removesuffix(".h") if in_c else name.removeprefix("c")
    if stem in _C_HEADERS and (in_c or name.startswith("c")) and name != "complex":
        text = _TEXTS.get(stem)
        if text is None:
            return f"#pragma once\n#include <cuda/std/c{stem}>\n{'' if in_c else _STD}"
        return f"#pragma once\n{text}{_STD if not in_c and '<cuda/' in text else ''}"
    if name == "cub/cub.cuh":
        return f"#pragma once\n{_CUB}"
    if name in _CPP_HEADERS:
        return f"#pragma once\n#include <{_CPP_HEADERS[name]}>\n{_STD}"
    return None
