"""Counting, finding, reversing, extracting and inserting bits (PTX ISA, "Integer Arithmetic
Instructions")."""

from __future__ import annotations

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction
from warpsan.semantics.logic import shifted

__all__: list[str] = []


# ---- counting --------------------------------------------------------------------------------------------------------


def _leading_zeros(x: Lanes) -> Lanes:
    """Zeros above the highest set bit; the width for zero."""
    x = x.as_type(f"u{x.bits}")
    count = x.like(x.bits)
    value, step = x, x.bits // 2
    while step:
        high = value >> step
        some = high != 0
        count = where(some, count - step, count)
        value = where(some, high, value)
        step //= 2
    return count - value


def _population(x: Lanes) -> Lanes:
    ones = {byte: int.from_bytes(bytes([byte]) * (x.bits // 8), "little") for byte in (0x55, 0x33, 0x0F, 0x01)}
    pairs = x - ((x >> 1) & ones[0x55])
    nibbles = (pairs & ones[0x33]) + ((pairs >> 2) & ones[0x33])
    counts = (nibbles + (nibbles >> 4)) & ones[0x0F]
    return (counts * ones[0x01]) >> x.bits - 8


_COUNTS = {"popc": _population, "clz": _leading_zeros}


@native(*_COUNTS)
def _count(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    count, type_ = _COUNTS[form.name], form.type.name
    asm.elementwise(instruction, f"{form.name}.{type_}", lambda x: count(x).to("u32"), "u32", type_)


@native("bfind")
def _bfind(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The highest bit that differs from the sign; all ones if there is none."""
    amount, type_ = "shiftamt" in form.flags, form.type

    def function(x: Lanes) -> Lanes:
        zeros = _leading_zeros(where(x < 0, ~x, x) if x.signed else x).to("u32")
        none = zeros == type_.bits
        return where(none, zeros.like(-1), zeros if amount else zeros.like(type_.bits - 1) - zeros)

    asm.elementwise(instruction, f"bfind{'.shiftamt' * amount}.{type_.name}", function, "u32", type_.name)


@native("brev")
def _brev(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    type_ = form.type.name
    asm.elementwise(instruction, f"brev.{type_}", lambda x: x.call("bitreverse"), type_, type_)


# ---- bit fields ------------------------------------------------------------------------------------------------------


def _field(position: Lanes, length: Lanes, bits: int) -> tuple[Lanes, Lanes]:
    """Start and length of a field: the low bytes of two operands; the length is at most the type's."""
    size = length & 0xFF
    return position & 0xFF, where(size > bits, size.like(bits), size)


@native("bfe")
def _bfe(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """Extract a field; bits beyond the top bit are zero or, signed, the top bit."""
    type_ = form.type

    def function(x: Lanes, position: Lanes, length: Lanes) -> Lanes:
        start, size = _field(position, length, type_.bits)
        spare = size.like(type_.bits) - size
        return shifted(shifted(shifted(x, start, left=False), spare, left=True), spare, left=False)

    asm.elementwise(instruction, f"bfe.{type_.name}", function, type_.name, type_.name, "u32", "u32")


@native("bfi")
def _bfi(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    type_ = form.type

    def function(x: Lanes, into: Lanes, position: Lanes, length: Lanes) -> Lanes:
        start, size = _field(position, length, type_.bits)
        mask = shifted(shifted(x.like(1), size, left=True) - 1, start, left=True)
        return (into & ~mask) | (shifted(x, start, left=True) & mask)

    asm.elementwise(instruction, f"bfi.{type_.name}", function, *[type_.name] * 3, "u32", "u32")


@native("bmsk")
def _bmsk(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """A mask of ``b`` bits from bit ``a`` on."""
    clamp = form.modes[0] == "clamp"

    def function(position: Lanes, length: Lanes) -> Lanes:
        size = _clamped(length, clamp=clamp)
        start = position if clamp else position & 31
        return shifted(shifted(position.like(1).to("u64"), size, left=True).to("u32") - 1, start, left=True)

    asm.elementwise(instruction, f"bmsk{'.clamp' * clamp}", function, "b32", "u32", "u32")


@native("szext")
def _szext(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """Sign- or zero-extend the low ``b`` bits of ``a``."""
    clamp, type_ = form.modes[0] == "clamp", form.type.name

    def function(x: Lanes, length: Lanes) -> Lanes:
        spare = length.like(32) - _clamped(length, clamp=clamp)
        return shifted(shifted(x, spare, left=True), spare, left=False)

    asm.elementwise(instruction, f"szext{'.clamp' * clamp}.{type_}", function, type_, type_, "u32")


def _clamped(length: Lanes, *, clamp: bool) -> Lanes:
    return where(length > 32, length.like(32), length) if clamp else length & 31


@native("fns")
def _fns(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The n-th set bit of a mask from a base on, upwards or (n negative) downwards; all ones if there is none."""

    def function(mask: Lanes, base: Lanes, n: Lanes) -> Lanes:
        result = mask.like(-1)
        above, below = n.like(0), n.like(0)
        for place in range(32):
            hit = ((mask >> place) & 1 != 0) & (base <= place)
            above = above + hit.to("s32")
            result = where(hit & ((above == n) | ((n == 0) & (base == place))), mask.like(place), result)
        for place in reversed(range(32)):
            hit = ((mask >> place) & 1 != 0) & (base >= place)
            below = below + hit.to("s32")
            result = where(hit & (below == -n), mask.like(place), result)
        return result

    asm.elementwise(instruction, "fns", function, "u32", "u32", "u32", "s32")
