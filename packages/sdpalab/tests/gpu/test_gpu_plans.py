"""Plans on a GPU: prepared on device pointers, moved, with products and semaphores; and what is left of memory.

Without a GPU these run on the stand-in (``tests/standin``), with an emulation of cuBLAS on its memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from emulated_cublas import EmulatedCublas

from sdpalab.compile import build
from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import make_inputs
from sdpalab.kernels.cublas import CUBLAS
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module
from sdpalab.kernels.registry import KERNELS
from sdpalab.kernels.scalar import SCALAR
from sdpalab.problem import Problem
from sdpalab.run import GpuExecutor, SimulatedExecutor, gpu_gemm, torch_gpu
from sdpalab.run.gpu_gemm import gemm_problem, workspace_size

pytestmark = pytest.mark.gpu

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


class CublasOnStandIn(EmulatedCublas):
    """cuBLAS's products in the memory of the stand-in driver."""

    def __init__(self, memory: Any) -> None:
        super().__init__(np.empty(0, np.uint8), 0)
        self._regions = memory

    def _place(self, address: int) -> tuple[np.ndarray[Any, Any], int]:
        region = self._regions.region(address)
        return region.bytes, address - region.begin


def stand_in() -> Any:
    """The stand-in driver of this process; None on a real GPU."""
    module = sys.modules.get("standin_driver")
    return module and module.DRIVER


