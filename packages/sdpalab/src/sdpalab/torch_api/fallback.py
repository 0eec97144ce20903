"""Attention and its gradients by torch, for the calls that no certified kernel computes.

Each sequence of a call is one call of torch's ``scaled_dot_product_attention``. Scores with a soft cap or ALiBi slopes,
which that function lacks at full precision, and gradients of a log-sum-exp are products in float32, for some rows at
a time (FlashAttention-2, Dao 2023, section 3.1; the gradients as in its appendix).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as functional

from sdpalab.torch_api.calls import AttentionCall
from sdpalab.torch_api.parts import Part, keys_of, parts, queries_of, rows_of_lse, slopes_of

__all__ = ["backward", "by_products", "forward"]

Tensor = torch.Tensor

_ROWS = 1024
"""Query rows per step of the products, whose scores are in memory at the same time."""


def by_products(call: AttentionCall) -> bool:
    """Whether the scores of the call need products instead of torch's attention."""
    return bool(call.softcap) or call.alibi_slopes is not None


def forward(call: AttentionCall, *, lse: bool) -> tuple[Tensor, Tensor]:
    """O in the layout of Q, contiguous, and the log-sum-exp of the rows, float32 (float64 for float64 inputs).

    A row that sees no key, or is behind the last sequence, has O = 0 and a log-sum-exp of -inf. Without ``lse`` the
    log-sum-exp is NaN unless the products give it.
    """
    shape = (*call.q.shape[:-1], call.v.shape[-1])
    out = call.q.new_zeros(shape) if call.packed else call.q.new_empty(shape)
    sums = call.q.new_full(call.lse_shape, float("-inf" if lse else "nan"), dtype=_wide(call.q))
    with torch.autocast(call.q.device.type, enabled=False):
        for part in parts(call):
            q, k, v = _part(call, part)
            o, own = queries_of(call, out, part), rows_of_lse(call, sums, part)
            if not k.shape[2]:
                o.zero_()
                own.fill_(float("-inf"))
                continue
            if not by_products(call):
                o.copy_(_attention(call, q, k, v))
            if by_products(call) or lse:
                for step in _steps(call, part, q, k):
                    own[:, :, step.rows] = step.scores.logsumexp(-1).flatten(1, 2)
                    if by_products(call):
                        weights = step.weights(own)
                        o[:, :, step.rows] = (weights @ _grouped(v, v)).flatten(1, 2).to(o.dtype)
    return out, sums


