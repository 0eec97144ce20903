"""Kinds of inputs: one function per kind, which fills Q, K and V in float64 and targets one class of bugs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.inputs.eight_bit import integers, stepped, two_bits
from sdpalab.inputs.source import F64, Source
from sdpalab.inputs.visibility import hides_keys, key_range, visible_keys

__all__ = ["INPUT_KINDS", "MAKERS"]

_QKV = tuple[F64, F64, F64]
Ints = npt.NDArray[np.signedinteger[Any]]


def _normal(source: Source) -> _QKV:
    """Independent standard normals: the usual test inputs, also those of the twelve contract cases."""
    return source.normal_qkv()


def _uniform(source: Source) -> _QKV:
    """K = 0 and V of small integers: every visible key has the same weight, so a key too many or too few, or a wrong
    count in the denominator, changes every output."""
    q, k, _ = source.normal_qkv()
    return q, 0.0 * k, np.floor(source.uniform("v", source.problem.v_shape) * 17.0) - 8.0


def _codes(source: Source, kind: str, many: int, gap: float) -> tuple[F64, float]:
    """Code vectors [many, D] and a factor on both Q and K: a query equal to one of them scores its key ``gap`` above
    any other. With a soft cap the gap is reduced to keep the highest score below the cap.

    Vector j is the binary code of j in -1/+1, repeated as often as it fits; two vectors differ in at least that many
    places.
    """
    problem, bits = source.problem, max(1, (many - 1).bit_length())
    if bits > problem.head_dim:
        raise UserError(f"inputs {kind!r}: {problem.label} needs head_dim >= {bits} to tell {many} keys apart")
    if problem.scale == 0.0:
        raise UserError(f"inputs {kind!r}: {problem.label} has scale 0, which no key can dominate")
    repeats, place = problem.head_dim // bits, np.arange(problem.head_dim)
    code = np.where((np.arange(many)[:, None] >> (place % bits)) & 1, 1.0, -1.0)
    code[:, repeats * bits :] = 0.0
    if problem.softcap:  # the highest score is bits * gap / 2, and up to four times that
        gap = min(gap, problem.softcap / bits)
    return code, 2.0 ** math.ceil(math.log2(gap / (2 * repeats * abs(problem.scale))) / 2.0)


def _needle(source: Source) -> _QKV:
    """One visible key dominates each row so far that the row of O is that row of V: a permuted tile, a swapped row or a
    wrong head is not hidden by an average. Without a mask every key is some row's needle if Sq >= Skv. Under any mask
    other than causal the needle is in turn the first key that the row sees, the last, or one between."""
    # A gap of 64 between the needle's score and the next: exp(-64) is far below any rounding of V.
    q, k = _needles(source, "needle", 64.0)
    return q, k, source.normal("v", source.problem.v_shape)


def _needles(source: Source, kind: str, gap: float) -> tuple[F64, F64]:
    """Q and K with a needle per row."""
    problem = source.problem
    keys = problem.seq_kv
    code, size = _codes(source, kind, keys, gap)
    rank = np.argsort(source.uniform("order", (problem.batch, problem.heads, keys)), axis=-1)
    row = np.arange(problem.seq_q)
    wanted = np.take(rank, row % keys, axis=-1)
    if set(problem.features) - {"softcap", "head_dim_v"}:
        for head in np.ndindex(problem.batch, problem.heads):
            wanted[head] = _seen_in_turn(visible_keys(row, keys, head=head, **source.scoring), wanted[head])
    elif problem.causal:
        wanted = wanted % (np.minimum(np.arange(problem.seq_q), keys - 1) + 1)
    q = math.copysign(size, problem.scale) * code[wanted]
    return q, np.broadcast_to(size * code, problem.kv_shape)


def _seen_in_turn(visible: npt.NDArray[np.bool_], rank: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Index of a visible key of each row: in turn the first, the last, or the one of its ``rank`` among the visible
    keys."""
    count = visible.sum(axis=1)
    order = np.argsort(~visible, axis=1, kind="stable")  # visible keys of the row first
    place = np.choose(np.arange(len(visible)) % 3, (0 * count, np.maximum(count - 1, 0), rank % np.maximum(count, 1)))
    chosen: npt.NDArray[np.int64] = np.take_along_axis(order, place[:, None], axis=1)[:, 0]
    return chosen


def _hidden_beside(row: npt.NDArray[np.int64], first: Ints, last: Ints, keys: int) -> Ints:
    """Index of a hidden key of each row: in turn the key before the first visible one, or after the last; out of range
    where the row sees all keys."""
    hidden = np.where((row % 2 == 0) & (first > 0), first - 1, last + 1)
    return np.where((hidden == keys) & (first > 0), first - 1, hidden)


def _hidden_among(visible: npt.NDArray[np.bool_]) -> Ints:
    """Index of a hidden key of each row, different from row to row; -1 where the row sees all keys."""
    order, hidden = np.argsort(visible, axis=1, kind="stable"), (~visible).sum(axis=1)
    place = (5 * np.arange(len(visible))) % np.maximum(hidden, 1)
    return np.where(hidden > 0, np.take_along_axis(order, place[:, None], axis=1)[:, 0], -1)


