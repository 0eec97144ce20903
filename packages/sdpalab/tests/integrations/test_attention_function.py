"""The function that transformers calls, against plain arithmetic, and its refusals; transformers need not be there."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest
import torch

import sdpalab
from sdpalab.integrations import transformers as integration
from sdpalab.integrations.transformers import attention, recorded

Tensor = torch.Tensor


class Layer(torch.nn.Module):
    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.is_causal = is_causal


def drawn(rows: int, keys: int, heads: int = 4, kv_heads: int = 2, dv: int = 16, batch: int = 2) -> list[Tensor]:
    """Q, K and V in float64, with the strides that models hand over: a transposed view of [B, S, H, D]."""
    generator = torch.Generator().manual_seed(rows * 100 + keys)
    sizes = ((rows, heads, 16), (keys, kv_heads, 16), (keys, kv_heads, dv))
    return [torch.randn(batch, *size, generator=generator, dtype=torch.float64).transpose(1, 2) for size in sizes]


def expected(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, bias: Tensor | float = 0.0
) -> Tensor:
    """[B, Sq, H, Dv] by plain arithmetic; ``visible`` broadcasts to [B, H, Sq, Skv]."""
    group = q.shape[1] // k.shape[1]
    k, v = (given.repeat_interleave(group, dim=1) for given in (k, v))
    scores = q @ k.transpose(2, 3) * scale + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2)


def lower(rows: int, keys: int) -> Tensor:
    """Causal mask whose last row belongs to the last key."""
    return torch.arange(keys) <= torch.arange(keys - rows, keys)[:, None]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("rows", "keys"), [(7, 7), (1, 7), (3, 7), (1, 1)])
def test_causal_without_a_mask(rows: int, keys: int, kv_heads: int) -> None:
    q, k, v = drawn(rows, keys, kv_heads=kv_heads)
    out, weights = attention(Layer(), q, k, v, None, scaling=0.3)
    assert weights is None
    assert out.shape == (2, rows, 4, 16)
    assert out.is_contiguous()
    torch.testing.assert_close(out, expected(q, k, v, lower(rows, keys), 0.3))


@pytest.mark.parametrize(("layer", "argument"), [(False, None), (True, False)])
@pytest.mark.parametrize(("rows", "keys"), [(7, 7), (3, 7), (7, 3)])
def test_what_is_not_causal_sees_every_key(layer: bool, argument: bool | None, rows: int, keys: int) -> None:
    q, k, v = drawn(rows, keys)
    out, _ = attention(Layer(layer), q, k, v, None, is_causal=argument)
    torch.testing.assert_close(out, expected(q, k, v, None, 0.25))


def test_the_argument_comes_before_the_layer_and_a_layer_without_a_word_is_causal() -> None:
    q, k, v = drawn(5, 5)
    causal = expected(q, k, v, lower(5, 5), 0.25)
    torch.testing.assert_close(attention(Layer(False), q, k, v, None, is_causal=True)[0], causal)
    torch.testing.assert_close(attention(torch.nn.Module(), q, k, v, None)[0], causal)


@pytest.mark.parametrize("additive", [False, True], ids=["bool", "additive"])
@pytest.mark.parametrize("mask_heads", [1, 4])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("rows", "keys"), [(7, 7), (1, 7), (3, 7)])
def test_a_mask_says_alone_what_is_seen(rows: int, keys: int, kv_heads: int, mask_heads: int, additive: bool) -> None:
    q, k, v = drawn(rows, keys, kv_heads=kv_heads)
    visible = torch.rand(2, mask_heads, rows, keys, generator=torch.Generator().manual_seed(1)) < 0.6
    visible[..., 0] = True
    given = torch.zeros(visible.shape, dtype=q.dtype).masked_fill(~visible, float("-inf")) if additive else visible
    with recorded() as calls:
        out, _ = attention(Layer(), q, k, v, given)
    torch.testing.assert_close(out, expected(q, k, v, visible, 0.25))
    assert {why.reason for why in calls} == {
        "the kernels take no attn_mask: key padding masks and additive bias stay with torch"
    }


@pytest.mark.parametrize("rows", [1, 6])
def test_values_of_another_width(rows: int) -> None:
    q, k, v = drawn(rows, 6, dv=8)
    torch.testing.assert_close(attention(Layer(), q, k, v, None)[0], expected(q, k, v, lower(rows, 6), 0.25))


@pytest.mark.parametrize("masked", ["no mask", "bool", "additive"])
@pytest.mark.parametrize(("rows", "keys"), [(6, 6), (1, 6), (2, 6)])
def test_a_position_bias_is_added_to_what_is_seen(rows: int, keys: int, masked: str) -> None:
    q, k, v = drawn(rows, keys)
    bias = torch.randn(1, 4, rows, keys, dtype=q.dtype)
    visible = lower(rows, keys).expand(2, 1, rows, keys).clone()
    given = None
    if masked != "no mask":
        visible[1, :, :, 1:3] = False
        given = visible if masked == "bool" else torch.zeros(visible.shape, dtype=q.dtype)
        if masked == "additive":
            given = given.masked_fill(~visible, float("-inf"))
    out, _ = attention(Layer(), q, k, v, given, position_bias=bias)
    torch.testing.assert_close(out, expected(q, k, v, visible, 0.25, bias))


def test_dropout_is_applied() -> None:
    q, k, v = drawn(6, 6)
    q.requires_grad_()
    with recorded() as calls:
        out, _ = attention(Layer(), q, k, v, None, dropout=0.5)
    assert not torch.allclose(out, attention(Layer(), q, k, v, None)[0])
    assert {why.reason for why in calls} == {"the kernels have no dropout"}
    out.sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("softcap", 50.0),
        ("s_aux", torch.zeros(4)),
        ("sinks", torch.zeros(4)),
        ("head_mask", torch.ones(4)),
        ("indices", torch.zeros(2, 3)),
        ("output_attentions", True),
        ("sliding_window", 4),
        ("cu_seq_lens_q", torch.tensor([0, 3, 6])),
        ("something_new", 1),
    ],
)
def test_what_would_be_ignored_is_refused(name: str, given: Any) -> None:
    q, k, v = drawn(6, 6)
    with pytest.raises(sdpalab.UserError, match=rf"^Layer uses {name}\b.* does not compute; load this model"):
        attention(Layer(), q, k, v, None, **{name: given})


@pytest.mark.parametrize(
    "harmless",
    [
        {"softcap": None, "output_attentions": False, "sliding_window": None},
        {"position_ids": torch.arange(6), "use_cache": True, "max_length_q": 6},
        {"sliding_window": 6},
        {"cu_seq_lens_q": torch.tensor([0, 6]), "cu_seq_lens_k": torch.tensor([0, 6])},
    ],
    ids=str,
)
def test_what_changes_nothing_is_not_refused(harmless: dict[str, Any]) -> None:
    q, k, v = drawn(6, 6)
    torch.testing.assert_close(attention(Layer(), q, k, v, None, **harmless)[0], attention(Layer(), q, k, v, None)[0])


def test_a_window_and_packed_sequences_are_left_to_the_mask() -> None:
    q, k, v = drawn(6, 6)
    visible = lower(6, 6) & ~lower(6, 6).tril(-2)
    packed = torch.tensor([0, 3, 6])
    out, _ = attention(Layer(), q, k, v, visible[None, None], sliding_window=2, cu_seq_lens_q=packed)
    torch.testing.assert_close(out, expected(q, k, v, visible, 0.25))


def test_recorders_count_apart() -> None:
    q, k, v = drawn(3, 3)
    with recorded() as outer:
        attention(Layer(), q, k, v, None)
        with recorded() as inner:
            attention(Layer(), q, k, v, None)
    attention(Layer(), q, k, v, None)
    assert (sum(outer.values()), sum(inner.values())) == (2, 1)


@pytest.mark.slow
def test_it_compiles_in_one_graph() -> None:
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    q, k, v = drawn(3, 6)
    torch.testing.assert_close(compiled(Layer(), q, k, v, None)[0], expected(q, k, v, lower(3, 6), 0.25))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, r"^this needs transformers 4\.53 or newer: pip install 'sdpalab\[transformers\]'"),
        (types.SimpleNamespace(__version__="4.51.3", AttentionInterface=dict), r"4\.51\.3 has no registry of masks"),
    ],
    ids=["missing", "too old"],
)
def test_transformers_missing_or_too_old(module: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", module)
    for change in (integration.register, integration.unregister):
        with pytest.raises(sdpalab.UserError, match=reason):
            change()


def test_nothing_imports_transformers_before_it_is_used() -> None:
    code = (
        "import sys, sdpalab, sdpalab.integrations.transformers, sdpalab.integrations.torch_registry\n"
        "sdpalab.scaled_dot_product_attention\n"
        "assert 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
