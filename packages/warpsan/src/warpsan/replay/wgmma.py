"""wgmma: reads of shared memory and registers by matrix products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level
Matrix Multiply-Accumulate"). Each warp reads its own quarter of A and all of B.
"""

from __future__ import annotations

import numpy as np

from warpsan.engine.selection import WARP, Array, Indices, Selection, count, indices, split_warps
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand, Vector
from warpsan.ptx.synchronising import Product, ProductWait
from warpsan.ptx.types import TYPES
from warpsan.replay.access import Accessor
from warpsan.replay.decoder import Decoder, Step, opcode
from warpsan.replay.matrix_descriptor import CHUNK, chunk_offsets
from warpsan.replay.warpgroups import GROUP_WARPS, Flight, Reading, Warpgroups

__all__: list[str] = []


class _Operand:
    """A matrix in shared memory: ``rows`` lines of 32 bytes along K."""

    def __init__(
        self,
        decoder: Decoder,
        instruction: Instruction,
        operand: Operand,
        rows: int,
        k_major: bool,
        shared_by_all: bool,
    ) -> None:
        self.machine, self.instruction = decoder.machine, instruction
        self.values = decoder.src(instruction, operand, TYPES["u64"])
        self.rows, self.k_major, self.shared_by_all = rows, k_major, shared_by_all
        self.access = Accessor(decoder, instruction, Address(None, 0), "shared", CHUNK)

    def offsets(self, descriptors: Array) -> Indices:
        """Chunks as offsets in each CTA's shared memory, [CTAs, chunks]."""
        return chunk_offsets(descriptors, self.rows, k_major=self.k_major)

    def announce(self, sel: Selection, offsets: Indices) -> list[Reading]:
        """Report the coming reads to the observers; 32 chunks of each warp at a time."""
        ctas, chunks = offsets.shape
        lanes = indices(sel).reshape(GROUP_WARPS, ctas, WARP)
        observers = self.machine.observers
        readings = []
        for at in range(0, chunks if self.shared_by_all else WARP, WARP):
            number = min(WARP, chunks - at)
            if self.shared_by_all:
                places = np.broadcast_to(offsets[:, at : at + number], (GROUP_WARPS, ctas, number))
            else:
                places = offsets.reshape(ctas, GROUP_WARPS, WARP).swapaxes(0, 1)
            readers = lanes[:, :, :number].reshape(-1)
            for part in self.access.parts(readers, places.reshape(-1)):
                follows = self.machine.follows
                access = part if follows is None else part.only(follows("shared", part.offset))
                if not len(access.index):
                    continue
                tickets = [observer.issue(access, writes=False) for observer in observers]
                readings.append(Reading(indices(access.sel), tickets))
        return readings


class _WgmmaInstruction:
    """A decoded wgmma.mma_async."""

    def __init__(self, decoder: Decoder, instruction: Instruction) -> None:
        self.instruction, self.unit = instruction, Warpgroups.of(decoder.machine)
        form = form_of(instruction, Product)
        columns = form.shape[0]
        _, a, b, _, *immediates = instruction.operands
        # The signs of A and B, and for 16-bit types whether they are MN-major (for A only in shared memory).
        majors = [isinstance(each, Immediate) and each.value == 1 for each in immediates[2:]]
        self.a: _Operand | None = None
        if not isinstance(a, Vector):
            self.a = _Operand(decoder, instruction, a, 64, not (len(majors) > 1 and majors[0]), shared_by_all=False)
        self.b = _Operand(decoder, instruction, b, columns, not (majors and majors[-1]), shared_by_all=True)

    def issue(self, sel: Selection) -> None:
        """One warpgroup of some CTAs executes it."""
        unit = self.unit
        ctas = count(sel) // (GROUP_WARPS * WARP)
        readings: list[Reading] = []
        for operand in (self.a, self.b):
            if operand is not None:
                first = operand.values[sel].reshape(GROUP_WARPS, ctas, WARP)[0, :, 0]
                readings += operand.announce(sel, operand.offsets(first))
        leaders = unit.leaders(sel)
        unit.issue(Flight(sel, leaders, unit.groups[leaders], readings))


@opcode("wgmma.mma_async")
def _mma_async(decoder: Decoder, instruction: Instruction) -> Step:
    product = _WgmmaInstruction(decoder, instruction)
    return lambda sel: product.unit.meet(sel, instruction, product.issue)


@opcode("wgmma.wait_group")
def _wait_group(decoder: Decoder, instruction: Instruction) -> Step:
    unit, keep = Warpgroups.of(decoder.machine), form_of(instruction, ProductWait).keep
    return lambda sel: unit.meet(sel, instruction, lambda part: unit.wait(part, keep))


@opcode("wgmma.commit_group")
def _commit_group(decoder: Decoder, instruction: Instruction) -> Step:
    """Closes the current group of each warp."""
    unit = Warpgroups.of(decoder.machine)

    def step(sel: Selection) -> None:
        lanes, _ = split_warps(sel)
        if lanes is not None:
            unit.commit(lanes)

    return step
