"""Functions with the signatures of FlashAttention and torch, on torch CPU tensors; each has bugs to choose from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch


def attention(
    q: Any, k: Any, v: Any, scale: float, causal: bool, window: tuple[int, int], softcap: float, slopes: Any, bug: str
) -> Any:
    """One sequence, [S, H, D], masks aligned to the last key."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (tensor.transpose(0, 1).float() for tensor in (q, k, v))
    if bug == "heads interleaved":
        k, v = (tensor.repeat(group, 1, 1) for tensor in (k, v))
    else:
        k, v = (tensor.repeat_interleave(group, 0) for tensor in (k, v))
    scores = q @ k.transpose(1, 2) * scale
    if softcap and bug != "no soft cap":
        scores = softcap * torch.tanh(scores / softcap)
    first = 0 if bug == "top left" else k.shape[1] - q.shape[1]
    distance = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - first
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance.abs()
    left, right = window
    left, right = left - (bug == "window off by one" and left > 0), 0 if causal else right
    hidden = ((distance > right) & (right >= 0)) | ((distance < -left) & (left >= 0))
    weights = torch.nan_to_num(torch.softmax(scores.masked_fill(hidden, -torch.inf), -1))
    return (weights @ v).transpose(0, 1)


def flash(bug: str = "") -> Callable[..., Any]:
    def flash_attn_func(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
        deterministic: bool = False, return_attn_probs: bool = False,
    ) -> Any:  # fmt: skip
        options = softmax_scale, causal, window_size, softcap, alibi_slopes, bug
        return torch.stack([attention(*entry, *options) for entry in zip(q, k, v, strict=True)]).to(q.dtype)

    return flash_attn_func


def varlen(bug: str = "") -> Callable[..., Any]:
    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
        deterministic: bool = False, return_attn_probs: bool = False, block_table: Any = None,
    ) -> Any:  # fmt: skip
        out = torch.full((*q.shape[:2], v.shape[-1]), torch.nan, dtype=q.dtype)
        if bug == "keys at the ends of the queries":
            cu_seqlens_k = cu_seqlens_q
        ends = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
        for entry, ((start, end), (first, last)) in enumerate(ends):
            if block_table is None:
                keys, values = k[first:last], v[first:last]
            else:
                pages = block_table[entry, : -((first - last) // k.shape[1])].long()
                keys, values = (cache[pages].flatten(0, 1)[: last - first] for cache in (k, v))
            options = softmax_scale, causal, window_size, softcap, alibi_slopes, bug
            out[start:end] = attention(q[start:end], keys, values, *options)
        return out, None  # and the log-sum-exp, as FlashAttention 3

    return flash_attn_varlen_func


def kvcache(bug: str = "") -> Callable[..., Any]:
    tables: dict[tuple[int, ...], Any] = {}

    def flash_attn_with_kvcache(
        q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, cache_seqlens: Any = None,
        block_table: Any = None, softmax_scale: Any = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None, num_splits: int = 0,
    ) -> Any:  # fmt: skip
        if block_table is None:
            block_table, size = torch.arange(len(k_cache))[:, None], k_cache.shape[1]
        else:
            size = k_cache.shape[1]
            if bug == "stale block table":
                block_table = tables.setdefault(tuple(block_table.shape), block_table.clone())
        out = []
        for entry, length in enumerate(cache_seqlens.tolist()):
            for row in range(0 if k is None else k.shape[1]):
                at = length + row + (bug == "appended a row late")
                for cache, new in ((k_cache, v if bug == "V for K" else k), (v_cache, v)):
                    cache[block_table[entry, at // size], at % size] = new[entry, row]
            if bug == "writes a row too many" and k is not None:
                v_cache[block_table[entry, 0], 0] = 0
            seen = length + (0 if k is None or bug == "appended keys not seen" else k.shape[1])
            if bug == "lengths ignored":
                seen = block_table.shape[1] * size
            pages = block_table[entry, : -(-seen // size)].long()
            keys, values = (cache[pages].flatten(0, 1)[:seen] for cache in (k_cache, v_cache))
            options = softmax_scale, causal, window_size, softcap, alibi_slopes, bug
            out.append(attention(q[entry], keys, values, *options))
        return torch.stack(out).to(q.dtype)

    return flash_attn_with_kvcache


def torch_form(bug: str = "") -> Callable[..., Any]:
    def sdpa(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: Any = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if bug == "mask ignored":
            attn_mask = None
        if bug == "bottom right" and is_causal:
            rows, keys = query.shape[2], key.shape[2]
            attn_mask, is_causal = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows), False
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    return sdpa
