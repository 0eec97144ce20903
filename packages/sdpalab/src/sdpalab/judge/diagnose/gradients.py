"""The likely bug of wrong gradients, from the catalogue's bugs of the backward pass as hypotheses.

A hypothesis is a bug of :data:`sdpalab.bugs.catalogue.IN_PYTHON` on the case's inputs, with O and the log-sum-exp as
the candidate got them. It explains a case if all three gradients agree with the candidate's within rounding errors: the
wrong ones are several times nearer to it than to the right gradients, and rows that are not finite are the same. If
none does, it explains the case if the wrong gradients agree.
Hypotheses run in float64, or in the problem's dtype where the candidate overflows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.bugs.backward import TiledBackward
from sdpalab.bugs.catalogue import IN_PYTHON
from sdpalab.bugs.cause import Cause
from sdpalab.inputs import Inputs
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.diagnose.hypotheses import applies
from sdpalab.judge.diagnose.workings import TILES
from sdpalab.judge.parameters import arguments
from sdpalab.judge.rule.gradients import attention_gradients
from sdpalab.judge.rule.limits import LEAST_SUBNORMAL
from sdpalab.judge.strides import Strides, lay_out
from sdpalab.judge.tensors import extra_tensor, laid_out_tensor
from sdpalab.judge.verdict import Errors, Limits
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOOK", "GradientFailure", "explained", "failure_of_gradients"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
Gradients = Mapping[str, F64]

ENOUGH, ROUNDING = 3.0, 3.0
"""As in :mod:`.diagnosis`."""
PATTERN = 0.02
"""Largest share of the rows whose being finite differs between a hypothesis and the candidate."""

LOOK: Mapping[Cause, str] = {
    Cause.DELTA: "the pass that writes delta, and the index with which dS reads it",
    Cause.LOG_SUM: "the exponent of P: its base, the index of the log-sum-exp, and rows where it is -inf",
    Cause.SLOPE: "the factor 1 - (s / softcap)^2 of dS, and its place before the masks",
    Cause.CAP: "the scores from which P is computed again",
    Cause.SCORES: "the factor of the scores from which P is computed again",
    Cause.ALIBI: "the bias of the scores from which P is computed again",
    Cause.MASK: "the mask of the backward pass, and the bounds of its loops",
    Cause.KEYS: "the bounds of the loops over queries and keys, and their last tiles",
    Cause.GROUP: "the sum of dK and dV over the query heads of a K/V head",
    Cause.HEADS: "the index of the K/V head of a query head, and that of the outputs",
    Cause.SUMS: "the accumulators of dQ, dK and dV: where they are zeroed, added to and stored, and the barriers there",
    Cause.FACTOR: "the factor with which dQ and dK are stored",
    Cause.PADDING: "the lengths in the backward pass: rows past them must not enter a product",
    Cause.RANGE: "rows that see no key, keys that no row sees, and keys past the last one",
    Cause.LAYOUT: "the strides of dO, O, K and the outputs",
    Cause.COLUMNS: "the extents of V, dO and dV where head_dim_v differs",
    Cause.OPERANDS: "the operands of the five products",
    Cause.PRECISION: "the types of P, dS, dP and the sums",
}
"""Places to look at for a cause."""


@dataclass(frozen=True)
class GradientFailure:
    """A case with wrong gradients: its computation, and dQ, dK and dV as one :class:`.failure.Failure` each."""

    problem: Problem
    inputs: Inputs
    parts: Mapping[str, Failure]

    @property
    def severity(self) -> float:
        """That of the worst gradient."""
        return max(part.severity for part in self.parts.values())

    @property
    def worst(self) -> Failure:
        """The gradient with the largest error, in units of its limit."""
        return max(self.parts.values(), key=lambda part: part.limited["worst_row_rel_l2"].share)

    @property
    def wrong(self) -> tuple[str, ...]:
        """Names of the gradients that are not within their limits."""
        return tuple(name for name, part in self.parts.items() if part.bad.any() or (part.asked & ~part.judged).any())


def failure_of_gradients(
    problem: Problem, inputs: Inputs, outputs: Mapping[str, Array], figures: Mapping[str, tuple[Errors, Limits]]
) -> GradientFailure:
    """A failure from recorded arrays and figures of each gradient; computes the reference."""
    clean = inputs.padded(0.0)
    right = attention_gradients(*clean.qkv, clean.arrays["do"], **problem.scoring_with(inputs.arrays))
    parts = {
        name: Failure(
            *(problem, inputs, outputs[name], errors, limits, right.values[name]),
            magnitude=right.magnitudes[name],
            output=name,
        )
        for name, (errors, limits) in figures.items()
    }
    return GradientFailure(problem, inputs, parts)


def explained(failure: GradientFailure) -> Iterator[tuple[Cause, str]]:
    """The causes and details of the hypotheses that explain the case; nothing if no row of a gradient is wrong.

    If none explains all three gradients, those that explain the wrong ones: the bug may be in one of several kernels.
    """
    if not failure.wrong:
        return
    partly: list[tuple[Cause, str]] | None = []
    right = [name for name in failure.parts if name not in failure.wrong]
    for cause, detail, guess in _hypotheses(failure):
        if not all(_agrees(failure.parts[name], guess[name], True) for name in failure.wrong):
            continue
        if all(_agrees(failure.parts[name], guess[name], False) for name in right):
            partly = None
            yield cause, detail
        elif partly is not None:
            partly.append((cause, f"{detail}, for {' and '.join(failure.wrong)} alone"))
    factors = list(_factors(failure))
    yield from factors or partly or ()


def _agrees(part: Failure, guess: F64, wrong: bool) -> bool:
    """Whether a gradient of a hypothesis is the candidate's, and if that is wrong, not the right one."""
    if guess.shape != part.out.shape:
        return False
    finite = np.isfinite(guess).all(axis=-1)
    differs = (finite != np.isfinite(part.out).all(axis=-1)) & part.asked
    if np.count_nonzero(differs) > PATTERN * np.count_nonzero(part.asked):
        return False
    rows, overflows = part.judged & finite, bool((part.asked & ~part.judged).any())
    out, right = part.seen, part.right
    sizes = np.maximum(np.linalg.norm(np.where(rows[..., None], guess, 0.0), axis=-1), part.magnitude)
    least = math.sqrt(out[rows].size) * LEAST_SUBNORMAL[part.problem.dtype]
    size = max(float(np.linalg.norm(sizes[rows])), least)
    if float(np.linalg.norm((out - guess)[rows])) > ROUNDING * part.limits.rel_l2 * size:
        return False
    bad = part.bad & rows
    error, left = (float(np.linalg.norm((out - other)[bad])) for other in (right, guess))
    return not wrong or (overflows and not bad.any()) or left <= error / ENOUGH


