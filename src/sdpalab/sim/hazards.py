"""What the checks report: one hazard for each place in the code, with the first thread that showed it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sdpalab.sim.errors import SimError
from sdpalab.sim.ir import Instruction
from sdpalab.sim.machine import Dim3, Machine
from sdpalab.sim.party import Party

__all__ = ["KINDS", "Hazard", "HazardLog"]

KINDS = frozenset(
    {
        *("out-of-bounds", "misaligned", "uninitialised", "divergent"),
        *("race", "lane-race", "async", "proxy"),
        *("barrier", "mbarrier", "cluster", "tensor-map", "wgmma", "registers"),
    }
)
"""Every kind of hazard there is."""


@dataclass(frozen=True)
class Hazard:
    """One finding.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    message : str
        A sentence with everything below in it, and what is usually missing.
    pc : int
        Index of the instruction in its entry.
    ptx_line : int
        Line of the PTX text, from 1.
    source : str
        ``file:line`` of the CUDA source, empty without line information.
    block, thread : (int, int, int)
        The first thread that showed it.
    other : Party, optional
        What it has a quarrel with, where there is such a thing.
    """

    kind: str
    message: str
    pc: int
    ptx_line: int
    source: str
    block: Dim3
    thread: Dim3
    other: Party | None = None


class HazardLog:
    """Collects hazards, one for each kind and instruction."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Hazard] = {}

    def add(
        self,
        machine: Machine,
        kind: str,
        instruction: Instruction,
        lane: int,
        what: str,
        usually: str = "",
        other: Party | None = None,
    ) -> None:
        """Record ``what`` at an instruction, as seen by a lane; later ones of the same kind and place are dropped.

        ``{other}`` in it stands for the other party.
        """
        assert kind in KINDS, f"no such kind of hazard: {kind}"
        if (kind, instruction.pc) in self._found:
            return
        block, thread = machine.where(lane)
        source = machine.source(instruction)
        place = f"{source}, " if source else ""
        what = what.replace("{other}", str(other))
        message = (
            f"{kind}: {what} ({instruction.text} at {place}PTX line {instruction.line}; block {block}, thread {thread})"
        )
        if usually:
            message += f"; {usually}"
        hazard = Hazard(kind, message, instruction.pc, instruction.line, source, block, thread, other)
        self._found[kind, instruction.pc] = hazard

    def seen(self, kind: str, instruction: Instruction) -> bool:
        """True if that kind was recorded at that instruction."""
        return (kind, instruction.pc) in self._found

    def hazards(self) -> list[Hazard]:
        """All hazards in the order of the code."""
        return sorted(self._found.values(), key=lambda hazard: (hazard.pc, hazard.kind))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What stops the launch in this context carries what was found before (:attr:`SimError.hazards`)."""
        try:
            yield
        except SimError as error:
            error.hazards = tuple(self.hazards())
            raise
