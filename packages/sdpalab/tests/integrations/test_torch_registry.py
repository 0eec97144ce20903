"""torch's registry of flash attentions, through torch's own dispatcher.

A CPU build has no flash attention for CUDA. The tests register one, in plain arithmetic, and call the operator with the
dispatch keys that tensors on a GPU would have; what the dispatcher then does is what it does there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import attention as registry

import sdpalab
from sdpalab.integrations import torch_registry

Tensor = torch.Tensor

if not hasattr(registry, "register_flash_attention_impl"):
    pytest.skip("needs torch 2.11 or newer, with its registry of flash attentions", allow_module_level=True)
if torch.version.cuda is not None:
    pytest.skip(
        "needs a torch without CUDA: the tests put their own operator where its own would be", allow_module_level=True
    )

FORWARD = "_scaled_dot_product_flash_attention"
OPERATOR = torch.ops.aten._scaled_dot_product_flash_attention.default
CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
WITH_GRADIENTS = CUDA | torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCUDA)


class Torchs:
    """Flash attention and its backward pass as torch would have them, counting their calls."""

    def __init__(self) -> None:
        self.forwards = self.backwards = 0

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        self.forwards += 1
        scores = self.scores(q, k, is_causal, scale)
        out = torch.softmax(scores, dim=-1) @ v
        state = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), q.new_empty(0)
        return out, scores.logsumexp(dim=-1), None, None, q.shape[2], k.shape[2], *state

    @staticmethod
    def scores(q: Tensor, k: Tensor, is_causal: bool, scale: float | None) -> Tensor:
        scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
        visible = torch.ones(scores.shape[2:], dtype=torch.bool)
        return scores.masked_fill(~visible.tril(), float("-inf")) if is_causal else scores

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any, **named: Any
    ) -> tuple[Tensor, ...]:
        """FlashAttention-2's equations (Dao 2023, section 2.3): the weights again from the log-sum-exp."""
        self.backwards += 1
        scale = named.get("scale")
        weights = torch.exp(self.scores(q, k, rest[5], scale) - lse[..., None])
        inner = weights * (grad @ v.transpose(2, 3) - (grad * out).sum(-1, keepdim=True))
        factor = q.shape[3] ** -0.5 if scale is None else scale
        return inner @ k * factor, inner.transpose(2, 3) @ q * factor, weights.transpose(2, 3) @ grad


@pytest.fixture
def torchs() -> Iterator[Torchs]:
    """A torch that has flash attention for CUDA; nothing of it is left afterwards."""
    had = Torchs()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(FORWARD, had.forward, "CUDA")
        library.impl(f"{FORWARD}_backward", had.backward, "CPU")
        yield had
        registry.restore_flash_attention_impl(_raise_warn=False)


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """As if a kernel were proven for everything; the calls that it takes. It computes with torch."""
    calls: list[tuple[Any, ...]] = []
    real = torch_registry.attention_with_lse

    def run(*arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        calls.append((*arguments, named))
        return real(*arguments, **named)

    monkeypatch.setattr(torch_registry, "explain", lambda *_, **__: sdpalab.Explanation("flash", "it is proven"))
    monkeypatch.setattr(torch_registry, "attention_with_lse", run)
    return calls


def activated() -> None:
    torch_registry.register()
    registry.activate_flash_attention_impl("sdpalab")


def drawn(rows: int = 5, keys: int = 5, requires_grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 2, rows, 16), (1, 2, keys, 16), (1, 2, keys, 16))
    return [torch.randn(shape, generator=generator).requires_grad_(requires_grad) for shape in shapes]


def test_registering_twice_is_once_and_activates_nothing() -> None:
    torch_registry.register()
    torch_registry.register()
    assert registry.list_flash_attention_impls().count("sdpalab") == 1
    assert registry.current_flash_attention_impl() is None


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(sdpalab.UserError, match="already has a flash attention 'FA4'"):
        torch_registry.register("FA4")


def test_an_older_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(registry, "register_flash_attention_impl")
    with pytest.raises(sdpalab.UserError, match=r"no registry of flash attentions .*; torch 2\.11 or newer has one$"):
        torch_registry.register()


def test_activating_without_cuda_is_one_sentence() -> None:
    with pytest.raises(sdpalab.UserError, match=r"no flash attention for CUDA, .*; a torch built for CUDA has$"):
        activated()
    assert registry.current_flash_attention_impl() is None