def _hypotheses(failure: GradientFailure) -> Iterator[tuple[Cause, str, Gradients]]:
    """The gradients of each bug that can show on the problem, for each size of the tiles if they depend on it."""
    wide = all((part.judged == part.asked).all() for part in failure.parts.values())
    for bug in IN_PYTHON:
        edit, cause = bug.edit, bug.cause
        if not isinstance(edit, TiledBackward) or not isinstance(cause, Cause) or cause is Cause.PRECISION:
            continue
        if not applies(bug, failure.problem):
            continue
        strides = Strides.BSHD if cause is Cause.LAYOUT else Strides.CONTIGUOUS
        whole, thirds = (_run(failure, edit, tile, wide, strides) for tile in _extremes(failure.problem))
        if all(np.allclose(whole[name], thirds[name], rtol=1e-3, atol=1e-6, equal_nan=True) for name in whole):
            yield cause, bug.detail, whole
            continue
        for tile in TILES[1:]:
            yield cause, f"{bug.detail}, in tiles of {tile}", _run(failure, edit, tile, wide, strides)


def _extremes(problem: Problem) -> tuple[int, int]:
    longest = max(problem.seq_q, problem.seq_kv)
    return longest, longest // 3 + 1


def _run(failure: GradientFailure, bug: TiledBackward, tile: int, wide: bool, strides: Strides) -> Gradients:
    """dQ, dK and dV of a bug in tiles of that many queries and keys, in float64, or in the problem's dtype."""
    import torch

    edit = copy.copy(bug)
    edit.tile, edit.row_tile = tile, tile * bug.row_tile // bug.tile
    arrays = {name: array.copy() for name, array in failure.inputs.arrays.items()}
    laid = {name: lay_out(arrays[name], strides) for name in ("q", "k", "v", "do")}
    tensors = {name: laid_out_tensor(*each, strides) for name, each in laid.items()}
    tensors |= {name: extra_tensor(arrays[name]) for name in failure.problem.array_shapes if name != "do"}
    if wide:
        tensors = {name: each.double() if each.is_floating_point() else each for name, each in tensors.items()}
    extra = {name: each for name, each in tensors.items() if name not in ("q", "k", "v")}
    q, k, v = (tensors[name] for name in "qkv")
    with torch.no_grad():
        results: tuple[Tensor, ...] = edit(q, k, v, **arguments(edit, failure.problem, extra))
    return {name: each.to(torch.float64).numpy() for name, each in zip(failure.parts, results, strict=True)}


def _factors(failure: GradientFailure) -> Iterator[tuple[Cause, str]]:
    """Whether the wrong gradients are multiples of the right ones."""
    words = []
    for name in failure.wrong:
        part = failure.parts[name]
        square = float(np.vdot(part.right, part.right))
        factor = float(np.vdot(part.seen, part.right)) / square if square else 0.0
        if not _agrees(part, part.right * factor, True):
            return
        words.append(f"{name} is {factor:.4g} times the right one{_named(failure.problem, factor)}")
    yield Cause.FACTOR, ", ".join(words)


def _named(problem: Problem, factor: float) -> str:
    """The factor in words, if it is a usual one."""
    usual: dict[str, Any] = {
        "the scale is missing": 1.0 / (problem.scale or 1.0),
        "the scale is there twice": problem.scale,
        "log2(e) is there once too often": math.log2(math.e),
        "the mean over the group, not the sum": 1.0 / problem.group,
        "its sign is wrong": -1.0,
    }
    close = [words for words, value in usual.items() if abs(factor - value) < 2e-3 * abs(value) and value != 1.0]
    return f": {close[0]}" if close else ""
