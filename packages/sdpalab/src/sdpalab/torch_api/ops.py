"""``scaled_dot_product_attention`` with torch's signature: a certified kernel if there is one, otherwise torch's own.

Importing this module registers ``torch.ops.sdpalab.attention(q, k, v, is_causal=False, scale=None)``, the part of the
function that a kernel can compute. The op has a fake implementation, works under ``torch.compile``, and has gradients
by torch's own function. A kernel runs if a verdict proves it and a comparison shows that it is not slower
(:mod:`sdpalab.evidence.store.choice`). The records are shipped ones, none so far, and those of ``sdpalab prove`` on
this machine. :func:`explain` returns the implementation of a call and the deciding record, :func:`no_fallback` turns a
fallback into an error, :func:`prepare` prepares a call for a CUDA graph.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

from sdpalab.errors import UserError
from sdpalab.run import torch_gpu
from sdpalab.torch_api.kernels import certified, certified_on, copied, launch, make_ready
from sdpalab.torch_inputs import check_together, why_not_shapes, why_not_tensors

__all__ = ["Explanation", "explain", "fall_back", "no_fallback", "prepare", "scaled_dot_product_attention"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Explanation:
    """Implementation that a call of :func:`scaled_dot_product_attention` runs, with the reason.

    Attributes
    ----------
    kernel : str or None
        Registry name of a kernel; None for torch's own function.
    reason : str
        One sentence: the deciding records, or the missing ones with the command that creates them; and the copies.
    copied_bytes : int
        Size of the inputs that are copied to contiguous memory before the kernel runs.
    """

    kernel: str | None
    reason: str
    copied_bytes: int = 0

    def __str__(self) -> str:
        runs = "torch's scaled_dot_product_attention" if self.kernel is None else f"the kernel {self.kernel}"
        return f"This call runs {runs}: {self.reason}."


class _Mode(threading.local):
    """Settings of this thread."""

    fallback = True


_mode = _Mode()
_lock = threading.Lock()
_refusals = 0
_any_refuses = False
"""Whether any thread is within no_fallback. Compiled code guards on this flag; it cannot guard on a thread's
setting."""


@contextmanager
def no_fallback() -> Iterator[None]:
    """Context in which a call of this thread without a certified kernel raises UserError with the reason.

    It also applies to compiled code, if entered outside of that code.
    """
    before, _mode.fallback = _mode.fallback, False
    _count(+1)
    try:
        yield
    finally:
        _count(-1)
        _mode.fallback = before


def _count(change: int) -> None:
    global _refusals, _any_refuses
    with _lock:
        _refusals += change
        _any_refuses = _refusals > 0


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
        [..., H, Sq, Dv], contiguous if a kernel ran; otherwise torch's own result, with its strides. Gradients:
        torch's.

    Raises
    ------
    UserError
        If the tensors do not match, or within :func:`no_fallback` if no certified kernel covers the call.
    """
    check_together(query, key, value, enable_gqa)
    reason = why_not_tensors(query, key, value, attn_mask, dropout_p, enable_gqa)
    # A compiled graph looks up the certificate at run time: the records cannot be read during tracing.
    if reason is None and not torch.compiler.is_compiling():
        kernel, reason = certified(query, key, value, is_causal, scale)
        if kernel is not None:
            # No tracing and no gradients: the dispatcher would only add overhead.
            return launch(kernel, query, key, value)["o"]
    if reason is None:
        out: Tensor = torch.ops.sdpalab.attention(query, key, value, is_causal, scale)
        return out
    if not torch.compiler.is_compiling():
        fall_back(reason)
    elif _any_refuses:
        query = torch.ops.sdpalab.fall_back(query, reason)
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


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    lse: bool = False,
    gpu: str | None = None,
) -> Explanation:
    """The implementation of :func:`scaled_dot_product_attention` for these arguments, with the reason; runs nothing.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        As in :func:`scaled_dot_product_attention`.
    lse : bool
        Explain :func:`~sdpalab.torch_api.lse.attention_with_lse` instead.
    gpu : str, optional
        GPU to decide for, such as ``"H200"``, by the records present here; the tensors may then be on any device, such
        as the CPU or ``meta``. Default: the GPU of the tensors.

    Raises
    ------
    UserError
        If the tensors do not match, or the lab has no data on ``gpu``.
    """
    check_together(query, key, value, enable_gqa)
    reason = why_not_tensors(query, key, value, attn_mask, dropout_p, enable_gqa, anywhere=gpu is not None)
    if reason is not None:
        return Explanation(None, reason)
    if gpu is None:
        kernel, why = certified(query, key, value, is_causal, scale, lse=lse)
    else:
        kernel, why = certified_on(gpu, query, key, value, is_causal, scale, lse=lse)
    if kernel is None:
        return Explanation(None, why)
    copies = copied(query, key, value)
    if copies:
        why += (
            f"; it takes contiguous tensors: a copy of {', '.join(copies)} comes first ({sum(copies.values())} bytes), "
            "which the comparison does not count"
        )
    return Explanation(kernel.certificate.kernel, why, sum(copies.values()))


def prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    lse: bool = False,
) -> Explanation:
    """Perform the one-time work of such a call on this thread: choose, build and load the kernel, synchronise once.

    Later calls of this thread with tensors of these shapes do not synchronise, so a CUDA graph can capture them. Calls
    that torch computes need no preparation. Arguments and exceptions are those of :func:`explain`; launches nothing.

    Returns
    -------
    Explanation
        Implementation of such a call.
    """
    explanation = explain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, lse=lse)
    kernel, _ = certified(query, key, value, is_causal, scale, lse=lse) if explanation.kernel else (None, "")
    if kernel is not None:
        make_ready(kernel, query, key, value)
    return explanation


def fall_back(reason: str) -> None:
    """Raise UserError if fallback is not allowed."""
    if not _mode.fallback:
        raise UserError(f"no proven kernel computes this, and falling back to torch is disabled: {reason}")


# --- the custom ops ---------------------------------------------------------------------------------------------------


def _insist(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise UserError for arguments that the public function would not pass to the op."""
    reason = why_not_shapes(q, k, v)
    if reason is not None:
        raise UserError(f"sdpalab::attention: {reason}")


def _torchs(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    grouped = bool(q.shape[1] != k.shape[1])
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=grouped)


@torch.library.custom_op(
    "sdpalab::attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None) -> Tensor",
)
def _attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """On a GPU the certified kernel; without one torch's own function, or UserError within :func:`no_fallback`.

    On other devices torch's own function.
    """
    _insist(q, k, v)
    if torch_gpu.ordinal_of(q) is None:
        return _torchs(q, k, v, is_causal, scale).contiguous()
    kernel, why = certified(q, k, v, is_causal, scale)
    if kernel is not None:
        return launch(kernel, q, k, v)["o"]
    fall_back(why)
    return _torchs(q, k, v, is_causal, scale).contiguous()


@_attention.register_fake
def _fake(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
    return q.new_empty(q.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients by torch's own function, which recomputes the forward pass: the kernels store no data for the backward
    pass."""
    with torch.enable_grad():
        q, k, v = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        out = _torchs(q, k, v, ctx.is_causal, ctx.scale)
    return (*torch.autograd.grad(out, (q, k, v), grad), None, None)


_attention.register_autograd(_backward, setup_context=_keep)


@torch.library.custom_op("sdpalab::fall_back", mutates_args=(), schema="(Tensor q, str reason) -> Tensor")
def _checked(q: Tensor, reason: str) -> Tensor:
    """A copy of ``q`` if this thread allows fallback in compiled code; raises UserError otherwise."""
    fall_back(reason)
    return q.clone()


@_checked.register_fake
def _fake_checked(q: Tensor, reason: str) -> Tensor:
    return torch.empty_like(q)


_checked.register_autograd(lambda ctx, grad: (grad, None))
