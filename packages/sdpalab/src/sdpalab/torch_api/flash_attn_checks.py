"""Checks of the arguments of FlashAttention's functions, by metadata alone, so ``torch.compile`` can trace them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sdpalab.errors import UserError

__all__ = ["check_lengths", "check_tensors", "refuse", "settings_of"]

Tensor = torch.Tensor


def settings_of(
    q: Tensor,
    softmax_scale: float | None,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    alibi_slopes: Tensor | None,
    batch: int,
) -> dict[str, Any]:
    """The fields of a call that every function has."""
    heads = q.shape[-2]
    if len(window_size) != 2 or min(window_size) < -1:
        raise UserError(f"window_size is two numbers of keys from 0 up, or -1 for no bound, not {tuple(window_size)}")
    if softcap < 0:
        raise UserError(f"softcap is positive, or 0 for none, not {softcap}")
    if alibi_slopes is not None:
        if alibi_slopes.shape not in ((heads,), (batch, heads)) or alibi_slopes.device != q.device:
            raise UserError(
                f"alibi_slopes must be [{heads}] or [{batch}, {heads}] on {q.device}, not {list(alibi_slopes.shape)} "
                f"on {alibi_slopes.device}"
            )
        alibi_slopes = alibi_slopes.detach()
    return {
        "alibi_slopes": alibi_slopes,
        "scale": q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale),
        "causal": bool(causal),
        "window_left": window_size[0],
        "window_right": 0 if causal else window_size[1],
        "softcap": float(softcap),
    }


def refuse(name: str, **given: Any) -> None:
    for argument, value in given.items():
        if value is not None and not (argument == "dropout_p" and value == 0):
            raise UserError(f"{name} of sdpalab has no {argument}; flash_attn's own function has it")


def check_tensors(q: Tensor, k: Tensor, v: Tensor, *, q_rank: int, kv_rank: int) -> None:
    """Raise UserError for tensors that do not match."""
    for name, given, rank in (("q", q, q_rank), ("k", k, kv_rank), ("v", v, kv_rank)):
        if not isinstance(given, Tensor):
            raise UserError(f"{name} must be a torch tensor, not a {type(given).__name__}")
        if given.dim() != rank:
            axes = "[rows, heads, head_dim]" if rank == 3 else "[batch or pages, rows, heads, head_dim]"
            raise UserError(f"{name} must be {axes}, not of rank {given.dim()}")
    if not q.device == k.device == v.device:
        raise UserError(f"q, k and v must be on one device, not on {q.device}, {k.device} and {v.device}")
    if not q.dtype == k.dtype == v.dtype and not torch.is_autocast_enabled(q.device.type):
        raise UserError(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
    if q.shape[-1] != k.shape[-1]:
        raise UserError(f"q and k must have one head_dim, not {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[:-1] != v.shape[:-1]:
        raise UserError(f"k and v must have the same rows and heads, not {tuple(k.shape)} and {tuple(v.shape)}")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise UserError(f"the heads of k must divide those of q, and {k.shape[-2]} does not divide {q.shape[-2]}")


def check_lengths(batch: int, **lengths: Tensor | None) -> None:
    """Raise UserError for lengths, ends of sequences or block tables of another form."""
    for name, given in lengths.items():
        if given is None:
            continue
        rank, rows = (2, batch) if name == "block_table" else (1, batch + name.startswith("cu_seqlens"))
        if given.dim() != rank or given.shape[0] != rows or given.dtype not in (torch.int32, torch.int64):
            form = f"[{rows}, pages]" if rank == 2 else f"[{rows}]"
            raise UserError(f"{name} must be int32 {form}, not {given.dtype} {list(given.shape)}")
