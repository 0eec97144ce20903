"""``sdpalab bench`` where there is no GPU, and what it refuses before it looks for one."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from simulated_clock import Behaviour, SimulatedClock, Work

from sdpalab.cli import main
from sdpalab.commands.bench import show_session
from sdpalab.evidence.store.measured import BenchRecord, session_result
from sdpalab.measure.benchmark import CudaDevice, benchmark
from sdpalab.measure.floor import FloorCheck, check_floor
from sdpalab.measure.l2 import copies_beyond_l2
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.measure.session import MeasuredSession, measure
from sdpalab.measure.stopping import StoppingRule
from sdpalab.problem import MISSION, Problem
from sdpalab.run import torch_gpu
from warpsan.gpus import gpu_named


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a call that must exit with 2 and print nothing else."""
    assert main(["bench", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("arguments", [(), ("flash", "--shape", "mission", "--cold", "--clock", "gpu")])
def test_without_a_gpu_it_says_so_and_what_works(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, *arguments)
    assert "torch finds no GPU here" in message
    for command in ("sdpalab speed-of-light", "sdpalab judge", "sdpalab sanitize"):
        assert command in message


def test_bad_input_is_refused_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(q, k, v, *, scale, causal):\n    return q\n")
    assert "no peer 'fa5'" in refusal(capsys, "--peer", "fa5")
    assert "--clock takes gpu, stream, eager" in refusal(capsys, "--clock", "wall")
    assert "there is no kernel 'flush'" in refusal(capsys, "flush")
    assert "is a Python callable" in refusal(capsys, f"{tmp_path / 'mine.py'}:mine")
    assert "'1,8' has 2" in refusal(capsys, "--shape", "1,8")
    assert "head_dim" in refusal(capsys, "flash", "--shape", "1,8,64,80")
    assert "above 0" in refusal(capsys, "--seconds", "0")


@pytest.fixture
def a_cpu_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eager clock needs no GPU but to wait for it: with a CPU in its place the whole command runs."""
    device = CudaDevice(torch.device("cpu"), "a CPU", arch=90, l2_bytes=1 << 14, uuid="GPU-none")
    monkeypatch.setattr("sdpalab.measure.benchmark.cuda_device", lambda: device)
    monkeypatch.setattr(torch_gpu, "synchronize", lambda: None)


SMALL = ("--shape", "1,1,16,32", "--clock", "eager", "--seconds", "0.3")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.usefixtures("a_cpu_for_a_gpu")
def test_the_command_measures_peers_and_says_who_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    peers = [option for name in ("torch", "torch math", "torch cudnn", "sage") for option in ("--peer", name)]
    # Time for ten rounds of all also on a busy machine: none is to be left out as too slow.
    enough = ("--seconds", "4")
    assert main(["bench", *SMALL, *enough, "--cold", *peers, "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    assert "1x1x16x32: eager time, ramp inputs, measured on a CPU" in shown
    assert "torch cudnn: FAILED" in shown
    assert "not measured: sage: the package sageattention is not installed" in shown
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["record"], written["format"], written["kind"], written["gpu"]) == ("bench", 3, "measured", "a CPU")
    assert (written["sms"], written["complete"]) == (None, True)
    result, *others = written["results"]
    assert [each["inputs"] for each in others] == ["ramp", "negative"]
    measurements = {each["name"]: each for each in result["measurements"]}
    assert measurements["torch"]["status"] == measurements["torch math"]["status"] == "MEASURED"
    assert measurements["torch cudnn"]["summary"] is None
    samples = measurements["torch"]["samples"]
    assert samples["l2"] == "cold"
    assert samples["calls"] % copies_beyond_l2(3 * 16 * 32 * 2, 1 << 14) == 0
    assert len(samples["times_us"]) == len(result["states"]) >= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.usefixtures("a_cpu_for_a_gpu")
def test_nothing_measured_is_a_failure_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SMALL, "--peer", "torch cudnn"]) == 3
    assert "nothing could be measured" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.usefixtures("a_cpu_for_a_gpu")
def test_a_kernel_of_the_lab_needs_the_driver(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scalar", *SMALL]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_session_as_it_is_printed() -> None:
    """The fastest peer is what the others are beside; who has no time has dashes, and a reason below."""

    def floor(time_us: float) -> FloorCheck:
        return check_floor(time_us, MISSION, gpu_named("L4"), l2=L2State.WARM)

    subjects = [
        Work("torch", 40.9).subject(floor=floor),
        Work("torch efficient", 24.5).subject(floor=floor),
        Work("flash", 12.0).subject(floor=floor),
        Work("magic", 1.7).subject(floor=floor),
        Work("empty kernel", 1.3).subject(),
    ]
    clock = SimulatedClock(Behaviour(), 0)
    session = measure(subjects, clock, StoppingRule(least=30, most=30, seconds=1e9), now=clock.now)
    out = io.StringIO()
    show_session(Console(file=out, width=180), "an L4", MISSION, ClockKind.GPU, session)
    shown = out.getvalue()
    rows = {line.split("  ")[0].strip(): line.split() for line in shown.splitlines() if "  " in line}
    assert "against torch efficient" in shown
    assert rows["flash"][-1] == "FASTER"
    assert rows["flash"][-2] == "37%"
    assert rows["torch"][-1] == "SLOWER"
    assert rows["torch efficient"][-1] == "-"
    assert rows["magic"][1:] == ["-"] * 8
    seconds = float(rows["flash"][1]) / 1e6
    rates = [float(cell.replace(",", "")) for cell in rows["flash"][-5:-2]]
    assert rates == pytest.approx(
        [MISSION.flops / seconds / 1e12, 4 * 2 * MISSION.heads * 512 * 64 / seconds / 1e9, 512 / seconds], 5e-3
    )
    assert "magic: INVALID: 1.7" in shown
    assert rows["empty kernel"][-5:-1] == ["-"] * 4
    assert "flash takes 0.4" in shown
    assert "clocks: unknown: not recorded" in shown
    result = session_result(MISSION, ClockKind.GPU, "normal", session, {})
    assert json.loads(json.dumps(result, allow_nan=False))["comparisons"][0]["b"] == "torch efficient"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.usefixtures("a_cpu_for_a_gpu")
def test_what_was_measured_is_kept_when_the_command_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, seen = tmp_path / "out.json", []
    whole = benchmark

    def interrupted(problem: Problem, *arguments: Any, **options: Any) -> MeasuredSession:
        seen.append(json.loads(out.read_text()) if out.exists() else None)
        if len(seen) == 7:
            raise KeyboardInterrupt
        return whole(problem, *arguments, **options)

    monkeypatch.setattr("sdpalab.measure.benchmark.benchmark", interrupted)
    shapes = [word for length in (16, 17, 18) for word in ("--shape", f"1,1,{length},32")]
    with contextlib.suppress(KeyboardInterrupt):
        main(["bench", *shapes, "--clock", "eager", "--seconds", "0.1", "--peer", "torch", "--json", str(out)])
    assert len(seen) == 7
    assert [record and len(record["results"]) for record in seen[:3]] == [None, 1, 2], "written after every session"
    report = json.loads(out.read_text())
    assert report["complete"] is False
    asked = [(result["problem"]["seq_q"], result["inputs"]) for result in report["results"]]
    assert asked == [(length, kind) for length in (16, 17) for kind in ("normal", "ramp", "negative")]
    assert [(row["problem"]["seq_q"], row["subject"]) for row in report["worst"]] == [(16, "torch"), (17, "torch")]
    assert BenchRecord.from_dict(report).format == 3
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"], "no temporary file is left"
