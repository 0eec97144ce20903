"""Attention with its log-sum-exp: right against float64, differentiable, compiled, and visibly falling back."""

from __future__ import annotations

import re
from typing import Any

import pytest
import setuptools as setuptools  # replaces distutils for inductor's C++, and must do so before any import of that
import torch

from sdpalab import UserError, attention_with_lse, explain, no_fallback
from sdpalab.torch_api.ops import call_of

Tensor = torch.Tensor


def qkv(q: tuple[int, ...], k: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in (q, k, k)]
    return tensors[0], tensors[1], tensors[2]


def exactly(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


CASES: dict[str, tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]] = {
    "plain": (qkv((2, 4, 9, 16), (2, 4, 9, 16)), {}),
    "causal, more keys": (qkv((1, 2, 9, 16), (1, 2, 20, 16)), {"is_causal": True}),
    "causal, fewer keys": (qkv((1, 2, 20, 16), (1, 2, 9, 16)), {"is_causal": True}),
    "grouped": (qkv((2, 4, 9, 16), (2, 2, 7, 16)), {"enable_gqa": True}),
    "negative scale": (qkv((1, 1, 9, 16), (1, 1, 9, 16)), {"scale": -0.7}),
    "more rows than are taken at a time": (qkv((1, 1, 2100, 8), (1, 1, 5, 8)), {"is_causal": True}),
    "no rows": (qkv((1, 2, 0, 16), (1, 2, 5, 16)), {}),
    "half": (qkv((1, 2, 33, 32), (1, 2, 40, 32), torch.float16), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_both_are_right(name: str) -> None:
    (q, k, v), more = CASES[name]
    out, lse = attention_with_lse(q, k, v, **more)
    right, right_lse = exactly(q, k, v, more.get("is_causal", False), more.get("scale"))
    assert (out.dtype, lse.dtype, out.is_contiguous()) == (q.dtype, torch.float32, True)
    torch.testing.assert_close(out.double(), right, rtol=2e-3 if q.dtype == torch.float16 else 1e-5, atol=2e-3)
    torch.testing.assert_close(lse.double(), right_lse, rtol=1e-5, atol=1e-5)  # of half inputs it is no less exact


def test_parts_merge_by_it() -> None:
    q, k, v = qkv((1, 2, 7, 16), (1, 2, 30, 16))
    whole, lse = attention_with_lse(q, k, v)
    parts = [attention_with_lse(q, k[:, :, keys], v[:, :, keys]) for keys in (slice(0, 11), slice(11, None))]
    weights = torch.softmax(torch.stack([part[1] for part in parts]), dim=0)[..., None]
    torch.testing.assert_close(sum(w * part[0] for w, part in zip(weights, parts, strict=True)), whole)
    torch.testing.assert_close(torch.logsumexp(torch.stack([part[1] for part in parts]), 0), lse)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "causal, fewer keys", "half"])
def test_opcheck(name: str) -> None:
    (q, k, v), more = CASES[name]
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    call = call_of(*given, more.get("is_causal", False), more.get("scale"))
    torch.library.opcheck(torch.ops.sdpalab.flash_attention.default, (*call.arguments, True, True, False))


def test_gradients_are_those_of_the_function() -> None:
    q, k, v = (x.double().requires_grad_() for x in qkv((1, 2, 5, 4), (1, 1, 6, 4)))
    assert torch.autograd.gradcheck(lambda *qkv: attention_with_lse(*qkv, is_causal=True, enable_gqa=True), (q, k, v))


@pytest.mark.slow
def test_it_compiles_into_one_graph() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = attention_with_lse(q, k, v, is_causal=True)
        return out * lse[..., None].exp()

    q, k, v = qkv((1, 2, 9, 16), (1, 2, 9, 16))
    compiled = torch.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), function(q, k, v))


def test_falling_back_is_visible() -> None:
    q, k, v = qkv((1, 2, 9, 16), (1, 2, 9, 16))
    explanation = explain(q, k, v, lse=True)
    assert explanation.kernel is None
    with no_fallback(), pytest.raises(UserError, match=re.escape(explanation.reason)):
        attention_with_lse(q, k, v)


ZEROS = torch.zeros(1, 4, 8, 16)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((ZEROS[0], ZEROS[0], ZEROS[0]), "tensors of rank 4"),
        ((ZEROS, ZEROS[:, :2], ZEROS[:, :2]), "do not broadcast"),
        ((ZEROS, ZEROS[:, :1], ZEROS[:, :1]), "1 heads of k and v for 4 of q need enable_gqa=True"),
        ((ZEROS, ZEROS[:, :, :0], ZEROS[:, :, :0]), "without a key there is no sum"),
        ((ZEROS, ZEROS.half(), ZEROS), "one dtype"),
        ((ZEROS, ZEROS, ZEROS[..., :8]), "k and v of one shape"),
    ],
    ids=["rank", "broadcast", "gqa", "no keys", "dtype", "values"],
)
def test_bad_input_is_one_sentence(arguments: tuple[Tensor, Tensor, Tensor], reason: str) -> None:
    with pytest.raises(UserError, match=re.escape(reason)) as raised:
        attention_with_lse(*arguments)
    assert "\n" not in str(raised.value)
