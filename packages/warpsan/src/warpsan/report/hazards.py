"""Reports of the checks as plain data: hazards and their conflicting accesses."""

from __future__ import annotations

from dataclasses import dataclass

from warpsan.host.geometry import Dim3

__all__ = ["KINDS", "ConflictingAccess", "Hazard", "Note"]

KINDS = frozenset(
    {
        *("out-of-bounds", "misaligned", "uninitialised", "divergent"),
        *("race", "lane-race", "async", "proxy", "progress"),
        *("barrier", "mbarrier", "cluster", "tensor-map", "tensor-memory", "wgmma", "registers"),
    }
)
"""All hazard kinds."""


@dataclass(frozen=True)
class ConflictingAccess:
    """The access that conflicts with a hazard's access: its instruction, and its threads if known.

    Attributes
    ----------
    text : str
        Opcode with modifiers, or another operation such as ``a copy``.
    pc : int
        Index of the instruction in its entry; -1 for another operation.
    ptx_line : int
        Line of the PTX text, from 1; 0 for another operation.
    source : str
        ``file:line`` of the CUDA source, empty without line information.
    block, thread : (int, int, int), optional
    warp : int, optional
        Number of the warp in its block.
    note : str
        State of the access, such as ``in flight``, or empty.
    frames : tuple of str
        ``file:line:column`` of the source and of the calls that inlined it, innermost first.
    """

    text: str
    pc: int
    ptx_line: int
    source: str
    block: Dim3 | None = None
    warp: int | None = None
    thread: Dim3 | None = None
    note: str = ""
    frames: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Message text: ``st.shared.u32 of warp 1 of block (0, 0, 0) at a.cu:3, PTX line 12``."""
        who = f" of thread {self.thread}" if self.thread else "" if self.warp is None else f" of warp {self.warp}"
        block = f" of block {self.block}" if self.block else ""
        note = f" ({self.note})" if self.note else ""
        place = ", ".join(filter(None, (self.source, f"PTX line {self.ptx_line}" if self.ptx_line else "")))
        return f"{self.text}{who}{block}{note}" + (f" at {place}" if place else "")


@dataclass(frozen=True)
class Hazard:
    """A report of one check at one instruction, with the first thread.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    message : str
        A sentence with all attributes below, and the probable missing synchronization.
    pc : int
        Index of the instruction in its entry.
    ptx_line : int
        Line of the PTX text, from 1.
    source : str
        ``file:line`` of the CUDA source, empty without line information.
    block, thread : (int, int, int)
        First thread with the hazard.
    other : ConflictingAccess, optional
        The conflicting access, if any.
    text : str
        Opcode with modifiers.
    what, advice : str
        Parts of the message: the error, with ``{other}`` in place of the conflicting access; and the probable missing
        synchronization, or empty.
    frames : tuple of str
        As in :class:`ConflictingAccess`.
    """

    kind: str
    message: str
    pc: int
    ptx_line: int
    source: str
    block: Dim3
    thread: Dim3
    other: ConflictingAccess | None = None
    text: str = ""
    what: str = ""
    advice: str = ""
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note:
    """A remark about one instruction that is not a hazard.

    Attributes
    ----------
    message : str
        A sentence with the place.
    pc, ptx_line, source, text, frames
        As in :class:`Hazard`.
    count : int
        Number of copies it refers to.
    """

    message: str
    pc: int
    ptx_line: int
    source: str
    text: str
    frames: tuple[str, ...] = ()
    count: int = 0
