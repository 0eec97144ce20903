"""Addresses of the variables of a launch."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Symbols"]


@dataclass(frozen=True)
class Symbols:
    """Addresses of an entry's variables by name, as (space, address); and the resulting sizes.

    ``frames`` has, for each call cycle, the bytes of its local variables and the number of copies.
    """

    addresses: dict[str, tuple[str, int]]
    shared_bytes: int
    local_bytes: int
    frames: dict[frozenset[str], tuple[int, int]] = field(default_factory=dict)
