"""The command line as a user meets it: exit codes, one-line reasons, JSON, plain output where there is no terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sdpalab import StaticLimits, doctor
from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.kernels import registry
from warpsan import build as warpsan_build
from warpsan.doctor import Health
from warpsan.host.cpus import usable_cpus

pytestmark = pytest.mark.first

ROOT = Path(__file__).resolve().parents[3]
Runner = Callable[..., "subprocess.CompletedProcess[str]"]

SMALL = ("--shape", "1,1,17,32")

WRONG = """
def zeros(q, k, v, *, scale, causal):
    return 0 * q

def right(q, k, v, *, scale, causal):
    import torch
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

NUMBER = 3
"""

BROKEN_SOURCE = '''
from sdpalab import CudaKernel, Launch

kernel = CudaKernel(
    name="broken",
    source="""extern "C" __global__ void broken(const void *q, const void *k, const void *v, void *o) {
    int fine = 1;
    this_is_not_cuda(fine);
}""",
    entry="broken",
    plan=lambda problem, config: Launch(grid=(1, 1, 1), block=(32, 1, 1), args=("q", "k", "v", "o")),
)
'''

OVERWEIGHT = '''
from sdpalab import CudaKernel, Launch, StaticLimits

kernel = CudaKernel(
    name="overweight",
    source="""extern "C" __global__ void overweight(const void *q, const void *k, const void *v, unsigned short *o) {
    __shared__ unsigned short tile[1024];
    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    o[threadIdx.x] = tile[31 - threadIdx.x];
}""",
    entry="overweight",
    plan=lambda problem, config: Launch(grid=(1, 1, 1), block=(32, 1, 1), args=("q", "k", "v", "o")),
    limits=StaticLimits(shared_bytes=1024, reason="this test"),
)
'''


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of users' files, good and bad."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(WRONG)
    (folder / "broken.py").write_text(BROKEN_SOURCE)
    (folder / "overweight.py").write_text(OVERWEIGHT)
    (folder / "fails.py").write_text("import torch\nraise RuntimeError('no luck today')\n")
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "not_a_bundle.tar.gz").write_bytes(b"hello" * 100)
    (folder / "empty").mkdir()
    return folder


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The reason on stderr: exactly one line, and no traceback. A slow machine shows signs of life before it."""
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("judging ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("sdpalab: ")
    assert "Traceback" not in done.stderr
    return lines[0]


BAD_INPUT: list[tuple[str, tuple[str, ...], str]] = [
    ("no command", (), "no command"),
    ("unknown command", ("frobnicate",), "frobnicate"),
    ("unknown option", ("judge", "scalar", "--frobnicate"), "--frobnicate"),
    ("missing argument", ("judge",), "--self-test"),
    ("option without a number", ("judge", "scalar", *SMALL, "--seed", "many"), "--seed"),
    ("unknown kernel", ("judge", "flahs"), "flash"),
    ("unknown kernel, build", ("build", "flahs"), "flash"),
    ("unknown kernel, repro", ("repro", "--kernel", "flahs"), "flash"),
    ("a user's file with several kernels, repro", ("repro", "--kernel", "{files}/mine.py"), "right"),
    ("three numbers", ("judge", "scalar", "--shape", "1,8,512"), "four integers"),
    ("not numbers", ("judge", "scalar", "--shape", "1,8,x,64"), "four integers"),
    ("neither numbers nor a name", ("judge", "scalar", "--shape", "missoin"), "mission"),
    ("a zero", ("judge", "scalar", "--shape", "1,0,512,64"), "H must be at least 1"),
    ("a negative number", ("judge", "scalar", "--shape", "1,8,-512,64"), "S must be at least 1"),
    ("head_dim", ("judge", "scalar", "--shape", "1,1,16,48"), "head_dim"),
    ("head_dim, build", ("build", "scalar", "--shape", "1,1,16,48"), "head_dim"),
    ("kv_heads", ("judge", "scalar", "--shape", "1,8,16,64", "--kv-heads", "3"), "3 does not divide 8"),
    ("kv_heads zero", ("judge", "scalar", "--shape", "1,8,16,64", "--kv-heads", "0"), "kv_heads"),
    ("kv_heads without a shape", ("judge", "scalar", "--kv-heads", "2"), "--shape"),
    ("dtype", ("judge", "scalar", "--dtype", "float8"), "bfloat16"),
    ("device", ("judge", "scalar", *SMALL, "--device", "tpu"), "tpu"),
    ("level", ("judge", "scalar", *SMALL, "--level", "max"), "quick or full"),
    ("self-test of a kernel", ("judge", "scalar", "--self-test"), "takes no KERNEL"),
    ("arch", ("judge", "scalar", *SMALL, "--arch", "sm_75"), "sm_80"),
    ("knob", ("judge", "scalar", *SMALL, "--set", "BLOCK_Q=64"), "BLOCK_Q"),
    ("knob, build", ("build", "scalar", "--set", "BLOCK_Q=64"), "BLOCK_Q"),
    ("knob that is no number", ("build", "scalar", "--set", "BLOCK_M=wide"), "integer"),
    ("setting without =", ("build", "scalar", "--set", "BLOCK_M"), "KEY=VALUE"),
    ("setting given twice", ("build", "scalar", "--set", "BLOCK_M=32", "--set", "BLOCK_M=64"), "twice"),
    ("architecture", ("build", "scalar", "--arch", "sm_999"), "sm_999"),
    ("architecture below the lab's", ("build", "scalar", "--arch", "sm_70"), "sm_80"),
    ("no such file", ("judge", "{files}/nowhere.py"), "does not exist"),
    ("file that does not import", ("judge", "{files}/fails.py", *SMALL), "no luck today (line 2)"),
    ("file with a syntax error", ("judge", "{files}/syntax.py", *SMALL), "line 1"),
    ("no such name", ("judge", "{files}/mine.py:nothing", *SMALL), "right"),
    ("not a kernel", ("judge", "{files}/mine.py:NUMBER", *SMALL), "NUMBER"),
    ("several kernels", ("judge", "{files}/mine.py", *SMALL), "right"),
    ("source that does not compile", ("judge", "{files}/broken.py", *SMALL), "broken.cu, line 3"),
    ("source that does not compile, build", ("build", "{files}/broken.py"), "broken.cu, line 3"),
    ("a callable cannot be built", ("build", "{files}/mine.py:right"), "callable"),
    ("no such bundle", ("verify", "{files}/nowhere.tar.gz"), "nowhere.tar.gz"),
    ("not a bundle", ("verify", "{files}/not_a_bundle.tar.gz"), "not a bundle"),
    ("a folder that is no bundle", ("verify", "{files}/empty"), "not a bundle"),
    ("report of no bundle", ("report", "{files}/nowhere.tar.gz"), "nowhere.tar.gz"),
    ("json into a folder that is not there", ("kernels", "--json", "{files}/nowhere/k.json"), "nowhere"),
    ("out below a file", ("repro", "--kernel", "scalar", "--out", "{files}/mine.py/out"), "mine.py/out"),
    ("device of repro", ("repro", "--device", "tpu"), "tpu"),
    ("no GPU executor yet", ("repro", "--device", "gpu"), "gpu"),
]


@pytest.mark.parametrize(("arguments", "says"), [row[1:] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT])
def test_bad_input_is_one_sentence_and_exit_2(
    cli_here: Runner, files: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = cli_here(*(argument.format(files=files) for argument in arguments), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in one_line(done)


def test_a_process_ends_as_main_returns(cli: Runner, cli_here: Runner) -> None:
    done, here = cli("judge", "flahs"), cli_here("judge", "flahs")
    assert done.returncode == here.returncode == 2
    assert done.stderr == here.stderr
    assert done.stdout == here.stdout == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_out_that_is_read_only_is_exit_2(cli: Runner, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = cli("repro", "--kernel", "scalar", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "cannot write" in one_line(done)


def test_importing_the_package_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, sdpalab; sdpalab.Problem; sdpalab.CudaKernel; sdpalab.Verdict; assert callable(sdpalab.judge);"
        "print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(IMPORT_FOLDERS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    import sdpalab

    assert [name for name in sdpalab.__all__ if not hasattr(sdpalab, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sdpalab.nothing
    assert set(sdpalab.__all__) <= set(dir(sdpalab))


def test_version_is_the_projects() -> None:
    import sdpalab

    assert f'version = "{sdpalab.__version__}"' in (ROOT / "packages/sdpalab/pyproject.toml").read_text()


def test_help_lists_the_commands(cli: Runner) -> None:
    done = cli("--help")
    assert done.returncode == 0
    for command in ("repro", "kernels", "doctor", "build", "judge", "verify"):
        assert command in done.stdout
    assert cli("--version").stdout.startswith("sdpalab ")


def test_help_imports_no_command_and_a_command_no_other() -> None:
    code = (
        "import sys; from sdpalab.cli import main; main(['--help']); "
        "print(*sorted({'numpy', 'torch', 'warpsan.host.launch', 'sdpalab.compile'} & set(sys.modules)), sep=','); "
        "import sdpalab.commands.bench; print(*{'numpy', 'warpsan.host.launch'} & set(sys.modules)); "
        "main(['doctor', '--nosuch']); "
        "print(*sorted(name for name in sys.modules if name.startswith('sdpalab.commands.')), sep=',')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, after_help, after_bench, after_doctor = done.stdout.splitlines()
    assert (after_help, after_bench) == ("", "")
    assert "sdpalab.commands.doctor" in after_doctor
    assert "sdpalab.commands.judge" not in after_doctor


def test_the_help_of_numerics_names_the_rules_of_the_simulator() -> None:
    from warpsan import DEFAULT_NUMERICS, NUMERICS
    from warpsan.terminal.options import NumericsOption, checked_numerics

    help_text = NumericsOption.__metadata__[0].help
    assert all(name in help_text for name in NUMERICS)
    assert f"{DEFAULT_NUMERICS} (the default)" in help_text
    assert checked_numerics(None) == DEFAULT_NUMERICS


def test_every_entry_of_the_command_line_is_a_command_with_a_short_summary() -> None:
    from sdpalab.cli import COMMANDS
    from warpsan.terminal.lazy import LazyCommands

    commands = LazyCommands("sdpalab.commands", COMMANDS)
    assert list(commands) == list(COMMANDS)
    assert all(commands[name].name == name for name in COMMANDS)
    assert all(len(entry.summary) <= 60 for entry in COMMANDS.values())


@pytest.mark.skipif(usable_cpus() < 2, reason="NumPy has one thread on one core anyway")
def test_a_command_that_keeps_every_core_busy_gives_numpy_one_thread() -> None:
    code = """if True:
        import os, sys
        from sdpalab.cli import COMMANDS
        from warpsan.terminal.lazy import LazyCommands
        assert "numpy" not in sys.modules, "it has its threads before any command is looked up"
        LazyCommands("sdpalab.commands", COMMANDS)["repro"]
        import numpy
        numpy.ones((256, 256)) @ numpy.ones((256, 256))
        print(len(os.listdir("/proc/self/task")))
    """
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=free, capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr


def test_kernels_lists_the_ladder(cli: Runner, tmp_path: Path) -> None:
    target = tmp_path / "kernels.json"
    done = cli("kernels", "--json", target)
    assert done.returncode == 0, done.stderr
    listed = {row["name"]: row for row in json.loads(target.read_text())["kernels"]}
    assert list(listed) == list(registry.SHIPPED)
    assert listed["scalar"]["knobs"].keys() == {
        "BLOCK_M",
        "BLOCK_N",
        "NUM_WARPS",
        "VEC_WIDTH",
        "SYNC_POLICY",
        "REDUCE",
    }
    for row in listed.values():
        assert {64, 128} <= set(row["head_dims"])
        assert row["name"] in done.stdout
        assert row["idea"]
    assert "bfloat16" in listed["flash"]["dtypes"]


def test_doctor_is_ready_here(cli: Runner) -> None:
    done = cli("doctor", "--json", "-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ready"] is True
    assert {
        "Python",
        "torch",
        "NVRTC",
        "CUDA headers",
        "compile",
        "C++ compiler",
        "disassemblers",
        "Triton",
        "GPU",
        "build cache",
        "disk",
    } <= {check["name"] for check in report["checks"]}
    assert "ready" in done.stderr


def test_doctor_says_what_is_missing_and_exits_3(cli: Runner, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch in this test')\n")
    done = cli("doctor", env={"PYTHONPATH": os.pathsep.join([str(tmp_path), *IMPORT_FOLDERS])})
    assert done.returncode == 3, done.stdout + done.stderr
    assert "no torch in this test" in done.stdout
    assert "pip install torch" in done.stdout
    assert "not ready: torch" in done.stdout


def test_doctor_speaks_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs the extra: pip install 'sdpalab[triton]'")
    check = doctor._triton()
    assert check.health is Health.OK, check
    assert re.match(
        r"3\.\d+\.\d+.*: a kernel to PTX and a cubin for sm_89 in \d+ ms; ptxas \S+ for sm_80,", check.detail
    )
    monkeypatch.setattr(warpsan_build, "TESTED", ((3, 0), (3, 1)))
    check = doctor._triton()
    assert (check.health, "pip install 'triton>=3.0,<3.2'" in check.advice) == (Health.WARN, True)
    monkeypatch.setitem(sys.modules, "triton", None)
    check = doctor._triton()
    assert (check.health, check.advice) == (Health.OK, "pip install 'sdpalab[triton]'")


def test_build_prints_resources_and_the_second_time_hits_the_cache(cli: Runner, fresh_cache: Path) -> None:
    done = cli("build", "flash", "--json", "-")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["builds"][0]
    again = json.loads(cli("build", "flash", "--json", "-").stdout)["builds"][0]
    assert (first["cache_hit"], again["cache_hit"]) == (False, True)
    assert first["ptx_sha256"] == again["ptx_sha256"]
    assert 0 < first["resources"]["registers"] <= 128
    assert first["resources"]["spill_bytes"] == 0
    assert first["gate"]["ok"] is True
    for words in ("registers", "spill", "shared memory", "blocks", "HMMA", "gate passed"):
        assert words in done.stderr


@pytest.mark.slow
def test_build_takes_an_architecture_and_knobs(cli: Runner) -> None:
    plain = json.loads(cli("build", "scalar", "--json", "-").stdout)["builds"][0]
    other = json.loads(cli("build", "scalar", "--arch", "sm_90", "--set", "BLOCK_N=32", "--json", "-").stdout)
    assert other["builds"][0]["arch"] == "sm_90"
    assert "BLOCK_N=32" in other["config"]
    assert other["builds"][0]["key"] != plain["key"]


def test_build_fails_the_gate_with_exit_1(cli: Runner, files: Path) -> None:
    done = cli("build", files / "overweight.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "gate failed" in done.stdout
    assert "2048" in done.stdout
    assert "1024" in done.stdout
    assert "this test" in done.stdout


def test_judge_passes_a_shipped_kernel(cli: Runner, tmp_path: Path) -> None:
    target = tmp_path / "verdict.json"
    done = cli("judge", "flash", "--device", "sim", *SMALL, "--causal", "--json", target)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(target.read_text())
    assert verdict["status"] == "PASSED"
    assert {case["status"] for case in verdict["cases"]} == {"PASSED"}
    assert verdict["cases"][0]["problem"]["causal"]
    assert {"causal", "not causal", "window_size", "kv_lengths"} <= set(verdict["covers"])
    assert done.stdout.strip().splitlines()[-1].startswith("PASSED: flash")


def test_judge_rejects_zeros_with_the_worst_row(cli: Runner, files: Path, tmp_path: Path) -> None:
    target = tmp_path / "verdict.json"
    done = cli("judge", f"{files}/mine.py:zeros", *SMALL, "--json", target)
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(target.read_text())["status"] == "INCORRECT"
    assert done.stdout.strip().splitlines()[-1].startswith("INCORRECT: zeros")
    assert "worst row" in done.stdout


@pytest.mark.slow
def test_judge_accepts_a_torch_callable_and_named_shapes(cli: Runner, files: Path) -> None:
    done = cli("judge", f"{files}/mine.py:right", "--shape", "small", "--shape", "1,2,5,64", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr


def test_output_is_plain_where_there_is_no_terminal(cli: Runner) -> None:
    done = cli("kernels", env={"COLUMNS": "50"})
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 50


def test_ascii_output_does_not_fail(cli: Runner) -> None:
    done = cli("kernels", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "flash" in done.stdout


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m sdpalab kernels | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(IMPORT_FOLDERS)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["cublas", "flash"])
def test_repro_leaves_a_bundle_that_verifies_until_a_byte_is_flipped(cli: Runner, tmp_path: Path, kernel: str) -> None:
    done = cli("repro", "--kernel", kernel, "--out", tmp_path / "out", "--json", tmp_path / "repro.json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "repro.json").read_text())
    assert result["passed"] is True
    assert [attempt["kernel"] for attempt in result["attempts"]] == [kernel]
    bundle = tmp_path / "out" / Path(result["bundle"]).name
    report = tmp_path / "out" / Path(result["report"]).name
    assert "<html" in report.read_text()[:200].lower()
    assert str(bundle.name) in done.stdout

    assert cli("verify", bundle).returncode == 0
    again = cli("report", bundle, "--out", tmp_path / "again.html")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.html").read_bytes() == report.read_bytes()
    damaged = bytearray(bundle.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    bundle.write_bytes(damaged)
    rejected = cli("verify", bundle)
    assert rejected.returncode == 1, rejected.stderr
    assert "rejected" in rejected.stdout
    refused = cli("report", bundle, "--out", tmp_path / "none.html", "--json", "-")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["report"] is None
    assert not (tmp_path / "none.html").exists()


@pytest.mark.slow
def test_repro_of_a_kernel_over_its_limits_is_exit_1_and_still_leaves_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sdpalab.cli import main
    from sdpalab.evidence import verify_bundle

    strict = replace(registry.KERNELS["flash"], limits=StaticLimits(registers=16, reason="this test"))
    monkeypatch.setattr(registry, "KERNELS", {"flash": strict})
    assert main(["repro", "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out
    assert "gate failed: registers is" in printed
    assert "0 of 1 kernels" in printed
    (bundle,) = (tmp_path / "out").glob("*.tar.gz")
    assert verify_bundle(bundle).accepted
