"""Hypotheses on masks and caps given by numbers of a problem: causal mask, windows, soft caps, rows that see no key."""

from __future__ import annotations

import math

import numpy as np

from sdpalab.judge.diagnose.workings import F64, HIDDEN_SCORES, TILES, Float64Attention, Outputs

__all__ = ["caps", "empty_rows", "masks"]


def masks(w: Float64Attention) -> Outputs:
    """Causal masks or windows that are off, or hide too little."""
    rows, columns = w.rows, w.columns
    if w.problem.window_size is not None:
        yield from _windows(w)
        return
    if not w.problem.causal:
        yield "there is a causal mask, and the problem has none", w.output(hidden=columns > rows)
        return
    yield "there is none", w.output(hidden=np.zeros_like(w.by_place))
    yield "query i sees key i + 1", w.output(hidden=columns > rows + 1)
    yield "query i does not see key i", w.output(hidden=columns > np.maximum(rows - 1, 0))
    yield "it hides the keys before i, not those after", w.output(hidden=columns < rows)
    if w.problem.seq_q != w.problem.seq_kv:
        shift = w.problem.seq_kv - w.problem.seq_q
        yield "it is aligned to the bottom right, not to the top left", w.output(hidden=columns > rows + shift)
    for tile in TILES[1:]:
        later, same = columns // tile > rows // tile, columns // tile == rows // tile
        yield f"tiles of {tile} on the diagonal are not masked", w.output(hidden=later)
        yield f"tiles of {tile} on the diagonal are left out", w.output(hidden=w.by_place | (same & (rows >= tile)))
        yield f"columns are counted from the start of a tile of {tile}", w.output(hidden=columns % tile > rows)
    for value in HIDDEN_SCORES:
        scores = np.where(w.by_place, value, w.scores)
        yield f"hidden scores are {value:.3g}, not minus infinity", w.output(scores, np.zeros_like(w.by_place))


def _windows(w: Float64Attention) -> Outputs:
    """Windows with a wrong side or a wrong position."""
    left, right = w.problem.window_size or (-1, -1)
    far = w.problem.seq_q + w.problem.seq_kv
    before, after = (far if left < 0 else left), (0 if w.problem.causal else far if right < 0 else right)
    sides = [("there is no window", far, 0 if w.problem.causal else far)]
    if left >= 0:
        sides += [
            ("there is no left side", far, after),
            (f"the left side is {left + 1}, not {left}", left + 1, after),
            (f"the left side is {left - 1}, not {left}", left - 1, after),
        ]
    if right >= 0:
        sides += [
            ("there is no right side", before, far),
            (f"the right side is {right + 1}, not {right}", before, right + 1),
            (f"the right side is {right - 1}, not {right}", before, right - 1),
        ]
    if right < 0 and not w.problem.causal:
        sides.append(("no bound on the right is taken for 0", before, 0))
    if left < 0:
        sides.append(("no bound on the left is taken for 0", 0, after))
    if left != right:
        sides.append(("left and right are swapped", after, before))
    for words, one, other in sides:
        yield words, w.output(hidden=(w.columns < w.rows - one) | (w.columns > w.rows + other))
    shift = w.problem.seq_kv - w.problem.seq_q
    if shift:
        rows = w.rows + shift
        yield (
            "it is aligned to the bottom right, not to the top left",
            w.output(hidden=(w.columns < rows - before) | (w.columns > rows + after)),
        )
    for tile in TILES[1:]:
        first, last = (w.rows - before) // tile, (w.rows + after) // tile
        whole = (w.columns // tile < first) | (w.columns // tile > last)
        yield f"tiles of {tile} at the edges are not masked", w.output(hidden=whole)
        start = w.rows // tile * tile
        of_first = (w.columns < start - before) | (w.columns > start + after)
        yield f"the window is that of the first row of each tile of {tile}", w.output(hidden=of_first)
        left_edge = np.maximum(w.rows - before, 0) // tile
        crossed = (w.columns // tile == left_edge) & (w.rows > before) & (left_edge < w.rows // tile)
        yield f"the tile of {tile} with the left edge is left out", w.output(hidden=w.by_place | crossed)
    for many in (1, 4):
        named = "the first key is" if many == 1 else f"the first {many} keys are"
        always = w.by_place & ((w.columns >= many) | (w.columns > w.rows + after))
        yield f"{named} seen outside the window, too", w.output(hidden=always)
    for value in HIDDEN_SCORES:
        scores = np.where(w.by_place, value, w.scores)
        yield f"hidden scores are {value:.3g}, not minus infinity", w.output(scores, np.zeros_like(w.by_place))


def caps(w: Float64Attention) -> Outputs:
    """A soft cap that is left out or applied at the wrong place."""
    cap, scale = w.problem.softcap, w.problem.scale
    if not cap:
        return
    product: F64 = w.q @ w.k.swapaxes(2, 3)
    yield "there is no cap", w.output(product * scale + w.bias)
    yield "it is applied before the scale", w.output(cap * np.tanh(product / cap) * scale + w.bias)
    yield "the scores are not divided by it", w.output(cap * np.tanh(product * scale) + w.bias)
    yield "tanh is not multiplied by it", w.output(np.tanh(product * scale / cap) + w.bias)
    yield "scores are clipped to it", w.output(np.clip(product * scale, -cap, cap) + w.bias)
    yield "it is applied twice", w.output(cap * np.tanh(w.scores / cap))
    for words, factor in (("is taken for one to base 2", math.log(2.0)), ("is one to base 2", math.log2(math.e))):
        yield f"it {words}", w.output(cap * factor * np.tanh(product * scale / (cap * factor)) + w.bias)
    for other in (10.0, 15.0, 20.0, 30.0, 50.0, 100.0):
        if other != cap:
            yield f"it is {other:g}, not {cap:g}", w.output(other * np.tanh(product * scale / other) + w.bias)
    yield "tanh is x / (1 + |x|)", w.output(product * scale / (1.0 + np.abs(product * scale / cap)) + w.bias)
    yield "it is applied to the bias, too", w.output(cap * np.tanh((product * scale + w.bias) / cap))
    masked = np.where(w.by_place, -cap, w.scores)
    yield "it is applied after the mask", w.output(masked, np.zeros_like(w.by_place))


def empty_rows(w: Float64Attention) -> Outputs:
    """Rows that see no key but are not 0."""
    empty = np.broadcast_to(w.hidden, (*w.problem.q_shape[:3], w.problem.seq_kv)).all(axis=-1, keepdims=True)
    if w.inputs.sinks is None and empty.any():
        mean = np.broadcast_to(w.v.mean(axis=2, keepdims=True), w.right.shape)
        yield "rows that see no key are the mean of V", np.where(empty, mean, w.right)
