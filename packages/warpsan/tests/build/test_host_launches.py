"""Sizes of launches in host code, evaluated from constants alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warpsan.build.constants import evaluate
from warpsan.build.host_launches import HostLaunch, host_launches, launch_of, only_kernel
from warpsan.build.source import Module

FOLDER = Path(__file__).parent / "as_written"

HEAD = """#include <vector>
#define TILE 16
#define CEIL(a, b) (((a) + (b) - 1) / (b))
enum { WARPS = 4 };
struct Config { static constexpr int THREADS = 32 * WARPS; };
constexpr int rows = 100;
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
int changing = 7;
template <int N> __global__ void k(float* x) {}
"""


def launches(body: str, entry: str = "k", **defines: str) -> list[HostLaunch]:
    return host_launches(Module("k.cu", f"{HEAD}void run(int n, float* x) {{\n{body}\n}}\n", entry, defines))


@pytest.mark.parametrize(
    ("body", "grid", "block", "smem"),
    [
        ("k<1><<<4, 256>>>(x);", (4, 1, 1), (256, 1, 1), 0),
        ("k<1><<<dim3(2, 3), dim3{8, 4, 2}, 1 << 10>>>(x);", (2, 3, 1), (8, 4, 2), 1024),
        ("const int threads = 64; dim3 g(CEIL(rows, TILE), 2); k<1><<<g, threads, 2 * sizeof(float4)>>>(x);",
         (7, 2, 1), (64, 1, 1), 32),
        ("k<1><<<ceil_div(rows, 32), Config::THREADS, 0, stream>>>(x);", (4, 1, 1), (128, 1, 1), 0),
        ("dim3 b; b.x = 16; b.y = TILE / 4; k<1><<<b.x * b.y, b>>>(x);", (64, 1, 1), (16, 4, 1), 0),
        ("auto g = dim3(std::min(rows, 3)); k<1><<<g, (unsigned)32.0f>>>(x);", (3, 1, 1), (32, 1, 1), 0),
        ("int n2 = 8; n2 *= 2; k<1><<<n2, 32>>>(x);", None, (32, 1, 1), 0),
        ("int got; cudaGetDevice(&got); k<1><<<got, 32>>>(x);", None, (32, 1, 1), 0),
        ("k<1><<<n, changing>>>(x);", None, None, 0),
        ("for (int b = 32; b < 99; b *= 2) k<1><<<1, b>>>(x);", (1, 1, 1), None, 0),
        ("k<1><<<1, 32, x.size()>>>(x);", (1, 1, 1), (32, 1, 1), None),
        ("void* a[] = {&x}; cudaLaunchCooperativeKernel((void*)k<1>, dim3(2), dim3(64), a, 128, 0);",
         (2, 1, 1), (64, 1, 1), 128),
        ("k<1><<<BLOCKS, 32>>>(x);", (9, 1, 1), (32, 1, 1), 0),
    ],
)  # fmt: skip
def test_sizes(body: str, grid: Any, block: Any, smem: int | None) -> None:
    (launch,) = launches(body, BLOCKS="9")
    assert (launch.sizes, launch.dynamic_smem) == ((grid, block), smem)


def test_the_line_is_that_of_the_source() -> None:
    (launch,) = launches("\n\nk<1><<<1, 1>>>(x);")
    assert launch.line == HEAD.count("\n") + 4


def test_the_kernel_behind_a_variable_and_its_constant_arguments() -> None:
    (launch,) = launches("constexpr int D = 2 * TILE; auto* kernel = &k<D>; kernel<<<1, 32>>>(x);")
    assert launch.kernel == "k<32>"


def test_the_launch_of_an_entry() -> None:
    body = "k<1><<<1, 32>>>(x); k<2><<<2, 64>>>(x); k<2><<<2, 64>>>(x);"
    module = Module("k.cu", f"{HEAD}void run(float* x) {{ {body} }}", "k<2>", {})
    found = launch_of(module)
    assert isinstance(found, HostLaunch)
    assert found.sizes == ((2, 1, 1), (64, 1, 1))
    assert launch_of(Module("k.cu", module.source, "k<3>", {})) == "k.cu has no launch of k<3>"
    several = Module("k.cu", f"{HEAD}void run(float* x) {{ k<1><<<1, 32>>>(x); k<1><<<2, 32>>>(x); }}", "k<1>", {})
    assert str(launch_of(several)).startswith("k.cu launches k with several sizes, in lines ")


def test_the_only_kernel() -> None:
    files = {"gemm_main.cu": "gemm_tiled", "tensor_map.cu": "double_tile<16, 64>", "elementwise_bindings.cu": ""}
    for name, kernel in files.items():
        assert only_kernel(Module(name, (FOLDER / name).read_text(), "", {}, (FOLDER,))) == kernel


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1'024 / 3", 341),
        ("-7 / 2", -3),
        ("7 % 3 + (2 << 3)", 17),
        ("0x10 | 010", 24),
        ("3 > 2 ? 5 : 1 / 0", None),
        ("1 || unknown", 1),
        ("unknown && 0", 0),
        ("unknown || 0", None),
        ("static_cast<int>(7.9)", 7),
        ("(size_t)3 * sizeof(half)", 6),
        ("ceil(10 / 4.0f)", 3.0),
        ("1e3", 1000.0),
        ("a +", None),
        ("", None),
        ("f(1)", None),
    ],
)
def test_expressions(text: str, value: float | None) -> None:
    assert evaluate(text, lambda name: None) == value
