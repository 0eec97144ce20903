"""``sdpalab sanitize`` as a user meets it: exit codes, plain output, JSON, SARIF, one-line reasons."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpalab.bugs import replace_once
from sdpalab.cli import main
from sdpalab.compile import build
from sdpalab.kernels.plan import Module

Runner = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
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
    (folder / "strange.ptx").write_text(ptx.replace("ret;", "stackrestore.u32 %r1;\nret;"))
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
    assert (
        "race at racy.cu:3 and racy.cu:5: 2 instructions, in 4 of 4 runs, first in 1x1x16x64, forward, late\n"
        "  3 | tile[threadIdx.x] = threadIdx.x;\n"
        "    | ^ st.shared.u32, thread (32, 0, 0) of block (0, 0, 0)\n"
        "  5 | o[threadIdx.x] = tile[63 - threadIdx.x];\n"
        "    | ^ ld.shared.u32, warp 0 of block (0, 0, 0)\n"
        "  overwrites what ld.shared.u32 in line 5 reads, 4 bytes of shared memory at offset 128\n"
        "  usually a missing barrier between them\n"
    ) in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("HAZARDS: 2 hazards in 4 runs")
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["clean"] is False
    assert len(report["runs"]) == 4
    assert {"race", "uninitialised"} <= {hazard["kind"] for hazard in report["hazards"]}
    sarif = json.loads((tmp_path / "o.sarif").read_text())
    assert len(sarif["runs"][0]["results"]) == len(report["groups"]) == 2


def test_one_missing_barrier_fits_a_screen(cli: Runner, tmp_path: Path) -> None:
    """At most 60 lines of 80 columns for a mistake that 32 instructions show in every run."""
    for name in ("my_kernel.py", "my_kernel.cu"):
        (tmp_path / name).write_bytes((EXAMPLES / name).read_bytes())
    source = tmp_path / "my_kernel.cu"
    source.write_text(replace_once(source.read_text(), ("        __syncthreads();\n\n", "\n")))
    done = cli("sanitize", tmp_path / "my_kernel.py", "--shape", "1,1,40,64", *QUICK, env={"COLUMNS": "80"})
    lines = done.stdout.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    report = " ".join(done.stdout.split())
    assert "race at my_kernel.cu:50 and my_kernel.cu:42: 16 instructions" in report
    assert "score = fmaf(q_row[d], k_smem[j][d], score);" in report


@pytest.mark.slow
def test_filters_choose_what_is_shown_and_not_the_outcome(cli: Runner, files: Path) -> None:
    command = ("sanitize", files / "racy.py", "--shape", "1,1,16,64", *QUICK[2:], "--schedule", "forward")
    done = cli(*command, "--kind", "uninitialised")
    assert done.returncode == 1
    assert "race at" not in done.stdout
    assert "uninitialised at racy.cu:5" in done.stdout
    assert "1 of 2 are not shown, because of --kind or --line" in done.stdout
    done = cli(*command, "--line", "3", "--line", "racy.cu:4")
    assert "race at" in done.stdout
    assert "uninitialised at" not in done.stdout


def test_a_suppressed_hazard_stays_in_json_and_sarif(cli: Runner, files: Path, tmp_path: Path) -> None:
    accepted = tmp_path / "accepted"
    accepted.write_text(
        "# of this test\nrace racy.cu:5 racy.cu:3: it is planted\nuninitialised racy.cu:*: it follows\n"
        "race gone.cu:1: no such line\n"
    )
    outputs = ("--json", tmp_path / "o.json", "--sarif", tmp_path / "o.sarif", "--suppressions", accepted)
    done = cli("sanitize", files / "racy.py", "--shape", "1,1,16,64", *QUICK[2:], "--schedule", "forward", *outputs)
    assert done.returncode == 0
    assert "race at racy.cu:3 and racy.cu:5: suppressed: it is planted" in done.stdout
    assert "unused suppression: accepted:4: race gone.cu:1: no such line" in done.stdout
    assert "clean: no hazard (2 suppressed) in 1 run" in done.stdout
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["clean"] is True
    assert len(report["hazards"]) == 3
    assert {group["suppressed"] for group in report["groups"]} == {"it is planted", "it follows"}
    results = json.loads((tmp_path / "o.sarif").read_text())["runs"][0]["results"]
    assert {result["suppressions"][0]["justification"] for result in results} == {"it is planted", "it follows"}


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
    (("flash", "--numerics", "float16"), "--numerics takes hardware, float32, not 'float16'"),
    (("flash", "--seed", "-1"), "--seed takes a number"),
    (("flash", "--max-steps", "0"), "--max-steps takes a number"),
    (("flash", "--launch", "x.json"), "--launch describes the launch of a FILE.ptx or FILE.cu"),
    (("flash", "--json", "-", "--sarif", "-"), "cannot both be standard output"),
    (("flash", "--sarif", "no/such/folder/x.sarif"), "--sarif no/such/folder/x.sarif: there is no directory"),
    (("racy.py:callable_kernel",), "is a Python callable"),
    (("flash", "--kind", "rave"), "--kind takes one of async, barrier"),
    (("flash", "--line", "flash.cu"), "--line takes a line's number or FILE:LINE, not 'flash.cu'"),
    (("flash", "--suppressions", "none"), "none cannot be read"),
    (("flash", "--kv-heads", "1"), "--kv-heads needs a --shape"),
    (("gone.ptx",), "gone.ptx cannot be read"),
    (("alone.ptx",), "alone.ptx needs a description of its launch: --launch FILE.json, or alone.json"),
    (("twice.ptx", "--causal"), "are for kernels"),
    (("strange.ptx", "--launch", "twice.json"), "stackrestore"),
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
    assert printed.out == "" or reason in json.loads(printed.out)["error"]
    if reason == "stackrestore":
        assert "PTX line" in line
