"""The arithmetic of a launch: by which rule the tensor cores' sums are made.

``float32`` sums each 16 products of an instruction in float32 in ascending order of K, and then adds the accumulator.
"""

from __future__ import annotations

from sdpalab.sim.errors import LaunchError

__all__ = ["DEFAULT_NUMERICS", "NUMERICS", "valid_numerics"]

NUMERICS = ("float32",)
"""The rules that a launch may name."""
DEFAULT_NUMERICS = "float32"


def valid_numerics(name: str) -> None:
    """Check the name of a rule.

    Raises
    ------
    LaunchError
        If there is none of that name.
    """
    if name not in NUMERICS:
        raise LaunchError(f"numerics is one of {', '.join(NUMERICS)}, not {name!r}")
