"""The torch function and its custom op: torch's results and gradients, compilation, visible fall-back, bad input."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import setuptools as setuptools  # replaces distutils for inductor's C++, and must do so before any import of that
import torch
import torch.nn.functional as functional
from torch._subclasses.fake_tensor import FakeTensorMode

import sdpalab
from sdpalab import UserError, explain, no_fallback, scaled_dot_product_attention
from sdpalab.torch_api.ops import call_of
from warpsan.gpus import GPUS, Gpu, device_name, gpu_of_device

Tensor = torch.Tensor
Trio = tuple[Tensor, Tensor, Tensor]

OP = torch.ops.sdpalab.attention.default


def qkv(
    *, q: tuple[int, ...] = (2, 4, 9, 16), k: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32
) -> Trio:
    """Seeded Q of shape ``q``, K and V of shape ``k``."""
    generator = torch.Generator().manual_seed(7)
    shapes = (q, k or q, k or q)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return tensors[0], tensors[1], tensors[2]


def strided() -> Trio:
    """[B, H, S, D] seen through memory in the order [B, S, H, D]."""
    q, k, v = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in qkv())
    return q, k, v


def last_dimension_strided() -> Trio:
    q, k, v = (tensor[..., ::2] for tensor in qkv(q=(2, 4, 9, 32)))
    return q, k, v


def wider_values() -> Trio:
    q, k, v = qkv()
    return q, k, torch.cat([v, v], dim=-1)


MASK = torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) < 0.7
CASES: dict[str, tuple[Trio, dict[str, Any]]] = {
    "plain": (qkv(), {}),
    "causal": (qkv(), {"is_causal": True}),
    "scale": (qkv(), {"scale": 0.5}),
    "bool mask": (qkv(), {"attn_mask": MASK}),
    "float mask": (qkv(), {"attn_mask": torch.where(MASK, 0.5, -2.0)}),
    "grouped": (qkv(k=(2, 2, 7, 16)), {"enable_gqa": True, "is_causal": True}),
    "half": (qkv(dtype=torch.float16), {}),
    "bfloat16": (qkv(dtype=torch.bfloat16), {"is_causal": True}),
    "double": (qkv(dtype=torch.float64), {}),
    "rank 2": (qkv(q=(9, 16)), {}),
    "rank 3": (qkv(q=(4, 9, 16)), {}),
    "rank 5": (qkv(q=(2, 2, 4, 9, 16)), {}),
    "batch broadcasts": (qkv(k=(1, 4, 9, 16)), {}),
    "heads broadcast": (qkv(k=(2, 1, 9, 16)), {}),
    "wider v": (wider_values(), {}),
    "strided": (strided(), {"is_causal": True}),
    "last dimension strided": (last_dimension_strided(), {}),
    "no keys": (qkv(k=(2, 4, 0, 16)), {}),
    "no queries": (qkv(q=(2, 4, 0, 16), k=(2, 4, 9, 16)), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_fall_back_is_torch_bit_for_bit(name: str) -> None:
    tensors, options = CASES[name]
    out = scaled_dot_product_attention(*tensors, **options)
    wanted = functional.scaled_dot_product_attention(*tensors, **options)
    assert torch.equal(out, wanted)
    assert out.stride() == wanted.stride()


def test_arguments_have_torchs_order() -> None:
    q, k, v = qkv(k=(2, 2, 9, 16))
    wanted = functional.scaled_dot_product_attention(q, k, v, MASK, 0.0, False, scale=0.3, enable_gqa=True)
    assert torch.equal(scaled_dot_product_attention(q, k, v, MASK, 0.0, False, 0.3, True), wanted)


def test_dropout_draws_as_torch_does() -> None:
    q, k, v = qkv()
    drawn = []
    for function in (scaled_dot_product_attention, functional.scaled_dot_product_attention):
        torch.manual_seed(3)
        drawn.append(function(q, k, v, dropout_p=0.5))
    assert torch.equal(*drawn)
    assert not torch.equal(drawn[0], scaled_dot_product_attention(q, k, v))


def test_nested_tensors_are_torchs() -> None:
    rows = [torch.randn(length, 4, 16, generator=torch.Generator().manual_seed(length)) for length in (5, 8)]
    ragged = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    parts = scaled_dot_product_attention(ragged, ragged, ragged).unbind()
    wanted = [functional.scaled_dot_product_attention(*[row.transpose(0, 1)] * 3) for row in rows]
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(parts, wanted, strict=True))
    assert "no nested tensors" in explain(ragged, ragged, ragged).reason


def test_autocast_may_mix_dtypes() -> None:
    q, k, v = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert scaled_dot_product_attention(q, k.bfloat16(), v).dtype == torch.bfloat16


def gradients(function: Any, tensors: Trio, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = function(*leaves, *arguments, **options)
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
    return torch.autograd.grad(out, leaves, weights)


def test_gradients_are_torchs() -> None:
    tensors, options = CASES["grouped"]
    wanted = gradients(functional.scaled_dot_product_attention, tensors, **options)
    for gradient, right in zip(gradients(scaled_dot_product_attention, tensors, **options), wanted, strict=True):
        assert torch.equal(gradient, right)
    for gradient, right in zip(gradients(OP, tensors, True, None), wanted, strict=True):
        assert torch.allclose(gradient, right, rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_the_function() -> None:
    tensors = [tensor.requires_grad_() for tensor in qkv(q=(1, 2, 3, 4), dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda q, k, v: OP(q, k, v, True, 0.7), tensors)
    assert torch.autograd.gradcheck(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), tensors)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["half", "grouped", "strided"])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_opcheck(name: str, needs_gradient: bool) -> None:
    tensors = [tensor.clone().requires_grad_(needs_gradient) for tensor in CASES[name][0]]
    outcome = torch.library.opcheck(OP, (*tensors, True, None))
    assert set(outcome.values()) == {"SUCCESS"}
    assert len(outcome) == 4


def test_opcheck_of_the_check() -> None:
    q = qkv()[0].transpose(1, 2).requires_grad_()
    assert set(torch.library.opcheck(torch.ops.sdpalab.fall_back.default, (q, "a test")).values()) == {"SUCCESS"}


def test_the_op_is_torchs_function_on_a_cpu_and_contiguous() -> None:
    tensors, options = CASES["strided"]
    out = OP(*tensors, True)
    assert torch.equal(out, functional.scaled_dot_product_attention(*tensors, **options))
    assert out.is_contiguous()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["causal", "bool mask", "grouped", "rank 3"])
def test_it_compiles_into_one_graph(name: str) -> None:
    tensors, options = CASES[name]
    compiled = torch.compile(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, **options), fullgraph=True, backend="aot_eager"
    )
    assert torch.allclose(compiled(*tensors), scaled_dot_product_attention(*tensors, **options), atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler for CPUs needs g++")
def test_the_op_compiles_into_one_graph_with_dynamic_shapes() -> None:
    compiled = torch.compile(lambda q, k, v: 2 * OP(q, k, v, True, None), fullgraph=True, dynamic=True)
    for length in (9, 13):
        tensors = qkv(q=(1, 2, length, 16))
        assert torch.allclose(compiled(*tensors), 2 * OP(*tensors, True, None), atol=1e-6)


def on_gpu(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """A tensor that says it is on a GPU and has no values; torch makes such to trace programs."""
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


GPU, GROUPED = (2, 4, 9, 64), (2, 2, 40, 64)
REASONS: dict[str, Callable[[], Any]] = {
    "the tensors are not on a CUDA GPU": lambda: (qkv(), {}),
    "key padding masks and additive bias stay with torch": lambda: (qkv(), {"attn_mask": MASK}),
    "the kernels have no dropout": lambda: (qkv(), {"dropout_p": 0.1}),
    "tensors of rank 4, not 3, 3 and 3": lambda: ([on_gpu(4, 9, 64)] * 3, {}),
    "k and v of one shape, with the batch": lambda: ([on_gpu(*GPU), on_gpu(*GPU), on_gpu(2, 4, 9, 32)], {}),
    "the heads of k and v broadcast": lambda: ([on_gpu(*GPU), on_gpu(2, 1, 9, 64), on_gpu(2, 1, 9, 64)], {}),
    "last dimension of q, k or v is not contiguous": lambda: ([on_gpu(2, 4, 64, 9).transpose(2, 3)] * 3, {}),
    "tensor subclasses stay with torch": lambda: ([on_gpu(*GPU)] * 3, {}),
}


@pytest.mark.parametrize("reason", REASONS)
def test_explain_says_why_no_kernel_runs(reason: str) -> None:
    tensors, options = REASONS[reason]()
    explanation = explain(*tensors, **options)
    assert explanation.kernel is None
    assert reason in explanation.reason
    assert str(explanation) == f"This call runs torch's scaled_dot_product_attention: {explanation.reason}."


def test_the_signature_is_torchs() -> None:
    """As its documentation has it; what is built in has no signature of its own."""
    documented = (functional.scaled_dot_product_attention.__doc__ or "").partition("->")[0]
    names = inspect.signature(scaled_dot_product_attention).parameters.values()
    ours = ", ".join(str(each.replace(annotation=inspect.Parameter.empty)) for each in names)
    assert " ".join(documented.split()) == f"scaled_dot_product_attention({ours})"
    q, k, v = qkv()
    named = scaled_dot_product_attention(query=q, key=k, value=v)
    assert torch.equal(named, functional.scaled_dot_product_attention(query=q, key=k, value=v))
    shared = list(inspect.signature(scaled_dot_product_attention).parameters)
    for function in (explain, sdpalab.prepare):
        assert list(inspect.signature(function).parameters)[: len(shared)] == shared


def test_explain_answers_for_a_gpu_that_is_not_here() -> None:
    q, k, v = qkv(dtype=torch.float16)
    for tensors in ((q, k, v), tuple(each.to("meta") for each in (q, k, v))):
        explanation = explain(*tensors, gpu="H200")
        assert explanation.kernel is None
        assert explanation.reason.startswith("no kernel is proven on NVIDIA H200")
    assert "key padding masks" in explain(q, k, v, MASK, gpu="H200").reason
    with pytest.raises(UserError, match="unknown GPU 'T1000'; known are L4"):
        explain(q, k, v, gpu="T1000")


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_the_name_of_a_device_leads_back_to_its_gpu(gpu: Gpu) -> None:
    assert gpu_of_device(device_name(gpu)) is gpu


def test_what_is_copied_is_what_is_not_contiguous() -> None:
    q, k, v = strided()
    assert call_of(q, k.contiguous(), v, True, None).copied() == {"query": q.numel() * 4, "value": v.numel() * 4}
    assert call_of(*qkv(), True, None).copied() == {}


def test_what_torch_computes_needs_no_preparation() -> None:
    tensors, options = REASONS["the tensors are not on a CUDA GPU"]()
    assert sdpalab.prepare(*tensors, **options) == explain(*tensors, **options)
    with pytest.raises(UserError, match="on one device"):
        sdpalab.prepare(tensors[0], tensors[1].to("meta"), tensors[2])


def test_records_are_read_again_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = []
    monkeypatch.setattr("sdpalab.evidence.store.lookup.forget", lambda: forgotten.append(True))
    sdpalab.reload_proofs()
    assert forgotten == [True]


def test_a_compiled_call_on_a_gpu_is_the_op_which_looks_up_the_proof_when_it_runs() -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append([node.target for node in module.graph.nodes if node.op == "call_function"])
        return module.forward

    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend=backend)
    with FakeTensorMode():
        tensors = [torch.empty(shape, dtype=torch.float16, device="cuda") for shape in (GPU, GROUPED, GROUPED)]
        assert compiled(*tensors, enable_gqa=True).shape == GPU
    assert graphs == [[torch.ops.sdpalab.attention]]


def test_without_fall_back_the_reason_is_raised() -> None:
    q, k, v = qkv()
    with no_fallback():
        with pytest.raises(UserError, match="falling back to torch is disabled: the tensors are not on a CUDA GPU"):
            scaled_dot_product_attention(q, k, v)
        with no_fallback(), pytest.raises(UserError):
            scaled_dot_product_attention(q, k, v)
        with pytest.raises(UserError, match="take no attn_mask"):
            scaled_dot_product_attention(q, k, v, MASK)
    assert scaled_dot_product_attention(q, k, v).shape == q.shape


def test_compiled_code_checks_each_time_whether_it_may_fall_back() -> None:
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    q, k, v = qkv()
    plain = compiled(q, k, v)
    for _ in range(2):
        with no_fallback(), pytest.raises(UserError, match="falling back to torch is disabled: the tensors are not"):
            compiled(q, k, v)
        assert torch.equal(compiled(q, k, v), plain)


def test_compiled_code_of_other_threads_may_fall_back() -> None:
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    q, k, v = (tensor.requires_grad_() for tensor in qkv())
    outputs: list[Tensor] = []
    with no_fallback():
        thread = threading.Thread(
            target=lambda: outputs.extend(torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v)))
        )
        thread.start()
        thread.join()
    wanted = torch.autograd.grad(functional.scaled_dot_product_attention(q, k, v).sum(), (q, k, v))
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(outputs, wanted, strict=True))


def test_other_threads_may_still_fall_back() -> None:
    outputs: list[Tensor] = []
    with no_fallback():
        thread = threading.Thread(target=lambda: outputs.append(scaled_dot_product_attention(*qkv())))
        thread.start()
        thread.join()
    assert len(outputs) == 1


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, sdpalab; sdpalab.Problem; dir(sdpalab); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SHAPE = torch.zeros(1, 4, 8, 16)
BAD = {
    "q must be a torch tensor, not a list": ([1.0], SHAPE, SHAPE),
    "v must be a torch tensor, not a NoneType": (SHAPE, SHAPE, None),
    "on one device, not on cpu, meta and cpu": (SHAPE, SHAPE.to("meta"), SHAPE),
    "one dtype, not torch.float32, torch.float16 and torch.float32": (SHAPE, SHAPE.half(), SHAPE),
    "with 2 dimensions or more, not 1, 1 and 1": (torch.zeros(8), torch.zeros(8), torch.zeros(8)),
    "q and k must have one head_dim, not 16 and 8": (SHAPE, SHAPE[..., :8], SHAPE),
    "k and v must be of one length, not 8 and 4": (SHAPE, SHAPE, SHAPE[:, :, :4]),
    "heads that share keys need enable_gqa=True": (SHAPE, SHAPE[:, :2], SHAPE[:, :2]),
    "(3, 4, 8, 16) and k (2, 4, 8, 16) do not broadcast": (
        SHAPE.expand(3, -1, -1, -1),
        *[SHAPE.expand(2, -1, -1, -1)] * 2,
    ),
}


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("function", [scaled_dot_product_attention, explain])
def test_bad_input_is_one_sentence(reason: str, function: Any) -> None:
    with pytest.raises(UserError, match=re.escape(reason)) as raised:
        function(*BAD[reason])
    assert "\n" not in str(raised.value)


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(UserError, match="the heads of k must divide those of q, and 3 does not divide 4"):
        scaled_dot_product_attention(SHAPE, SHAPE[:, :3], SHAPE[:, :3], enable_gqa=True)


@pytest.mark.parametrize("shape", [(4, 8, 16), (2, 4, 8, 16), (1, 3, 8, 16), (1, 4, 8, 8)])
def test_the_op_itself_takes_no_more_than_a_kernel(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="sdpalab::attention: the kernels take"):
        OP(SHAPE, torch.zeros(shape), torch.zeros(shape))
