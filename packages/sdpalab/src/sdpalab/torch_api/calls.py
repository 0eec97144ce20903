"""One attention call of torch: its tensors and settings, the problem that it is, and the buffers of a launch plan.

:class:`AttentionCall` is the one place that maps arguments of FlashAttention's functions and of torch's
``scaled_dot_product_attention`` to a :class:`~sdpalab.problem.Problem`. The mapping reads shapes only: lengths are in
device memory, and a problem's lengths then stand for any that fit the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from sdpalab.layout import PAGE_SIZES
from sdpalab.packing import TAIL
from sdpalab.problem import Problem, ProblemError

__all__ = ["AttentionCall"]

Tensor = torch.Tensor

_ALIGNMENT = 16
"""Alignment of tensors in bytes; the kernels copy in chunks of this size."""
_SIZES_PER_OCTAVE = 16
"""Numbers of packed rows between two powers of two for which a plan exists; others take the next larger plan."""


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of a call, in the order of the custom ops.

    Attributes
    ----------
    q, k, v : Tensor
        [B, Sq, H, D], [B, Skv, Hkv, D] and [B, Skv, Hkv, Dv]; with ``heads_first`` [B, H, Sq, D] and so on. Q is [Tq,
        H, D] with ``cu_seqlens_q``, and K and V then [Tk, Hkv, D]. With ``block_table`` K and V are pages [pages, page
        size, Hkv, D].
    cu_seqlens_q, cu_seqlens_k : Tensor, optional
        int32 [B + 1]: ends of the packed sequences.
    seqused_k : Tensor, optional
        int32 [B]: valid keys of each sequence.
    block_table : Tensor, optional
        int32 [B, pages of a sequence].
    alibi_slopes : Tensor, optional
        float32 [H] or [B, H].
    max_seqlen_q, max_seqlen_k : int
        Longest packed sequence.
    scale : float
    causal : bool
    window_left, window_right : int
        -1: no bound.
    softcap : float
        0: none.
    bottom_right : bool
        Whether masks are aligned to the last key.
    heads_first : bool
    """

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    seqused_k: Tensor | None = None
    block_table: Tensor | None = None
    alibi_slopes: Tensor | None = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    scale: float = 1.0
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    bottom_right: bool = True
    heads_first: bool = False

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the custom ops."""
        return tuple(vars(self).values())

    @property
    def packed(self) -> bool:
        """Whether the sequences of Q are packed."""
        return self.cu_seqlens_q is not None

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """Shape of the log-sum-exp: [B, H, Sq], or [H, Tq] of packed queries."""
        if self.packed:
            return (self.q.shape[1], self.q.shape[0])
        first, second = (1, 2) if self.heads_first else (2, 1)
        return (self.q.shape[0], self.q.shape[first], self.q.shape[second])

    def problem(self, task: str = "forward") -> Problem:
        """The problem of the call, by shapes.

        Raises
        ------
        ProblemError
            If no problem has these shapes.
        """
        if self.alibi_slopes is not None and self.alibi_slopes.dim() != 1:
            raise ProblemError("the kernels take ALiBi slopes of the heads, not of each batch entry")
        return _problem(
            *(tuple(each.shape) for each in (self.q, self.k, self.v)),
            str(self.q.dtype).removeprefix("torch."),
            None if self.cu_seqlens_q is None else self.cu_seqlens_q.shape[0] - 1,
            self.seqused_k is not None,
            None if self.block_table is None else self.block_table.shape[1],
            self.alibi_slopes is not None,
            *self.arguments[8:],
            task=task,
        )

    def why_not(self) -> str | None:
        """Reason why no kernel supports these tensors, independent of the problem; None if one may."""
        if any(given.data_ptr() % _ALIGNMENT and given.is_contiguous() for given in (self.q, self.k, self.v)):
            return f"a tensor does not begin at a multiple of {_ALIGNMENT} bytes"
        return None

    def buffers(self, **further: Tensor) -> dict[str, Tensor]:
        """The input buffers of the problem's plan, contiguous: tensors of another layout are copied.

        Parameters
        ----------
        **further : Tensor
            ``do``, ``o`` in the layout of Q, and ``lse``, for gradients.
        """
        rows = {"q": self.q, "k": self.k, "v": self.v, **further}
        turned = not self.heads_first and self.dense
        named = {
            name: (each.transpose(1, 2) if turned and name != "lse" else each).contiguous()
            for name, each in rows.items()
        }
        if self.packed and "lse" in further:
            more = _rounded(self.q.shape[0] + TAIL) - self.q.shape[0]
            named["lse"] = torch.nn.functional.pad(further["lse"], (0, more))
        lengths: dict[str, Tensor | None] = {"cu_seqlens_q": self.cu_seqlens_q, "kv_lengths": self.seqused_k}
        if self.block_table is not None:
            lengths["block_table"] = self._table
        elif self.packed:
            lengths["cu_seqlens_k"] = self.cu_seqlens_k
        elif self.seqused_k is not None:
            named |= {name: self._pages(named[name]) for name in ("k", "v")}
            pages = self.k.shape[1] // _page_size(self.k.shape[1])
            table = torch.arange(self.k.shape[0] * pages, dtype=torch.int32, device=self.k.device).view(-1, pages)
            lengths["block_table"] = torch.nn.functional.pad(table, (0, 1), value=-1)
        named |= {name: each.to(torch.int32).contiguous() for name, each in lengths.items() if each is not None}
        if self.alibi_slopes is not None:
            named["alibi_slopes"] = self.alibi_slopes.float().contiguous()
        return named

    def copied(self) -> dict[str, int]:
        """Tensors that :meth:`buffers` copies, and the bytes of each.

        A launch plan's buffers are contiguous: tensor maps, quantisation and all records of verdicts and times apply to
        that layout. One copy, which reads and writes each element once, costs less than products that read a layout
        without a tuned or a certified kernel.
        """
        turned = not self.heads_first and self.dense
        return {
            name: given.numel() * given.element_size()
            for name, given in (("query", self.q), ("key", self.k), ("value", self.v))
            if not (given.transpose(1, 2) if turned else given).is_contiguous()
        }

    def outputs(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs of the plan in the layout of the call, contiguous."""
        turned = not self.heads_first and self.dense
        results = {}
        for name, each in outputs.items():
            if self.packed:  # the plan has more rows
                rows = self.k.shape[0] if name in ("dk", "dv") else self.q.shape[0]
                results[name] = each[:, :rows].contiguous() if name == "lse" else each[:rows]
            elif name == "lse":
                results[name] = each
            else:
                results[name] = each.transpose(1, 2).contiguous() if turned else each
        return results

    @property
    def dense(self) -> bool:
        """Whether the sequences are dense and all their keys valid."""
        return not self.packed and self.block_table is None and self.seqused_k is None

    @property
    def _table(self) -> Tensor:
        """The block table, with two columns or more."""
        table = self.block_table
        assert table is not None
        return torch.nn.functional.pad(table, (0, 1), value=-1) if table.shape[1] == 1 else table

    def _pages(self, cache: Tensor) -> Tensor:
        """A dense cache [B, S, Hkv, D] as pages in the same memory."""
        return cache.reshape(-1, _page_size(cache.shape[1]), *cache.shape[2:])


