"""The executor on a real GPU: runs, guards, prepared launches on torch's tensors and streams, faults."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin_gpu import prepended

from sdpalab.compile import build
from sdpalab.errors import UserError
from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module, TiledMap
from sdpalab.run import GpuExecutor, SimulatedExecutor

pytestmark = pytest.mark.gpu

N = 1000
SOURCE = """
__global__ void scale(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
__global__ void square(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = y[i] * y[i];
}
__global__ void beyond(float* y, int n) { y[n + threadIdx.x] = 1.0f; }
__global__ void spoil(float* x) { x[3] = 7.0f; }
__global__ void count(int* ticket, float* y) { if (threadIdx.x == 0) y[blockIdx.x] = atomicAdd(ticket, 1); }
__global__ void settle(int* ticket, int left) { *ticket = left; }
__global__ void reverse(const float* x, float* y, int n) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i * 25] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[(n - 1 - i) * 25];
}
__global__ void __launch_bounds__(128) narrow(float* y) { y[threadIdx.x] = 1.0f; }
#if __CUDA_ARCH__ >= 900
__global__ void ranks(float* y) {
    unsigned size, rank;
    asm volatile("mov.u32 %0, %cluster_nctarank;" : "=r"(size));
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) y[blockIdx.x] = 100.0f * size + rank;
}
#endif
"""
X, Y = Buffer("x", (N,), "float32", "in"), Buffer("y", (N,), "float32", "out")
Inputs = dict[str, "np.ndarray[Any, Any]"]


def step(entry: str, *args: Any, blocks: int = 4, threads: int = 256, **options: Any) -> Launch:
    module = Module("steps.cu", SOURCE, entry)
    return Launch((blocks, 1, 1), (threads, 1, 1), args, module=module, **options)


def plan(*steps: Launch) -> LaunchPlan:
    return LaunchPlan((X, Y), steps)


TWO_STEPS = plan(step("scale", "x", "y", 1 / 3, N), step("square", "y", N))


@pytest.fixture
def inputs() -> Inputs:
    return {"x": np.random.default_rng(0).standard_normal(N).astype(np.float32)}


def test_steps_run_in_order_and_agree_with_the_simulator(gpu: GpuExecutor, inputs: Inputs) -> None:
    result, simulated = gpu.run(TWO_STEPS, inputs), SimulatedExecutor(gpu.arch).run(TWO_STEPS, inputs)
    np.testing.assert_array_equal(result.outputs["y"], simulated.outputs["y"])
    assert result.ptx_sha256 == simulated.ptx_sha256
    assert (result.hazards, result.changed_inputs, result.device) == ((), (), gpu.gpu.name)


@pytest.mark.parametrize("poison", [0xFF, 0x5A])
def test_unwritten_memory_is_poison(gpu: GpuExecutor, inputs: Inputs, poison: int) -> None:
    result = gpu.run(plan(step("scale", "x", "y", 2.0, 10)), inputs, poison=poison)
    assert (result.outputs["y"][10:].view(np.uint8) == poison).all()


def test_a_write_outside_a_buffer_is_found(gpu: GpuExecutor, inputs: Inputs) -> None:
    result = gpu.run(plan(step("beyond", "y", N, blocks=1, threads=2)), inputs)
    (hazard,) = result.hazards
    assert "outside buffer y were written, the first 1 bytes behind its end" in hazard


def test_a_changed_input_is_found(gpu: GpuExecutor, inputs: Inputs) -> None:
    before = inputs["x"].copy()
    assert gpu.run(plan(step("spoil", "x", blocks=1, threads=1)), inputs).changed_inputs == ("x",)
    np.testing.assert_array_equal(inputs["x"], before)


def test_shared_memory_beyond_48_kib(gpu: GpuExecutor, inputs: Inputs) -> None:
    smem = 25 * 4 * (N - 1) + 4
    if smem > gpu.gpu.shared_limit:
        pytest.skip(f"{gpu.device} has {gpu.gpu.shared_limit} bytes of shared memory a block")
    result = gpu.run(plan(step("reverse", "x", "y", N, blocks=1, dynamic_smem=smem)), inputs)
    np.testing.assert_array_equal(result.outputs["y"], inputs["x"][::-1])


@pytest.mark.parametrize("size", [2, 8, 16])
def test_clusters(gpu: GpuExecutor, inputs: Inputs, size: int) -> None:
    if gpu.gpu.capability < (9, 0):
        pytest.skip(f"{gpu.device} has no clusters")
    result = gpu.run(plan(step("ranks", "y", blocks=32, threads=32, cluster=(size, 1, 1))), inputs)
    np.testing.assert_array_equal(result.outputs["y"][:32], 100.0 * size + np.arange(32) % size)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (step("reverse", "x", "y", N, dynamic_smem=1 << 20), "bytes of shared memory, and a block on"),
        (step("narrow", "y", threads=256), "a block has at most 128 threads"),
        (step("scale", "x", "y", 1.0, N, threads=2048), "block.x must be 1 to 1024"),
        (step("scale", "x", "z", 1.0, N), "names buffer 'z'"),
        (step("scale", "x", "y", "x", N), "argument 2 is buffer x, and the parameter is a .f32"),
        (step("scale", TiledMap("x", (8,)), "y", 1.0, N), "has 128 bytes, and the parameter has 8"),
    ],
)
def test_a_launch_that_cannot_be_is_refused_in_one_sentence(
    gpu: GpuExecutor, inputs: Inputs, wrong: Launch, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        gpu.run(plan(wrong), inputs)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_architectures_code_is_refused(gpu: GpuExecutor, inputs: Inputs) -> None:
    other = "sm_80" if gpu.gpu.capability[0] != 8 else "sm_90"
    with pytest.raises(UserError, match=f"does not run code for {other}: build for {gpu.arch}"):
        GpuExecutor(arch=other)
    module = TWO_STEPS.steps[0].module
    assert module is not None
    with pytest.raises(UserError, match=f"is built for {other}, which .* does not run"):
        gpu.run(TWO_STEPS, inputs, builds=[build(module, other)] * 2)
    with pytest.raises(UserError, match="there is no GPU 99"):
        GpuExecutor(99)


TICKET = Buffer("ticket", (1,), "int32", "semaphore")


def counting(left: int) -> LaunchPlan:
    """A plan whose blocks draw numbers from a semaphore that it leaves with ``left``."""
    draw, settle = step("count", "ticket", "y", blocks=N), step("settle", "ticket", left, blocks=1, threads=1)
    return LaunchPlan((Y, TICKET), (draw, settle))


def test_a_semaphore_begins_as_zeros_and_must_end_so(gpu: GpuExecutor) -> None:
    result = gpu.run(counting(0), {})
    assert sorted(result.outputs["y"].tolist()) == list(range(N))
    assert result.hazards == ()
    (hazard,) = gpu.run(counting(5), {}).hazards
    assert hazard == "semaphore ticket is not left as zeros: element 0 is 5"


@pytest.fixture
def torch_cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch


def test_prepared_launches_run_on_torchs_streams_without_copies(
    gpu: GpuExecutor, inputs: Inputs, torch_cuda: Any
) -> None:
    torch = torch_cuda
    x, y = torch.from_numpy(inputs["x"]).cuda(), torch.zeros(N, device="cuda")
    prepared = gpu.prepare(TWO_STEPS, {"x": x, "y": y})
    expected = gpu.run(TWO_STEPS, inputs).outputs["y"]
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        y.zero_()
        torch.cuda.synchronize()
        prepared.launch(stream.cuda_stream)
        stream.synchronize()
        np.testing.assert_array_equal(y.cpu().numpy(), expected)


def test_prepared_launches_are_captured_into_a_graph(gpu: GpuExecutor, inputs: Inputs, torch_cuda: Any) -> None:
    torch = torch_cuda
    x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    prepared = gpu.prepare(TWO_STEPS, {"x": x, "y": y})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.launch(torch.cuda.current_stream().cuda_stream)
    x.copy_(torch.from_numpy(inputs["x"]))
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(y.cpu().numpy(), gpu.run(TWO_STEPS, inputs).outputs["y"])


def test_preparing_fills_semaphores_with_zeros(gpu: GpuExecutor, torch_cuda: Any) -> None:
    torch = torch_cuda
    ticket, y = torch.full((1,), 1000, dtype=torch.int32, device="cuda"), torch.zeros(N, device="cuda")
    gpu.prepare(counting(0), {"ticket": ticket, "y": y}).launch()
    torch.cuda.synchronize()
    assert sorted(y.tolist()) == list(range(N))
    assert int(ticket) == 0


def test_threads_without_a_context_of_their_own_run_and_launch(gpu: GpuExecutor, inputs: Inputs) -> None:
    expected = gpu.run(TWO_STEPS, inputs).outputs["y"]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: gpu.run(TWO_STEPS, inputs).outputs["y"], range(16)))
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_tensors_that_do_not_fit_are_refused(gpu: GpuExecutor, torch_cuda: Any) -> None:
    good = torch_cuda.zeros(N, device="cuda")
    for value, words in ((good.half(), "not float16"), (good.cpu(), "not on cpu"), (good[1:], r"not float32 \(999,\)")):
        with pytest.raises(UserError, match=words):
            gpu.prepare(TWO_STEPS, {"x": value, "y": good})
    with pytest.raises(UserError, match="no tensor for buffer y; there are: x"):
        gpu.prepare(TWO_STEPS, {"x": good})


FAULT = """
import numpy as np
from sdpalab.errors import MachineError
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module
from sdpalab.run import GpuExecutor, KernelFault
gpu = GpuExecutor()
source = "__global__ void wild(float* y) { y[1ull << 40] = 1.0f; }"
launch = Launch((1, 1, 1), (1, 1, 1), ("y",), module=Module("wild.cu", source, "wild"))
plan = LaunchPlan((Buffer("y", (8,), "float32", "out"),), (launch,))
for kind in (KernelFault, MachineError):
    try:
        gpu.run(plan, {})
    except kind as error:
        print(error)
"""


def test_an_illegal_access_loses_the_context_and_says_so(root: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": prepended("PYTHONPATH", *map(Path, IMPORT_FOLDERS))}
    done = subprocess.run([sys.executable, "-c", FAULT], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "wild" in first
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in first
    assert "context of GPU 0 is lost, and only a new process can use it" in first
    assert "its context is lost since" in second
