"""Bugs of an ``attn_mask``: ignored, inverted, of another position, batch entry or head, or in another unit."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import WRONG, Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import PLAIN, TiledAttention, changed, planted
from sdpalab.status import Status

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
BOOLEAN = PLAIN.with_(seq_q=120, seq_kv=120, attn_mask="bool:1,1")
ADDITIVE = PLAIN.with_(seq_q=120, seq_kv=120, attn_mask="float:1,1")
BY_BATCH = PLAIN.with_(batch=2, heads=1, seq_q=100, seq_kv=130, attn_mask="bool:B,1")
BY_HEAD = PLAIN.with_(seq_q=100, seq_kv=130, attn_mask="float:1,H")
BY_BOTH = PLAIN.with_(batch=2, seq_q=70, seq_kv=70, attn_mask="bool:B,H")
BY_HEAD_GROUPED = PLAIN.with_(heads=4, kv_heads=2, seq_q=70, seq_kv=70, attn_mask="float:1,H")
_mask = partial(planted, Family.MASK, into=BUGS, cause=Cause.MASK)
_ON_OTHER_DATA = WRONG | {Status.STALE}
"""Statuses of a bug that only the different data of a second call reveals."""


class _Otherwise(TiledAttention):
    """Attention with another mask."""

    def other(self, mask: Tensor, group: int) -> Tensor:
        """Mask that is used instead."""
        return mask

    def mask_tile(self, mask: Tensor, chosen: slice, group: int) -> Tensor:
        return super().mask_tile(self.other(mask, group), chosen, group)


@_mask("a boolean mask is ignored", BOOLEAN)
class _NoBoolean(TiledAttention):
    def joined(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores


@_mask("an additive mask is ignored", ADDITIVE)
class _NoAdditive(_NoBoolean):
    pass


_mask("a boolean mask is taken the other way round", BOOLEAN)(
    changed(_Otherwise, other=lambda self, mask, group: ~mask)
)
_mask("the mask is transposed", BOOLEAN)(
    changed(_Otherwise, other=lambda self, mask, group: mask.mT if mask.shape[2] == mask.shape[3] else mask)
)
_mask("the mask is that of the row before", ADDITIVE)(
    changed(_Otherwise, other=lambda self, mask, group: mask.roll(1, 2))
)
_mask("the mask is that of the next key", BOOLEAN)(
    changed(_Otherwise, other=lambda self, mask, group: mask.roll(-1, 3))
)
_mask("every tile of keys has the mask of the first", ADDITIVE)(
    changed(mask_tile=lambda self, mask, chosen, group: mask[..., : chosen.stop - chosen.start])
)


@_mask("the last, ragged tile is not masked", BOOLEAN)
class _RaggedTile(TiledAttention):
    def mask_tile(self, mask: Tensor, chosen: slice, group: int) -> Tensor:
        tile = super().mask_tile(mask, chosen, group)
        return tile.logical_or(tile.new_tensor(chosen.stop - chosen.start < self.tile))


_mask("scores that a boolean mask hides are 0", BOOLEAN)(
    changed(joined=lambda self, scores, mask: scores.masked_fill(~mask, 0.0))
)
_mask("all batch entries have the mask of the first", BY_BATCH)(
    changed(_Otherwise, other=lambda self, mask, group: mask[:1])
)
_mask("all heads have the mask of the first", BY_HEAD)(changed(_Otherwise, other=lambda self, mask, group: mask[:, :1]))
_mask("the mask is that of the next head", BY_HEAD)(
    changed(_Otherwise, other=lambda self, mask, group: mask.roll(-1, 1))
)
_mask("batch entries and heads of the mask are mixed up", BY_BOTH)(
    changed(_Otherwise, other=lambda self, mask, group: mask.swapaxes(0, 1).reshape(mask.shape))
)
_mask("the mask is taken by K/V head", BY_HEAD_GROUPED)(
    changed(
        _Otherwise,
        other=lambda self, mask, group: mask[:, ::group].repeat_interleave(group, 1) if mask.shape[1] > 1 else mask,
    )
)
_mask("an additive mask is not taken to base 2", ADDITIVE)(
    changed(joined=lambda self, scores, mask: scores + mask.float())
)
_mask("an additive mask is scaled as the scores are", ADDITIVE)(
    changed(joined=lambda self, scores, mask: scores + mask.float() * math.log2(math.e) * self.scale)
)


@_mask("an additive mask is subtracted", ADDITIVE)
class _Subtracted(TiledAttention):
    def joined(self, scores: Tensor, mask: Tensor) -> Tensor:
        shown = mask.float() * math.log2(math.e)
        return (scores - shown).masked_fill(shown == -math.inf, -math.inf)


_mask("an additive mask only hides", ADDITIVE)(
    changed(joined=lambda self, scores, mask: scores.masked_fill(mask == -math.inf, -math.inf))
)
_mask("an additive mask is not below -10", ADDITIVE, statuses=_ON_OTHER_DATA)(
    changed(joined=lambda self, scores, mask: TiledAttention.joined(self, scores, mask.clamp(min=-10.0)))
)
_mask("an additive mask is rounded to whole numbers", ADDITIVE)(
    changed(joined=lambda self, scores, mask: TiledAttention.joined(self, scores, mask.round()))
)
_mask("scores are rounded to 16 bits with the mask", ADDITIVE, cause=Cause.PRECISION)(
    changed(joined=lambda self, scores, mask: TiledAttention.joined(self, scores, mask).to(self.dtype).float())
)
_mask(
    "what an additive mask hides by a finite number is -1e4",
    ADDITIVE.with_(dtype="bfloat16"),
    statuses=_ON_OTHER_DATA,
)(changed(joined=lambda self, scores, mask: scores + mask.float().clamp(min=-40.0) * math.log2(math.e)))
_mask("the causal mask is left out where there is a mask", BOOLEAN.with_(causal=True))(
    changed(causal=lambda self, asked: False)
)
_mask("rows that the mask hides are 0 divided by 0", BOOLEAN, cause=Cause.RANGE)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out / total)
)


@_mask("rows that the mask hides are the mean of V", ADDITIVE)
class _HiddenMean(TiledAttention):
    masked = -1e30

    def joined(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask.float().clamp(min=-1e30) * math.log2(math.e)