def _forbidden(source: Source) -> _QKV:
    """The best match of each row is a key that the mask hides or another head has: the next key under a causal mask; in
    turn the key before the first or after the last of a window or of the valid keys; any key that an ``attn_mask``
    hides; otherwise the key at the same position in the next head. A mask or a head that is off by one includes this
    key, which then dominates."""
    problem = source.problem
    heads, keys = problem.batch * problem.kv_heads, problem.seq_kv
    code, size = _codes(source, "forbidden", heads * keys + 1, 8.0)
    own = np.arange(heads).reshape(problem.batch, problem.kv_heads).repeat(problem.group, axis=1)[:, :, None]
    row = np.arange(problem.seq_q)
    # The last code is unused: without another head or a next key, nothing is forbidden.
    elsewhere = (own + 1) % heads * keys + row % keys if heads > 1 else np.full_like(own + row, heads * keys)
    wanted = np.broadcast_to(elsewhere, (problem.batch, problem.heads, problem.seq_q)).copy()
    for b, h in np.ndindex(problem.batch, problem.heads) if hides_keys(source.scoring) else ():
        if problem.attn_mask:
            hidden = _hidden_among(visible_keys(row, keys, head=(b, h), **source.scoring))
        else:
            hidden = _hidden_beside(row, *key_range(row, keys, head=(b, h), **source.scoring), keys)
        there = (hidden >= 0) & (hidden < keys)
        wanted[b, h] = np.where(there, own[b, h] * keys + hidden, wanted[b, h])
    q = math.copysign(size, problem.scale) * code[wanted]
    k = size * code[:-1].reshape(problem.kv_shape)
    return q, k, source.normal("v", problem.v_shape)


def _sloped(source: Source, rise: float) -> _QKV:
    """Q and K whose scores rise by about ``rise`` per key, the same for every row, plus a little noise."""
    problem = source.problem
    direction = source.signs("direction", (problem.head_dim,))
    step = rise / (problem.head_dim * (problem.scale or 1.0))
    slope = step * (np.arange(problem.seq_kv) - (problem.seq_kv - 1) / 2.0)
    _, noise, v = source.normal_qkv()
    q = np.broadcast_to(direction, problem.q_shape)
    return q, direction * slope[:, None] + 0.25 * noise, v


def _ramp(source: Source) -> _QKV:
    """Scores rise along the keys by 1/32 per key, so the running maximum grows in every tile and every rescale matters:
    the most sensitive probe of a lost rescale."""
    return _sloped(source, 1.0 / 32.0)


def _reverse_ramp(source: Source) -> _QKV:
    """Scores fall along the keys: the first tile holds the maximum, and the contribution of later tiles must be scaled
    down."""
    return _sloped(source, -1.0 / 32.0)


def _negative(source: Source) -> _QKV:
    """All scores lie near -120: their exponentials are 0 in float32, so a running maximum that starts at 0 instead of
    -inf gives an output of 0."""
    problem = source.problem
    direction = source.signs("direction", (problem.head_dim,))
    _, noise, v = source.normal_qkv()
    low = -120.0 / (problem.head_dim * (problem.scale or 1.0))
    return np.broadcast_to(direction, problem.q_shape), low * direction + 0.25 * noise, v


def _plateau(source: Source) -> _QKV:
    """One key of a head has half of the weight of every row, and a V of 0; all other keys share the other half. O
    depends on keys far below the maximum, where an exponential or a score in 16 bits is coarse."""
    problem = source.problem
    direction = source.signs("direction", (problem.head_dim,))
    _, noise, v = source.normal_qkv()
    best = np.floor(source.uniform("best", (problem.batch, problem.kv_heads, 1)) * problem.seq_kv / 4)
    above = np.where(np.arange(problem.seq_kv) == best, math.log(max(2, problem.seq_kv) / 2.0), 0.0)
    height = above / (problem.head_dim * (problem.scale or 1.0))
    q = np.broadcast_to(direction, problem.q_shape)
    others = (np.arange(problem.seq_kv) != best)[..., None]
    return q, direction * height[..., None] + 0.25 * noise * others, v * others


def _onehot(source: Source) -> _QKV:
    """Each row of V has a single 1, in a column drawn for its key: O shows the weights themselves, summed over the keys
    of a column."""
    q, k, _ = source.normal_qkv()
    dim = source.problem.dim_v
    column = np.floor(source.uniform("column", source.problem.v_shape[:3]) * dim).astype(np.int64)
    return q, k, (np.arange(dim) == column[..., None]).astype(np.float64)


def _constant(source: Source) -> _QKV:
    """All keys of a head have the same V, so O is that V for any scores: a weight that is lost, or counted in only one
    of the two sums, changes O."""
    q, k, v = source.normal_qkv()
    return q, k, np.broadcast_to(v[:, :, :1], v.shape)


