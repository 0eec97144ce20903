"""FlashAttention's functions on a CPU: float64 results and gradients, lengths, caches, compilation, bad input."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import setuptools as setuptools  # replaces distutils for inductor's C++, and must do so before any import of that
import torch
from torch.utils.checkpoint import checkpoint

import sdpalab
from sdpalab import UserError, explain_call, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from sdpalab.torch_api import flash_attn

Tensor = torch.Tensor

OPS = torch.ops.sdpalab
LENGTHS = [(3, 7), (0, 4), (9, 9), (5, 0), (6, 2)]
"""Queries and keys of packed sequences: empty ones, and fewer keys than queries."""


def randn(*shape: int, seed: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def exact(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """O [Sq, H, D] and log-sum-exp [H, Sq] of one sequence, a row and a head at a time."""
    rows, heads, keys = q.shape[0], q.shape[1], k.shape[0]
    left, right = window_size[0], 0 if causal else window_size[1]
    out, sums = [], []
    for head in range(heads):
        own = head // (heads // k.shape[1])
        for row in range(rows):
            place = row + keys - rows
            first = max(0, place - left) if left >= 0 else 0
            last = min(keys, place + right + 1) if right >= 0 else keys
            if last <= first:
                out.append((q[row, head] * 0).sum() + v.new_zeros(v.shape[2]))
                sums.append(v.new_tensor(float("-inf")))
                continue
            scores = (
                k[first:last, own] @ q[row, head] * (q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale)
            )
            scores = softcap * torch.tanh(scores / softcap) if softcap else scores
            if alibi_slopes is not None:
                scores = scores - alibi_slopes[head] * (torch.arange(first, last) - place).abs()
            out.append(scores.softmax(0) @ v[first:last, own])
            sums.append(scores.logsumexp(0))
    return torch.stack(out).reshape(heads, rows, -1).transpose(0, 1), torch.stack(sums).reshape(heads, rows)


SLOPES = torch.tensor([0.5, 0.125, 0.25, 1.0])
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "scale": {"softmax_scale": -0.4, "causal": True},
    "window": {"window_size": (2, 1)},
    "window to the left, causal": {"window_size": (3, -1), "causal": True},
    "window to the right": {"window_size": (-1, 0)},
    "soft cap": {"softcap": 1.5, "causal": True},
    "ALiBi": {"alibi_slopes": SLOPES, "causal": True},
    "all": {"alibi_slopes": SLOPES, "softcap": 2.0, "window_size": (4, 2), "softmax_scale": 0.3},
}
SHAPES = {
    "as many keys": ((9, 4), (9, 4)),
    "more keys, shared": ((5, 4), (11, 2)),
    "fewer keys": ((8, 4), (3, 1)),
    "one query": ((1, 4), (6, 2)),
}


def near(given: Tensor, right: Tensor, most: float = 1e-9) -> None:
    torch.testing.assert_close(given.double(), right.double(), atol=most, rtol=most)


def dense(shape: str, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    (rows, heads), (keys, kv_heads) = SHAPES[shape]
    return (
        randn(batch, rows, heads, 8),
        randn(batch, keys, kv_heads, 8, seed=6),
        randn(batch, keys, kv_heads, 5, seed=7),
    )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_dense_results_and_gradients_are_those_of_float64(shape: str, settings: str) -> None:
    leaves = [each.requires_grad_() for each in dense(shape)]
    wide = [each.detach().clone().requires_grad_() for each in leaves]
    out, lse, _ = flash_attn_func(*leaves, **SETTINGS[settings], return_attn_probs=True)
    right = [exact(*(each[entry] for each in wide), **SETTINGS[settings]) for entry in range(2)]
    right_out, right_lse = torch.stack([each[0] for each in right]), torch.stack([each[1] for each in right])
    near(out, right_out)
    near(lse, right_lse)
    weights, finite = randn(*out.shape, seed=8), right_lse.isfinite()
    wanted = torch.autograd.grad((right_out * weights).sum() + right_lse[finite].sin().sum(), wide, retain_graph=True)
    given = torch.autograd.grad((out * weights).sum() + lse[finite].sin().sum(), leaves)
    for mine, theirs in zip(given, wanted, strict=True):
        near(mine, theirs)
    # Gradients of O alone are torch's own where the settings allow; they are the same.
    wanted = torch.autograd.grad(right_out, wide, weights)
    for deterministic in (False, True):
        again = flash_attn_func(*leaves, **SETTINGS[settings], deterministic=deterministic)
        for mine, theirs in zip(torch.autograd.grad(again, leaves, weights), wanted, strict=True):
            near(mine, theirs)


def test_slopes_of_each_batch_entry() -> None:
    q, k, v = dense("more keys, shared")
    slopes = torch.stack([SLOPES, SLOPES.flip(0)])
    out = flash_attn_func(q, k, v, alibi_slopes=slopes)
    near(out, torch.stack([exact(q[b], k[b], v[b], alibi_slopes=slopes[b])[0] for b in range(2)]))


def ends(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def packed() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Packed Q, K and V with two rows behind the last sequence, NaN in K and V, and the ends."""
    queries, keys = ([pair[axis] for pair in LENGTHS] for axis in (0, 1))
    q, k, v = randn(sum(queries) + 2, 4, 8), randn(sum(keys) + 2, 2, 8, seed=6), randn(sum(keys) + 2, 2, 8, seed=7)
    k[-2:], v[-2:] = torch.nan, torch.nan
    return q, k, v, ends(queries), ends(keys)


