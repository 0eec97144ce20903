"""``scaled_dot_product_attention`` with torch's signature: a proven kernel where there is one, otherwise torch's own.

Importing this module registers ``torch.ops.sdpalab.attention(q, k, v, is_causal=False, scale=None)``, the part of the
function that a kernel can compute; it has a fake implementation, works under ``torch.compile``, and has gradients, by
torch's own function. A kernel runs where a verdict proves it and a comparison shows that it is not slower
(:mod:`sdpalab.evidence.choice`): records that are shipped, of which there are none yet, and those of ``sdpalab prove``
on this machine. :func:`explain` says what a call would run and which record decides, :func:`no_fallback` makes a call
fail rather than fall back, :func:`prepare` readies a call for a CUDA graph.
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
from sdpalab.run.torch_inputs import check_together, shape_reason, unfit_reason
from sdpalab.torch_api.kernels import copied, launch, make_ready, proven, proven_on

__all__ = ["Explanation", "explain", "fall_back", "no_fallback", "prepare", "scaled_dot_product_attention"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Explanation:
    """What a call of :func:`scaled_dot_product_attention` runs, and why.

    Attributes
    ----------
    kernel : str or None
        A kernel of the registry; None for torch's own function.
    reason : str
        One sentence: the records that decide, or what is missing and the command that supplies it; and the copies.
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
    """The settings of this thread."""

    fallback = True


_mode = _Mode()
_lock = threading.Lock()
_refusals = 0
_any_refuses = False
"""Whether any thread is within no_fallback. Compiled code is guarded by this; by a thread's own setting it cannot
be."""


@contextmanager
def no_fallback() -> Iterator[None]:
    """Within it, in this thread, a call that no proven kernel covers raises UserError with the reason.

    It also holds in compiled code, if it is entered outside of that.
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
    """Attention as torch's function of the same name computes it, by a proven kernel where there is one.

    Parameters
    ----------
    query : Tensor
        [..., H, Sq, D].
    key, value : Tensor
        [..., H, Skv, D] and [..., H, Skv, Dv]; leading dimensions broadcast as torch's do.
    attn_mask, dropout_p, is_causal, scale, enable_gqa
        As torch has them; ``is_causal`` is aligned to the top left. The strides may be any whose last one is 1, as of
        the transposed views of a model; a kernel gets a contiguous copy of each tensor that is not contiguous.

    Returns
    -------
    Tensor
        [..., H, Sq, Dv]. What falls back is torch's own, its strides and gradients too; a kernel's is contiguous.

    Raises
    ------
    UserError
        If the tensors do not go together, or within :func:`no_fallback` if no proven kernel covers the call.
    """
    check_together(query, key, value, enable_gqa)
    reason = unfit_reason(query, key, value, attn_mask, dropout_p, enable_gqa)
    # A compiled graph looks up the proof when it runs: the records cannot be read while it is traced.
    if reason is None and not torch.compiler.is_compiling():
        kernel, reason = proven(query, key, value, is_causal, scale)
        if kernel is not None:
            # Nothing traces this call and nothing differentiates it, so that the dispatcher would only take its time.
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
    """What :func:`scaled_dot_product_attention` would run for these arguments, and why; it runs nothing.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        As there.
    lse : bool
        What :func:`~sdpalab.torch_api.lse.attention_with_lse` would run.
    gpu : str, optional
        What it would run on this GPU, such as ``"H200"``, by the records that are here; the tensors may then be
        anywhere, on the CPU or on ``meta``. Default: the GPU of the tensors.

    Raises
    ------
    UserError
        If the tensors do not go together, or ``gpu`` is none that the lab has data of.
    """
    check_together(query, key, value, enable_gqa)
    reason = unfit_reason(query, key, value, attn_mask, dropout_p, enable_gqa, anywhere=gpu is not None)
    if reason is not None:
        return Explanation(None, reason)
    if gpu is None:
        kernel, why = proven(query, key, value, is_causal, scale, lse=lse)
    else:
        kernel, why = proven_on(gpu, query, key, value, is_causal, scale, lse=lse)
    if kernel is None:
        return Explanation(None, why)
    copies = copied(query, key, value)
    if copies:
        why += (
            f"; it takes contiguous tensors: a copy of {', '.join(copies)} comes first ({sum(copies.values())} bytes), "
            "which the comparison does not count"
        )
    return Explanation(kernel.proof.kernel, why, sum(copies.values()))


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
    """Do now what the first such call on this thread does: choose, build, load the kernel, and wait for the GPU once.

    Later calls with tensors of these shapes, on this thread, wait for nothing, and a CUDA graph can capture them. What
    torch computes needs no preparation. Arguments and exceptions are those of :func:`explain`; it launches nothing.

    Returns
    -------
    Explanation
        What such a call runs.
    """
    explanation = explain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, lse=lse)
    kernel, _ = proven(query, key, value, is_causal, scale, lse=lse) if explanation.kernel else (None, "")
    if kernel is not None:
        make_ready(kernel, query, key, value)
    return explanation


def fall_back(reason: str) -> None:
    """Raises UserError where falling back is not allowed."""
    if not _mode.fallback:
        raise UserError(f"no proven kernel computes this, and falling back to torch is disabled: {reason}")


# --- the custom ops ---------------------------------------------------------------------------------------------------


def _insist(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises UserError for arguments that the function above would not pass to the op."""
    reason = shape_reason(q, k, v)
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
    """On a GPU the proven kernel; torch's own function, or UserError within :func:`no_fallback`, if there is none.

    Elsewhere torch's own function.
    """
    _insist(q, k, v)
    if torch_gpu.ordinal_of(q) is None:
        return _torchs(q, k, v, is_causal, scale).contiguous()
    kernel, why = proven(q, k, v, is_causal, scale)
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
    """By torch's own function, which computes the forward pass again: the kernels keep no data for the backward
    pass."""
    with torch.enable_grad():
        q, k, v = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        out = _torchs(q, k, v, ctx.is_causal, ctx.scale)
    return (*torch.autograd.grad(out, (q, k, v), grad), None, None)


_attention.register_autograd(_backward, setup_context=_keep)


@torch.library.custom_op("sdpalab::fall_back", mutates_args=(), schema="(Tensor q, str reason) -> Tensor")
def _checked(q: Tensor, reason: str) -> Tensor:
    """A copy of ``q`` if this thread allows compiled code to fall back, otherwise UserError."""
    fall_back(reason)
    return q.clone()


@_checked.register_fake
def _fake_checked(q: Tensor, reason: str) -> Tensor:
    return torch.empty_like(q)


_checked.register_autograd(lambda ctx, grad: (grad, None))
