"""``sdpalab prove`` without a GPU: what it refuses, and what it makes of a verdict, with the judge in its place."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evidence_sample import honest, judged
from rich.console import Console

import sdpalab
from certificate_sample import DRIVER, FLASH, GPU, JUDGED, SMS, TORCH, flash_build
from sdpalab.bugs import replace_once
from sdpalab.cli import main
from sdpalab.commands.prove import _Printed
from sdpalab.errors import MachineError, UserError
from sdpalab.evidence import prove
from sdpalab.evidence.prove import ProveAttempt
from sdpalab.evidence.store import choice, lookup
from sdpalab.evidence.store import record as store
from sdpalab.evidence.store.choice import GpuPlatform
from sdpalab.evidence.store.files import ArrayStore
from sdpalab.evidence.store.record import SampledRecord
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels import equivalent
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.problem import Problem
from sdpalab.run import RunResult, SimulatedExecutor

SHAPE = ("--shape", "1,4,60,32")

BAD_INPUT = {
    "unknown kernel": (("flahs",), "did you mean 'flash'?"),
    "a user's file": (("mine.py:kernel",), "judge your own on the GPU with: sdpalab judge mine.py:kernel --device gpu"),
    "quantises": (("fp8",), "fp8 quantises its inputs, which torch's own function does not; judge it with: sdpalab"),
    "shape": (("--shape", "1,8,512"), "four integers"),
    "kv_heads": (("--shape", "1,8,512,64", "--kv-heads", "3"), "3 does not divide 8"),
    "level": (("--level", "max"), "--level takes quick or full, not 'max'"),
    "seed": (("--seed", "-1"), "--seed takes a number from 0 up"),
    "no file": (("--shapes-from", "nowhere.txt"), "--shapes-from nowhere.txt: cannot read"),
    "options for a file": (("--shapes-from", "shapes.txt", "--causal"), "in a file each line has its own"),
    "json": (("--json", "nowhere/result.json"), "there is no directory"),
    "no GPU": (SHAPE, "prove judges kernels on a GPU, and there is none here: no GPU"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_sentence_and_exit_2(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sdpalab.run.gpu_problem", lambda: "no GPU: there is no NVIDIA driver on this machine")
    (tmp_path / "shapes.txt").write_text("1,8,512,64\n")
    arguments, says = BAD_INPUT[name]
    assert main(["prove", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("1,8,512,64\n1,8,512,64 fast\n")
    assert main(["prove", "--shapes-from", str(path)]) == 2
    assert f"{path}, line 2: after B,H,S,D come causal, " in capsys.readouterr().err


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return judged(JUDGED, 0, ArrayStore(tmp_path_factory.mktemp("arrays")), honest, flash_build().ptx_sha256)


Judge = Callable[..., Verdict]


@pytest.fixture
def gpu(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Judge | None], None]:
    """``gpu(judge)``: an L4, on which the judge says what ``judge`` returns; by default that a kernel passes."""

    def passes(name: str, specs: Any, **options: Any) -> Verdict:
        return Verdict(name, str(FLASH.default_config), GPU, options["level"], options["seed"], (case,))

    def install(judge: Judge | None) -> None:
        monkeypatch.setattr("sdpalab.judge.judge_candidate", judge or passes)

    executor = SimpleNamespace(arch="sm_89", device=GPU)
    monkeypatch.setattr(prove, "_open", lambda: (executor, GpuPlatform(GPU, DRIVER, TORCH, SMS)))
    monkeypatch.setenv("SDPALAB_DATA_DIR", str(tmp_path / "data"))
    lookup.forget()
    return install


def test_a_verdict_is_kept_and_what_is_missing_is_said(
    gpu: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu(None)
    assert main(["prove", "flash", *SHAPE, "--json", str(tmp_path / "result.json")]) == 0
    (record,) = (tmp_path / "data" / "proofs" / "l4").iterdir()
    report = json.loads((tmp_path / "result.json").read_text())
    (attempt,) = report["attempts"]
    assert attempt == {"kernel": "flash", "status": "PASSED", "reason": "", "sampled": [], "record": str(record)}
    assert report["times"] == []
    assert f"flash is proven for 1x4x60x32 on NVIDIA L4 by {record}, but no measured" in report["choices"][0]["reason"]
    assert "1x4x60x32: scaled_dot_product_attention runs torch: flash is proven" in capsys.readouterr().out


def test_the_function_of_the_package_returns_what_the_command_writes(
    gpu: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``sdpalab.prove`` has the records, the verdicts and the choices, and prints nothing."""
    gpu(None)
    result = sdpalab.prove(["flash"], [JUDGED])
    assert capsys.readouterr().out == ""
    (attempt,) = result.attempts
    assert (result.passed, result.machine_failed, attempt.passed, result.times) == (True, False, True, ())
    assert [attempt.record] == list((tmp_path / "data" / "proofs" / "l4").iterdir())
    assert result.choices[JUDGED].kernel is None
    assert set(result.to_dict()) == {"machine", "folder", "attempts", "times", "skipped", "choices"}
    with pytest.raises(UserError, match="level is quick or full, not 'most'"):
        sdpalab.prove(["flash"], [JUDGED], level="most")
    with pytest.raises(UserError, match="there is no problem to prove"):
        sdpalab.prove(["flash"], [])


def test_a_failure_is_kept_and_is_exit_1(gpu: Callable[..., None], case: Case, tmp_path: Path) -> None:
    wrong = replace(case, status=Status.INCORRECT, reason="a test")
    gpu(lambda name, specs, **_: Verdict(name, str(FLASH.default_config), GPU, "quick", 0, (wrong,)))
    assert main(["prove", "flash", *SHAPE]) == 1
    assert len(list((tmp_path / "data" / "proofs" / "l4").iterdir())) == 1
    lookup.forget()
    selected = choice.choose(JUDGED, GpuPlatform(GPU, DRIVER, TORCH, SMS))
    assert "flash failed there (INCORRECT" in selected.reason