@lru_cache(maxsize=4096)
def _problem(
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    dtype: str,
    sequences: int | None,
    used: bool,
    columns: int | None,
    slopes: bool,
    max_q: int,
    max_k: int,
    scale: float,
    causal: bool,
    left: int,
    right: int,
    softcap: float,
    bottom_right: bool,
    heads_first: bool,
    *,
    task: str,
) -> Problem:
    """:meth:`AttentionCall.problem` by shapes; ``columns`` are those of the block table."""
    fields: dict[str, Any] = {}
    size = 0
    if columns is not None:
        size, seq_kv = k[1], max(columns - 1, 1) * k[1]
    elif sequences is None and used:
        size, seq_kv = _page_size(k[1]), k[1]
    elif sequences is None:
        seq_kv = k[2] if heads_first else k[1]
    else:
        rows = _rounded(k[0] + TAIL) - TAIL
        seq_kv, fields["kv_lengths"] = max(max_k, -(-rows // sequences)), _spread(rows, sequences)
    if sequences is None:
        batch, seq_q = q[0], q[2] if heads_first else q[1]
        layout = f"paged:{size}" if size else "dense"
    else:
        rows = _rounded(q[0] + TAIL) - TAIL
        batch, seq_q = sequences, max(max_q, -(-rows // sequences))
        fields["q_lengths"] = _spread(rows, sequences)
        layout = f"varlen,paged:{size}" if size else "varlen:gaps" if used else "varlen"
    heads, kv_heads = (q[1], k[1]) if heads_first else (q[-2], k[-2])
    return Problem(
        *(batch, heads, seq_q, q[-1]),
        kv_heads=kv_heads,
        seq_kv=seq_kv,
        head_dim_v=v[-1],
        dtype=dtype,
        causal=causal,
        scale=None if math.isclose(scale, q[-1] ** -0.5, rel_tol=1e-12) else scale,  # models round it otherwise
        window_size=(left, right),
        softcap=softcap,
        alibi_slopes=slopes,
        bottom_right=bottom_right,
        layout=layout,
        task=task,
        **fields,
    )


def _page_size(capacity: int) -> int:
    """Rows of a page of a dense cache of so many rows, which is a whole number of pages."""
    sizes = [size for size in PAGE_SIZES if size > 1 and capacity % size == 0]
    if not sizes:
        raise ProblemError(f"a cache of {capacity} rows is no whole number of pages of {PAGE_SIZES[1]} rows")
    return max(sizes)


def _spread(total: int, sequences: int) -> tuple[int, ...]:
    """Lengths of sequences that differ by one at most."""
    each, rest = divmod(total, sequences)
    return tuple(each + (number < rest) for number in range(sequences))


def _rounded(rows: int) -> int:
    """The next number of packed rows that a plan has."""
    step = max(_SIZES_PER_OCTAVE, 1 << rows.bit_length()) // _SIZES_PER_OCTAVE
    return -(-rows // step) * step
