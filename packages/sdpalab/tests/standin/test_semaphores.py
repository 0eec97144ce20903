"""Calls of the op with semaphores: the kernels of the plan and no fill, and no stretch for two streams or graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from standin_gpu import StandIn

from sdpalab.inputs import make_inputs
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.problem import MISSION, Problem
from sdpalab.run.simulated import SimulatedExecutor

BEGIN = """
import sys, json, torch
from torch.utils._python_dispatch import TorchDispatchMode
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import MISSION, Problem
from sdpalab.run import GpuExecutor, torch_gpu
from sdpalab.run.torch_launch import TorchLaunch

class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))

problem = Problem(1, 2, 70, 32)
executor = GpuExecutor()
driver = sys.modules["standin_driver"].DRIVER
kernel = KERNELS["flash"]
def prepared(problem, config=None):
    q, k, v = (torch.randn(shape).half() for shape in (problem.q_shape, problem.kv_shape, problem.kv_shape))
    plan = kernel.launch_plan(problem, config, sms=executor.sms)
    assert any(buffer.role == "semaphore" for buffer in plan.buffers)
    tensors = {"q": q, "k": k, "v": v}
    return TorchLaunch(executor, plan, tensors), tensors, plan
shared = kernel.default_config.but(SCHEDULE="stream_k", NUM_CTAS=5)
places = []
from sdpalab.run.gpu_launch import Prepared
place = Prepared.place
def placed(self, addresses):
    places.append(addresses["semaphores"])
    place(self, addresses)
Prepared.place = placed
def right(tensors, out):
    exact = torch.nn.functional.scaled_dot_product_attention(*(each.double() for each in tensors.values()))
    return float((out["o"] - exact).abs().max()) < 2e-3
def on(stream, capture=0):
    torch_gpu.stream = lambda ordinal=None: stream
    driver.captures = {stream: capture} if capture else {}
"""


@pytest.fixture
def l4(standin: StandIn) -> StandIn:
    standin.configure(gpu="l4")
    return standin


def replies(gpu: StandIn, code: str) -> Any:
    done = gpu.run(BEGIN + code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_call_launches_the_kernels_of_the_plan_and_fills_nothing(l4: StandIn) -> None:
    """The default plan of the mission shape on an L4: stream-K, one launch, and semaphores that a call takes zeroed."""
    code = """
call, tensors, plan = prepared(MISSION)
executor.gpu.driver.cuDeviceGetCount()  # a mark in the log
seen = Seen()
with seen:
    call(**tensors)
print(json.dumps([len(plan.steps), sorted(set(seen.names))]))
"""
    steps, operations = replies(l4, code)
    log = l4.log()
    calls = [entry.get("call") for entry in log]
    after = log[len(calls) - calls[::-1].index("cuDeviceGetCount") :]
    assert steps == 1
    assert sum("launch" in entry for entry in after) == steps
    assert operations == ["aten.empty.memory_format"]  # allocates, and runs no kernel
    assert not any("Mem" in entry.get("call", "") or "Synchronize" in entry.get("call", "") for entry in after)


def test_every_clock_calls_what_the_op_launches(l4: StandIn) -> None:
    """Calls of the graph and stream clocks, and of the eager clock: the kernels of the plan, and no other."""
    code = """
from sdpalab.inputs import make_inputs
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.measure.outputs import Outputs
from sdpalab.measure.subjects import kernel_subject
from sdpalab.measure.timing_gate import permit_by
knobs = {name: str(value) for name, value in shared.items()}
specs = [CaseSpec("normal", problem, "normal", 0)]
verdict = judge_candidate("flash", specs, device="sim", arch="sm_89", sms=58, config=knobs, algebra=False)
permit = permit_by(kernel, shared, [problem], {"": verdict}, arch="sm_89", sms=58)
counts = [len(kernel.launch_plan(problem, shared, sms=58).steps)]
for eager in (False, True):
    subject = kernel_subject(permit, Outputs(problem, make_inputs(problem)), executor, eager=eager)
    launches = []
    launch = Prepared.launch
    Prepared.launch = lambda self, stream=0: (launches.extend(self.steps), launch(self, stream))[1]
    seen = Seen()
    with seen:
        subject.call()
    Prepared.launch = launch
    assert subject.check() == "", subject.check()
    counts.append([len(launches), sorted(set(seen.names) - {"aten.empty.memory_format"})])
