"""How instructions reach memory: addresses to byte indices, bounds, alignment, and the observers of each access."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from sdpalab.sim.decode import Decoder
from sdpalab.sim.errors import IllegalAccess, UnsupportedInstruction
from sdpalab.sim.ir import Address, Instruction, Operand, Register, Symbol
from sdpalab.sim.memory import GLOBAL_BASE, LOCAL_BASE, POISON, SHARED_BASE, WINDOW_BITS, WORDS, Space
from sdpalab.sim.selection import Array, Indices, Mask, Selection, indices, subset
from sdpalab.sim.types import TYPES

__all__ = ["Accessor", "address_register"]

_WINDOWS = {SHARED_BASE >> WINDOW_BITS: "shared", LOCAL_BASE >> WINDOW_BITS: "local"}
_BASES = {"global": GLOBAL_BASE, "shared": SHARED_BASE, "local": LOCAL_BASE}


def address_register(decoder: Decoder, instruction: Instruction, operand: Operand) -> tuple[Array, int]:
    """An address operand as a register's values (or a constant's) and a fixed offset to add."""
    if not isinstance(operand, Address):
        raise UnsupportedInstruction(f"{instruction.text}: expected an address in brackets", instruction.line)
    base, offset = operand.base, operand.offset
    if base is None:
        return np.broadcast_to(np.int64(0), decoder.machine.lanes), offset
    if isinstance(base, Symbol):
        if base.name not in decoder.machine.symbols.addresses:
            raise UnsupportedInstruction(f"{instruction.text}: unknown variable {base.name}", instruction.line)
        return np.broadcast_to(np.int64(0), decoder.machine.lanes), offset + decoder.machine.symbols.addresses[
            base.name
        ][1]
    assert isinstance(base, Register)
    row = decoder.machine.row(base.name)
    bits = 32 if row is not None and row[1].bits == 32 else 64
    return decoder.src(instruction, base, TYPES[f"u{bits}"] if bits == 32 else TYPES["s64"]), offset


class Accessor:
    """All accesses of one address operand of one instruction to one state space.

    Parameters
    ----------
    space : str
        ``global``, ``shared``, ``local``, or ``generic``, where each lane's address decides.
    width : int
        Bytes that one lane accesses; the address must be a multiple of it.
    """

    def __init__(self, decoder: Decoder, instruction: Instruction, operand: Operand, space: str, width: int) -> None:
        self.machine, self.instruction, self.width = decoder.machine, instruction, width
        self.space = "global" if space == "const" else space
        self.values, self.shift = address_register(decoder, instruction, operand)
        self.observers = decoder.machine.observers

    def parts(
        self, sel: Selection, extra: Indices | None = None, width: int = 0
    ) -> list[tuple[Space, Selection, Indices, Indices]]:
        """(space, lanes, offset, index) of every legal access; illegal ones are reported and left out.

        ``extra`` is added to the address of each lane of ``sel``; ``width`` is what is accessed if that is less
        than the accessor's own width, to which the address is aligned all the same. Offsets are relative to the
        CTA, lane or arena, indices into the space's data. One part unless a generic address spreads over several
        spaces.
        """
        width = width or self.width
        address: Indices = self.values[sel].astype(np.int64)
        if self.shift:
            address += self.shift
        if extra is not None:
            address += extra
        if self.space != "generic":
            if self.space == "global":
                address -= GLOBAL_BASE
            return self._legal(self.space, sel, address, width)
        window = address >> WINDOW_BITS
        parts: list[tuple[Space, Selection, Indices, Indices]] = []
        for value in (window[0],) if (window == window[0]).all() else np.unique(window):
            name = _WINDOWS.get(int(value), "global")
            mask = window == value
            whole = bool(mask.all())
            chosen = sel if whole else subset(sel, mask)
            parts += self._legal(name, chosen, (address if whole else address[mask]) - _BASES[name], width)
        return parts

    def _legal(
        self, name: str, sel: Selection, offset: Indices, width: int
    ) -> list[tuple[Space, Selection, Indices, Indices]]:
        space, align = self.machine.spaces[name], self.width
        if align > 1 and int(np.bitwise_or.reduce(offset)) & (align - 1):
            sel, offset = self._drop("misaligned", space, sel, offset, offset & (align - 1) != 0, width)
        if len(offset):
            outside = space.out_of_bounds(offset, width)
            if outside is not None:
                sel, offset = self._drop("out-of-bounds", space, sel, offset, outside, width)
        if not len(offset):
            return []
        base = self.machine.bases[name]
        return [(space, sel, offset, offset if base is None else offset + base[sel])]

    def _drop(
        self, kind: str, space: Space, sel: Selection, offset: Indices, bad: Mask, width: int
    ) -> tuple[Selection, Indices]:
        """Report illegal accesses, and go on without them."""
        lanes = subset(sel, bad)
        if not self.observers:
            self._raise(kind, space, int(indices(lanes)[0]), int(offset[bad][0]))
        for observer in self.observers:
            observer.fault(kind, space, offset[bad], width, lanes, self.instruction)
        return subset(sel, ~bad), offset[~bad]

    def _raise(self, kind: str, space: Space, lane: int, offset: int) -> NoReturn:
        block, thread = self.machine.where(lane)
        source = self.machine.source(self.instruction)
        raise IllegalAccess(
            f"{kind} access to {space.name} memory at offset {offset} by {self.instruction.text} "
            f"at PTX line {self.instruction.line}"
            f"{f' ({source})' if source else ''}, block {block}, thread {thread}"
        )

    def reads(
        self, sel: Selection, extra: Indices | None = None, width: int = 0
    ) -> list[tuple[Space, Selection, Indices]]:
        """(space, lanes, index) of the legal reads, after the observers have seen them."""
        found = []
        for space, chosen, offset, index in self.parts(sel, extra, width):
            for observer in self.observers:
                observer.load(space, offset, index, width or self.width, chosen, self.instruction)
            found.append((space, chosen, index))
        return found

    def updates(self, sel: Selection) -> list[tuple[Space, Selection, Indices]]:
        """(space, lanes, index) of the legal read-modify-writes, after the observers have seen them."""
        found = []
        for space, chosen, offset, index in self.parts(sel):
            for observer in self.observers:
                observer.atomic(space, offset, index, self.width, chosen, self.instruction)
            found.append((space, chosen, index))
        return found

    def gather(self, sel: Selection, extra: Indices | None = None) -> Array:
        """A word for each lane of ``sel``; poison where the access is illegal."""
        parts = self.reads(sel, extra)
        if len(parts) == 1 and parts[0][1] is sel:
            return parts[0][0].load(parts[0][2], self.width)
        lanes = indices(sel)
        words = np.full((len(lanes), self.width), POISON, dtype=np.uint8).view(WORDS[self.width])[:, 0]
        for space, chosen, index in parts:
            words[np.searchsorted(lanes, indices(chosen))] = space.load(index, self.width)
        return words

    def scatter(self, sel: Selection, words: Array, extra: Indices | None = None) -> None:
        """Write a word for each lane of ``sel`` whose access is legal."""
        for space, chosen, offset, index in self.parts(sel, extra):
            mine = words if chosen is sel else words[np.searchsorted(indices(sel), indices(chosen))]
            mine = np.ascontiguousarray(mine)  # a constant comes as a broadcast
            for observer in self.observers:
                observer.store(space, offset, index, self.width, chosen, self.instruction, mine)
            space.store(index, self.width, mine)
