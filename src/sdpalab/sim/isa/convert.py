"""cvt: between integers and floating-point types of every width (PTX ISA, "cvt")."""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.float_formats import FORMATS, ROUNDINGS
from sdpalab.sim.forms import FP8_PAIRS
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.floating import is_half
from sdpalab.sim.isa.fp8 import cvt_fp8
from sdpalab.sim.isa.half import pack_f16
from sdpalab.sim.isa.rounding import (
    Compute,
    canonical,
    clamping_negatives,
    elementwise,
    flush,
    round_to,
    round_to_integer,
    saturating,
)
from sdpalab.sim.isa.steps import computed
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.selection import Array
from sdpalab.sim.types import TYPES, PtxType

__all__: list[str] = []

_INTEGER_ROUNDINGS = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


@opcode("cvt")
def _cvt(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    if mods.flag("tf32"):
        return _cvt_tf32(decoder, instruction, mods)
    if mods.flag("pack"):
        return _cvt_pack(decoder, instruction, mods)
    if not FP8_PAIRS.isdisjoint(mods.left):
        return cvt_fp8(decoder, instruction, mods)
    target = mods.type()
    if target.lanes == 2:
        return _cvt_packed(decoder, instruction, mods, target)
    source = mods.type()
    if source.lanes == 2 or "b" in (source.kind, target.kind) or "pred" in (source.kind, target.kind):
        raise mods.unsupported("not modelled between these types")
    compute = _conversion(mods, source, target)
    if len(instruction.operands) != 2:
        raise mods.unsupported("expected one source operand")
    destination = decoder.dst(instruction, instruction.operands[0], target)
    if target.is_float:
        compute = canonical(compute)
    if destination.dtype != target.dtype:
        compute = _extended(compute, target)
    return elementwise(compute, destination, decoder.src(instruction, instruction.operands[1], source))


def _extended(compute: Compute, target: PtxType) -> Compute:
    """For a destination register wider than the type: the result, sign- or zero-extended."""

    def run(a: Array, out: Array) -> None:
        narrow = np.empty(a.shape, target.dtype)
        compute(a, narrow)
        np.copyto(out, narrow)

    return run


def _conversion(mods: Mods, source: PtxType, target: PtxType) -> Compute:
    """The compute from one scalar type to another, with every modifier taken."""
    if not source.is_float and not target.is_float:
        sat = mods.flag("sat")
        mods.done()
        return _saturated_integer(source, target) if sat else _copy
    if not target.is_float:
        rounding = _INTEGER_ROUNDINGS[mods.choice(_INTEGER_ROUNDINGS)]
        mods.flag("sat")  # these conversions always saturate
        compute = _to_integer(source, target, rounding)
        return _flushed(mods, source, target, compute)
    if not source.is_float:
        compute = _from_integer(mods, source, target, mods.choice(ROUNDINGS))
        return _clamped(mods, source, target, compute)
    integral = mods.choice(_INTEGER_ROUNDINGS, default="")
    if integral:
        if source is not target:
            raise mods.unsupported(f".{integral} is for float-to-integer conversions and for equal types")
        return _clamped(mods, source, target, _integral(_INTEGER_ROUNDINGS[integral]))
    exact = source is target or target.bits > source.bits
    rounding = "rn" if exact else mods.choice(ROUNDINGS)
    return _clamped(mods, source, target, _copy if exact else _narrowing(source, target, rounding))


def _clamped(mods: Mods, source: PtxType, target: PtxType, compute: Compute) -> Compute:
    """Apply ``.ftz``, ``.sat`` and ``.relu`` to a conversion to a floating-point type."""
    sat, relu = mods.flag("sat"), is_half(target) and mods.flag("relu")
    compute = _flushed(mods, source, target, compute)
    if sat:
        compute = saturating(compute)
    return clamping_negatives(compute) if relu else compute


def _flushed(mods: Mods, source: PtxType, target: PtxType, compute: Compute) -> Compute:
    """Apply ``.ftz``, which concerns float32 on either side, and check that no modifier is left."""
    ftz = mods.flag("ftz")
    mods.done()
    if not ftz:
        return compute
    if "f32" not in (source.name, target.name):
        raise mods.unsupported(".ftz is for conversions from or to f32")

    def run(a: Array, out: Array) -> None:
        compute(flush(a) if source.name == "f32" else a, out)
        if target.name == "f32":
            np.copyto(out, flush(out))

    return run


# ---- integers -------------------------------------------------------------------------------------------------------


def _copy(a: Array, out: Array) -> None:
    """NumPy's own conversion: exact between floats that widen, wrapping or extending between integers, else to nearest
    even."""
    np.copyto(out, a, casting="unsafe")


def _range(type_: PtxType) -> tuple[int, int]:
    """Least and greatest value of an integer type."""
    return (-(1 << type_.bits - 1), (1 << type_.bits - 1) - 1) if type_.signed else (0, (1 << type_.bits) - 1)


def _saturated_integer(source: PtxType, target: PtxType) -> Compute:
    (our_low, our_high), (their_low, their_high) = _range(source), _range(target)
    low, high = max(our_low, their_low), min(our_high, their_high)

    def compute(a: Array, out: Array) -> None:
        np.copyto(out, np.clip(a, low, high), casting="unsafe")

    return compute


def _to_integer(source: PtxType, target: PtxType, rounding: str) -> Compute:
    """Float to integer: out of range clamps. NaN gives 0, but 1 << (bits - 1) if either side has 64 bits (PTX ISA,
    "cvt")."""
    low, high = _range(target)
    of_nan = 1 << target.bits - 1 if 64 in (source.bits, target.bits) else 0
    of_nan = of_nan - (1 << target.bits) if of_nan > high else of_nan

    def compute(a: Array, out: Array) -> None:
        whole = round_to_integer(a.astype(np.float64), rounding)
        inside = (whole >= low) & (whole < float(high + 1))
        values = np.where(inside, whole, 0.0).astype(target.dtype)
        if not inside.all():
            values[whole < low] = low
            values[whole >= float(high + 1)] = high
            values[np.isnan(whole)] = of_nan
        np.copyto(out, values)

    return compute


def _from_integer(mods: Mods, source: PtxType, target: PtxType, rounding: str) -> Compute:
    """Integer to float. float64 holds integers of up to 53 bits; of longer ones it gets the upper bits and whether the
    rest is zero."""
    if target.name == "f64":
        if source.bits == 64 and rounding != "rn":
            raise mods.unsupported(f".{rounding} from 64-bit integers to f64 is not modelled")
        return _copy
    if target.name == "f32" and rounding == "rn":
        return _copy

    def compute(a: Array, out: Array) -> None:
        if source.bits == 64:
            negative = a < 0
            magnitude = np.where(negative, np.uint64(0) - a.view(np.uint64), a.view(np.uint64))
            rest = np.uint64((1 << 11) - 1)
            sticky = np.where(magnitude & rest != 0, np.uint64(1 << 11), np.uint64(0))
            long = magnitude >= np.uint64(1 << 53)
            exact = np.where(long, (magnitude & ~rest) | sticky, magnitude).astype(np.float64)
            wide = np.where(negative, -exact, exact)
        else:
            wide = a.astype(np.float64)
        np.copyto(out, round_to(wide, FORMATS[target.name], rounding), casting="unsafe")

    return compute


# ---- floating point -------------------------------------------------------------------------------------------------


def _integral(rounding: str) -> Compute:
    def compute(a: Array, out: Array) -> None:
        np.copyto(out, round_to_integer(a, rounding), casting="unsafe")

    return compute


def _narrowing(source: PtxType, target: PtxType, rounding: str) -> Compute:
    """Float to a float with fewer bits, or between f16 and bf16, rounded once."""
    if rounding == "rn" and (source.name == "f32" or target.name != "bf16"):
        return _copy

    def compute(a: Array, out: Array) -> None:
        np.copyto(out, round_to(a.astype(np.float64), FORMATS[target.name], rounding), casting="unsafe")

    return compute


def _cvt_packed(decoder: Decoder, instruction: Instruction, mods: Mods, target: PtxType) -> Step:
    """``cvt.rn.f16x2.f32 d, a, b``: a to the upper half of d, b to the lower."""
    source = mods.type()
    if source.name != "f32" or len(instruction.operands) != 3:
        raise mods.unsupported("modelled from two f32")
    element = TYPES[target.name.removesuffix("x2")]
    plain = instruction.mods == ("rn", "f16x2", "f32")
    convert = _clamped(mods, source, element, _narrowing(source, element, mods.choice(("rn", "rz"))))

    def general(upper: Array, lower: Array, out: Array) -> None:
        pair = np.empty((len(upper), 2), np.float32)
        pair[:, 0] = lower
        pair[:, 1] = upper
        convert(pair, out)

    operands = [decoder.src(instruction, operand, source) for operand in instruction.operands[1:]]
    compute = pack_f16(decoder) if plain else canonical(general)
    return elementwise(compute, decoder.dst(instruction, instruction.operands[0], target), *operands)


def _cvt_pack(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    """``cvt.pack.sat.u8.s32.b32 d, a, b, c`` (PTX ISA, "cvt.pack"): b lowest, then a, both saturated, then c."""
    mods.choice(("sat",))
    name = mods.choice(("u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16"))
    sign, bits = name[0], int(name[1:])
    mods.choice(("s32",))
    if bits < 16:
        mods.choice(("b32",))
    mods.done()
    if len(instruction.operands) != (3 if bits == 16 else 4):
        raise mods.unsupported("wrong number of operands")
    d, *operands = instruction.operands
    low = -(1 << bits - 1) if sign == "s" else 0
    high, mask = low + (1 << bits) - 1, (1 << bits) - 1

    def pack(a: Array, b: Array, *c: Array) -> Array:
        upper, lower = (np.clip(each, low, high).view(np.uint32) & np.uint32(mask) for each in (a, b))
        packed: Array = upper << np.uint32(bits) | lower
        return packed | c[0].view(np.uint32) << np.uint32(2 * bits) if c else packed

    sources = [decoder.src(instruction, operand, TYPES["s32"]) for operand in operands]
    return computed(pack, decoder.dst(instruction, d, TYPES["b32"]), *sources)


def _cvt_tf32(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    """``cvt.rna.tf32.f32``: a float32 whose lower 13 bits are zero, in a .b32 register."""
    source = mods.type()
    rounding = mods.choice(("rna", "rn", "rz"))
    relu = rounding != "rna" and mods.flag("relu")
    mods.done()
    if source.name != "f32" or len(instruction.operands) != 2:
        raise mods.unsupported("modelled from f32")

    def compute(a: Array, out: Array) -> None:
        np.copyto(out, round_to(a.astype(np.float64), FORMATS["tf32"], rounding), casting="same_kind")

    return elementwise(
        canonical(clamping_negatives(compute) if relu else compute),
        decoder.dst(instruction, instruction.operands[0], TYPES["f32"]),
        decoder.src(instruction, instruction.operands[1], source),
    )
