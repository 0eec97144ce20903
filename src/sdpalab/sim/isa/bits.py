"""Counting, finding, reversing, extracting and inserting bits (PTX ISA, "Integer Arithmetic Instructions").

NumPy shifts by the width of the type or more give zeros, or copies of the sign for signed types, as PTX has it.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.steps import computed
from sdpalab.sim.modifiers import Mods, require
from sdpalab.sim.selection import Array
from sdpalab.sim.types import TYPES, PtxType, unsigned

__all__: list[str] = []

_WORDS = ("b32", "b64")


# ---- counting and searching bits -------------------------------------------------------------------------------------


def _bit_length(x: Array) -> Array:
    """Bits up to the highest set one (0 for 0) of unsigned integers of 32 or 64 bits."""
    if x.dtype.itemsize == 4:
        # The conversion is exact, so the exponent is the answer.
        return np.frexp(x.astype(np.float64))[1]
    high = (x >> np.uint64(32)).astype(np.uint32)
    return np.where(high, _bit_length(high) + 32, _bit_length(x.astype(np.uint32)))


def _population(x: Array) -> Array:
    """Number of set bits."""
    one = x.dtype.type

    pairs = x - (x >> one(1) & _repeated(0x55, x))
    nibbles = (pairs & _repeated(0x33, x)) + (pairs >> one(2) & _repeated(0x33, x))
    counts = nibbles + (nibbles >> one(4)) & _repeated(0x0F, x)
    result: Array = counts * _repeated(0x01, x) >> one(8 * x.dtype.itemsize - 8)
    return result


def _repeated(byte: int, like: Array) -> Array:
    """A word of equal bytes, in the type of an array."""
    return np.full(1, byte, np.uint8).repeat(like.dtype.itemsize).view(like.dtype)


@opcode("popc", "clz")
def _count(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, _WORDS)
    mods.done()
    a = decoder.src(instruction, instruction.operands[1], type_)
    d = decoder.dst(instruction, instruction.operands[0], TYPES["u32"])
    return computed(_population if instruction.opcode == "popc" else lambda x: type_.bits - _bit_length(x), d, a)


@opcode("bfind")
def _bfind(decoder: Decoder, instruction: Instruction) -> Step:
    """The highest bit that differs from the sign; all ones where there is none."""
    mods = Mods(instruction)
    shift_amount = mods.flag("shiftamt")
    type_ = mods.type()
    require(mods, type_, ("u32", "u64", "s32", "s64"))
    mods.done()
    a = decoder.src(instruction, instruction.operands[1], type_)
    d = decoder.dst(instruction, instruction.operands[0], TYPES["u32"])
    raw = unsigned(type_.bits)

    def function(x: Array) -> Array:
        length = _bit_length((np.where(x < 0, ~x, x) if type_.signed else x).view(raw))
        if shift_amount:
            return np.where(length == 0, -1, type_.bits - length).astype(np.uint32)
        return (length - 1).astype(np.uint32)

    return computed(function, d, a)


@opcode("fns")
def _fns(decoder: Decoder, instruction: Instruction) -> Step:
    """The n-th set bit of a mask from a base on, upwards or (n negative) downwards; all ones if there is none."""
    mods = Mods(instruction)
    require(mods, mods.type(), ("b32",))
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], TYPES["u32"])
    a, b = (decoder.src(instruction, instruction.operands[k], TYPES["u32"]) for k in (1, 2))
    c = decoder.src(instruction, instruction.operands[3], TYPES["s32"])
    positions = np.arange(32, dtype=np.uint32)

    def function(mask: Array, base: Array, n: Array) -> Array:
        base, n = base[:, None], n[:, None]
        is_set = mask[:, None] >> positions & np.uint32(1) != 0
        above, below = is_set & (positions >= base), is_set & (positions <= base)
        up, down = above.cumsum(axis=1), below[:, ::-1].cumsum(axis=1)[:, ::-1]
        nth = above & (up == n) | below & (down == -n) | (n == 0) & above & below
        return np.where(nth.any(axis=1), nth.argmax(axis=1), -1).astype(np.uint32)

    return computed(function, d, a, b, c)


@opcode("brev")
def _brev(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, _WORDS)
    mods.done()
    a = decoder.src(instruction, instruction.operands[1], type_)
    d = decoder.dst(instruction, instruction.operands[0], type_)
    return computed(_reversed_bits, d, a)


def _reversed_bits(x: Array) -> Array:
    result: Array = x.byteswap()
    for shift, byte in ((4, 0x0F), (2, 0x33), (1, 0x55)):
        mask, n = _repeated(byte, x), x.dtype.type(shift)
        result = (result & mask) << n | result >> n & mask
    return result


# ---- bit fields ------------------------------------------------------------------------------------------------------


@opcode("bfe")
def _bfe(decoder: Decoder, instruction: Instruction) -> Step:
    """Extract a field; beyond the top bit it is zero or, signed, the top bit."""
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, ("u32", "u64", "s32", "s64"))
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)
    a = decoder.src(instruction, instruction.operands[1], type_)
    b, c = (decoder.src(instruction, instruction.operands[k], TYPES["u32"]) for k in (2, 3))

    def function(x: Array, position: Array, length: Array) -> Array:
        start, size = _field(position, length, type_)
        # To the top and back: the shift right repeats the field's own sign, or zeros.
        spare = type_.dtype.type(type_.bits) - size
        result: Array = x >> start << spare >> spare
        return result

    return computed(function, d, a, b, c)


def _field(position: Array, length: Array, type_: PtxType) -> tuple[Array, Array]:
    """Where a field begins and how long it is: the low bytes of two operands, the length at most the type's."""
    byte = np.uint32(0xFF)
    size = np.minimum(length & byte, np.uint32(type_.bits))
    return (position & byte).astype(type_.dtype), size.astype(type_.dtype)


