"""The native engine: translator, library, and equal bits on any processor."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ptx_snippets
import translated_functions
import warpsan
from outcomes import digest
from recorded import Recorded
from translated_functions import FUNCTIONS
from warpsan.engine import engine, layout, sources
from warpsan.engine import library as library_module
from warpsan.engine.assembler import HANDLERS
from warpsan.engine.compiler import compile_functions, target_name
from warpsan.engine.library import Library
from warpsan.engine.translate import symbol
from warpsan.host.cpus import usable_cpus

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
THREADS = 64
EXCHANGE = (
    HEAD
    + """.entry k(.param .u64 out) {{ .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<2>; .shared .b32 s[{words}];
    mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.u32 %r4, %r3, %r2; st.shared.u32 [%r4], %r1;
    {between}
    xor.b32 %r5, %r2, 252; add.u32 %r6, %r3, %r5; ld.shared.u32 %r7, [%r6];
    ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r7; ret; }}"""
)


def exchange(
    between: str = "bar.sync 0;", words: int = THREADS, size: int = THREADS
) -> tuple[np.ndarray, warpsan.Report]:
    """Each thread passes its number to the opposite thread of the block."""
    out = np.zeros(size, np.uint32)
    return out, warpsan.launch(EXCHANGE.format(between=between, words=words), "k", 1, THREADS, [out])


@pytest.mark.usefixtures("recorded_launches")
def test_a_kernel_without_hazards() -> None:
    out, report = exchange()
    assert report.hazards == []
    assert (out == THREADS - 1 - np.arange(THREADS)).all()


@pytest.mark.parametrize(
    "change",
    [
        {"between": ""},
        {"between": "st.shared.u32 [s+252], 7; bar.sync 0;"},
        {"words": THREADS // 2},
        {"size": THREADS // 2},
        {"between": "@%p1 bar.sync 0; bar.sync 0, 48;"},
        {"between": "bar.sync 0, 48;"},
    ],
)
def test_the_messages_of_hazards(change: dict[str, object], recorded: Recorded) -> None:
    out, report = exchange(**change)  # type: ignore[arg-type]
    assert report.hazards
    recorded.check([*(each.message for each in report.hazards), digest(out)])


@pytest.mark.usefixtures("recorded_launches")
def test_a_copy_that_is_read_before_its_wait() -> None:
    body = """.entry k(.param .u64 a) { .reg .b32 %r<9>; .reg .b64 %rd<4>; .shared .align 16 .b8 s[512];
    mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.u32 %r3, s; add.u32 %r4, %r3, %r2; ld.param.u64 %rd1, [a];
    mul.wide.u32 %rd2, %r1, 16; add.u64 %rd3, %rd1, %rd2; cp.async.cg.shared.global [%r4], [%rd3], 16;
    cp.async.commit_group; WAIT ld.shared.u32 %r5, [%r4]; add.u32 %r5, %r5, 1; st.global.u32 [%rd3], %r5; ret; }"""
    for wait, kinds in (("cp.async.wait_group 0;", []), ("cp.async.wait_group 1;", ["async"])):
        array = np.arange(128, dtype=np.uint32)
        report = warpsan.launch(HEAD + body.replace("WAIT", wait), "k", 1, 32, [array])
        assert [hazard.kind for hazard in report.hazards] == kinds


@pytest.mark.usefixtures("recorded_launches")
def test_blocks_that_share_a_place_race_unless_atomics_order_them() -> None:
    body = """.entry k(.param .u64 a) { .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<3>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; ld.param.u64 %rd1, [a]; setp.ne.u32 %p1, %r2, 0; @%p1 bra END;
    mul.wide.u32 %rd2, %r1, 64; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3+64], %r1;
    COUNT setp.ne.u32 %p2, %r3, 3; @%p2 bra END;
    ld.global.u32 %r4, [%rd1+64]; ld.global.u32 %r5, [%rd1+128]; add.u32 %r6, %r4, %r5; st.global.u32 [%rd1+4], %r6;
    END: ret; }"""
    for count, kinds in (
        ("membar.gl; atom.acq_rel.gpu.global.inc.u32 %r3, [%rd1], 3;", set()),
        ("mov.u32 %r3, %r1;", {"race"}),
    ):
        array = np.zeros(128, np.uint32)
        report = warpsan.launch(HEAD + body.replace("COUNT", count), "k", 4, 32, [array])
        assert {hazard.kind for hazard in report.hazards} == kinds


# ---- the translator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_translated_functions_compute_what_python_does(function: Callable[..., int], tmp_path: Path) -> None:
    library = Library(*target_name(), root=tmp_path)
    library.load({"": compile_functions((function,), *target_name())}, (symbol(function),))
    many = function.__code__.co_argcount
    native = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * many)(library.address(symbol(function)))
    draw = random.Random(function.__name__)
    for _ in range(200):
        values = [draw.choice([0, 1, -1, 7, -7, 64, draw.randrange(-1000, 1000)]) for _ in range(many)]
        assert native(*values) == function(*values), values


def test_what_is_not_translated_says_where() -> None:
    with pytest.raises(SyntaxError, match=r"translated_functions, line \d+: .* is not translated"):
        compile_functions((translated_functions.refused,), *target_name())


# ---- the library -----------------------------------------------------------------------------------------------------


BASELINES = [("x86-64", ""), ("haswell", "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt")]

BODIES = (
    ("fma.rn.f32 %d, %a, %b, %c;", 3),
    ("fma.rm.f32 %d, %a, %b, %c;", 3),
    ("sqrt.rn.f32 %d, %a;", 1),
    ("cvt.rn.f16x2.f32 %d, %a, %b;", 2),
    ("fma.rn.f16x2 %d, %a, %b, %c;", 3),
    ("cvt.rzi.s32.f32 %d, %a;", 1),
)
"""Instructions with a rounding, and their number of operands."""


@pytest.mark.slow
@pytest.mark.parametrize(("cpu", "features"), BASELINES, ids=["sse2", "avx2"])
def test_the_bits_do_not_depend_on_the_processor(
    cpu: str, features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """Each run is compared with the same record, for any target processor."""
    if "avx2" in features and "+avx2" not in target_name()[1]:
        pytest.skip("this processor has no AVX2")
    other = Library(cpu, features, root=tmp_path)
    monkeypatch.setattr(engine, "library", lambda: other)
    draw = np.random.default_rng(3)
    a, b, c = (draw.integers(0, 1 << 32, 200, dtype=np.uint32) for _ in range(3))
    a[:9] = 0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00001, 0x00000001, 0x3F800000, 0x477FF000, 0x33000000
    floats = {"a": ("b32", a), "b": ("b32", b), "c": ("b32", c)}
    for body, many in BODIES:
        (result,) = ptx_snippets.run(body, {"d": "b32"}, **{name: floats[name] for name in "abc"[:many]})
        recorded.check(digest(result))


def kept(library: Library, name: str) -> tuple[bytes, int]:
    """Content of the library under a name, and number of builds."""
    built: list[int] = []

    def build() -> bytes:
        built.append(1)
        return b"machine code of " + name.encode()

    content = library.object_of(name, build, 0.0)
    assert content is not None
    return content, len(built)


def test_an_object_is_built_once_for_all_processes(tmp_path: Path) -> None:
    content = b"machine code of a"
    assert kept(Library(*target_name(), root=tmp_path), "a") == (content, 1)
    assert kept(Library(*target_name(), root=tmp_path), "a") == (content, 0)


BUILDER = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2]))
print("building", flush=True)
sys.stdin.read()
"""
"""A process that builds an object, and ends when its standard input closes."""


