"""Emulation of the arithmetic that a kernel declares, and of its error.

A bound taken from a library's output would depend on that library's choices: torch's ``math`` path on a CPU computes in
float32 and is more accurate than any kernel that rounds P; an older one kept scores in the 16-bit type, with errors
that hid a bfloat16 accumulator. The bound therefore follows from the arithmetic that the kernel declares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.inputs.reference import Rows, WeightBlock, finite, weight_blocks, weight_sums
from sdpalab.judge.rule.rounding import rounded_to_type
from sdpalab.judge.rule.single import single_output, to_bits
from sdpalab.kernels.declarations import Numerics, Quantisation
from sdpalab.scoring import TASKS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = [
    "UNDECLARED",
    "approximate_tanh",
    "check_numerics",
    "dequantised",
    "intended_output",
    "mma_terms",
    "on_architecture",
    "orders_of",
    "quantised_numbers",
]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

FLOAT8 = "float8_e4m3fn"
FLOAT8_MAX = 448.0
MMA_TERMS = 8
"""Terms added to a float16 accumulator before it is rounded, where neither the kernel nor its architecture determines
them (:func:`on_architecture`): the number of sm_75 to sm_89, and of records that lack the field."""

UNDECLARED = Numerics(normalise="either", value_gradients="problem", partial_rows=32)
"""Numerics of a candidate without a declaration: it may divide by the sum of the weights before or after they are
rounded. A kernel must declare one of the two. Its gradients are those of torch's flash attention on CPUs, which adds up
dK and dV of 32 to 256 query rows at a time in the 16-bit type (torch 2.13, ``FlashAttentionKernel.cpp``)."""

_TYPES: dict[str, type] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    FLOAT8: ml_dtypes.float8_e4m3fn,
}
TF32_BITS = 11
"""Significant bits of a float32 number in the tensor cores' TF32."""
TANH_BITS = 11
"""Significant bits of the emulated ``tanh.approx.f32``: a relative error of up to 2**-11 (PTX ISA, "Floating Point
Instructions: tanh")."""


def approximate_tanh(values: F64) -> F64:
    """tanh with the relative error of ``tanh.approx.f32``."""
    return to_bits(np.tanh(values), TANH_BITS)


def check_numerics(numerics: Numerics) -> None:
    """Raise UserError if the declared arithmetic has no emulation."""
    p_type, p_scale, quantised = numerics.probabilities, numerics.probability_scale, numerics.quantised
    if numerics.accumulate not in ("float32", "float16"):
        raise UserError(f"numerics: accumulate must be float32 or float16, not {numerics.accumulate!r}")
    if p_type != "problem" and p_type not in _TYPES:
        known = ", ".join(("problem", *_TYPES))
        raise UserError(f"numerics: probabilities must be one of {known}, not {p_type!r}")
    if p_type != FLOAT8 and p_scale != 1.0:
        raise UserError(f"numerics: probability_scale is for probabilities in {FLOAT8}, and must be 1 for {p_type!r}")
    if not 0.0 < p_scale <= FLOAT8_MAX or float(_TYPES[FLOAT8](p_scale)) != p_scale:
        # The largest weight, 1, would itself be rounded.
        raise UserError(
            f"numerics: probability_scale must be a positive number of {FLOAT8}, at most 448, not {p_scale:g}"
        )
    if numerics.normalise not in ("after", "before"):
        raise UserError(f"numerics: normalise must be after or before, not {numerics.normalise!r}")
    if numerics.products not in ("problem", "tf32"):
        raise UserError(f"numerics: products must be problem or tf32, not {numerics.products!r}")
    if (
        isinstance(numerics.partial_rows, bool)
        or not isinstance(numerics.partial_rows, int)
        or numerics.partial_rows < 0
    ):
        raise UserError(f"numerics: partial_rows must be a number of rows, or 0 for all, not {numerics.partial_rows!r}")
    outputs = {name for names in TASKS.values() for name in names}
    if not isinstance(numerics.unordered, tuple) or not outputs.issuperset(numerics.unordered):
        raise UserError(
            f"numerics: unordered must be a tuple of {', '.join(sorted(outputs))}, not {numerics.unordered!r}"
        )
    for name in ("score_gradients", "value_gradients"):
        if getattr(numerics, name) not in ("problem", "float32"):
            raise UserError(f"numerics: {name} must be problem or float32, not {getattr(numerics, name)!r}")
    if numerics.tanh not in ("float32", "approx"):
        raise UserError(f"numerics: tanh must be float32 or approx, not {numerics.tanh!r}")
    if numerics.accumulate_terms is not None and numerics.accumulate != "float16":
        raise UserError(f"numerics: accumulate_terms is for an accumulator in float16, not in {numerics.accumulate}")
    if numerics.accumulate_terms not in (None, 4, 8, 16) or isinstance(numerics.accumulate_terms, bool):
        raise UserError(f"numerics: accumulate_terms must be 4, 8 or 16, not {numerics.accumulate_terms!r}")
    if quantised is None:
        return
    if quantised.dtype != FLOAT8:
        raise UserError(f"numerics: quantised.dtype must be {FLOAT8}, not {quantised.dtype!r}")
    if isinstance(quantised.rows, bool) or not isinstance(quantised.rows, int) or quantised.rows < 0:
        raise UserError(f"numerics: quantised.rows must be a number of rows, or 0 for all, not {quantised.rows!r}")


