"""Matrix products by cuBLAS on a real GPU: against the host's, on torch's streams, in a CUDA graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemm_inputs import arrays_for
from sdpalab import Problem
from sdpalab.inputs import make_inputs
from sdpalab.kernels.cublas import CUBLAS
from sdpalab.kernels.plan import Buffer, Gemm, LaunchPlan
from sdpalab.run import GpuExecutor
from sdpalab.run.buffers import multiply
from sdpalab.run.gpu_gemm import gemm_problem

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(gemm_problem()), reason=gemm_problem())]

PRODUCTS = [
    Gemm("a", "b", "c", batch=1, m=1, n=1, k=1),
    Gemm("a", "b", "c", batch=3, m=65, n=33, k=17),
    Gemm("a", "b", "c", batch=3, m=65, n=33, k=17, transpose_b=True),
    Gemm("a", "b", "c", batch=2, m=128, n=509, k=64, transpose_b=True, ldc=512),
    Gemm("a", "b", "c", batch=2, m=128, n=64, k=509, lda=512),
    Gemm("a", "b", "c", batch=1, m=16, n=16, k=1 << 16),
]


@pytest.mark.parametrize(
    ("operands", "out"),
    [("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")],
)
@pytest.mark.parametrize("gemm", PRODUCTS, ids=lambda gemm: f"{gemm.m}x{gemm.n}x{gemm.k} {gemm.transpose_b}")
def test_the_gpus_product_is_the_hosts(gpu: GpuExecutor, gemm: Gemm, operands: str, out: str) -> None:
    # Sums of small integers are exact in float32, in any order, and then rounded once: so they agree bit for bit.
    arrays = arrays_for(gemm, operands, out)
    roles = {"a": "in", "b": "in", "c": "out"}
    buffers = tuple(Buffer(name, array.shape, array.dtype.name, roles[name]) for name, array in arrays.items())
    result = gpu.run(LaunchPlan(buffers, (gemm,)), arrays)
    multiply(gemm, arrays)
    actual, expected = (each[..., : gemm.n].astype(np.float64) for each in (result.outputs["c"], arrays["c"]))
    np.testing.assert_array_equal(actual, expected)
    assert np.isnan(result.outputs["c"][..., gemm.n :].astype(np.float64)).all()
    assert (result.hazards, result.changed_inputs, result.ptx_sha256) == ((), (), ())


def test_the_cublas_kernel_is_captured_and_gives_the_same_bits_on_every_stream(gpu: GpuExecutor) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    problem = Problem(1, 4, 300, 64, kv_heads=2, seq_kv=515, causal=True)
    drawn = make_inputs(problem)
    plan, inputs = CUBLAS.launch_plan(problem), {"q": drawn.q, "k": drawn.k, "v": drawn.v}
    expected = gpu.run(plan, inputs).outputs["o"]
    tensors: dict[str, Any] = {
        buffer.name: torch.from_numpy(inputs[buffer.name]).cuda()
        if buffer.role == "in"
        else torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device="cuda")
        for buffer in plan.buffers
    }
    prepared = gpu.prepare(plan, tensors)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        tensors["o"].fill_(float("nan"))
        torch.cuda.synchronize()
        prepared.launch(stream.cuda_stream)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(tensors["o"].cpu().numpy(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.launch(torch.cuda.current_stream().cuda_stream)
    for _ in range(3):
        tensors["o"].fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        np.testing.assert_array_equal(tensors["o"].cpu().numpy(), expected)
