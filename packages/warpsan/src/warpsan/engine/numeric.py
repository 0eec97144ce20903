"""Numbers on :class:`~warpsan.engine.lanes.Lanes`: single rounding, halves, flushing, saturation, canonical NaNs.

Conversions of halves are integer operations if a processor has no instruction for them, because LLVM's substitute is a
call.
"""

from __future__ import annotations

from warpsan.engine.lanes import Lanes, where
from warpsan.numerics.float_formats import FORMATS, Format

__all__ = [
    "canonical",
    "copysign",
    "flushed",
    "magnitude",
    "narrowed",
    "round_to",
    "round_to_integer",
    "rounded_once",
    "saturated",
    "sum_to_odd",
    "widened",
    "without_negatives",
]

_NAN = {"f32": 0x7FFFFFFF, "f64": 0xFFF80000 << 32, "f16": 0x7FFF, "bf16": 0x7FFF}
_EXPONENT = {"f32": 0x7F800000, "f64": 0x7FF << 52, "f16": 0x7C00, "bf16": 0x7F80}
_SIGN = {"f32": 1 << 31, "f64": 1 << 63, "f16": 1 << 15, "bf16": 1 << 15}


def _raw(x: Lanes) -> Lanes:
    """The bits of a float."""
    return x.as_type("u64" if x.type == "f64" else "u32")


def canonical(x: Lanes, type_: str) -> Lanes:
    """The bits, with every NaN canonical; ``type_`` is f32, f64, f16 or bf16 (halves are bits).

    LLVM may replace any NaN by another in a float, but not in bits.
    """
    if x.floating:
        return where(x.nan, _raw(x).like(_NAN[type_]), _raw(x))
    return where((x & (_SIGN[type_] - 1)) > _EXPONENT[type_], x.like(_NAN[type_]), x)


def magnitude(x: Lanes) -> Lanes:
    """The absolute value of an f32 or f64."""
    return (_raw(x) & (_SIGN[x.type] - 1)).as_type(x.type)


def copysign(x: Lanes, sign: Lanes) -> Lanes:
    """An f32 or f64 with the sign of another."""
    bits = _SIGN[x.type]
    return ((_raw(x) & (bits - 1)) | (_raw(sign) & bits)).as_type(x.type)


def flushed(x: Lanes, type_: str) -> Lanes:
    """Subnormals made zeros of their sign (``.ftz``)."""
    bits = _raw(x) if x.floating else x
    result = where((bits & _EXPONENT[type_]) == 0, bits & _SIGN[type_], bits)
    return result.as_type(x.type)


def saturated(x: Lanes) -> Lanes:
    """An f32 or f64 clamped to [0, 1]; NaN and -0 become +0 (``.sat``)."""
    return where(x > 0, where(x < 1, x, 1), 0)


def without_negatives(x: Lanes) -> Lanes:
    """An f32 or f64 with negative values and -0 made +0; NaN stays (``.relu``)."""
    return where(x <= 0, x.like(0), x)


# ---- halves ----------------------------------------------------------------------------------------------------------


def has_halves(x: Lanes) -> bool:
    """Whether the processor converts f16 to f32 itself (according to the compiler); its results equal the
    substitute's."""
    return bool(getattr(x.builder.module, "has_halves", False))


def widened(x: Lanes, type_: str) -> Lanes:
    """f16 or bf16 bits as f32, exactly."""
    wide = x.to("u32")
    if type_ == "bf16":
        return (wide << 16).as_type("f32")
    if has_halves(x):
        return x.half_to_float()
    # The exponent is 112 too small for f32; a product with 2**112 also corrects subnormals.
    scaled = ((wide & 0x7FFF) << 13).as_type("f32") * 2.0**112
    special = where((wide & 0x7C00) == 0x7C00, _raw(scaled) | 0x7F800000, _raw(scaled))
    return (special | ((wide & 0x8000) << 16)).as_type("f32")


def narrowed(x: Lanes, type_: str) -> Lanes:
    """f32 rounded to nearest even, as bits of f16 or bf16, with canonical NaN."""
    bits = _raw(x)
    if type_ == "bf16":
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return where(x.nan, bits.like(0x7FFF), rounded).to("u16")
    size, sign = bits & 0x7FFFFFFF, (bits >> 16) & 0x8000
    # From 2**-14 on, round the last 13 bits and rebias; below, an addition to 0.5 rounds at f16's subnormal unit.
    normal = (size + (0xFFF - (112 << 23)) + ((size >> 13) & 1)) >> 13
    small = _raw(size.as_type("f32") + 0.5) - 0x3F000000
    result = where(size < 113 << 23, small, normal)
    result = where(size >= 0x477FF000, result.like(0x7C00), result) | sign  # 65520 and more are infinite
    return where(x.nan, result.like(0x7FFF), result).to("u16")


# ---- rounding --------------------------------------------------------------------------------------------------------


def sum_to_odd(a: Lanes, b: Lanes, *, downward: bool = False) -> Lanes:
    """``a + b`` of f64, rounded to odd: rounding it again to 51 or fewer bits equals a single rounding.

    Knuth's TwoSum gives the sum's error; if it is not zero and the last bit of the sum is even, the result is the sum's
    neighbour towards the exact value (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    ``downward`` gives an exact zero its sign under ``.rm``.
    """
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    bits = total.as_type("u64")
    inexact = (magnitude(error) > 0) & ((bits & 1) == 0)
    up = ((error > 0) ^ (total > 0)) ^ -1
    result = where(inexact, where(up, bits + 1, bits - 1), bits).as_type("f64")
    if downward:
        negative = ((a.as_type("u64") | b.as_type("u64")) >> 63) == 1
        result = where((result == 0) & negative, result.like(-0.0), result)
    return result


def round_to_integer(x: Lanes, rounding: str) -> Lanes:
    """f32 or f64 rounded to integral values."""
    if rounding == "rna":
        whole = x.call("trunc")
        return where(magnitude(x - whole) >= 0.5, whole + copysign(x.like(1), x), whole)
    return x.call({"rn": "rint", "rz": "trunc", "rm": "floor", "rp": "ceil"}[rounding])


def round_to(x: Lanes, target: Format, rounding: str) -> Lanes:
    """f64 rounded to the numbers of a narrower format, subnormals and overflow included, still as f64. ``rna`` is to
    nearest, ties away from zero."""
    least = target.least_exponent + 1023
    exponent = (x.as_type("u64") >> 52) & 0x7FF
    exponent = where(exponent < least, exponent.like(least), exponent)
    shift = target.precision - 1
    unit = ((exponent - shift) << 52).as_type("f64")
    inverse = ((exponent.like(2046 + shift) - exponent) << 52).as_type("f64")
    result = round_to_integer(x * inverse, rounding) * unit  # scaling by a power of two is exact
    over = magnitude(result) > target.greatest
    if rounding == "rz":
        limit = x.like(target.greatest)
    elif rounding == "rm":
        limit = where(x > 0, x.like(target.greatest), float("inf"))
    elif rounding == "rp":
        limit = where(x < 0, x.like(target.greatest), float("inf"))
    else:
        limit = x.like(float("inf"))
    result = where(over, copysign(limit, x), result)
    finite = magnitude(x) < float("inf")
    return where(finite, result, x)


def rounded_once(x: Lanes, type_: str, rounding: str) -> Lanes:
    """f64 as f32, or as bits of f16 or bf16, rounded once."""
    exact = round_to(x, FORMATS[type_], rounding).to("f32")
    return exact if type_ == "f32" else narrowed(exact, type_)
