"""Floating-point arithmetic in every type (PTX ISA, "Floating Point Instructions", "Half Precision ...").

Results are rounded once, as the instruction requires. A NaN result is the canonical one (0x7fffffff in f32). Halves are
computed in f32 and rounded. For sums and products, this equals a single rounding, because f32 has more than twice the
significant bits of either format, plus two (Figueroa, 1995); a bf16 product that is subnormal in f32 is so small that
it rounds to zero. fma needs f64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.engine.numeric import (
    canonical,
    copysign,
    flushed,
    magnitude,
    narrowed,
    round_to,
    rounded_once,
    saturated,
    sum_to_odd,
    widened,
    without_negatives,
)
from warpsan.numerics.float_formats import FORMATS, ROUNDINGS
from warpsan.ptx.ir import Instruction
from warpsan.ptx.modifiers import Mods
from warpsan.ptx.types import PtxType
from warpsan.semantics.mufu import quotient

__all__ = ["Compute", "base_of", "clamped", "float_arithmetic", "halved", "is_half"]

Compute = Callable[..., Lanes]


def is_half(type_: PtxType) -> bool:
    """True for f16 and bf16, single or packed."""
    return type_.is_float and type_.dtype.itemsize == 2


def base_of(type_: PtxType) -> str:
    """The type of an element."""
    return type_.name.removesuffix("x2")


def halved(compute: Compute, base: str) -> Compute:
    """An f32 ``compute`` as one on bits of halves."""
    return lambda *sources: narrowed(compute(*(widened(source, base) for source in sources)), base)


def clamped(compute: Compute, type_: PtxType, *, ftz: bool = False, sat: bool = False, relu: bool = False) -> Compute:
    """``compute`` under ``.ftz``, ``.sat`` and ``.relu``, with canonical NaNs."""
    base = base_of(type_)

    def run(*sources: Lanes) -> Lanes:
        result = compute(*(flushed(source, base) for source in sources) if ftz else sources)
        result = flushed(result, base) if ftz else result
        for wanted, clamp in ((sat, saturated), (relu, without_negatives)):
            if wanted:
                result = (halved(clamp, base) if is_half(type_) else clamp)(result)
        return canonical(result, base)

    return run


def _directed(operation: str, rounding: str) -> Compute:
    """An f32 operation with a directed rounding, in f64: products are exact, sums are rounded to odd, and a quotient
    of 24-bit numbers is never so close to another 24-bit number that rounding to f64 reaches it."""
    downward = rounding == "rm"
    exact: dict[str, Compute] = {
        "add": lambda a, b: sum_to_odd(a, b, downward=downward),
        "sub": lambda a, b: sum_to_odd(a, -b, downward=downward),
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "fma": lambda a, b, c: sum_to_odd(a * b, c, downward=downward),
    }
    compute = exact[operation]
    return lambda *sources: round_to(compute(*(s.to("f64") for s in sources)), FORMATS["f32"], rounding).to("f32")


_NEAREST: dict[str, Compute] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a.call("fma", b, c),
}


def _fma_f16(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The f64 sum is inexact only far from f16's halfway points: a product has 22 bits and reaches down to 2**-48,
    so a sum near a halfway point of c's binade, or of its own, has all its bits within 53."""
    x, y, z = (widened(each, "f16").to("f64") for each in (a, b, c))
    return rounded_once(x * y + z, "f16", "rn")


