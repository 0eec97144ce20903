"""cvt between the 8-bit floating-point formats and f32 or f16 (PTX ISA, "cvt" and "Alternate Floating-Point Data
Formats").

e4m3 has no infinity and one NaN for each sign; e5m2 is IEEE-like. Two elements are packed in a .b16 register, the first
operand's in the upper byte. Conversions to these formats are to nearest even and saturate (``.satfinite``); NaN becomes
0x7F, without its sign.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sdpalab.sim.decode import Decoder, Step
from sdpalab.sim.float_formats import Format
from sdpalab.sim.forms import FP8_PAIRS
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.rounding import round_to
from sdpalab.sim.isa.steps import computed
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.selection import Array
from sdpalab.sim.types import TYPES

__all__ = ["cvt_fp8"]

_TYPES = {"e4m3x2": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2x2": np.dtype(ml_dtypes.float8_e5m2)}
_FORMATS = {"e4m3x2": Format(4, -6, 448.0), "e5m2x2": Format(3, -14, 57344.0)}
_NAN8, _NAN16 = np.uint8(0x7F), np.uint16(0x7FFF)

"""Type suffixes of packed 8-bit floats."""


def _encode(values: Array, name: str) -> Array:
    """Patterns of float64 values, rounded to nearest even and saturated: uint8."""
    form = _FORMATS[name]
    with np.errstate(invalid="ignore"):
        rounded = round_to(np.clip(values, -form.greatest, form.greatest), form, "rn")
    patterns: Array = np.where(np.isnan(values), _NAN8, rounded.astype(np.float32).astype(_TYPES[name]).view(np.uint8))
    return patterns


_OF_F16 = {
    name: _encode(np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64), name) for name in _TYPES
}
"""The 8-bit pattern of every f16 pattern."""


def _to_f16(name: str) -> Array:
    """The f16 pattern of every 8-bit pattern: exact, as f16 has all these numbers."""
    values = np.arange(256, dtype=np.uint8).view(_TYPES[name]).astype(np.float16)
    patterns: Array = np.where(np.isnan(values), _NAN16, values.view(np.uint16))
    return patterns


_TO_F16 = {name: _to_f16(name) for name in _TYPES}


def cvt_fp8(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    """``cvt`` with an 8-bit type on either side.

    Raises
    ------
    UnsupportedInstruction
        If the other type is not f32 (two operands, to 8 bits only) or f16x2, or a required modifier is missing.
    """
    mods.choice(("rn",))
    relu = mods.flag("relu")
    narrows = mods.flag("satfinite")
    if len(mods.left) != 2:
        raise mods.unsupported("expected two types")
    target, source = mods.left
    if narrows and target in FP8_PAIRS and source == "f32" and len(instruction.operands) == 3:
        return _from_f32(decoder, instruction, target, relu)
    if len(instruction.operands) == 2:
        if narrows and target in FP8_PAIRS and source == "f16x2":
            return _by_table(decoder, instruction, _OF_F16[target], relu, ("b16", "b32"))
        if not narrows and target == "f16x2" and source in FP8_PAIRS:
            return _by_table(decoder, instruction, _TO_F16[source], relu, ("b32", "b16"))
    raise mods.unsupported("modelled are .rn.satfinite from two f32 or an f16x2, and .rn from 8 bits to f16x2")


def _without_negatives(patterns: Array) -> Array:
    """``.relu``: patterns with the sign bit set become zero. NaN has none here."""
    return np.where(patterns >> (8 * patterns.itemsize - 1) != 0, patterns.dtype.type(0), patterns)


def _from_f32(decoder: Decoder, instruction: Instruction, target: str, relu: bool) -> Step:
    d, upper, lower = instruction.operands

    def compute(high: Array, low: Array) -> Array:
        pair = np.empty((max(len(high), len(low)), 2), np.float64)
        pair[:, 0], pair[:, 1] = low, high
        patterns = _encode(pair, target)
        return (_without_negatives(patterns) if relu else patterns).view(np.uint16)[:, 0]

    sources = [decoder.src(instruction, operand, TYPES["f32"]) for operand in (upper, lower)]
    return computed(compute, decoder.dst(instruction, d, TYPES["b16"]), *sources)


def _by_table(decoder: Decoder, instruction: Instruction, table: Array, relu: bool, types: tuple[str, str]) -> Step:
    """Both elements of a packed register through a table of all patterns."""
    target, source = (TYPES[name] for name in types)
    element = np.dtype(f"u{source.bytes // 2}")
    table = _without_negatives(table) if relu else table

    def compute(packed: Array) -> Array:
        halves = np.ascontiguousarray(packed).view(element)
        return table.take(halves).view(target.dtype)

    d, a = instruction.operands
    return computed(compute, decoder.dst(instruction, d, target), decoder.src(instruction, a, source))
