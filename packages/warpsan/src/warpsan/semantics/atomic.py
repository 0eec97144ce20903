"""Atomic operations (PTX ISA, "atom", "red"): lanes with the same address execute one after the other, each on the
result of the one before it. Blocks execute in grid order, so sums of floating-point numbers from several blocks or
warps are rounded in that order."""

from __future__ import annotations

from collections.abc import Callable

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
    space, (name, type_) = form.space, form.update
    operands = without_policy(asm, instruction, form.hint)
    target, finish = -1, _nothing
    if form.name == "atom":
        result = operands.pop(0)
        place = asm.target(result, type_.name)
        if _is_read(asm, result):
            target, finish = place
    row, bits, offset = asm.address(operands.pop(0))
    sources = [asm.source(operand, type_.name) for operand in operands]
    if asm.watched:
        watch_access(
            asm, instruction, space, row, bits, offset, type_.bytes, "update", strong=strong_effect(asm, instruction)
        )
    is_read = target >= 0
    text, ring = f"{space}.{bits}.{name}.{type_.name}", asm.float_sum(type_) if type_.is_float else None
    title = f"{'atom' if is_read else 'red'}.{text}{asm.suffix if ring else ''}"

    def update(code: OperationCode) -> None:
        _update(code, space, bits, name, type_, returns=is_read, ring=ring)

    asm.record(NativeOperation(title, update), [row, offset, target, *sources])
    finish()


def _is_read(asm: Assembler, result: Operand) -> bool:
    """Whether any instruction reads the result of an atomic operation."""
    if not asm.read:
        asm.read.update(name for each in asm.entry.instructions for name in registers_read(each))
    return isinstance(result, Register) and result.name in asm.read


def _update(
    code: OperationCode,
    space: str,
    bits: int,
    name: str,
    type_: PtxType,
    *,
    returns: bool,
    ring: tuple[str, Compute] | None,
) -> None:
    """Operands are the row of the addresses, an offset, the row of the result, and those of the sources."""
    b, size = code.builder, WORD64(type_.bytes)
    address = located(code, 0, space, bits)
    scratch = code.pointer("places")
    b.store(addresses(code, address, space, type_.bytes).value, scratch, align=64)
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
            place, mine = b.inttoptr(word, POINTER), b.mul(lane, size)
            rows = [code.at(code.row(3 + k), mine) for k in range(2 if name == "cas" else 1)]
            old, *given = (code.load(each, held, type_.lanes, align=type_.bytes) for each in (place, *rows))
            b.store(function(old, *given).value, place, align=type_.bytes)
            if returns:
                b.store(old.value, code.at(code.row(2), mine), align=type_.bytes)


def _nothing() -> None:
    """Returns no result."""
