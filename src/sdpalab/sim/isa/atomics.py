"""Atomic read-modify-writes: atom and red (PTX ISA, "Parallel Synchronization and Communication Instructions").

Lanes that name one address are served in the order of the lanes, each seeing what the one before it left. Memory orders
and scopes change nothing where every instruction is complete before the next begins; with stale reads they do
(:mod:`sdpalab.sim.weak`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sdpalab.sim.isa.rounding import canonical_nans
from sdpalab.sim.selection import Array

__all__ = ["SHARED_REDUCTIONS", "UPDATES", "WITHOUT_RESULT"]

Update = Callable[..., Array]
"""New values from the old ones and the operands."""

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")


def _increment(old: Array, bound: Array) -> Array:
    up: Array = old + np.uint32(1)
    return np.where(old >= bound, np.uint32(0), up)


def _decrement(old: Array, bound: Array) -> Array:
    return np.where((old == 0) | (old > bound), bound, old - np.uint32(1))


def _compare_and_swap(old: Array, expected: Array, new: Array) -> Array:
    return np.where(old == expected, new, old)


def _add(old: Array, value: Array) -> Array:
    total: Array = old + value
    return total if total.dtype.kind in "iu" else canonical_nans(total)


UPDATES: dict[str, tuple[Update, tuple[str, ...]]] = {
    "add": (_add, ("u32", "s32", "u64", "f16", "f16x2", "bf16", "bf16x2", "f32", "f64")),
    "min": (np.minimum, ("u32", "s32", "u64", "s64")),
    "max": (np.maximum, ("u32", "s32", "u64", "s64")),
    "and": (np.bitwise_and, ("b32", "b64")),
    "or": (np.bitwise_or, ("b32", "b64")),
    "xor": (np.bitwise_xor, ("b32", "b64")),
    "inc": (_increment, ("u32",)),
    "dec": (_decrement, ("u32",)),
    "exch": (lambda old, new: new, ("b32", "b64")),
    "cas": (_compare_and_swap, ("b16", "b32", "b64")),
}
"""New values by operation, and the types that it has."""
WITHOUT_RESULT = ("add", "min", "max", "and", "or", "xor", "inc", "dec")

SHARED_REDUCTIONS = {
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("and", "or", "xor"), ("b32",)),
    "add": ("u32", "s32", "u64"),
}
"""The types that each operation has that an asynchronous reduction makes in shared memory (PTX ISA, "red.async")."""
