"""Buffers that begin as data: in launch plans on both executors, through the sandbox, and in launch files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin_gpu import StandIn

from sdpalab.errors import UserError
from sdpalab.judge.sandbox.plans import PlanError, read_plan, send_plan
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module, problem_buffers
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from sdpalab.run.buffers import starting_array
from warpsan.sanitize.case import read_case
from warpsan.sanitize.sanitizer import Modes, sanitize_case

SOURCE = """
__global__ void k(const float* x, float* sum, float* top, double* wide, short* bits) {
    atomicAdd(sum, x[threadIdx.x]);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 32; ++i) top[0] = fmaxf(top[0], x[i]);
        wide[0] += 1.0;
        bits[1] += 1;
    }
}
"""
BUFFERS = (
    Buffer("x", (32,), "float32", "in"),
    Buffer("sum", (1,), "float32", "out", fill=0),
    Buffer("top", (1,), "float32", "out", fill=-math.inf),
    Buffer("wide", (3,), "float64", "out", fill=1.5),
    Buffer("bits", (3,), "int16", "out", fill=-2),
)
PLAN = LaunchPlan(
    BUFFERS, (Launch((1, 1, 1), (32, 1, 1), ("x", "sum", "top", "wide", "bits"), module=Module("k.cu", SOURCE, "k")),)
)
INPUTS = {"x": np.arange(-40, -8, dtype=np.float32)}
WANTED = {"sum": [INPUTS["x"].sum()], "top": [-9.0], "wide": [2.5, 1.5, 1.5], "bits": [-2, -1, -2]}


def test_the_simulator_begins_with_the_fill() -> None:
    result = SimulatedExecutor().run(PLAN, INPUTS)
    assert {name: out.tolist() for name, out in result.outputs.items()} == WANTED
    assert result.hazards == ()


def test_without_the_fill_the_same_plan_reads_what_nobody_wrote() -> None:
    bare = replace(PLAN, buffers=tuple(replace(buffer, fill=None) for buffer in BUFFERS))
    assert any("read before anything wrote them" in hazard for hazard in SimulatedExecutor().run(bare, INPUTS).hazards)


ON_GPU = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from test_fills import INPUTS, PLAN
from sdpalab.run import GpuExecutor
gpu = GpuExecutor()
print(json.dumps({name: out.tolist() for name, out in gpu.run(PLAN, INPUTS).outputs.items()}))
from cuda.bindings import driver
with gpu.gpu.current():
    places = {}
    for buffer in PLAN.buffers:
        places[buffer.name] = int(driver.cuMemAlloc(256)[1])
    x = INPUTS["x"]
    driver.cuMemcpyHtoD(places["x"], x.ctypes.data, x.nbytes)
    prepared = gpu.prepare(PLAN, places)
    prepared.launch(); prepared.launch()
    gpu.gpu.synchronize("run")
    out = np.zeros(3)
    driver.cuMemcpyDtoH(out.ctypes.data, places["wide"], 24)
    print(json.dumps(out.tolist()))
"""


def test_a_gpu_fills_before_every_run(standin: StandIn) -> None:
    import sys

    done = standin.process(sys.executable, "-c", ON_GPU, str(Path(__file__).parent))
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == WANTED
    assert second == WANTED["wide"]


@pytest.mark.parametrize(
    ("dtype", "fill"), [("int32", -math.inf), ("int32", 0.5), ("float8_e4m3fn", math.inf), ("uint8", -1)]
)
def test_a_type_that_does_not_hold_the_fill_is_refused(dtype: str, fill: float) -> None:
    with pytest.raises(UserError, match=f"buffer b cannot begin as .*{dtype} does not hold that"):
        starting_array(Buffer("b", (2,), dtype, "workspace", fill=fill), {}, 0xFF)


PROBLEM = Problem(1, 1, 9, 32, dtype="float32")
KNOWN = problem_buffers(PROBLEM)


def attention_plan(*buffers: Buffer) -> LaunchPlan:
    launch = Launch((1, 1, 1), (32, 1, 1), ("q", "o"))
    kernel = CudaKernel("k", "", "k", lambda problem, config: LaunchPlan(buffers, (launch,)))
    return kernel.launch_plan(PROBLEM)


