"""Checks of the tensors of an attention call, and of their suitability for kernels, by metadata alone.

The checks read no elements or files, so ``torch.compile`` can trace them.
"""

from __future__ import annotations

import torch

from sdpalab.errors import UserError
from sdpalab.run import torch_gpu

__all__ = ["autocast", "check_together", "needs_gradients", "why_not_shapes", "why_not_tensors"]

Tensor = torch.Tensor


def check_together(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    """Raises UserError, with a clearer message, for arguments that torch would also reject."""
    for name, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, Tensor):
            raise UserError(f"{name} must be a torch tensor, not a {type(given).__name__}")
    if q.is_nested or k.is_nested or v.is_nested:
        return
    if not q.device == k.device == v.device:
        raise UserError(f"q, k and v must be on one device, not on {q.device}, {k.device} and {v.device}")
    if not q.dtype == k.dtype == v.dtype and not torch.is_autocast_enabled(q.device.type):
        raise UserError(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
    if min(q.dim(), k.dim(), v.dim()) < 2:
        raise UserError(
            f"q, k and v must be [..., heads, sequence, head_dim] with 2 dimensions or more, not {q.dim()}, {k.dim()} "
            f"and {v.dim()}"
        )
    if q.shape == k.shape == v.shape:
        return  # common case: every call pays for these checks
    if q.shape[-1] != k.shape[-1]:
        raise UserError(f"q and k must have one head_dim, not {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        raise UserError(f"k and v must be of one length, not {k.shape[-2]} and {v.shape[-2]}")
    for name, other in (("k", k), ("v", v)):
        pairs = list(zip(reversed(q.shape[:-2]), reversed(other.shape[:-2]), strict=False))
        if enable_gqa and pairs:
            heads, kv_heads = pairs.pop(0)
            if kv_heads == 0 or heads % kv_heads:
                raise UserError(f"the heads of {name} must divide those of q, and {kv_heads} does not divide {heads}")
        if any(mine != theirs and mine != 1 and theirs != 1 for mine, theirs in pairs):
            raise UserError(
                f"the leading dimensions of q {tuple(q.shape)} and {name} {tuple(other.shape)} do not broadcast"
                + ("" if enable_gqa else "; heads that share keys need enable_gqa=True")
            )


def needs_gradients(*tensors: Tensor | None) -> bool:
    """Whether autograd records a function of these tensors."""
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors in the dtype of a surrounding ``torch.autocast``, as torch casts them for its own attention."""
    device = q.device.type
    if device == "meta" or not torch.is_autocast_enabled(device) or q.dtype == torch.float64:
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def why_not_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    enable_gqa: bool,
    *,
    anywhere: bool = False,
) -> str | None:
    """Reason why no kernel supports this call, independent of certificates; None if a kernel may. Traceable.

    With ``anywhere`` tensors on other devices represent tensors on a GPU.
    """
    if attn_mask is not None:
        return "the kernels take no attn_mask: key padding masks and additive bias stay with torch"
    if dropout_p:
        return "the kernels have no dropout"
    if q.is_nested or k.is_nested or v.is_nested:
        return "the kernels take no nested tensors"
    if not anywhere and torch_gpu.ordinal_of(q) is None:
        return "the tensors are not on a CUDA GPU"
    reason = why_not_shapes(q, k, v)
    if reason is not None:
        return reason
    if not enable_gqa and q.shape[1] != k.shape[1]:
        return "the heads of k and v broadcast, which no kernel does without enable_gqa"
    if not (q.stride(-1) == k.stride(-1) == v.stride(-1) == 1):
        return "the last dimension of q, k or v is not contiguous"
    if any(type(given) not in (Tensor, torch.nn.Parameter) for given in (q, k, v)):
        return "tensor subclasses stay with torch"
    return None


def why_not_shapes(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Reason why these are not tensors of a kernel, Q [B, H, Sq, D] and K and V [B, Hkv, Skv, D]; None if they are."""
    if not q.dim() == k.dim() == v.dim() == 4:
        return f"the kernels take tensors of rank 4, not {q.dim()}, {k.dim()} and {v.dim()}"
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        return "the kernels take k and v of one shape, with the batch and the head_dim of q"
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        return "the kernels take heads of k and v that divide those of q"
    return None
