"""``sdpalab profile`` without a GPU, and the run of ncu against a program that behaves as ncu does."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sdpalab.cli import main
from sdpalab.commands.profile import show_launch
from sdpalab.errors import MachineError
from sdpalab.kernels.registry import get
from sdpalab.problem import MISSION, Problem
from sdpalab.profile import profile_command, read_raw_csv, run_ncu
from sdpalab.profile.simulated import simulated_counts

PAGE = Path(__file__).parent / "synthetic_raw.csv"

NCU = """#!{python}
# Behaves as ncu: with --export it runs the program behind its own options and writes a report if that launched
# something; with --import it prints the page of one.
import os, pathlib, sys
options = [each for each in sys.argv[1:] if each.startswith("--")]
if "--import" in options:
    print(pathlib.Path(sys.argv[sys.argv.index("--import") + 1]).read_text(), end="")
    sys.exit(0)
mood = os.environ.get("MOOD", "")
if mood == "refused":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
    sys.exit(1)
if mood == "crashed":
    print("==PROF== Connected\\n==ERROR== The application returned an error code (9).\\ntail")
    sys.exit(9)
if mood == "nothing":
    print("==WARNING== No kernels were profiled.")
    sys.exit(0)
if "gmma" in "".join(options) and mood == "no gmma":
    print("==ERROR== Failed to find metric sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active")
    sys.exit(9)
report = next(each for each in options if each.startswith("--export=")).partition("=")[2]
pathlib.Path(report).write_text(pathlib.Path(os.environ["PAGE"]).read_text())
"""


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text(NCU.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("PAGE", str(PAGE))
    return program


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "flash", "--out", str(tmp_path / "p")]) == 2
    assert "torch finds no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["flahs"], "did you mean 'flash'"),
        (["flash", "--shape", "1,1,8,7"], "supports head_dim 32, 64, 96, 128, 192 or 256, not 7"),
        (["flash", "--set", "BLOCK=1"], "has no knob 'BLOCK'"),
    ],
    ids=["name", "shape", "knob"],
)
def test_bad_input_is_refused_before_a_gpu_is_looked_for(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_the_command_leaves_clocks_alone_and_profiles_one_run(ncu: Path, tmp_path: Path) -> None:
    command = profile_command("flash", MISSION, {"NUM_STAGES": "3"}, tmp_path / "flash.ncu-rep")
    assert command[0] == str(ncu)
    assert {"--clock-control=none", "--profile-from-start=off", "--cache-control=none"} <= set(command)
    assert command[-3:-1] == ["-m", "sdpalab.profile.target"]
    order = json.loads(command[-1])
    assert Problem(**order["problem"]) == MISSION
    assert order["settings"] == {"NUM_STAGES": "3"}
    assert "--cache-control=all" in profile_command("flash", MISSION, {}, tmp_path / "x", cold=True)


def test_the_report_is_kept_and_its_page_returned(ncu: Path, tmp_path: Path) -> None:
    report = tmp_path / "flash.ncu-rep"
    page = run_ncu(profile_command("flash", MISSION, {}, report), report)
    assert report.is_file()
    assert read_raw_csv(page) == read_raw_csv(PAGE.read_text())


@pytest.mark.parametrize(
    ("mood", "reason"),
    [
        ("refused", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("crashed", r"exit code 9: ==ERROR== The application returned an error code \(9\)"),
        ("nothing", "No kernels were profiled"),
    ],
)
def test_what_ncu_refuses_is_reported(
    ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mood: str, reason: str
) -> None:
    monkeypatch.setenv("MOOD", mood)
    report = tmp_path / "flash.ncu-rep"
    with pytest.raises(MachineError, match=reason):
        run_ncu(profile_command("flash", MISSION, {}, report), report)


def test_the_metrics_of_wgmma_are_collected_on_sm_90_only(ncu: Path, tmp_path: Path) -> None:
    for arch, asked in (("sm_90a", True), ("sm_90", True), ("sm_89", False), ("sm_100a", False), ("", False)):
        command = profile_command("flash", MISSION, {}, tmp_path / "x", arch=arch)
        metrics = [word for word in command if word.startswith("--metrics=")]
        assert len(metrics) == asked
        assert all("sm__inst_executed_pipe_tensor_op_gmma.avg" in word for word in metrics)


def test_a_metric_that_ncu_lacks_fails_no_profile(ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "flash.ncu-rep"
    command = profile_command("flash", MISSION, {}, report, arch="sm_90a")
    monkeypatch.setenv("MOOD", "no gmma")
    assert read_raw_csv(run_ncu(command, report)) == read_raw_csv(PAGE.read_text())
    # Other failures still raise.
    monkeypatch.setenv("MOOD", "crashed")
    with pytest.raises(MachineError, match="exit code 9"):
        run_ncu(command, report)


def test_without_ncu_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sdpalab.profile.ncu._PLACES", str(tmp_path))
    with pytest.raises(MachineError, match=r"ncu \(Nsight Compute\) is not installed"):
        profile_command("flash", MISSION, {}, tmp_path / "x")


def test_measured_and_simulated_stand_side_by_side() -> None:
    kernel, problem = get("flash"), Problem(1, 1, 64, 64)
    counts = simulated_counts(kernel, problem, kernel.default_config, "sm_89")
    (entry, numbers), *_ = counts
    assert "flash" in entry
    assert numbers["read_bytes"] + numbers["write_bytes"] >= problem.least_bytes
    assert numbers["conflicts"] == 0
    (launch,) = read_raw_csv(PAGE.read_text())
    out = io.StringIO()
    shown = show_launch(Console(file=out, width=200), "a GPU", launch, counts)
    assert shown["simulated"] == numbers
    ratio = launch.figures["instructions"] / numbers["warp_instructions"]
    assert f"{ratio:.2f}" in next(line for line in out.getvalue().splitlines() if "warp instructions" in line)
    assert "limited by latency" in out.getvalue()
    assert "not reported by this ncu: FMA pipe busy" in out.getvalue()


def test_a_library_kernel_has_no_simulated_counts() -> None:
    (launch,) = read_raw_csv(PAGE.read_text().replace("flash_attention(", "ampere_gemm_64x64(", 1))
    shown = show_launch(Console(file=io.StringIO()), "a GPU", launch, [("_Z15flash_attentionPK", {"local": 1.0})])
    assert shown["simulated"] == {}
