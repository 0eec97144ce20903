"""cvt between integers and floating-point types of every width (PTX ISA, "cvt")."""

from __future__ import annotations

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.engine.numeric import (
    canonical,
    copysign,
    flushed,
    magnitude,
    narrowed,
    round_to,
    round_to_integer,
    rounded_once,
    saturated,
    widened,
    without_negatives,
)
from warpsan.numerics.float_formats import FORMATS, ROUNDINGS, Format
from warpsan.ptx.forms import FP8_PAIRS
from warpsan.ptx.ir import Instruction
from warpsan.ptx.modifiers import Mods
from warpsan.ptx.types import TYPES, PtxType
from warpsan.semantics.floating import Compute, base_of, halved, is_half

__all__ = ["decoded8"]

_INTEGER_ROUNDINGS = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


@native("cvt")
def _cvt(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    name = ".".join(("cvt", *instruction.mods))
    if mods.flag("tf32"):
        _cvt_tf32(asm, instruction, mods, name)
        return
    if mods.flag("pack"):
        _cvt_pack(asm, instruction, mods, name)
        return
    if not FP8_PAIRS.isdisjoint(mods.left):
        _cvt_fp8(asm, instruction, mods, name)
        return
    target = mods.type()
    if target.lanes == 2:
        _cvt_packed(asm, instruction, mods, target, name)
        return
    source = mods.type()
    if source.lanes == 2 or "b" in (source.kind, target.kind) or "pred" in (source.kind, target.kind):
        raise mods.unsupported("not modelled between these types")
    compute = _conversion(mods, source, target)
    if target.is_float:
        inner, base = compute, base_of(target)
        compute = lambda x: canonical(inner(x), base)  # noqa: E731
    if len(instruction.operands) != 2:
        raise mods.unsupported("expected one source operand")
    destination, operand = instruction.operands
    asm.compute(name, compute, [(destination, target.name)], [(operand, source.name)])


def _cvt_pack(asm: Assembler, instruction: Instruction, mods: Mods, name: str) -> None:
    """``cvt.pack.sat.u8.s32.b32 d, a, b, c``: b lowest, then a, both saturated, then c."""
    mods.choice(("sat",))
    element = mods.choice(("u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16"))
    bits = int(element[1:])
    mods.choice(("s32",))
    if bits < 16:
        mods.choice(("b32",))
    mods.done()
    d, *operands = instruction.operands
    if len(operands) != (2 if bits == 16 else 3):
        raise mods.unsupported("wrong number of operands")
    low = -(1 << bits - 1) if element[0] == "s" else 0
    high, mask = low + (1 << bits) - 1, (1 << bits) - 1

    def clipped(x: Lanes) -> Lanes:
        return where(x < low, x.like(low), where(x > high, x.like(high), x)).as_type("u32") & mask

    def function(a: Lanes, b: Lanes, *c: Lanes) -> Lanes:
        packed = (clipped(a) << bits) | clipped(b)
        return packed | (c[0].as_type("u32") << 2 * bits) if c else packed

    asm.compute(name, function, [(d, "b32")], [(operand, "s32") for operand in operands])


def _conversion(mods: Mods, source: PtxType, target: PtxType) -> Compute:
    """A conversion from one scalar type to another, with every modifier taken."""
    if not source.is_float and not target.is_float:
        sat = mods.flag("sat")
        mods.done()
        return _saturated_integer(source, target) if sat else lambda x: x.to(target.name)
    if not target.is_float:
        rounding = _INTEGER_ROUNDINGS[mods.choice(_INTEGER_ROUNDINGS)]
        mods.flag("sat")  # these conversions always saturate
        return _flushed(mods, source, target, _to_integer(source, target, rounding))
    if not source.is_float:
        return _clamped(mods, source, target, _from_integer(mods, source, target, mods.choice(ROUNDINGS)))
    integral = mods.choice(_INTEGER_ROUNDINGS, default="")
    if integral:
        if source is not target:
            raise mods.unsupported(f".{integral} is for float-to-integer conversions and for equal types")
        rounding = _INTEGER_ROUNDINGS[integral]
        plain: Compute = lambda x: round_to_integer(x, rounding)  # noqa: E731
        return _clamped(mods, source, target, halved(plain, base_of(source)) if is_half(source) else plain)
    exact = source is target or target.bits > source.bits
    rounding = "rn" if exact else mods.choice(ROUNDINGS)
    return _clamped(mods, source, target, _between_floats(source, target, rounding))


def _clamped(mods: Mods, source: PtxType, target: PtxType, compute: Compute) -> Compute:
    """Apply ``.ftz``, ``.sat`` and ``.relu`` to a conversion to a floating-point type."""
    sat, relu = mods.flag("sat"), is_half(target) and mods.flag("relu")
    compute = _flushed(mods, source, target, compute)
    clamps: list[Compute] = [clamp for wanted, clamp in ((sat, saturated), (relu, without_negatives)) if wanted]
    if is_half(target):
        clamps = [halved(clamp, base_of(target)) for clamp in clamps]

    def run(*sources: Lanes) -> Lanes:
        result = compute(*sources)
        for clamp in clamps:
            result = clamp(result)
        return result

    return run


def _flushed(mods: Mods, source: PtxType, target: PtxType, compute: Compute) -> Compute:
    """Apply ``.ftz``, which affects f32 on either side, and check that no modifier is left."""
    ftz = mods.flag("ftz")
    mods.done()
    if not ftz:
        return compute
    if "f32" not in (source.name, target.name):
        raise mods.unsupported(".ftz is for conversions from or to f32")

    def run(*sources: Lanes) -> Lanes:
        result = compute(*(flushed(x, "f32") if source.name == "f32" else x for x in sources))
        return flushed(result, "f32") if target.name == "f32" else result

    return run


# ---- integers --------------------------------------------------------------------------------------------------------


def _range(type_: PtxType) -> tuple[int, int]:
    """Minimum and maximum of an integer type."""
    return (-(1 << type_.bits - 1), (1 << type_.bits - 1) - 1) if type_.signed else (0, (1 << type_.bits) - 1)


def _saturated_integer(source: PtxType, target: PtxType) -> Compute:
    (our_low, our_high), (their_low, their_high) = _range(source), _range(target)
    low, high = max(our_low, their_low), min(our_high, their_high)

    def run(x: Lanes) -> Lanes:
        x = where(x < low, x.like(low), x)
        return where(x > high, x.like(high), x).to(target.name)

    return run


def _as_f64(x: Lanes, type_: PtxType) -> Lanes:
    """A float as f64, exactly."""
    return (widened(x, base_of(type_)) if is_half(type_) else x).to("f64")


def _to_integer(source: PtxType, target: PtxType, rounding: str) -> Compute:
    """Float to integer: values out of range are clamped. NaN gives 0, but 1 << (bits - 1) if either side has 64
    bits."""
    low, high = _range(target)
    of_nan = 1 << target.bits - 1 if 64 in (source.bits, target.bits) else 0

    def run(x: Lanes) -> Lanes:
        whole = round_to_integer(_as_f64(x, source), rounding)
        below, above = whole < low, whole >= float(high + 1)
        inside = where(below | above | whole.nan, whole.like(0), whole)
        wide = inside.to(f"{target.kind}{max(target.bits, 32)}").to(target.name)
        result = where(below, wide.like(low), where(above, wide.like(high), wide))
        return where(whole.nan, wide.like(of_nan), result)

    return run


def _from_integer(mods: Mods, source: PtxType, target: PtxType, rounding: str) -> Compute:
    if target.name == "f64":
        if source.bits == 64 and rounding != "rn":
            raise mods.unsupported(f".{rounding} from 64-bit integers to f64 is not modelled")
        return lambda x: x.to("f64")
    if target.name == "f32" and rounding == "rn":
        return lambda x: x.to("f32")

    def run(x: Lanes) -> Lanes:
        if source.bits < 64:
            return rounded_once(x.to("f64"), base_of(target), rounding)
        negative = x < 0 if x.signed else (x != x)
        size = where(negative, -x, x).as_type("u64")
        rest = (1 << 11) - 1
        sticky = where((size & rest) != 0, size.like(1 << 11), 0)
        size = where(size >= 1 << 53, (size & ~rest) | sticky, size)
        wide = size.to("f64")
        return rounded_once(where(negative, -wide, wide), base_of(target), rounding)

    return run


# ---- floating point --------------------------------------------------------------------------------------------------


def _between_floats(source: PtxType, target: PtxType, rounding: str) -> Compute:
    base = base_of(target)
    if source is target:
        return lambda x: x
    if rounding == "rn" and source.name == "f32" and is_half(target):
        return lambda x: narrowed(x, base)
    if is_half(source) and target.name in ("f32", "f64"):
        return lambda x: widened(x, base_of(source)).to(target.name)
    if target.name == "f64" or (rounding == "rn" and target.name == "f32"):
        return lambda x: x.to(target.name)
    return lambda x: rounded_once(_as_f64(x, source), base, rounding)


def _cvt_packed(asm: Assembler, instruction: Instruction, mods: Mods, target: PtxType, name: str) -> None:
    """``cvt.rn.f16x2.f32 d, a, b``: a to the upper half of d, b to the lower."""
    source, element = mods.type(), TYPES[base_of(target)]
    if source.name != "f32" or len(instruction.operands) != 3:
        raise mods.unsupported("modelled from two f32")
    rounding = mods.choice(("rn", "rz"))
    convert = _clamped(mods, source, element, _between_floats(source, element, rounding))

    def function(upper: Lanes, lower: Lanes) -> Lanes:
        high, low = (canonical(convert(x), element.name).to("u32") for x in (upper, lower))
        return (high << 16) | low

    d, upper, lower = instruction.operands
    asm.compute(name, function, [(d, "b32")], [(upper, "f32"), (lower, "f32")])


def _cvt_tf32(asm: Assembler, instruction: Instruction, mods: Mods, name: str) -> None:
    """``cvt.rna.tf32.f32``: a float32 whose lower 13 bits are zero, in a .b32 register."""
    source = mods.type()
    rounding = mods.choice(("rna", "rn", "rz"))
    relu = rounding != "rna" and mods.flag("relu")
    mods.done()
    if source.name != "f32" or len(instruction.operands) != 2:
        raise mods.unsupported("modelled from f32")

    def function(x: Lanes) -> Lanes:
        result = round_to(x.to("f64"), FORMATS["tf32"], rounding).to("f32")
        return canonical(without_negatives(result) if relu else result, "f32")

    d, a = instruction.operands
    asm.compute(name, function, [(d, "f32")], [(a, "f32")])


# ---- eight bits ------------------------------------------------------------------------------------------------------

_FORMATS8 = {"e4m3x2": Format(4, -6, 448.0), "e5m2x2": Format(3, -14, 57344.0)}


def _encoded8(x: Lanes, name: str) -> Lanes:
    """f64 rounded to nearest even and saturated, as eight bits in a u32; NaN becomes 0x7F."""
    form = _FORMATS8[name]
    mantissa = form.precision - 1
    limit = x.like(form.greatest)
    clipped = where(magnitude(x) > form.greatest, copysign(limit, x), x)
    single = round_to(clipped, form, "rn").to("f32")
    bits = single.as_type("u32")
    size = bits & 0x7FFFFFFF
    normal = (size >> 23 - mantissa) - ((127 - (1 - form.least_exponent)) << mantissa)
    units = (magnitude(single) * 2.0 ** (mantissa - form.least_exponent)).to("u32")
    least = (127 + form.least_exponent) << 23
    code = where(size < least, units, normal) | ((bits >> 24) & 0x80)
    return where(x.nan, code.like(0x7F), code)


def decoded8(x: Lanes, name: str) -> Lanes:
    """Eight bits in a u32 as f32, exactly."""
    if name.startswith("e5m2"):
        return widened((x << 8).to("u16"), "f16")
    size = x & 0x7F
    scaled = (size << 20).as_type("f32") * 2.0**120
    bits = where(size == 0x7F, size.like(0x7FFFFFFF), scaled.as_type("u32"))
    return (bits | ((x & 0x80) << 24)).as_type("f32")


def _cvt_fp8(asm: Assembler, instruction: Instruction, mods: Mods, name: str) -> None:
    """``cvt`` with an 8-bit type on either side."""
    mods.choice(("rn",))
    relu, narrows = mods.flag("relu"), mods.flag("satfinite")
    if len(mods.left) != 2:
        raise mods.unsupported("expected two types")
    target, source = mods.left
    operands = instruction.operands

    def positive(code: Lanes, sign: int) -> Lanes:
        return where((code & sign) != 0, code.like(0), code) if relu else code

    if narrows and target in FP8_PAIRS and source == "f32" and len(operands) == 3:

        def from_f32(upper: Lanes, lower: Lanes) -> Lanes:
            high, low = (positive(_encoded8(x.to("f64"), target), 0x80) for x in (upper, lower))
            return ((high << 8) | low).to("b16")

        asm.compute(name, from_f32, [(operands[0], "b16")], [(operands[1], "f32"), (operands[2], "f32")])
    elif narrows and target in FP8_PAIRS and source == "f16x2" and len(operands) == 2:

        def from_f16(pair: Lanes) -> Lanes:
            low, high = (
                positive(_encoded8(widened((pair >> k).to("u16"), "f16").to("f64"), target), 0x80) for k in (0, 16)
            )
            return ((high << 8) | low).to("b16")

        asm.compute(name, from_f16, [(operands[0], "b16")], [(operands[1], "b32")])
    elif not narrows and target == "f16x2" and source in FP8_PAIRS and len(operands) == 2:

        def to_f16(pair: Lanes) -> Lanes:
            wide = pair.to("u32")
            codes = [narrowed(decoded8((wide >> k) & 0xFF, source), "f16").to("u32") for k in (0, 8)]
            low, high = (positive(code, 0x8000) for code in codes)
            return (high << 16) | low

        asm.compute(name, to_f16, [(operands[0], "b32")], [(operands[1], "b16")])
    else:
        raise mods.unsupported("modelled are .rn.satfinite from two f32 or an f16x2, and .rn from 8 bits to f16x2")
