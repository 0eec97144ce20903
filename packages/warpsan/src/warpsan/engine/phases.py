"""``mbarrier.test_wait``, a test for complete phases of mbarriers: machine code (:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import LEFT_OUT
from warpsan.engine.mbarriers import break_mbarrier_rule, mbarrier_instruction, named_mbarrier, pass_on, use_mbarrier
from warpsan.engine.memory import MbarrierState, Record
from warpsan.engine.rules import OLD_PHASE
from warpsan.engine.suspects import is_status
from warpsan.engine.words import load32, load64, store32

__all__ = ["test_phase"]


def test_phase(registers: int, record: Record, mask: int, context: Context) -> int:
    """Operands are the address's row and offset, the row of the parities or state tokens, whether these are tokens,
    its order (:func:`~.mbarriers.arrive_in_order`), the row of the result, and the pc."""
    row, shift = registers + record.operands[0], record.operands[1]
    asked, tokens = registers + record.operands[2], record.operands[3]
    result = registers + record.operands[5]
    place, pc = record.operands[0], record.operands[6]
    mbarrier_instruction(context, registers, place, shift, mask, pc)
    passed = 0
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        actual = named_mbarrier(context, lane, load64(row + 8 * lane) + shift)
        if actual == LEFT_OUT:  # no phase to wait for
            store32(result, load32(result) | 1 << lane)
            continue
        if is_status(actual):
            return actual
        entry = MbarrierState(actual)
        status = use_mbarrier(context, entry, lane)
        if status != 0:
            return status
        now = entry.phase
        if tokens:
            phase = load64(asked + 8 * lane) >> 32 & 0xFFFFFFFF
        else:  # the present phase, or the one before
            phase = now if load32(asked + 4 * lane) & 1 == now & 1 else now - 1
        status = break_mbarrier_rule(context, OLD_PHASE, 1 << lane, entry.offset) if phase < now - 1 else 0
        if status != 0:
            return status
        if phase >= now:
            store32(result, load32(result) & ~(1 << lane))
            continue
        store32(result, load32(result) | 1 << lane)
        passed |= 1 << lane
        if context.checked != 0:
            pass_on(context, context.current, entry, passed, record.operands[4])
    return 0
