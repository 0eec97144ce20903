"""``sdpalab sanitize`` as a user meets it: exit codes, plain output, JSON, SARIF, one-line reasons."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpalab.cli import main
from sdpalab.compile import build
from sdpalab.kernels.plan import Module

Runner = Callable[..., "subprocess.CompletedProcess[str]"]

QUICK = ("--schedule", "lockstep", "--async-mode", "late")

RACY = '''
from sdpalab import CudaKernel, Launch

kernel = CudaKernel(
    name="racy",
    source="""extern "C" __global__ void racy(const void *q, const void *k, const void *v, unsigned *o) {
    __shared__ unsigned tile[64];
    tile[threadIdx.x] = threadIdx.x;
    SYNC;
    o[threadIdx.x] = tile[63 - threadIdx.x];
}""",
    entry="racy",
    plan=lambda problem, config: Launch(grid=(1, 1, 1), block=(64, 1, 1), args=("q", "k", "v", "o")),
    configs=[{"SYNC": ""}, {"SYNC": "__syncthreads()"}],
)

def callable_kernel(q, k, v, *, scale, causal):
    return q
'''

PTX = """extern "C" __global__ void twice(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's kernel, and PTX with and without a description of its launch."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "racy.py").write_text(RACY)
    ptx = build(Module("twice.cu", PTX, "twice")).ptx.decode()
    buffer = {"dtype": "int32", "shape": [100]}
    for name, n in (("twice", 100), ("beyond", 200)):
        (folder / f"{name}.ptx").write_text(ptx)
        facts = {"grid": 4, "block": 64, "args": [buffer, buffer, n]}
        (folder / f"{name}.json").write_text(json.dumps(facts))
    (folder / "alone.ptx").write_text(ptx)
    (folder / "strange.ptx").write_text(ptx.replace("ret;", "tcgen05.fence::before_thread_sync;\nret;"))
    return folder


def test_a_clean_kernel(cli: Runner) -> None:
    done = cli("sanitize", "flash", "--shape", "1,1,70,32", *QUICK, "--strict")
    assert (done.returncode, done.stderr) == (0, "")
    assert "flash BLOCK_M=64" in done.stdout
    assert "1x1x70x32" in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("clean: no hazard in 1 run in ")
    assert "\x1b" not in done.stdout


def test_hazards_are_printed_with_both_parties(cli: Runner, files: Path, tmp_path: Path) -> None:
    outputs = ("--json", tmp_path / "o.json", "--sarif", tmp_path / "o.sarif")
    done = cli("sanitize", f"{files / 'racy.py'}:kernel", "--shape", "1,1,16,64", *outputs)
    assert (done.returncode, done.stderr) == (1, "")
    races = [line for line in done.stdout.splitlines() if line.startswith("race ")]
    assert races
    assert all(line.count("racy.cu:") == 2 and line.count("PTX line") == 2 for line in races)
    assert done.stdout.strip().splitlines()[-1].startswith("HAZARDS: ")
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["clean"] is False
    assert len(report["runs"]) == 4
    assert {"race", "uninitialised"} <= {hazard["kind"] for hazard in report["hazards"]}
    sarif = json.loads((tmp_path / "o.sarif").read_text())
    assert len(sarif["runs"][0]["results"]) == len(report["hazards"])


def test_a_knob_can_mend_it(cli: Runner, files: Path) -> None:
    done = cli("sanitize", files / "racy.py", "--shape", "1,1,16,64", "--set", "SYNC=__syncthreads()", *QUICK)
    assert done.returncode == 0, done.stdout


def test_bare_ptx(cli: Runner, files: Path) -> None:
    good = cli("sanitize", files / "twice.ptx", "--json", "-")
    assert good.returncode == 0
    assert json.loads(good.stdout)["clean"] is True
    assert "clean: no hazard in 4 runs" in good.stderr
    bad = cli("sanitize", files / "alone.ptx", "--launch", files / "beyond.json", "--sarif", "-", *QUICK)
    assert bad.returncode == 1
    (run,) = json.loads(bad.stdout)["runs"]
    assert {result["ruleId"] for result in run["results"]} == {"out-of-bounds"}


def test_help_says_how_a_launch_is_described(cli: Runner) -> None:
    done = cli("sanitize", "--help")
    assert done.returncode == 0
    for word in ("--launch", '"grid"', "dynamic_smem", "poison", "SARIF"):
        assert word in done.stdout


BAD: list[tuple[tuple[str, ...], str]] = [
    (("nosuch",), "there is no kernel 'nosuch'"),
    (("flash", "--shape", "1,2,3"), "four integers"),
    (("flash", "--shape", "1,1,64,48"), "supports head_dim"),
    (("flash", "--schedule", "backwards"), "--schedule takes lockstep, forward, reverse, random or all"),
    (("flash", "--async-mode", "never"), "--async-mode takes"),
    (("flash", "--seed", "-1"), "--seed takes a number"),
    (("flash", "--max-steps", "0"), "--max-steps takes a number"),
    (("flash", "--launch", "x.json"), "--launch describes the launch of a FILE.ptx"),
    (("flash", "--json", "-", "--sarif", "-"), "cannot both be standard output"),
    (("flash", "--sarif", "no/such/folder/x.sarif"), "--sarif no/such/folder/x.sarif: there is no directory"),
    (("racy.py:callable_kernel",), "is a Python callable"),
    (("gone.ptx",), "gone.ptx cannot be read"),
    (("alone.ptx",), "alone.ptx needs a description of its launch: --launch FILE.json, or alone.json"),
    (("twice.ptx", "--causal"), "are for kernels"),
    (("strange.ptx", "--launch", "twice.json"), "tcgen05"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_line_and_exit_2(
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    monkeypatch.chdir(files)
    assert main(["sanitize", *arguments]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.strip().splitlines()
    assert line.startswith("sdpalab: ")
    assert reason in line
    assert printed.out == "" if "--json" not in arguments else json.loads(printed.out)["error"] in line
    if reason == "tcgen05":
        assert "PTX line" in line
