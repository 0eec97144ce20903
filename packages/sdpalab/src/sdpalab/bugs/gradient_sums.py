"""Bugs of the sums of dQ, dK and dV: heads and groups, tiles, accumulators, memory, and other operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.backward import Three, TiledBackward
from sdpalab.bugs.bug import WRONG, Bug
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.gradients import BACKWARD, gradient_bug
from sdpalab.status import Status

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
_bug = partial(gradient_bug, BUGS)

GROUPED = BACKWARD.with_(heads=6, kv_heads=2)
WIDE = BACKWARD.with_(head_dim_v=64)
BATCHES = BACKWARD.with_(batch=2, heads=1)
UNEQUAL = WRONG | {Status.NONDETERMINISTIC, Status.STALE}


# ---- heads and groups -----------------------------------------------------------------------------------------------


def _heads(choose: Callable[[int, int, int], int]) -> dict[str, Any]:
    """K and V of each query head by ``choose(head, heads, kv_heads)``."""

    def heads(self: TiledBackward, tensor: Tensor, group: int) -> Tensor:
        kv_heads = tensor.shape[1]
        return tensor[:, [choose(head, kv_heads * group, kv_heads) for head in range(kv_heads * group)]]

    return {"heads": heads}


_bug(
    Cause.HEADS,
    "query head h reads K/V head h // Hkv",
    GROUPED,
    "nsa#27",
    harmless=BACKWARD.with_(heads=1),
    **_heads(lambda head, heads, kv_heads: head // kv_heads % kv_heads),
)
_bug(
    Cause.HEADS,
    "query head h reads K/V head h mod Hkv",
    GROUPED,
    harmless=BACKWARD,
    **_heads(lambda head, heads, kv_heads: head % kv_heads),
)


def _of_group(combine: Callable[[Any], Any]) -> dict[str, Any]:
    """dK and dV of a K/V head from those of its query heads, [B, Hkv, group, Skv, D]."""
    return {"of_group": lambda self, heads, group: combine(heads.unflatten(1, (-1, group)))}


_bug(
    Cause.GROUP,
    "dK and dV are those of the last query head of the group",
    GROUPED,
    "tilelang#930",
    harmless=BACKWARD,
    **_of_group(lambda heads: heads[:, :, -1]),
)
_bug(
    Cause.GROUP,
    "dK and dV are those of the first query head of the group",
    GROUPED,
    "levanter#449",
    harmless=BACKWARD,
    **_of_group(lambda heads: heads[:, :, 0]),
)
_bug(
    Cause.GROUP,
    "the last query head of the group is left out of dK and dV",
    GROUPED,
    harmless=BACKWARD.with_(heads=1),
    **_of_group(lambda heads: heads[:, :, : max(1, heads.shape[2] - 1)].sum(2)),
)
_bug(
    Cause.GROUP,
    "dK and dV are the means over the group",
    GROUPED,
    harmless=BACKWARD,
    **_of_group(lambda heads: heads.mean(2)),
)
_bug(
    Cause.GROUP,
    "K/V head h gets the sum of the query heads h, h + Hkv, ...",
    GROUPED,
    "fla#384",
    harmless=BACKWARD,
    of_group=lambda self, heads, group: heads.unflatten(1, (group, -1)).sum(1),
)


_bug(
    Cause.GROUP,
    "K/V head h belongs to the query heads h, h + Hkv, ...",
    GROUPED,
    harmless=BACKWARD,
    of_group=lambda self, heads, group: heads.unflatten(1, (group, -1)).sum(1),
    **_heads(lambda head, heads, kv_heads: head % kv_heads),
)
_bug(
    Cause.HEADS,
    "all batch entries read the K and V of batch 0",
    BATCHES,
    harmless=BACKWARD,
    heads=lambda self, tensor, group: TiledBackward.heads(self, tensor[:1].expand(tensor.shape), group),
)


class _SumOfBatches(TiledBackward):
    def of_group(self, heads: Tensor, group: int) -> Tensor:
        return super().of_group(heads, group).sum(0, keepdim=True).expand(heads.shape[0], -1, -1, -1)


_bug(
    Cause.GROUP,
    "dK and dV are summed over the batch entries, too",
    BATCHES,
    base=_SumOfBatches,
    harmless=BACKWARD,
)
_bug(
    Cause.HEADS,
    "dQ, dK and dV are those of the next head",
    finish=lambda self, dq, dk, dv, group: tuple(
        each.roll(-1, 1) for each in TiledBackward.finish(self, dq, dk, dv, group)
    ),
)


# ---- sums over tiles ------------------------------------------------------------------------------------------------


class _Left(TiledBackward):
    """Sums that begin with those of the call before, of the same shape."""

    _left: Tensor | None = None

    def beginning(self, q: Tensor, k: Tensor, v: Tensor) -> Three:
        dq, dk, dv = super().beginning(q, k, v)
        if self._left is not None and self._left.shape == dq.shape:
            dq = self._left
        self._left = dq
        return dq, dk, dv


_bug(
    Cause.SUMS,
    "dQ is added to the accumulator of the call before",
    source="TE#2186",
    base=_Left,
    statuses=UNEQUAL,
)


def _of_last(name: str) -> dict[str, Any]:
    def store(self: TiledBackward, sums: Tensor, at: slice, terms: Tensor, first: int) -> None:
        sums[:, :, at] = terms

    return {name: store}


_bug(Cause.SUMS, "dQ is stored by each tile of keys, not added", **_of_last("add_dq"))
_bug(Cause.SUMS, "dK is stored by each tile of queries, not added", **_of_last("add_dk"))
_bug(Cause.SUMS, "dV is stored by each tile of queries, not added", **_of_last("add_dv"))


class _LosesSecond(TiledBackward):
    def add_dq(self, dq: Tensor, at: slice, terms: Tensor, first_key: int) -> None:
        if first_key // self.tile % 2 == 0:
            super().add_dq(dq, at, terms, first_key)


_bug(
    Cause.SUMS,
    "the parts of dQ of every second tile of keys are lost: the reduction to memory is not waited for",
    source="FA#2244",
    base=_LosesSecond,
)


class _InTileBefore(TiledBackward):
    def add_dq(self, dq: Tensor, at: slice, terms: Tensor, first_key: int) -> None:
        length = min(self.row_tile, terms.shape[2])
        before = at.start - self.row_tile if at.start else at.start
        dq[:, :, before : before + length] += terms


_bug(
    Cause.SUMS,
    "the parts of dQ are added to the tile of queries before: shared memory of dQ is used again too early",
    source="FA@ea38d3d2",
    base=_InTileBefore,
)


class _AnyOrder(TiledBackward):
    """dQ as sums of 16-bit parts in an order that differs between calls, as by atomics."""

    def beginning(self, q: Tensor, k: Tensor, v: Tensor) -> Three:
        self._parts: list[tuple[slice, Tensor]] = []
        return super().beginning(q, k, v)

    def add_dq(self, dq: Tensor, at: slice, terms: Tensor, first_key: int) -> None:
        self._parts.append((at, terms))

    def finish(self, dq: Tensor, dk: Tensor, dv: Tensor, group: int) -> Three:
        import random

        for at, terms in random.Random().sample(self._parts, len(self._parts)):
            dq[:, :, at] += terms
        return super().finish(dq, dk, dv, group)


_bug(
    Cause.SUMS,
    "dQ is a sum in an order that differs between runs, without a declaration",
    source="FA#2510",
    base=_AnyOrder,
    problem=BACKWARD.with_(heads=8, seq_q=256, seq_kv=256),
    statuses=frozenset({Status.NONDETERMINISTIC}),
)


class _Stale(TiledBackward):
    """A tile of an operand is that of the turn before: a copy that was not waited for, or memory written too early."""

    def before(self, tensor: Tensor, at: slice, tile: int) -> Tensor:
        start = at.start - tile if at.start else at.start
        return tensor[:, :, start : start + at.stop - at.start]


_bug(
    Cause.SUMS,
    "Q of the tile before: its copy is not waited for",
    source="XF@55a4798d",
    base=_Stale,
    query_tile=lambda self, q, at: self.before(q, at, self.row_tile),
)
_bug(
    Cause.SUMS,
    "dO of the tile before: a barrier is missing",
    source="XF@4accd3c5",
    base=_Stale,
    gradient_tile=lambda self, do, at: self.before(do, at, self.row_tile),
)
_bug(
    Cause.SUMS,
    "V of the tile before in dP",
    source="diffusers#14265",
    base=_Stale,
    value_tile=lambda self, values, chosen: self.before(values, chosen, self.tile),
)


class _KeysBefore(_Stale):
    def tile_of(self, keys: Tensor, chosen: slice) -> Tensor:
        self._stale = self.before(keys, chosen, self.tile)
        return super().tile_of(keys, chosen)

    def key_operand(self, k: Tensor) -> Tensor:
        return self._stale


_bug(
    Cause.SUMS,
    "K of another tile in dS K: the epilogue writes over it before the product",
    source="FA@1c41d2b0",
    base=_KeysBefore,
)


def _without_last(name: str) -> dict[str, Any]:
    def add(self: TiledBackward, sums: Tensor, at: slice, terms: Tensor, first: int) -> None:
        seq, tile = (self.asked.seq_kv, self.tile) if name == "add_dq" else (self.asked.seq_q, self.row_tile)
        if first + tile <= seq:
            getattr(TiledBackward, name)(self, sums, at, terms, first)

    return {name: add}


_bug(
    Cause.KEYS,
    "the ragged last tile of keys is missing from dQ",
    harmless=BACKWARD.with_(seq_q=128, seq_kv=128),
    **_without_last("add_dq"),
)
_bug(
    Cause.KEYS,
    "the ragged last tile of queries is missing from dK",
    harmless=BACKWARD.with_(seq_q=128, seq_kv=128),
    **_without_last("add_dk"),
)
_bug(
    Cause.KEYS,
    "the ragged last tile of queries is missing from dV",
    harmless=BACKWARD.with_(seq_q=128, seq_kv=128),
    **_without_last("add_dv"),
)


# ---- memory ---------------------------------------------------------------------------------------------------------


def _contiguous(tensor: Tensor) -> Tensor:
    """The memory of a tensor, read as if the tensor were contiguous."""
    strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim)]
    return tensor.as_strided(tensor.shape, strides)


_bug(
    Cause.LAYOUT,
    "dO is read as if it were contiguous",
    source="FA#355",
    gradients=lambda self, do, o: (_contiguous(do), o),
)
_bug(
    Cause.LAYOUT,
    "O is read with the strides of dO",
    source="FA@9ee0ff1d",
    gradients=lambda self, do, o: (do, o.as_strided(o.shape, do.stride())),
)


class _Transposed(TiledBackward):
    @wraps(TiledBackward.__call__)  # with its parameters, for the judge's call
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Three:  # type: ignore[override]
        return super().__call__(q, _contiguous(k), v, **given)


_bug(Cause.LAYOUT, "K is read as if it were contiguous", source="PT#146377", base=_Transposed)
_bug(
    Cause.LAYOUT,
    "dQ, dK and dV lie as [B, S, H, D] and are returned as [B, H, S, D]",
    finish=lambda self, dq, dk, dv, group: tuple(
        each.transpose(1, 2).reshape(each.shape) for each in TiledBackward.finish(self, dq, dk, dv, group)
    ),
)


# ---- other operands -------------------------------------------------------------------------------------------------


class _ShapeOfK(TiledBackward):
    def finish(self, dq: Tensor, dk: Tensor, dv: Tensor, group: int) -> Three:
        q, k, v = super().finish(dq, dk, dv, group)
        return q, k, v[..., : k.shape[3]]


_bug(
    Cause.COLUMNS,
    "dV has the shape of K",
    WIDE,
    "FA#818",
    base=_ShapeOfK,
    harmless=BACKWARD,
    statuses=frozenset({Status.BAD_OUTPUT}),
)


class _ColumnsOfK(TiledBackward):
    def tile_of(self, keys: Tensor, chosen: slice) -> Tensor:
        self._columns = keys.shape[3]
        return super().tile_of(keys, chosen)

    def value_gradient(self, do: Tensor, v: Tensor) -> Tensor:
        return super().value_gradient(do[..., : self._columns], v[..., : self._columns])


_bug(
    Cause.COLUMNS,
    "dP is a product over the D columns of K, not the Dv of V",
    WIDE,
    "nsa#27",
    base=_ColumnsOfK,
    harmless=BACKWARD,
)
_bug(
    Cause.OPERANDS,
    "dK and dV change places",
    finish=lambda self, dq, dk, dv, group: _swapped(*TiledBackward.finish(self, dq, dk, dv, group)),
)


def _swapped(dq: Tensor, dk: Tensor, dv: Tensor) -> Three:
    return dq, dv, dk


class _GradientForScores(TiledBackward):
    """dV from dS, not from P."""

    def score_gradient(self, p: Tensor, dp: Tensor, delta: Tensor) -> Tensor:
        self._ds = super().score_gradient(p, dp, delta)
        return self._ds

    def add_dv(self, dv: Tensor, chosen: slice, terms: Tensor, first_row: int) -> None:
        at = slice(first_row, first_row + self._ds.shape[2])
        super().add_dv(dv, chosen, self._ds.mT @ self._do[:, :, at], first_row)

    def gradient_tile(self, do: Tensor, at: slice) -> Tensor:
        self._do = do
        return super().gradient_tile(do, at)


_bug(Cause.OPERANDS, "dV is the product of dS and dO", base=_GradientForScores)
_bug(
    Cause.NO_ATTENTION,
    "all gradients are zeros",
    finish=lambda self, dq, dk, dv, group: tuple(0.0 * each for each in TiledBackward.finish(self, dq, dk, dv, group)),
)
_bug(
    Cause.PRECISION,
    "dQ is summed in bfloat16",
    add_dq=lambda self, dq, at, terms, first_key: _add_rounded(dq, at, terms),
)


def _add_rounded(sums: Tensor, at: slice, terms: Tensor) -> None:
    import torch

    sums[:, :, at] = (sums[:, :, at] + terms).to(torch.bfloat16)