@pytest.fixture
def products(gpu: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """cuBLAS: the machine's, or on the stand-in an emulation of it."""
    if stand_in() is not None:
        library = CublasOnStandIn(stand_in().memory)
        monkeypatch.setattr(gpu_gemm, "_binding", lambda: library)
    elif gemm_problem():
        pytest.skip(gemm_problem())
    gpu_gemm.blas_of.cache_clear()
    yield
    gpu_gemm.blas_of.cache_clear()


def on_gpu(gpu: GpuExecutor, arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, int]:
    """Addresses of copies of the arrays in device memory, which the process keeps."""
    addresses, driver = {}, gpu.gpu.driver
    with gpu.gpu.current():
        for name, array in arrays.items():
            addresses[name] = int(gpu.gpu.check(driver.cuMemAlloc(array.nbytes), "allocate"))
            gpu.gpu.check(driver.cuMemcpyHtoD(addresses[name], array.ctypes.data, array.nbytes), "copy")
    return addresses


def from_gpu(gpu: GpuExecutor, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = np.empty_like(like)
    with gpu.gpu.current():
        gpu.gpu.synchronize("finish")
        gpu.gpu.check(gpu.gpu.driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes), "copy")
    return array


def test_a_plan_leaves_no_memory(gpu: GpuExecutor) -> None:
    if stand_in() is None:
        pytest.skip("a real driver does not say which allocations there are")
    before = stand_in().memory.allocations
    result, simulated = gpu.run(TWO_STEPS, INPUTS), SimulatedExecutor(gpu.arch).run(TWO_STEPS, INPUTS)
    np.testing.assert_array_equal(result.outputs["y"], simulated.outputs["y"])
    assert stand_in().memory.allocations == before


def test_preparing_fills_semaphores_with_zeros_and_launching_does_not(gpu: GpuExecutor) -> None:
    arrays = {"y": np.zeros(N, np.float32), "ticket": np.full(1, 1000, np.int32)}
    addresses = on_gpu(gpu, arrays)
    prepared = gpu.prepare(counting(5), addresses)
    for first in (0, 5):
        prepared.launch()
        drawn = from_gpu(gpu, addresses["y"], arrays["y"])
        assert sorted(drawn.tolist()) == list(range(first, first + N))


def test_a_plan_is_prepared_on_torchs_tensors(gpu: GpuExecutor) -> None:
    torch = pytest.importorskip("torch")
    if not torch_gpu.available():
        pytest.skip("torch sees no GPU")
    device = torch_gpu.device(0)
    whole = torch.zeros(2 * N + 8, device=device)
    x, y = torch.from_numpy(INPUTS["x"]).to(device, copy=True), whole[N : 2 * N]
    prepared = gpu.prepare(TWO_STEPS, {"x": x, "y": y})
    prepared.launch(torch_gpu.stream())
    torch_gpu.synchronize()
    np.testing.assert_array_equal(y.cpu().numpy(), gpu.run(TWO_STEPS, INPUTS).outputs["y"])
    assert not whole[:N].any()
    assert not whole[2 * N :].any()
    with pytest.raises(UserError, match="not float16"):
        gpu.prepare(TWO_STEPS, {"x": x.half(), "y": y})


@pytest.mark.usefixtures("products")
def test_the_cublas_kernel_with_its_products_left_to_cublas(gpu: GpuExecutor) -> None:
    drawn = make_inputs(PROBLEM)
    inputs = {"q": drawn.q, "k": drawn.k, "v": drawn.v}
    plan = CUBLAS.launch_plan(PROBLEM, lse=True)
    result, simulated = gpu.run(plan, inputs), SimulatedExecutor(gpu.arch).run(plan, inputs)
    assert result.ptx_sha256 == simulated.ptx_sha256
    assert len(result.ptx_sha256) == 1
    assert (result.hazards, result.changed_inputs) == ((), ())
    # Sums of products in another order: float32's roundoff before O is rounded.
    np.testing.assert_allclose(result.outputs["lse"], simulated.outputs["lse"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(result.outputs["o"], simulated.outputs["o"], rtol=2**-10, atol=2**-14)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("kernel", [SCALAR, CUBLAS, KERNELS["hopper"]], ids=lambda kernel: kernel.name)
def test_a_prepared_plan_moves_to_other_buffers(gpu: GpuExecutor, kernel: Any) -> None:
    """The outputs there equal those of a plan made for these buffers."""
    if gpu.gpu.capability < (9, 0) and kernel.min_arch >= 90:
        pytest.skip(f"{gpu.device} has no tensor maps")
    problem = Problem(1, 2, 70, 64) if kernel.min_arch >= 90 else PROBLEM
    plan = kernel.launch_plan(problem)
    places = []
    for seed in (3, 4):
        inputs = make_inputs(problem, "normal", seed)
        arrays = {buffer.name: np.zeros(buffer.shape, buffer.dtype) for buffer in plan.buffers}
        arrays |= {"q": inputs.q, "k": inputs.k, "v": inputs.v}
        places.append((on_gpu(gpu, arrays), arrays))
    prepared = gpu.prepare(plan, places[0][0])
    for addresses, arrays in places:
        prepared.place(addresses)
        prepared.launch()
        right = gpu.run(plan, {name: arrays[name] for name in "qkv"}).outputs
        for name, array in right.items():
            assert from_gpu(gpu, addresses[name], array).tobytes() == array.tobytes()


@pytest.mark.usefixtures("products")
def test_a_prepared_plan_has_one_workspace_for_its_products_as_long_as_it_lives(gpu: GpuExecutor) -> None:
    inputs = make_inputs(PROBLEM)
    plan = CUBLAS.launch_plan(PROBLEM)
    arrays = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    missing = [buffer for buffer in plan.buffers if buffer.name not in arrays]
    arrays |= {buffer.name: np.full(buffer.shape, np.nan, buffer.dtype) for buffer in missing}
    addresses = on_gpu(gpu, arrays)
    memory = stand_in() and stand_in().memory
    before = memory and memory.used
    prepared = gpu.prepare(plan, addresses)
    assert not memory or memory.used - before == workspace_size(gpu.gpu.capability)
    outputs = []
    for _ in range(2):
        prepared.launch()
        outputs.append(from_gpu(gpu, addresses["o"], arrays["o"]))
    assert outputs[0].tobytes() == outputs[1].tobytes()
    assert np.isfinite(outputs[0]).all()
    del prepared
    assert not memory or memory.used == before


def test_without_nvmath_a_product_is_refused_and_everything_else_runs(
    gpu: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise MachineError("a matrix product needs cuBLAS through nvmath-python: pip install 'sdpalab[cublas]'")

    monkeypatch.setattr(gpu_gemm, "_binding", missing)
    gpu_gemm.blas_of.cache_clear()
    inputs = make_inputs(PROBLEM)
    with pytest.raises(MachineError, match="pip install 'sdpalab"):
        gpu.run(CUBLAS.launch_plan(PROBLEM), {"q": inputs.q, "k": inputs.k, "v": inputs.v})
    assert not gpu.run(TWO_STEPS, INPUTS).hazards


def test_there_must_be_a_build_for_each_launch(gpu: GpuExecutor) -> None:
    module = TWO_STEPS.launches[0].module
    assert module is not None
    with pytest.raises(UserError, match="the plan has 2 launches, and 1 builds are given for them"):
        gpu.run(TWO_STEPS, INPUTS, builds=[build(module, gpu.arch)])
