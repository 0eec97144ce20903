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
from warpsan.numerics.float_formats import FORMATS, Format
from warpsan.ptx.arithmetic import WHOLE
from warpsan.ptx.forms import FP8_PAIRS
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction
from warpsan.ptx.types import TYPES, PtxType
from warpsan.semantics.floating import Compute, base_of, halved, is_half

__all__ = ["decoded8"]


@native("cvt", "cvt.pack")
def _cvt(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    kinds, names = FP8_PAIRS & form.flags, [each.name for each in form.types]
    many = len(instruction.operands) - 1
    if form.name == "cvt.pack":
        function, types = _packed(names[0] if names else form.modes[0]), ["b32", *["s32"] * many]
    elif kinds:
        function, types = _eight_bits(next(iter(kinds)), names[0], form)
    elif "tf32" in form.flags:
        function, types = _to_tf32(form), ["f32", "f32"]
    elif form.type.lanes == 2:
        function, types = _paired(form), ["b32", "f32", "f32"]
    else:
        function, types = _conversion(form), names
    asm.elementwise(instruction, instruction.text, function, *types)


def _packed(element: str) -> Compute:
    """``cvt.pack.sat.u8.s32.b32 d, a, b, c``: b lowest, then a, both saturated, then c."""
    bits = int(element[1:])
    low = -(1 << bits - 1) if element[0] == "s" else 0
    high, mask = low + (1 << bits) - 1, (1 << bits) - 1

    def clipped(x: Lanes) -> Lanes:
        return where(x < low, x.like(low), where(x > high, x.like(high), x)).as_type("u32") & mask

    def function(a: Lanes, b: Lanes, *c: Lanes) -> Lanes:
        packed = (clipped(a) << bits) | clipped(b)
        return packed | (c[0].as_type("u32") << 2 * bits) if c else packed

    return function


def _conversion(form: Computation) -> Compute:
    """A conversion from one scalar type to another."""
    (target, source), (rounding,) = form.types, form.modes
    if not source.is_float and not target.is_float:
        return _saturated_integer(source, target) if "sat" in form.flags else lambda x: x.to(target.name)
    whole = WHOLE.get(rounding, "")
    if not target.is_float:  # these conversions always saturate
        return _flushing(source, target, _to_integer(source, target, whole), form)
    if not source.is_float:
        compute = _from_integer(source, target, rounding)
    elif whole:
        plain: Compute = lambda x: round_to_integer(x, whole)  # noqa: E731
        compute = halved(plain, base_of(source)) if is_half(source) else plain
    else:
        compute = _between_floats(source, target, rounding or "rn")
    finish, base = _clamped(source, target, compute, form), base_of(target)
    return lambda x: canonical(finish(x), base)


def _clamped(source: PtxType, target: PtxType, compute: Compute, form: Computation) -> Compute:
    """Apply ``.ftz``, ``.sat`` and ``.relu`` to a conversion to a floating-point type."""
    compute = _flushing(source, target, compute, form)
    flags = (("sat", saturated), ("relu", without_negatives))
    clamps: list[Compute] = [clamp for flag, clamp in flags if flag in form.flags]
    if is_half(target):
        clamps = [halved(clamp, base_of(target)) for clamp in clamps]

    def run(*sources: Lanes) -> Lanes:
        result = compute(*sources)
        for clamp in clamps:
            result = clamp(result)
        return result

    return run


def _flushing(source: PtxType, target: PtxType, compute: Compute, form: Computation) -> Compute:
    """Apply ``.ftz``, which affects f32 on either side."""
    if "ftz" not in form.flags:
        return compute

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


def _from_integer(source: PtxType, target: PtxType, rounding: str) -> Compute:
    if target.name == "f64":
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


def _paired(form: Computation) -> Compute:
    """``cvt.rn.f16x2.f32 d, a, b``: a to the upper half of d, b to the lower."""
    source, element = form.types[1], TYPES[base_of(form.type)]
    convert = _clamped(source, element, _between_floats(source, element, form.modes[0]), form)

    def function(upper: Lanes, lower: Lanes) -> Lanes:
        high, low = (canonical(convert(x), element.name).to("u32") for x in (upper, lower))
        return (high << 16) | low

    return function


def _to_tf32(form: Computation) -> Compute:
    """``cvt.rna.tf32.f32``: a float32 whose lower 13 bits are zero, in a .b32 register."""

    rounding = form.modes[0] if form.modes else "rna"

    def function(x: Lanes) -> Lanes:
        result = round_to(x.to("f64"), FORMATS["tf32"], rounding).to("f32")
        return canonical(without_negatives(result) if "relu" in form.flags else result, "f32")

    return function


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


def _eight_bits(name: str, other: str, form: Computation) -> tuple[Compute, list[str]]:
    """``cvt`` with an 8-bit type on either side: the function, and the types of the target and the sources."""

    def positive(code: Lanes, sign: int) -> Lanes:
        return where((code & sign) != 0, code.like(0), code) if "relu" in form.flags else code

    def encoded(high: Lanes, low: Lanes) -> Lanes:
        high, low = (positive(_encoded8(x.to("f64"), name), 0x80) for x in (high, low))
        return ((high << 8) | low).to("b16")

    def from_f16(pair: Lanes) -> Lanes:
        return encoded(*(widened((pair >> k).to("u16"), "f16") for k in (16, 0)))

    def to_f16(pair: Lanes) -> Lanes:
        wide = pair.to("u32")
        codes = [narrowed(decoded8((wide >> k) & 0xFF, name), "f16").to("u32") for k in (0, 8)]
        low, high = (positive(code, 0x8000) for code in codes)
        return (high << 16) | low

    if other == "f32":
        return encoded, ["b16", "f32", "f32"]
    return (from_f16, ["b16", "b32"]) if "satfinite" in form.flags else (to_f16, ["b32", "b16"])
