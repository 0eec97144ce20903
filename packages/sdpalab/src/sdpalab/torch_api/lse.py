"""``attention_with_lse``: attention with the log-sum-exp of its rows, for merging parts of a softmax.

Importing this module registers ``torch.ops.sdpalab.attention_with_lse``, with a fake implementation and gradients. A
proven kernel writes both results in one pass. Without one, torch's own function computes the output, and a second
product of Q and K in float32 gives the log-sum-exp.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

from sdpalab.errors import UserError
from sdpalab.torch_api.kernels import certified, launch
from sdpalab.torch_api.ops import fall_back
from sdpalab.torch_inputs import check_together, why_not_shapes, why_not_tensors

__all__ = ["attention_with_lse"]

Tensor = torch.Tensor

_ROWS = 1024
"""Query rows per step of torch's log-sum-exp, whose scores are in memory at the same time."""


def attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its rows, by a certified kernel if there is one.

    Parameters
    ----------
    q : Tensor
        [B, H, Sq, D].
    k, v : Tensor
        [B, Hkv, Skv, D], Skv at least 1; Hkv other than H needs ``enable_gqa``.
    is_causal, scale, enable_gqa
        As in torch's ``scaled_dot_product_attention``; ``is_causal`` is aligned to the top left.

    Returns
    -------
    out : Tensor
        [B, H, Sq, D] of the dtype of ``q``.
    lse : Tensor
        float32 (float64 for float64 inputs) [B, H, Sq]: natural logarithm of the sum of exp(scale * q k) over the keys
        that a row sees. It allows merging two parts of a softmax (FlashAttention-2, Dao 2023, section 3.1).

    Raises
    ------
    UserError
        If the tensors do not match, or within :func:`sdpalab.no_fallback` if no certified kernel covers the call.
    """
    check_together(q, k, v, enable_gqa)
    wrong = why_not_shapes(q, k, v)
    if wrong is None and not enable_gqa and q.shape[1] != k.shape[1]:
        wrong = f"{k.shape[1]} heads of k and v for {q.shape[1]} of q need enable_gqa=True"
    if wrong is None and not k.shape[2]:
        wrong = "without a key there is no sum, and no logarithm of it"
    if wrong is not None:
        raise UserError(f"attention_with_lse: {wrong}")
    both: tuple[Tensor, Tensor] = torch.ops.sdpalab.attention_with_lse(q, k, v, is_causal, scale)
    return both


def _torchs(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Both results by torch, with the log-sum-exp computed for some rows at a time."""
    grouped = bool(q.shape[1] != k.shape[1])
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=grouped)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    factor = q.shape[3] ** -0.5 if scale is None else scale
    keys = k.to(wide).transpose(2, 3)
    if grouped:
        keys = keys.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    parts = [q.new_empty((*q.shape[:2], 0), dtype=wide)]
    for start in range(0, q.shape[2], _ROWS):
        scores = (q[:, :, start : start + _ROWS].to(wide) @ keys) * factor
        if is_causal:
            rows = torch.arange(start, start + scores.shape[2], device=q.device)
            hidden = torch.arange(k.shape[2], device=q.device) > rows[:, None]
            scores = scores.masked_fill(hidden, float("-inf"))
        parts.append(torch.logsumexp(scores, dim=-1))
    return out.contiguous(), torch.cat(parts, dim=2)


@torch.library.custom_op(
    "sdpalab::attention_with_lse",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None) -> (Tensor, Tensor)",
)
def _attention_with_lse(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """A certified kernel computes both; without one torch does, or UserError within :func:`sdpalab.no_fallback`."""
    reason = why_not_tensors(q, k, v, None, 0.0, True)
    if reason is None:
        kernel, reason = certified(q, k, v, is_causal, scale, lse=True)
        if kernel is not None:
            outputs = launch(kernel, q, k, v)
            return outputs["o"], outputs["lse"]
    fall_back(reason)
    return _torchs(q, k, v, is_causal, scale)


@_attention_with_lse.register_fake
def _fake(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=wide)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v)


def _backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients by torch, which recomputes the forward pass: the kernels store no data for the backward pass."""
    with torch.enable_grad():
        q, k, v = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        results = _torchs(q, k, v, ctx.is_causal, ctx.scale)
    return (*torch.autograd.grad(results, (q, k, v), (grad_out, grad_lse)), None, None)


_attention_with_lse.register_autograd(_backward, setup_context=_keep)
