"""Hypotheses on the parts of a problem that have an array: lengths, masks, slopes and sinks."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from sdpalab.judge.diagnose.workings import F64, HIDDEN_SCORES, TILES, Array, Float64Attention, Outputs

__all__ = ["given_masks", "lengths", "sinks", "slopes"]


def lengths(w: Float64Attention) -> Outputs:
    """Key lengths that are ignored, off, or of another batch entry."""
    lengths, mask, keys = w.inputs.kv_lengths, w.inputs.attn_mask, w.problem.seq_kv
    if lengths is None:
        return
    others = [
        ("the lengths of the keys are ignored", np.full_like(lengths, keys)),
        ("one key beyond the length is seen", np.minimum(lengths + 1, keys)),
        ("the last valid key is not seen", np.maximum(lengths - 1, 0)),
        ("all batches have the length of batch 0", np.full_like(lengths, lengths[0])),
        ("lengths are those of the next batch", np.roll(lengths, -1)),
        ("a length of 0 is taken for no padding", np.where(lengths == 0, keys, lengths)),
    ]
    for tile in TILES[1:]:
        others.append((f"keys up to the end of a tile of {tile} are seen", -(-lengths // tile) * tile))
        others.append((f"keys after the last whole tile of {tile} are not seen", lengths // tile * tile))
    for words, other in others:
        yield words, w.output(beyond=w.hidden_by(other, mask))
    left = (w.columns < (keys - lengths)[:, None, None, None]) | w.hidden_by(None, mask)
    yield "the padding is taken to be before the keys", w.output(beyond=left)
    for value in HIDDEN_SCORES[:1]:
        scores = np.where(w.beyond, value, w.scores)
        yield "scores of padding are 0, not minus infinity", w.output(scores, beyond=w.hidden_by(None, mask))
    weights, total = w.weights_and_total(beyond=w.hidden_by(None, mask))
    yield "padding is left out of the product, and counts in the sum", w.average(weights * ~w.beyond, total)
    if w.problem.causal:
        shift = w.problem.seq_q - lengths[:, None, None, None]
        yield (
            "the causal mask is aligned to the last valid key",
            w.output(beyond=w.beyond | (w.columns > w.rows - shift)),
        )
    rows = w.rows < lengths[:, None, None, None]
    yield "rows beyond the length of the keys are 0", w.output() * rows


def given_masks(w: Float64Attention) -> Outputs:
    """An ``attn_mask`` that is ignored, misread, or of another head."""
    lengths, mask = w.inputs.kv_lengths, w.inputs.attn_mask
    if mask is None:
        return
    boolean, slope = mask.dtype == np.uint8, w.slope(w.inputs.alibi_slopes)

    def under(other: Array | None, values: Array | None = None) -> F64:
        bias = w.mask_values(other if values is None else values) - slope
        return w.output(w.scores_of(w.q, w.k, bias), beyond=w.hidden_by(lengths, other))

    yield "attn_mask is ignored", under(None)
    for axis, called in ((0, "batch"), (1, "head")):
        if mask.shape[axis] > 1:
            yield f"attn_mask is that of the next {called}", under(np.roll(mask, -1, axis))
            yield f"attn_mask is that of the {called} before", under(np.roll(mask, 1, axis))
            yield f"attn_mask is that of {called} 0", under(mask.take([0], axis))
    if mask.shape[2] == mask.shape[3]:
        yield "attn_mask is transposed", under(mask.swapaxes(2, 3))
    for axis, called in ((2, "row"), (3, "key")):
        yield f"attn_mask is that of the next {called}", under(np.roll(mask, -1, axis))
        yield f"attn_mask is that of the {called} before", under(np.roll(mask, 1, axis))
    if min(mask.shape[:2]) > 1:
        yield "batch entries and heads of attn_mask are swapped", under(mask.swapaxes(0, 1).reshape(mask.shape))
    if mask.shape[1] > 1 and w.problem.group > 1:
        heads = np.arange(w.problem.heads) // w.problem.group
        for words, which in (("by K/V head", heads), ("of the first head of the group", heads * w.problem.group)):
            yield f"attn_mask is taken {words}", under(mask[:, which])
    for tile in (tile for tile in TILES if tile < w.problem.seq_kv):
        yield f"every tile of {tile} keys has the attn_mask of the first", under(mask[..., w.columns % tile])
    if boolean:
        yield "attn_mask is taken the other way round", under(1 - mask)
        for tile in (tile for tile in TILES if w.problem.seq_kv % tile):
            ragged = w.columns >= w.problem.seq_kv // tile * tile
            yield f"the last, ragged tile of {tile} is not masked", under(mask | ragged)
        shown = np.where(w.hidden_by(None, mask), 0.0, w.scores)
        yield (
            "scores that attn_mask hides are 0, not minus infinity",
            w.output(shown, beyond=w.hidden_by(lengths, None)),
        )
        return
    values = np.where(np.isneginf(mask.astype(np.float64)), 0.0, mask.astype(np.float64))
    for words, factor in (
        ("only hides, and its numbers are not added", 0.0),
        ("is subtracted", -1.0),
        ("is added twice", 2.0),
        ("is scaled as the scores are", w.problem.scale),
        ("is taken for one to base 2", math.log(2.0)),
        ("is multiplied by log2(e) once too often", math.log2(math.e)),
    ):
        yield f"attn_mask {words}", under(mask, factor * values)
    yield "the numbers of attn_mask are rounded to whole ones", under(mask, np.rint(values))
    low = np.asarray(mask, np.float64)
    for least in (-8.0, -10.0, -20.0, -40.0 * math.log(2.0), -40.0, -100.0):
        scores = w.scores_of(w.q, w.k, np.maximum(low, least) - slope)
        yield f"no number of attn_mask is below {least:.3g}", w.output(scores, beyond=w.hidden_by(lengths, None))
    bias = w.mask_values(mask) - slope
    yield (
        "attn_mask does not hide where it is -inf",
        w.output(w.scores_of(w.q, w.k, bias), beyond=w.hidden_by(lengths, None)),
    )


def slopes(w: Float64Attention) -> Outputs:
    """ALiBi that is left out, or with another slope or distance."""
    slopes, mask = w.inputs.alibi_slopes, w.mask_values(w.inputs.attn_mask)
    if slopes is None:
        return
    heads, distance = len(slopes), w.rows - w.columns
    yield "there is none", w.biased(mask)
    for words, factor in (
        ("it is added, not subtracted", -1.0),
        ("it is scaled as the scores are", w.problem.scale),
        ("it is taken for one to base 2", math.log(2.0)),
        ("it is multiplied by log2(e) once too often", math.log2(math.e)),
        ("it is subtracted twice", 2.0),
    ):
        yield words, w.biased(mask - factor * w.slope(slopes))
    if heads > 1:
        yield "slopes are those of the next head", w.biased(mask - w.slope(np.roll(slopes, -1)))
        yield "all heads have the slope of head 0", w.biased(mask - w.slope(np.full_like(slopes, slopes[0])))
        yield "slopes are in reverse order", w.biased(mask - w.slope(slopes[::-1]))
    if w.problem.group > 1:
        shared = slopes[np.arange(heads) // w.problem.group]
        yield "slopes are taken by K/V head", w.biased(mask - w.slope(shared))
    formula = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    yield "slopes are those of the paper, not those given", w.biased(mask - w.slope(formula))
    for words, kind in (("float8", ml_dtypes.float8_e4m3fn), ("bfloat16", ml_dtypes.bfloat16)):
        yield f"slopes are rounded to {words}", w.biased(mask - w.slope(slopes.astype(kind).astype(np.float64)))
    shift = w.problem.seq_kv - w.problem.seq_q
    in_tiles = [
        (f"{which} are counted from the start of a tile of {tile}", np.abs(apart))
        for tile in TILES[1:]
        for which, apart in (("columns", w.rows - w.columns % tile), ("rows", w.rows % tile - w.columns))
    ]
    for words, other in (
        *in_tiles,
        ("the distance is squared", np.square(distance)),
        ("the distance has a sign", distance),
        ("keys before the query have none", np.maximum(-distance, 0)),
        ("keys after the query have none", np.maximum(distance, 0)),
        ("the distance is one too large", np.abs(distance + 1)),
        ("the distance is one too small", np.abs(distance - 1)),
        *([("the distance is aligned to the bottom right", np.abs(distance + shift))] if shift else []),
    ):
        yield words, w.biased(mask - w.slope(slopes, other))


def sinks(w: Float64Attention) -> Outputs:
    """Sinks that are left out, or with another logit."""
    if w.inputs.sinks is None:
        return
    sinks, heads = w.sinks, w.problem.heads
    others = [
        ("there are none", np.full_like(sinks, -np.inf)),
        ("they are scaled as the scores are", sinks * w.problem.scale),
        ("they are taken for logits to base 2", sinks * math.log(2.0)),
        ("they are multiplied by log2(e) once too often", sinks * math.log2(math.e)),
        ("they have the wrong sign", -sinks),
        ("they are all 0", np.zeros_like(sinks)),
        ("they are counted twice", sinks + math.log(2.0)),
    ]
    if heads > 1:
        others.append(("they are those of the next head", np.roll(sinks, -1, 0)))
        others.append(("all heads have that of head 0", sinks[[0] * heads]))
    if w.problem.group > 1:
        others.append(("they are taken by K/V head", sinks[np.arange(heads) // w.problem.group]))
    others += [
        (f"they are counted once for each tile of {tile}", sinks + math.log(-(-w.problem.seq_kv // tile)))
        for tile in TILES[1:]
    ]
    for words, logits in others:
        yield words, w.output(sinks=logits)
    weights, total = w.weights_and_total(sinks=np.full_like(sinks, -np.inf))
    yield "their weight is not relative to the largest score", w.average(weights, total + np.exp(sinks))
    masked = np.where(w.hidden, -np.inf, w.scores)
    most = masked.max(axis=-1, keepdims=True)
    weight = np.exp(sinks - np.where(np.isneginf(most), 0.0, most))
    yield "they are left out where they are above all scores", w.average(weights, total + weight * (sinks < most))
    yield "their weight is rounded to a power of two", w.average(weights, total + 2.0 ** np.rint(np.log2(weight)))
    first = weights @ w.v + weight * w.v[:, :, :1]
    yield "their weight goes to the first key", first / (total + weight)
    without = w.average(weights, total)
    yield "O is multiplied by a sigmoid of the wrong sign", without * weight / (total + weight)
