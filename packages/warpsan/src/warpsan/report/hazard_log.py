"""Log of the hazards of a launch, with their places in the code and first threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from warpsan.engine.arrays import Array
from warpsan.errors import Deadlock, SimError
from warpsan.host.geometry import Dim3
from warpsan.ptx.ir import Entry, Instruction, PtxModule
from warpsan.ptx.source_lines import frames_of, source_of
from warpsan.report.hazards import KINDS, ConflictingAccess, Hazard, Note

__all__ = [
    "HazardLog",
    "InstructionSources",
    "ThreadPlace",
    "Wording",
    "conflicting_access_of",
    "unwaited_copies",
]


@dataclass(frozen=True)
class Wording:
    """The text of a hazard: the error, with ``{other}`` in place of the conflicting access, and its usual cause."""

    what: str
    advice: str = ""
    other: ConflictingAccess | None = None


@dataclass(frozen=True)
class ThreadPlace:
    """A thread of a launch, and its warp's number in the block."""

    block: Dim3
    thread: Dim3
    warp: int


class InstructionSources(Protocol):
    """The source text of a launch's instructions."""

    def source(self, instruction: Instruction) -> str:
        """As :func:`~warpsan.ptx.source_lines.source_of`."""

    def frames(self, instruction: Instruction) -> tuple[str, ...]:
        """As :func:`~warpsan.ptx.source_lines.frames_of`."""


class HazardLog:
    """Log of hazards, one per kind and instruction."""

    def __init__(self) -> None:
        self._hazards: dict[tuple[str, int], Hazard] = {}
        self._at_end: set[tuple[str, int]] = set()

    def put(
        self,
        sources: InstructionSources,
        kind: str,
        instruction: Instruction,
        place: ThreadPlace,
        wording: Wording,
        *,
        at_end: bool = False,
    ) -> None:
        """Record a hazard of a thread at an instruction; others of the same kind and instruction are dropped.

        The first one stays, unless it was recorded ``at_end`` of a block: such a hazard has an earlier cause.
        """
        assert kind in KINDS, f"no such kind of hazard: {kind}"
        key = kind, instruction.pc
        if key in self._hazards and (at_end or key not in self._at_end):
            return
        self._at_end.discard(key)
        if at_end:
            self._at_end.add(key)
        source = sources.source(instruction)
        described = wording.what.replace("{other}", str(wording.other))
        at = f"{source}, " if source else ""
        message = (
            f"{kind}: {described} ({instruction.text} at {at}PTX line {instruction.line}; block {place.block}, "
            f"thread {place.thread})"
        )
        if wording.advice:
            message += f"; {wording.advice}"
        self._hazards[kind, instruction.pc] = Hazard(
            *(kind, message, instruction.pc, instruction.line, source, place.block, place.thread, wording.other),
            *(instruction.text, wording.what, wording.advice, sources.frames(instruction)),
        )

    def hazards(self) -> list[Hazard]:
        """All hazards in code order."""
        return sorted(self._hazards.values(), key=lambda hazard: (hazard.pc, hazard.kind))

    @contextmanager
    def attach_to_errors(self) -> Iterator[None]:
        """Attach the recorded hazards to an error that ends the launch in this context (:attr:`SimError.hazards`).

        The message of a deadlock includes the first hazard, which is often its cause.
        """
        try:
            yield
        except SimError as error:
            error.hazards = tuple(self.hazards())
            if isinstance(error, Deadlock) and self._hazards:
                first = next(iter(self._hazards.values()))
                error.args = (f"{error.args[0]}; before that, {first.message}",)
            raise


def conflicting_access_of(
    sources: InstructionSources,
    instruction: Instruction,
    *,
    block: Dim3 | None = None,
    warp: int | None = None,
    thread: Dim3 | None = None,
    note: str = "",
) -> ConflictingAccess:
    """An instruction of a launch's entry as a conflicting access."""
    source, frames = sources.source(instruction), sources.frames(instruction)
    place = instruction.text, instruction.pc, instruction.line, source
    return ConflictingAccess(*place, block, warp, thread, note, frames)


def unwaited_copies(module: PtxModule, entry: Entry, many: Array) -> tuple[Note, ...]:
    """A note per instruction, by pc, with copies that their threads did not wait for."""
    notes: list[Note] = []
    for pc in np.flatnonzero(many).tolist():
        instruction = entry.instructions[pc]
        source = source_of(module, instruction)
        place = ", ".join(filter(None, (source, f"PTX line {instruction.line}")))
        message = f"threads end without a wait for what they copied by {instruction.text} at {place}"
        frames = frames_of(module, instruction)
        notes.append(Note(message, pc, instruction.line, source, instruction.text, frames, int(many[pc])))
    return tuple(notes)