@opcode("bfi")
def _bfi(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, _WORDS)
    mods.done()
    f = decoder.dst(instruction, instruction.operands[0], type_)
    a, b = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2))
    c, d = (decoder.src(instruction, instruction.operands[k], TYPES["u32"]) for k in (3, 4))
    one = type_.dtype.type(1)

    def function(x: Array, into: Array, position: Array, length: Array) -> Array:
        start, size = _field(position, length, type_)
        mask = (one << size) - one << start
        result: Array = into & ~mask | x << start & mask
        return result

    return computed(function, f, a, b, c, d)


@opcode("bmsk")
def _bmsk(decoder: Decoder, instruction: Instruction) -> Step:
    """A mask of ``b`` bits from bit ``a`` on."""
    clamp, d, a, b = _clamped_operands(decoder, instruction, ("b32",))
    one, width, low = np.uint64(1), np.uint64(32), np.uint64(31)

    def function(x: Array, y: Array) -> Array:
        position, size = x.astype(np.uint64), y.astype(np.uint64)
        if not clamp:
            position, size = position & low, size & low
        ones: Array = (one << np.minimum(size, width)) - one << np.minimum(position, width)
        return ones.astype(np.uint32)

    return computed(function, d, a, b)


@opcode("szext")
def _szext(decoder: Decoder, instruction: Instruction) -> Step:
    """Sign- or zero-extend the low ``b`` bits of ``a``."""
    clamp, d, a, b = _clamped_operands(decoder, instruction, ("u32", "s32"))
    width, low = np.uint32(32), np.uint32(31)

    def function(x: Array, y: Array) -> Array:
        size = np.minimum(y, width) if clamp else y & low
        spare = (width - size).astype(x.dtype)
        result: Array = x << spare >> spare
        return result

    return computed(function, d, a, b)


def _clamped_operands(
    decoder: Decoder, instruction: Instruction, names: tuple[str, ...]
) -> tuple[bool, Array, Array, Array]:
    """For ``op.mode.type d, a, b``: whether the mode is clamp, and the operands, the last one unsigned."""
    mods = Mods(instruction)
    clamp = mods.choice(("clamp", "wrap")) == "clamp"
    type_ = mods.type()
    require(mods, type_, names)
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)
    a = decoder.src(instruction, instruction.operands[1], type_)
    return clamp, d, a, decoder.src(instruction, instruction.operands[2], TYPES["u32"])
