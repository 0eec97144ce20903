"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions"), and floating-point forms of the same opcodes,
selected by type.

All results wrap. A result that PTX leaves unspecified, as for a division by zero, is that of NVIDIA's compilers: all
ones.
"""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction
from warpsan.ptx.types import PtxType
from warpsan.semantics.floating import float_arithmetic

__all__ = ["product_part"]


@native("add", "sub", "mul", "mad", "div", "min", "max", "abs", "neg")
def _arithmetic(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    if form.type.is_float:
        float_arithmetic(asm, instruction, form)
    elif form.name in ("mul", "mad"):
        _product(asm, instruction, form)
    else:
        _simple(asm, instruction, form)


def _least(a: Lanes, b: Lanes) -> Lanes:
    return where(a < b, a, b)


def _greatest(a: Lanes, b: Lanes) -> Lanes:
    return where(a > b, a, b)


_SIMPLE: dict[str, Callable[..., Lanes]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": lambda a, b: _quotient(a, b),
    "min": _least,
    "max": _greatest,
    "abs": lambda a: where(a < 0, -a, a),
    "neg": lambda a: -a,
    "rem": lambda a, b: _remainder(a, b),
    "sad": lambda x, y, z: z + (_greatest(x, y) - _least(x, y)),
}


@native("rem", "sad")
def _simple(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    plain = function = _SIMPLE[form.name]
    saturates, relu = "sat" in form.flags, "relu" in form.flags
    if saturates:
        function = lambda a, b: _clamp_s32(plain(a.to("s64"), b.to("s64")))  # noqa: E731
    if relu:
        function = lambda a, b: _greatest(plain(a, b), a.like(0))  # noqa: E731
    name = f"{form.name}{'.sat' * saturates}{'.relu' * relu}.{form.type.name}"
    asm.elementwise(instruction, name, function, *[form.type.name] * len(instruction.operands))


def _clamp_s32(x: Lanes) -> Lanes:
    low, high = -(1 << 31), (1 << 31) - 1
    return _least(_greatest(x, x.like(low)), x.like(high)).to("s32")


# ---- products --------------------------------------------------------------------------------------------------------


def product_part(mode: str, type_: PtxType, x: Lanes, y: Lanes) -> Lanes:
    """The part of a product for ``mul.mode``; a wide one has twice the bits."""
    if mode == "lo":
        return x * y
    if type_.bits == 64:
        a, b = (each.as_type("u64").to("u128") for each in (x, y))
        high = ((a * b) >> 64).to("u64")
        if type_.signed:  # a negative factor was read with 2**64 added
            zero = high.like(0)
            high = high - where(x < 0, y.as_type("u64"), zero) - where(y < 0, x.as_type("u64"), zero)
        return high.as_type(type_.name)
    wide = f"{type_.kind}{2 * type_.bits}"
    product = x.to(wide) * y.to(wide)
    return product if mode == "wide" else (product >> type_.bits).to(type_.name)


def _product(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    (mode,), type_, saturates = form.modes, form.type, "sat" in form.flags
    result = f"{type_.kind}{2 * type_.bits}" if mode == "wide" else type_.name

    def function(x: Lanes, y: Lanes, *addend: Lanes) -> Lanes:
        product = product_part(mode, type_, x, y)
        if saturates:
            return _clamp_s32(product.to("s64") + addend[0].to("s64"))
        return product + addend[0] if addend else product

    types = [type_.name, type_.name, result][: len(instruction.operands) - 1]
    asm.elementwise(instruction, f"{form.name}.{mode}{'.sat' * saturates}.{type_.name}", function, result, *types)


@native("mul24", "mad24")
def _product24(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    (mode,), type_, saturates = form.modes, form.type, "sat" in form.flags
    wide = f"{type_.kind}64"

    def function(x: Lanes, y: Lanes, *addend: Lanes) -> Lanes:
        product = ((x << 8) >> 8).to(wide) * ((y << 8) >> 8).to(wide)
        part = (product >> 16 if mode == "hi" else product).to(type_.name)
        if saturates:
            return _clamp_s32(part.to("s64") + addend[0].to("s64"))
        return part + addend[0] if addend else part

    name = f"{form.name}.{mode}{'.sat' * saturates}.{type_.name}"
    asm.elementwise(instruction, name, function, *[type_.name] * len(instruction.operands))


@native("dp4a", "dp2a")
def _dot(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The parts of ``a`` (four bytes, or two halves) times as many bytes of ``b``, added to ``c``."""
    count, first, (left, right) = (4 if form.name == "dp4a" else 2), 2 * ("hi" in form.modes), form.types
    width = 32 // count

    def function(x: Lanes, y: Lanes, total: Lanes) -> Lanes:
        for k in range(count):
            total = total + _field(x, k * width, width, left) * _field(y, 8 * (first + k), 8, right)
        return total

    name = f"{form.name}.{first}.{left.name}.{right.name}"
    asm.elementwise(instruction, name, function, *["u32"] * 4)


def _field(words: Lanes, begin: int, width: int, type_: PtxType) -> Lanes:
    """``width`` bits of u32 words as numbers, modulo 2**32."""
    spare = 32 - width
    return ((words << spare - begin).as_type(type_.name) >> spare).as_type("u32")


# ---- division --------------------------------------------------------------------------------------------------------


def _magnitude(x: Lanes) -> Lanes:
    """The absolute value as an unsigned integer, because that of the least integer has no signed form."""
    unsigned = f"u{x.bits}"
    return where(x < 0, -x, x).as_type(unsigned) if x.signed else x


def _quotient(x: Lanes, y: Lanes) -> Lanes:
    """Division towards zero; all ones for a zero divisor."""
    zero = y == 0
    size = _magnitude(y)
    result = (_magnitude(x) // where(zero, size.like(1), size)).as_type(x.type)
    if x.signed:
        result = where((x ^ y) < 0, -result, result)
    return where(zero, result.like(-1), result)


def _remainder(x: Lanes, y: Lanes) -> Lanes:
    """The remainder of :func:`_quotient`, with the dividend's sign; all ones for a zero divisor."""
    zero = y == 0
    size = _magnitude(y)
    result = (_magnitude(x) % where(zero, size.like(1), size)).as_type(x.type)
    if x.signed:
        result = where(x < 0, -result, result)
    return where(zero, result.like(-1), result)
