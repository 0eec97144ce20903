"""Bugs in how ``flash`` deals out the keys of a tile of queries to several blocks, and merges what they find."""

from __future__ import annotations

from functools import partial

from sdpalab.bugs.bug import HAZARD, Bug
from sdpalab.bugs.source import HAZARD_OR_WRONG, in_source
from sdpalab.problem import Problem

__all__ = ["BUGS"]

_SHARED = Problem(1, 1, 128, 32, seq_kv=512)
"""Two tiles of queries, eight tiles of keys: the second block has a part of either."""
_ALONE = Problem(1, 1, 64, 32, seq_kv=64)
"""All of it is one block's."""
_FLAT = _SHARED.with_(scale=0.0)

_bug = partial(in_source, "flash", problem=_SHARED, knobs={"SCHEDULE": "stream_k", "NUM_CTAS": 3})
"""Plants where three blocks share the work, whatever the problem."""

BUGS: tuple[Bug, ...] = (
    *_bug(
        "parts of O merged without rescaling",
        ("o_frag[d][0] += o.x * weight[0];", "o_frag[d][0] += o.x;"),
        harmless=_FLAT,
    ),
    *_bug(
        "parts of the sum merged without rescaling",
        ("softmax[1].sum += rows.w * weight[1];", "softmax[1].sum += rows.w;"),
        harmless=_FLAT,
    ),
    *_bug(
        "the maximum of the first part taken for that of all",
        ("softmax[0].max = fmaxf(softmax[0].max, rows.x);", "softmax[0].max = i == 0 ? rows.x : softmax[0].max;"),
        harmless=_FLAT,
    ),
    *_bug(
        "the part with the last keys left out",
        ("i < count; ++i) {\n        Partial<", "i < count - 1; ++i) {\n        Partial<"),
        harmless=_ALONE,
    ),
    *_bug(
        "the last block but one merges", ("== parts - 1u;", "== parts - 2u;"), harmless=_ALONE, statuses=HAZARD_OR_WRONG
    ),
    *_bug(
        "the semaphore is not released",
        ("atom_inc_acq_rel_gpu_u32(semaphore, parts - 1)", "atom_inc_acq_rel_gpu_u32(semaphore, parts)"),
        harmless=_ALONE,
        statuses=HAZARD,
    ),
    *_bug(
        "units that are left over are nobody's",
        ("block * units_per_block + min(block, longer);", "block * units_per_block;"),
        harmless=_ALONE,
        statuses=HAZARD_OR_WRONG,
    ),
)
