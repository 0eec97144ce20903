"""The outputs of attention with a certain bug, in float64: one for each hypothesis of a diagnosis.

The hypotheses are the bugs of the catalogue (:mod:`sdpalab.bugs`) that are planted in Python.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sdpalab.bugs.bug import Bug
from sdpalab.bugs.catalogue import IN_PYTHON
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.precision import WithoutScores
from sdpalab.bugs.sequences import SequenceAttention
from sdpalab.bugs.tiled import TiledAttention
from sdpalab.bugs.variants import VARIANTS
from sdpalab.judge.diagnose.workings import F64, TILES, Float64Attention
from sdpalab.problem import Problem

__all__ = ["Hypothesis", "applies", "hypotheses", "without_scores"]

_FITTED = (Cause.SCORES, Cause.NORMALISATION, Cause.ROWS, Cause.COLUMNS)
"""Causes whose number or permutation is fitted to the output (:mod:`.fitted`)."""
_FEW = 64
"""Queries and keys, besides a window, that show whether an output depends on the size of the tiles."""
_NO_OUTPUT = (Cause.EDGE, Cause.PLACE, Cause.PRECISION)
"""Causes that are patterns of the error, not one certain output."""


@dataclass(frozen=True)
class Hypothesis:
    """A bug, in words, and the output [B, H, Sq, D] that it would give."""

    cause: Cause
    detail: str
    out: F64


def without_scores(w: Float64Attention) -> Iterator[Hypothesis]:
    """Hypotheses that need no scores, cheap for problems of every size."""
    for bug in IN_PYTHON:
        if bug.cause is Cause.NO_ATTENTION and isinstance(bug.edit, WithoutScores):
            yield Hypothesis(bug.cause, bug.detail, w.run(bug.edit))
    yield Hypothesis(Cause.NO_ATTENTION, "each row is the mean of the V that it sees", w.visible_mean)


def hypotheses(w: Float64Attention) -> Iterator[Hypothesis]:
    """All other hypotheses, in the order of the catalogue."""
    for bug in (*IN_PYTHON, *VARIANTS):
        if not isinstance(bug.cause, Cause) or bug.cause in (*_FITTED, *_NO_OUTPUT) or bug.claims:
            continue
        if not isinstance(bug.edit, TiledAttention) or not applies(bug, w.problem):
            continue
        if isinstance(bug.edit, SequenceAttention):
            yield Hypothesis(bug.cause, bug.detail, w.run_on_buffers(bug.edit))
        else:
            yield from _outputs(bug.cause, bug.detail, bug.edit, w)


def applies(bug: Bug, problem: Problem) -> bool:
    """Whether the bug can show on a problem: whether that has the features for which the bug was planted."""
    features = _features(problem)
    return _needed(bug.problem) <= ({"causal", *features} if problem.causal else features)


def _features(problem: Problem) -> set[str]:
    """The problem's features, with the type of an ``attn_mask``, and the lengths that a layout implies."""
    names = {name for name in problem.features if name != "attn_mask"}
    names |= {name for name in ("kv_lengths", "q_lengths") if getattr(problem, name) is not None}
    return names | {problem.attn_mask.partition(":")[0]} if problem.attn_mask else names


def _needed(problem: Problem) -> set[str]:
    """Features without which a bug that was planted for the problem has no effect."""
    return _features(problem) - {"backward"} or ({"causal"} if problem.causal else set())


def _outputs(cause: Cause, words: str, bug: TiledAttention, w: Float64Attention) -> Iterator[Hypothesis]:
    """The output of a bug with one tile of all keys, or by size of the tile if the output depends on it."""
    keys = w.problem.seq_kv
    if w.problem.head_dim_v and cause is Cause.OPERANDS:  # K and V have different shapes
        return
    few = _FEW + max(0, *(w.problem.window_size or ()), 0)

    def output(tile: int, most: int = keys + w.problem.seq_q) -> F64:
        attention = copy.copy(bug)
        attention.tile = tile
        return w.run(attention, most)

    whole, thirds = output(keys, few), output(min(few, keys) // 3 + 1, few)
    if np.allclose(whole, thirds, rtol=1e-9, atol=1e-12, equal_nan=True):
        yield Hypothesis(cause, words, output(keys))
        return
    for tile in TILES:
        missing, named = -keys % tile, "{tile}" in words
        detail = words.format(tile=tile, missing=missing) if named else f"{words}, in tiles of {tile} keys"
        yield Hypothesis(cause, detail, output(tile))
