"""Functions on torch tensors that the judge calls for the gradients: right ones, and ones with one bug each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor, Tensor, Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, enable_gqa: bool = False) -> Tensor:
    """torch's own attention, differentiated by autograd."""
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=enable_gqa)


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    kv_lengths: Tensor | None = None,
    q_lengths: Tensor | None = None,
    bottom_right: bool = False,
    head_dim_v: int = 0,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention in float32 with P in 16 bits, one batch entry at a time, on valid rows alone."""
    group = q.shape[1] // k.shape[1]
    entries = []
    for b in range(q.shape[0]):
        rows = q.shape[2] if q_lengths is None else int(q_lengths[b])
        keys = k.shape[2] if kv_lengths is None else int(kv_lengths[b])
        key, value = (each[b, :, :keys].repeat_interleave(group, 0).float() for each in (k, v))
        scores = q[b, :, :rows].float() @ key.mT * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        row = torch.arange(rows)[:, None] + (keys - rows if bottom_right else 0)
        key_index = torch.arange(keys)
        left, right = window_size
        hidden = (key_index > row) & causal
        hidden |= (key_index < row - left) & (left >= 0)
        hidden |= (key_index > row + right) & (right >= 0)
        empty = hidden.all(1, keepdim=True)
        p = torch.softmax(scores.masked_fill(hidden & ~empty, -torch.inf), -1) * ~empty
        out = (p.to(q.dtype).float() @ value).to(q.dtype)
        entries.append(torch.cat((out, out.new_zeros(out.shape[0], q.shape[2] - rows, out.shape[2])), 1))
    return torch.stack(entries)


def backward(*, bug: str = "") -> Callable[..., Gradients]:
    """dQ, dK and dV from O and the log-sum-exp, as FlashAttention-2 computes them, with one bug by name."""

    def gradients(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        causal: bool,
        do: Tensor,
        o: Tensor,
        lse: Tensor,
        softcap: float = 0.0,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> Gradients:
        group = q.shape[1] // k.shape[1]
        heads = torch.arange(q.shape[1])
        of_head = heads % k.shape[1] if bug == "wrong heads" else heads // group
        key, value = k[:, of_head].float(), v[:, of_head].float()
        raw = q.float() @ key.mT * scale
        capped = softcap * torch.tanh(raw / softcap) if softcap else raw
        row, column = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        left, right = window_size
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        if causal:
            seen &= column <= row + (bug == "mask one key later")
        if left >= 0:
            seen &= column >= row - left + (bug == "window one key shorter")
        if right >= 0:
            seen &= column <= row + right
        p = torch.where(seen, torch.exp(capped - lse.masked_fill(torch.isinf(lse), 0.0)[..., None]), 0.0)
        if bug == "lse in base 2":
            p = torch.where(seen, torch.exp2(capped - lse[..., None]), 0.0)
        dp = do.float() @ value.mT
        other = {"delta of O alone": o.float(), "delta of dO alone": do.float()}.get(bug, do.float() * o.float())
        delta = other.sum(-1, keepdim=True) * (bug != "no delta")
        ds = p * (dp - delta)
        if softcap and bug != "no factor of the soft cap":
            ds = ds * (1 - torch.square(torch.tanh(raw / softcap)))
        if bug == "P of the last key lost":
            p = p.clone()
            p[..., -1] = 0.0
        p, ds = p.to(q.dtype).float(), ds.to(q.dtype).float()
        dq = ds @ key * (scale * scale if bug == "scale twice" else scale)
        dk = ds.mT @ q.float() * (1.0 if bug == "no scale in dK" else scale)
        dv = p.mT @ do.float()
        if bug == "bfloat16 sums":
            dq = sum((part[0] @ part[1] * scale for part in _tiles(ds, key)), torch.zeros_like(dq)).to(torch.bfloat16)
        dk, dv = (_summed(each, of_head, k.shape[1], bug) for each in (dk, dv))
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)

    return gradients


def _tiles(ds: Tensor, key: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(ds[..., n : n + 64], key[..., n : n + 64, :]) for n in range(0, key.shape[2], 64)]


def _summed(heads: Tensor, of_head: Tensor, kv_heads: int, bug: str) -> Tensor:
    """Sum over the query heads of each K/V head."""
    total = torch.zeros(heads.shape[0], kv_heads, *heads.shape[2:])
    for head, kv_head in enumerate(of_head.tolist()):
        total[:, kv_head] = heads[:, head] + (0.0 if bug == "last head of a group only" else total[:, kv_head])
    return total


def unrelated(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Attention whose K is detached, so autograd finds no gradient of K."""
    return sdpa(q, k.detach(), v, scale=scale, causal=causal)


def two_of_three(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, do: Tensor) -> Any:
    """Two gradients in place of three."""
    return torch.zeros_like(q), torch.zeros_like(k)
