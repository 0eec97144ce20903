"""mbarriers, and addresses in the shared memory of a cluster (PTX ISA, "mbarrier")."""

from __future__ import annotations

from warpsan.checks.orders import SAME_CLUSTER, arrival_order
from warpsan.engine import layout
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.mbarriers import arrive_at, begin_mbarrier, count_bytes, end_mbarrier
from warpsan.engine.phases import test_phase
from warpsan.engine.transfers import arrive_behind_copies
from warpsan.host.memory import SHARED_BASE
from warpsan.ptx.grammar import Form
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand, Symbol
from warpsan.ptx.synchronising import (
    CopyArrival,
    Mbarrier,
    MbarrierArrival,
    MbarrierBytes,
    MbarrierTest,
    MbarrierWait,
)

__all__ = ["shared_address", "wide_row"]


def shared_address(asm: Assembler, operand: Operand, space: str) -> tuple[int, int]:
    """An address of shared memory, including the cluster's, as a row of 64 bits and an offset."""
    row, bits, offset = asm.address(operand)
    if space not in ("shared", "shared::cluster", "generic"):
        raise asm.unsupported(f"shared memory, not .{space}")
    row = wide_row(asm, row, bits)
    if space == "generic":  # addresses of other spaces are then in no CTA's shared memory
        within = asm.temporary(64)
        asm.lanewise("generic.shared", lambda x: x - SHARED_BASE, [within], [row], ["u64"], ["u64"])
        row = within
    return row, offset


def wide_row(asm: Assembler, row: int, bits: int) -> int:
    """The row of an address of 64 bits, or of 32 bits, which are extended."""
    if bits == 64:
        return row
    wide = asm.temporary(64)
    asm.resize(row, 32, wide, 64, signed=False)
    return wide


def order_number(asm: Assembler, instruction: Instruction) -> int:
    """The memory order and the scope of an arrival or a wait, as in
    :func:`warpsan.engine.mbarriers.arrive_in_order`.

    PTX defines ``.cta`` as the scope of an instruction without one; only the ``strict`` check applies it.
    """
    order = arrival_order(instruction)
    level = SAME_CLUSTER if order.implied and not asm.default_scope_is_cta else order.level
    return level + 1 if order.release else -(level + 1)


@native("mbarrier.init")
def _init(asm: Assembler, instruction: Instruction, form: Mbarrier) -> None:
    """An mbarrier whose phases expect the given number of arrivals."""
    place = shared_address(asm, instruction.operands[0], form.space)
    count = asm.source(instruction.operands[1], "u32")
    asm.call("mbarrier.init", begin_mbarrier, [*place, count, instruction.pc])


@native("mbarrier.arrive", "mbarrier.arrive_drop")
def _arrive(asm: Assembler, instruction: Instruction, form: MbarrierArrival) -> None:
    """Arrivals; ``arrive_drop`` also leaves all later phases."""
    operands = list(instruction.operands)
    token, finish = -1, _nothing
    if not isinstance(operands[0], Address):
        target = operands.pop(0)
        if not isinstance(target, Symbol) or target.name != "_":
            if form.space == "shared::cluster":
                raise asm.unsupported("an mbarrier of another CTA gives no state token")
            token, finish = asm.target(target, "b64")
    place = shared_address(asm, operands[0], form.space)
    many = asm.source(operands[1] if len(operands) > 1 else Immediate(1), "u32")
    order, drops = order_number(asm, instruction), form.name == "mbarrier.arrive_drop"
    words = [*place, many, int(form.expects), instruction.pc, order, token, int(drops), int(form.incomplete)]
    asm.call("mbarrier.arrive", arrive_at, words)
    finish()


def _nothing() -> None:
    """Returns no result."""


@native("mbarrier.test_wait")
def _test_wait(asm: Assembler, instruction: Instruction, form: MbarrierTest) -> None:
    """Whether a phase is complete."""
    target, address, state = instruction.operands
    place = shared_address(asm, address, form.space)
    asked = asm.source(state, "u32" if form.parity else "b64")
    row, finish = asm.target(target, "pred")
    words = [*place, asked, int(not form.parity), order_number(asm, instruction), row, instruction.pc]
    asm.call("mbarrier.test_wait", test_phase, words)
    finish()


@native("mbarrier.expect_tx", "mbarrier.complete_tx")
def _transactions(asm: Assembler, instruction: Instruction, form: MbarrierBytes) -> None:
    """Bytes that a phase expects, and bytes that have arrived."""
    (address, number) = instruction.operands
    place, many = shared_address(asm, address, form.space), asm.source(number, "u32")
    asm.call("mbarrier.tx", count_bytes, [*place, many, int(form.name == "mbarrier.expect_tx"), instruction.pc])


@native("cp.async.mbarrier.arrive")
def _arrive_behind_copies(asm: Assembler, instruction: Instruction, form: CopyArrival) -> None:
    """The lane arrives after its copies so far have landed; without ``.noinc``, the phase also expects this arrival."""
    place = shared_address(asm, instruction.operands[0], form.space)
    words = [*place, int(form.expected), instruction.pc]
    asm.call("mbarrier.copies", arrive_behind_copies, words)


@native("mbarrier.inval")
def _inval(asm: Assembler, instruction: Instruction, form: Mbarrier) -> None:
    """Ends the mbarrier; its memory may be reused."""
    place = shared_address(asm, instruction.operands[0], form.space)
    asm.call("mbarrier.inval", end_mbarrier, [*place, instruction.pc])


@native("mbarrier.pending_count")
def _pending_count(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """The number of arrivals that a phase still expected when a state token was made."""
    asm.elementwise(instruction, "mbarrier.pending_count", lambda x: x.to("u32"), "u32", "u64")


@native("mbarrier.try_wait")
def _try_wait(asm: Assembler, instruction: Instruction, form: MbarrierWait) -> None:
    """Blocks until the phase of a parity or a state token is complete, whatever its time limit."""
    target, address, state, *limit = instruction.operands
    if limit:
        asm.source(limit[0], "u32")
    row, finish = asm.target(target, "pred")
    finish()
    asm.end |= {"end": layout.END_TRY_WAIT, "end_d": row, "end_pc": instruction.pc}
    asm.end["end_e"] = order_number(asm, instruction)
    asm.end["end_a"], asm.end["end_b"] = shared_address(asm, address, form.space)
    asm.end["end_c"] = asm.source(state, "u32" if form.parity else "b64")
    asm.end["end_token"] = int(not form.parity)
