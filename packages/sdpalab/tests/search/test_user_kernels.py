"""A user's kernel in a search: its Python runs in guarded processes, never in that of the search or of a worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sdpalab import Config, Problem, UserError
from sdpalab.judge.sandbox.sandboxed import SandboxedKernel
from sdpalab.kernels.source import source_digest
from sdpalab.search import gates
from sdpalab.search.space import ConfigSpace
from sdpalab.search.targets import KernelHolder, searched_kernel
from warpsan.gpus import GPUS

KERNEL = """
import os
import sys
from sdpalab import CudaKernel, Launch

sys.modules["loaded_by_a_search"] = sys

def plan(problem, config):
    if config.int("THREADS") == 7:
        os._exit(7)
    if config.int("THREADS") == 96:
        raise ZeroDivisionError("96")
    return Launch(grid=(1, 1, 1), block=(config.int("THREADS"), 1, 1), args=("q", "o"), dynamic_smem=config.int("SMEM"))

KERNEL = CudaKernel(
    name="small",
    source='#include <mine.h>\\nextern "C" __global__ void small(const void *q, void *o) { static_assert(MINE); }',
    entry="small",
    plan=plan,
    configs=[{"THREADS": 32, "SMEM": 0}],
    knobs={"THREADS": [32, 64, 2048], "SMEM": [0, 1024]},
    reject=lambda problem, config: "not both" if config.int("THREADS") == 64 and config.int("SMEM") else None,
)

def function(q, k, v, *, scale, causal):
    return q
"""
PROBLEM = Problem(1, 1, 16, 32)
L4 = GPUS["L4"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "mine.h").write_text("#define MINE 1\n")
    path = tmp_path / "small_kernel.py"
    path.write_text(KERNEL)
    return path


def inputs(file: Path, kernel: SandboxedKernel, **config: int) -> dict[str, object]:
    """Inputs of a job on the small kernel."""
    return {
        "kernel": str(file),
        "source": source_digest(kernel),
        "config": {"THREADS": 32, "SMEM": 0, **config},
        "problems": [PROBLEM.to_dict()],
        "gpus": [{"name": "L4", "arch": L4.arch, "sms": L4.sms}],
        "include_dirs": [str(file.parent / "headers")],
    }


@pytest.mark.slow
def test_space_and_build_gate_ask_its_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with searched_kernel(str(file), [file.parent / "headers"]) as kernel:
        assert isinstance(kernel, SandboxedKernel)
        space = ConfigSpace.of(kernel, [PROBLEM, PROBLEM.with_(causal=True)], [L4])
        assert list(space) == [Config(THREADS=32, SMEM=0), Config(THREADS=32, SMEM=1024), Config(THREADS=64, SMEM=0)]
        assert set(space.rejected) == {"reject", "static limits"}
        assert "2048 threads" in space.rejected["static limits"]
        monkeypatch.setattr(kernel, "only_arch", "sm_90a")
        with pytest.raises(UserError, match="arch rejects 6 of 6"):
            ConfigSpace.of(kernel, [PROBLEM], [L4])
        monkeypatch.setattr(kernel, "only_arch", "")
        built = gates.build_gate(inputs(file, kernel))
        assert set(built["identity"]) == {"L4"}
        broken = gates.build_gate(inputs(file, kernel, THREADS=96))
        assert broken["standing"] == "BUILD_FAILED"
        assert "ZeroDivisionError: 96" in broken["reason"]
        file.write_text(KERNEL.replace("void small(", "void  small("))
        with pytest.raises(UserError, match="was changed during the search"):
            gates.build_gate(inputs(file, kernel))
    assert "loaded_by_a_search" not in sys.modules


@pytest.mark.slow
def test_a_worker_keeps_the_process_until_a_source_changes_or_it_ends(file: Path) -> None:
    holder = KernelHolder()
    try:
        first = holder.get(str(file))
        assert holder.get(str(file)) is first
        (file.parent / "other.cuh").write_text("// beside it\n")
        second = holder.get(str(file))
        assert second is not first
        with pytest.raises(UserError, match="exit code 7"):
            second.launch_plan(PROBLEM, Config(THREADS=7, SMEM=0))
        third = holder.get(str(file))
        assert third is not second
        with pytest.raises(UserError, match="ZeroDivisionError"):
            third.launch_plan(PROBLEM, Config(THREADS=96, SMEM=0))
        assert holder.get(str(file)) is third, "an exception leaves the process as it was"
        with pytest.raises(UserError, match="no knobs and no PTX to search, but it can be judged"):
            holder.get(f"{file}:function")
    finally:
        holder.close()
