"""Compilation: both outputs of a run, independence of the location, one-sentence errors, every part of the key."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from warpsan.build import builder, nvrtc
from warpsan.build.builder import build
from warpsan.build.cache import Cache
from warpsan.build.headers import resolve_headers
from warpsan.build.nvrtc import BuildError, compile_program, compiler_version, supported_archs
from warpsan.build.options import _BOOL, _CACHING, _NUMBER, _NUMBERS, _NVRTC, _PTXAS, allowed_options
from warpsan.build.source import Module
from warpsan.errors import MachineError, UserError


def test_ptx_and_cubin_of_one_run(tensor: Module, cache: Cache) -> None:
    compiled = build(tensor, cache=cache)
    assert compiled.entry == "_Z6tensorILi8EEvPK6__halfS2_Pf"
    assert f".entry {compiled.entry}(".encode() in compiled.ptx
    assert b".target sm_89" in compiled.ptx
    assert b"wmma.mma.sync" in compiled.ptx
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.entry.encode() in compiled.cubin
    assert not compiled.cache_hit
    assert 0 < compiled.compile_seconds <= compiled.seconds
    assert re.fullmatch(r"tensor-sm_89-[0-9a-f]{16}", compiled.name)
    assert compiled.key.startswith(compiled.name[-16:])
    assert {"tensor.cu", "mma.h", "cuda_fp16.h"} <= set(compiled.sources)


def test_hit_after_miss_is_the_same_build(tensor: Module, cache: Cache) -> None:
    miss, hit = (build(tensor, cache=cache) for _ in range(2))
    assert (miss.cache_hit, hit.cache_hit) == (False, True)
    assert replace(hit, seconds=0.0, cache_hit=False) == replace(miss, seconds=0.0)


def test_a_hit_does_not_compile(scale: Module, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    build(scale, cache=cache)

    def refuse(*arguments: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(builder, "compile_program", refuse)
    assert build(scale, cache=cache).cache_hit


def test_output_depends_on_no_place(tmp_path: Path) -> None:
    """Another process, working directory, include folder and package location give the same bytes, without a path."""
    source = '#include "part/f.cuh"\n__global__ void k(float* x) { x[threadIdx.x] = f(x); }\n'
    header = "static __device__ float state[64];\n__device__ float f(float* x) { return state[threadIdx.x] + *x; }\n"
    script = (
        "import sys; from pathlib import Path; from sdpalab.compile import Cache, build\n"
        "from sdpalab.kernels.plan import Module\n"
        f"made = build(Module('k.cu', {source!r}, 'k', {{}}, (Path(sys.argv[1]),)), cache=Cache(sys.argv[2]))\n"
        "Path(sys.argv[2], 'out').write_bytes(made.ptx + made.cubin); print(made.key)\n"
    )
    package = Path(builder.__file__).parents[2]
    outputs, keys = [], []
    for place in ("first", "second/elsewhere"):
        folder = tmp_path / place
        (folder / "include" / "part").mkdir(parents=True)
        (folder / "include" / "part" / "f.cuh").write_text(header)
        (folder / "src").symlink_to(package)
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder / "include"), str(folder)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder / "src")},
            capture_output=True,
            text=True,
            check=True,
        )
        keys.append(done.stdout)
        outputs.append((folder / "out").read_bytes())
    assert keys[0] == keys[1]
    assert outputs[0] == outputs[1]
    for output in outputs:
        assert b'"/part/f.cuh"' in output
        for path in (tmp_path, package, Path(sys.prefix)):
            assert str(path).encode() not in output


KeyChange = Callable[[Module, Path], tuple[Module, str, tuple[str, ...]]]
KEY_CHANGES: dict[str, KeyChange] = {
    "source": lambda module, folder: (replace(module, source=module.source + " "), "sm_89", ()),
    "name": lambda module, folder: (replace(module, name="other.cu"), "sm_89", ()),
    "entry": lambda module, folder: (replace(module, entry="k<2>"), "sm_89", ()),
    "value of a macro": lambda module, folder: (replace(module, defines={"A": "2"}), "sm_89", ()),
    "name of a macro": lambda module, folder: (replace(module, defines={"B": "1"}), "sm_89", ()),
    "one more macro": lambda module, folder: (replace(module, defines={"A": "1", "B": "1"}), "sm_89", ()),
    "architecture": lambda module, folder: (module, "sm_80", ()),
    "suffix of the architecture": lambda module, folder: (module, "sm_90a", ()),
    "option": lambda module, folder: (module, "sm_89", ("--use_fast_math",)),
}


def _key(module: Module, arch: str = "sm_89", options: tuple[str, ...] = (), compiler: str = "NVRTC 1") -> str:
    return builder.build_key(module, resolve_headers(module), builder._command(module, arch, options), compiler)


@pytest.fixture
def keyed(tmp_path: Path) -> Module:
    """A module with a header of its own."""
    (tmp_path / "h.cuh").write_text("// one\n")
    return Module("k.cu", '#include "h.cuh"\ntemplate <int N> __global__ void k() {}', "k<1>", {"A": "1"}, (tmp_path,))


@pytest.mark.parametrize("change", KEY_CHANGES)
def test_each_part_changes_the_key(keyed: Module, tmp_path: Path, change: str) -> None:
    assert _key(*KEY_CHANGES[change](keyed, tmp_path)) != _key(keyed)
    assert _key(keyed) == _key(keyed)


def test_header_compiler_and_format_change_the_key(
    keyed: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [_key(keyed), _key(keyed, compiler="NVRTC 2")]
    (tmp_path / "h.cuh").write_text("// two\n")
    keys.append(_key(keyed))
    (tmp_path / "h.cuh").write_text('// two\n#include "i.cuh"\n')
    (tmp_path / "i.cuh").write_text("// deep\n")
    keys.append(_key(keyed))
    (tmp_path / "i.cuh").write_text("// deeper\n")
    keys.append(_key(keyed))
    monkeypatch.setattr(builder, "CACHE_FORMAT", builder.CACHE_FORMAT + 1)
    keys.append(_key(keyed))
    assert len(set(keys)) == len(keys)


def test_order_of_macros_does_not_change_the_key(keyed: Module) -> None:
    one, other = (replace(keyed, defines=defines) for defines in ({"A": "1", "B": "2"}, {"B": "2", "A": "1"}))
    assert _key(one) == _key(other)


def test_an_edited_header_is_compiled_again(tmp_path: Path, cache: Cache) -> None:
    module = Module("k.cu", '#include "h.cuh"\n__global__ void k(int* x) { *x = VALUE; }', "k", {}, (tmp_path,))
    (tmp_path / "h.cuh").write_text("#define VALUE 1111\n")
    first = build(module, cache=cache)
    (tmp_path / "h.cuh").write_text("#define VALUE 2222\n")
    second = build(module, cache=cache)
    assert not second.cache_hit
    assert (b"1111" in first.ptx, b"2222" in second.ptx, b"1111" in second.ptx) == (True, True, False)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\n__global__ void k() { int x = y; }", r'^bad\.cu, line 2: identifier "y" is undefined$'),
        ("\n\n#error stop here\n__global__ void k() {}", r"^bad\.cu, line 3: #error directive: stop here$"),
        ('\n#include "lost.cuh"\n', r"^bad\.cu, line 2: there is no lost\.cuh in the kernel's include_dirs"),
        ('\n__global__ void k() { asm("foo.bar;"); }', r"^bad\.cu, line 2: ptxas: Unknown modifier '\.bar'$"),
        ("__global__ void k() { for (;;)", r"^bad\.cu: expected an expression$"),
        ("__global__ void other() {}", r"^bad\.cu has no __global__ function 'k': identifier \"k\" is undefined$"),
        ("__device__ void k() {}", r"^bad\.cu has no __global__ function 'k': "),
        (
            "__global__ void k(int* p) { __shared__ int a[20000]; a[*p] = 1; __syncthreads(); *p = a[p[1]]; }",
            r"^bad\.cu: ptxas: Entry function '_Z1kPi' uses too much shared data",
        ),
    ],
)
def test_first_error_in_one_sentence(cache: Cache, source: str, message: str) -> None:
    with pytest.raises(BuildError, match=message) as caught:
        build(Module("bad.cu", source, "k"), cache=cache)
    assert caught.value.log
    assert pickle.loads(pickle.dumps(caught.value)).log == caught.value.log, "it must be able to cross processes"
    assert "\n" not in str(caught.value)
    assert not list(cache.root.glob("bad-*"))


def test_error_in_a_header_names_the_header(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "h.cuh").write_text("\n\n__device__ int f() { return lost; }\n")
    with pytest.raises(BuildError, match=r'^h\.cuh, line 3: identifier "lost" is undefined$'):
        build(Module("k.cu", '#include "h.cuh"\n__global__ void k() {}', "k", {}, (tmp_path,)), cache=cache)


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_200", "sm_89a", "sm_90f", "89", "compute_89", ""])
def test_unknown_architecture_lists_the_known(scale: Module, cache: Cache, arch: str) -> None:
    with pytest.raises(UserError, match=rf"unknown architecture '{arch}': use one of sm_80, .*sm_89, .*sm_120"):
        build(scale, arch, cache=cache)


@pytest.mark.parametrize("arch", [*supported_archs(), "sm_90a", "sm_100a", "sm_120a"])
def test_every_architecture_builds(scale: Module, cache: Cache, arch: str) -> None:
    compiled = build(scale, arch, cache=cache)
    assert re.search(rf"^\.target {arch}$", compiled.ptx.decode(), re.MULTILINE)
    assert compiled.cubin.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    "option",
    [
        *("-I/x", "-I", "--include-path=/x", "-include=x.h", "--pre-include=x.h", "-arch=sm_80", "--no-such-option"),
        *("--time=t.csv", "-time=t.csv", "--time", "--fdevice-time-trace=t", "-fdevice-time-trace=t", "x", ""),
        *(
            "--create-pch=x",
            "--use-pch=x",
            "--pch",
            "--pch-dir=x",
            "@x",
            "--options-file=x",
            "-optf=x",
            "--dlink-time-opt",
        ),
        *("-Xptxas=-o=x", "--ptxas-options=--output-file=x", "-Xptxas=-optf=x", "-Xptxas=-v -o x", "-Xptxas=-O2,-o=x"),
        *("--fmad=x", "--maxrregcount=x", "--maxrregcount", "--std=c++17 --time=x", "--use_fast_math=--time=x", "-O3"),
    ],
)
def test_an_option_that_no_kernel_may_set_is_refused_and_writes_nothing(
    scale: Module, cache: Cache, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BuildError, match=rf"option {re.escape(repr(option))} is not allowed: .*, --.*, --"):
        build(scale, cache=cache, options=(option,))
    assert set(tmp_path.iterdir()) <= {cache.root}


def test_an_option_of_two_items_hides_no_other(scale: Module, cache: Cache) -> None:
    for pair in (("--maxrregcount", "--time=t"), ("--ptxas-options", "-o=x"), ("--no-such", "--time=t"), ("64",)):
        with pytest.raises(BuildError, match="is not allowed"):
            build(scale, cache=cache, options=pair)


@pytest.mark.parametrize(
    "options",
    [
        *(("-DN=1",), ("-D", "N=1"), ("--define-macro=N=1",), ("-DF(x)=x + 1",), ('-DQUOTED="a b"',), ("-UN",)),
        *(("--std=c++20",), ("-std=c++14",), ("--use_fast_math",), ("-use_fast_math",), ("--fmad=false",)),
        *(("--ftz=true", "--prec-div=false", "--prec-sqrt=false"), ("-maxrregcount=64",), ("--maxrregcount", "64")),
        *(("--extra-device-vectorization",), ("--restrict",), ("-default-device",), ("-lineinfo",), ("-G",), ("-w",)),
        *(("--dopt=on",), ("--diag-suppress=177,20012",), ("-Xptxas=-O1",), ("-Xptxas", "-O1"), ("-Xptxas=-dlcm=cg",)),
        *(
            ("--ptxas-options=--warn-on-spills",),
            ("-Xptxas", "--opt-level=2"),
            ("-rdc=false",),
            ("--Ofast-compile=min",),
        ),
    ],
)
def test_the_options_of_an_honest_kernel_build(scale: Module, cache: Cache, options: tuple[str, ...]) -> None:
    compiled = build(scale, cache=cache, options=options)
    assert compiled.cubin.startswith(b"\x7fELF")


def test_every_option_of_the_list_is_one_of_the_compiler() -> None:
    values = {"": "", _BOOL: "=true", _NUMBER: "=1", _NUMBERS: "=177", r"c\+\+\d\d": "=c++17", "on|off": "=on"}
    values |= {"0|min|mid|max": "=min", "inline": "=inline", _CACHING: "=ca", "[0-4]": "=1"}
    values |= {r"\d{1,9}|archmax|archmin": "=32"}
    newer = {"--device-float128 -device-float128"}  # needs sm_100
    macros = {"--define-macro": "=A", "-D": "A", "--undefine-macro": "=A", "-U": "A"}
    to_ptxas = {"--ptxas-options": "=-v", "-Xptxas": "=-v"}
    options = [
        name + (macros | to_ptxas).get(name, values[form])
        for names, form in _NVRTC.items()
        for name in names.split()
        if names not in newer
    ]
    options += [f"-Xptxas={name}{values[form]}" for names, form in _PTXAS.items() for name in names.split()]
    source = "__global__ void k(int* p) { *p = *p * 3; }"
    for option in options:
        assert allowed_options((option,)) == (option,)
        answer = ""
        try:
            compile_program(source, "k.cu", "k", (), ("--gpu-architecture=sm_89", option))
        except BuildError as error:
            answer = f"{error} {error.log}"
        assert not re.search("unrecognized option|Unknown option", answer), option


def test_a_macro_of_the_command_line_names_a_header(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "config.cuh").write_text("constexpr int THREE = 3;\n")
    source = "#include CONFIG\n__global__ void k(int* p) { *p = *p * THREE; }\n"
    module = Module("k.cu", source, "k", {"CONFIG": '"config.cuh"'}, (tmp_path,))
    compiled = build(module, cache=cache)
    assert "config.cuh" in compiled.sources
    assert build(replace(module, defines={}, options=("-D", 'CONFIG="config.cuh"')), cache=cache).sources == (
        compiled.sources
    )
    source = '#if 0\n#define CONFIG "config.cuh"\n#endif\n' + source
    for hidden in ('"/etc/hostname"', "</etc/hostname>"):
        with pytest.raises(UserError, match="includes the absolute path /etc/hostname"):
            build(replace(module, source=source, defines={"CONFIG": hidden}), cache=cache)
    with pytest.raises(BuildError, match="macro CONFIG has a text of several lines"):
        build(replace(module, defines={"CONFIG": '1\n#include "/etc/hostname"'}), cache=cache)


def test_bad_macro_name_is_refused(scale: Module, cache: Cache) -> None:
    with pytest.raises(UserError, match="'2X' is not a valid name of a macro"):
        build(replace(scale, defines={"2X": "1"}), cache=cache)


def test_code_from_a_file_outside_the_key_is_refused(scale: Module, tmp_path: Path, cache: Cache) -> None:
    source = f'#line 1 "{tmp_path}/elsewhere.cuh"\n__global__ void k(int* p) {{ *p = *p * 3; }}\n'
    with pytest.raises(BuildError, match=r"code comes from .*/elsewhere\.cuh"):
        build(Module("k.cu", source, "k"), cache=cache)


def test_without_a_compiler_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_bindings", nvrtc._bindings.__wrapped__)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MachineError, match="pip install cuda-bindings"):
        nvrtc.supported_archs.__wrapped__()


def test_without_libnvrtc_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc as bindings

    def missing() -> None:
        raise RuntimeError('Failure finding "libnvrtc.so"\nand more')

    monkeypatch.setattr(bindings, "nvrtcVersion", missing)
    with pytest.raises(MachineError, match="pip install nvidia-cuda-nvrtc"):
        nvrtc._bindings.__wrapped__()


def test_trouble_of_the_compiler_itself_is_the_machines(
    scale: Module, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda.bindings import nvrtc as bindings

    failure = bindings.nvrtcResult.NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
    compiler_version()  # it compiles too, once a process
    monkeypatch.setattr(bindings, "nvrtcCompileProgram", lambda *arguments: (failure,))
    with pytest.raises(MachineError, match=r"could not compile scale\.cu: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"):
        build(scale, cache=cache)


def test_version_is_the_compilers_own(scale: Module, cache: Cache) -> None:
    compiled = build(scale, cache=cache)
    assert compiled.compiler == compiler_version()
    release = compiler_version().split()[1]
    assert f"release {release.rpartition('.')[0]}, V{release}".encode() in compiled.ptx
