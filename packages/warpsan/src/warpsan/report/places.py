"""Places of a launch in messages: instructions, threads, and memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from warpsan.checks.provenance import home_buffers, pointer_origins
from warpsan.engine.arrays import WARP
from warpsan.engine.decoded import Decoded
from warpsan.engine.memory import HazardRow
from warpsan.host.memory import Extent, Space
from warpsan.host.setup import Setup
from warpsan.ptx.ir import Instruction
from warpsan.ptx.source_lines import frames_of, source_of
from warpsan.report.hazard_log import ThreadPlace, conflicting_access_of
from warpsan.report.hazards import ConflictingAccess

__all__ = ["Places"]


@dataclass(frozen=True)
class Places:
    """A launch, as messages refer to it.

    Attributes
    ----------
    setup : Setup
    space : Space
        Global memory.
    """

    setup: Setup
    space: Space

    @cached_property
    def homes(self) -> dict[int, Extent]:
        """The buffer that an access must stay in, by its pc, if it is known (the ``provenance`` check)."""
        if "provenance" not in self.setup.checks:
            return {}
        return home_buffers(pointer_origins(self.setup.entry), self.setup.params, self.space.extents)

    @property
    def limits(self) -> dict[str, int]:
        """Bytes of the memory of a CTA or a thread, by state space."""
        symbols = self.setup.symbols
        return {"shared": symbols.shared_bytes, "local": symbols.local_bytes}

    def source(self, instruction: Instruction) -> str:
        """As :func:`~warpsan.ptx.source_lines.source_of`."""
        return source_of(self.setup.module, instruction)

    def frames(self, instruction: Instruction) -> tuple[str, ...]:
        """As :func:`~warpsan.ptx.source_lines.frames_of`."""
        return frames_of(self.setup.module, instruction)

    def thread(self, cta: int, warp: int, lanes: int) -> ThreadPlace:
        """The first of some lanes, given as bits, of a warp of the CTA with this linear index."""
        geometry, lane = self.setup.geometry, (lanes & -lanes).bit_length() - 1
        return ThreadPlace(geometry.block_at(cta), geometry.thread_at(WARP * warp + lane), warp)

    def instruction(self, row: HazardRow, decoded: Decoded) -> Instruction:
        """The instruction of a hazard."""
        return self.setup.entry.instructions[decoded.places[row.record]]

    def of(self, row: HazardRow) -> ThreadPlace:
        """The first thread of a hazard."""
        return self.thread(row.cta, row.warp, row.lanes)

    def other(self, row: HazardRow, note: str = "") -> ConflictingAccess | None:
        """The conflicting access of a hazard, if it has one; without lanes, its warp alone is known."""
        if row.other_pc < 0:
            return None
        if row.other_lanes:
            return self.access(row.other_pc, self.thread(row.other_cta, row.other_warp, row.other_lanes), note)
        instruction, block = self.setup.entry.instructions[row.other_pc], self.setup.geometry.block_at(row.other_cta)
        return conflicting_access_of(self, instruction, block=block, warp=row.other_warp, note=note)

    def access(self, pc: int, place: ThreadPlace, note: str = "") -> ConflictingAccess:
        """An instruction that a thread has executed, as a conflicting access."""
        instruction, where = self.setup.entry.instructions[pc], (place.block, place.warp, place.thread)
        return conflicting_access_of(self, instruction, block=where[0], warp=where[1], thread=where[2], note=note)
