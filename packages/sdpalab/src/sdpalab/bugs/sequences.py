"""Tiled attention on packed sequences and on pages of a cache (:mod:`sdpalab.layout`), a right implementation with one
overridable method per step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdpalab.bugs.tiled import TiledAttention

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SequenceAttention", "Sequences"]


@dataclass(frozen=True)
class Sequences:
    """The buffers that describe a layout, None where it has none, and its sizes.

    ``page_size`` is 0 without pages; ``longest_q`` and ``longest_k`` are ``max_seqlen_q`` and ``max_seqlen_k``.
    """

    ends_q: Tensor | None
    ends_k: Tensor | None
    lengths: Tensor | None
    table: Tensor | None
    seq_q: int
    page_size: int
    longest_q: int
    longest_k: int


class SequenceAttention(TiledAttention):
    """:class:`.tiled.TiledAttention` on one sequence after the other; dense problems are computed as there.

    ``attention(q, k, v, *, scale, causal, cu_seqlens_q=..., block_table=..., ...) -> out`` on the buffers of a problem
    (:attr:`sdpalab.packing.Packing.inputs`). Rows are those of Q [rows, H, D], and of K and V over all pages.
    """

    def __call__(  # type: ignore[override]
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        causal: bool,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        kv_lengths: Tensor | None = None,
        bottom_right: bool = False,
        head_dim_v: int = 0,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
        enable_gqa: bool = False,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int = 0,
        max_seqlen_k: int = 0,
        block_table: Tensor | None = None,
    ) -> Tensor:
        settings = {
            "scale": scale,
            "causal": causal,
            "window_size": window_size,
            "softcap": softcap,
            "bottom_right": bottom_right,
            "alibi_slopes": alibi_slopes,
            "sinks": sinks,
        }
        if cu_seqlens_q is None and block_table is None:
            return super().__call__(q, k, v, kv_lengths=kv_lengths, **settings)  # type: ignore[arg-type]
        size = 0 if block_table is None else k.shape[1]
        self.given = given = Sequences(
            *(cu_seqlens_q, cu_seqlens_k, kv_lengths, block_table),
            *(0 if cu_seqlens_q is not None else q.shape[1], size, max_seqlen_q, max_seqlen_k),
        )
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        flat_q, flat_k, flat_v, flat_out = (each.flatten(0, -3) for each in (q, k, v, out))
        batch = len(q) if given.ends_q is None else len(given.ends_q) - 1
        for entry in self.entries(batch):
            rows, keys, values = self.query_rows(entry), self.key_rows(entry), self.value_rows(entry)
            pieces = (_gathered(flat, chosen) for flat, chosen in ((flat_q, rows), (flat_k, keys), (flat_v, values)))
            result = super().__call__(*pieces, **self.asked_of(entry, settings))  # type: ignore[arg-type]
            flat_out[self.output_rows(entry, rows)] = result[0].transpose(0, 1)
        return out

    def asked_of(self, entry: int, settings: dict[str, object]) -> dict[str, object]:
        """Score arguments for a sequence."""
        return settings

    def entries(self, batch: int) -> Iterable[int]:
        """The sequences to compute, in order."""
        return range(batch)

    def query_span(self, entry: int) -> tuple[int, int]:
        """First row of the queries of a sequence, and the row behind its last."""
        if self.given.ends_q is None:
            return entry * self.given.seq_q, (entry + 1) * self.given.seq_q
        return int(self.given.ends_q[entry]), int(self.given.ends_q[entry + 1])

    def query_rows(self, entry: int) -> Tensor:
        """Rows of the queries of a sequence."""
        import torch

        return torch.arange(*self.query_span(entry))

    def output_rows(self, entry: int, rows: Tensor) -> Tensor:
        """Rows of the output of a sequence."""
        return rows

    def length(self, entry: int) -> int:
        """Number of keys of a sequence."""
        if self.given.lengths is not None:
            return int(self.given.lengths[entry])
        assert self.given.ends_k is not None
        return int(self.given.ends_k[entry + 1] - self.given.ends_k[entry])

    def first_key(self, entry: int) -> int:
        """First row of the packed keys of a sequence."""
        assert self.given.ends_k is not None
        return int(self.given.ends_k[entry])

    def key_rows(self, entry: int) -> Tensor:
        """Rows of the keys of a sequence."""
        import torch

        positions = torch.arange(self.length(entry))
        if self.given.table is None:
            return positions + self.first_key(entry)
        size = self.given.page_size
        return self.pages(entry, positions // size) * size + positions % size

    def value_rows(self, entry: int) -> Tensor:
        """Rows of the values of a sequence."""
        return self.key_rows(entry)

    def pages(self, entry: int, numbers: Tensor) -> Tensor:
        """Pages of a sequence with these numbers."""
        assert self.given.table is not None
        return self.given.table[entry, numbers].long()


def _gathered(flat: Tensor, rows: Tensor) -> Tensor:
    """The rows [S, H, D] of a buffer as [1, H, S, D]; the nearest row for one outside it."""
    return flat[rows.clamp(0, len(flat) - 1)].transpose(0, 1)[None]
