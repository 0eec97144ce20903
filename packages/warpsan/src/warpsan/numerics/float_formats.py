"""Floating-point formats and roundings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["FORMATS", "ROUNDINGS", "Format"]

ROUNDINGS = ("rn", "rz", "rm", "rp")
"""To nearest even, towards zero, towards minus infinity, towards plus infinity."""


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: significand bits (with the hidden one), least normal exponent, greatest finite
    value."""

    precision: int
    least_exponent: int
    greatest: float


FORMATS: dict[str, Format] = {
    "f16": Format(11, -14, 65504.0),
    "bf16": Format(8, -126, float(np.ldexp(2.0 - 2.0**-7, 127))),
    "tf32": Format(11, -126, float(np.ldexp(2.0 - 2.0**-10, 127))),
    "f32": Format(24, -126, float(np.ldexp(2.0 - 2.0**-23, 127))),
}
