"""Functions on torch tensors that the judge calls for the gradients: right ones, and ones of the wrong form."""

from __future__ import annotations

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


def backward(
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
    """dQ, dK and dV from O and the log-sum-exp, as FlashAttention-2 computes them, in one tile."""
    group = q.shape[1] // k.shape[1]
    key, value = (each.repeat_interleave(group, 1).float() for each in (k, v))
    raw = q.float() @ key.mT * scale
    capped = softcap * torch.tanh(raw / softcap) if softcap else raw
    row, column = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    left, right = window_size
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        seen &= column <= row
    if left >= 0:
        seen &= column >= row - left
    if right >= 0:
        seen &= column <= row + right
    p = torch.where(seen, torch.exp(capped - lse.masked_fill(torch.isinf(lse), 0.0)[..., None]), 0.0)
    ds = p * (do.float() @ value.mT - (do.float() * o.float()).sum(-1, keepdim=True))
    if softcap:
        ds = ds * (1 - torch.square(torch.tanh(raw / softcap)))
    p, ds = p.to(q.dtype).float(), ds.to(q.dtype).float()
    dq, dk, dv = ds @ key * scale, ds.mT @ q.float() * scale, p.mT @ do.float()
    dk, dv = (each.unflatten(1, (-1, group)).sum(2) for each in (dk, dv))
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


def unrelated(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Attention whose K is detached, so autograd finds no gradient of K."""
    return sdpa(q, k.detach(), v, scale=scale, causal=causal)


def two_of_three(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, do: Tensor) -> Any:
    """Two gradients in place of three."""
    return torch.zeros_like(q), torch.zeros_like(k)
