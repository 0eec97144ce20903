"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions"), and floating-point forms of the same opcodes,
selected by type.

All results wrap. A result that PTX leaves unspecified, as for a division by zero, is that of NVIDIA's compilers: all
ones.
"""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.ptx.ir import Instruction
from warpsan.ptx.modifiers import Mods, require
from warpsan.ptx.types import PtxType
from warpsan.semantics.floating import float_arithmetic

__all__ = ["product_part"]

_SIGNED = ("s16", "s32", "s64")
_PLAIN = ("u16", "u32", "u64", *_SIGNED)
_PACKED = ("u16x2", "s16x2")


@native("add", "sub", "mul", "mad", "div", "min", "max", "abs", "neg")
def _arithmetic(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    if type_.is_float:
        float_arithmetic(asm, instruction, mods, type_)
    elif instruction.opcode in ("mul", "mad"):
        _product(asm, instruction, mods, type_)
    else:
        _simple(asm, instruction, mods, type_)


def _least(a: Lanes, b: Lanes) -> Lanes:
    return where(a < b, a, b)


def _greatest(a: Lanes, b: Lanes) -> Lanes:
    return where(a > b, a, b)


def _simple(asm: Assembler, instruction: Instruction, mods: Mods, type_: PtxType) -> None:
    opcode = instruction.opcode
    names = {"abs": _SIGNED, "neg": _SIGNED, "add": (*_PLAIN, *_PACKED), "min": (*_PLAIN, *_PACKED)}
    names["max"] = names["min"]
    require(mods, type_, names.get(opcode, _PLAIN))
    saturates = opcode in ("add", "sub") and type_.name == "s32" and mods.flag("sat")
    relu = opcode in ("min", "max") and type_.name in ("s32", "s16x2") and mods.flag("relu")
    mods.done()
    functions: dict[str, Callable[..., Lanes]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "div": _quotient,
        "min": _least,
        "max": _greatest,
        "abs": lambda a: where(a < 0, -a, a),
        "neg": lambda a: -a,
    }
    function = functions[opcode]
    if saturates:
        plain = function
        function = lambda a, b: _clamp_s32(plain(a.to("s64"), b.to("s64")))  # noqa: E731
    if relu:
        extreme = function
        function = lambda a, b: _greatest(extreme(a, b), a.like(0))  # noqa: E731
    name = f"{opcode}{'.sat' * saturates}{'.relu' * relu}.{type_.name}"
    _elementwise(asm, instruction, name, function, type_, 1 if opcode in ("abs", "neg") else 2)


def _elementwise(
    asm: Assembler, instruction: Instruction, name: str, function: Callable[..., Lanes], type_: PtxType, arity: int
) -> None:
    target, *sources = Mods(instruction).operands(arity)
    asm.compute(name, function, [(target, type_.name)], [(each, type_.name) for each in sources])


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


def _product(asm: Assembler, instruction: Instruction, mods: Mods, type_: PtxType) -> None:
    require(mods, type_, _PLAIN)
    mode = mods.choice(("lo", "hi", "wide"))
    adds = instruction.opcode == "mad"
    saturates = adds and mode == "hi" and type_.name == "s32" and mods.flag("sat")
    mods.done()
    result = type_.name
    if mode == "wide":
        require(mods, type_, ("u16", "u32", "s16", "s32"))
        result = f"{type_.kind}{2 * type_.bits}"
    d, a, b, *addend = mods.operands(3 if adds else 2)
    sources = [(a, type_.name), (b, type_.name)]
    name = f"{instruction.opcode}.{mode}{'.sat' * saturates}.{type_.name}"
    if not adds:
        asm.compute(name, lambda x, y: product_part(mode, type_, x, y), [(d, result)], sources)
        return
    sources.append((addend[0], result))
    if saturates:
        asm.compute(
            name,
            lambda x, y, z: _clamp_s32(product_part(mode, type_, x, y).to("s64") + z.to("s64")),
            [(d, result)],
            sources,
        )
    else:
        asm.compute(name, lambda x, y, z: product_part(mode, type_, x, y) + z, [(d, result)], sources)


@native("mul24", "mad24")
def _product24(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, ("u32", "s32"))
    high = mods.choice(("hi", "lo")) == "hi"
    adds = instruction.opcode == "mad24"
    saturates = adds and high and type_.signed and mods.flag("sat")
    mods.done()
    wide = f"{type_.kind}64"

    def function(x: Lanes, y: Lanes, *addend: Lanes) -> Lanes:
        product = ((x << 8) >> 8).to(wide) * ((y << 8) >> 8).to(wide)
        part = (product >> 16 if high else product).to(type_.name)
        if saturates:
            return _clamp_s32(part.to("s64") + addend[0].to("s64"))
        return part + addend[0] if adds else part

    name = f"{instruction.opcode}.{'hi' if high else 'lo'}{'.sat' * saturates}.{type_.name}"
    _elementwise(asm, instruction, name, function, type_, 2 + adds)


@native("dp4a", "dp2a")
def _dot(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """The parts of ``a`` (four bytes, or two halves) times as many bytes of ``b``, added to ``c``."""
    count = 4 if instruction.opcode == "dp4a" else 2
    first = 2 if count == 2 and mods.choice(("lo", "hi")) == "hi" else 0
    left, right = mods.type(), mods.type()
    for type_ in (left, right):
        require(mods, type_, ("u32", "s32"))
    mods.done()
    width = 32 // count

    def function(x: Lanes, y: Lanes, total: Lanes) -> Lanes:
        for k in range(count):
            total = total + _field(x, k * width, width, left) * _field(y, 8 * (first + k), 8, right)
        return total

    d, a, b, c = instruction.operands
    name = f"{instruction.opcode}.{first}.{left.name}.{right.name}"
    asm.compute(name, function, [(d, "u32")], [(operand, "u32") for operand in (a, b, c)])


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


@native("rem")
def _rem(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, _PLAIN)
    mods.done()
    _elementwise(asm, instruction, f"rem.{type_.name}", _remainder, type_, 2)


@native("sad")
def _sad(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, _PLAIN)
    mods.done()
    function = lambda x, y, z: z + (_greatest(x, y) - _least(x, y))  # noqa: E731
    _elementwise(asm, instruction, f"sad.{type_.name}", function, type_, 3)
