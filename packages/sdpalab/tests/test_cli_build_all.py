"""``sdpalab build --all``: what a GPU machine will ask for is in the cache, and bad input is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sdpalab.cli import main
from sdpalab.compile import Cache, build
from sdpalab.judge.cases import cases_for
from sdpalab.judge.session import judge_candidate
from sdpalab.kernels import registry
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.registry import KERNELS
from sdpalab.measure.prebuild import COMPARED, TIMED, KernelBuilds, modules_for
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from warpsan.gpus import default_sms

SMS = default_sms("sm_90a")


@pytest.fixture
def two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder of two, of which one runs on Hopper only."""
    monkeypatch.setattr(registry, "KERNELS", {name: KERNELS[name] for name in ("cublas", "hopper")})


def entries(cache: Path) -> set[str]:
    """The builds in a cache."""
    return {path.parent.name for path in cache.glob("*/SHA256SUMS")}


@pytest.mark.slow
def test_what_an_architecture_does_not_suit_is_skipped_and_a_second_call_compiles_nothing(
    two_kernels: None, fresh_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "--all", "--arch", "sm_89", "--json", "-"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["modules"] == report["compiled"] == len(entries(fresh_cache)) > 3
    assert [each["kernel"] for each in report["kernels"]] == ["cublas"]
    assert report["skipped"] == ["kernel hopper uses what only sm_90a has, and cannot be built for sm_89"]
    assert "skipped: kernel hopper uses what only sm_90a has" in printed.err
    assert main(["build", "--all", "--arch", "sm_89"]) == 0
    assert f"{report['modules']} modules in {fresh_cache}, 0 of them compiled now" in capsys.readouterr().out


def test_a_module_that_does_not_compile_is_said_and_the_others_are_built(
    two_kernels: None, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = CudaKernel(
        "broken",
        'extern "C" __global__ void broken() {\n#if CAUSAL\nthis is no C++\n#endif\n}',
        "broken",
        lambda problem, config: Launch((1, 1, 1), (32, 1, 1), ()),
    )
    monkeypatch.setattr(registry, "KERNELS", {"broken": broken})
    monkeypatch.setattr(registry, "get", lambda name: broken)
    assert main(["build", "--all", "--arch", "sm_89", "--json", "-"]) == 1
    printed = capsys.readouterr()
    (kernel,) = json.loads(printed.out)["kernels"]
    assert all("broken.cu" in failure for failure in kernel["failures"])
    assert 0 < len(kernel["failures"]) < kernel["modules"]
    assert "broken: " in printed.err


def test_all_that_is_judged_timed_and_compared_is_among_the_modules() -> None:
    for name in ("flash", "hopper", "hopper_fp8"):
        kernel = KERNELS[name]
        modules = modules_for(kernel, TIMED, SMS)
        wanted = [(kernel.default_config, problem) for problem in TIMED]
        wanted += [(config, problem) for config in map(Config, kernel.configs) for problem in COMPARED]
        for config, problem in wanted:
            if kernel.why_not(problem, config) is None:
                for step in kernel.launch_plan(problem, config, sms=SMS).launches:
                    assert step.module in modules


@pytest.mark.slow
def test_a_warm_cache_compiles_nothing_when_a_kernel_is_judged_and_compared(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Misses are counted: what is in the cache after, and was not before."""
    kernel = KERNELS["cublas"]
    for module in modules_for(kernel, TIMED, default_sms("sm_89")):
        build(module, "sm_89", cache=Cache(fresh_cache))
    before = entries(fresh_cache)
    assert len(before) > 3
    small = [spec for spec in cases_for("quick", claims=False) if spec.problem.scores < MISSION.scores / 8]
    specs = tuple({(spec.problem, spec.relation): spec for spec in small}.values())
    verdict = judge_candidate("cublas", specs, device="sim", arch="sm_89", until_failure=True)
    if any(case.run.get("confinement") == "processes" for case in verdict.cases):
        pytest.skip("no user namespaces here: the judge's processes have a cache of their own")
    assert verdict.passed
    for problem in COMPARED[:2]:
        arrays = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.kv_shape}

        inputs = {name: np.zeros(shape, problem.dtype) for name, shape in arrays.items()}
        SimulatedExecutor("sm_89").run(kernel.launch_plan(problem), inputs)
    assert entries(fresh_cache) == before
    build(kernel.launch_plan(MISSION.with_(head_dim=96)).launches[0].module, "sm_89")  # the count can change
    assert len(entries(fresh_cache)) == len(before) + 1


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (("flash", "--all", "--arch", "sm_89"), "--all builds every kernel in its own configurations: leave out flash"),
        (("--all", "--set", "BLOCK_M=64", "--arch", "sm_89"), "leave out --set"),
        (("--all",), "--all needs the architecture of the GPU that it builds for, such as --arch sm_90a"),
        (("--all", "--arch", "sm_1"), "sm_1"),
        (("--all", "--arch", "sm_89", "--causal"), "need a --shape with --all"),
        ((), "build needs a KERNEL"),
        (("flash", "--shape", "mission", "--shape", "small"), "build takes one --shape for a kernel"),
    ):
        assert main(["build", *arguments]) == 2, arguments
        printed = capsys.readouterr().err
        assert words in printed
        assert printed.count("\n") == 1


def test_the_shapes_that_are_timed_can_be_others(two_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def build_modules(kernel: CudaKernel, arch: str, timed: list[Problem], *, progress: object) -> KernelBuilds:
        asked.append((kernel.name, arch, timed))
        return KernelBuilds(kernel.name, (), (), 0.0)

    monkeypatch.setattr("sdpalab.measure.prebuild.build_modules", build_modules)
    assert main(["build", "--all", "--arch", "sm_90", "--shape", "1,2,300,64", "--shape", "small", "--causal"]) == 0
    assert main(["build", "--all", "--arch", "sm_90a"]) == 0
    small = [Problem(1, 2, 300, 64, causal=True), Problem(1, 2, 64, 64, causal=True)]
    assert asked == [("cublas", "sm_90", small), ("cublas", "sm_90a", TIMED), ("hopper", "sm_90a", TIMED)]