@pytest.mark.parametrize("settings", SETTINGS)
def test_packed_results_and_gradients_are_those_of_each_sequence(settings: str) -> None:
    q, k, v, ends_q, ends_k = packed()
    leaves = [each.requires_grad_() for each in (q, k, v)]
    out, lse, _ = flash_attn_varlen_func(*leaves, ends_q, ends_k, 9, 9, **SETTINGS[settings], return_attn_probs=True)
    assert (out.shape, lse.shape) == (q.shape, (4, len(q)))
    weights = randn(*out.shape, seed=8)
    grads = torch.autograd.grad(out, leaves, weights)
    for grad, end in zip(grads, (ends_q[-1], ends_k[-1], ends_k[-1]), strict=True):
        assert not grad[end:].any()  # also of NaN
    for n in range(len(LENGTHS)):
        rows, keys = slice(ends_q[n], ends_q[n + 1]), slice(ends_k[n], ends_k[n + 1])
        wide = [each.detach()[own].requires_grad_() for each, own in zip(leaves, (rows, keys, keys), strict=True)]
        if rows.start == rows.stop:
            continue
        right_out, right_lse = exact(*wide, **SETTINGS[settings])
        near(out[rows], right_out)
        near(lse[:, rows], right_lse)
        wanted = torch.autograd.grad(right_out, wide, weights[rows], allow_unused=True)
        for grad, right, own in zip(grads, wanted, (rows, keys, keys), strict=True):
            near(grad[own], torch.zeros_like(grad[own]) if right is None else right)


