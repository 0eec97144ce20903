"""The arithmetic of a launch: how the sums of tensor-core instructions are made, or that it is the ring's.

``hardware`` sums as the tensor cores of the module's ``.target`` do (:mod:`warpsan.numerics.tensor_cores`). ``float32``
sums each 16 products of an instruction in float32, in ascending order of K, and then adds the accumulator; sums in f16
are rounded after each block of the hardware.
``ring`` replaces floating point by exact arithmetic on integers (:mod:`warpsan.numerics.ring`).
"""

from __future__ import annotations

from warpsan.errors import LaunchError
from warpsan.numerics.ring import RINGS

__all__ = ["DEFAULT_NUMERICS", "NUMERICS", "is_ring", "valid_numerics"]

NUMERICS = ("hardware", "float32")
"""The rules of floating point that a launch may name."""
DEFAULT_NUMERICS = "hardware"


def is_ring(name: str) -> bool:
    """Whether a launch computes in a ring: ``ring``, which chooses it by the code, or the name of one."""
    return name == "ring" or name in RINGS


def valid_numerics(name: str) -> None:
    """Check the name of a rule.

    Raises
    ------
    LaunchError
        If there is none of that name.
    """
    if name not in NUMERICS and not is_ring(name):
        raise LaunchError(f"numerics is one of {', '.join((*NUMERICS, 'ring', *RINGS))}, not {name!r}")