def orders_of(numerics: Numerics) -> tuple[Numerics, ...]:
    """The arithmetic in each order of rounding and normalising P that it leaves open: one order, or two for
    ``either``."""
    if numerics.normalise != UNDECLARED.normalise:
        return (numerics,)
    return tuple(replace(numerics, normalise=order) for order in ("after", "before"))


def mma_terms(arch: str) -> int:
    """Number of products of float16 factors that the tensor cores of ``arch``, such as ``sm_90a``, add to a float16
    accumulator before they round it: 4 on sm_70, 8 on sm_75 to sm_89, 16 from sm_90 on.

    The simulator's hardware numerics use the same number for ``mma.m16n8k16`` (:mod:`warpsan.numerics.tensor_cores`);
    its rules are compared with results of real GPUs.
    """
    from warpsan.numerics import rule_of

    return len(rule_of(arch, "mma", "f16", 16, "f16").blocks[0])


def on_architecture(numerics: Numerics, arch: str) -> Numerics:
    """``numerics`` with the float16 accumulator terms of ``arch``, where they are not declared.

    Without an architecture (callables have none) the field stays empty, and :data:`MMA_TERMS` is used.
    """
    if numerics.accumulate != "float16" or numerics.accumulate_terms is not None or not arch:
        return numerics
    return replace(numerics, accumulate_terms=mma_terms(arch))


def quantised_numbers(array: Array, quantised: Quantisation) -> tuple[F64, npt.NDArray[np.float32]]:
    """Quantise ``array``: the numbers in the target type, and their scales.

    Parameters
    ----------
    array : ndarray of float16 or bfloat16, [B, H, S, D]
    quantised : Quantisation
        The quantisation scheme.

    Returns
    -------
    numbers : ndarray of float64, [B, H, S, D]
    scales : ndarray of float32, [B, H, S, 1]
    """
    rows = quantised.rows or array.shape[2]
    single, numbers = array.astype(np.float32), np.empty(array.shape, np.float64)
    scales = np.empty((*array.shape[:3], 1), np.float32)
    for start in range(0, array.shape[2], rows):
        block = single[:, :, start : start + rows]
        scale = np.abs(block).max(axis=(2, 3), keepdims=True) / np.float32(FLOAT8_MAX)
        scale = np.where(scale > 0.0, scale, np.float32(1.0))
        within = np.clip(block / scale, -FLOAT8_MAX, FLOAT8_MAX)
        numbers[:, :, start : start + rows] = within.astype(_TYPES[quantised.dtype])
        scales[:, :, start : start + rows] = scale
    return numbers, scales


def dequantised(array: Array, quantised: Quantisation) -> F64:
    """``array`` [B, H, S, D] after quantisation and dequantisation: the type's numbers times their scale."""
    numbers, scales = quantised_numbers(array, quantised)
    return numbers * scales


