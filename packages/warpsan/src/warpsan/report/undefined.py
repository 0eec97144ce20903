"""Texts of undefined values: reads of unwritten memory, uses of registers that were never set.

A value that an instruction computes from undefined bits is undefined; a report needs a use as an address, stored value
or branch condition, or by other lanes or units (:mod:`warpsan.engine.undefined`). A value that is set and used under
the same condition is therefore never reported, whatever the compiler computes in between. The idea is that of
MemorySanitizer (Stepanov and Serebryany, CGO 2015). Values in local memory and function arguments count as set.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from warpsan.host.memory import RANK_SHIFT, Space
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog, ThreadPlace, Wording
from warpsan.report.places import Places

__all__ = ["UndefinedUses", "unset_stored", "unset_used", "unwritten_global", "unwritten_shared"]

_USUALLY = "usually a missing barrier or zero fill"
_USUALLY_GLOBAL = "usually a buffer that the host did not clear or copy to, or an output that is accumulated into"
_USUALLY_UNSET = "usually a variable that is set in one branch only, or an accumulator that is not zeroed"


def unwritten_shared(width: int, offset: int) -> Wording:
    """Bytes of shared memory."""
    offset &= (1 << RANK_SHIFT) - 1
    return Wording(f"{width} bytes of shared memory at offset {offset} are read before they were written", _USUALLY)


def unwritten_global(space: Space, width: int, offset: int) -> Wording:
    """Bytes of global memory, by the buffer in which they lie."""
    extent = space.extent_near(offset)
    place = f"offset {offset}"
    if extent is not None:
        place = f"byte {offset - extent.begin} of {extent.name}"
        if extent.shape:
            index = np.unravel_index((offset - extent.begin) // extent.itemsize, extent.shape)
            place += f", in {extent.name}[{', '.join(str(int(each)) for each in index)}],"
    many, are, them = ("byte", "is", "it") if width == 1 else ("bytes", "are", "them")
    return Wording(
        f"{width} {many} of global memory at {place} {are} read before anything wrote {them}", _USUALLY_GLOBAL
    )


def unset_used(name: str, role: str) -> Wording:
    """A use of a register that was never set, in a role such as ``as an address``."""
    return Wording(f"register {name.split('@')[0]} is used {role}, and was never set", _USUALLY_UNSET)


def unset_stored(name: str) -> Wording:
    """A store of a register that was never set to shared memory, whose value is used."""
    return Wording(
        f"register {name.split('@')[0]} is stored to shared memory, was never set, and is used", _USUALLY_UNSET
    )


class UndefinedUses:
    """Origins of undefined bits and their uses: for each load, and each copy from global memory, the first read of
    unwritten bytes; for each store, the first register that was never set."""

    def __init__(self, places: Places, log: HazardLog) -> None:
        self.places, self.log = places, log
        self._first: dict[int, tuple[ThreadPlace, Wording]] = {}
        """For the pc of a load, a copy or a store: the first thread, its access, and the usual cause."""
        self._reported: set[tuple[object, object]] = set()

    def begin(self, pc: int, place: ThreadPlace, wording: Wording) -> None:
        """The instruction at ``pc`` reads unwritten bytes, or stores a register that was never set."""
        self._first.setdefault(pc, (place, wording))

    def matter(self, pc: int, instruction: Instruction, place: ThreadPlace, role: str) -> None:
        """A value from the load, copy or store at ``pc`` reaches an instruction; each pair of source lines is
        reported once."""
        cause = self.places.setup.entry.instructions[pc]
        group = cause.loc or cause.pc, instruction.loc or instruction.pc
        if group in self._reported:
            return
        self._reported.add(group)
        first, wording = self._first[pc]
        what = f"{wording.what} {role} by {{other}}"
        other = self.places.access(instruction.pc, place)
        self.log.put(self.places, "uninitialised", cause, first, replace(wording, what=what, other=other))
