"""The stand-in driver as the real cuda-bindings use it: every kernel gives the simulator's bits; misuse is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from standin_gpu import StandIn

TESTS = Path(__file__).resolve().parents[1]

PARITY = """
import json, sys
from sdpalab.inputs import make_inputs
from sdpalab.kernels.registry import KERNELS
from sdpalab.kernels.userfile import load_user_kernel
from sdpalab.problem import Problem
from sdpalab.run import GpuExecutor, SimulatedExecutor
gpu = GpuExecutor()
simulator = SimulatedExecutor(gpu.arch, checks=())
major, minor = gpu.gpu.capability
for name in sys.argv[1:]:
    kernel = KERNELS[name] if name in KERNELS else load_user_kernel(name)
    if 10 * major + minor < kernel.min_arch:
        continue
    problem = next(
        problem for problem in (Problem(1, 2, 70, 64), Problem(1, 2, 64, 64), Problem(1, 2, 128, 64))
        if kernel.why_not(problem, kernel.default_config) is None
    )
    made = make_inputs(problem)
    inputs = {"q": made.q, "k": made.k, "v": made.v}
    # hopper in a cluster: its merge goes through distributed shared memory.
    config = kernel.default_config.but(**({"SPLIT": 2} if name == "hopper" else {}))
    plan = kernel.launch_plan(problem, config, lse=kernel.lse)
    result, right = gpu.run(plan, inputs), simulator.run(plan, inputs)
    equal = {output: array.tobytes() == right.outputs[output].tobytes() for output, array in result.outputs.items()}
    print(json.dumps([kernel.name, result.device, equal, result.hazards, result.ptx_sha256 == right.ptx_sha256]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["h200", "l4"])
def test_every_kernel_gives_the_simulators_bits_without_a_hazard(standin: StandIn, gpu: str) -> None:
    from sdpalab.kernels.registry import KERNELS, needs

    names = [name for name in KERNELS if needs(name) is None and name != "cublas"]
    standin.configure(gpu=gpu, checks=["race", "async"])
    done = standin.process(sys.executable, "-c", PARITY, *names, timeout=900)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    for name, device, equal, hazards, same_ptx in reports:
        assert (device, hazards, same_ptx) == ({"h200": "NVIDIA H200", "l4": "NVIDIA L4"}[gpu], [], True), name
        assert all(equal.values()), name
    assert {"scalar", "flash"} <= {name for name, *_ in reports}
    assert ("hopper" in {name for name, *_ in reports}) == (gpu == "h200")
    assert [entry for entry in standin.launches() if entry["hazards"] or entry["fault"]] == []
    assert any(entry["cluster"] != [1, 1, 1] for entry in standin.launches()) == (gpu == "h200")


MISUSE = """
from cuda.bindings import driver
from sdpalab.run.gpu_driver import gpu_device
device = gpu_device()
with device.current():
    _, address = driver.cuMemAlloc(100)
    host = bytearray(100)
    import ctypes
    at = ctypes.addressof((ctypes.c_char * 100).from_buffer(host))
    print("fresh", driver.cuMemcpyDtoH(at, address, 100)[0].name, set(host) == {0xA5})
    print("beyond", driver.cuMemcpyDtoH(at, int(address) + 1, 100)[0].name)
    print("free", driver.cuMemFree(address)[0].name)
    print("again", driver.cuMemFree(address)[0].name)
    print("after", driver.cuMemcpyDtoH(at, address, 1)[0].name)
    print("huge", driver.cuMemAlloc(1 << 40)[0].name)
    print("image", driver.cuModuleLoadData(b"no PTX" + bytes(1))[0].name)
print("outside", driver.cuMemAlloc(100)[0].name)
print("attribute", driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
try:
    driver.cuGraphCreate(0)
except RuntimeError as error:
    print("missing", error)
"""


def test_what_a_driver_refuses_is_refused(standin: StandIn) -> None:
    done = standin.run(MISUSE)
    assert done.returncode == 0, done.stderr
    refusals = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert refusals["fresh"] == "CUDA_SUCCESS True"
    assert refusals["free"] == "CUDA_SUCCESS"
    assert {refusals[name] for name in ("beyond", "again", "after")} == {"CUDA_ERROR_INVALID_VALUE"}
    assert refusals["huge"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert refusals["image"] == "CUDA_ERROR_INVALID_PTX"
    assert refusals["outside"] == "CUDA_ERROR_INVALID_CONTEXT"
    assert refusals["attribute"].endswith("132)")
    assert "cuGraphCreate" in refusals["missing"]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["test_gpu_executor.py", "test_gpu_plans.py"])
def test_the_tests_for_a_gpu_pass(standin: StandIn, file: str) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"packages/sdpalab/tests/gpu/{file}")
    done = standin.process(*command, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:]
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("torch sees no GPU" in line for line in skipped), skipped


@pytest.mark.slow
def test_the_judges_tests_for_a_gpu_pass(standin: StandIn) -> None:
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "packages/sdpalab/tests/gpu/test_gpu_judge.py",
    )
    done = standin.process(*command, timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:]
