"""``sdpalab bench`` from its first line to its last on the stand-in driver, with a simulated clock."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from standin_gpu import StandIn

pytestmark = pytest.mark.first

WRONG = '''
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem

SOURCE = """
__global__ void zeros(unsigned short* o, int size) {
    for (int i = threadIdx.x; i < size; i += blockDim.x) o[i] = 0;
}
"""


def plan(problem: Problem, config: Config) -> Launch:
    size = problem.batch * problem.heads * problem.seq_q * problem.head_dim
    return Launch(grid=(1, 1, 1), block=(128, 1, 1), args=("o", size))


zeros = CudaKernel(name="zeros", source=SOURCE, entry="zeros", plan=plan)
'''


@pytest.mark.slow
def test_a_kernel_that_is_not_green_is_dropped_and_the_others_are_timed(standin: StandIn, tmp_path: Path) -> None:
    """Judged on the simulator, timed by both kinds of clock: as a graph launches it, and as the op calls it."""
    (tmp_path / "wrong.py").write_text(WRONG)
    out = tmp_path / "bench.json"
    code = (
        "import sys; from sdpalab.cli import main\n"
        f"sys.exit(main(['bench', {str(tmp_path / 'wrong.py')!r}, 'flash', '--shape', '1,1,64,64', '--peer', 'torch', "
        f"'--clock', 'gpu', '--clock', 'eager', '--seconds', '15', '--json', {str(out)!r}]))"
    )
    done = standin.run(code, timeout=600)
    printed = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1, printed
    assert "zeros is not timed: it is INCORRECT on simulator sm_90" in printed
    record = json.loads(out.read_text())
    assert (record["complete"], record["sms"]) == (True, 132)
    assert [(each["kernel"], each["passed"]) for each in record["judged"]] == [("zeros", False), ("flash", True)]
    kinds = ("normal", "ramp", "negative")
    sessions = [(result["clock"], result["inputs"]) for result in record["results"]]
    assert sessions == [(clock, kind) for clock in ("gpu", "eager") for kind in kinds]
    worst = {(row["clock"], row["subject"]): row for row in record["worst"]}
    assert set(worst["eager", "flash"]["times_us"]) == set(kinds)
    assert worst["eager", "flash"]["worst_us"] == max(worst["eager", "flash"]["times_us"].values())
    for result in record["results"]:
        measurements = {each["name"]: each for each in result["measurements"]}
        assert set(measurements) == {"torch", "flash", "empty kernel"}
        assert measurements["flash"]["status"] == "MEASURED", measurements["flash"]["reason"]
        assert measurements["flash"]["checks"] >= 2


@pytest.mark.slow
def test_an_interrupt_during_a_launch_ends_it_and_keeps_what_was_measured(standin: StandIn, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    options = ("--shape", "1,1,64,64", "--shape", "1,2,256,64", "--peer", "torch", "--clock", "gpu", "--seconds", "10")
    process = standin.start("bench", "flash", *options, "--json", out)
    patience = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < patience:
        if out.exists() and json.loads(out.read_text())["results"]:
            break
        time.sleep(0.05)
    before = len(standin.launches())
    while process.poll() is None and len(standin.launches()) == before and time.monotonic() < patience:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    record = json.loads(out.read_text())
    assert (record["complete"], len(record["results"])) == (False, 1)


@pytest.mark.slow
def test_windows_caps_and_lengths_are_timed_beside_torch_with_a_mask(standin: StandIn, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    problem = ("--shape", "2,2,64,64", "--window", "20,5", "--kv-lengths", "64,30")
    options = ("--peer", "torch", "--clock", "gpu", "--clock", "eager", "--seconds", "15")
    done = standin.cli("bench", "flash", *problem, *options, "--json", out, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    for result in record["results"]:
        assert result["problem"]["window_size"] == [20, 5]
        measurements = {each["name"]: each for each in result["measurements"]}
        assert set(measurements) == {"torch", "flash", "empty kernel"}
        assert measurements["flash"]["status"] == "MEASURED", measurements["flash"]["reason"]
    capped = standin.cli("bench", "flash", "--shape", "1,1,64,64", "--softcap", "20", "--peer", "torch", timeout=900)
    assert "not measured: torch is called without softcap here" in capped.stdout


@pytest.mark.slow
def test_gradients_are_timed_beside_torchs_backward_pass(standin: StandIn, tmp_path: Path) -> None:
    """All three gradients are checked on both clocks, and TFLOPS count five products."""
    out = tmp_path / "bench.json"
    options = ("--peer", "torch", "--clock", "gpu", "--clock", "eager", "--seconds", "15", "--json", out)
    done = standin.cli("bench", "flash_backward", "--task", "backward", "--shape", "1,1,64,64", *options, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert [result["problem"]["task"] for result in record["results"]] == ["backward"] * 6
    for result in record["results"]:
        measurements = {each["name"]: each for each in result["measurements"]}
        assert set(measurements) == {"torch", "flash_backward", "empty kernel"}
        for name in ("torch", "flash_backward"):
            assert measurements[name]["status"] == "MEASURED", measurements[name]["reason"]
            assert measurements[name]["checks"] >= 2
