"""``explain`` and ``prepare``: the implementation of a call, with the deciding records, and its one-time work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sdpalab.errors import UserError
from sdpalab.torch_api import flash_attn
from sdpalab.torch_api.calls import AttentionCall
from sdpalab.torch_api.fallback import by_products
from sdpalab.torch_api.kernels import certified, certified_on, make_ready, simulation
from sdpalab.torch_api.lse import attention_with_lse
from sdpalab.torch_api.ops import call_of, scaled_dot_product_attention
from sdpalab.torch_inputs import check_together, needs_gradients, why_not_tensors

__all__ = ["Explanation", "explain", "explain_call", "prepare"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Explanation:
    """Implementation that a call of the lab's attention runs, with the reason.

    Attributes
    ----------
    kernel : str or None
        Registry name of a kernel; None for torch's own function.
    reason : str
        One sentence: the deciding records, or the missing ones with the command that creates them; and the copies.
    copied_bytes : int
        Size of the inputs that are copied to contiguous memory before the kernel runs.
    gradients : str or None
        Registry name of the kernel of the backward pass, if gradients are required.
    torchs : str
        torch's functions that run without a kernel.
    """

    kernel: str | None
    reason: str
    copied_bytes: int = 0
    gradients: str | None = None
    torchs: str = "scaled_dot_product_attention"

    def __str__(self) -> str:
        runs = f"torch's {self.torchs}" if self.kernel is None else f"the kernel {self.kernel}"
        back = f" and {self.gradients} for its gradients" if self.gradients else ""
        return f"This call runs {runs}{back}: {self.reason}."


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
    """The implementation of :func:`sdpalab.scaled_dot_product_attention` for these arguments, with the reason; runs
    nothing.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        As in :func:`sdpalab.scaled_dot_product_attention`.
    lse : bool
        Explain :func:`sdpalab.attention_with_lse` instead.
    gpu : str, optional
        GPU to decide for, such as ``"H200"``, by the records present here; the tensors may then be on any device, such
        as the CPU or ``meta``. Default: the GPU of the tensors.

    Raises
    ------
    UserError
        If the tensors do not match, or the lab has no data on ``gpu``.
    """
    check_together(query, key, value, enable_gqa)
    reason = why_not_tensors(
        query, key, value, attn_mask, dropout_p, enable_gqa, anywhere=gpu is not None or simulation() is not None
    )
    if reason is not None:
        return Explanation(None, reason)
    return _explained(call_of(query, key, value, is_causal, scale), lse=lse, gpu=gpu)


def explain_call(function: Callable[..., Any], *arguments: Any, gpu: str | None = None, **named: Any) -> Explanation:
    """The implementation of a call of one of the lab's attention functions, with the reason; runs nothing.

    Parameters
    ----------
    function : callable
        :func:`sdpalab.scaled_dot_product_attention`, :func:`sdpalab.attention_with_lse`,
        :func:`sdpalab.flash_attn_func`, :func:`sdpalab.flash_attn_varlen_func` or
        :func:`sdpalab.flash_attn_with_kvcache`.
    *arguments, **named
        Its arguments. A cache does not change.
    gpu : str, optional
        As in :func:`explain`.

    Raises
    ------
    UserError
        If the function is none of these, or as the function itself for its arguments.
    """
    if function is scaled_dot_product_attention:
        return explain(*arguments, gpu=gpu, **named)
    if function is attention_with_lse:
        q, k, v, *settings = arguments
        positions = dict(zip(("is_causal", "scale", "enable_gqa"), settings, strict=False))
        return explain(q, k, v, lse=True, gpu=gpu, **positions, **named)
    if function not in flash_attn.CALLS:
        known = ", ".join(each.__name__ for each in (scaled_dot_product_attention, *flash_attn.CALLS))
        raise UserError(f"explain_call takes a function of sdpalab: {known}, not {function!r}")
    request = flash_attn.CALLS[function](*arguments, **named)
    return _explained(request.call, lse=request.returns > 1, deterministic=request.deterministic, gpu=gpu)


def _explained(
    call: AttentionCall, *, lse: bool = False, deterministic: bool = False, gpu: str | None = None
) -> Explanation:
    kernel, why, back = _kernels(call, lse, deterministic, gpu)
    if kernel is None:
        torchs = "products and softmax" if by_products(call) else Explanation.torchs
        return Explanation(None, why, torchs=torchs)
    copies = call.copied()
    if copies:
        why += (
            f"; it takes contiguous tensors: a copy of {', '.join(copies)} comes first ({sum(copies.values())} bytes), "
            "which the comparison does not count"
        )
    gradients = None if back is None else back.certificate.kernel
    return Explanation(kernel.certificate.kernel, why, sum(copies.values()), gradients)


def _kernels(call: AttentionCall, lse: bool, deterministic: bool, gpu: str | None) -> tuple[Any, str, Any]:
    """The kernels of the forward pass and, if gradients are required, of the backward pass, with the reason."""
    gradients = needs_gradients(call.q, call.k, call.v)

    def chosen(**asked: bool) -> tuple[Any, str]:
        return certified(call, **asked) if gpu is None else certified_on(gpu, call, **asked)

    kernel, why = chosen(lse=lse or gradients)
    if kernel is None or not gradients:
        return kernel, why, None
    back, why_back = chosen(gradients=True, deterministic=deterministic)
    if back is None:
        return None, f"{kernel.certificate.kernel} could run, but no kernel its gradients: {why_back}", None
    return kernel, f"{why}; for the gradients, {why_back}", back


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
    """Perform the one-time work of such a call on this thread: choose, build and load the kernels, synchronise once.

    Later calls of this thread with tensors of these shapes do not synchronise, so a CUDA graph can capture them. Calls
    that torch computes need no preparation. A backward pass that runs on another thread of torch prepares its kernel
    there. Arguments and exceptions are those of :func:`explain`; launches nothing.

    Returns
    -------
    Explanation
        Implementation of such a call.
    """
    explanation = explain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, lse=lse)
    if explanation.kernel and simulation() is None:
        call = call_of(query, key, value, is_causal, scale)
        kernel, _, back = _kernels(call, lse, deterministic=False, gpu=None)
        make_ready(kernel, call.buffers())
        if back is not None:
            out, sums = call.q.new_empty(call.q.shape), call.q.new_empty(call.lse_shape, dtype=torch.float32)
            make_ready(back, call.buffers(do=out, o=out, lse=sums))
    return explanation
