"""A user's kernel as commands use it: its Python runs in a guarded process only, and what comes back is data."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from sdpalab.errors import UserError
from sdpalab.judge.sandbox.sandboxed import NotBuilt, SandboxedKernel, kernel_in_sandbox
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.plan import Module
from sdpalab.kernels.source import source_digest
from sdpalab.kernels.userfile import load_user_kernel
from sdpalab.problem import Problem

KERNEL = """
import os
from sdpalab import CudaKernel, Launch, Numerics, StaticLimits

print("loaded in", os.getpid())

def plan(problem, config):
    if problem.seq_q == 13:
        raise ZeroDivisionError("thirteen")
    if problem.seq_q == 14:
        os._exit(7)
    return Launch(grid=(problem.seq_q, 1, os.getpid()), block=(32, 1, 1), args=("q", "o", problem.scale))

def reject(problem, config):
    return "too wide" if problem.head_dim > config.int("WIDTH") else None

KERNEL = CudaKernel(
    name="probe", source="__global__ void probe(const void *q, void *o, float s) {}", entry="probe", plan=plan,
    configs=[{"WIDTH": 64, "MODE": "a"}, {"WIDTH": 128, "MODE": "b"}], reject=reject, knobs={"WIDTH": [64, 128]},
    numerics=lambda config: Numerics(probabilities="float32" if config["MODE"] == "a" else "problem"),
    limits=lambda problem: StaticLimits(registers=problem.head_dim, reason="this test"),
    idea="counts rows",
)

def function(q, k, v, *, scale, causal):
    return q
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sandboxed") / "probe_kernel.py"
    path.write_text(KERNEL)
    return path


@pytest.fixture(scope="module")
def kernel(file: Path) -> SandboxedKernel:
    with kernel_in_sandbox(f"{file}:KERNEL", else_say="nothing") as loaded:
        assert isinstance(loaded, SandboxedKernel)
        yield loaded


def test_it_is_the_kernel_of_the_file_and_never_loaded_here(kernel: SandboxedKernel, file: Path) -> None:
    assert "sdpalab_user_probe_kernel" not in sys.modules
    plan = kernel.launch_plan(Problem(1, 2, 16, 32))
    (launch,) = plan.launches
    assert launch.grid[2] != os.getpid()
    assert "sdpalab_user_probe_kernel" not in sys.modules
    own = load_user_kernel(f"{file}:KERNEL")
    (expected,) = own.launch_plan(Problem(1, 2, 16, 32)).launches  # type: ignore[union-attr]
    assert isinstance(launch.module, Module)
    assert launch.module.workshop is kernel.workshop  # type: ignore[attr-defined]
    assert (Module(*(getattr(launch.module, each.name) for each in fields(Module))), launch.args, plan.buffers) == (
        expected.module,
        expected.args,
        own.launch_plan(Problem(1, 2, 16, 32)).buffers,  # type: ignore[union-attr]
    )
    assert (kernel.name, kernel.idea, kernel.folder) == ("probe", "counts rows", file.parent)
    assert kernel.configs == list(own.configs)  # type: ignore[union-attr]
    assert source_digest(kernel) == source_digest(own)  # type: ignore[arg-type]
    del sys.modules["sdpalab_user_probe_kernel"]


def test_what_it_declares_is_asked_for(kernel: SandboxedKernel) -> None:
    wide = Problem(1, 1, 16, 96)
    assert kernel.why_not(wide) == "too wide"
    assert kernel.why_not(wide, Config(WIDTH=128, MODE="b")) is None
    assert kernel.numerics_of().probabilities == "float32"
    assert kernel.numerics_of(Config(WIDTH=64, MODE="b")).probabilities == "problem"
    assert kernel.static_limits(wide).registers == 96
    assert [config["WIDTH"] for config in kernel.space(Problem(1, 1, 16, 64))] == [64, 128]
    assert kernel.config_with({"WIDTH": "128"})["WIDTH"] == 128


def test_a_survey_answers_for_many_configurations_at_once(kernel: SandboxedKernel) -> None:
    configs = [Config(WIDTH=64, MODE="a"), Config(WIDTH=128, MODE="b")]
    problems = [Problem(1, 1, 16, 96), Problem(1, 1, 7, 32)]
    refused, launches = kernel.survey(configs, problems, [58, 132])
    assert refused == "too wide"
    assert not isinstance(launches, str)
    assert [(each.threads, each.dynamic_smem) for each in launches] == [(32, 0)] * 4
    assert kernel.survey([], problems, [58]) == []


def test_what_goes_wrong_there_is_one_sentence_here(kernel: SandboxedKernel, file: Path) -> None:
    with pytest.raises(UnsupportedProblem, match="too wide"):
        kernel.launch_plan(Problem(1, 1, 16, 96))
    with pytest.raises(UserError, match=r"raised ZeroDivisionError: thirteen \(probe_kernel.py, line 9\)"):
        kernel.launch_plan(Problem(1, 1, 13, 64))
    with pytest.raises(NotBuilt, match="a Python callable: there is no PTX to run, but it can be judged") as refusal:
        SandboxedKernel(f"{file}:function", arch=None, else_say="there is no PTX to run")
    assert refusal.value.name == "function"
    with pytest.raises(UserError, match="has no 'nothing'"):
        SandboxedKernel(f"{file}:nothing", arch=None, else_say="")


def test_a_process_that_ends_is_one_sentence(file: Path) -> None:
    with kernel_in_sandbox(f"{file}:KERNEL", else_say="nothing") as loaded:
        assert loaded.launch_plan(Problem(1, 1, 15, 64))
        with pytest.raises(UserError, match="the process ended with exit code 7"):
            loaded.launch_plan(Problem(1, 1, 14, 64))
