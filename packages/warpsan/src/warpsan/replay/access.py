"""Memory access of instructions: addresses to byte indices, bounds, alignment, and the observers of each access."""

from __future__ import annotations

import numpy as np

from warpsan.engine.observer import Access
from warpsan.engine.selection import Array, Indices, Selection, subset
from warpsan.errors import UnsupportedInstruction
from warpsan.host.memory import GLOBAL_BASE, LOCAL_BASE, RANK_SHIFT, SHARED_BASE, WINDOW_BITS
from warpsan.ptx.ir import Address, Instruction, Operand, Register, Symbol
from warpsan.ptx.types import TYPES
from warpsan.replay.decoder import Decoder

__all__ = ["Accessor", "address_register"]

_WINDOWS = {SHARED_BASE >> WINDOW_BITS: "shared", LOCAL_BASE >> WINDOW_BITS: "local"}
_USUALLY_EXITED = "usually a missing barrier.cluster before the end of the kernel"
_NOWHERE: Indices = np.empty(0, np.int64)
_BASES = {"global": GLOBAL_BASE, "shared": SHARED_BASE, "local": LOCAL_BASE}


def address_register(decoder: Decoder, instruction: Instruction, operand: Operand) -> tuple[Array, int]:
    """An address operand as a register's values (or a constant's) and a fixed offset to add."""
    if not isinstance(operand, Address):
        raise UnsupportedInstruction(f"{instruction.text}: expected an address in brackets", instruction.line)
    base, offset = operand.base, operand.offset
    if base is None:
        return np.broadcast_to(np.int64(0), decoder.machine.lanes), offset
    if isinstance(base, Symbol):
        place = decoder.machine.address_of(base.name, np.dtype(np.int64))
        if place is None:
            raise UnsupportedInstruction(f"{instruction.text}: unknown variable {base.name}", instruction.line)
        return place, offset
    assert isinstance(base, Register)
    row = decoder.machine.row(base.name)
    bits = 32 if row is not None and row[1].bits == 32 else 64
    return decoder.src(instruction, base, TYPES[f"u{bits}"] if bits == 32 else TYPES["s64"]), offset


class Accessor:
    """All accesses of one address operand of one instruction to one state space.

    Parameters
    ----------
    space : str
        ``global``, ``shared``, ``shared::cluster``, ``local``, or ``generic``, for which each lane's address decides.
    width : int
        Bytes that one lane accesses; the address must be a multiple of it.
    only : str
        The only space of a generic address, if the instruction requires one.
    """

    def __init__(
        self, decoder: Decoder, instruction: Instruction, operand: Operand, space: str, width: int, only: str = ""
    ) -> None:
        self.machine, self.instruction, self.width = decoder.machine, instruction, width
        self.space, self.only = "global" if space == "const" else space, only
        self.values, self.shift = address_register(decoder, instruction, operand)
        self.home = decoder.machine.homes.get(instruction.pc)
        self.observers = decoder.machine.observers

    def parts(self, sel: Selection, extra: Indices | None = None, width: int = 0) -> list[Access]:
        """Every legal access; illegal ones are left out.

        ``extra`` is added to the address of each lane of ``sel``. ``width`` is the size of the access if it is less
        than the accessor's width, to which the address is aligned in any case. The result has one part unless a generic
        address spreads over several spaces.
        """
        width = self.width if width == 0 else width
        address: Indices = self.values[sel].astype(np.int64)
        if self.shift:
            address += self.shift
        if extra is not None:
            address += extra
        if self.space != "generic":
            if self.space == "global":
                address -= GLOBAL_BASE
            if self.space == "shared::cluster":
                return self._of_cluster(sel, address, width)
            return self._legal(self.space, sel, address, width)
        window = address >> WINDOW_BITS
        parts: list[Access] = []
        for value in (window[0],) if (window == window[0]).all() else np.unique(window):
            name = _WINDOWS.get(int(value), "global")
            mask = window == value
            whole = bool(mask.all())
            chosen = sel if whole else subset(sel, mask)
            offset = (address if whole else address[mask]) - _BASES[name]
            if self.only and name != self.only:
                continue
            if name == "shared":
                parts += self._of_cluster(chosen, offset, width)
            else:
                parts += self._legal(name, chosen, offset, width)
        return parts

    def _of_cluster(self, sel: Selection, address: Indices, width: int) -> list[Access]:
        """Accesses to the shared memory of any CTA of the cluster (PTX ISA, "shared::cluster")."""
        if int(address.max()) < 1 << RANK_SHIFT:
            return self._legal("shared", sel, address, width)
        machine = self.machine
        cta = machine.cta[sel]
        rank = (address >> RANK_SHIFT) - 1
        target = np.where(rank < 0, cta, cta - cta % machine.cluster_size + rank)
        known = rank < machine.cluster_size  # another rank stays in the offset, which is therefore out of bounds
        offset = np.where(known, address & (1 << RANK_SHIFT) - 1, address)
        return self._legal("shared", sel, offset, width, target * machine.shared_stride)

    def _legal(
        self, name: str, sel: Selection, offset: Indices, width: int, origin: Indices | None = None
    ) -> list[Access]:
        """The aligned accesses within bounds; ``origin`` is the start of each lane's range, if it differs from its
        own."""
        space, align = self.machine.spaces[name], self.width
        if align > 1 and int(np.bitwise_or.reduce(offset)) & (align - 1):
            bad = offset & (align - 1) != 0
            sel, offset = subset(sel, ~bad), offset[~bad]
            origin = None if origin is None else origin[~bad]
        if len(offset):
            outside = space.out_of_bounds(offset, width)
            if self.home is not None and name == "global":
                strayed = (offset < self.home.begin) | (offset + width > self.home.end)
                outside = strayed if outside is None else outside | strayed
            if outside is not None and outside.any():
                sel, offset = subset(sel, ~outside), offset[~outside]
                origin = None if origin is None else origin[~outside]
        if not len(offset):
            return []
        if origin is not None:
            index = offset + origin
        else:
            base = self.machine.bases[name]
            index = offset if base is None else offset + base[sel]
        return [Access(space, offset, index, width, sel, self.instruction)]

    def reads(self, sel: Selection, extra: Indices | None = None, width: int = 0) -> list[Access]:
        """The legal reads, after the observers have seen them."""
        parts = self.parts(sel, extra, width)
        for access in parts:
            for observer in self.observers:
                observer.load(access)
        return parts

    def writes(self, sel: Selection) -> None:
        """Notify the observers of the legal writes."""
        for access in self.parts(sel):
            for observer in self.observers:
                observer.store(access, None)

    def updates(self, sel: Selection) -> list[Access]:
        """The legal read-modify-writes, after the observers have seen them."""
        parts = self.parts(sel)
        for access in parts:
            for observer in self.observers:
                observer.atomic(access)
        return parts
