"""Bugs in how ``flash`` deals out the keys of a tile of queries to several blocks, and merges what they find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sdpalab.bugs.edit import HAZARD, HAZARD_OR_WRONG, Edit
from sdpalab.kernels.kernel import Knob
from sdpalab.problem import Problem

__all__ = ["MERGE_BUGS", "MERGING"]

MERGING: Mapping[str, Knob] = {"SCHEDULE": "stream_k", "NUM_CTAS": 3}
"""Knobs with which three blocks share the work, whatever the problem."""

_SHARED = Problem(1, 1, 128, 32, seq_kv=512)
"""Two tiles of queries, eight tiles of keys: the second block has a part of either."""
_ALONE = Problem(1, 1, 64, 32, seq_kv=64)
"""All of it is one block's."""
_FLAT = _SHARED.with_(scale=0.0)

MERGE_BUGS: Sequence[Edit] = (
    Edit(
        "parts of O merged without rescaling",
        "epilogue/merge.cuh",
        [("o_frag[d][0] += o.x * weight[0];", "o_frag[d][0] += o.x;")],
        _SHARED,
        _FLAT,
    ),
    Edit(
        "parts of the sum merged without rescaling",
        "epilogue/merge.cuh",
        [("softmax[1].sum += rows.w * weight[1];", "softmax[1].sum += rows.w;")],
        _SHARED,
        _FLAT,
    ),
    Edit(
        "the maximum of the first part taken for that of all",
        "epilogue/merge.cuh",
        [("softmax[0].max = fmaxf(softmax[0].max, rows.x);", "softmax[0].max = i == 0 ? rows.x : softmax[0].max;")],
        _SHARED,
        _FLAT,
    ),
    Edit(
        "the part with the last keys left out",
        "epilogue/merge.cuh",
        [("i < count; ++i) {\n        Partial<", "i < count - 1; ++i) {\n        Partial<")],
        _SHARED,
        _ALONE,
    ),
    Edit(
        "the last block but one merges",
        "epilogue/merge.cuh",
        [("== parts - 1u;", "== parts - 2u;")],
        _SHARED,
        _ALONE,
        HAZARD_OR_WRONG,
    ),
    Edit(
        "the semaphore is not released",
        "epilogue/merge.cuh",
        [("atom_inc_acq_rel_gpu_u32(semaphore, parts - 1)", "atom_inc_acq_rel_gpu_u32(semaphore, parts)")],
        _SHARED,
        _ALONE,
        HAZARD,
    ),
    Edit(
        "units that are left over are nobody's",
        "schedule/stream_k.cuh",
        [("block * units_per_block + min(block, longer);", "block * units_per_block;")],
        _SHARED,
        _ALONE,
        HAZARD_OR_WRONG,
    ),
)
