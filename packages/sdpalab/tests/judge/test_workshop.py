"""Users' kernels are compiled, disassembled and simulated by a confined process, with the results of this one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdpalab.compile import BuildError, Cache, build, resources, sass
from sdpalab.errors import MachineError
from sdpalab.inputs import make_inputs
from sdpalab.judge.sandbox.sandboxed import SandboxedKernel, kernel_in_sandbox
from sdpalab.judge.sanitize import sanitize_kernel
from sdpalab.kernels.userfile import load_user_kernel
from sdpalab.model.counted import count
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor, simulated
from warpsan import StepLimit
from warpsan.build import builder
from warpsan.profile.recording import AccessRecorder
from warpsan.sanitize.sanitizer import Modes

PROBLEM = Problem(1, 1, 40, 64)
MODES = Modes(schedules=("lockstep", "reverse"))


@pytest.fixture(scope="module")
def spec(root: Path) -> str:
    return str(root / "examples" / "my_kernel.py")


@pytest.fixture(scope="module")
def foreign_kernel(spec: str) -> Iterator[SandboxedKernel]:
    with kernel_in_sandbox(spec, else_say="nothing") as kernel:
        assert isinstance(kernel, SandboxedKernel)
        yield kernel


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch, fresh_cache: Path, foreign_kernel: SandboxedKernel) -> None:
    """This process fails if it compiles, disassembles or simulates; no build is in the cache."""

    def fail(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("untrusted code in this process")

    monkeypatch.setattr(builder, "compile_program", fail)
    monkeypatch.setattr(builder, "assemble", fail)
    monkeypatch.setattr(sass, "run_tool", fail)
    monkeypatch.setattr(simulated, "launch", fail)
    monkeypatch.setattr(foreign_kernel.workshop, "cache", Cache(fresh_cache / "own"))


def module_of(kernel: SandboxedKernel) -> Any:
    (launch,) = kernel.launch_plan(PROBLEM).launches
    return launch


@pytest.mark.usefixtures("nothing_here")
def test_a_build_and_its_resources_are_those_of_this_process(
    foreign_kernel: SandboxedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = module_of(foreign_kernel)
    built = build(launch.module, "sm_89")
    used = resources(built, launch)
    assert build(launch.module, "sm_89").cache_hit
    monkeypatch.undo()
    own = build(dataclasses.replace(launch.module, workshop=None), "sm_89")
    assert (built.ptx, built.cubin, built.entry, built.key) == (own.ptx, own.cubin, own.entry, own.key)
    assert used == resources(own, launch)


def test_what_does_not_compile_is_one_sentence(foreign_kernel: SandboxedKernel) -> None:
    module = dataclasses.replace(module_of(foreign_kernel).module, source="__global__ void wrong() { nothing(); }")
    with pytest.raises(BuildError, match="nothing") as caught:
        build(module, "sm_89")
    assert "nothing" in caught.value.log


@pytest.mark.usefixtures("nothing_here")
def test_it_is_sanitized_elsewhere(foreign_kernel: SandboxedKernel, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = sanitize_kernel(foreign_kernel, [PROBLEM], modes=MODES)
    monkeypatch.undo()
    assert outcome == sanitize_kernel(load_user_kernel(spec), [PROBLEM], modes=MODES)  # type: ignore[arg-type]


@pytest.mark.usefixtures("nothing_here")
def test_it_is_counted_elsewhere_and_its_accesses_are_seen(
    foreign_kernel: SandboxedKernel, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, own = (AccessRecorder("my_kernel.cu:42") for _ in range(2))
    counted = count(foreign_kernel, PROBLEM, "sm_89", watchers=(seen,))
    monkeypatch.undo()
    expected = count(load_user_kernel(spec), PROBLEM, "sm_89", watchers=(own,))  # type: ignore[arg-type]
    assert [each.counters for each in counted.launches] == [each.counters for each in expected.launches]
    assert seen.records
    assert repr(seen.records) == repr(own.records)


@pytest.mark.usefixtures("nothing_here")
def test_what_stops_a_run_is_raised_here(foreign_kernel: SandboxedKernel) -> None:
    plan = foreign_kernel.launch_plan(PROBLEM)
    with pytest.raises(StepLimit, match="steps"):
        SimulatedExecutor("sm_89", max_steps=3).run(plan, make_inputs(PROBLEM).arrays)


def test_an_answer_that_is_none_is_the_failure_of_the_machine(
    foreign_kernel: SandboxedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_kernel.workshop, "_ask", lambda *_: {"kernel.ptx": b""})
    with pytest.raises(MachineError, match="sent no result"):
        foreign_kernel.workshop.simulate(foreign_kernel.launch_plan(PROBLEM), [], {}, "sm_89", 0, {})
