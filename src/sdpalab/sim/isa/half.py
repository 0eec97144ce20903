"""Half-precision arithmetic, single and packed: f16, bf16, f16x2, bf16x2 (PTX ISA, "Half Precision Floating Point
Instructions").

Values are widened to float32, computed there, and rounded back. For sums and products this is rounding once in effect,
because float32 has more than twice the significant bits of either format, plus two (Figueroa, 1995); a bf16 product
that float32 cannot hold, because it is subnormal, is too small to round to anything but zero. fma needs float64.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder
from sdpalab.sim.float_formats import FORMATS
from sdpalab.sim.isa.rounding import Compute, canonical_nans, round_to, scratch, sum_to_odd
from sdpalab.sim.selection import Array

__all__ = ["HALF_FMA", "halved", "pack_f16"]

_EXPONENT = np.uint32(0xFF << 23)
_LEAST_POWER = np.uint32(127 - 14 << 23)
_THIRTEEN_PLACES = np.uint32(13 << 23)
_OVERFLOW = np.float32(65520.0).view(np.uint32)
_BIAS = np.uint16((127 + 13 - 14 << 10) % (1 << 16))
"""What the exponent of such a sum exceeds f16's by, in f16's place."""


def halved(compute: Compute) -> Compute:
    """A float32 ``compute`` as one on f16 or bf16 arrays: its result is rounded to nearest even."""

    def run(*arrays: Array) -> None:
        *sources, out = arrays
        wide = np.empty(out.shape, np.float32)
        compute(*[source.astype(np.float32) for source in sources], wide)
        np.copyto(out, wide, casting="unsafe")

    return run


def _fma_f16(a: Array, b: Array, c: Array, out: Array) -> None:
    # The float64 sum can only be inexact where it is far from any halfway point of f16: a product has 22 bits and
    # reaches down to 2**-48, so a sum near a halfway point of c's binade, or of its own, has all its bits within 53.
    total = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    np.copyto(out, total, casting="same_kind")


def _fma_bf16(a: Array, b: Array, c: Array, out: Array) -> None:
    total = sum_to_odd(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
    np.copyto(out, round_to(total, FORMATS["bf16"], "rn"), casting="unsafe")


def pack_f16(decoder: Decoder) -> Compute:
    """``cvt.rn.f16x2.f32``: (upper, lower) to one 32-bit word each, quickly where all values are positive and in range.

    Added to 2**13 times its own power of two (or f16's least normal one), a float32 keeps as its last bits the f16
    significand, rounded by the addition itself; above them is the exponent.
    """
    lanes = decoder.machine.lanes
    spare, total = scratch(decoder, "spare").view(np.uint32), scratch(decoder, "total").view(np.uint32)

    def rounded(values: Array, bits: Array, power: Array, out: Array) -> None:
        np.bitwise_and(bits, _EXPONENT, power)
        np.maximum(power, _LEAST_POWER, out=power)
        np.add(power, _THIRTEEN_PLACES, power)
        np.add(values, power.view(np.float32), out.view(np.float32))
        np.right_shift(out, 13, power)
        np.add(out, power, out)

    def compute(upper: Array, lower: Array, out: Array) -> None:
        n = len(upper)
        upper_bits, lower_bits = upper.view(np.uint32), lower.view(np.uint32)
        # Negative numbers and NaN have patterns beyond the limit too.
        if np.maximum.reduce(upper_bits) >= _OVERFLOW or np.maximum.reduce(lower_bits) >= _OVERFLOW:
            np.copyto(out[:, 0], lower, casting="same_kind")
            np.copyto(out[:, 1], upper, casting="same_kind")
            canonical_nans(out)
            return
        power, low, high = spare[:n], total[:n], total[lanes : lanes + n]
        rounded(lower, lower_bits, power, low)
        rounded(upper, upper_bits, power, high)
        np.left_shift(high, 16, high)
        np.bitwise_and(low, 0xFFFF, low)
        np.bitwise_or(low, high, low)
        np.subtract(low.view(np.uint16), _BIAS, out.view(np.uint16).reshape(-1))

    return compute


HALF_FMA: dict[str, Compute] = {"f": _fma_f16, "bf": _fma_bf16}
"""``a * b + c`` rounded once, by the kind of the type."""
