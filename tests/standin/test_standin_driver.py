"""The stand-in driver as the real cuda-bindings use it: what a GPU would do with a plan, and what the log says."""

from __future__ import annotations

import json
import sys

import pytest
from standin_gpu import StandIn

PARITY = """
import json, sys
import numpy as np
from sdpalab.inputs import make_inputs
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem
from sdpalab.run import GpuExecutor, SimulatedExecutor
gpu = GpuExecutor()
simulator = SimulatedExecutor(gpu.arch, checks=())
for name in sys.argv[1:]:
    kernel = KERNELS[name]
    problem = Problem(1, 2, 128, 64)
    made = make_inputs(problem)
    inputs = {"q": made.q, "k": made.k, "v": made.v}
    plan = kernel.launch_plan(problem, lse=kernel.lse)
    result, right = gpu.run(plan, inputs), simulator.run(plan, inputs)
    equal = {name: out.tobytes() == right.outputs[name].tobytes() for name, out in result.outputs.items()}
    print(json.dumps([name, result.device, equal, result.hazards, result.ptx_sha256 == right.ptx_sha256]))
"""


@pytest.mark.parametrize("gpu", ["h200"])
def test_kernels_give_the_simulators_bits(standin: StandIn, gpu: str) -> None:
    done = standin.process(sys.executable, "-c", PARITY, "flash", "hopper")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        name, device, equal, hazards, same_ptx = json.loads(line)
        assert (device, hazards, same_ptx) == ("NVIDIA H200", [], True), name
        assert all(equal.values()), name
