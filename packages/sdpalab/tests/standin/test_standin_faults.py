"""Every driver call fails once: one sentence, nothing lost, and the next run is as if nothing had been."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from standin_gpu import StandIn

pytestmark = pytest.mark.first

SWEEP = """
import json, sys, traceback
import numpy as np
from sdpalab.errors import MachineError
from sdpalab.inputs import make_inputs
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem
from sdpalab.run import GpuExecutor, KernelFault, gpu_driver
problem = Problem(1, 1, 64, 64)
kernel = KERNELS["hopper"]
made = make_inputs(problem)
inputs = {"q": made.q, "k": made.k, "v": made.v}
plan = kernel.launch_plan(problem)

def afresh():
    gpu_driver._devices.clear()
    gpu_driver._driver.cache_clear()
    return GpuExecutor().run(plan, inputs)

right = afresh().outputs["o"].tobytes()
from standin_driver import DRIVER
from standin_faults import Fault
DRIVER.renew()
held = DRIVER.memory.allocations
afresh()
calls = list(DRIVER.faults.seen)
report = []
for result in RESULTS:
    for place, name in enumerate(calls, 1):
        DRIVER.renew()
        DRIVER.faults.arm(Fault(nth=place, result=result))
        try:
            outcome, message = "ran", "" if afresh().outputs["o"].tobytes() == right else "other bits"
        except (MachineError, KernelFault) as error:
            outcome, message = type(error).__name__, str(error)
        except Exception as error:
            outcome, message = "escaped", traceback.format_exc()
        report.append([name, result, outcome, message, DRIVER.memory.allocations - held])
        DRIVER.renew()
        if afresh().outputs["o"].tobytes() != right:
            report.append([name, result, "the next run differs", "", 0])
        held = DRIVER.memory.allocations
print(json.dumps(report))
"""

NO_MEMORY, UNKNOWN, ILLEGAL_ADDRESS = 2, 999, 700
NAMES = {NO_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY", UNKNOWN: "CUDA_ERROR_UNKNOWN", ILLEGAL_ADDRESS: "ILLEGAL_ADDRESS"}
IGNORED = {"cuMemFree", "cuCtxPopCurrent"}
"""Calls behind which there is nothing that could still go wrong."""


def swept(standin: StandIn, *results: int) -> list[list[Any]]:
    done = standin.run(SWEEP.replace("RESULTS", repr(results)), timeout=900)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report: list[list[Any]] = json.loads(done.stdout)
    return report


@pytest.mark.slow
def test_each_call_of_a_run_fails_in_one_sentence(standin: StandIn) -> None:
    report = swept(standin, NO_MEMORY)
    assert {name for name, *_ in report} >= {
        *("cuInit", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent"),
        *("cuMemAlloc", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuModuleLoadDataEx", "cuModuleGetFunction"),
        *("cuGetProcAddress", "cuTensorMapEncodeTiled", "cuLaunchKernelEx", "cuCtxSynchronize"),
    }
    _check(report)


@pytest.mark.slow
def test_each_call_of_a_run_fails_with_other_errors(standin: StandIn) -> None:
    report = swept(standin, UNKNOWN, ILLEGAL_ADDRESS)
    _check(report)
    kinds = {outcome for name, result, outcome, *_ in report if result == ILLEGAL_ADDRESS and name not in IGNORED}
    assert "KernelFault" in kinds


def _check(report: list[list[Any]]) -> None:
    for name, result, outcome, message, leaked in report:
        if name in IGNORED and outcome == "ran":
            continue
        assert outcome in ("MachineError", "KernelFault"), (name, outcome, message)
        assert "\n" not in message
        assert NAMES[result] in message, (name, message)
        assert leaked == 0 or result == ILLEGAL_ADDRESS, (name, message)


JUDGE = """
import json, os, sys
from pathlib import Path
from sdpalab.errors import MachineError, UserError
from sdpalab.judge import CaseSpec, judge_candidate
from sdpalab.judge.sandbox import confinement, guarded
from sdpalab.problem import Problem
settings, kernels = os.environ["SETTINGS"], os.environ["KERNELS"]
sys.path.append(str(Path(kernels).parent))
from refusing import refusing_guard
# A confined process could not write the log of the stand-in.
guarded._GUARD, guarded._server = refusing_guard(Path(settings).parent), None
confinement._bubblewrap = lambda: None
known = json.load(open(settings))
specs = [CaseSpec(name, Problem(1, 1, 9, 32), "normal", seed) for seed, name in enumerate(("one", "two"))]
report = []
for place in range(1, int(os.environ["CALLS"]) + 1):
    fault = {"nth": place, "result": 2, "process": "sdpalab.judge.sandbox.plan_server", "once": f"{settings}.{place}"}
    json.dump({**known, "faults": [fault]}, open(settings, "w"))
    try:
        verdict = judge_candidate(kernels + ":right", specs, device="gpu", workers=1)
        report.append([place, [[case.status.value, case.reason] for case in verdict.cases]])
    except (MachineError, UserError) as error:
        report.append([place, str(error)])
print(json.dumps(report))
"""


@pytest.mark.slow
def test_each_call_of_a_judgement_fails_without_a_traceback(standin: StandIn) -> None:
    """A call that fails in the plan server: no verdict on the kernel, and the case behind it passes."""
    kernels = Path(__file__).parents[1] / "judge" / "cuda_candidates.py"
    settings = standin.folder / "standin.json"
    env = {"SETTINGS": str(settings), "KERNELS": str(kernels)}
    clean = standin.run(JUDGE, CALLS="0", **env)
    assert clean.returncode == 0, clean.stderr
    done = standin.run(JUDGE, CALLS="40", timeout=1800, **env)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report = json.loads(done.stdout)
    failed = [entry for entry in standin.calls() if entry.get("fault")]
    assert len(failed) == 40
    for place, status in report:
        if isinstance(status, str):
            assert "\n" not in status
            continue
        first, second = status
        assert first[0] in ("PASSED", "INFRA_ERROR"), (place, first)
        assert "Traceback" not in first[1]
        assert second[0] in ("PASSED", "INFRA_ERROR"), (place, second)
        assert "PASSED" in (first[0], second[0]), (place, status)
    deadline = time.monotonic() + 10  # for init, which reaps what has ended
    for pid in {entry["pid"] for entry in standin.log()}:
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, pid
            time.sleep(0.1)


def test_a_fault_at_synchronise_is_the_kernels(standin: StandIn) -> None:
    standin.fail({"function": "cuCtxSynchronize", "result": ILLEGAL_ADDRESS})
    done = standin.run(
        "from sdpalab.run import GpuExecutor, KernelFault\n"
        "from sdpalab.kernels.plan import *\n"
        "step = Launch((1, 1, 1), (32, 1, 1), (), module=Module('e.cu', '__global__ void e() {}', 'e'))\n"
        "try:\n    GpuExecutor().run(LaunchPlan((Buffer('y', (8,), 'float32', 'out'),), (step,)), {})\n"
        "except KernelFault as fault:\n    print(fault)"
    )
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done.stderr
    assert "only a new process can use it" in done.stdout


@pytest.mark.slow
def test_doctor_and_judge_say_in_one_line_that_the_driver_does_not_start(standin: StandIn) -> None:
    standin.fail({"function": "cuInit", "result": 100})
    done = standin.cli("judge", "scalar", "--device", "gpu", "--shape", "1,1,9,32")
    assert done.returncode in (2, 3)
    assert done.stderr.count("\n") == 1
    assert "the NVIDIA driver finds none" in done.stderr
