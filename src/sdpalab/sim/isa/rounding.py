"""What the arithmetic families share: elementwise steps, flushing and saturation, and rounding once where NumPy would
round twice.

A *compute* is a function ``compute(*sources, out)`` on arrays of one length, as NumPy's ufuncs are; it reads all its
sources before it writes ``out``, because a destination register may also be a source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sdpalab.sim.decode import Decoder, Step
from sdpalab.sim.float_formats import Format
from sdpalab.sim.selection import Array, Indices, Selection
from sdpalab.sim.types import TYPES, unsigned

__all__ = [
    "Compute",
    "canonical",
    "canonical_nans",
    "clamping_negatives",
    "elementwise",
    "flush",
    "flushing",
    "round_to",
    "round_to_integer",
    "saturating",
    "scratch",
    "sum_to_odd",
]

Compute = Callable[..., object]

_EXPONENTS: dict[np.dtype[Any], Any] = {
    TYPES["f64"].dtype: np.uint64(0x7FF << 52),
    TYPES["f32"].dtype: np.uint32(0x7F800000),
    TYPES["f16"].dtype: np.uint16(0x7C00),
    TYPES["bf16"].dtype: np.uint16(0x7F80),
}
"""Where the exponent is in each type's bits."""

_CANONICAL_NANS: dict[np.dtype[Any], Any] = {
    TYPES["f64"].dtype: np.uint64(0xFFF80000 << 32),
    TYPES["f32"].dtype: np.uint32(0x7FFFFFFF),
    TYPES["f16"].dtype: np.uint16(0x7FFF),
    TYPES["bf16"].dtype: np.uint16(0x7FFF),
}
"""The NaN that arithmetic gives (CUDA's math_constants.h, cuda_fp16.h and cuda_bf16.h: CUDART_NAN and others)."""


def elementwise(compute: Compute, destination: Array, *sources: Array) -> Step:
    """A step that applies ``compute`` to the selected lanes of ``sources``, in place where the selection is a slice."""

    def scattered(sel: Indices) -> None:
        out = np.empty((len(sel), *destination.shape[1:]), destination.dtype)
        compute(*[_words(source)[sel].view(source.dtype).reshape(-1, *source.shape[1:]) for source in sources], out)
        _words(destination)[sel] = _words(out)

    # One closure for each arity: packing arguments would cost a tenth of the step of an addition.
    if len(sources) == 1:
        (only,) = sources

        def unary(sel: Selection) -> None:
            if isinstance(sel, slice):
                compute(only[sel], destination[sel])
            else:
                scattered(sel)

        return unary
    if len(sources) == 2:
        first, second = sources

        def binary(sel: Selection) -> None:
            if isinstance(sel, slice):
                compute(first[sel], second[sel], destination[sel])
            else:
                scattered(sel)

        return binary

    def general(sel: Selection) -> None:
        if isinstance(sel, slice):
            compute(*[source[sel] for source in sources], destination[sel])
        else:
            scattered(sel)

    return general


def _words(values: Array) -> Array:
    """Packed pairs as 32-bit words, which are much faster to index; anything else as it is."""
    return values.view(np.uint32)[:, 0] if values.ndim == 2 else values


def canonical_nans(values: Array) -> Array:
    """Make every NaN of a floating-point array the canonical one, in place.

    A host's NaN has the payload of an operand, and which one depends on how many lanes it computes at once.

    Returns
    -------
    ndarray
        ``values``.
    """
    bits = values.view(unsigned(8 * values.itemsize))
    if values.itemsize == 2:
        nan = bits & 0x7FFF > _EXPONENTS[values.dtype]
        any_nan = nan.any()
    else:
        least = np.minimum.reduce(values, axis=None)  # NaN if there is one
        any_nan = least != least
        nan = np.isnan(values) if any_nan else None
    if any_nan:
        bits[nan] = _CANONICAL_NANS[values.dtype]
    return values


def canonical(compute: Compute) -> Compute:
    """``compute`` with canonical NaNs as its results."""

    def run(*arrays: Array) -> None:
        compute(*arrays)
        canonical_nans(arrays[-1])

    return run


