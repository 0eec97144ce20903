"""Shared memory by bits, for the check that follows undefined values (:mod:`~sdpalab.sim.checks.tracking`)."""

from __future__ import annotations

import numpy as np

from sdpalab.sim.checks.memory import MemoryCheck
from sdpalab.sim.checks.registers import report_unset
from sdpalab.sim.checks.shadow import Shadow
from sdpalab.sim.checks.tracking import TrackingCheck
from sdpalab.sim.definedness import loads_shared
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.ir import Instruction
from sdpalab.sim.machine import Machine
from sdpalab.sim.memory import WORDS
from sdpalab.sim.observer import Access
from sdpalab.sim.selection import WARP, Array, Indices, Mask, indices

__all__ = ["TrackedMemory"]


class TrackedMemory(MemoryCheck):
    """The shadow of shared memory, by bits, with the origin of what is undefined in it."""

    def __init__(self, machine: Machine, log: HazardLog, registers: TrackingCheck) -> None:
        super().__init__(machine, log)
        self.registers = registers
        self.origins = Shadow(len(machine.spaces["shared"].data), 4)
        machine.on_reset.append(self.origins.clear)

    def load(self, access: Access) -> None:
        """Undefined bytes go on into registers, where an instruction has some for them."""
        instruction = access.instruction
        if access.space.name != "shared":
            return
        if not loads_shared(instruction):
            super().load(access)
            return
        defined = self.shadow.load(access.index, access.width).view(np.uint8).reshape(-1, access.width)
        if (defined == 0xFF).all():
            return
        self.log.unwritten_reads = True
        words = ~defined
        bad: Mask = np.asarray(words.any(axis=1))
        lane, offset = int(indices(access.sel)[bad][0]), int(access.offset[bad][0])
        self.registers.undefined_reads.read(instruction.pc, lane, access.width, offset)
        origins = self.origins.gather(access.index, access.width).max(axis=1)
        self.registers.loaded(access, words, origins, "trans" in instruction.mods)

    def store(self, access: Access, words: Array | None) -> None:
        """What is stored is as defined as its registers."""
        super().store(access, words)
        pending = self.registers.pending.get(access.instruction.pc)
        if pending is None or words is None:
            return
        instruction, (lanes, shadows, origins, names) = access.instruction, pending
        row = np.searchsorted(lanes, indices(access.sel))
        lanes, shadows, origins = lanes[row], shadows[row], origins[row]
        bad = shadows.any(axis=1)
        unset: Mask = bad & (origins == 0)
        if unset.any():
            self.log.unwritten_reads = True
            lane, name = _first_register(instruction, lanes[unset], shadows[unset], names)
            if access.space.name == "global":
                report_unset(self.machine, self.log, instruction, lane, name, "as a stored value")
            else:
                self.registers.undefined_reads.stored(instruction.pc, lane, name)
        if access.space.name == "global":
            for origin in np.unique(origins[bad & (origins != 0)]):
                lane = int(lanes[bad & (origins == origin)][0])
                self.registers.undefined_reads.matter(int(origin) - 1, instruction, lane, "as a stored value")
        elif access.space.name == "shared":
            mine = np.ascontiguousarray(~shadows)
            self.shadow.store(access.index, access.width, mine.view(WORDS[access.width])[:, 0])
            origins = np.where(unset, np.uint32(instruction.pc + 1), origins)
            self.origins.scatter(access.index[bad], access.width, origins[bad])


def _first_register(instruction: Instruction, lanes: Indices, shadows: Array, names: list[str]) -> tuple[int, str]:
    """Of the registers that a store stores with undefined bits, the first, and the first lane in which it is that."""
    if instruction.opcode == "stmatrix":  # a lane points to a row of one matrix
        stored = np.arange(len(names)) == (lanes % WARP // 8)[:, None]
    else:
        stored = shadows.reshape(len(lanes), len(names), -1).any(axis=2)
    place = int(stored.any(axis=0).argmax())
    return int(lanes[stored[:, place]][0]), names[place]
