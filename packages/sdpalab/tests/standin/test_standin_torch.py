"""torch on the stand-in: bench, the op on proven kernels, and what doctor says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from standin_gpu import StandIn


@pytest.mark.slow
def test_bench_measures_a_kernel_with_a_simulated_clock(standin: StandIn, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    small = ("--shape", "1,1,64,64", "--peer", "torch", "--clock", "gpu", "--seconds", "1")
    done = standin.cli("bench", "scalar", *small, "--json", out, timeout=900)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert "NVIDIA H200" in done.stdout
    assert {"torch", "scalar"} <= {each["name"] for each in _measurements(record)}
    assert standin.launches("scalar") or standin.launches()


def _measurements(record: object) -> list[dict[str, object]]:
    """All that looks like a measurement, wherever the record has it."""
    measurements: list[dict[str, object]] = []
    stack = [record]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            if {"name", "status"} <= set(each):
                measurements.append(each)
            stack += each.values()
        elif isinstance(each, list):
            stack += each
    return measurements


OP = """
import torch, sdpalab
from sdpalab.torch_api import kernels as torch_kernels
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem
from types import SimpleNamespace
kernel, problem = KERNELS["hopper"], Problem(1, 2, 70, 64)
from sdpalab.compile import build
plan = kernel.launch_plan(problem)
builds = tuple(build(step.module, "sm_90a") for step in plan.launches)
found = SimpleNamespace(plan=plan, builds=builds, certificate=SimpleNamespace(kernel="hopper", arch="sm_90a"))
torch_kernels._certified_for = lambda *args: (found, "a test says so")
for seed in (0, 1, 2):
    torch.manual_seed(seed)
    # Views into larger tensors: what is launched on must not touch what lies beside.
    big = torch.randn(4, 1, 2, 70, 64).to(torch.float16)
    kept = big.clone()
    q, k, v = big[0], big[1], big[3]
    with sdpalab.no_fallback():
        out = sdpalab.scaled_dot_product_attention(q, k, v)
    right = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert (out.double() - right).abs().max() < 2e-3, seed
    assert torch.equal(big, kept)
print(sdpalab.explain(q, k, v))
"""


@pytest.mark.slow
def test_the_op_launches_a_proven_kernel_on_torchs_tensors(standin: StandIn) -> None:
    done = standin.run(OP)
    assert done.returncode == 0, done.stderr
    assert "runs the kernel hopper: a test says so" in done.stdout
    assert len(standin.launches()) == 3


@pytest.mark.slow
def test_doctor_sees_the_gpu_and_says_how_processes_are_confined(standin: StandIn) -> None:
    standin.configure(gpu="l4")
    done = standin.cli("doctor")
    assert "NVIDIA L4, sm_89" in done.stdout, done.stderr
    assert "confinement" in done.stdout
