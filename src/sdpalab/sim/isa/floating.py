"""Floating-point add, sub, mul, div, fma, min, max, abs, neg in every type (PTX ISA, "Floating Point Instructions").

Results are rounded once, as the instruction says. A NaN result is the canonical one (0x7fffffff in f32).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.float_formats import FORMATS, ROUNDINGS
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.fused import fma_f32, fma_f64
from sdpalab.sim.isa.half import HALF_FMA, halved
from sdpalab.sim.isa.mufu import quotient
from sdpalab.sim.isa.rounding import (
    Compute,
    canonical,
    clamping_negatives,
    elementwise,
    flushing,
    round_to,
    saturating,
    sum_to_odd,
)
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.selection import Array
from sdpalab.sim.types import PtxType

__all__ = ["FLOAT_HANDLERS", "FloatHandler", "apply", "is_half"]

FloatHandler = Callable[[Decoder, Instruction, Mods, PtxType], Step]


def is_half(type_: PtxType) -> bool:
    """True for f16 and bf16, single or packed."""
    return type_.dtype.itemsize == 2


def apply(decoder: Decoder, instruction: Instruction, type_: PtxType, sources: int, compute: Compute) -> Step:
    """Bind a destination and that many source operands of one type to ``compute``, whose NaNs become canonical.

    Raises
    ------
    UnsupportedInstruction
        If the instruction has another number of operands.
    """
    destination, *operands = instruction.operands
    if len(operands) != sources:
        raise Mods(instruction).unsupported(f"expected {sources} source operands")
    return elementwise(
        canonical(compute),
        decoder.dst(instruction, destination, type_),
        *[decoder.src(instruction, operand, type_) for operand in operands],
    )


def _clamped(mods: Mods, type_: PtxType, compute: Compute, *, relu: bool = False) -> Compute:
    """``compute`` under ``.ftz``, ``.sat`` and, where the opcode has it, ``.relu``; takes them and checks that nothing
    is left."""
    ftz, sat = mods.flag("ftz"), mods.flag("sat")
    negatives = relu and is_half(type_) and mods.flag("relu")
    mods.done()
    if type_.name == "f64" and (ftz or sat):
        raise mods.unsupported("float64 has neither .ftz nor .sat")
    if ftz:
        compute = flushing(compute)
    if sat:
        compute = saturating(compute)
    return clamping_negatives(compute) if negatives else compute


# ---- add, sub, mul, div, fma ----------------------------------------------------------------------------------------

_NEAREST: dict[str, Compute] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def _directed(operation: str, rounding: str) -> Compute:
    """A float32 operation in float64, with the given rounding: products are exact there, sums rounded to odd, and a
    quotient of 24-bit numbers is never as close to a 24-bit number, without being one, as float64's rounding could make
    it."""
    downward = rounding == "rm"
    exact: dict[str, Callable[..., Array]] = {
        "add": lambda a, b: sum_to_odd(a, b, downward=downward),
        "sub": lambda a, b: sum_to_odd(a, -b, downward=downward),
        "mul": np.multiply,
        "div": np.divide,
        "fma": lambda a, b, c: sum_to_odd(a * b, c, downward=downward),
    }
    compute = exact[operation]

    def run(*arrays: Array) -> None:
        *sources, out = arrays
        wide = compute(*[source.astype(np.float64) for source in sources])
        np.copyto(out, round_to(wide, FORMATS["f32"], rounding), casting="same_kind")

    return run


def _rounded(decoder: Decoder, mods: Mods, type_: PtxType, operation: str) -> Compute:
    """The compute of an operation, with the rounding of its modifiers."""
    rounding = mods.choice(ROUNDINGS, default="rn")
    if rounding != "rn" and type_.name != "f32":
        raise mods.unsupported(f".{rounding} is modelled for f32 only")
    if rounding != "rn":
        return _directed(operation, rounding)
    if operation == "fma":
        if is_half(type_):
            return HALF_FMA[type_.kind]
        return fma_f32(decoder) if type_.name == "f32" else fma_f64
    if is_half(type_):
        return halved(_NEAREST[operation])
    return _NEAREST[operation]


def _binary(operation: str) -> FloatHandler:
    def handler(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
        compute = _rounded(decoder, mods, type_, operation)
        return apply(decoder, instruction, type_, 2, _clamped(mods, type_, compute))

    return handler


def _fma(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    compute = _rounded(decoder, mods, type_, "fma")
    return apply(decoder, instruction, type_, 3, _clamped(mods, type_, compute, relu=True))


def _mad(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    if is_half(type_):
        raise mods.unsupported("there is no mad of halves")
    return _fma(decoder, instruction, mods, type_)


@opcode("fma")
def _fma_opcode(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    if not type_.is_float:
        raise mods.unsupported("expected a floating-point type")
    return _fma(decoder, instruction, mods, type_)


def _div(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    if is_half(type_):
        raise mods.unsupported("there is no division of halves")
    kind = mods.choice(("approx", "full"), default="rounded") if type_.name == "f32" else "rounded"
    compute = _rounded(decoder, mods, type_, "div") if kind == "rounded" else partial(quotient, full=kind == "full")
    return apply(decoder, instruction, type_, 2, _clamped(mods, type_, compute))


# ---- min, max, abs, neg ---------------------------------------------------------------------------------------------


def _extremum(operation: str, type_: PtxType, propagate_nan: bool) -> Compute:
    """min or max (of halves in float32), where -0 < +0, and a NaN loses against a number unless it is to propagate."""
    picks = {"max": (np.fmax, np.maximum), "min": (np.fmin, np.minimum)}
    pick = picks[operation][propagate_nan]
    zeros: np.ufunc = np.bitwise_and if operation == "max" else np.bitwise_or
    integer = np.dtype(np.int64 if type_.name == "f64" else np.int32)
    lowest = -(1 << 8 * integer.itemsize - 1)

    def compute(a: Array, b: Array, out: Array) -> None:
        # Only two zeros, at least one of them negative, have nothing but the sign among their bits. NumPy returns
        # either of two zeros; the right one is the conjunction or the disjunction of their bits.
        a_bits, b_bits = a.view(integer), b.view(integer)
        either = np.bitwise_or(a_bits, b_bits)
        chosen = np.asarray(pick(a, b))
        if np.minimum.reduce(either, axis=None) == lowest:
            zeros(a_bits, b_bits, out=chosen.view(integer), where=either == lowest)
        if not propagate_nan and np.isnan(chosen).any():
            # NumPy may let a signalling NaN win against a number.
            for nan, other in ((a, b), (b, a)):
                np.copyto(chosen, other, where=np.isnan(nan) & ~np.isnan(other))
        np.copyto(out, chosen)

    return compute


def _xor_signs(compute: Compute) -> Compute:
    """``.xorsign.abs``: of the magnitudes, with the exclusive or of the signs on a result that is a number."""

    def run(a: Array, b: Array, out: Array) -> None:
        sign = np.where(np.signbit(a) != np.signbit(b), -1.0, 1.0).astype(a.dtype)
        compute(np.abs(a), np.abs(b), out)
        np.copyto(out, np.copysign(out, sign), where=~np.isnan(out))

    return run


def _minmax(operation: str) -> FloatHandler:
    def handler(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
        compute = _extremum(operation, type_, mods.flag("NaN"))
        if mods.flag("xorsign"):
            if not mods.flag("abs"):
                raise mods.unsupported(".xorsign goes with .abs")
            compute = _xor_signs(compute)
        return apply(decoder, instruction, type_, 2, _flushed(mods, type_, compute))

    return handler


def _sign_only(ufunc: Compute) -> FloatHandler:
    def handler(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
        return apply(decoder, instruction, type_, 1, _flushed(mods, type_, ufunc))

    return handler


def _flushed(mods: Mods, type_: PtxType, compute: Compute) -> Compute:
    """A float32 or float64 ``compute`` that rounds nothing, in any type, under ``.ftz``; checks that no modifier is
    left."""
    ftz = mods.flag("ftz")
    mods.done()
    if ftz and type_.name == "f64":
        raise mods.unsupported("float64 has no .ftz")
    if is_half(type_):
        compute = halved(compute)
    return flushing(compute) if ftz else compute


FLOAT_HANDLERS: dict[str, FloatHandler] = {
    "add": _binary("add"),
    "sub": _binary("sub"),
    "mul": _binary("mul"),
    "mad": _mad,
    "div": _div,
    "min": _minmax("min"),
    "max": _minmax("max"),
    "abs": _sign_only(np.abs),
    "neg": _sign_only(np.negative),
}
"""What the opcodes that floats share with integers do for f16, bf16, their packed forms, f32 and f64; the type is
already taken."""
