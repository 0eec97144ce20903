"""The arithmetic of a launch: how the sums of tensor-core instructions are made.

``hardware`` sums as the tensor cores of the module's ``.target`` do (:mod:`sdpalab.sim.tensor_cores`). ``float32`` sums
each 16 products of an instruction in float32, in ascending order of K, and then adds the accumulator; sums in f16 are
rounded after each block of the hardware.
"""

from __future__ import annotations

from sdpalab.sim.errors import LaunchError

__all__ = ["DEFAULT_NUMERICS", "NUMERICS", "valid_numerics"]

NUMERICS = ("hardware", "float32")
"""The rules that a launch may name."""
DEFAULT_NUMERICS = "hardware"


def valid_numerics(name: str) -> None:
    """Check the name of a rule.

    Raises
    ------
    LaunchError
        If there is none of that name.
    """
    if name not in NUMERICS:
        raise LaunchError(f"numerics is one of {', '.join(NUMERICS)}, not {name!r}")
