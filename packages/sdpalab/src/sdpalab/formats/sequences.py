"""Dense tensors [B, H, S, D] with lengths as packed or paged sequences, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["cut", "indptr", "joined", "pages_of"]


def joined(tensor: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The valid rows of all batch entries, [sum of lengths, H, D]."""
    return torch.cat([tensor[b, :, :n].transpose(0, 1) for b, n in enumerate(lengths)]).contiguous()


def cut(packed: torch.Tensor, lengths: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Packed rows [sum of lengths, H, D] as dense [B, H, S, D], with zeros past each length."""
    dense = torch.zeros((*like.shape[:3], packed.shape[-1]), dtype=packed.dtype)
    for b, (first, n) in enumerate(zip(indptr(lengths).tolist(), lengths, strict=False)):
        dense[b, :, :n] = packed[first : first + n].transpose(0, 1)
    return dense


def indptr(lengths: Sequence[int]) -> torch.Tensor:
    """First rows of the sequences, and the number of all rows: int32 [B + 1]."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def pages_of(k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], size: int) -> dict[str, Any]:
    """K and V as pages of ``size`` keys in reversed order, with NaN in unused pages and rows: ``k_cache`` and
    ``v_cache`` [pages, size, H, D], ``kv_indptr`` [B + 1] and ``kv_indices`` of pages, ``kv_last_page_len`` [B]."""
    counts = [-(-n // size) for n in lengths]
    total = sum(counts) + 1
    order = list(range(total - 1, 0, -1))
    caches = [torch.full((total, size, k.shape[1], t.shape[3]), float("nan"), dtype=t.dtype) for t in (k, v)]
    at = 0
    for b, n in enumerate(lengths):
        for page in range(counts[b]):
            rows = slice(page * size, min(n, (page + 1) * size))
            for cache, tensor in zip(caches, (k, v), strict=True):
                cache[order[at], : rows.stop - rows.start] = tensor[b, :, rows].transpose(0, 1)
            at += 1
    return {
        "k_cache": caches[0],
        "v_cache": caches[1],
        "kv_indptr": indptr(counts),
        "kv_indices": torch.tensor(order[:at], dtype=torch.int32),
        "kv_last_page_len": torch.tensor([n - (c - 1) * size for n, c in zip(lengths, counts, strict=True)]).int(),
    }