def intended_output(
    q: Array,
    k: Array,
    v: Array,
    *,
    numerics: Numerics,
    rows: Rows = None,
    weights: Iterable[WeightBlock] | None = None,
    **scoring: Unpack[Scoring],
) -> Array:
    """Attention with the roundings that ``numerics`` declares, and no others.

    Q, K and V are quantised, if declared. The weights exp(s - max(s)) are rounded to float32 and summed; they are
    rounded to the type of P and multiplied by V; the products' sum and the quotient are rounded to float32, and the
    result to the type of Q. If P is declared to be normalised before, the weights are divided by their sum before they
    are rounded: equal weights then have the same rounding error, which does not average out.

    Float32 sums are computed in float64: the order of float32 additions changes the result a thousand times less than
    the roundings to 16 bits, and an emulation without an order is reproducible. The tanh of a soft cap is also computed
    in float64, because a kernel can compute it within a few float32 roundings, unless the approximate tanh is declared.
    Sums in float16 are rounded after every ``numerics.accumulate_terms`` terms, along D and then along the keys in
    ascending order, as on the tensor cores.

    In a float32 problem the sums cause the error, and are computed in float32 (:mod:`sdpalab.judge.rule.single`). The
    exceptions are Q, K, P and V rounded to TF32, or P rounded to 16 bits: these errors are a thousand times larger.

    Parameters
    ----------
    q, k, v, rows, **scoring
        As in :func:`sdpalab.inputs.reference.attention_float64`; the dtype of ``q`` is the problem's.
    numerics : Numerics
        Declared numerics, in one order (:func:`orders_of`).
    weights : iterable, optional
        Precomputed result of :func:`sdpalab.inputs.reference.weight_blocks` for these inputs after quantisation.
        Only arithmetic with float64 scores reads it.

    Returns
    -------
    ndarray of the dtype of ``q``, [B, H, Sq, D], or of the chosen rows only
        Rows that are not judged hold arbitrary finite numbers. A float16 accumulator may overflow to infinity.

    Raises
    ------
    UserError
        As :func:`check_numerics`.
    """
    check_numerics(numerics)
    dtype, half = q.dtype, numerics.accumulate == "float16"
    p_type = dtype if numerics.probabilities == "problem" else np.dtype(_TYPES[numerics.probabilities])
    p_scale = np.float32(numerics.probability_scale)
    group = q.shape[1] // k.shape[1]
    q, k, v = finite(q), finite(k), finite(v)
    tanh = approximate_tanh if numerics.tanh == "approx" else np.tanh
    tf32 = dtype == np.float32 and numerics.products == "tf32"
    weighed = weights is not None and not half and not tf32 and numerics.tanh != "approx"
    if numerics.quantised is not None:
        v = dequantised(v, numerics.quantised)
        q, k = (q, k) if weighed else (dequantised(q, numerics.quantised), dequantised(k, numerics.quantised))
    elif dtype == p_type == np.float32 and not half and not tf32:
        return single_output(q, k, v, rows=rows, before=numerics.normalise == "before", tanh=tanh, **scoring)
    if tf32:
        q, k, v = (to_bits(array.astype(np.float64), TF32_BITS) for array in (q, k, v))
    values = v.astype(np.float64)
    product = partial(_half_product, terms=numerics.accumulate_terms or MMA_TERMS) if half else np.matmul
    out = np.empty((*q.shape[:2], q.shape[2] if rows is None else len(rows), v.shape[3]), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if weights is None or not weighed:
            weights = weight_blocks(q, k, product=product, tanh=tanh, rows=rows, **scoring)
        for each in weights:
            b, h, block = each.place
            p = each.weights.astype(np.float32)
            summed_up = p.astype(np.float64).sum(axis=1, keepdims=True) + each.sink.astype(np.float32)
            total = weight_sums(summed_up).astype(np.float32)
            if numerics.normalise == "before":
                p, total = p / total, np.ones_like(total)
            rounded = p * p_scale
            wide = p_type.itemsize > 1  # NumPy converts small numbers to float16 thirty times as slowly
            rounded = (rounded_to_type(rounded, p_type) if wide else rounded.astype(p_type)).astype(np.float64)
            rounded = to_bits(rounded, TF32_BITS) if tf32 else rounded
            summed = product(rounded, values[b, h // group]).astype(np.float32)
            out[b, h, block] = (summed / (total * p_scale)).astype(dtype)
    return out


def _half_product(left: F64, right: F64, terms: int) -> F64:
    """``left @ right``, with the sum rounded to float16 after every ``terms`` terms."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float16)
    for start in range(0, left.shape[1], terms):
        added = slice(start, start + terms)
        total = (total + left[:, added] @ right[added]).astype(np.float16)
    return total.astype(np.float64)