@contextlib.contextmanager
def built_elsewhere(path: Path) -> Iterator[Callable[[], None]]:
    """Context in which another process builds the object at this path, until the returned function is called."""
    path.parent.mkdir(exist_ok=True)
    lock = [sys.executable, "-c", BUILDER, str(path.with_name("locks")), str(int(path.name[:12], 16))]
    with subprocess.Popen(lock, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as builder:
        assert builder.stdin is not None
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"building\n"
        yield builder.stdin.close
        builder.stdin.close()


def test_what_another_process_builds_is_waited_for(tmp_path: Path) -> None:
    library, other = (Library(*target_name(), root=tmp_path / name) for name in ("here", "there"))
    here, there = library.path_of("a"), other.path_of("a")
    kept(other, "a")

    def build() -> bytes:
        raise AssertionError

    with built_elsewhere(here) as end:

        def finish() -> None:
            shutil.copy(there, here)
            end()

        assert library.object_of("a", build, 0.0) is None
        assert kept(library, "b") == (b"machine code of b", 1), "meanwhile it builds another one"
        timer = threading.Timer(0.2, finish)
        timer.start()
        assert library.object_of("a", build, 60.0) == b"machine code of a"
        timer.join()


def test_a_process_that_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    library = Library(*target_name(), root=tmp_path)
    with built_elsewhere(library.path_of("a")):
        assert library.object_of("a", lambda: b"built here", 0.1) == b"built here"
    assert kept(library, "a") == (b"built here", 0)


def test_a_runtime_that_is_being_compiled_is_not_compiled_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(*target_name(), root=tmp_path)
    with built_elsewhere(library.path_of("runtime")), monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", None)  # a start of a process would fail
        library.prepare()


@pytest.mark.parametrize("damage", [lambda old: old[:40], lambda old: old[:-1] + b"?", lambda old: b""])
def test_a_damaged_object_is_built_again(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    library = Library(*target_name(), root=tmp_path)
    kept(library, "a")
    (path,) = tmp_path.glob("*.o")
    path.write_bytes(damage(path.read_bytes()))
    assert kept(library, "a") == (b"machine code of a", 1)
    assert kept(library, "a") == (b"machine code of a", 0)


def test_without_a_place_for_objects_they_are_built_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    library = Library(*target_name(), root=tmp_path / "file" / "below")
    assert kept(library, "a") == kept(library, "a") == (b"machine code of a", 1)


def test_the_key_names_the_processor_and_the_operation(tmp_path: Path) -> None:
    for cpu, features in BASELINES:
        for name in ("a", "b"):
            assert kept(Library(cpu, features, root=tmp_path), name)[1] == 1
    assert len(list(tmp_path.glob("*.o"))) == 4


def test_a_new_kernel_is_compiled_by_the_operations_that_no_kernel_had_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions translated from Python are compiled once, and each operation once, in any set."""
    exchange()
    shutil.copy(engine.library().path_of("runtime"), tmp_path)
    library = Library(*target_name(), root=tmp_path)
    monkeypatch.setattr(engine, "library", lambda: library)
    exchange()
    before = set(tmp_path.glob("*.o"))
    out, _ = exchange("bar.sync 0; popc.b32 %r8, %r1; sub.u32 %r8, %r8, %r8; add.u32 %r2, %r2, %r8;")
    assert (out == THREADS - 1 - np.arange(THREADS)).all()
    assert len(set(tmp_path.glob("*.o")) - before) == 2  # popc and sub; add existed


@pytest.mark.slow
@pytest.mark.skipif(usable_cpus() < 2, reason="one core compiles one after the other")
def test_another_process_compiles_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "compile_functions", None)  # a compilation would fail here
    library = Library(*target_name(), root=tmp_path)
    library.prepare()
    assert library.loop()


def test_a_runtime_that_another_process_did_not_compile_is_compiled_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "_BESIDE", "raise SystemExit(3)")
    monkeypatch.setattr(library_module, "compile_functions", lambda *_: b"compiled here")
    for _ in range(2):  # the second finds it in the cache
        library = Library(*target_name(), root=tmp_path)
        library.prepare()
        assert library.runtime() == b"compiled here"


def test_code_reaches_its_constants_in_a_process_with_large_arrays(tmp_path: Path) -> None:
    script = Path(__file__).with_name("crowded_process.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("4.25\n", 0), done.stderr


def test_what_is_made_from_sources_of_before_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(Library(*target_name(), root=tmp_path), "a")
    monkeypatch.setattr(library_module, "changed_since_import", lambda: True)
    library = Library(*target_name(), root=tmp_path)
    assert kept(library, "a") == kept(library, "a") == (b"machine code of a", 1)
    assert kept(library, "b")[1] == 1
    assert len(list(tmp_path.glob("*.o"))) == 1


def test_every_source_of_the_simulator_is_in_the_key(tmp_path: Path) -> None:
    root = tmp_path / "sim"
    shutil.copytree(Path(sources.__file__).parents[1], root, ignore=shutil.ignore_patterns("__pycache__"))
    before, imported = sources.sources_digest(root), time.time()
    assert before == sources.sources_digest()
    assert not sources.changed_since_import(root, imported + 1)
    for name in ("profile/tally.py", "checks/orders.py", "engine/layout.py"):
        path = root / name
        path.write_text(path.read_text() + "\n")
        os.utime(path, (imported + 2, imported + 2))
        assert sources.sources_digest(root) != before
        assert sources.changed_since_import(root, imported + 1)
        before = sources.sources_digest(root)


def test_a_function_that_was_edited_after_its_import_is_not_translated(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    path.write_text("def function(x):\n    return x + 1\n")
    spec = importlib.util.spec_from_file_location("edited", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert compile_functions((module.function,), *target_name())
    path.write_text("def function(x):\n    return (x - 1) * 3\n")
    with pytest.raises(warpsan.LaunchError, match="edited was edited since this process imported it"):
        compile_functions((module.function,), *target_name())


# ---- launches --------------------------------------------------------------------------------------------------------


def test_an_instruction_that_is_not_native_matters_where_a_lane_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(HANDLERS, "vabsdiff4")
    rare = f"setp.eq.u32 %p1, %r1, {THREADS}; @%p1 vabsdiff4.u32.u32.u32.add %r8, %r1, %r1, %r1; bar.sync 0;"
    out, report = exchange(rare)
    assert report.hazards == []
    assert (out == THREADS - 1 - np.arange(THREADS)).all()


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
def test_every_schedule(schedule: str) -> None:
    for seed in range(3):
        out = np.zeros(THREADS, np.uint32)
        ptx = EXCHANGE.format(between="bar.sync 0;", words=THREADS)
        warpsan.launch(ptx, "k", 1, THREADS, [out], schedule=schedule, seed=seed)
        assert (out == THREADS - 1 - np.arange(THREADS)).all()


UPDATES = (
    HEAD
    + """.entry k(.param .u64 out) {{ .reg .b32 %r<9>; .reg .b64 %rd<6>; .reg .pred %p<2>; .shared .b32 s[4];
    mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.u32 %r3, s; cvta.shared.u64 %rd4, %rd5;
    @%p1 st.shared.u32 [%r3], 5; {before} red.{space}.add.u32 [{place}], %r1; {after}
    ld.shared.u32 %r7, [%r3]; ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r7; ret; }}"""
)


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(("before", "after"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("generic", [False, True])
def test_atomic_operations_on_shared_memory_are_checked(before: bool, after: bool, generic: bool) -> None:
    barrier = "bar.sync 0;"
    ptx = UPDATES.format(
        before=barrier if before else "",
        after=barrier if after else "",
        space="shared" if not generic else "gpu",
        place="%r3" if not generic else "%rd4",
    ).replace("cvta.shared.u64 %rd4, %rd5;", "cvt.u64.u32 %rd5, %r3; cvta.shared.u64 %rd4, %rd5;")
    out = np.zeros(THREADS, np.uint32)
    report = warpsan.launch(ptx, "k", 1, THREADS, [out])
    assert (before and after) == (report.hazards == [])
    if before and after:
        assert (out == 5 + sum(range(THREADS))).all()


@pytest.mark.usefixtures("recorded_launches")
def test_launches_on_a_device_keep_its_memory() -> None:
    gpu = warpsan.Device()
    data = gpu.array(np.zeros(THREADS, np.uint32))
    module = gpu.module(EXCHANGE.format(between="bar.sync 0;", words=THREADS))
    broken = gpu.module(EXCHANGE.format(between="st.shared.u32 [s+252], 7; bar.sync 0;", words=THREADS))
    module["k"].launch(1, THREADS, [data])
    assert (data == THREADS - 1 - np.arange(THREADS)).all()
    data[:] = 9
    assert broken["k"].launch(1, THREADS, [data]).hazards


CALLS = (
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    + """.func (.param .b32 r) odd(.param .b32 x, .param .b64 y) {{ .reg .b32 %a<4>; .reg .b64 %b; .reg .pred %q;
    ld.param.u32 %a1, [x]; ld.param.u64 %b, [y]; cvt.u32.u64 %a2, %b; and.b32 %a3, %a1, 1; setp.eq.u32 %q, %a3, 0;
    @%q bra EVEN; st.param.b32 [r], %a2; ret; EVEN: st.param.b32 [r], %a1; ret; }}
    .entry k(.param .u64 out) {{ .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p;
    mov.u32 %r1, %tid.x; mov.u32 %r5, 0; setp.lt.u32 %p, %r1, 20;
    {{ .param .b32 r; .param .b32 x; .param .b64 y; st.param.b32 [x], %r1; st.param.b64 [y], 1000;
    @%p call (r), odd, (x, y); @%p ld.param.b32 %r5, [r]; }}
    {{ .param .b32 r; .param .b32 x; .param .b64 y; st.param.b32 [x], %r5; st.param.b64 [y], 7;
    call (r), odd, (x, y); ld.param.b32 %r6, [r]; }}
    and.b32 %r7, %r1, 3; ts: .branchtargets A, B, C; setp.eq.u32 %p, %r7, {beyond}; @%p bra A; brx.idx %r7, ts;
    B: add.u32 %r6, %r6, 100; bra A; C: add.u32 %r6, %r6, 200;
    A: ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r6; ret;
    }}"""
)


@pytest.mark.usefixtures("recorded_launches")
def test_calls_and_indexed_branches() -> None:
    out = np.zeros(32, np.uint32)
    assert warpsan.launch(CALLS.format(beyond=3), "k", 1, 32, [out], counters=True).hazards == []
    first = [0 if lane >= 20 else 1000 if lane % 2 else lane for lane in range(32)]
    assert out.tolist() == [value + (0, 100, 200, 0)[lane % 4] for lane, value in enumerate(first)]


@pytest.mark.usefixtures("recorded_launches")
def test_an_index_beyond_the_targets() -> None:
    with pytest.raises(warpsan.IllegalAccess, match="index 3 of 3 targets"):
        warpsan.launch(CALLS.format(beyond=9), "k", 1, 32, [np.zeros(32, np.uint32)])


def test_regions_of_the_scratch_are_disjoint() -> None:
    regions = sorted((begin, begin + size, name) for name, (begin, size) in layout.SCRATCH_REGIONS.items())
    overlaps = [f"{one} {other}" for (_, end, one), (begin, _, other) in itertools.pairwise(regions) if end > begin]
    assert overlaps == []
    assert regions[-1][1] <= layout.SCRATCH_BYTES
    named = {name for name in vars(layout) if name.startswith("SCRATCH_")} - {"SCRATCH_BYTES", "SCRATCH_REGIONS"}
    assert {getattr(layout, name) for name in named} <= {begin for begin, _, _ in regions}