def test_without_a_proof_torchs_own_runs(torchs: Torchs, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = drawn()
    expected = OPERATOR.redispatch(CUDA, q, k, v, 0.0, True, scale=0.3)
    activated()
    assert registry.current_flash_attention_impl() == "sdpalab"
    asked = []
    explain = torch_registry.explain
    monkeypatch.setattr(torch_registry, "explain", lambda *a, **n: (asked.append((a[3:], n)), explain(*a, **n))[1])
    outputs = OPERATOR.redispatch(CUDA, q, k, v, 0.0, True, scale=0.3)
    assert torchs.forwards == 2
    torch.testing.assert_close(outputs[:2], expected[:2])
    assert asked == [((None, 0.0, True, 0.3), {"enable_gqa": True, "lse": True})]
    with sdpalab.no_fallback(), pytest.raises(sdpalab.UserError, match="not on a CUDA GPU"):
        OPERATOR.redispatch(CUDA, q, k, v)


def test_restoring_gives_torch_its_operator_back(torchs: Torchs, proven: list[tuple[Any, ...]]) -> None:
    q, k, v = drawn()
    for _ in range(2):
        activated()
        OPERATOR.redispatch(CUDA, q, k, v)
        registry.restore_flash_attention_impl()
        OPERATOR.redispatch(CUDA, q, k, v)
    assert (torchs.forwards, len(proven)) == (2, 2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_proven_kernel_gives_all_nine_results(
    torchs: Torchs, proven: list[tuple[Any, ...]], is_causal: bool, scale: float | None
) -> None:
    q, k, v = drawn()
    expected = OPERATOR.redispatch(CUDA, q, k, v, 0.0, is_causal, scale=scale)
    activated()
    outputs = OPERATOR.redispatch(CUDA, q, k, v, 0.0, is_causal, scale=scale)
    assert (torchs.forwards, len(proven)) == (1, 1)
    assert len(outputs) == len(expected)
    for mine, theirs in zip(outputs[:8], expected[:8], strict=True):
        torch.testing.assert_close(mine, theirs)
    assert outputs[8].shape == (0,)


@pytest.mark.parametrize("is_causal", [False, True])
def test_torchs_backward_pass_reads_the_log_sum_exp_of_the_kernel(
    torchs: Torchs, proven: list[tuple[Any, ...]], is_causal: bool
) -> None:
    activated()
    q, k, v = drawn(requires_grad=True)
    out = OPERATOR.redispatch(WITH_GRADIENTS, q, k, v, 0.0, is_causal, scale=0.3)[0]
    weights = torch.randn(out.shape)
    gradient = torch.autograd.grad(out, (q, k, v), weights)
    assert (len(proven), torchs.forwards, torchs.backwards) == (1, 0, 1)
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.3)
    torch.testing.assert_close(gradient, torch.autograd.grad(plain, (q, k, v), weights))


def test_in_training_torchs_own_forward_runs_where_the_gradients_are_seen(torchs: Torchs) -> None:
    activated()
    q, k, v = drawn(requires_grad=True)
    out = OPERATOR.redispatch(WITH_GRADIENTS, q, k, v)[0]
    out.sum().backward()
    assert (torchs.forwards, torchs.backwards) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "rows", "reason"),
    [((0.0, True, False), 3, "aligns the causal mask to the last key"), ((0.0, False, True), 5, "no debug mask")],
    ids=["causal, not square", "debug mask"],
)
def test_what_the_kernels_do_not_mean_stays_with_torch(
    torchs: Torchs, proven: list[tuple[Any, ...]], arguments: tuple[Any, ...], rows: int, reason: str
) -> None:
    activated()
    q, k, v = drawn(rows)
    OPERATOR.redispatch(CUDA, q, k, v, *arguments)
    assert (torchs.forwards, proven) == (1, [])
    with sdpalab.no_fallback(), pytest.raises(sdpalab.UserError, match=reason):
        OPERATOR.redispatch(CUDA, q, k, v, *arguments)


def test_dropout_stays_with_torch(torchs: Torchs, monkeypatch: pytest.MonkeyPatch) -> None:
    activated()
    OPERATOR.redispatch(CUDA, *drawn(), 0.5)
    assert torchs.forwards == 1
    with sdpalab.no_fallback(), pytest.raises(sdpalab.UserError, match="the kernels have no dropout"):
        OPERATOR.redispatch(CUDA, *drawn(), 0.5)
