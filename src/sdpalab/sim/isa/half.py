"""Half-precision arithmetic, single and packed: f16, bf16, f16x2, bf16x2 (PTX ISA, "Half Precision Floating Point
Instructions").

Values are widened to float32, computed there, and rounded back. For sums and products this is rounding once in effect,
because float32 has more than twice the significant bits of either format, plus two (Figueroa, 1995); a bf16 product
that float32 cannot hold, because it is subnormal, is too small to round to anything but zero. fma needs float64.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.isa.rounding import FORMATS, Compute, round_to, sum_to_odd
from sdpalab.sim.selection import Array

__all__ = ["HALF_FMA", "halved"]


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


HALF_FMA: dict[str, Compute] = {"f": _fma_f16, "bf": _fma_bf16}
"""``a * b + c`` rounded once, by the kind of the type."""
