"""The parts of ``gpu_suite.sh`` as data: commands, time limits and order."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_records import Workspace, has_times

from sdpalab.evidence.proven import exactness_reason
from sdpalab.kernels.registry import KERNELS

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"

PYTHON = os.environ.get("PYTHON") or sys.executable

AGAIN = 4
"""Exit code of a part whose process had to end (a kernel hung or faulted), and which has more to do in a new one."""

CASE_SECONDS = 10
"""For one case of the judge or of the comparison with the simulator, on a GPU."""

REPLAY_SHARDS = 6
"""Processes among which the files of ``tests/sim`` are divided."""

GPU_TESTS = (
    "gpu/test_gpu_executor.py",
    "gpu/test_gpu_plans.py",
    "gpu/test_gpu_op.py",
    "gpu/test_gpu_judge.py",
    "gpu/test_gpu_gemm.py",
    "judge/test_witness.py",
)
"""Files with tests that need a GPU, beside those of the clocks and those whose cases :mod:`parity` takes."""


@dataclass(frozen=True)
class Part:
    """One command with a limit of its own.

    Attributes
    ----------
    name : str
        Letters, digits, ``_``; the log is ``logs/NAME.log``.
    seconds : float
        At most.
    command : tuple of str
    ended : callable
        Whether exit code 1 means that the part finished with a wrong result. Called without arguments.
    skip : str
        Why the part cannot run here; empty if it can.
    """

    name: str
    seconds: float
    command: tuple[str, ...] = ()
    ended: Callable[[], bool] = lambda: True
    skip: str = ""


def _python(*arguments: str | Path) -> tuple[str, ...]:
    return (PYTHON, *map(str, arguments))


def _lab(*arguments: str | Path) -> tuple[str, ...]:
    return _python("-m", "sdpalab", *arguments)


def _tests(name: str, seconds: float, *arguments: str | Path) -> Part:
    """A part that is a run of pytest."""
    missing = "" if importlib.util.find_spec("pytest") else "pytest is not installed: pip install pytest"
    command = _python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", *arguments)
    return Part(name, seconds, command, skip=missing)


def first_parts(work: Workspace) -> list[Part]:
    """Facts about this machine: pre-flight, versions, confinement of a candidate's process."""
    return [
        Part("doctor", 40, _lab("doctor", "--json", work.path / "doctor.json")),
        Part("environment", 40, _python(ROOT / "scripts" / "gpu_records.py", "environment", work.evidence)),
    ]


def smoke_parts(kernels: Sequence[str]) -> list[Part]:
    """Each kernel once: the simplest first, as a test of the path, then in order of speed."""
    order = [*kernels[:1], *reversed(kernels[1:])]
    return [Part(f"smoke_{name}", 25, _python(ROOT / "scripts" / "gpu_smoke.py", name)) for name in order]


def sanitizer_parts(kernels: Sequence[str]) -> list[Part]:
    """NVIDIA's memory checker on each of these kernels, which were wrong, faulted or hung."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    skip = "" if tool else "compute-sanitizer is not installed"
    options = (tool or "", "--tool", "memcheck", "--print-limit", "20", "--error-exitcode", "1")
    command = _python(ROOT / "scripts" / "gpu_smoke.py")
    return [Part(f"sanitizer_{name}", 45, (*options, *command, name), skip=skip) for name in kernels]


LARGE_SHAPES = ("prefill-4k", "2,16,4096,128")
"""What is timed beside the mission shape, by default; a verdict covers its code too."""


def verdict_parts(work: Workspace, kernels: Sequence[str], large: Sequence[str], patience: float) -> list[Part]:
    """A verdict for each kernel, with a bundle; one that hung before is not run again."""
    parts = []
    options = [word for shape in large for word in ("--also-for", shape)]
    options += ["--case-seconds", str(CASE_SECONDS * patience)]
    for name in kernels:
        smoke = work.state(f"smoke_{name}")
        skip = "it did not end in smoke" if smoke.get("state") == "timed out" else ""
        command = _lab("repro", "--kernel", name, "--device", "gpu", "--out", work.path / "verdicts" / name)
        parts.append(Part(f"verdict_{name}", 120, (*command, *options), skip=skip))
    return parts


def time_parts(work: Workspace, green: Sequence[str], large: Sequence[str]) -> list[Part]:
    """Times of the kernels with a PASSED verdict, beside torch's; without any, of the peers alone."""
    shapes = [word for shape in large for word in ("--shape", shape)]
    bench = [
        ("mission", 100, ("--shape", "mission", "--seconds", "3")),
        ("large", 90, (*shapes, "--clock", "gpu", "--seconds", "2")),
        ("mission_cold", 50, ("--shape", "mission", "--clock", "gpu", "--cold", "--seconds", "3")),
    ]
    parts = []
    for name, seconds, options in bench:
        file = work.evidence / f"{name}.json"
        command = _lab("bench", *green, *options, "--verdicts", work.evidence.parent, "--json", file)
        parts.append(Part(name, seconds, command, ended=partial(has_times, file)))
    return parts


