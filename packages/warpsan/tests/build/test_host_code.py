"""Sources with host code: it is removed, lines stay, and pure device code is unchanged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sdpalab.kernels.registry import KERNELS
from warpsan.build.builder import build
from warpsan.build.host_code import device_code, set_aside
from warpsan.build.nvrtc import BuildError
from warpsan.build.source import Module
from warpsan.errors import MachineError

FOLDER = Path(__file__).parent / "as_written"

ENTRIES = {
    "softmax_extension.cu": "softmax_rows<float>",
    "gemm_main.cu": "gemm_tiled",
    "attention_library.cu": "lab::ops::attention<64>",
    "head_dims.cu": "scale_rows<Traits<64>>",
    "c_api.cu": "smooth",
    "elementwise_bindings.cu": "sum_quads",
    "llm/layernorm.cu": "normalise",
    "tensor_map.cu": "double_tile<16, 64>",
    "grid_sync.cu": "total",
    "flash_homework.cu": "attend_in_strips",
    "guarded.cu": "activate_all",
    "wmma_gemm.cu": "multiply_tiles",
    "block_reduce.cu": "row_norms<float, 64>",
}


def module(source: str, entry: str = "k", *folders: Path, **changes: object) -> Module:
    return replace(Module("k.cu", source, entry, {}, folders), **changes)


def written(name: str) -> Module:
    path = FOLDER / name
    return Module(path.name, path.read_text(), ENTRIES[name], {}, (path.parent,))


KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"


@pytest.mark.parametrize("name", ENTRIES)
def test_files_as_people_write_them_compile(name: str) -> None:
    source = written(name)
    built = build(source, "sm_90a")
    assert set_aside(source).functions
    assert source.source.splitlines()[0] == (FOLDER / name).read_text().splitlines()[0]
    assert built.to_dict()["sources"][source.name]


@pytest.mark.parametrize("name", ENTRIES)
def test_lines_keep_their_numbers_and_device_code_its_text(name: str) -> None:
    source = written(name)
    compiled = device_code(source).module.source
    kept = compiled.split(f'#line 1 "/{source.name}"\n')[-1].split("\n")
    lines = source.source.split("\n")
    assert len(kept) == len(lines)
    for before, after in zip(lines, kept, strict=True):
        assert len(before) == len(after)
        assert all(new in (old, " ") for old, new in zip(before, after, strict=True))
    kernels = [line for line in lines if re.match(r"\s*__global__", line)]
    assert all(line in kept for line in kernels)


@pytest.mark.parametrize(
    "name", [name for name, kernel in KERNELS.items() if kernel.__class__.__name__ == "CudaKernel"]
)
def test_shipped_kernels_are_compiled_byte_for_byte(name: str) -> None:
    kernel = KERNELS[name]
    source = Path(str(kernel.source)).read_text()  # type: ignore[attr-defined]
    text = Module(f"{name}.cu", source, "k", {"HEAD_DIM": "64"}, (Path(str(kernel.source)).parent,))  # type: ignore[attr-defined]
    code = device_code(text)
    assert (code.module, code.headers, bool(code.set_aside)) == (text, code.originals, False)


def test_code_that_only_a_host_compiler_sees_is_left_alone() -> None:
    source = module(
        "#ifndef __CUDACC_RTC__\n#include <iostream>\nint main() {}\n#endif\n#if 0\nvoid f() {\n#endif\n" + KERNEL
    )
    assert device_code(source).module is source


def test_an_error_names_the_users_line_and_what_was_set_aside() -> None:
    source = "#include <iostream>\nvoid launch() {\n}\n\n__global__ void k(float* x) { x[0] = nothing; }\n"
    with pytest.raises(
        BuildError, match=r'^k\.cu, line 5: identifier "nothing" is undefined; set aside: 1 host function'
    ):
        build(module(source))


def test_a_host_function_that_device_code_calls_is_named() -> None:
    source = "float twice(float x) { return 2 * x; }\n__global__ void k(float* x) { x[0] = twice(x[0]); }\n"
    with pytest.raises(BuildError, match="twice was set aside as a host function: mark it __device__"):
        build(module(source))


def test_a_missing_header_of_unknown_kind_is_named_when_the_rest_does_not_compile() -> None:
    source = '#include "tiles.cuh"\nint main() {}\n__global__ void k(float* x) { x[0] = tile(x); }\n'
    with pytest.raises(BuildError, match=r"nowhere found: tiles\.cuh"):
        build(module(source))
    assert build(module('#include "helper.hpp"\nint main() {}\n' + KERNEL)).ptx


def test_device_code_with_a_missing_header_still_says_so() -> None:
    with pytest.raises(BuildError, match=r"k\.cu, line 1: there is no tiles\.cuh"):
        build(module('#include "tiles.cuh"\n' + KERNEL))


def test_headers_of_the_user_are_separated_too(tmp_path: Path) -> None:
    header = "#include <vector>\nconstexpr int two() { return 2; }\nstd::vector<int> host() { return {}; }\n"
    (tmp_path / "common.h").write_text(header)
    source = module('#include "common.h"\n__global__ void k(float* x) { x[0] = two(); }\n', "k", tmp_path)
    built = build(source)
    assert set_aside(source).functions == ("host",)
    (original,) = (each for each in device_code(source).originals if each.name == "common.h")
    assert built.sources["common.h"] == original.sha256
    (tmp_path / "common.h").write_text(header + "// more\n")
    assert build(source).key != built.key


@pytest.mark.parametrize(
    ("declaration", "use"),
    [
        ("constexpr int f(int a) { return a + 1; }", "f(1)"),
        ("template <int N> constexpr int f() { return N; }", "f<3>()"),
        ("const int n = 3;", "n"),
        ("static constexpr float table[2] = {1, 2};", "table[1]"),
        ("enum Mode { A, B = 5 };", "B"),
        ("struct T { static constexpr int n = 4; int host() { return 1; } T() {} };", "T::n"),
        ("#define DEVICE __device__ inline\nDEVICE float f() { return 1; }", "f()"),
        ("#define ATTR __attribute__((always_inline))\nATTR __device__ float f() { return 1; }", "f()"),
        ("#define OPS(n) __device__ float n() { return 1; }\nOPS(f)", "f()"),
        ("typedef unsigned int u32;\nusing word = u32;", "word(7)"),
        ("namespace a { namespace { __device__ int f() { return 1; } int host() { return 2; } } }", "a::f()"),
        ('extern "C" { __device__ int f() { return 1; }\nint host(void) { return 2; } }', "f()"),
        ("__host__ __device__ inline int f() { return 1; }", "f()"),
        ('struct P { int a; std::string name() { return ""; } };\n__device__ P p;', "p.a"),
        (
            "template <class T> struct W { T v; __device__ T get() { return v; } T host() { return v; } };",
            "W<int>{3}.get()",
        ),
        ("uint f(int);\n", "uint(3) + ushort(1)"),
        ("auto host = [](int a) { return a; };\n", "1"),
        ("int g = 3, *h = &g; std::vector<int> v{1, 2};\n", "1"),
        (
            'static_assert(sizeof(int) == 4, ""); struct H { std::map<int, int> m; }; static_assert(sizeof(H) > 1);\n',
            "1",
        ),
        ("int max_of(int a, int b) { return a > b ? a : b; }\n", "std::max(1, 2) + INT_MAX + int64_t(2)"),
    ],
)
def test_what_device_code_needs_stays(declaration: str, use: str) -> None:
    source = f"#include <iostream>\n{declaration}\n__global__ void k(float* x) {{ x[0] = {use}; }}\nint main() {{}}\n"
    assert b"st.global" in build(module(source)).ptx


def test_a_kernel_in_a_namespace_is_named_in_full() -> None:
    with pytest.raises(BuildError, match=r"no __global__ function 'k': .*; its name is lab::ops::k$"):
        build(module("namespace lab { namespace ops {\n" + KERNEL + "} }\nint main() {}\n"))


def test_macros_in_a_circle_end() -> None:
    source = "#define A B __device__\n#define B A inline\n#define N M\n#define M N\n#if N > 1\n#endif\n"
    assert build(module(source + "int main() { k<<<N, M>>>(0); }\n" + KERNEL)).ptx


def test_accessors_and_half_types_of_pytorch() -> None:
    source = """#include <torch/extension.h>