def backward(
    call: AttentionCall, grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *, deterministic: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients dQ, dK and dV, contiguous in the layouts of Q, K and V, from those of O and of the log-sum-exp.

    Parameters
    ----------
    call : AttentionCall
        Not one with pages.
    grad : Tensor
        As O.
    grad_lse : Tensor, optional
        As the log-sum-exp.
    out, lse : Tensor
        Results of the forward pass; ``lse`` is read only for :func:`by_products`, ``grad_lse`` and ``deterministic``.
    deterministic : bool
        Equal bits from run to run.
    """
    products = by_products(call) or grad_lse is not None or deterministic
    dq, dk, dv = (torch.zeros_like(each, memory_format=torch.contiguous_format) for each in (call.q, call.k, call.v))
    with torch.autocast(call.q.device.type, enabled=False):
        for part in parts(call):
            q, k, v = _part(call, part)
            if not k.shape[2]:
                continue
            do = queries_of(call, grad, part)
            if products:
                o, sums = queries_of(call, out, part), rows_of_lse(call, lse, part)
                own_lse = None if grad_lse is None else rows_of_lse(call, grad_lse, part)
                own: Sequence[Tensor] = _gradients(call, part, (q, k, v), do, o, sums, own_lse)
            else:
                with _recording():
                    leaves = [each.detach().requires_grad_() for each in (q, k, v)]
                    own = torch.autograd.grad(_attention(call, *leaves), leaves, do)
            queries_of(call, dq, part).copy_(own[0])
            keys_of(call, dk, part).copy_(own[1])
            keys_of(call, dv, part).copy_(own[2])
    return dq, dk, dv


@contextmanager
def _recording() -> Iterator[None]:
    """Context in which autograd records, also in the body of a custom op, where torch's dispatcher leaves it out."""
    autograd = torch._C.DispatchKey.AutogradFunctionality
    with torch._C._SetExcludeDispatchKeyGuard(autograd, False), torch.enable_grad():
        yield


def _part(call: AttentionCall, part: Part) -> tuple[Tensor, Tensor, Tensor]:
    return queries_of(call, call.q, part), keys_of(call, call.k, part), keys_of(call, call.v, part)


def _attention(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """O of [B, H, rows, D] by torch's function; 0 in rows that see no key."""
    rows, keys = q.shape[2], k.shape[2]
    plain = call.window_left < 0 and call.window_right < 0
    top_left = call.causal and (not call.bottom_right or rows == keys)
    seen = None if plain and (top_left or not call.causal or rows == 1) else _seen(call, slice(0, rows), rows, keys, q)
    out = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=seen,
        is_causal=seen is None and top_left,
        scale=call.scale,
        enable_gqa=bool(q.shape[1] != k.shape[1]),
    )
    return out if seen is None else out.masked_fill(~seen.any(1)[:, None], 0.0)


def _seen(call: AttentionCall, part: slice, rows: int, keys: int, like: Tensor) -> Tensor | None:
    """Mask [rows of the slice, keys]: True where a row sees a key; None if it is True everywhere."""
    left, right = call.window_left, 0 if call.causal else call.window_right
    if left < 0 and right < 0:
        return None
    ahead = keys - rows if call.bottom_right else 0
    position = torch.arange(part.start, part.stop, device=like.device)[:, None] + ahead
    key = torch.arange(keys, device=like.device)
    seen = key <= position + right if right >= 0 else (key >= 0).expand(len(position), keys)
    return seen & (key >= position - left) if left >= 0 else seen


class _Step(NamedTuple):
    """Scores [B, Hkv, H / Hkv, rows, keys] of some rows; ``capped`` are those before ALiBi and the mask."""

    rows: slice
    scores: Tensor
    capped: Tensor

    def weights(self, lse: Tensor) -> Tensor:
        """Softmax of the scores with the rows' log-sum-exp [B, H, all rows]; 0 in rows that see no key."""
        sums = _split(lse[:, :, self.rows], self.scores.shape[1])[..., None]
        return (self.scores - sums.masked_fill(sums.isinf(), 0.0)).exp()


def _steps(call: AttentionCall, part: Part, q: Tensor, k: Tensor) -> Iterator[_Step]:
    wide, total, keys = _wide(q), q.shape[2], k.shape[2]
    columns, slopes = _grouped(k, k).mT, slopes_of(call, part)
    for start in range(0, total, _ROWS):
        rows = slice(start, min(start + _ROWS, total))
        scores = (_grouped(q[:, :, rows], k) @ columns) * call.scale
        if call.softcap:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        capped = scores
        if slopes is not None:
            ahead = keys - total if call.bottom_right else 0
            distance = torch.arange(rows.start + ahead, rows.stop + ahead, device=q.device)[:, None]
            distance = (distance - torch.arange(keys, device=q.device)).abs()
            of_heads = _split(slopes.to(wide), k.shape[1])[..., None, None]
            scores = scores - of_heads * distance
        seen = _seen(call, rows, total, keys, q)
        yield _Step(rows, scores if seen is None else scores.masked_fill(~seen, float("-inf")), capped)


def _gradients(
    call: AttentionCall,
    part: Part,
    qkv: tuple[Tensor, Tensor, Tensor],
    do: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_lse: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV of [B, H, rows, D] by products, with the rows' log-sum-exp."""
    q, k, v = qkv
    columns, values = _grouped(k, k), _grouped(v, v)
    dq, dk, dv = (each.new_zeros(each.shape, dtype=_wide(q)) for each in qkv)
    delta = (do.to(dq.dtype) * out.to(dq.dtype)).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse
    for step in _steps(call, part, q, k):
        weights = step.weights(lse)
        of_rows = _grouped(do[:, :, step.rows], k)
        dv += (weights.mT @ of_rows).sum(2)
        ds = weights * (of_rows @ values.mT - _split(delta[:, :, step.rows], k.shape[1])[..., None])
        if call.softcap:
            ds = ds * (1 - (step.capped / call.softcap) ** 2)
        ds = ds * call.scale
        dq[:, :, step.rows] = (ds @ columns).flatten(1, 2)
        dk += (ds.mT @ _grouped(q[:, :, step.rows], k)).sum(2)
    return dq, dk, dv


def _grouped(tensor: Tensor, k: Tensor) -> Tensor:
    """[B, H, S, D] as [B, Hkv, H / Hkv, S, D] in the type of the products."""
    return _split(tensor.to(_wide(tensor)), k.shape[1])


def _split(tensor: Tensor, kv_heads: int) -> Tensor:
    """[B, H, ...] as [B, Hkv, H / Hkv, ...]."""
    return tensor.reshape(tensor.shape[0], kv_heads, tensor.shape[1] // kv_heads, *tensor.shape[2:])


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
