"""The lab's kernels behind torch's own ``scaled_dot_product_attention``, through torch's registry of flash attentions.

:func:`register` adds an implementation to that registry (``torch.nn.attention.register_flash_attention_impl``, torch
2.11 or newer); ``torch.nn.attention.activate_flash_attention_impl("sdpalab")`` then replaces
``aten::_scaled_dot_product_flash_attention`` on CUDA by :func:`forward`, and ``restore_flash_attention_impl()`` undoes
that. torch still chooses between its backends, so only calls for which it chooses flash attention reach
:func:`forward`.

Only the forward pass is replaced. A certified kernel writes the log-sum-exp, the only result of a forward pass without
dropout that torch's backward pass reads. Gradients stay torch's own, also in compiled code, which runs the forward
pass of a training step without an indication that gradients will follow.

Tests run the registration, its reversal and every decision of :func:`forward` through torch's dispatcher on a CPU. The
module has not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sdpalab.errors import UserError
from sdpalab.torch_api.explaining import explain
from sdpalab.torch_api.lse import attention_with_lse
from sdpalab.torch_api.mode import fall_back

__all__ = ["forward", "register"]

Tensor = torch.Tensor
Outputs = tuple[Any, ...]

_OPERATOR = "_scaled_dot_product_flash_attention"


def register(name: str = "sdpalab") -> None:
    """Register the lab's kernels for ``torch.nn.attention.activate_flash_attention_impl(name)``, without activating
    them.

    Activation raises UserError if this torch has no flash attention for CUDA.

    Raises
    ------
    UserError
        If this torch has no registry of flash attentions, or has another implementation by that name.
    """
    from torch.nn import attention

    if not hasattr(attention, "register_flash_attention_impl"):
        raise UserError(
            f"torch {torch.__version__} has no registry of flash attentions (register_flash_attention_impl); torch "
            "2.11 or newer has one"
        )
    if name in attention.list_flash_attention_impls() and name not in _registered:
        raise UserError(f"torch already has a flash attention {name!r}; register another name")
    attention.register_flash_attention_impl(name, register_fn=_activate)
    _registered.add(name)


_registered: set[str] = set()


@dataclass
class _Active:
    """torch's handle of an active implementation."""

    library: torch.library.Library | None

    def remove(self) -> None:
        """Remove the implementation from the dispatcher, which keeps a registration for the lifetime of its library."""
        self.library = None


def _activate() -> _Active:
    try:
        torchs = torch.library.get_kernel(f"aten::{_OPERATOR}", "CUDA")
    except RuntimeError:
        raise UserError(
            f"torch {torch.__version__} has no flash attention for CUDA, which the lab's kernels would stand in for; "
            "a torch built for CUDA has"
        ) from None

    def implementation(keys: torch.DispatchKeySet, *arguments: Any, **named: Any) -> Outputs:
        def otherwise() -> Outputs:
            outputs: Outputs = torchs.call_boxed(keys, *arguments, **named)
            return outputs

        return forward(otherwise, *arguments, **named)

    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl(_OPERATOR, implementation, "CUDA", with_keyset=True)  # type: ignore[no-untyped-call]
    return _Active(library)


def forward(
    torchs: Callable[[], Outputs],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Outputs:
    """``aten::_scaled_dot_product_flash_attention`` by a certified kernel, or by ``torchs`` without one.

    Parameters
    ----------
    torchs : callable
        torch's own implementation, with the same arguments.
    query, key, value, dropout_p, is_causal, return_debug_mask, scale
        Arguments of the operator: [B, H, Sq, D] and [B, Hkv, Skv, D].

    Returns
    -------
    tuple
        The operator's nine results: out [B, H, Sq, D], logsumexp (float32 [B, H, Sq]), no cumulative lengths (None
        twice), Sq, Skv, and the state of an unused random generator.

    Raises
    ------
    UserError
        Within :func:`sdpalab.no_fallback` if no certified kernel covers the call.
    """
    if return_debug_mask:
        kernel, reason = None, "the kernels return no debug mask"
    elif is_causal and query.shape[2] != key.shape[2]:
        kernel, reason = None, "this operator aligns the causal mask to the last key, and the kernels to the first"
    else:
        why = explain(query, key, value, None, dropout_p, is_causal, scale, enable_gqa=True, lse=True)
        kernel, reason = why.kernel, why.reason
    if kernel is None:
        fall_back(reason)
        return torchs()
    out, lse = attention_with_lse(query, key, value, is_causal, scale, enable_gqa=True)
    seed = torch.zeros(2, dtype=torch.uint64, device=query.device)
    offset = torch.zeros((), dtype=torch.uint64, device=query.device)
    return out, lse, None, None, query.shape[2], key.shape[2], seed, offset, query.new_empty(0)
