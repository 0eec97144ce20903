"""Records of accesses and fences in launches with stale reads: they call :class:`~warpsan.engine.stale.StaleReads`.

The operation of an access computes addresses, checks them and converts values as always, but reads from and writes to
the scratch, where each lane has :data:`~warpsan.engine.layout.STALE_BYTES`; Python moves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from warpsan.checks.orders import is_memory_fence
from warpsan.engine import layout
from warpsan.engine.assembler import Assembler
from warpsan.engine.lanes import POINTER, WORD32, WORD64, Lanes, where
from warpsan.engine.layout import WARP
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.stale import LateRow, StaleAccess, StaleFence, StaleSettling
from warpsan.ptx.ir import Instruction, Operand, Register
from warpsan.ptx.types import PtxType

__all__ = [
    "is_stale",
    "lanes_that_differ",
    "late_rows",
    "settle_loads",
    "stale_fence",
    "stale_record",
    "through_python",
    "write_out",
]


def is_stale(asm: Assembler, space: str) -> bool:
    """Whether Python executes accesses to a space."""
    return asm.late is not None and space in ("global", "shared", "shared::cluster", "generic")


def stale_record(
    asm: Assembler,
    operation: NativeOperation,
    operands: Sequence[int],
    call: StaleAccess | StaleFence | StaleSettling,
) -> None:
    """Append a record that calls Python; the number of the call is its last operand."""
    asm.stale_calls.append(call)
    padding = [0] * (layout.LAST_OPERAND - len(operands))
    asm.record(operation, [*operands, *padding, len(asm.stale_calls) - 1])


def late_rows(
    asm: Assembler, instruction: Instruction, items: Sequence[Operand], type_: PtxType
) -> tuple[LateRow, ...]:
    """The targets of the elements of a load that may read later than its place in the program."""
    if asm.late is None or instruction.pc not in asm.late:
        return ()
    targets = [
        (asm.rows[each.name], asm.types[each.name].bits) if isinstance(each, Register) else (-1, 8) for each in items
    ]
    return tuple(LateRow(row, bits, type_.signed) for row, bits in targets)


def _ask(code: OperationCode, place: Lanes | None) -> None:
    """Call Python for the active lanes, which access these addresses."""
    b = code.builder
    if place is not None:
        b.store(place.value, code.at(code.pointer(layout.SCRATCH), WORD64(layout.STALE_PLACES)), align=64)
    signature = ir.FunctionType(WORD64, [POINTER, POINTER, WORD32, POINTER])
    function = b.inttoptr(code.context(layout.STALE_ACCESS), signature.as_pointer())
    status = b.call(function, [code.registers, code.record, code.mask, code.base])
    with b.if_then(b.icmp_signed("!=", status, WORD64(layout.DONE)), likely=False):
        b.ret(status)


def through_python(code: OperationCode, place: Lanes, *, reads: bool) -> Lanes:
    """Addresses in the scratch that stand for those of the lanes. The values to read are already there, poison for
    lanes that read nothing; :func:`write_out` executes the writes."""
    slots = place.each("s64", [layout.STALE_BYTES * lane for lane in range(WARP)])
    slots = slots + code.spread(code.context(layout.SCRATCH), "s64") + layout.STALE_WORDS
    if not reads:
        return slots
    _ask(code, place)
    return where(code.active, slots, place)


def write_out(code: OperationCode, place: Lanes) -> None:
    """Python writes the scratch to the lanes' addresses."""
    _ask(code, place)


def lanes_that_differ(code: OperationCode) -> Any:
    """The active lanes that find another lane's value in the place that they have just written, an ``i32``."""
    word = code.at(code.pointer(layout.SCRATCH), WORD64(layout.STALE_DIFFER))
    return code.builder.and_(code.builder.load(word, typ=WORD32), code.mask)


def stale_fence(asm: Assembler, instruction: Instruction) -> None:
    """Append the record of a fence of memory."""
    if asm.late is not None and is_memory_fence(instruction):
        stale_record(asm, _CALL, [], StaleFence(instruction.pc))


def settle_loads(asm: Assembler, instructions: Sequence[Instruction]) -> None:
    """Append the record before instructions that loads must precede."""
    here = {each.pc for each in instructions}
    ended = frozenset(load for load, end in (asm.late or {}).items() if end in here)
    if ended:
        asm.begin(instructions[0])
        asm.guard = 0  # for all lanes that reach it
        stale_record(asm, _CALL, [], StaleSettling(ended))


def _call(code: OperationCode) -> Any:
    _ask(code, None)


_CALL = NativeOperation("stale.call", _call)
