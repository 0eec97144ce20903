"""The torch op on a GPU with a kernel behind it: opcheck, torch.compile, autocast, gradients, CUDA graphs, streams.

No verdict needs to be committed for that: what is proven is given here, and every launch of the kernel is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional

from sdpalab import Problem, scaled_dot_product_attention
from sdpalab.compile import build
from sdpalab.evidence.store.certificate import Certificate, CertifiedKernel
from sdpalab.kernels.registry import KERNELS
from sdpalab.run import GpuExecutor, torch_gpu
from sdpalab.run.gpu_launch import arch_of
from sdpalab.run.torch_launch import TorchLaunch
from sdpalab.torch_api import ops
from sdpalab.torch_api.calls import AttentionCall

pytestmark = pytest.mark.gpu

Tensor = torch.Tensor
OP = torch.ops.sdpalab.attention.default
PROBLEM = Problem(2, 4, 70, 64, kv_heads=2, seq_kv=140, causal=True)
LIMIT = 2e-3
"""Greatest error of float16 attention on normal inputs of this size."""


@pytest.fixture
def device() -> torch.device:
    """Device of the tensors."""
    return torch_gpu.device(0)


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """The same, for what only torch's own CUDA has."""
    if device.type != "cuda":
        pytest.skip("the GPU is emulated, and torch has neither streams nor graphs on it")
    return device