def _nan_heads(source: Source) -> _QKV:
    """K and V of every other head are NaN: a read from a neighbouring head, past the last key or in a padded tile,
    makes the other heads NaN."""
    problem = source.problem
    if problem.batch * problem.kv_heads == 1:
        raise UserError(f"inputs 'nan_heads': {problem.label} has one K/V head only, and needs a neighbour")
    q, k, v = source.normal_qkv()
    first = int(source.uniform("first", (1,))[0] * 2)
    for array in (k, v):
        array.reshape(-1, *array.shape[2:])[1 - first :: 2] = math.nan
    return q, k, v


def _outlier(source: Source) -> _QKV:
    """One channel of K is 10 higher in every key, as in trained models: softmax must cancel large scores."""
    q, k, v = source.normal_qkv()
    k[..., int(source.uniform("channel", (1,))[0] * source.problem.head_dim)] += 10.0
    return q, k, v


def _large_logits(source: Source) -> _QKV:
    """Q times 8: a sharp softmax, sensitive to scores in too few bits and to clamped exponentials."""
    q, k, v = source.normal_qkv()
    return 8.0 * q, k, v


def _equal(source: Source) -> _QKV:
    """All keys of a head are the same: the scores of a row are equal and not zero, and O is the mean of the visible
    V."""
    q, k, v = source.normal_qkv()
    return q, np.broadcast_to(k[:, :, :1], k.shape), v


def _tiny(source: Source) -> _QKV:
    """V near the smallest normal number of the dtype, and in float16 O among the subnormals: a flush to zero changes O.
    (2**-100 in float32, because a kernel may flush float32 subnormals.)"""
    q, k, v = source.normal_qkv()
    return q, k, v * {"float16": 2.0**-14, "bfloat16": 2.0**-120, "float32": 2.0**-100}[source.problem.dtype]


def _huge(source: Source) -> _QKV:
    """V near the largest numbers of float16, and Q large against a small K: an accumulator or a scaled Q held in
    float16 overflows. (In bfloat16 and float32 V stays at 2**100: a sum over keys must fit float32.)"""
    q, k, _ = source.normal_qkv()
    top = 65504.0 if source.problem.dtype == "float16" else 2.0**100
    v = top * (2.0 * source.uniform("v", source.problem.v_shape) - 1.0)
    return 2.0**12 * q, 2.0**-12 * k, v


def _hidden_rows(source: Source) -> _QKV:
    """Standard normals; an ``attn_mask`` hides all keys from every third row, whose output is 0."""
    return source.normal_qkv()


def _finite_mask(source: Source) -> _QKV:
    """Standard normals; an additive mask hides keys by half the lowest number of its type, as many libraries do,
    instead of -inf."""
    return source.normal_qkv()


def _uniform_e4m3(source: Source) -> _QKV:
    """K = 0 and V that e4m3 represents exactly with any scale of a kernel that quantises: O is an exact mean, so a key
    too many, a scale or a sum in fewer bits, or the scale of other rows changes O."""
    q, k, _ = source.normal_qkv()
    return q, 0.0 * k, stepped(two_bits(source, "v", source.problem.v_shape))


def _needle_e4m3(source: Source) -> _QKV:
    """Needles whose V has 4-bit numbers, which e4m3 represents exactly with the scale max|V| / 448 that a kernel
    declares: O is that row of V bit for bit, and any other code or scale changes O."""
    q, k = _needles(source, "needle_e4m3", 32.0)
    return q, k, _four_bits(source)


def _normal_e4m3(source: Source) -> _QKV:
    """Scores of normal size from Q, K and V that e4m3 represents exactly after quantisation: quantisation adds no
    error, so the limits are those of the rounding of P alone."""
    problem = source.problem
    q, k = (integers(source, *each, 7) for each in (("q", problem.q_shape), ("k", problem.kv_shape)))
    # The mean square of these integers is about 19, and of a product of two factors about 5.
    spread = abs(problem.scale or 1.0) * 19.0 * math.sqrt(5.0 * problem.head_dim)
    halvings = round(math.log2(spread / 1.5))
    return q * 2.0 ** -(halvings // 2), k * 2.0 ** -(halvings - halvings // 2), _four_bits(source)


def _four_bits(source: Source) -> F64:
    return stepped(integers(source, "v", source.problem.v_shape, 14)) / 8.0


MAKERS: dict[str, Callable[[Source], _QKV]] = {
    "normal": _normal,
    "uniform": _uniform,
    "needle": _needle,
    "forbidden": _forbidden,
    "ramp": _ramp,
    "reverse_ramp": _reverse_ramp,
    "negative": _negative,
    "plateau": _plateau,
    "onehot": _onehot,
    "constant": _constant,
    "outlier": _outlier,
    "nan_heads": _nan_heads,
    "large_logits": _large_logits,
    "equal": _equal,
    "tiny": _tiny,
    "huge": _huge,
    "hidden_rows": _hidden_rows,
    "finite_mask": _finite_mask,
    "uniform_e4m3": _uniform_e4m3,
    "needle_e4m3": _needle_e4m3,
    "normal_e4m3": _normal_e4m3,
}

INPUT_KINDS: dict[str, str] = {kind: " ".join((maker.__doc__ or "").split()) for kind, maker in MAKERS.items()}
"""Every kind of inputs, by name."""
