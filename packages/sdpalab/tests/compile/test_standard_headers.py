"""Sources as they are written for nvcc: standard headers, libcu++, cooperative groups, include_dirs and --include."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpalab import CudaKernel, Launch, UserError
from sdpalab.compile import BuildError, build
from sdpalab.kernels.plan import Module
from sdpalab.problem import Problem
from warpsan.build.headers import resolve_headers
from warpsan.build.standard_headers import standard_header

Runner = Callable[..., "subprocess.CompletedProcess[str]"]

HEADERS = ("stdint.h", "cstdint", "math.h", "cmath", "assert.h", "cassert", "limits", "limits.h", "float.h", "stdio.h")
USES = """
extern "C" __global__ void k(float *o) {
    constexpr float lowest = -INFINITY;
    static_assert(sizeof(uint16_t) == 2 && std::is_same_v<std::uint32_t, uint32_t>);
    assert(o);
    uint64_t n = UINT_MAX;
    o[0] = std::max(lowest, std::sqrt(o[1])) + std::numeric_limits<float>::max() - FLT_MAX * M_LOG2E + n;
    if (isnan(o[2]) || std::isinf(o[3])) printf("%f", o[2]);
}
"""
BARRIER = """
#include <cuda/barrier>
#include <cooperative_groups.h>
extern "C" __global__ void k(float *o) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    if (threadIdx.x == 0) init(&barrier, 32);
    __syncthreads();
    barrier.arrive_and_wait();
    auto warp = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());
    o[0] = warp.shfl(o[1], 0);
}
"""


def module(source: str, *folders: Path) -> Module:
    return Module("k.cu", source, "k", {}, folders)


def names(source: str, *folders: Path) -> set[str]:
    return {header.name for header in resolve_headers(module(source, *folders))}


def test_what_nvcc_sources_include_and_use_compiles() -> None:
    includes = "".join(f"#include <{name}>\n" for name in (*HEADERS, "algorithm", "type_traits"))
    compiled = build(module(includes + USES))
    assert {"math.h", "cstdint", "cuda/std/cmath"} <= set(compiled.sources)
    assert "warning" not in compiled.log


@pytest.mark.slow
def test_barriers_and_cooperative_groups_compile() -> None:
    assert {"cuda/barrier", "cooperative_groups.h"} <= set(build(module(BARRIER)).sources)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["array", "atomic", "bit", "cinttypes", "complex", "functional", "span", "tuple"])
def test_each_standard_header_compiles_alone(name: str) -> None:
    build(module(f'#include <{name}>\nextern "C" __global__ void k(float *o) {{ o[0] = 1; }}'))


def test_what_is_no_standard_header_is_none() -> None:
    assert [standard_header(name) for name in ("cuda_fp16.h", "cfoo", "limit", "vector", "c", ".h", "x/cstdint")] == [
        None
    ] * 7
    assert standard_header("complex") != standard_header("ccomplex")


def test_only_what_is_reached_is_read() -> None:
    assert names('#include "cuda_fp16.h"') & {"math.h", "cmath", "assert.h"} == set()  # CUDA's own do without
    closure = names("#include <cstdint>")
    assert "cuda/std/cstdint" in closure
    assert len(closure) < 80


def test_a_users_header_goes_before_a_standard_one(tmp_path: Path) -> None:
    (tmp_path / "cmath").write_text("// mine\n")
    assert names("#include <cmath>", tmp_path) == {"cmath"}


def test_an_undefined_name_of_nvccs_own_headers_says_which_it_is() -> None:
    for name, header in {
        "uint32_t": "stdint.h",
        "INT_MAX": "limits.h",
        "FLT_MAX": "float.h",
    }.items():
        with pytest.raises(BuildError, match=rf'"{name}" is undefined: #include <{header}>'):
            build(module(f'extern "C" __global__ void k(float *o) {{ o[0] = sizeof({name}); }}'))


@pytest.mark.parametrize("name", ["INFINITY", "NAN", "HUGE_VALF", "M_PI", "M_LOG2E"])
def test_constants_of_math_h_need_no_include(name: str) -> None:
    """As with nvcc, which includes math.h implicitly."""
    assert b".entry" in build(module(f'extern "C" __global__ void k(float *o) {{ o[0] = {name}; }}')).ptx


@pytest.mark.parametrize("definition", ["#define LIBRARY(name) <library/name>", "/**/# define LIBRARY(x) <library/x>"])
def test_an_include_by_a_macro_is_read_by_its_definitions(tmp_path: Path, definition: str) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "a.h").write_text("#define A 1\n")
    (tmp_path / "config.h").write_text(f"{definition}\n")
    source = '#include "config.h"\n#include LIBRARY(a.h)\nextern "C" __global__ void k(float *o) { o[0] = A; }'
    assert names(source, tmp_path) == {"config.h", "library/a.h"}
    before = build(module(source, tmp_path)).key
    (tmp_path / "library" / "a.h").write_text("#define A 2\n")
    assert build(module(source, tmp_path)).key != before


def test_a_macro_may_be_defined_where_another_one_leads(tmp_path: Path) -> None:
    (tmp_path / "one.h").write_text('#define SECOND "two.h"\n')
    (tmp_path / "two.h").write_text("")
    assert names('#define FIRST "one.h"\n#include FIRST\n#include SECOND\n', tmp_path) == {"one.h", "two.h"}


def test_of_several_definitions_every_name_is_read(tmp_path: Path) -> None:
    for name in ("one.h", "two.h"):
        (tmp_path / name).write_text("")
    source = '#ifdef X\n#define PICK "one.h"\n#else\n#define PICK "two.h"\n#endif\n#include PICK\n'
    assert names(source, tmp_path) == {"one.h", "two.h"}


LAUNCH_FILE = """
from sdpalab import CudaKernel, Launch