print(json.dumps(counts))
"""
    planned, *called = replies(l4, code)
    assert called == [[planned, []], [planned, []]]


def test_streams_and_graphs_have_stretches_of_their_own(l4: StandIn) -> None:
    code = """
call, tensors, _ = prepared(problem, shared)
places.clear()
good = []
for stream, capture in ((1, 0), (1, 0), (2, 0), (1, 7), (1, 7), (2, 7), (1, 8), (1, 0)):
    on(stream, capture)
    good.append(right(tensors, call(**tensors)))
other, tensors, _ = prepared(problem, shared)
on(1)
good.append(right(tensors, other(**tensors)))
print(json.dumps([good, places]))
"""
    good, places = replies(l4, code)
    assert all(good)
    names = [places.index(place) for place in places]
    #        s1 s1 s2 g7 g7 g7/2 g8 s1 another plan on s1
    assert names == [0, 0, 2, 3, 3, 5, 6, 0, 8]


def test_a_capture_without_a_stretch_fills_its_own_memory_and_the_next_call_allocates(l4: StandIn) -> None:
    code = """
call, tensors, _ = prepared(problem, shared)
places.clear()
names, good = [], []
for capture in (*range(1, 18), 0, 18):
    on(1, capture)
    seen = Seen()
    with seen:
        out = call(**tensors)
    names.append("aten.zero_.default" in seen.names or "aten.zeros.default" in seen.names)
    good.append(right(tensors, out))
print(json.dumps([good, names, len(set(places[:15]))]))
"""
    good, fills, distinct = replies(l4, code)
    assert all(good)
    assert distinct == 15
    assert fills == [False] * 15 + [True] * 2 + [False, False]


def test_a_failed_launch_discards_its_stretch(l4: StandIn) -> None:
    code = """
call, tensors, _ = prepared(problem, shared)
places.clear()
on(1)
call(**tensors)
launch = Prepared.launch
def failing(self, stream=0):
    raise RuntimeError("no launch")
Prepared.launch = failing
try:
    call(**tensors)
except RuntimeError as error:
    print("", end="")
Prepared.launch = launch
good = right(tensors, call(**tensors))
print(json.dumps([good, places]))
"""
    good, places = replies(l4, code)
    assert good
    assert places[0] == places[1] != places[2]


def plans_with_semaphores() -> list[tuple[Kernel, Config, Problem, LaunchPlan]]:
    """A plan of each kernel and configuration that has one, on small problems."""
    problems = [Problem(1, 2, 70, 64, seq_kv=300), Problem(1, 4, 200, 64, kv_heads=2, causal=True), MISSION]
    chosen = []
    for name, kernel in KERNELS.items():
        if needs(name):
            continue
        for knobs in kernel.configs:
            for problem in problems:
                config = kernel.default_config.but(**knobs)
                if kernel.why_not(problem, config) is not None:
                    continue
                plan = kernel.launch_plan(problem, config, sms=58)
                if any(buffer.role == "semaphore" for buffer in plan.buffers):
                    chosen.append((kernel, config, problem, plan))
                    break
    return chosen


PLANS = plans_with_semaphores()


def test_there_are_plans_with_semaphores() -> None:
    assert {kernel.name for kernel, *_ in PLANS} >= {"flash"}
    assert len(PLANS) >= 3


@pytest.mark.sample(1)
@pytest.mark.parametrize(("kernel", "config", "problem", "plan"), PLANS, ids=lambda each: getattr(each, "name", None))
def test_every_plan_with_semaphores_leaves_them_as_zeros(
    kernel: Kernel, config: Config, problem: Problem, plan: LaunchPlan
) -> None:
    """The invariant that the pool relies on: a second run on the same memory has the same output."""
    inputs = make_inputs(problem).arrays
    executor = SimulatedExecutor(kernel.only_arch or kernel.default_arch, checks=())
    once = executor.run(plan, inputs)
    twice = executor.run(replace(plan, steps=plan.steps * 2), inputs)
    assert once.hazards == twice.hazards == ()
    assert once.outputs["o"].tobytes() == twice.outputs["o"].tobytes()
