"""The sequences of a call, one by one, as torch computes them: lengths are read from device memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch

from sdpalab.errors import UserError
from sdpalab.torch_api.calls import AttentionCall

__all__ = ["Part", "keys_of", "parts", "queries_of", "rows_of_lse", "slopes_of"]

Tensor = torch.Tensor


class Part(NamedTuple):
    """Sequences of equal lengths: a batch entry or all (None), and the rows of Q and of K and V."""

    entry: int | None
    rows: slice
    keys: slice


def parts(call: AttentionCall) -> Iterator[Part]:
    """The sequences with their lengths, which are read from device memory.

    Raises
    ------
    UserError
        If a length or a page index is out of range.
    """
    if call.dense:
        yield Part(None, slice(None), slice(None))
        return
    batch = call.q.shape[0] if call.cu_seqlens_q is None else call.cu_seqlens_q.shape[0] - 1
    rows = [slice(None)] * batch if call.cu_seqlens_q is None else _slices("q", call.cu_seqlens_q, call.q)
    used = None if call.seqused_k is None else call.seqused_k.tolist()
    if call.block_table is not None:
        capacity = call.block_table.shape[1] * call.k.shape[1]
        used = used or [end.stop - end.start for end in _slices("k", call.cu_seqlens_k, None)]
        starts, most = [0] * batch, [capacity] * batch
    elif call.cu_seqlens_k is not None:
        places = _slices("k", call.cu_seqlens_k, call.k)
        starts, most = [each.start for each in places], [each.stop - each.start for each in places]
    else:
        starts, most = [0] * batch, [call.k.shape[1]] * batch
    for entry, (own, start, count) in enumerate(zip(rows, starts, most, strict=True)):
        keys = count if used is None else used[entry]
        if not 0 <= keys <= count:
            raise UserError(f"sequence {entry} has {keys} keys, and K and V have room for {count}")
        if own.start is None or own.stop > own.start:
            yield Part(entry, own, slice(start, start + keys))


def queries_of(call: AttentionCall, tensor: Tensor, part: Part) -> Tensor:
    """View [1 or B, H, rows, columns] of a tensor in the layout of Q."""
    if call.packed:
        return tensor[part.rows].transpose(0, 1)[None]
    tensor = tensor if call.heads_first else tensor.transpose(1, 2)
    return tensor if part.entry is None else tensor[part.entry][None]


def keys_of(call: AttentionCall, tensor: Tensor, part: Part) -> Tensor:
    """View [1 or B, Hkv, keys, columns] of a tensor in the layout of K; of pages a copy."""
    if call.block_table is not None:
        assert part.entry is not None
        pages = call.block_table[part.entry, : -(-part.keys.stop // tensor.shape[1])].long()
        if len(pages) and not 0 <= int(pages.min()) <= int(pages.max()) < len(tensor):
            raise UserError(
                f"block_table names page {int(pages.min()) if pages.min() < 0 else int(pages.max())} for sequence "
                f"{part.entry}, and the cache has pages 0 to {len(tensor) - 1}"
            )
        return tensor[pages].flatten(0, 1)[part.keys].transpose(0, 1)[None]
    if call.packed:
        return tensor[part.keys].transpose(0, 1)[None]
    tensor = tensor if call.heads_first else tensor.transpose(1, 2)
    return tensor if part.entry is None else tensor[part.entry][None, :, part.keys]


def rows_of_lse(call: AttentionCall, lse: Tensor, part: Part) -> Tensor:
    """View [1 or B, H, rows] of a log-sum-exp of :attr:`lse_shape`."""
    if call.packed:
        return lse[:, part.rows][None]
    return lse if part.entry is None else lse[part.entry][None]


def slopes_of(call: AttentionCall, part: Part) -> Tensor | None:
    """ALiBi slopes [1 or B, H]."""
    given = call.alibi_slopes
    if given is None or given.dim() == 1:
        return given if given is None else given[None]
    return given if part.entry is None else given[part.entry][None]


def _slices(name: str, ends: Tensor | None, tensor: Tensor | None) -> list[slice]:
    """Rows of each packed sequence."""
    assert ends is not None
    numbers = ends.tolist()
    rows = numbers[-1] if tensor is None else len(tensor)
    if numbers[0] < 0 or any(end < start for start, end in pairwise(numbers)) or numbers[-1] > rows:
        raise UserError(f"cu_seqlens_{name} must rise from 0 to at most the {rows} rows of {name}")
    return [slice(start, end) for start, end in pairwise(numbers)]
