"""mbarrier instructions (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").

``try_wait`` blocks until its phase is complete, as a suspended hardware thread does, for any time limit.
"""

from __future__ import annotations

import numpy as np

from warpsan.checks.orders import arrival_order
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Indices, Selection, subset
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand
from warpsan.ptx.synchronising import Mbarrier, MbarrierArrival, MbarrierBytes, MbarrierTest
from warpsan.ptx.types import TYPES
from warpsan.replay.access import Accessor
from warpsan.replay.decoder import Decoder, Step, opcode
from warpsan.replay.mbarriers import PENDING_BITS, Mbarriers, MbarrierWait

__all__ = ["MbarrierOperand"]


class MbarrierOperand:
    """The mbarrier operand of an instruction."""

    def __init__(self, decoder: Decoder, instruction: Instruction, operand: Operand, space: str) -> None:
        self.unit, self.instruction = Mbarriers.of(decoder.machine), instruction
        only = "shared" if space == "generic" else ""
        self.access = Accessor(decoder, instruction, operand, space, 8, only)

    @staticmethod
    def of(decoder: Decoder, instruction: Instruction, operand: Operand) -> MbarrierOperand:
        """The operand of an mbarrier instruction."""
        return MbarrierOperand(decoder, instruction, operand, form_of(instruction, Mbarrier).space)

    def groups(
        self, sel: Selection, *, accessed: bool = True, there: bool = True
    ) -> list[tuple[Selection, int, Indices]]:
        """(lanes, offset in the CTA, CTA of the chunk) for each address.

        ``accessed`` notifies the observers; ``there`` removes lanes without an mbarrier.
        """
        stride = self.unit.machine.shared_stride
        groups: list[tuple[Selection, int, Indices]] = []
        for access in self.access.updates(sel) if accessed else self.access.parts(sel):
            chosen, home, offsets = access.sel, access.index // stride, access.index % stride
            for offset in (offsets[0],) if (offsets == offsets[0]).all() else np.unique(offsets):
                mask = offsets == offset
                lanes, homes = (chosen, home) if mask.all() else (subset(chosen, mask), home[mask])
                if there:
                    usable = self.unit.usable(int(offset), homes)
                    lanes, homes = (lanes, homes) if usable.all() else (subset(lanes, usable), homes[usable])
                if len(homes):
                    groups.append((lanes, int(offset), homes))
        return groups


@opcode("mbarrier.inval")
def _inval(decoder: Decoder, instruction: Instruction) -> Step:
    """Ends the mbarrier; its memory may be reused."""
    mbarrier = MbarrierOperand.of(decoder, instruction, instruction.operands[0])

    def inval(sel: Selection) -> None:
        for _, offset, home in mbarrier.groups(sel):
            mbarrier.unit.invalidate(offset, home)

    return inval


@opcode("mbarrier.init")
def _init(decoder: Decoder, instruction: Instruction) -> Step:
    """An mbarrier whose phases expect the given number of arrivals."""
    mbarrier = MbarrierOperand.of(decoder, instruction, instruction.operands[0])
    unit = mbarrier.unit
    counts = decoder.src(instruction, instruction.operands[1], TYPES["u32"])

    def init(sel: Selection) -> None:
        mbarrier.access.writes(sel)
        for lanes, offset, home in mbarrier.groups(sel, accessed=False, there=False):
            unit.init(offset, home, counts[lanes].astype(np.int64))

    return init


@opcode("mbarrier.arrive", "mbarrier.arrive_drop")
def _arrive(decoder: Decoder, instruction: Instruction) -> Step:
    """Arrivals; ``arrive_drop`` also leaves all later phases."""
    form, order = form_of(instruction, MbarrierArrival), arrival_order(instruction)
    operands = list(instruction.operands)
    if not isinstance(operands[0], Address):  # a state token, which native code computes
        del operands[0]
    mbarrier = MbarrierOperand.of(decoder, instruction, operands[0])
    many = decoder.src(instruction, operands[1] if len(operands) > 1 else Immediate(1), TYPES["u32"])
    unit, observers = mbarrier.unit, decoder.machine.observers

    def step(sel: Selection) -> None:
        for lanes, offset, home in mbarrier.groups(sel):
            amounts = many[lanes].astype(np.int64)
            if form.expects:
                unit.expect(offset, home, amounts)
            for observer in observers:
                observer.arrive(CompletionBarrier(offset, home), lanes, order)
            counts = np.ones(len(home), dtype=np.int64) if form.expects else amounts
            if form.name == "mbarrier.arrive_drop":
                unit.drop(offset, home, counts)
            unit.arrive(offset, home, counts)

    return step


@opcode("mbarrier.expect_tx", "mbarrier.complete_tx")
def _transactions(decoder: Decoder, instruction: Instruction) -> Step:
    """Bytes that a phase expects, and bytes that have arrived."""
    mbarrier = MbarrierOperand.of(decoder, instruction, instruction.operands[0])
    many = decoder.src(instruction, instruction.operands[1], TYPES["u32"])
    act = (
        mbarrier.unit.expect
        if form_of(instruction, MbarrierBytes).name == "mbarrier.expect_tx"
        else mbarrier.unit.bytes_came
    )

    def step(sel: Selection) -> None:
        for lanes, offset, home in mbarrier.groups(sel):
            act(offset, home, many[lanes])

    return step


class _Wait:
    """The operands of test_wait and try_wait."""

    def __init__(self, decoder: Decoder, instruction: Instruction) -> None:
        self.instruction, self.parity = instruction, form_of(instruction, MbarrierTest).parity
        self.order = arrival_order(instruction)
        self.mbarrier = MbarrierOperand.of(decoder, instruction, instruction.operands[1])
        self.state = decoder.src(instruction, instruction.operands[2], TYPES["u32" if self.parity else "b64"])

    def entries(self, sel: Selection) -> list[MbarrierWait]:
        """The phase that each group of lanes waits for; lanes without an mbarrier are left out."""
        entries: list[MbarrierWait] = []
        for lanes, offset, home in self.mbarrier.groups(sel):
            now = self.mbarrier.unit.objects[offset].phase[home]
            if self.parity:  # the current phase if it has that parity, otherwise the one before
                phase = np.where((self.state[lanes] & 1) == now & 1, now, now - 1)
            else:
                phase = (self.state[lanes] >> PENDING_BITS).astype(np.int64)
            entries.append(MbarrierWait(lanes, offset, home, phase, self.order))
        return entries


@opcode("mbarrier.test_wait", "mbarrier.try_wait")
def _wait(decoder: Decoder, instruction: Instruction) -> Step:
    """Whether a phase is complete; ``try_wait`` blocks until it is."""
    wait, blocks = _Wait(decoder, instruction), form_of(instruction, MbarrierTest).name == "mbarrier.try_wait"
    unit = wait.mbarrier.unit

    def step(sel: Selection) -> None:
        for entry in wait.entries(sel):
            over = unit.objects[entry.offset].phase[entry.home] > entry.phase
            if over.any():
                unit.complete(entry.part(over))
            if blocks and not over.all():
                unit.waiting.append(entry.part(~over))

    return step
