"""The backward pass: gradients in float64, and the arithmetic that a kernel declares for them. Pure NumPy.

With P = softmax(s), O = P V and a loss L = sum(O * dO), for one query head

    delta_i = sum_d dO_id O_id
    dP_ij   = sum_d dO_id V_jd
    dS_ij   = P_ij (dP_ij - delta_i) c_ij       c_ij = 1 - tanh(s_ij / softcap)^2, or 1
    dV_j    = sum_i P_ij dO_i
    dQ_i    = scale * sum_j dS_ij K_j
    dK_j    = scale * sum_i dS_ij Q_i

dK and dV of a K/V head are the sums over the query heads of its group. A sink is a weight without a value: it lowers P,
and the formulas stay (Dao et al. 2022, "FlashAttention", appendix B; Dao 2023, "FlashAttention-2", section 3.1).

A gradient is a sum whose terms may cancel: where all values are equal, dP = delta and dS is 0, and a kernel returns the
rounding errors of both. Independent rounding errors add up to the root of the sum of the squares of the terms, whatever
the sum itself is. That root is the *magnitude* of a row, with |dP_ij| + sum_d |dO_id O_id| in place of dP_ij - delta_i;
a row whose norm is smaller is measured against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import key_range, padded_rows
from sdpalab.inputs.reference import finite, is_finite, weight_blocks, weight_sums
from sdpalab.judge.rule.rounding import rounded_to_type

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.kernels.declarations import Numerics
    from sdpalab.scoring import Scoring

__all__ = ["GRADIENTS", "Gradients", "attention_gradients", "intended_gradients", "judged_gradients"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

GRADIENTS = ("dq", "dk", "dv")


@dataclass(frozen=True)
class Gradients:
    """dQ [B, H, Sq, D], dK [B, Hkv, Skv, D] and dV [B, Hkv, Skv, Dv] by name, and the magnitude of each row of them.

    Attributes
    ----------
    values : mapping of str to ndarray of float64
        NaN in rows that are not judged (:func:`judged_gradients`).
    magnitudes : mapping of str to ndarray of float64, [B, H, Sq] and [B, Hkv, Skv]
        Smallest norm against which the error of each row is measured (module docstring).
    """

    values: Mapping[str, F64]
    magnitudes: Mapping[str, F64]


class _Block(NamedTuple):
    """The backward pass of a block of rows of one head before its sums: P and c are [rows, keys]."""

    place: tuple[int, int, slice]
    keys: slice
    p: F64
    slope: F64 | float
    q: F64
    k: F64
    v: F64
    do: F64


def judged_gradients(q: Array, k: Array, v: Array, do: Array, **scoring: Unpack[Scoring]) -> dict[str, Bools]:
    """Masks of the judged rows of each gradient, [B, H, Sq], [B, Hkv, Skv] and [B, Hkv, Skv].

    A row of dQ is judged if its Q and dO, and all K and V of its head, are finite. A row of dK or dV is judged if all
    valid rows of its K/V head and of the query heads of its group are finite. Rows beyond a length are not judged.
    """
    group = q.shape[1] // k.shape[1]
    padding = padded_rows(scoring.get("q_lengths"), q.shape[0], q.shape[2])[:, None]
    hidden = padded_rows(scoring.get("kv_lengths"), k.shape[0], k.shape[2])[:, None]
    rows = is_finite(q).all(axis=3) & is_finite(do).all(axis=3)
    keys = (is_finite(k).all(axis=3) & is_finite(v).all(axis=3) | hidden).all(axis=2)
    heads = (rows | padding).all(axis=2).reshape(*keys.shape, group).all(axis=2)
    both: Bools = np.asarray(keys & heads)
    of_keys = np.broadcast_to(both[:, :, None] & ~hidden, k.shape[:3])
    return {"dq": rows & np.repeat(keys, group, axis=1)[:, :, None] & ~padding, "dk": of_keys, "dv": of_keys}


def attention_gradients(q: Array, k: Array, v: Array, do: Array, **scoring: Unpack[Scoring]) -> Gradients:
    """The gradients in float64, the reference of a candidate's.

    Parameters
    ----------
    q, k, v, **scoring
        As in :func:`sdpalab.inputs.reference.attention_float64`.
    do : ndarray, [B, H, Sq, Dv]

    Returns
    -------
    Gradients
        A key that no row sees has dK = dV = 0, and a row that sees no key has dQ = 0.

    Raises
    ------
    ValueError
        If the scores are too large for float64.
    """
    scale, group = scoring["scale"], q.shape[1] // k.shape[1]
    sums = {name: np.zeros(shape) for name, shape in zip(GRADIENTS, (q.shape, k.shape, v.shape), strict=True)}
    sizes = {name: np.zeros_like(array) for name, array in sums.items()}
    for block in _blocks(q, k, v, do, scoring):
        (b, h, rows), keys, p = block.place, block.keys, block.p
        at = b, h // group, keys
        out, product = p @ block.v, block.do @ block.v.T
        delta = (block.do * out).sum(axis=1, keepdims=True)
        sums["dv"][at] += p.T @ block.do
        sizes["dv"][at] += _product_of_squares(p.T, block.do)
        p *= block.slope
        large = np.abs(product)
        large += np.abs(block.do * out).sum(axis=1, keepdims=True)
        large *= p
        product -= delta
        product *= p
        sums["dq"][b, h, rows] = scale * (product @ block.k)
        sums["dk"][at] += scale * (product.T @ block.q)
        large *= abs(scale)
        sizes["dq"][b, h, rows] = _product_of_squares(large, block.k)
        sizes["dk"][at] += _product_of_squares(large.T, block.q)
    if not all(np.isfinite(array).all() for array in sums.values()):
        raise ValueError(f"with scale {scoring['scale']:g} the scores are too large for float64")
    for name, judged in judged_gradients(q, k, v, do, **scoring).items():
        sums[name][~judged] = np.nan
    return Gradients(sums, {name: np.sqrt(array.sum(axis=-1)) for name, array in sizes.items()})


def intended_gradients(
    q: Array, k: Array, v: Array, do: Array, out: Array, *, numerics: Numerics, **scoring: Unpack[Scoring]
) -> dict[str, Array]:
    """The gradients with the roundings that ``numerics`` declares, and no others.

    P is recomputed as exp(s - LSE) in float32; delta is taken from the rounded output. P is rounded to the type of
    ``numerics.probabilities`` for dV, and dS to that of ``numerics.score_gradients`` for dQ and dK. Products and sums
    are float32, P before its rounding float64.

    Parameters
    ----------
    out : ndarray of the dtype of ``q``, [B, H, Sq, Dv]
        O of the forward pass.
    numerics : Numerics
        With ``value_gradients`` "problem", dP is rounded to the problem's type; with ``partial_rows``, so are partial
        sums of dK and dV.

    Returns
    -------
    dict of ndarray of the dtype of ``q``
        ``dq``, ``dk`` and ``dv``; rows that are not judged hold arbitrary finite numbers.
    """
    dtype, scale, group = q.dtype, np.float32(scoring["scale"]), q.shape[1] // k.shape[1]
    types = {
        name: dtype if declared == "problem" else np.dtype(np.float32)
        for name, declared in (
            ("p", numerics.probabilities),
            ("ds", numerics.score_gradients),
            ("dp", numerics.value_gradients),
        )
    }
    sums = {name: np.zeros(array.shape, np.float32) for name, array in (("dk", k), ("dv", v))}
    pending = {name: np.zeros_like(array) for name, array in sums.items()}
    dq, out = np.zeros(q.shape, dtype), finite(out).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a gradient may exceed float16
        for block in _blocks(q, k, v, do, scoring):
            (b, h, rows), p = block.place, block.p.astype(np.float32)
            query, key, value, gradient = (each.astype(np.float32) for each in (block.q, block.k, block.v, block.do))
            delta = (block.do * out[b, h, rows]).sum(axis=1, keepdims=True).astype(np.float32)
            ds = rounded_to_type(gradient @ value.T, types["dp"])
            ds -= delta
            ds *= p
            ds *= np.asarray(block.slope, np.float32)
            ds, weights = rounded_to_type(ds, types["ds"]), rounded_to_type(p, types["p"])
            dq[b, h, rows] = (scale * (ds @ key)).astype(dtype)
            at, step = (b, h // group, block.keys), numerics.partial_rows or len(p)
            for start, stop in _parts(rows, step):
                part = slice(start - rows.start, stop - rows.start)
                terms = {"dk": scale * (ds[part].T @ query[part]), "dv": weights[part].T @ gradient[part]}
                last = stop % step == 0 or stop == q.shape[2]
                for name, term in terms.items():
                    if not numerics.partial_rows:
                        sums[name][at] += term
                    elif last and start % step == 0:  # a whole part
                        sums[name][at] = rounded_to_type(sums[name][at] + term, dtype)
                    else:
                        pending[name][at] += term
                        if last:
                            head = at[:2]
                            sums[name][head] = rounded_to_type(sums[name][head] + pending[name][head], dtype)
                            pending[name][head] = 0.0
        return {"dq": dq, **{name: array.astype(dtype) for name, array in sums.items()}}


def _parts(rows: slice, step: int) -> Iterator[tuple[int, int]]:
    """First and last row, exclusive, of the pieces of a block of rows between multiples of ``step``."""
    start = rows.start
    while start < rows.stop:
        stop = min((start // step + 1) * step, rows.stop)
        yield start, stop
        start = stop


def _product_of_squares(left: F64, right: F64) -> F64:
    """The product of two matrices of squares, in float32 on numbers up to 1: magnitudes need no more."""
    sizes = [max(float(np.abs(each).max(initial=0.0)), 1e-300) for each in (left, right)]
    squares = [np.square((each / size).astype(np.float32)) for each, size in zip((left, right), sizes, strict=True)]
    product: F64 = (squares[0] @ squares[1]).astype(np.float64)
    product *= (sizes[0] * sizes[1]) ** 2
    return product


def _blocks(q: Array, k: Array, v: Array, do: Array, scoring: Scoring) -> Iterator[_Block]:
    """P of each block of rows on the keys that a mask leaves to any of them, the slope of its soft cap, and its
    operands in float64, without NaN and infinities."""
    group, cap = q.shape[1] // k.shape[1], scoring.get("softcap", 0.0)
    q, k, v, do = (finite(array) for array in (q, k, v, do))
    for each in weight_blocks(q, k, **scoring):
        b, h, rows = each.place
        first, last = key_range(np.arange(q.shape[2])[rows], k.shape[2], head=(b, h), **scoring)
        keys = slice(max(int(first.min()), 0), max(int(last.max()) + 1, 0))
        query, of_group = q[b, h, rows].astype(np.float64), (b, h // group, keys)
        key, value = k[of_group].astype(np.float64), v[of_group].astype(np.float64)
        slope = 1.0 - np.square(np.tanh(scoring["scale"] * (query @ key.T) / cap)) if cap else 1.0
        p = each.weights[:, keys] / weight_sums(each.total)
        yield _Block(each.place, keys, p, slope, query, key, value, do[b, h, rows].astype(np.float64))
