"""Atomic operations (PTX ISA, "atom", "red"): lanes with the same address execute one after the other, each on the
result of the one before it. Blocks execute in grid order, so sums of floating-point numbers from several blocks or
warps are rounded in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warpsan.analysis.fusion import registers_read
from warpsan.engine.access import addresses, located
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import POINTER, WORD32, WORD64, Lanes, where
from warpsan.engine.layout import WARP
from warpsan.engine.numeric import canonical, flushed
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.host.memory import SHARED_BASE, WINDOW_BITS
from warpsan.ptx.accesses import Atomic
from warpsan.ptx.ir import Instruction, Operand, Register
from warpsan.ptx.types import PtxType
from warpsan.semantics.floating import Compute, base_of, halved, is_half
from warpsan.semantics.move import without_policy
from warpsan.semantics.watched import strong_effect, watch_access

__all__ = ["update_of"]

_INTEGERS: dict[str, Compute] = {
    "add": lambda old, given: old + given,
    "min": lambda old, given: where(given < old, given, old),
    "max": lambda old, given: where(given > old, given, old),
    "and": lambda old, given: old & given,
    "or": lambda old, given: old | given,
    "xor": lambda old, given: old ^ given,
    "inc": lambda old, bound: where(old >= bound, old.like(0), old + 1),
    "dec": lambda old, bound: where((old == 0) | (old > bound), bound, old - 1),
    "exch": lambda old, given: given,
    "cas": lambda old, expected, given: where(old == expected, given, old),
}
"""New values from the old ones and the operands."""
_EXTREMA: dict[str, Compute] = {
    "min": lambda old, given: where((old <= given) | old.nan, old, given),
    "max": lambda old, given: where((old >= given) | old.nan, old, given),
}
"""The same for floating-point numbers: a NaN stays."""


_Choice = Callable[[Lanes, Lanes], Lanes]
"""The sum without subnormals or with them, as requested."""


def update_of(name: str, type_: PtxType, flushes: _Choice) -> tuple[str, Compute]:
    """The type in which an update computes, and new values from the old ones and the operands.

    Floating-point types support only sums, and halves also minimum and maximum.
    """
    base = base_of(type_)
    if is_half(type_) and name != "add":
        return "u16", halved(_EXTREMA[name], base)
    if is_half(type_):
        return "u16", halved(lambda old, given: old + given, base)
    if type_.is_float:
        return base, lambda old, given: _float_sum(old, given, base, flushes)
    return base, _INTEGERS[name]


def _float_sum(old: Lanes, given: Lanes, base: str, flushes: _Choice) -> Lanes:
    """For f32, global memory adds without subnormals, shared memory with them."""
    plain = old + given
    if base == "f32":
        plain = flushes(flushed(flushed(old, base) + flushed(given, base), base), plain)
    return canonical(plain, base)


@native("atom", "red")
def _atomic(asm: Assembler, instruction: Instruction, form: Atomic) -> None:
    """Elements of a vector are updated one after the other."""
    (_, type_), many = form.update, form.vector
    space = "global" if many > 1 else form.space  # a generic address of a vector is one of global memory
    operands = without_policy(asm, instruction, form.hint)
    targets = [(-1, _nothing)] * many
    if form.name == "atom":
        results = asm.vector(operands.pop(0))
        places = [asm.target(each, type_.name) for each in results]
        read = [_is_read(asm, each) for each in results]
        targets = [place if is_read else (-1, _nothing) for place, is_read in zip(places, read, strict=True)]
    row, bits, offset = asm.address(operands.pop(0))
    columns = [asm.vector(operand) for operand in operands]
    sources = [[asm.source(item, type_.name) for item in items] for items in zip(*columns, strict=True)]
    if asm.watched:
        strong = strong_effect(asm, instruction)
        watch_access(asm, instruction, space, row, bits, offset, form.width, "update", strong=strong)
    for element, ((target, finish), rows) in enumerate(zip(targets, sources, strict=True)):
        _update_element(asm, form, space, bits, element, [row, offset, target, *rows])
        finish()


def _update_element(asm: Assembler, form: Atomic, space: str, bits: int, element: int, operands: Sequence[int]) -> None:
    """Append the record of the update of one element."""
    (name, type_), is_read = form.update, operands[2] >= 0
    ring = asm.float_sum(type_) if type_.is_float else None
    text = f"{space}.{bits}.{name}.{type_.name}" + f".{element}.{form.vector}" * (form.vector > 1)
    title = f"{'atom' if is_read else 'red'}.{text}{asm.suffix if ring else ''}"

    def update(code: OperationCode) -> None:
        _update(code, form, space, bits, element, returns=is_read, ring=ring)

    asm.record(NativeOperation(title, update), operands)


def _is_read(asm: Assembler, result: Operand) -> bool:
    """Whether any instruction reads the result of an atomic operation."""
    if not asm.read:
        asm.read.update(name for each in asm.entry.instructions for name in registers_read(each))
    return isinstance(result, Register) and result.name in asm.read


def _update(
    code: OperationCode,
    form: Atomic,
    space: str,
    bits: int,
    element: int,
    *,
    returns: bool,
    ring: tuple[str, Compute] | None,
) -> None:
    """Operands are the row of the addresses, an offset, the row of the result, and those of the sources."""
    name, type_ = form.update
    b, size = code.builder, WORD64(type_.bytes)
    address = located(code, 0, space, bits)
    scratch = code.pointer("places")
    b.store(addresses(code, address, space, form.width).value, scratch, align=64)
    in_shared = code.any_of(address >> WINDOW_BITS == SHARED_BASE >> WINDOW_BITS)

    def flushes(without: Lanes, plain: Lanes) -> Lanes:
        if space == "generic":  # all lanes are in one space
            return where(code.all_or_none(in_shared, plain.count), plain, without)
        return without if space == "global" else plain

    held, function = ring or update_of(name, type_, flushes)
    with code.loop(WORD64(WARP)) as lane:
        here = b.and_(b.lshr(code.mask, b.trunc(lane, WORD32)), WORD32(1))
        with b.if_then(b.icmp_signed("!=", here, WORD32(0))):
            word = b.load(code.at(scratch, b.mul(lane, WORD64(8))), typ=WORD64)
            place = b.inttoptr(b.add(word, WORD64(element * type_.bytes)), POINTER)
            mine = b.mul(lane, size)
            rows = [code.at(code.row(3 + k), mine) for k in range(2 if name == "cas" else 1)]
            old, *given = (code.load(each, held, type_.lanes, align=type_.bytes) for each in (place, *rows))
            b.store(function(old, *given).value, place, align=type_.bytes)
            if returns:
                b.store(old.value, code.at(code.row(2), mine), align=type_.bytes)


def _nothing() -> None:
    """Returns no result."""
