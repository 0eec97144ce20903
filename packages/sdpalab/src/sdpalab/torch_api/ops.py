"""``scaled_dot_product_attention`` with torch's signature: a certified kernel if there is one, otherwise torch's own.

Importing this module registers ``torch.ops.sdpalab.attention(q, k, v, is_causal=False, scale=None)``, the part of the
function that a kernel computes without gradients; with gradients the function runs
``torch.ops.sdpalab.flash_attention``. The ops have fake implementations and work under ``torch.compile``. A kernel runs
if a verdict proves it and a comparison shows that it is not slower (:mod:`sdpalab.evidence.store.choice`); where
gradients are required, kernels of both passes. The records are shipped ones, none so far, and those of ``sdpalab
prove`` on this machine. :func:`sdpalab.explain` returns the implementation of a call and the deciding record,
:func:`sdpalab.no_fallback` turns a fallback into an error, :func:`sdpalab.prepare` prepares a call for a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

from sdpalab.errors import UserError
from sdpalab.run import torch_gpu
from sdpalab.torch_api.calls import AttentionCall
from sdpalab.torch_api.flash import attend
from sdpalab.torch_api.kernels import certified, launch, simulation
from sdpalab.torch_api.mode import fall_back, fall_back_compiled
from sdpalab.torch_api.recording import note, recording
from sdpalab.torch_inputs import autocast, check_together, needs_gradients, why_not_shapes, why_not_tensors

__all__ = ["call_of", "scaled_dot_product_attention"]

Tensor = torch.Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as in torch's function of the same name, by a certified kernel if there is one.

    Parameters
    ----------
    query : Tensor
        [..., H, Sq, D].
    key, value : Tensor
        [..., H, Skv, D] and [..., H, Skv, Dv]; leading dimensions broadcast as in torch.
    attn_mask, dropout_p, is_causal, scale, enable_gqa
        As in torch; ``is_causal`` is aligned to the top left. Any strides with a last one of 1 are supported, such as
        those of a model's transposed views; a kernel gets a contiguous copy of each tensor that is not contiguous.

    Returns
    -------
    Tensor
        [..., H, Sq, Dv], contiguous if a kernel ran; otherwise torch's own result, with its strides. Gradients are
        those of kernels if the kernels of both passes are certified, otherwise torch's.

    Raises
    ------
    UserError
        If the tensors do not match, or within :func:`sdpalab.no_fallback` if no certified kernel covers the call.
    """
    check_together(query, key, value, enable_gqa)
    given = (query, key, value, attn_mask, dropout_p, enable_gqa)
    reason = why_not_tensors(*given, anywhere=simulation() is not None)
    gradients = needs_gradients(query, key, value)
    # A compiled graph looks up the certificate at run time: the records cannot be read during tracing.
    compiling = torch.compiler.is_compiling()
    call = call_of(query, key, value, is_causal, scale) if reason is None else None
    kernel = None
    if call is not None and not compiling:
        kernel, reason = certified(call, lse=gradients)
        if kernel is not None and gradients:
            kernel, reason = certified(call, gradients=True)
    if call is not None and gradients and (kernel is not None or compiling):
        return attend(call)[0]
    if recording() and not compiling and why_not_tensors(*given, anywhere=True) is None:
        note(call_of(query, key, value, is_causal, scale), gradients=gradients)
    if call is not None and kernel is not None:
        # No tracing and no gradients: the dispatcher would only add overhead.
        return launch(kernel, call.buffers())["o"]
    if call is not None and compiling:
        out: Tensor = torch.ops.sdpalab.attention(call.q, call.k, call.v, is_causal, scale)
        return out
    assert reason is not None, "without a kernel there is a reason"
    query = fall_back_compiled(query, reason)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )


def call_of(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None) -> AttentionCall:
    """The call of :func:`scaled_dot_product_attention` that a kernel may compute."""
    query, key, value = autocast(query, key, value)
    factor = query.shape[3] ** -0.5 if scale is None else scale
    return AttentionCall(query, key, value, scale=factor, causal=is_causal, bottom_right=False, heads_first=True)


# --- the custom op ----------------------------------------------------------------------------------------------------


def _torchs(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    grouped = bool(q.shape[1] != k.shape[1])
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=grouped)


@torch.library.custom_op(
    "sdpalab::attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None) -> Tensor",
)
def _attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """On a GPU the certified kernel; without one torch's own function, or UserError within
    :func:`sdpalab.no_fallback`.

    On other devices torch's own function.
    """
    reason = why_not_shapes(q, k, v)
    if reason is not None:
        raise UserError(f"sdpalab::attention: {reason}")
    if recording():
        note(call_of(q, k, v, is_causal, scale))
    if torch_gpu.ordinal_of(q) is not None or simulation() is not None:
        call = call_of(q, k, v, is_causal, scale)
        kernel, why = certified(call)
        if kernel is not None:
            return launch(kernel, call.buffers())["o"]
        fall_back(why)
    return _torchs(q, k, v, is_causal, scale).contiguous()


@_attention.register_fake
def _fake(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
    return q.new_empty(q.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients by torch's own function, which recomputes the forward pass: this op returns no log-sum-exp."""
    with torch.enable_grad():
        q, k, v = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        out = _torchs(q, k, v, ctx.is_causal, ctx.scale)
    return (*torch.autograd.grad(out, (q, k, v), grad), None, None)


_attention.register_autograd(_backward, setup_context=_keep)
