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
from warpsan.numerics.float_formats import FORMATS
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction
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


def _rounded(operation: str, rounding: str, type_: PtxType) -> Compute:
    if rounding != "rn":
        return _directed(operation, rounding)
    if is_half(type_):
        if operation == "fma":
            return {"f16": _fma_f16, "bf16": _fma_bf16}[base_of(type_)]
        return halved(_NEAREST[operation], base_of(type_))
    return _NEAREST[operation]


@native("fma")
def _arithmetic(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    operation = "fma" if form.name == "mad" else form.name
    type_, (mode,) = form.type, form.modes
    ftz, sat, relu = (flag in form.flags for flag in ("ftz", "sat", "relu"))
    approximate = mode if mode in ("approx", "full") else ""
    rounding = "rn" if approximate else mode or "rn"
    divide = partial(quotient, full=approximate == "full")
    compute: Compute = divide if approximate else _rounded(operation, rounding, type_)
    name = f"{operation}{approximate}.{rounding}{'.ftz' * ftz}{'.sat' * sat}{'.relu' * relu}.{type_.name}"
    compute = clamped(compute, type_, ftz=ftz, sat=sat, relu=relu)
    asm.elementwise(instruction, name, compute, *[type_.name] * len(instruction.operands))


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


def _of_three(compute: Compute) -> Compute:
    """An operation on two sources as one on two or three."""
    return lambda a, b, *c: compute(compute(a, b), c[0]) if c else compute(a, b)


def _unrounded(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """An operation without rounding, in any type, under ``.ftz``."""
    name, type_, ftz = form.name, form.type, "ftz" in form.flags
    compute: Compute = magnitude if name == "abs" else lambda x: -x
    if name in ("min", "max"):
        propagate, signs = "NaN" in form.flags, "xorsign" in form.flags
        if signs != ("abs" in form.flags):
            raise asm.unsupported(".xorsign goes with .abs")
        compute = _extremum(name, propagate)
        compute = _xor_signs(compute) if signs else _of_three(compute)
        if len(instruction.operands) not in (3, 4 - signs):
            raise asm.unsupported("expected two or three source operands")
        name = f"{name}{len(instruction.operands) - 1}{'.NaN' * propagate}{'.xorsign' * signs}"
    if is_half(type_):
        compute = halved(compute, base_of(type_))
    name = f"{name}{'.ftz' * ftz}.{type_.name}"
    types = [type_.name] * len(instruction.operands)
    asm.elementwise(instruction, name, clamped(compute, type_, ftz=ftz), *types)


def float_arithmetic(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The floating-point forms of opcodes that integers have too."""
    (_unrounded if form.name in ("min", "max", "abs", "neg") else _arithmetic)(asm, instruction, form)


@native("copysign")
def _copysign(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """``copysign d, a, b``: b with the sign of a, including NaN."""
    name = form.type.name
    asm.elementwise(instruction, f"copysign.{name}", lambda x, y: copysign(y, x), name, name, name)