def _fma_bf16(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    x, y, z = (widened(each, "bf16").to("f64") for each in (a, b, c))
    return rounded_once(sum_to_odd(x * y, z), "bf16", "rn")


def _rounded(mods: Mods, operation: str, rounding: str, type_: PtxType) -> Compute:
    if rounding != "rn":
        if type_.name != "f32":
            raise mods.unsupported(f".{rounding} is modelled for f32 only")
        return _directed(operation, rounding)
    if is_half(type_):
        if operation == "fma":
            return {"f16": _fma_f16, "bf16": _fma_bf16}[base_of(type_)]
        return halved(_NEAREST[operation], base_of(type_))
    return _NEAREST[operation]


def _arithmetic(asm: Assembler, instruction: Instruction, mods: Mods, type_: PtxType, operation: str) -> None:
    approximate = ""
    if operation == "div":
        if is_half(type_):
            raise mods.unsupported("there is no division of halves")
        approximate = mods.choice(("approx", "full"), default="") if type_.name == "f32" else ""
    rounding = "rn" if approximate else mods.choice(ROUNDINGS, default="rn")
    divide = partial(quotient, full=approximate == "full")
    compute: Compute = divide if approximate else _rounded(mods, operation, rounding, type_)
    ftz, sat = mods.flag("ftz"), mods.flag("sat")
    relu = operation == "fma" and is_half(type_) and mods.flag("relu")
    mods.done()
    if type_.name == "f64" and (ftz or sat):
        raise mods.unsupported("float64 has neither .ftz nor .sat")
    name = f"{operation}{approximate}.{rounding}{'.ftz' * ftz}{'.sat' * sat}{'.relu' * relu}.{type_.name}"
    _apply(asm, instruction, name, clamped(compute, type_, ftz=ftz, sat=sat, relu=relu), type_)


def _apply(asm: Assembler, instruction: Instruction, name: str, compute: Compute, type_: PtxType) -> None:
    arity = {"fma": 3, "abs": 1, "neg": 1}.get(name.split(".")[0], 2)
    target, *sources = Mods(instruction).operands(arity)
    asm.compute(name, compute, [(target, type_.name)], [(source, type_.name) for source in sources])


def _extremum(operation: str, propagate: bool) -> Compute:
    """min or max of f32 or f64, with -0 < +0; a number is preferred to a NaN unless NaN propagates."""

    def compute(a: Lanes, b: Lanes) -> Lanes:
        wide = "u64" if a.type == "f64" else "u32"
        x, y = a.as_type(wide), b.as_type(wide)
        larger = operation == "max"
        chosen = where(a > b if larger else a < b, a, b)
        zeros = (x | y) == 1 << a.bits - 1
        chosen = where(zeros, (x & y if larger else x | y).as_type(a.type), chosen)
        if propagate:
            return where(a.nan, a, where(b.nan, b, chosen))
        return where(a.nan, b, where(b.nan, a, chosen))

    return compute


def _xor_signs(compute: Compute) -> Compute:
    def run(a: Lanes, b: Lanes) -> Lanes:
        result, wide = compute(magnitude(a), magnitude(b)), "u64" if a.type == "f64" else "u32"
        sign = (a.as_type(wide) ^ b.as_type(wide)).as_type(a.type)
        return where(result.nan, result, copysign(result, sign))

    return run


def _minmax(asm: Assembler, instruction: Instruction, mods: Mods, type_: PtxType) -> None:
    operation, propagate = instruction.opcode, mods.flag("NaN")
    compute = _extremum(operation, propagate)
    signs = mods.flag("xorsign")
    if signs:
        if not mods.flag("abs"):
            raise mods.unsupported(".xorsign goes with .abs")
        compute = _xor_signs(compute)
    name = f"{operation}{'.NaN' * propagate}{'.xorsign' * signs}"
    _unrounded(asm, instruction, mods, type_, name, compute)


def _unrounded(
    asm: Assembler, instruction: Instruction, mods: Mods, type_: PtxType, name: str, compute: Compute
) -> None:
    """An operation without rounding, in any type, under ``.ftz``."""
    ftz = mods.flag("ftz")
    mods.done()
    if ftz and type_.name == "f64":
        raise mods.unsupported("float64 has no .ftz")
    if is_half(type_):
        compute = halved(compute, base_of(type_))
    _apply(asm, instruction, f"{name}{'.ftz' * ftz}.{type_.name}", clamped(compute, type_, ftz=ftz), type_)


def float_arithmetic(asm: Assembler, instruction: Instruction, mods: Mods, type_: PtxType) -> None:
    """The floating-point forms of opcodes that integers have too."""
    opcode = instruction.opcode
    if opcode in ("min", "max"):
        _minmax(asm, instruction, mods, type_)
    elif opcode == "abs":
        _unrounded(asm, instruction, mods, type_, "abs", magnitude)
    elif opcode == "neg":
        _unrounded(asm, instruction, mods, type_, "neg", lambda x: -x)
    elif opcode == "mad" and is_half(type_):
        raise mods.unsupported("there is no mad of halves")
    else:
        _arithmetic(asm, instruction, mods, type_, "fma" if opcode == "mad" else opcode)


@native("fma")
def _fma(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    if not type_.is_float:
        raise mods.unsupported("expected a floating-point type")
    _arithmetic(asm, instruction, mods, type_, "fma")


@native("copysign")
def _copysign(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """``copysign d, a, b``: b with the sign of a, including NaN."""
    type_ = mods.type()
    mods.done()
    if type_.name not in ("f32", "f64"):
        raise mods.unsupported("copysign has the types f32 and f64")
    d, a, b = mods.operands(2)
    asm.compute(
        f"copysign.{type_.name}",
        lambda x, y: copysign(y, x),
        [(d, type_.name)],
        [(a, type_.name), (b, type_.name)],
    )
