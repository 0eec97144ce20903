"""Arithmetic of a launch: sums of tensor-core instructions, or a ring.

``hardware`` sums like the tensor cores of the module's ``.target`` (:mod:`warpsan.numerics.tensor_cores`). ``float32``
sums each 16 products of an instruction in float32, in ascending order of K, and then adds the accumulator; sums in f16
are rounded after each block of the hardware. ``ring`` replaces floating point by exact integer arithmetic
(:mod:`warpsan.numerics.ring`).
"""

from __future__ import annotations

from warpsan.errors import LaunchError
from warpsan.numerics.ring import RINGS

__all__ = ["DEFAULT_NUMERICS", "NUMERICS", "is_ring", "valid_numerics"]

NUMERICS = ("hardware", "float32")
"""Valid names of floating-point rules."""
DEFAULT_NUMERICS = "hardware"


def is_ring(name: str) -> bool:
    """Whether a name selects a ring: ``ring``, which selects it by the code, or the name of one."""
    return name == "ring" or name in RINGS


def valid_numerics(name: str) -> None:
    """Check the name of a rule.

    Raises
    ------
    LaunchError
        If the name is unknown.
    """
    if name not in NUMERICS and not is_ring(name):
        raise LaunchError(f"numerics is one of {', '.join((*NUMERICS, 'ring', *RINGS))}, not {name!r}")