def pages_of(rows: Tensor, lengths: list[int], size: int, *, capacity: int = 12) -> tuple[Tensor, Tensor]:
    """A cache of pages in reversed order, NaN beyond each length, of sequences [B, S, H, D]; and the block table."""
    columns = -(-capacity // size)
    cache = torch.full((len(lengths) * columns + 1, size, *rows.shape[2:]), torch.nan, dtype=rows.dtype)
    table = torch.full((len(lengths), columns), -1, dtype=torch.int32)
    page = len(cache)
    for entry, length in enumerate(lengths):
        for column in range(columns):
            page -= 1
            table[entry, column] = page
            own = rows[entry, column * size : min(length, (column + 1) * size)]
            cache[page, : len(own)] = own
    return cache, table


@pytest.mark.parametrize("form", ["gaps", "pages", "pages by cumulated lengths"])
def test_packed_queries_with_valid_keys(form: str) -> None:
    q, _, _, ends_q, _ = packed()
    lengths = [pair[1] for pair in LENGTHS]
    k, v = randn(5, 12, 2, 8, seed=6), randn(5, 12, 2, 8, seed=7)
    used: dict[str, Any] = {"seqused_k": torch.tensor(lengths, dtype=torch.int32)}
    ends_k: Tensor | None = ends([12] * 5)
    given = [each.flatten(0, 1) for each in (k, v)]
    if form != "gaps":
        (k_pages, table), (v_pages, _) = (pages_of(each, lengths, 4) for each in (k, v))
        given, ends_k, used["block_table"] = [k_pages, v_pages], None, table
    if form == "pages by cumulated lengths":
        used, ends_k = {"block_table": used["block_table"]}, ends(lengths)
    out = flash_attn_varlen_func(q, *given, ends_q, ends_k, 9, 12, causal=True, **used)
    for n, count in enumerate(lengths):
        rows = slice(ends_q[n], ends_q[n + 1])
        if rows.stop > rows.start:
            near(out[rows], exact(q[rows], k[n, :count], v[n, :count], causal=True)[0])


@pytest.mark.parametrize("settings", ["plain", "causal", "window to the left, causal", "all"])
@pytest.mark.parametrize("new", [0, 1, 3])
@pytest.mark.parametrize("paged", [False, True])
def test_a_step_with_a_cache(settings: str, new: int, paged: bool) -> None:
    before = [6, 0, 9]
    lengths = [each + new for each in before]
    q, k, v = randn(3, 2, 4, 8), randn(3, 12, 2, 8, seed=6), randn(3, 12, 2, 8, seed=7)
    more: dict[str, Any] = {}
    if paged:
        (k_cache, more["block_table"]), (v_cache, _) = (pages_of(each, before, 4) for each in (k, v))
    else:
        valid = torch.arange(12)[None, :, None, None] < torch.tensor(before)[:, None, None, None]
        k_cache, v_cache = k.where(valid, torch.nan), v.where(valid, torch.nan)
    if new:
        more |= {
            name: torch.stack([each[b, before[b] : lengths[b]] for b in range(3)])
            for name, each in zip("kv", (k, v), strict=True)
        }
    untouched = k_cache.clone()
    out, lse = flash_attn_with_kvcache(
        *(q, k_cache, v_cache),
        cache_seqlens=torch.tensor(before, dtype=torch.int32),
        **more,
        **SETTINGS[settings],
        return_softmax_lse=True,
    )
    for b, count in enumerate(lengths):
        if not count:
            assert not out[b].any()
            assert (lse[b] == -torch.inf).all()
            continue
        right_out, right_lse = exact(q[b], k[b, :count], v[b, :count], **SETTINGS[settings])
        near(out[b], right_out)
        near(lse[b], right_lse)
    if paged:
        after = pages_of(k, lengths, 4)[0]
    else:
        after = k.where(torch.arange(12)[None, :, None, None] < torch.tensor(lengths)[:, None, None, None], torch.nan)
    torch.testing.assert_close(k_cache, after, rtol=0, atol=0, equal_nan=True)
    assert new or torch.equal(k_cache.nan_to_num(), untouched.nan_to_num())


def test_the_length_of_a_cache_may_be_one_number_or_all_rows() -> None:
    q, k, v = dense("more keys, shared")
    near(flash_attn_with_kvcache(q, k, v, cache_seqlens=7), flash_attn_func(q, k[:, :7], v[:, :7]))
    near(flash_attn_with_kvcache(q, k, v, causal=True), flash_attn_func(q, k, v, causal=True))


HALF = {name: [each.half() for each in dense(name)[:2]] for name in SHAPES}


def test_half_results_are_as_exact_as_torchs() -> None:
    q, k = HALF["more keys, shared"]
    for settings in ("causal", "all"):
        out = flash_attn_func(q, k, k, **SETTINGS[settings])
        assert out.dtype == torch.float16
        assert out.is_contiguous()
        near(
            out,
            torch.stack([exact(*(each[b].double() for each in (q, k, k)), **SETTINGS[settings])[0] for b in (0, 1)]),
            2e-3,
        )


# --- torch ------------------------------------------------------------------------------------------------------------


def test_gradcheck() -> None:
    q, k, v = (each[:1, :4].requires_grad_() for each in dense("more keys, shared"))
    for settings in ({"causal": True}, {"softcap": 1.5, "window_size": (2, 1)}):
        function = partial(flash_attn_func, **settings, return_attn_probs=True)
        assert torch.autograd.gradcheck(lambda *qkv, function=function: function(*qkv)[:2], (q, k, v))
    q, k, v, ends_q, ends_k = packed()
    leaves = [each[:-2].requires_grad_() for each in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *qkv: flash_attn_varlen_func(*qkv, ends_q, ends_k, 9, 9), leaves)


def calls() -> dict[str, tuple[Any, ...]]:
    q, k, v, ends_q, ends_k = (each.float() if each.is_floating_point() else each for each in packed())
    float32 = [each.float() for each in dense("more keys, shared")]
    made = {
        "dense": flash_attn.CALLS[flash_attn_func](*float32, causal=True),
        "softcap": flash_attn.CALLS[flash_attn_func](*float32, softcap=2.0, alibi_slopes=SLOPES),
        "varlen": flash_attn.CALLS[flash_attn_varlen_func](q, k[:-2], v[:-2], ends_q, ends_k, 9, 9),
        "cache": flash_attn.CALLS[flash_attn_with_kvcache](*float32, cache_seqlens=7),
    }
    return {name: each.call.arguments for name, each in made.items()}


@pytest.mark.parametrize("name", ["dense", "softcap", "varlen", "cache"])
def test_opcheck(name: str) -> None:
    arguments = calls()[name]
    gradients = name != "cache"
    leaves = [each.detach().clone().requires_grad_(gradients) for each in arguments[:3]]
    outcome = torch.library.opcheck(OPS.flash_attention.default, (*leaves, *arguments[3:], True, gradients, False))
    assert set(outcome.values()) == {"SUCCESS"}
    assert len(outcome) == 4


def test_opcheck_of_gradients_and_of_appending() -> None:
    arguments = calls()["dense"]
    out, lse = OPS.flash_attention(*arguments, True, True, False)
    for grad_lse in (None, torch.ones_like(lse)):
        given = (torch.ones_like(out), grad_lse, out, lse, *arguments, True, True, False)
        assert set(torch.library.opcheck(OPS.flash_attention_backward.default, given).values()) == {"SUCCESS"}
    cache, new = torch.zeros(2, 8, 1, 4), torch.ones(2, 2, 1, 4)
    given = (cache, cache.clone(), new, new, torch.tensor([1, 6]), None)
    assert set(torch.library.opcheck(OPS.append_to_cache.default, given).values()) == {"SUCCESS"}


def with_gradients(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    leaves = [each.detach().clone().requires_grad_() for each in tensors]
    out = function(*leaves)
    return [out, *torch.autograd.grad(out, leaves, torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype))]


def compiled_calls() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    q, k, v, ends_q, ends_k = (each.float() if each.is_floating_point() else each for each in packed())
    tensors = tuple(each.float() for each in dense("more keys, shared"))
    return {
        "dense": (lambda *qkv: flash_attn_func(*qkv, causal=True), tensors),
        "softcap": (lambda *qkv: flash_attn_func(*qkv, softcap=2.0, window_size=(3, 1)), tensors),
        "varlen": (lambda *qkv: flash_attn_varlen_func(*qkv, ends_q, ends_k, 9, 9), (q[:-2], k[:-2], v[:-2])),
    }


@pytest.mark.parametrize("name", ["dense", "softcap", "varlen"])
def test_compiled_into_one_graph_with_gradients(name: str) -> None:
    function, tensors = compiled_calls()[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for mine, right in zip(with_gradients(compiled, *tensors), with_gradients(function, *tensors), strict=True):
        near(mine, right, 1e-5)


def test_a_compiled_step_writes_into_the_cache() -> None:
    q, k, v = (each.float() for each in dense("one query"))
    cache, lengths = [torch.zeros(2, 8, 2, 8), torch.zeros(2, 8, 2, 5)], torch.tensor([3, 2], dtype=torch.int32)

    def step(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        return flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    others = [each.clone() for each in cache]
    near(compiled(q, *cache, k[:, :1], v[:, :1], lengths), step(q, *others, k[:, :1], v[:, :1], lengths))
    assert cache[0][0, 3].any()
    assert all(torch.equal(*pair) for pair in zip(cache, others, strict=True))


def test_checkpointing_and_autocast() -> None:
    tensors = [each.float() for each in dense("more keys, shared")]

    def function(*qkv: Tensor) -> Tensor:
        return flash_attn_func(*qkv, causal=True)

    again = with_gradients(lambda *qkv: checkpoint(function, *qkv, use_reentrant=False), *tensors)
    for mine, right in zip(again, with_gradients(function, *tensors), strict=True):
        near(mine, right, 1e-6)
    for settings in ("causal", "soft cap"):
        leaves = [each.clone().requires_grad_() for each in tensors]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = flash_attn_func(leaves[0].bfloat16(), *leaves[1:], **SETTINGS[settings])
        assert out.dtype == torch.bfloat16
        right = flash_attn_func(*(each.bfloat16() for each in tensors), **SETTINGS[settings])
        assert torch.equal(out, right)
        out.sum().backward()
        assert {each.grad.dtype for each in leaves if each.grad is not None} == {torch.float32}


def test_the_backward_pass_keeps_o_and_the_log_sum_exp_only() -> None:
    q, k, v = (each.float().requires_grad_() for each in dense("more keys, shared"))
    extra: list[tuple[int, ...]] = []
    inputs = {each.data_ptr() for each in (q, k, v)}

    def packing(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in inputs:
            extra.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packing, lambda tensor: tensor):
        out = flash_attn_func(q, k, v, softcap=3.0)
    assert extra == [tuple(out.shape), (2, 4, 5)]


# --- interface --------------------------------------------------------------------------------------------------------


def test_signatures_are_those_of_flash_attn() -> None:
    """In the order of flash_attn 2.8, with the defaults of its documentation."""
    common = "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0"
    wanted = {
        flash_attn_func: f"q, k, v, dropout_p=0.0, {common}, alibi_slopes=None, deterministic=False, "
        "return_attn_probs=False",
        flash_attn_varlen_func: "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, "
        f"{common}, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None, seqused_k=None",
        flash_attn_with_kvcache: "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, "
        f"{common}, rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False",
    }
    for function, text in wanted.items():
        parameters = inspect.signature(function).parameters.values()
        assert ", ".join(str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters) == text


def test_explanations() -> None:
    q, k, v = dense("more keys, shared")
    reason = "the tensors are not on a CUDA GPU"
    for settings, torchs in (({}, "scaled_dot_product_attention"), ({"softcap": 1.0}, "products and softmax")):
        assert str(explain_call(flash_attn_func, q, k, v, **settings)) == f"This call runs torch's {torchs}: {reason}."
    why = explain_call(flash_attn_with_kvcache, q, k, v, k[:, :1], v[:, :1], cache_seqlens=3)
    assert (why.kernel, why.reason) == (None, reason)
    heads = [each.transpose(1, 2) for each in (q, k, k)]
    assert explain_call(sdpalab.scaled_dot_product_attention, *heads, enable_gqa=True).reason == reason
    assert explain_call(sdpalab.attention_with_lse, *heads, True, None, True).reason == reason
    with pytest.raises(
        UserError, match="explain_call takes a function of sdpalab: scaled_dot_product_attention, flash_"
    ):
        explain_call(print, q, k, v)
    with sdpalab.no_fallback(), pytest.raises(UserError, match=reason):
        flash_attn_func(q, k, v)


@pytest.mark.parametrize(
    ("function", "shapes", "more", "layout"),
    [
        (flash_attn_func, [(2, 70, 4, 64), (2, 90, 2, 64)], {}, "dense"),
        (flash_attn_varlen_func, [(70, 4, 64), (90, 2, 64)], {"cu_seqlens_q": 4, "cu_seqlens_k": 4}, "varlen"),
        (flash_attn_with_kvcache, [(2, 1, 4, 64), (2, 96, 2, 64)], {"cache_seqlens": 2}, "paged:16"),
        (
            flash_attn_with_kvcache,
            [(2, 1, 4, 64), (9, 64, 2, 64)],
            {"cache_seqlens": 2, "block_table": (2, 3)},
            "paged:64",
        ),
    ],
    ids=["dense", "varlen", "dense cache", "pages"],
)
def test_explain_answers_for_a_gpu_that_is_not_here(function: Any, shapes: Any, more: Any, layout: str) -> None:
    q, k = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes)
    given = {
        name: torch.empty(size if isinstance(size, tuple) else (size,), dtype=torch.int32, device="meta")
        for name, size in more.items()
    }
    if function is flash_attn_varlen_func:
        given |= {"max_seqlen_q": 30, "max_seqlen_k": 40}
    assert explain_call(function, q, k, k, **given, gpu="H200").reason.startswith("no kernel is proven on NVIDIA H200")
    assert flash_attn.CALLS[function](q, k, k, **given).call.problem().layout == layout


Q, K = torch.zeros(2, 3, 4, 8), torch.zeros(2, 5, 2, 8)
ENDS, USED = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([5, 1], dtype=torch.int32)
TABLE = torch.tensor([[0, 1], [1, 2]], dtype=torch.int32)
BAD: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "flash_attn_func of sdpalab has no dropout_p": (flash_attn_func, (Q, K, K), {"dropout_p": 0.1}),
    "has no rotary_cos": (flash_attn_with_kvcache, (Q, K, K), {"rotary_cos": Q}),
    "has no cache_batch_idx": (flash_attn_with_kvcache, (Q, K, K), {"cache_batch_idx": USED}),
    "q must be a torch tensor, not a NoneType": (flash_attn_func, (None, K, K), {}),
    "q must be [rows, heads, head_dim], not of rank 4": (flash_attn_varlen_func, (Q, K, K, ENDS, ENDS, 2, 2), {}),
    "the heads of k must divide those of q, and 3 does not divide 4": (flash_attn_func, (Q, *[Q[:, :, :3]] * 2), {}),
    "q and k must have one head_dim, not 8 and 4": (flash_attn_func, (Q, K[..., :4], K), {}),
    "k and v must have the same rows and heads": (flash_attn_func, (Q, K, K[:, :4]), {}),
    "q has a batch of 2, and k of 1": (flash_attn_func, (Q, K[:1], K[:1]), {}),
    "one dtype, not torch.float32, torch.float16 and torch.float32": (flash_attn_func, (Q, K.half(), K), {}),
    "alibi_slopes must be [4] or [2, 4] on cpu, not [3]": (flash_attn_func, (Q, K, K), {"alibi_slopes": SLOPES[:3]}),
    "window_size is two numbers of keys from 0 up": (flash_attn_func, (Q, K, K), {"window_size": (-2, 0)}),
    "softcap is positive, or 0 for none, not -1": (flash_attn_func, (Q, K, K), {"softcap": -1}),
    "cu_seqlens_q must rise from 0 to at most the 3 rows of q": (
        *(flash_attn_varlen_func, (Q[0], K[0], K[0], torch.tensor([0, 3, 2]), ENDS, 3, 3)),
        {},
    ),
    "cu_seqlens_k must be int32 [3], not torch.float32 [3]": (
        *(flash_attn_varlen_func, (Q[0], K[0], K[0], ENDS, ENDS.float(), 3, 3)),
        {},
    ),
    "needs cu_seqlens_k, or block_table with seqused_k": (
        *(flash_attn_varlen_func, (Q[0], K[0], K[0], ENDS, None, 3, 3)),
        {},
    ),
    "has no gradients with block_table": (
        *(flash_attn_varlen_func, (Q[0].clone().requires_grad_(), K, K, ENDS, None, 3, 3)),
        {"block_table": TABLE, "seqused_k": USED},
    ),
    "sequence 0 has 6 keys, and K and V have room for 5": (flash_attn_with_kvcache, (Q, K, K), {"cache_seqlens": 6}),
    "flash_attn_with_kvcache takes k and v together": (flash_attn_with_kvcache, (Q, K, K, K), {"cache_seqlens": 0}),
    "flash_attn_with_kvcache needs cache_seqlens with k": (flash_attn_with_kvcache, (Q, K, K, K, K), {}),
    "needs cache_seqlens with block_table": (flash_attn_with_kvcache, (Q, K, K), {"block_table": TABLE}),
    "5 keys behind the 1 of sequence 0 need a cache of 6 rows, and it has 5": (
        *(flash_attn_with_kvcache, (Q, K, K, K, K)),
        {"cache_seqlens": 1},
    ),
    "v must be torch.float32 (2, 5, 2, 8) as v_cache, not torch.float16": (
        *(flash_attn_with_kvcache, (Q, K, K, K, K.half())),
        {"cache_seqlens": 1},
    ),
    "block_table names page 2 for sequence 1, and the cache has pages 0 to 1": (
        *(flash_attn_with_kvcache, (Q, K, K)),
        {"cache_seqlens": 9, "block_table": TABLE},
    ),
    "block_table has no page of the cache, 0 to 1, for an appended key": (
        *(flash_attn_with_kvcache, (Q, K, K, K[:, :1], K[:, :1])),
        {"cache_seqlens": 5, "block_table": TABLE},
    ),
    "flash_attn_with_kvcache has no gradients": (flash_attn_with_kvcache, (Q.clone().requires_grad_(), K, K), {}),
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_input_is_one_sentence(reason: str) -> None:
    function, arguments, more = BAD[reason]
    before = K.clone()
    with pytest.raises(UserError, match=re.escape(reason)) as raised:
        function(*arguments, **more)
    assert "\n" not in str(raised.value)
    assert torch.equal(K, before)
