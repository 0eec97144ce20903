"""The judge with a GPU in the executor's process, which is an emulated one here; ``tests/gpu`` has a real one."""

from __future__ import annotations

from pathlib import Path

import cuda_candidates
import emulated_gpu
import pytest

from sdpalab.errors import UserError
from sdpalab.judge import CaseSpec, Status, isolation, judge_candidate, session
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota
from sdpalab.problem import Problem

FILE = Path(__file__).parent / "cuda_candidates.py"
PROBLEM = Problem(1, 1, 9, 32, seq_kv=12)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "EXECUTOR", "emulated_gpu")
    monkeypatch.setattr(session, "gpu_problem", lambda: "")


def test_a_kernel_is_built_for_the_gpu_and_run_on_it() -> None:
    specs = [CaseSpec("one", PROBLEM), CaseSpec("scaled", PROBLEM, relation="scaled_v")]
    verdict = judge_candidate(cuda_candidates.right, specs, device="gpu")
    assert verdict.passed, verdict.reason
    assert verdict.device == emulated_gpu.DEVICE
    for case in verdict.cases:
        assert case.run["device"] == emulated_gpu.DEVICE
        assert case.errors is not None
        assert case.errors.lse is not None


def test_after_a_fault_the_next_case_has_another_process() -> None:
    """The kernel writes far outside only where scores are as large as a needle's."""
    far = "if (s > 1e3f) o[1LL << 40] = v[0];\n        largest = fmaxf("
    candidate = cuda_candidates.variant("largest = fmaxf(", far)
    specs = [CaseSpec("one", PROBLEM), CaseSpec("needle", PROBLEM, "needle", 1), CaseSpec("again", PROBLEM)]
    verdict = judge_candidate(candidate, specs, device="gpu", workers=1)
    assert [case.status for case in verdict.cases] == [Status.PASSED, Status.CRASHED, Status.PASSED]
    assert verdict.reason.startswith("run one_row")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in verdict.reason


def test_a_triton_kernels_ptx_is_what_is_loaded() -> None:
    pytest.importorskip("triton")
    file = Path(__file__).parents[1] / "sim" / "triton_attention.py"
    (case,) = judge_candidate(str(file), [CaseSpec("one", Problem(1, 1, 64, 64))], device="gpu").cases
    assert case.status is Status.PASSED, case.reason


def test_what_the_gpu_does_not_run_or_take() -> None:
    cases = [CaseSpec("one", PROBLEM)]
    with pytest.raises(UserError, match="does not run code for sm_90: build for sm_89"):
        judge_candidate(cuda_candidates.right, cases, device="gpu", arch="sm_90")
    with pytest.raises(UserError, match="runs on torch CPU tensors: device must be cpu or auto"):
        judge_candidate(lambda q, k, v, *, scale, causal: q, cases, device="gpu")
    (case,) = judge_candidate(f"{FILE}:too_many_threads", cases, device="gpu").cases
    assert case.status is Status.HAZARD
    assert "1024" in case.reason


PROBE = """
import os, resource
from sdpalab.judge.sandbox.wire import Channel, serve

def main(read_fd, write_fd):
    said = {"address": resource.getrlimit(resource.RLIMIT_AS)[0], "gpu": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    serve(Channel(read_fd, write_fd), lambda order, arrays: (said, {}))
"""


def test_a_process_that_uses_a_gpu_is_told_which_and_has_address_space_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "limit_probe.py").write_text(PROBE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    said = []
    for gpu in (False, True):
        process = GuardedProcess("limit_probe", Quota(cpu_seconds=60), untrusted=False, gpu=gpu)
        try:
            process.await_ready()
            process.channel.send({"number": 1}, seconds=60.0)
            said.append(process.channel.receive(seconds=60.0, max_bytes=0)[0])
        finally:
            process.close()
    assert [(each["address"], each["gpu"]) for each in said] == [(16 << 30, ""), (-1, "3")]