def test_a_fill_of_the_output_and_of_a_workspace_reaches_the_executor() -> None:
    running = Buffer("m", (9,), "float32", "workspace", fill=-math.inf)
    plan = attention_plan(replace(KNOWN[3], fill=0), running)
    received = read_plan(send_plan(plan, "sm_80"), KNOWN)
    assert [(buffer.name, buffer.fill) for buffer in received.buffers] == [
        *(("q", None), ("k", None), ("v", None)),
        *(("o", 0.0), ("m", -math.inf)),
    ]
    assert received.plan().buffers == plan.buffers


@pytest.mark.parametrize("role", ["semaphore", "in"])
def test_only_outputs_and_workspaces_have_a_fill(role: str) -> None:
    plan = attention_plan()
    buffers = (*plan.buffers, Buffer("t", (1,), "int32", "semaphore", fill=0)) if role == "semaphore" else (
        replace(plan.buffers[0], fill=1.0), *plan.buffers[1:])  # fmt: skip
    with pytest.raises(PlanError, match="only an output or a workspace of a launch plan has a fill"):
        read_plan(send_plan(replace(plan, buffers=buffers), "sm_80"), KNOWN)


FILE = """
#include <iostream>
#include <vector>
constexpr int THREADS = 32;
__global__ void running_max(const float* x, float* top) {
    if (threadIdx.x == 0) for (int i = 0; i < 32; ++i) top[blockIdx.x] = fmaxf(top[blockIdx.x], x[i]);
}
int main(int argc, char** argv) {
    std::vector<float> x(32);
    running_max<<<2, THREADS>>>(x.data(), nullptr);
}
"""
LOCKSTEP = Modes(schedules=("lockstep",), async_modes=("late",))


def case(folder: Path, source: str = FILE, **changes: Any) -> Any:
    (folder / "k.cu").write_text(source)
    facts = {
        "buffers": {"top": {"dtype": "float32", "shape": 2, "init": "-inf"}},
        "args": [{"dtype": "float32", "shape": 32, "init": -3.0}, "top"],
        "expect": {"top": {"init": -3.0}},
        **changes,
    }
    (folder / "k.json").write_text(json.dumps(facts))
    return read_case(folder / "k.cu", folder / "k.json")


def test_a_launch_file_leaves_entry_and_sizes_to_the_source(tmp_path: Path) -> None:
    found = case(tmp_path)
    (launch,) = found.launches.launches
    assert (launch.entry, launch.sizes) == ("running_max", ((2, 1, 1), (32, 1, 1), (1, 1, 1)))
    outcome = sanitize_case(found, LOCKSTEP)
    assert outcome.clean
    assert outcome.to_dict()["set_aside"] == {
        "functions": ["main"],
        "headers": ["iostream", "vector"],
        "declarations": [],
    }


def test_a_launch_file_has_the_last_word(tmp_path: Path) -> None:
    found = case(tmp_path, grid=1, expect={"top": {"values": [-3.0, -math.inf], "dtype": "float32"}})
    assert found.launches.launches[0].sizes[0] == (1, 1, 1)
    assert sanitize_case(found, LOCKSTEP).clean


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "<<<2,",
            "<<<argc,",
            r"say the 'grid' of running_max: line 10 of k\.cu launches it with argc, which is no const",
        ),
        ("THREADS>>>", "THREADS, x.size()>>>", r"say the 'dynamic_smem' of running_max: line 10 of k\.cu"),
        ("running_max<<<2, THREADS>>>", "run", r"a launch needs 'grid': k\.cu has no launch of running_max"),
        (
            "__global__ void running_max",
            "__global__ void b() {}\n__global__ void running_max",
            "say which 'entry' of k.cu",
        ),
    ],
)
def test_what_the_source_does_not_say_is_asked_for(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in FILE
    with pytest.raises(UserError, match=words) as caught:
        case(tmp_path, FILE.replace(old, new))
    assert "\n" not in str(caught.value)
