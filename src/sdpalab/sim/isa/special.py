"""Roots, reciprocals, exponentials and related instructions (PTX ISA, "Floating Point Instructions": rcp, sqrt, rsqrt,
ex2, lg2, sin, ...).

Approximations in f32 are those of the hardware (:mod:`~sdpalab.sim.isa.mufu`), except for tanh. In f16, bf16 and f64
they are of that function in f32, or the exact result, rounded: a GPU may differ from it by the manual's bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpalab.sim.decode import Decoder, Handler, Step, opcode
from sdpalab.sim.float_formats import FORMATS, ROUNDINGS
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.floating import apply, is_half
from sdpalab.sim.isa.half import halved
from sdpalab.sim.isa.mufu import APPROXIMATIONS
from sdpalab.sim.isa.rounding import Compute, elementwise, flushing, round_to
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.selection import Array

__all__: list[str] = []


def _in_float64(function: Any) -> Compute:
    """``function`` of float32 or float64 arrays, evaluated in float64 and rounded to the destination."""

    def compute(a: Array, out: Array) -> None:
        np.copyto(out, function(a.astype(np.float64)), casting="same_kind")

    return compute


def _reciprocal(a: Array, out: Array) -> None:
    np.divide(a.dtype.type(1), a, out)


def _reciprocal_root(a: Array) -> Any:
    return 1.0 / np.sqrt(a)


def _of_upper_words(function: Compute) -> Compute:
    """``.approx.ftz.f64``: the upper 32 bits of the argument count, and the result has no others (PTX ISA, "rcp")."""
    upper = np.uint64(0xFFFFFFFF << 32)

    def compute(a: Array, out: Array) -> None:
        result = np.empty(a.shape, np.float64)
        read = (a.view(np.uint64) & upper).view(np.float64)
        function(np.where(np.isnan(a), a, read), result)
        bits = result.view(np.uint64)
        np.copyto(out.view(np.uint64), (bits + np.uint64(1 << 31)) & upper)

    return compute


_HALVES = ("f16", "f16x2", "bf16", "bf16x2")

_TYPES = {"ex2": ("f32", *_HALVES), "tanh": ("f32", *_HALVES), "rsqrt": ("f32", "f64")}
"""Types of approximations that have others than f32."""
_NO_FLUSH = ("tanh",)


def _approximate(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    """An approximation whose ``.approx`` is already taken."""
    name = instruction.opcode
    type_ = mods.type()
    ftz = name not in _NO_FLUSH and mods.flag("ftz")
    mods.done()
    if type_.name == "f64" and ftz and name in ("rcp", "rsqrt"):
        wide = _reciprocal if name == "rcp" else _in_float64(_reciprocal_root)
        return apply(decoder, instruction, type_, 1, flushing(_of_upper_words(wide)))
    types = _TYPES.get(name, ("f32",))
    if type_.name not in types or (ftz and type_.name == "f64"):
        raise mods.unsupported(f"modelled for {', '.join('.' + known for known in types)}")
    if type_.name == "f64":
        return apply(decoder, instruction, type_, 1, _in_float64(_reciprocal_root))
    function = APPROXIMATIONS[name]
    if is_half(type_):
        compute = halved(lambda a, out: function(a, out, False))
        return apply(decoder, instruction, type_, 1, flushing(compute) if ftz else compute)
    return apply(decoder, instruction, type_, 1, lambda a, out: function(a, out, ftz))


@opcode("ex2", "lg2", "sin", "cos", "tanh", "rsqrt")
def _approximation(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    mods.choice(("approx",))
    return _approximate(decoder, instruction, mods)


def _roundable(exact: Compute, wide: Any) -> Handler:
    """rcp or sqrt: approximate, or with the given rounding. ``exact`` rounds to nearest; ``wide`` computes in float64,
    which is enough to tell on which side of a float32 number the result is."""

    def handler(decoder: Decoder, instruction: Instruction) -> Step:
        mods = Mods(instruction)
        rounding = mods.choice(("approx", *ROUNDINGS))
        if rounding == "approx":
            return _approximate(decoder, instruction, mods)
        type_ = mods.type()
        ftz = mods.flag("ftz")
        mods.done()
        if type_.name not in ("f32", "f64") or (type_.name == "f64" and (ftz or rounding != "rn")):
            raise mods.unsupported("modelled for f32, and for f64 with .rn")
        compute = exact
        if rounding != "rn":

            def compute(a: Array, out: Array) -> None:
                np.copyto(out, round_to(wide(a.astype(np.float64)), FORMATS["f32"], rounding), casting="same_kind")

        return apply(decoder, instruction, type_, 1, flushing(compute) if ftz else compute)

    return handler


opcode("rcp")(_roundable(_reciprocal, np.reciprocal))
opcode("sqrt")(_roundable(np.sqrt, np.sqrt))


@opcode("copysign")
def _copysign(decoder: Decoder, instruction: Instruction) -> Step:
    """``copysign d, a, b``: b with the sign of a, a NaN too."""
    mods = Mods(instruction)
    type_ = mods.type()
    mods.done()
    if type_.name not in ("f32", "f64"):
        raise mods.unsupported("copysign has the types f32 and f64")

    if len(instruction.operands) != 3:
        raise mods.unsupported("expected 2 source operands")
    d, a, b = instruction.operands
    sources = [decoder.src(instruction, operand, type_) for operand in (b, a)]
    return elementwise(np.copysign, decoder.dst(instruction, d, type_), *sources)
