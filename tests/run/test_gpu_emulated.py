"""The GPU executor, whole, on an emulated driver; ``tests/gpu`` has the same and more for a real one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver")

from emulated_cublas import EmulatedCublas
from emulated_driver import BASE, EmulatedDriver

from sdpalab.compile import Build, build
from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import make_inputs
from sdpalab.kernels.cublas import CUBLAS
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module
from sdpalab.kernels.scalar import SCALAR
from sdpalab.problem import Problem
from sdpalab.run import GpuExecutor, KernelFault, SimulatedExecutor, gpu, gpu_driver, gpu_gemm

N = 100
SOURCE = """
__global__ void scale(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
__global__ void square(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = y[i] * y[i];
}
__global__ void spoil(float* x, float* y, int n) { x[3] = 7.0f; y[n] = 1.0f; }
__global__ void far(float* y) { y[1ull << 40] = 1.0f; }
__global__ void count(int* ticket, float* y) { y[blockIdx.x] = atomicAdd(ticket, 1); }
__global__ void settle(int* ticket, int left) { *ticket = left; }
"""
X, Y = Buffer("x", (N,), "float32", "in"), Buffer("y", (N,), "float32", "out")
TICKET = Buffer("ticket", (1,), "int32", "semaphore")
INPUTS = {"x": np.linspace(-1, 1, N, dtype=np.float32)}
PROBLEM = Problem(1, 4, 30, 32, kv_heads=2, seq_kv=41, causal=True)


def step(entry: str, *args: Any, blocks: int = 4, threads: int = 32) -> Launch:
    return Launch((blocks, 1, 1), (threads, 1, 1), args, module=Module("steps.cu", SOURCE, entry))


TWO_STEPS = LaunchPlan((X, Y), (step("scale", "x", "y", 1 / 3, N), step("square", "y", N)))


def counting(left: int) -> LaunchPlan:
    """A plan whose blocks draw numbers from a semaphore that it leaves with ``left``."""
    draw, settle = step("count", "ticket", "y", blocks=N, threads=1), step("settle", "ticket", left, threads=1)
    return LaunchPlan((Y, TICKET), (draw, settle))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDriver]:
    """The emulated driver in place of the machine's, and the emulated cuBLAS on its memory."""
    emulated = EmulatedDriver()

    def built(*args: Any, **options: Any) -> Build:
        made = build(*args, **options)
        return replace(made, cubin=made.ptx)

    monkeypatch.setattr(gpu_driver, "_driver", lambda: emulated)
    monkeypatch.setattr(gpu_driver, "_devices", {})
    monkeypatch.setattr(gpu, "build", built)
    monkeypatch.setattr(gpu_gemm, "_binding", lambda: EmulatedCublas(emulated.memory, BASE))
    yield emulated
    gpu_gemm.blas_of.cache_clear()


def on_gpu(driver: EmulatedDriver, arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, int]:
    """Addresses of copies of the arrays in device memory."""
    addresses = {}
    for name, array in arrays.items():
        _, addresses[name] = driver.cuMemAlloc(array.nbytes)
        driver.cuMemcpyHtoD(addresses[name], array.ctypes.data, array.nbytes)
    return addresses


def from_gpu(driver: EmulatedDriver, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found = np.empty_like(like)
    driver.cuMemcpyDtoH(found.ctypes.data, address, found.nbytes)
    return found


def test_a_plan_runs_as_on_the_simulator_and_leaves_no_memory(driver: EmulatedDriver) -> None:
    executor = GpuExecutor()
    result, simulated = executor.run(TWO_STEPS, INPUTS), SimulatedExecutor().run(TWO_STEPS, INPUTS)
    np.testing.assert_array_equal(result.outputs["y"], simulated.outputs["y"])
    assert result.ptx_sha256 == simulated.ptx_sha256
    assert (result.device, result.hazards, result.changed_inputs) == ("emulated GPU", (), ())
    assert not driver.allocated


def test_what_is_written_where_it_must_not_be_is_found(driver: EmulatedDriver) -> None:
    plan = LaunchPlan((X, Y), (step("spoil", "x", "y", N, blocks=1, threads=1),))
    result = GpuExecutor().run(plan, INPUTS)
    (found,) = result.hazards
    assert "bytes outside buffer y were written, the first 1 bytes behind its end" in found
    assert result.changed_inputs == ("x",)


@pytest.mark.parametrize(
    ("left", "hazards"), [(0, ()), (5, ("semaphore ticket is not left as zeros: element 0 is 5",))]
)
def test_a_semaphore_begins_as_zeros_and_must_end_so(
    driver: EmulatedDriver, left: int, hazards: tuple[str, ...]
) -> None:
    result = GpuExecutor().run(counting(left), {})
    assert sorted(result.outputs["y"].tolist()) == list(range(N))
    assert result.hazards == hazards


def test_preparing_fills_semaphores_with_zeros_and_launching_does_not(driver: EmulatedDriver) -> None:
    arrays = {"y": np.zeros(N, np.float32), "ticket": np.full(1, 1000, np.int32)}
    addresses = on_gpu(driver, arrays)
    prepared = GpuExecutor().prepare(counting(5), addresses)
    for first in (0, 5):
        prepared.launch(9)
        drawn = from_gpu(driver, addresses["y"], arrays["y"])
        assert sorted(drawn.tolist()) == list(range(first, first + N))
    assert driver.streams == [9] * 4


def test_the_cublas_kernel_with_its_products_left_to_cublas(driver: EmulatedDriver) -> None:
    made = make_inputs(PROBLEM)
    inputs = {"q": made.q, "k": made.k, "v": made.v}
    plan = CUBLAS.launch_plan(PROBLEM, lse=True)
    result, simulated = GpuExecutor().run(plan, inputs), SimulatedExecutor().run(plan, inputs)
    assert result.ptx_sha256 == simulated.ptx_sha256
    assert len(result.ptx_sha256) == 1
    assert (result.hazards, result.changed_inputs) == ((), ())
    # Sums of products in another order: float32's roundoff before O is rounded.
    np.testing.assert_allclose(result.outputs["lse"], simulated.outputs["lse"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(result.outputs["o"], simulated.outputs["o"], rtol=2**-10, atol=2**-14)


@pytest.mark.parametrize("products", [False, True])
def test_a_prepared_plan_moves_to_other_buffers(driver: EmulatedDriver, products: bool) -> None:
    """What comes out there is what a plan that was made for them gives."""
    kernel = CUBLAS if products else SCALAR
    plan, streams = kernel.launch_plan(PROBLEM, lse=True), (3, 4)
    places = []
    for seed in streams:
        made = make_inputs(PROBLEM, "normal", seed)
        arrays = {buffer.name: np.zeros(buffer.shape, buffer.dtype) for buffer in plan.buffers}
        arrays |= {"q": made.q, "k": made.k, "v": made.v}
        places.append((on_gpu(driver, arrays), arrays))
    prepared = GpuExecutor().prepare(plan, places[0][0])
    for (addresses, arrays), stream in zip(places, streams, strict=True):
        prepared.place(addresses)
        prepared.launch(stream)
        right = GpuExecutor().run(plan, {name: arrays[name] for name in "qkv"}).outputs
        for name, array in right.items():
            assert from_gpu(driver, addresses[name], array).tobytes() == array.tobytes()


def test_a_prepared_plan_has_one_workspace_for_its_products_as_long_as_it_lives(driver: EmulatedDriver) -> None:
    made = make_inputs(PROBLEM)
    plan = CUBLAS.launch_plan(PROBLEM)
    arrays = {"q": made.q, "k": made.k, "v": made.v}
    missing = [buffer for buffer in plan.buffers if buffer.name not in arrays]
    arrays |= {buffer.name: np.full(buffer.shape, np.nan, buffer.dtype) for buffer in missing}
    addresses = on_gpu(driver, arrays)
    before = set(driver.allocated)
    prepared = GpuExecutor().prepare(plan, addresses)
    assert [driver.allocated[address] for address in set(driver.allocated) - before] == [4 << 20]
    outputs = []
    for stream in (1, 2):
        prepared.launch(stream)
        outputs.append(from_gpu(driver, addresses["o"], arrays["o"]))
    assert outputs[0].tobytes() == outputs[1].tobytes()
    assert np.isfinite(outputs[0]).all()
    del prepared
    assert set(driver.allocated) == before


def test_without_nvmath_a_product_is_refused_and_everything_else_runs(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise MachineError("a matrix product needs cuBLAS through nvmath-python: pip install 'sdpalab[cublas]'")

    monkeypatch.setattr(gpu_gemm, "_binding", missing)
    made, executor = make_inputs(PROBLEM), GpuExecutor()
    with pytest.raises(MachineError, match="pip install 'sdpalab"):
        executor.run(CUBLAS.launch_plan(PROBLEM), {"q": made.q, "k": made.k, "v": made.v})
    assert not driver.allocated
    assert not executor.run(TWO_STEPS, INPUTS).hazards


def test_there_must_be_a_build_for_each_launch(driver: EmulatedDriver) -> None:
    module = TWO_STEPS.launches[0].module
    assert module is not None
    with pytest.raises(UserError, match="the plan has 2 launches, and 1 builds are given for them"):
        GpuExecutor().run(TWO_STEPS, INPUTS, builds=[build(module)])


def test_a_fault_is_the_kernels_and_what_comes_after_it_the_machines(driver: EmulatedDriver) -> None:
    executor = GpuExecutor()
    with pytest.raises(KernelFault, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        executor.run(LaunchPlan((Y,), (step("far", "y", blocks=1, threads=1),)), {})
    with pytest.raises(MachineError, match="its context is lost since run step 1 of the plan"):
        executor.run(TWO_STEPS, INPUTS)
