"""Bugs that only change problems beyond the request that the candidate claims to support: one or more for each claim.

The problem of each bug lacks the affected feature, such as a mask, so all cases on it pass; the cases of
:mod:`sdpalab.judge.claims` detect the bug.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.cuda import MODULO_IN_FLASH
from sdpalab.bugs.source import EVEN, in_source
from sdpalab.bugs.tiled import PLAIN, TiledAttention, changed, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
_mask = partial(planted, Family.MASK, problem=PLAIN, harmless=PLAIN, into=BUGS, claims=True)


@_mask("unasked: query i sees key i + 1", cause=Cause.MASK)
class _OneKeyMore(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return columns > rows + 1


_mask("unasked: query i does not see key i, but for the first", cause=Cause.MASK)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: (columns >= rows) & (columns > 0))
)
_mask("unasked: the causal mask is aligned to the bottom right", cause=Cause.MASK)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: columns > rows + seq_kv - seq_q)
)


class _IsCausal:
    """A mask that is off by one, with torch's parameter name ``is_causal``."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, is_causal: bool = False) -> Tensor:
        return _OneKeyMore()(q, k, v, scale=scale, causal=is_causal)


_mask("unasked: query i sees key i + 1 by is_causal", cause=Cause.MASK)(_IsCausal)


_mask("unasked: the window is one key too wide on the left", cause=Cause.MASK)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(self, rows, columns, left + 1, right)
    )
)
_mask("unasked: the window is one key too narrow on the right", cause=Cause.MASK)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(
            self, rows, columns, left, max(right - 1, 0)
        )
    )
)
_mask("unasked: one key too many of each batch entry")(
    changed(padding=lambda self, columns, lengths, rows: columns > lengths[:, None, None, None])
)


@_mask("unasked: a boolean mask is left out")
class _MaskLeftOut(TiledAttention):
    def joined(self, scores: Tensor, mask: Tensor) -> Tensor:
        import torch

        return scores if mask.dtype == torch.bool else super().joined(scores, mask)


@_mask("unasked: an additive mask only hides")
class _UnaskedOnlyHides(TiledAttention):
    def joined(self, scores: Tensor, mask: Tensor) -> Tensor:
        import torch

        return super().joined(scores, mask if mask.dtype == torch.bool else ~mask.isneginf())


_mask("unasked: ALiBi takes the distance with its sign")(changed(distance=lambda self, rows, columns: rows - columns))
planted(Family.SOFTMAX, "unasked: the soft cap is left out", PLAIN, harmless=PLAIN, into=BUGS, claims=True)(
    changed(capped=lambda self, scores, cap: scores)
)
planted(Family.SOFTMAX, "unasked: the sinks are left out", PLAIN, harmless=PLAIN, into=BUGS, claims=True)(
    changed(beginning=lambda self, queries, sinks, group: TiledAttention.beginning(self, queries, None, group))
)
planted(Family.TILES, "unasked: query head h reads K/V head h mod Hkv", PLAIN, harmless=PLAIN, into=BUGS, claims=True)(
    changed(heads=lambda self, tensor, group: tensor.repeat(1, group, 1, 1))
)


_bug: Any = partial(in_source, problem=EVEN, harmless=EVEN, claims=True)
_WIDE = EVEN.with_(head_dim=64)
_of_variants: Any = partial(in_source, "flash hopper", problem=_WIDE, harmless=_WIDE, claims=True, of="variant")
"""Plants bugs in the sources for windows, soft caps and lengths."""

BUGS += [
    *_bug(
        "scalar wmma flash",
        "unasked: query i sees key i + 1",
        ("CAUSAL ? min(row + 1, seq_kv)", "CAUSAL ? min(row + 2, seq_kv)"),
    ),
    *_bug(
        "flash",
        "unasked: pairs of bfloat16 packed the wrong way round",
        ("return ptx::cvt_rn_bf16x2_f32(low, high);", "return ptx::cvt_rn_bf16x2_f32(high, low);"),
    ),
    *_bug(
        "flash",
        "unasked: of O, columns from 64 on are not rescaled",
        ("o_frag[d][i] *= factor[i / 2];", "o_frag[d][i] *= d < 8 ? factor[i / 2] : 1.0f;"),
    ),
    *_bug(
        "scalar",
        "unasked: query head h reads K/V head h mod Hkv",
        ("(q_head / group)", "(q_head / gridDim.y * (gridDim.y / group) + q_head % (gridDim.y / group))"),
    ),
    *_bug("flash", "unasked: query head h reads K/V head h mod Hkv", *MODULO_IN_FLASH),
    *_of_variants(
        "unasked: the window is one key too wide on the left",
        ("max(row - WINDOW_LEFT, 0)", "max(row - WINDOW_LEFT - 1, 0)"),
    ),
    *_of_variants(
        "unasked: one key too many of each batch entry",
        ("kv_lengths[blockIdx.z] : seq_kv", "kv_lengths[blockIdx.z] + 1 : seq_kv"),
    ),
    *_of_variants(
        "unasked: the soft cap is half of what it should be",
        ("cap(float(SOFTCAP) *", "cap(0.5f * float(SOFTCAP) *"),
    ),
]