def prove_parts(work: Workspace, green: Sequence[str]) -> list[Part]:
    """The records with which the op runs a kernel on this GPU: its verdict and its time beside torch's, of the two
    fastest that are as exact as torch."""
    exact = [name for name in green if exactness_reason(name, str(KERNELS[name].default_config)) is None][-2:]
    skip = "" if exact else "no kernel that is as exact as torch has a PASSED verdict"
    command = _lab(
        "prove", *exact, "--shape", "mission", "--time", "--seconds", "3", "--json", work.path / "prove.json"
    )
    return [Part("prove", 70, command, skip=skip)]


def profile_parts(work: Workspace, green: Sequence[str]) -> list[Part]:
    """Nsight Compute on the two kernels of CUDA C++ that come last in the ladder."""
    skip = "" if shutil.which("ncu") else "ncu (Nsight Compute) is not on the path"
    chosen = [name for name in green if not name.startswith("triton")][-2:]
    options = ("--verdicts", work.evidence.parent, "--out", work.path / "profile")
    return [
        Part(
            f"profile_{name}",
            70,
            _lab("profile", name, *options, "--json", work.evidence / f"profile_{name}.json"),
            skip=skip,
        )
        for name in chosen
    ]


def tune_parts(work: Workspace, green: Sequence[str]) -> list[Part]:
    """A search on the mission shape for the two kernels that come last in the ladder, three minutes together."""
    parts = []
    for name in green[-2:]:
        log = work.evidence / f"tune_{name}.jsonl"
        options = ("--shape", "mission", "--gpu", "here", "--budget", "80s", "--resume", "--no-keep", "--log", log)
        parts.append(Part(f"tune_{name}", 90, _lab("tune", name, *options)))
    return parts


def timing_tests() -> Part:
    """The tests of the clocks: alone on the GPU, before the parts that run in parallel."""
    return _tests("timing_tests", 60, TESTS / "measure" / "test_gpu_timing.py")


def comparison_parts(work: Workspace, kernels: Sequence[str], patience: float, replay: str) -> list[Part]:
    """The parts that may run in parallel: the tests of the GPU path, each kernel against the simulator, and the replays
    of the simulator's test files with the word ``replay`` in their names."""
    # A process for each file: after a fault in one, the others still have a GPU.
    parts = [
        _tests(f"tests_{Path(name).stem.removeprefix('test_')}", 120, TESTS / name, "-m", "gpu") for name in GPU_TESTS
    ]
    for name in reversed(kernels):
        records = work.evidence / f"parity_{Path(name).stem}.jsonl"
        command = _python(TESTS / "gpu" / "parity.py", name, records, "--case-seconds", str(CASE_SECONDS * patience))
        parts.append(Part(f"parity_{Path(name).stem}", 300, command))
    return parts + replay_parts(work, replay)


def replay_parts(work: Workspace, word: str) -> list[Part]:
    """The simulator's tests, every ``REPLAY_SHARDS``-th file in one part, their launches repeated on the GPU."""
    files = sorted(file for file in (TESTS / "sim").glob("test_*.py") if word in file.stem)
    shards = [files[shard::REPLAY_SHARDS] for shard in range(REPLAY_SHARDS)]
    return [
        _tests(f"replay_{shard}", 420, *part, "--replay-on-gpu", work.replay(shard))
        for shard, part in enumerate(shards)
        if part
    ]


def prepare_parts(arch: str) -> list[Part]:
    """The commands that fill a cache on a machine without a GPU: the kernels, and the launches of the simulator's
    tests."""
    hour = 3600.0
    build = Part("build", hour, _lab("build", "--all", "--arch", arch))
    return [build, _tests("build_tests", hour, TESTS / "sim")]


def workers() -> int:
    """Parallel processes where nothing is timed."""
    return max(1, min(8, os.cpu_count() or 1))


def describe(part: Part) -> dict[str, Any]:
    """What a record says of the command, with the tree's paths made relative."""
    words = [word.replace(f"{ROOT}/", "").replace(PYTHON, "python") for word in part.command]
    return {"name": part.name, "limit_seconds": part.seconds, "command": " ".join(words)}
