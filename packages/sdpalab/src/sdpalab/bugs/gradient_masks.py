"""Bugs of masks, windows, alignment, lengths and biases in the backward pass alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.backward import Three, TiledBackward
from sdpalab.bugs.bug import Bug
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.gradients import BACKWARD, KEYLESS, gradient_bug

if TYPE_CHECKING:
    from torch import Tensor

    from sdpalab.bugs.scores import Asked

__all__ = ["BUGS"]

BUGS: list[Bug] = []
_bug = partial(gradient_bug, BUGS)

CAUSAL = BACKWARD.with_(causal=True)
CROSS = BACKWARD.with_(seq_q=60, seq_kv=150, causal=True)
BOTTOM_RIGHT = CROSS.with_(bottom_right=True)
WINDOW = BACKWARD.with_(window_size=(30, 12))
PADDED = BACKWARD.with_(batch=2, heads=1, kv_lengths=(100, 55))
ROWS = BACKWARD.with_(batch=2, heads=1, q_lengths=(100, 55))
ROWS_BOTTOM_RIGHT = ROWS.with_(causal=True, bottom_right=True)
SLOPED = BACKWARD.with_(heads=4, alibi_slopes=True)
SLOPED_CROSS = SLOPED.with_(seq_q=60, seq_kv=150, causal=True, bottom_right=True)
MASKED = BACKWARD.with_(batch=2, heads=4, kv_heads=2, attn_mask="float:B,H")
HIDING = BACKWARD.with_(attn_mask="bool:1,1")


# ---- the causal mask ------------------------------------------------------------------------------------------------


def _hidden(change: Callable[[Any, Any], Any]) -> dict[str, Any]:
    return {"hidden": lambda self, rows, columns, seq_q, seq_kv: change(rows, columns)}


def _asked(change: Callable[[Asked], Asked]) -> dict[str, Any]:
    return {"used": lambda self, asked: change(asked)}


_bug(Cause.MASK, "there is no causal mask in the backward pass", CAUSAL, causal=lambda self, asked: False)
_bug(Cause.MASK, "query i sees key i + 1", CAUSAL, **_hidden(lambda rows, columns: columns > rows + 1))
_bug(Cause.MASK, "query i does not see key i", CAUSAL, **_hidden(lambda rows, columns: columns >= rows))
_bug(
    Cause.MASK,
    "the causal mask is applied to the first 64 queries only",
    KEYLESS,
    "FA@c65b5106",
    hidden=lambda self, rows, columns, seq_q, seq_kv: (columns > rows) & (rows - self.shift < 64),
)
_bug(
    Cause.MASK,
    "the causal mask is aligned to the first key, not the last",
    BOTTOM_RIGHT,
    "FA@9e5e8bc9",
    positions=lambda self, rows, asked: rows,
)
_bug(
    Cause.MASK,
    "the causal mask is aligned to the last key, not the first",
    CROSS,
    "FA@9e5e8bc9",
    positions=lambda self, rows, asked: rows + self.shift,
)
_bug(
    Cause.MASK,
    "P of hidden keys is computed from a score of 0",
    CAUSAL,
    "FA#1947",
    masked=0.0,
)


class _SkipsTiles(TiledBackward):
    """The loop over queries begins at the first whole tile below the diagonal."""

    row_tile = 64

    def row_starts(self, first_key: int, seq_q: int) -> Sequence[int]:
        first = -(-first_key // self.row_tile) * self.row_tile if self.asked.causal else 0
        return range(first, seq_q, self.row_tile)


_bug(
    Cause.KEYS,
    "the loop over queries begins one tile too late",
    CAUSAL,
    "FA#1582",
    base=_SkipsTiles,
    harmless=BACKWARD,
)


class _Unwritten(TiledBackward):
    """Rows of keys that no query sees keep the content of the memory."""

    both = False

    def finish(self, dq: Tensor, dk: Tensor, dv: Tensor, group: int) -> Three:
        unseen = slice(self.asked.seq_q if self.asked.causal else self.asked.seq_kv, None)
        for each in (dk, dv) if self.both else (dk,):
            each[:, :, unseen] = float("nan")
        return super().finish(dq, dk, dv, group)


_bug(
    Cause.RANGE,
    "dK of keys that no query sees is not written",
    CROSS,
    "FA@6998e0ec",
    base=_Unwritten,
    harmless=BACKWARD,
)
_bug(
    Cause.RANGE,
    "dK and dV of keys that no query sees are not written",
    CROSS,
    "FA@db2f8069",
    base=_Unwritten,
    both=True,
    harmless=BACKWARD,
)


# ---- windows --------------------------------------------------------------------------------------------------------


def _outside(left: int, right: int) -> dict[str, Any]:
    def outside(self: TiledBackward, rows: Tensor, columns: Tensor, before: int, after: int) -> Tensor:
        sides = (side if side < 0 else side + more for side, more in ((before, left), (after, right)))
        return TiledBackward.outside(self, rows, columns, *sides)

    return {"outside": outside}


_bug(Cause.MASK, "the left edge of the window is excluded", WINDOW, "transformers#39408", **_outside(-1, 0))
_bug(Cause.MASK, "the window has one key more on the left", WINDOW, "zml#763", **_outside(1, 0))
_bug(Cause.MASK, "the right edge of the window is excluded", WINDOW, "FA#1133", **_outside(0, -1))
_bug(
    Cause.MASK,
    "the window has no left side in the backward pass",
    WINDOW,
    outside=lambda self, rows, columns, left, right: TiledBackward.outside(self, rows, columns, -1, right),
)
_bug(
    Cause.MASK,
    "there is no window in the backward pass",
    WINDOW,
    outside=lambda self, rows, columns, left, right: TiledBackward.outside(self, rows, columns, -1, -1),
)


class _EndsEarly(TiledBackward):
    """The loop over queries ends with the tile of the first key's last query, not of the last key's."""

    def row_starts(self, first_key: int, seq_q: int) -> Sequence[int]:
        left = self.asked.window_size[0]
        return range(0, seq_q if left < 0 else min(seq_q, first_key + left + 1), self.row_tile)


_bug(
    Cause.KEYS,
    "the loop over queries ends at the last query of the tile's first key",
    WINDOW,
    "FA#1870",
    base=_EndsEarly,
    harmless=BACKWARD,
)


# ---- lengths --------------------------------------------------------------------------------------------------------

_bug(
    Cause.PADDING,
    "the lengths of the keys are not passed to the backward pass",
    PADDED,
    "FA#2315",
    harmless=BACKWARD,
    **_asked(lambda asked: replace(asked, kv_lengths=None)),
)
_bug(
    Cause.PADDING,
    "padding of the queries is added to dK and dV",
    ROWS,
    "TE#3331",
    harmless=BACKWARD,
    valid_rows=lambda self, rows, lengths: rows,
)
_bug(
    Cause.MASK,
    "the alignment to the last key ignores the lengths of the queries",
    ROWS_BOTTOM_RIGHT,
    positions=lambda self, rows, asked: TiledBackward.positions(self, rows, replace(asked, q_lengths=None)),
)
_bug(
    Cause.MASK,
    "the last valid key is taken for padding",
    PADDED,
    padding=lambda self, columns, lengths, rows: columns >= lengths[:, None, None, None] - 1,
)


# ---- biases ---------------------------------------------------------------------------------------------------------

_bug(
    Cause.ALIBI,
    "ALiBi is added, not subtracted",
    SLOPED,
    "gym#86",
    bias=lambda self, slopes, rows, columns, group: -TiledBackward.bias(self, slopes, rows, columns, group),
)
_bug(
    Cause.ALIBI,
    "the distance of ALiBi is aligned to the first key, not the last",
    SLOPED_CROSS,
    "FA#540",
    distance=lambda self, rows, columns: (rows - self.shift - columns).abs(),
)
_bug(
    Cause.ALIBI,
    "there is no ALiBi in the backward pass",
    SLOPED,
    **_asked(lambda asked: replace(asked, alibi_slopes=None)),
)
_bug(
    Cause.MASK,
    "attn_mask is that of the K/V head",
    MASKED,
    "XF@4f7ffaa3",
    mask_tile=lambda self, mask, chosen, group: TiledBackward.mask_tile(
        self, mask[:, : mask.shape[1] // group].repeat_interleave(group, 1), chosen, group
    ),
)
_bug(
    Cause.MASK,
    "there is no attn_mask in the backward pass",
    HIDING,
    **_asked(lambda asked: replace(asked, attn_mask=None)),
)