KERNEL = CudaKernel(
    name="k",
    source='#include <mine.h>\\nextern "C" __global__ void k(const void *q, void *o) { static_assert(MINE); }',
    entry="k",
    plan=lambda problem, config: Launch((1, 1, 1), (32, 1, 1), ("q", "o")),
    include_dirs=DIRS,
)
"""


@pytest.mark.slow
def test_include_dirs_of_a_kernel_and_include_of_a_command(cli: Runner, tmp_path: Path) -> None:
    headers, file = tmp_path / "my headers", tmp_path / "k.py"
    headers.mkdir()
    (headers / "mine.h").write_text("#define MINE 1\n")
    file.write_text(LAUNCH_FILE.replace("DIRS", "['my headers']"))
    assert cli("build", file, "--shape", "1,1,16,16").returncode == 0
    file.write_text(LAUNCH_FILE.replace("DIRS", "()"))
    done = cli("build", file, "--shape", "1,1,16,16")
    assert done.returncode == 2
    assert "there is no mine.h in the kernel's include_dirs, --include, the lab's headers" in done.stderr
    assert cli("build", file, "--shape", "1,1,16,16", "--include", headers).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["judge", "sanitize"])
def test_commands_that_build_take_include(cli: Runner, tmp_path: Path, command: str) -> None:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "mine.h").write_text("#define MINE 1\n")
    (tmp_path / "k.py").write_text(LAUNCH_FILE.replace("DIRS", "()"))
    words = (command, tmp_path / "k.py", "--shape", "1,1,16,16")
    assert cli(*words).returncode == 2
    assert cli(*words, "--include", tmp_path / "headers").returncode == (1 if command == "judge" else 0)


def test_folders_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from sdpalab.cli import main

    for include_dirs, expected in (("headers", "are lists"), (["nowhere"], "nowhere, which is not a folder")):
        with pytest.raises(UserError, match=expected):
            CudaKernel(name="k", source="", entry="k", plan=lambda p, c: None, include_dirs=include_dirs)  # type: ignore
    assert main(["build", "flash", "--include", str(tmp_path)]) == 2
    assert "--include is for your own FILE.py" in capsys.readouterr().err
    assert main(["build", "k.py", "--include", str(tmp_path / "none")]) == 2
    assert "--include takes a folder with headers" in capsys.readouterr().err


def test_options_of_a_kernel_reach_the_compiler_and_the_key() -> None:
    kernel = CudaKernel(
        name="k",
        source='constexpr int one() { return 1; }\nextern "C" __global__ void k(int *o) { o[0] = one(); }',
        entry="k",
        plan=lambda problem, config: Launch((1, 1, 1), (32, 1, 1), ("o",)),
        options=["-default-device"],
    )
    (step,) = kernel.launch_plan(Problem(1, 1, 16, 16)).launches
    assert isinstance(step.module, Module)
    assert "-default-device" in build(step.module).command
    with pytest.raises(UserError, match="option '-I/x' is not allowed"):
        build(Module("k.cu", "", "k", options=("-I/x",)))
