"""The reports of the checks as plain data: a hazard, and the access that conflicts with it."""

from __future__ import annotations

from dataclasses import dataclass

from warpsan.host.geometry import Dim3

__all__ = ["KINDS", "ConflictingAccess", "Hazard", "Note"]

KINDS = frozenset(
    {
        *("out-of-bounds", "misaligned", "uninitialised", "divergent"),
        *("race", "lane-race", "async", "proxy", "progress"),
        *("barrier", "mbarrier", "cluster", "tensor-map", "wgmma", "registers"),
    }
)
"""Every kind of hazard there is."""


@dataclass(frozen=True)
class ConflictingAccess:
    """The access that a hazard conflicts with: its instruction, and the threads that executed it where they are known.

    Attributes
    ----------
    text : str
        The opcode with its modifiers, or what else it was, such as ``a copy``.
    pc : int
        Index of the instruction in its entry; -1 of what is none.
    ptx_line : int
        Line of the PTX text, from 1; 0 of what is none.
    source : str
        ``file:line`` of the CUDA source, empty without line information.
    block, thread : (int, int, int), optional
    warp : int, optional
        Number of the warp in its block.
    note : str
        How it goes on, such as ``in flight``, or empty.
    frames : tuple of str
        ``file:line:column`` of the source and of the calls through which it was inlined, outwards.
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
        """For a message: ``st.shared.u32 of warp 1 of block (0, 0, 0) at a.cu:3, PTX line 12``."""
        who = f" of thread {self.thread}" if self.thread else "" if self.warp is None else f" of warp {self.warp}"
        block = f" of block {self.block}" if self.block else ""
        note = f" ({self.note})" if self.note else ""
        place = ", ".join(filter(None, (self.source, f"PTX line {self.ptx_line}" if self.ptx_line else "")))
        return f"{self.text}{who}{block}{note}" + (f" at {place}" if place else "")


@dataclass(frozen=True)
class Hazard:
    """What one check reports at one instruction, with the first thread that showed it.

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
    other : ConflictingAccess, optional
        The access that it conflicts with, where there is one.
    text : str
        The opcode with its modifiers.
    what, advice : str
        The parts of the message: what was wrong, with ``{other}`` in place of the conflicting access; and what is
        usually missing, or empty.
    frames : tuple of str
        As those of :class:`ConflictingAccess`.
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
    """What is worth a look at one instruction, and no hazard.

    Attributes
    ----------
    message : str
        A sentence with the place in it.
    pc, ptx_line, source, text, frames
        As those of :class:`Hazard`.
    count : int
        How many copies it is about.
    """

    message: str
    pc: int
    ptx_line: int
    source: str
    text: str
    frames: tuple[str, ...] = ()
    count: int = 0
