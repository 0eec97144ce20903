"""The judge and the main job with the GPU of the stand-in: right, wrong, faulting and hanging kernels, and bundles."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from standin_gpu import StandIn, complaints

pytestmark = pytest.mark.first

KERNELS = Path(__file__).parents[1] / "judge" / "cuda_candidates.py"

JUDGE = """
import json, os
from sdpalab.errors import UserError
from sdpalab.judge import CaseSpec, judge_candidate
from sdpalab.problem import Problem
problem = Problem(1, 1, 9, 32, seq_kv=12)
specs = [CaseSpec("one", problem), CaseSpec("needle", problem, "needle", 1), CaseSpec("again", problem, "ramp", 2)]
print("{")
for place, name in enumerate(os.environ["NAMES"].split()):
    verdict = judge_candidate(os.environ["KERNELS"] + ":" + name, specs, device="gpu", workers=1)
    print("," if place else "", json.dumps(name), ":", json.dumps(verdict.to_dict()))
print("}")
"""


def judged(standin: StandIn, *names: str, **env: str) -> dict[str, Any]:
    """Verdicts by name, on three cases each."""
    done = standin.run(JUDGE, KERNELS=str(KERNELS), NAMES=" ".join(names), **env)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    verdicts: dict[str, Any] = json.loads(done.stdout)
    return verdicts


def statuses(verdict: dict[str, Any]) -> list[str]:
    return [case["status"] for case in verdict["cases"]]


EXPECTED = {
    "right": ("PASSED", ""),
    "drops_a_key": ("INCORRECT", "worst row"),
    "writes_past_the_end": ("HAZARD", "outside buffer o"),
    "writes_q": ("INPUT_CHANGED", "input q"),
    "faults": ("CRASHED", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "traps": ("CRASHED", "CUDA_ERROR_LAUNCH_FAILED"),
    "too_many_threads": ("HAZARD", "1024"),
}


@pytest.mark.slow
def test_every_kernel_has_its_status_and_the_case_behind_a_fault_has_a_gpu(standin: StandIn) -> None:
    verdicts = judged(standin, *EXPECTED, "faults_on_needles")
    for name, (status, words) in EXPECTED.items():
        first = verdicts[name]["cases"][0]
        assert (first["status"], verdicts[name]["device"]) == (status, "NVIDIA H200"), first
        assert words in first["reason"]
    assert statuses(verdicts["right"]) == ["PASSED"] * 3
    # It faults where scores are as large as a needle's, and the process behind it is a fresh one.
    assert statuses(verdicts["faults_on_needles"]) == ["PASSED", "CRASHED", "PASSED"]
    (case, *_) = verdicts["right"]["cases"]
    assert case["run"]["device"] == "NVIDIA H200"
    assert case["run"]["confinement"] in ("namespaces", "processes")
    assert case["run"]["confined_by"]


@pytest.mark.slow
def test_a_kernel_that_hangs_is_killed_and_the_next_one_goes_on(standin: StandIn) -> None:
    standin.configure(max_steps=20_000)
    verdicts = judged(standin, "hangs", "right", STANDIN_CASE_SECONDS="6")
    # The third case is not begun: each costs the GPU all of its time.
    assert statuses(verdicts["hangs"]) == ["TIMED_OUT", "TIMED_OUT"]
    assert "no answer within 6 s" in verdicts["hangs"]["cases"][0]["reason"]
    assert statuses(verdicts["right"]) == ["PASSED"] * 3
    deadline = time.monotonic() + 10  # what was killed is reaped a moment later
    while (left := {entry["pid"] for entry in standin.log() if running(entry["pid"])}) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def running(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


REFUSALS = """
import os
from sdpalab.errors import UserError
from sdpalab.judge import CaseSpec, judge_candidate
from sdpalab.problem import Problem
cases = [CaseSpec("one", Problem(1, 1, 9, 32))]
right = os.environ["KERNELS"] + ":right"
for candidate, options in ((right, {"arch": "sm_100"}), (lambda q, k, v, *, scale, causal: q, {})):
    try:
        judge_candidate(candidate, cases, device="gpu", **options)
    except UserError as error:
        print(error)
try:
    import triton
except ImportError:
    print("no Triton")
else:
    (case,) = judge_candidate(os.environ["TRITON"], [CaseSpec("one", Problem(1, 1, 64, 64))], device="gpu").cases
    print(case.status.value, case.reason)
"""


@pytest.mark.slow
def test_what_the_gpu_does_not_run_and_a_triton_kernel_whose_ptx_is_assembled(standin: StandIn) -> None:
    triton = str(KERNELS.parents[1] / "sim" / "triton_attention.py")
    done = standin.run(REFUSALS, KERNELS=str(KERNELS), TRITON=triton)
    assert done.returncode == 0, done.stderr
    arch, callable_, compiled = done.stdout.splitlines()
    assert "does not run code for sm_100: build for sm_90a" in arch
    assert "runs on torch CPU tensors: device must be cpu or auto" in callable_
    assert compiled.strip() in ("PASSED", "no Triton")


def test_a_case_has_ten_seconds_on_a_gpu() -> None:
    from sdpalab.judge import options

    assert options.GPU_CASE_SECONDS == 10.0


@pytest.mark.slow
def test_the_command_says_how_processes_are_confined(standin: StandIn, tmp_path: Path) -> None:
    done = standin.cli("judge", f"{KERNELS}:right", "--device", "gpu", "--shape", "1,1,9,32")
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert "cases passed on NVIDIA H200" in done.stdout
    assert "confinement: " in done.stdout


@pytest.mark.slow
def test_repro_leaves_a_bundle_that_verifies(standin: StandIn, tmp_path: Path) -> None:
    done = standin.cli("repro", "--kernel", "scalar", "--device", "gpu", "--out", tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run on NVIDIA H200" in done.stdout
    (bundle,) = tmp_path.glob("*.tar.gz")
    assert standin.cli("verify", bundle).returncode == 0