def test_a_failure_of_the_machine_is_no_verdict(gpu: Callable[..., None], case: Case, tmp_path: Path) -> None:
    failed = replace(case, status=Status.INFRA_ERROR, reason="a test", errors=None, limits=None)
    gpu(lambda name, specs, **_: Verdict(name, str(FLASH.default_config), GPU, "quick", 0, (failed,)))
    assert main(["prove", "flash", *SHAPE]) == 3
    assert not (tmp_path / "data" / "proofs" / "l4").exists()


def test_a_kernel_that_cannot_be_judged_is_exit_1(gpu: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: Any, **__: Any) -> Verdict:
        raise UserError("flash.cu, line 3: a test")

    gpu(refuse)
    assert main(["prove", "flash", *SHAPE]) == 1
    assert "flash: no verdict: flash.cu, line 3: a test" in capsys.readouterr().out


def test_a_disk_that_fills_up_is_one_sentence_and_exit_3(
    gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, content: bytes) -> None:
        if len(content) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(content)

    gpu(None)
    monkeypatch.setattr(store, "write_atomically", full)
    assert main(["prove", "flash", *SHAPE]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device; SDPALAB_DATA_DIR names another data folder" in line


def test_what_ran_must_be_what_is_kept(
    gpu: Callable[..., None], case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(case, run={**case.run, "ptx_sha256": ["0" * 64]})
    gpu(lambda name, specs, **_: Verdict(name, str(FLASH.default_config), GPU, "quick", 0, (other,)))
    assert main(["prove", "flash", *SHAPE]) == 3
    assert "the code of flash that was judged differs from its build in this process" in capsys.readouterr().err


def test_without_a_name_every_kernel_that_the_gpu_runs_as_exactly_as_torch(
    gpu: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def note(name: str, specs: Any, **_: Any) -> Verdict:
        asked.append(name)
        raise UserError("a test")

    gpu(note)
    assert main(["prove", "--shape", "1,2,64,64"]) == 1
    assert {"scalar", "flash", "warp_specialized"} <= set(asked)
    assert not {"fp8", "fp8_simulated", "hopper", "hopper_fp8"} & set(asked)
    out = capsys.readouterr().out
    assert "skipped: fp8 quantises its inputs" in out
    assert "skipped: kernel hopper " in out


class Simulated:
    """The part of a GPU's executor that a sample uses: the simulator."""

    arch, sms = "sm_89", SMS

    def run(self, plan: LaunchPlan, inputs: Any) -> RunResult:
        return SimulatedExecutor(self.arch, checks=()).run(plan, inputs)


LARGE = Problem(1, 2, 384, 64)


def sample(kernel: Kernel, executor: Any) -> tuple[SampledRecord | None, str]:
    out = io.StringIO()
    small = prove.small_ones((LARGE,), kernel, kernel.default_config, SMS)[LARGE]
    printed, attempt = _Printed(Console(file=out, width=500)), ProveAttempt(kernel, kernel.default_config, (LARGE,))
    try:
        record = prove.sample(kernel, kernel.default_config, LARGE, small, executor)
    except MachineError as error:
        printed.not_sampled(attempt, LARGE, str(error))
        return None, out.getvalue()
    printed.sampled(attempt, record)
    return record, out.getvalue()


@pytest.fixture
def less_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tiles of 128 queries are a large problem."""
    monkeypatch.setattr(equivalent, "MOST_FLOPS", LARGE.flops // 4)


@pytest.mark.usefixtures("less_is_large")
def test_a_large_problem_is_judged_on_a_small_one_with_its_code_and_sampled() -> None:
    small = prove.small_ones((JUDGED, LARGE), FLASH, FLASH.default_config, SMS)
    assert small[JUDGED] == JUDGED
    assert small[LARGE].flops <= LARGE.flops // 4
    plans = [FLASH.launch_plan(problem, sms=SMS) for problem in (LARGE, small[LARGE])]
    assert equivalent.modules_of(plans[0]) == equivalent.modules_of(plans[1])
    record, says = sample(FLASH, Simulated())
    assert record is not None
    assert (record.problem, record.small) == (LARGE, small[LARGE])
    assert (record.rows, record.wrong) == (384, "")
    assert f"flash: 1x2x384x64 has the code of {small[LARGE].label}; 384 rows of each head: right" in says


@pytest.mark.usefixtures("less_is_large")
def test_a_large_problem_that_is_wrong_is_no_proof_of_anything() -> None:
    assert isinstance(FLASH.source, Path)
    source = replace_once(FLASH.source.read_text(), ("lse, scale)", "lse, 1.1f * scale)"))
    broken = replace(FLASH, source=source)
    record, _ = sample(broken, Simulated())
    assert record is not None
    assert record.wrong.startswith("INCORRECT")
    assert not ProveAttempt(broken, broken.default_config, (LARGE,), sampled=[record]).passed


@pytest.mark.usefixtures("less_is_large")
def test_a_large_problem_that_does_not_fit_is_said_and_not_proven() -> None:
    class Small(Simulated):
        def run(self, plan: LaunchPlan, inputs: Any) -> RunResult:
            raise MachineError("GPU 0 cannot allocate 3.0 MiB: CUDA_ERROR_OUT_OF_MEMORY")

    record, says = sample(FLASH, Small())
    assert record is None
    assert "1x2x384x64 is not proven for flash: GPU 0 cannot allocate 3.0 MiB: CUDA_ERROR_OUT_OF_MEMORY" in says
