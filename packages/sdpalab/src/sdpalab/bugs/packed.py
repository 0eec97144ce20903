"""Bugs of packed sequences and of pages of a cache: offsets, ends, the block table, its strides, and the last page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.bug import WRONG, Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.links import link
from sdpalab.bugs.sequences import SequenceAttention
from sdpalab.bugs.tiled import planted
from sdpalab.problem import Problem
from sdpalab.status import Status

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []

VARLEN = Problem(4, 2, 90, 64, seq_kv=120, layout="varlen", q_lengths=(60, 90, 0, 20), kv_lengths=(120, 40, 0, 70))
CAUSAL = VARLEN.with_(causal=True, bottom_right=True)
GAPS = VARLEN.with_(layout="varlen:gaps")
CAPPED = VARLEN.with_(softcap=2.0)
WINDOW = CAUSAL.with_(window_size=(30, 0))
SLOPED = VARLEN.with_(alibi_slopes=True)
PAGED = Problem(3, 4, 4, 64, kv_heads=2, seq_kv=150, layout="paged:16", kv_lengths=(150, 40, 83))
DECODE = PAGED.with_(causal=True, bottom_right=True)
EMPTY = PAGED.with_(kv_lengths=(150, 0, 83))
LARGE = PAGED.with_(batch=4, seq_kv=256, kv_lengths=(256, 250, 230, 256), kv_heads=4)
"""More than 2**16 elements of K."""
NARROW = PAGED.with_(head_dim_v=32)
DENSE = Problem(1, 2, 100, 64)


def _bug(
    about: str,
    cause: Cause,
    words: str,
    problem: Problem,
    source: str = "",
    *,
    harmless: Problem | None = DENSE,
    statuses: frozenset[Status] = WRONG,
    **steps: Any,
) -> None:
    """Add a bug with other steps of :class:`.sequences.SequenceAttention`; ``source`` as :func:`.links.link`."""
    plant = planted(
        *(Family.LAYOUT, f"{about}: {words}", problem),
        into=BUGS,
        cause=cause,
        harmless=harmless,
        statuses=statuses,
        words=words,
        link=link(source) if source else "",
    )
    plant(type("Changed", (SequenceAttention,), steps))


_varlen, _paged = partial(_bug, "varlen"), partial(_bug, "paged")
_sequence, _table = partial(_varlen, Cause.SEQUENCES), partial(_paged, Cause.PAGES)
_ANY = WRONG | {Status.NONDETERMINISTIC, Status.STALE}
"""Statuses of an output that is partly unwritten."""


# ---- packed sequences -----------------------------------------------------------------------------------------------

_sequence(
    "the keys of a sequence end where those of the longest would",
    VARLEN,
    length=lambda self, entry: self.given.longest_k,
)
_sequence(
    "cu_seqlens_q is taken for cu_seqlens_k",
    VARLEN,
    first_key=lambda self, entry: int(self.given.ends_q[entry]),
)
_sequence(
    "seqused_k is ignored",
    GAPS,
    "FA#2315",
    harmless=VARLEN,
    length=lambda self, entry: int(self.given.ends_k[entry + 1] - self.given.ends_k[entry]),
)
_sequence(
    "the first key of each sequence is left out",
    VARLEN,
    key_rows=lambda self, entry: SequenceAttention.key_rows(self, entry)[1:],
)
_sequence(
    "the last sequence is left out",
    VARLEN,
    statuses=_ANY,
    entries=lambda self, batch: range(batch - 1),
)
_sequence(
    "each sequence is written over the first",
    VARLEN,
    "FA#2550",
    statuses=_ANY,
    output_rows=lambda self, entry, rows: rows - self.query_span(entry)[0],
)
_sequence(
    "a sequence sees the keys of the next one",
    VARLEN,
    first_key=lambda self, entry: int(self.given.ends_k[min(entry + 1, len(self.given.ends_k) - 2)]),
)
_sequence(
    "keys of a sequence begin at a multiple of 8 rows",
    VARLEN.with_(kv_lengths=(115, 37, 0, 70)),
    first_key=lambda self, entry: SequenceAttention.first_key(self, entry) // 8 * 8,
)
_sequence(
    "sequences with fewer than 32 queries are left out",
    VARLEN,
    "FA#2562",
    statuses=_ANY,
    entries=lambda self, batch: [n for n in range(batch) if _count(self.query_span(n)) >= 32],
)


def _count(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _positions(change: Callable[[Any, Tensor, Any], Tensor]) -> dict[str, Any]:
    return {"positions": lambda self, rows, asked: change(self, rows, asked)}


_varlen(
    Cause.MASK,
    "the causal mask is aligned by the longest lengths",
    CAUSAL,
    "FA@9e5e8bc9",
    harmless=VARLEN,
    **_positions(lambda self, rows, asked: rows + self.given.longest_k - self.given.longest_q),
)
_varlen(Cause.MASK, "the causal mask is aligned to the first key", CAUSAL, **_positions(lambda self, rows, asked: rows))
_varlen(
    Cause.MASK,
    "queries behind the first tile are not masked",
    CAUSAL.with_(q_lengths=(90, 80, 0, 20), kv_lengths=(30, 120, 0, 70)),
    "FA@c65b5106",
    hidden=lambda self, rows, columns, seq_q, seq_kv: (
        SequenceAttention.hidden(self, rows, columns, seq_q, seq_kv) & (_row_numbers(rows) < 64)
    ),
)
_varlen(
    Cause.CAP,
    "the soft cap is left out",
    CAPPED,
    "FA#2544",
    asked_of=lambda self, entry, settings: {**settings, "softcap": 0.0},
)
_varlen(
    Cause.MASK,
    "the window is left out",
    WINDOW,
    harmless=CAUSAL,
    asked_of=lambda self, entry, settings: {**settings, "window_size": (-1, -1)},
)
_varlen(
    Cause.ALIBI,
    "the distance of ALiBi counts from the first sequence",
    SLOPED,
    query_rows=lambda self, entry: _noted(self, entry),
    distance=lambda self, rows, columns: (rows + self.offset - columns).abs(),
)


def _noted(self: Any, entry: int) -> Tensor:
    """Rows of the queries of a sequence, whose first is noted."""
    self.offset = self.query_span(entry)[0]
    return SequenceAttention.query_rows(self, entry)


def _row_numbers(rows: Tensor) -> Tensor:
    """Numbers of the rows from 0."""
    return rows - rows.min()


# ---- pages ----------------------------------------------------------------------------------------------------------

_table(
    "the block table is ignored", PAGED, pages=lambda self, entry, numbers: numbers + entry * self.given.table.shape[1]
)
_table(
    "all sequences have the pages of the first",
    PAGED,
    pages=lambda self, entry, numbers: self.given.table[0, numbers].long(),
)
_table(
    "rows of the block table are as long as the longest sequence",
    PAGED,
    "FA#2389",
    pages=lambda self, entry, numbers: self.given.table.flatten()[
        numbers + entry * -(-int(self.given.lengths.max()) // self.given.page_size)
    ].long(),
)
_table(
    "V is read from the page before",
    PAGED,
    "FI#3022",
    value_rows=lambda self, entry: _of_pages(self, entry, lambda number: (number - 1).clamp(min=0)),
)
_table(
    "pages hold 32 rows",
    PAGED,
    pages=lambda self, entry, numbers: SequenceAttention.pages(self, entry, numbers // 2) + numbers % 2,
)
_table(
    "the offset in the cache is kept in 16 bits",
    LARGE,
    "FI#3136",
    key_rows=lambda self, entry: _wrapped(SequenceAttention.key_rows(self, entry), 4 * 64),
)
_paged(
    Cause.PADDING,
    "the last page is read to its end",
    PAGED,
    "FI#945",
    length=lambda self, entry: -(-int(self.given.lengths[entry]) // self.given.page_size) * self.given.page_size,
)
_paged(
    Cause.KEYS,
    "a last page that is partly filled is left out",
    PAGED,
    length=lambda self, entry: int(self.given.lengths[entry]) // self.given.page_size * self.given.page_size,
)
_paged(
    Cause.KEYS,
    "the newest key is left out",
    PAGED,
    length=lambda self, entry: max(0, int(self.given.lengths[entry]) - 1),
)
_paged(
    Cause.PADDING,
    "one key behind the end is read",
    PAGED,
    "FI#810",
    length=lambda self, entry: int(self.given.lengths[entry]) + 1,
)
_paged(
    Cause.KEYS,
    "all sequences have the length of the shortest",
    PAGED,
    length=lambda self, entry: int(self.given.lengths.min()),
)
_paged(
    Cause.MASK,
    "the causal mask of the newest queries is aligned to the first key",
    DECODE,
    **_positions(lambda self, rows, asked: rows),
)
_paged(
    Cause.MASK,
    "each query sees one key too many",
    DECODE,
    **_positions(lambda self, rows, asked: SequenceAttention.positions(self, rows, asked) + 1),
)
_paged(
    Cause.RANGE,
    "a sequence without keys is 0 divided by 0",
    EMPTY,
    "FI#353",
    finish=lambda self, out, total, maximum, seq_kv: out / total,
)
_paged(
    Cause.SEQUENCES,
    "a sequence without keys is left unwritten",
    EMPTY,
    "FI#363",
    statuses=_ANY,
    entries=lambda self, batch: [n for n in range(batch) if self.given.lengths[n] > 0],
)
_paged(
    Cause.SEQUENCES,
    "each sequence has the queries of the first",
    PAGED,
    query_rows=lambda self, entry: SequenceAttention.query_rows(self, 0),
    output_rows=lambda self, entry, rows: rows + entry * self.given.seq_q,
)


def _of_pages(self: Any, entry: int, number: Callable[[Tensor], Tensor]) -> Tensor:
    """Rows of the keys of a sequence, from other pages."""
    import torch

    positions, size = torch.arange(self.length(entry)), self.given.page_size
    rows: Tensor = self.pages(entry, number(positions // size)) * size + positions % size
    return rows


def _wrapped(rows: Tensor, columns: int) -> Tensor:
    """Rows whose offset in elements is kept in 16 bits."""
    return rows * columns % (1 << 16) // columns