def scratch(decoder: Decoder, name: str) -> Array:
    """Working memory of one float64 a lane. All instructions share what they call by the same name, and it stays in the
    cache."""
    return decoder.hidden(f"scratch {name}", TYPES["f64"])


def flush(values: Array) -> Array:
    """Floating-point values with subnormals made zeros of their sign (``.ftz``); the same array if there are none."""
    bits = values.view(unsigned(8 * values.itemsize))
    exponents = bits & _EXPONENTS[values.dtype]
    if np.minimum.reduce(exponents, axis=None):
        return values
    subnormal = (exponents == 0) & (bits + bits != 0)
    if not subnormal.any():
        return values
    sign = bits.dtype.type(1 << 8 * bits.itemsize - 1)
    return np.where(subnormal, bits & sign, bits).view(values.dtype)


def flushing(compute: Compute) -> Compute:
    """``compute`` with its inputs and its result flushed to zero."""

    def run(*arrays: Array) -> None:
        *sources, out = arrays
        compute(*map(flush, sources), out)
        flushed = flush(out)
        if flushed is not out:
            np.copyto(out, flushed)

    return run


def saturating(compute: Compute) -> Compute:
    """``compute`` with its result clamped to [0, 1]; NaN and -0 become +0 (``.sat``)."""

    def run(*arrays: Array) -> None:
        compute(*arrays)
        out = arrays[-1]
        zero, one = out.dtype.type(0), out.dtype.type(1)
        np.copyto(out, np.where(out > zero, np.where(out < one, out, one), zero))

    return run


def clamping_negatives(compute: Compute) -> Compute:
    """``compute`` with negative results, and -0, made +0; NaN stays NaN (``.relu``)."""

    def run(*arrays: Array) -> None:
        compute(*arrays)
        out = arrays[-1]
        np.copyto(out, out.dtype.type(0), where=out <= out.dtype.type(0))

    return run


def sum_to_odd(a: Array, b: Array, *, downward: bool = False) -> Array:
    """``a + b`` of float64 arrays, rounded to odd, so that rounding it again to 51 or fewer bits is rounding once.

    The sum's error is found by Knuth's TwoSum; where it is not zero and the last bit of the sum is even, the sum's
    neighbour on the side of the exact value is taken (Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums", 2008). ``downward`` gives an exact zero the sign that it has under ``.rm``.
    """
    total = np.asarray(a + b)
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    bits = total.view(np.int64)
    towards = np.where((error > 0) == (total > 0), 1, -1)
    bits += np.where((np.abs(error) > 0) & (bits & 1 == 0), towards, 0)
    if downward:
        total[(total == 0) & (np.signbit(a) | np.signbit(b))] = -0.0
    return total


def round_to(values: Array, target: Format, rounding: str) -> Array:
    """float64 values rounded to the numbers of a narrower format, subnormals and overflow included; the result is
    float64 still.

    Parameters
    ----------
    values : ndarray of float64
    target : Format
    rounding : {"rn", "rz", "rm", "rp", "rna"}
        ``rna`` is to nearest, ties away from zero.
    """
    _, exponent = np.frexp(values)
    unit = np.ldexp(1.0, np.maximum(exponent - 1, target.least_exponent) - (target.precision - 1))
    result = np.asarray(round_to_integer(values / unit, rounding) * unit)
    over = (np.abs(result) > target.greatest) & np.isfinite(values)
    if over.any():
        stays = {"rz": over, "rm": over & (values > 0), "rp": over & (values < 0)}.get(rounding, np.zeros_like(over))
        result[over] = np.copysign(np.inf, values[over])
        result[stays] = np.copysign(target.greatest, values[stays])
    return result


def round_to_integer(values: Array, rounding: str) -> Array:
    """Floating-point values rounded to integral values of the same type."""
    if rounding == "rna":
        whole = np.trunc(values)
        return np.asarray(np.where(np.abs(values - whole) >= 0.5, whole + np.copysign(1.0, values), whole))
    functions: dict[str, Callable[[Array], Array]] = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}
    return functions[rounding](values)
