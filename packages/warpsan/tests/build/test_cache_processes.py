"""The build store with real processes: sixteen at once, and killed ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warpsan.build.builder import build
from warpsan.build.cache import Cache
from warpsan.build.source import Module

SOURCE = Path(__file__).resolve().parents[4] / "src"

# A slow maker that reports its start and counts its runs.
MAKER = """
import os, sys, time
from warpsan.build.cache import Cache
root, seconds = sys.argv[1], float(sys.argv[2])
def make():
    with open(os.path.join(root, "..", "made"), "ab", buffering=0) as file:
        file.write(b"x")
    print("making", flush=True)
    time.sleep(seconds)
    return {"data": b"d" * 100_000}
stored = Cache(root).get_or_make("x", "k", make)
assert stored.files == {"data": b"d" * 100_000} and not stored.problem
print("hit" if stored.hit else "miss", flush=True)
"""

# A writer that stops forever in the middle of an entry.
WRITER = """
import os, sys, time
import warpsan.build.cache as module
calls = 0
def fsync(descriptor):
    global calls
    calls += 1
    if calls == 2:
        print("writing", flush=True)
        time.sleep(600)
module.os.fsync = fsync
module.Cache(sys.argv[1]).get_or_make("x", "k", lambda: {"a": b"1" * 50_000, "b": b"2" * 50_000})
"""


def _start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _await(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_sixteen_processes_make_it_once(cache: Cache) -> None:
    processes = [_start(MAKER, cache.root, 1.0) for _ in range(16)]
    outputs = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 16
    assert sorted(output[-1] for output in outputs) == ["hit"] * 15 + ["miss"]
    assert (cache.root.parent / "made").read_bytes() == b"x"


@pytest.mark.slow
def test_sixteen_processes_build_a_kernel_once(scale: Module, cache: Cache) -> None:
    script = (
        "import sys\nfrom sdpalab.compile import Cache, build\nfrom sdpalab.kernels.plan import Module\n"
        f"module = Module('scale.cu', {scale.source!r}, 'scale', {dict(scale.defines)!r})\n"
        "made = build(module, cache=Cache(sys.argv[1]))\n"
        "print(made.cache_hit, made.ptx_sha256, made.cubin_sha256, made.cache_problem)\n"
    )
    processes = [_start(script, cache.root) for _ in range(16)]
    outputs = [process.communicate(timeout=240)[0].strip() for process in processes]
    mine = build(scale, cache=cache)
    digests = f"{mine.ptx_sha256} {mine.cubin_sha256}"
    assert mine.cache_hit
    assert sorted(outputs) == [f"False {digests}"] + [f"True {digests}"] * 15


def test_a_maker_killed_frees_the_lock(cache: Cache) -> None:
    first = _start(MAKER, cache.root, 600)
    _await(first, "making")
    second = _start(MAKER, cache.root, 0)
    time.sleep(0.5)
    assert second.poll() is None, "the second must wait for the first"
    _kill(first)
    assert second.communicate(timeout=60)[0].split() == ["making", "miss"]
    assert Cache(cache.root).load("x", "k") is not None


@pytest.mark.sample(1)
@pytest.mark.parametrize("times", [1, 3])
def test_a_writer_killed_leaves_a_usable_cache(cache: Cache, times: int) -> None:
    for _ in range(times):
        writer = _start(WRITER, cache.root)
        _await(writer, "writing")
        _kill(writer)
        assert cache.load("x", "k") is None
    assert list((cache.root / "tmp").iterdir()), "the kill came in the middle of writing"
    stored = cache.get_or_make("x", "k", lambda: {"a": b"1"})
    assert (stored.files, stored.hit, stored.problem) == ({"a": b"1"}, False, "")
    assert not list((cache.root / "tmp").iterdir())
    assert cache.load("x", "k") == {"a": b"1"}


@pytest.mark.slow
def test_a_build_killed_at_any_time_leaves_a_usable_cache(scale: Module, cache: Cache) -> None:
    script = (
        "import sys\nfrom sdpalab.compile import Cache, build\nfrom sdpalab.kernels.plan import Module\n"
        f"module = Module('scale.cu', {scale.source!r}, 'scale', {dict(scale.defines)!r})\n"
        "print('ready', flush=True)\n"
        "for n in range(1000): build(module, cache=Cache(sys.argv[1]), options=(f'-DN={n}',))\n"
    )
    for delay in (0.05, 0.13, 0.21):
        process = _start(script, cache.root)
        _await(process, "ready")
        time.sleep(delay)
        _kill(process)
    expected = build(scale, cache=Cache(cache.root.parent / "other"), options=("-DN=0",))
    for number in range(3):
        compiled = build(scale, cache=cache, options=(f"-DN={number}",))
        assert (compiled.ptx, compiled.cubin, compiled.cache_problem) == (expected.ptx, expected.cubin, "")
    assert not (cache.root / "quarantine").exists(), "an entry exists complete or not at all"
