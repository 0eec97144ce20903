"""The other party of a hazard: the instruction that an access has a quarrel with, and who executed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdpalab.sim.ir import Instruction

if TYPE_CHECKING:
    from sdpalab.sim.machine import Dim3, Machine

__all__ = ["Party", "party_at", "party_of"]


@dataclass(frozen=True)
class Party:
    """An instruction, and what is known of who executed it; None is what is not.

    Attributes
    ----------
    text : str
        The opcode with its modifiers.
    pc : int
        Index of the instruction in its entry.
    ptx_line : int
        Line of the PTX text, from 1.
    source : str
        ``file:line`` of the CUDA source, empty without line information.
    block, thread : (int, int, int), optional
    warp : int, optional
        Number of the warp in its block.
    note : str
        How it goes on, such as ``in flight``, or empty.
    """

    text: str
    pc: int
    ptx_line: int
    source: str
    block: Dim3 | None = None
    warp: int | None = None
    thread: Dim3 | None = None
    note: str = ""

    def __str__(self) -> str:
        """For a message: ``st.shared.u32 of warp 1 of block (0, 0, 0) at a.cu:3, PTX line 12``."""
        who = f" of thread {self.thread}" if self.thread else "" if self.warp is None else f" of warp {self.warp}"
        block = f" of block {self.block}" if self.block else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.text}{who}{block}{note} at {f'{self.source}, ' if self.source else ''}PTX line {self.ptx_line}"


def party_of(
    machine: Machine,
    instruction: Instruction,
    *,
    block: Dim3 | None = None,
    warp: int | None = None,
    thread: Dim3 | None = None,
    note: str = "",
) -> Party:
    """An instruction of a machine's entry as a party."""
    source = machine.source(instruction)
    return Party(instruction.text, instruction.pc, instruction.line, source, block, warp, thread, note)


def party_at(machine: Machine, instruction: Instruction, lane: int, note: str = "") -> Party:
    """An instruction as a party that a lane of the machine's chunk has executed."""
    block, thread = machine.where(lane)
    return party_of(machine, instruction, block=block, warp=machine.warp_of(lane), thread=thread, note=note)
