"""The custom ops of attention with its log-sum-exp, of its gradients, and of appending to a cache.

Importing this module registers ``torch.ops.sdpalab.flash_attention``, whose gradients are
``torch.ops.sdpalab.flash_attention_backward`` (saved tensors: the inputs, O and the log-sum-exp), and
``torch.ops.sdpalab.append_to_cache``. All have fake implementations. A certified kernel runs as in
:mod:`sdpalab.torch_api.kernels`; with gradients, only if kernels of both passes are certified.
"""

from __future__ import annotations

from typing import Any

import torch

from sdpalab.errors import UserError
from sdpalab.run import torch_gpu
from sdpalab.torch_api import fallback
from sdpalab.torch_api.calls import AttentionCall
from sdpalab.torch_api.kernels import certified, launch
from sdpalab.torch_api.mode import fall_back
from sdpalab.torch_api.recording import note, recording
from sdpalab.torch_inputs import needs_gradients

__all__ = ["append", "attend"]

Tensor = torch.Tensor

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_k, Tensor? block_table, "
    "Tensor? alibi_slopes, SymInt max_seqlen_q, SymInt max_seqlen_k, float scale, bool causal, SymInt window_left, "
    "SymInt window_right, float softcap, bool bottom_right, bool heads_first, bool lse, bool gradients, "
    "bool deterministic"
)
_OWN = len(AttentionCall.__dataclass_fields__)


def attend(call: AttentionCall, *, lse: bool = False, deterministic: bool = False) -> tuple[Tensor, Tensor]:
    """O in the layout of Q, contiguous, and the log-sum-exp of the rows; differentiable.

    Parameters
    ----------
    call : AttentionCall
    lse : bool
        Whether the log-sum-exp is used; otherwise it may be NaN.
    deterministic : bool
        Whether gradients must have equal bits from run to run.

    Raises
    ------
    UserError
        If a length or a page index is out of range, or within :func:`sdpalab.no_fallback` if no certified kernel covers
        the call.
    """
    gradients = needs_gradients(call.q, call.k, call.v)
    if gradients or torch.compiler.is_compiling():
        both: tuple[Tensor, Tensor] = torch.ops.sdpalab.flash_attention(*call.arguments, lse, gradients, deterministic)
        return both
    return _forward(call, lse, gradients, deterministic)  # the dispatcher would only add overhead


def append(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None) -> None:
    """Write new keys and values [B, S, Hkv, D] behind the ``lengths`` [B] of a cache, in place.

    Raises
    ------
    UserError
        If the cache has no place for them; nothing is written. On a GPU the lengths are not read.
    """
    torch.ops.sdpalab.append_to_cache(k_cache, v_cache, k, v, lengths, table)


def _forward(call: AttentionCall, lse: bool, gradients: bool, deterministic: bool) -> tuple[Tensor, Tensor]:
    if recording():
        note(call, gradients=gradients)
    kernel, reason = certified(call, lse=lse or gradients)
    if kernel is not None and gradients:
        _, reason = other = certified(call, gradients=True, deterministic=deterministic)
        kernel = kernel if other[0] is not None else None
    if kernel is not None:
        outputs = call.outputs(launch(kernel, call.buffers()))
        return outputs["o"], outputs["lse"] if lse or gradients else call.q.new_empty(
            call.lse_shape, dtype=torch.float32
        )
    fall_back(reason)
    return fallback.forward(call, lse=lse or (gradients and deterministic))


@torch.library.custom_op("sdpalab::flash_attention", mutates_args=(), schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)")
def _flash_attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _forward(AttentionCall(*arguments[:_OWN]), *arguments[_OWN:])


@_flash_attention.register_fake
def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = AttentionCall(*arguments[:_OWN])
    out = call.q.new_empty((*call.q.shape[:-1], call.v.shape[-1]))
    return out, call.q.new_empty(call.lse_shape, dtype=_wide(call.q))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = inputs[:8]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)
    ctx.settings, ctx.more = inputs[8:_OWN], inputs[_OWN:]


def _backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, out, lse = ctx.saved_tensors
    grads: tuple[Tensor | None, ...] = (None, None, None)
    if grad is not None or grad_lse is not None:
        grads = torch.ops.sdpalab.flash_attention_backward(
            torch.zeros_like(out) if grad is None else grad, grad_lse, out, lse, *tensors, *ctx.settings, *ctx.more
        )
    return (*grads, *[None] * (_OWN - 3 + len(ctx.more)))


_flash_attention.register_autograd(_backward, setup_context=_keep)


@torch.library.custom_op(
    "sdpalab::flash_attention_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor? grad_lse, Tensor out, Tensor softmax_lse, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
)
def _flash_attention_backward(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, softmax_lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the kernel of the backward pass if those of both passes are certified, otherwise by torch.

    No kernel takes a gradient of the log-sum-exp: torch then computes it from the kernel's O and log-sum-exp.
    """
    call, (_, _, deterministic) = AttentionCall(*arguments[:_OWN]), arguments[_OWN:]
    if grad_lse is None and certified(call, lse=True)[0] is not None:
        kernel, _ = certified(call, gradients=True, deterministic=deterministic)
        if kernel is not None:
            buffers = call.buffers(do=grad, o=out, lse=softmax_lse)
            grads = call.outputs(launch(kernel, buffers))
            return grads["dq"], grads["dk"], grads["dv"]
    return fallback.backward(call, grad, grad_lse, out, softmax_lse, deterministic=deterministic)


@_flash_attention_backward.register_fake
def _fake_backward(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, softmax_lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (each.new_empty(each.shape) for each in arguments[:3])
    return q, k, v


@torch.library.custom_op(
    "sdpalab::append_to_cache",
    mutates_args=("k_cache", "v_cache"),
    schema="(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k, Tensor v, Tensor lengths, Tensor? table) -> ()",
)
def _append(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None) -> None:
    batch, count = k.shape[:2]
    rows = lengths.long()[:, None] + torch.arange(count, device=k.device)
    entries = torch.arange(batch, device=k.device)[:, None]
    size = k_cache.shape[1]
    capacity = size if table is None else size * table.shape[1]
    if torch_gpu.ordinal_of(k) is None and count and batch:
        _check_place(lengths, count, capacity)
    if table is not None:
        pages = table[entries, rows // size].long()
        if torch_gpu.ordinal_of(k) is None and pages.numel() and not 0 <= pages.min() <= pages.max() < len(k_cache):
            raise UserError(f"block_table has no page of the cache, 0 to {len(k_cache) - 1}, for an appended key")
        entries, rows = pages, rows % size
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache[entries, rows] = new


def _check_place(lengths: Tensor, count: int, capacity: int) -> None:
    for entry, length in enumerate(lengths.tolist()):
        if not 0 <= length <= capacity - count:
            raise UserError(
                f"{count} keys behind the {length} of sequence {entry} need a cache of {length + count} rows, and it "
                f"has {capacity}"
            )


@_append.register_fake
def _fake_append(*arguments: Any) -> None:
    return None


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
