"""Facts about moves."""

from __future__ import annotations

__all__ = ["CLOCKS"]

CLOCKS = {
    "%clock": (32, 0),
    "%clock_hi": (32, 32),
    "%clock64": (64, 0),
    "%globaltimer": (64, 0),
    "%globaltimer_lo": (32, 0),
    "%globaltimer_hi": (32, 32),
}
"""Bits of each clock, and how far they lie up in the counter."""
