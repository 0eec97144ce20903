"""The L2 cache policy that memory instructions share."""

from __future__ import annotations

from warpsan.ptx.ir import Operand
from warpsan.ptx.modifiers import Mods
from warpsan.ptx.types import TYPES
from warpsan.replay.decoder import Decoder

__all__ = ["take_cache_hint"]


def take_cache_hint(decoder: Decoder, mods: Mods, operands: list[Operand]) -> None:
    """An L2 cache policy changes no value: take ``.L2::cache_hint`` and its operand, the last one, of 64 bits."""
    if mods.flag("L2::cache_hint"):
        decoder.src(mods.instruction, operands.pop(), TYPES["b64"])