template <typename T>
__global__ void k(const torch::PackedTensorAccessor32<T, 3, torch::RestrictPtrTraits> x,
                  torch::PackedTensorAccessor64<T, 1> y, c10::Half* z) {
  y[threadIdx.x] = x[0][1][threadIdx.x] + x.size(2) + T(z[0]);
}
torch::Tensor f(torch::Tensor x) { return x; }
"""
    assert b".entry" in build(module(source, "k<float>")).ptx


def test_what_was_set_aside_is_one_line() -> None:
    aside = set_aside(written("gemm_main.cu"))
    assert str(aside) == (
        "set aside: 4 host functions (cudaAssert, randomize, close, main), 5 host headers (cublas_v2.h, ctime, "
        "iostream, random, ...), 3 other declarations (handle, verbose, names)"
    )
    assert aside.to_dict()["functions"] == ["cudaAssert", "randomize", "close", "main"]


def test_a_missing_parser_is_the_machines_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpsan.build import declarations

    declarations.parser.cache_clear()
    declarations.parsed.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "tree_sitter_cuda", None)
    with pytest.raises(MachineError, match="pip install tree-sitter tree-sitter-cuda"):
        set_aside(module("int main() { return 41; }\n" + KERNEL))
    declarations.parser.cache_clear()


def test_options_that_make_unmarked_functions_device_code_keep_them() -> None:
    source = "int helper() { return 1; }\n__global__ void k(float* x) { x[0] = helper(); }\n"
    plain = module(source, options=("-default-device",))
    assert device_code(plain).module is plain
    assert build(module(source + "int main() { k<<<1, 1>>>(0); }\n", options=("-default-device",))).ptx
