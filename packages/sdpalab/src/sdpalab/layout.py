"""Layouts of a problem's sequences in device memory: dense, packed (varlen), and pages of a key/value cache.

Everything that computes attention in the lab sees *logical* arrays: padded batches [B, H, S, D] with the lengths of
each batch entry. A kernel sees *buffers*; :mod:`sdpalab.packing` converts between the two.

``dense``
    Buffers are the logical arrays.
``varlen``
    The sequences of Q (and of dO, O, dQ) follow each other in one array [Tq, H, D], those of K and V (dK, dV) in
    [Tk, Hkv, D]; sequence b of Q occupies rows ``cu_seqlens_q[b]`` to ``cu_seqlens_q[b + 1]``. The log-sum-exp is
    [H, Tq]. Some rows follow the last sequence, as behind a batch that is padded for a CUDA graph. With
    ``varlen:gaps`` the rows of K and V between two ends are the capacity of a sequence, and ``kv_lengths``
    (FlashAttention's ``seqused_k``) its keys.
``paged:N``
    Q and O are [B, Sq, H, D], the log-sum-exp is [B, H, Sq]. K and V are pages of N rows [pages, N, Hkv, D]; key j of
    batch entry b is row ``j % N`` of page ``block_table[b, j // N]``, and ``kv_lengths`` (``cache_seqlens``) is the
    number of its keys.
``varlen,paged:N``
    Q as in ``varlen``, K and V as in ``paged:N``.
``paged:N:e4m3``
    Pages of bytes: numbers of e4m3 (OCP OFP8), which ``k_scale`` and ``v_scale``, float32 [Hkv], multiply
    (FlashAttention-3's ``k_descale`` and ``v_descale``). Also behind ``varlen,``.

Names and meaning are those of FlashAttention's ``flash_attn_varlen_func`` and ``flash_attn_with_kvcache``.
"""

from __future__ import annotations

from typing import NamedTuple

from sdpalab.scoring import ARRAYS, ProblemError

__all__ = ["FEATURE_BUFFERS", "PAGE_SIZES", "Layout"]

PAGE_SIZES = (1, 16, 64, 128, 256)
"""Page sizes on which a claim of pages is judged; any size from 1 is valid."""
FEATURE_BUFFERS = {
    **{name: (name,) for name in ARRAYS},
    "varlen": ("cu_seqlens_q", "cu_seqlens_k"),
    "paged": ("block_table", "kv_lengths"),
    "e4m3_cache": ("k_scale", "v_scale"),
}
"""Input buffers of the features that have any."""


class Layout(NamedTuple):
    """A layout: whether the queries (and, without pages, the keys) are packed, the rows of a page (0: no pages),
    whether packed keys have gaps, and whether pages hold e4m3."""

    packed: bool = False
    page_size: int = 0
    gaps: bool = False
    e4m3: bool = False

    @classmethod
    def parse(cls, text: object) -> Layout:
        """Parse the name of a layout, such as ``varlen`` or ``paged:64``.

        Raises
        ------
        ProblemError
            If there is no such layout.
        """
        first, comma, pages = str(text).partition(",")
        if first.startswith("paged:") and not comma:
            first, pages = "", first
        if first in ("", "dense", "varlen", "varlen:gaps") and (first == "varlen" or not comma):
            size, colon, kind = pages.removeprefix("paged:").partition(":")
            known = kind == "e4m3" if colon else True
            if not pages or (pages.startswith("paged:") and size.isdigit() and int(size) > 0 and known):
                return cls(first.startswith("varlen"), int(size or 0), first == "varlen:gaps", bool(colon))
        raise ProblemError(
            "layout must be dense, varlen, varlen:gaps, paged:N or varlen,paged:N with N rows a page, or with pages of "
            f"e4m3 paged:N:e4m3, not {text!r}"
        )

    def __str__(self) -> str:
        packed = ("varlen:gaps" if self.gaps else "varlen") if self.packed else ""
        pages = f"paged:{self.page_size}{':e4m3' * self.e4m3}" if self.page_size else ""
        return ",".join(filter(None, (packed, pages))) or "dense"

    @property
    def dense(self) -> bool:
        """Whether buffers are the logical arrays."""
        return not self.packed and not self.page_size
