"""Modifiers that memory instructions share (PTX ISA, "State Spaces", "Cache Operators", "Cache Eviction Priority").

Cache operators, eviction priorities, prefetch sizes and memory scopes change no value in a sequential simulation;
they are accepted by name, and anything else is refused.
"""

from __future__ import annotations

from sdpalab.sim.decode import Decoder, Mods
from sdpalab.sim.ir import Operand
from sdpalab.sim.types import TYPES

__all__ = ["take_cache_hint", "take_memory_mods", "take_space"]

_HINTS = (
    *("weak", "volatile", "relaxed", "acquire", "release", "cta", "cluster", "gpu", "sys"),
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"),
    *("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"),
    *("L2::64B", "L2::128B", "L2::256B", "L2::evict_last", "L2::evict_normal", "L2::evict_first"),
)


def take_memory_mods(mods: Mods) -> None:
    """Take the modifiers that change no value here."""
    for hint in _HINTS:
        mods.flag(hint)


def take_space(mods: Mods) -> str:
    """The state space of an access: global, shared, shared::cluster, local, const, param or generic."""
    if mods.flag("shared::cta"):
        return "shared"
    if mods.flag("shared::cluster"):
        return "shared::cluster"
    if mods.flag("param::entry") or mods.flag("param::func"):
        return "param"
    return mods.choice(("global", "shared", "local", "const", "param"), default="generic")


def take_cache_hint(decoder: Decoder, mods: Mods, operands: list[Operand]) -> None:
    """An L2 cache policy changes no value: take ``.L2::cache_hint`` and its operand, the last one, of 64 bits."""
    if mods.flag("L2::cache_hint"):
        decoder.src(mods.instruction, operands.pop(), TYPES["b64"])