def qkv(device: torch.device, *, seed: int = 7, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (PROBLEM.q_shape, PROBLEM.kv_shape, PROBLEM.kv_shape)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes)
    return q, k, v


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in float64, on the CPU."""
    tensors = [tensor.detach().cpu().double() for tensor in (q, k, v)]
    return functional.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)


def error(out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> float:
    return float((out.detach().cpu().double() - exact(q, k, v)).abs().max())


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """``flash`` is proven for :data:`PROBLEM` in this test; ``launches()`` says how often it was launched."""
    gpu = torch_gpu.properties(0)
    arch, plan = arch_of(gpu.capability), KERNELS["flash"].launch_plan(PROBLEM, sms=gpu.sm_count)
    builds = tuple(build(step.module, arch) for step in plan.launches if step.module is not None)
    kernel = CertifiedKernel(Certificate("flash", "", "", arch, frozenset(), frozenset(), "a test"), plan, builds)
    count = 0

    def certified(call: AttentionCall, **_: Any) -> tuple[CertifiedKernel | None, str]:
        fits = call.problem() == PROBLEM
        return (kernel, "a test") if fits else (None, "this test proves it for one problem")

    launch = ops.launch

    def counted(*arguments: Any) -> dict[str, Tensor]:
        nonlocal count
        count += 1
        return launch(*arguments)

    monkeypatch.setattr(ops, "certified", certified)
    monkeypatch.setattr(ops, "launch", counted)
    return lambda: count


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def test_the_function_runs_the_kernel(device: torch.device, launches: Callable[[], int]) -> None:
    tensors = qkv(device)
    assert error(attention(*tensors), *tensors) < LIMIT
    assert launches() == 1


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_opcheck(device: torch.device, launches: Callable[[], int], needs_gradient: bool) -> None:
    tensors = [tensor.requires_grad_(needs_gradient) for tensor in qkv(device)]
    outcome = torch.library.opcheck(OP, (*tensors, True, None))
    assert set(outcome.values()) == {"SUCCESS"}
    assert len(outcome) == 4
    assert launches() > 0


def test_gradients_are_torchs(device: torch.device, launches: Callable[[], int]) -> None:
    leaves = [tensor.requires_grad_() for tensor in qkv(device)]
    out = OP(*leaves, True, None)
    gradients = torch.autograd.grad(out.float().sum(), leaves)
    assert launches() == 1
    wanted = torch.autograd.grad(
        functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True).float().sum(), leaves
    )
    assert all(torch.allclose(one, other, rtol=1e-2, atol=1e-2) for one, other in zip(gradients, wanted, strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_runs_the_kernel(device: torch.device, launches: Callable[[], int], backend: str) -> None:
    if backend == "inductor" and device.type != "cuda":
        pytest.skip("the GPU is emulated: inductor would compile for the CPU")
    if backend == "inductor":
        pytest.importorskip("triton", reason="inductor compiles for a GPU with Triton")
    torch.compiler.reset()
    tensors = qkv(device)
    compiled = torch.compile(lambda q, k, v: 2 * attention(q, k, v), fullgraph=True, backend=backend)
    assert torch.equal(compiled(*tensors), 2 * attention(*tensors))
    assert launches() == 2


def test_autocast(device: torch.device, launches: Callable[[], int]) -> None:
    """The kernel gets tensors in the dtype of autocast."""
    half, single = qkv(device), qkv(device, dtype=torch.float32)
    # The stand-in's torch has autocast to float16 on a CPU, too.
    with torch.autocast(device.type, dtype=torch.float16):
        out = attention(*half)
        cast = attention(*single)
    assert launches() == 2
    assert error(out, *half) < LIMIT
    assert torch.equal(cast, attention(*(each.half() for each in single)))


def test_a_cuda_graph_replays_the_kernel_on_new_values(cuda: torch.device, launches: Callable[[], int]) -> None:
    tensors = qkv(cuda)
    attention(*tensors)  # what is prepared once is prepared outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(*tensors)
    assert launches() == 2
    for seed in (1, 2, 3):
        for tensor, new in zip(tensors, qkv(cuda, seed=seed), strict=True):
            tensor.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        assert error(out, *tensors) < LIMIT
        assert torch.equal(out, attention(*tensors))


def test_compiled_code_that_is_captured_replays_the_kernel(cuda: torch.device, launches: Callable[[], int]) -> None:
    pytest.importorskip("triton", reason="inductor compiles for a GPU with Triton")
    torch.compiler.reset()
    compiled = torch.compile(attention, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        tensors = qkv(cuda, seed=seed)
        out = compiled(*tensors).clone()
        assert error(out, *tensors) < LIMIT
    assert launches() > 0


def test_the_kernel_runs_on_the_stream_that_is_current(cuda: torch.device, launches: Callable[[], int]) -> None:
    tensors, first = qkv(cuda), torch.cuda.Stream()
    attention(*tensors)
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        torch.cuda._sleep(50_000_000)  # were the kernel on another stream, it would read what is written after this
        for tensor, new in zip(tensors, qkv(cuda, seed=3), strict=True):
            tensor.copy_(new)
        out = attention(*tensors)
    first.synchronize()
    assert launches() == 2
    assert error(out, *tensors) < LIMIT


def test_graphs_with_semaphores_are_replayed_at_the_same_time(cuda: torch.device) -> None:
    """Blocks of stream-K share tiles: two graphs and a call, each on its own stream, have counters of their own."""
    flash, problem = KERNELS["flash"], Problem(1, 8, 512, 64)
    executor = GpuExecutor()
    plan = flash.launch_plan(problem, flash.default_config.but(SCHEDULE="stream_k", NUM_CTAS=37), sms=executor.sms)
    generator = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(problem.q_shape, generator=generator).half().to(cuda) for name in "qkv"}
    call = TorchLaunch(executor, plan, tensors)
    wanted = call(**tensors)["o"].clone()
    captured = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = [call(**tensors)["o"] for _ in range(8)]
        captured.append((graph, outs, torch.cuda.Stream()))
    torch.cuda.synchronize()
    for _ in range(20):
        for graph, _, stream in captured:
            with torch.cuda.stream(stream):
                graph.replay()
        eager = call(**tensors)["o"]
    torch.cuda.synchronize()
    assert all(torch.equal(out, wanted) for _, outs, _ in captured for out in outs)
    assert torch.equal(eager, wanted)
