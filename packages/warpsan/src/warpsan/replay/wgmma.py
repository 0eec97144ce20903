"""wgmma: reads of shared memory and registers by matrix products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level
Matrix Multiply-Accumulate"). Each warp reads its own quarter of A and all of B.
"""

from __future__ import annotations

import numpy as np

from warpsan.engine.selection import WARP, Array, Indices, Selection, count, indices, split_warps
from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.grammar import Form, form_of
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand, Register, Vector
from warpsan.ptx.synchronising import Product, ProductWait
from warpsan.ptx.types import TYPES
from warpsan.replay.access import Accessor
from warpsan.replay.decoder import Decoder, Step, opcode
from warpsan.replay.matrix_descriptor import BASE_OFFSET, CHUNK, chunk_offsets
from warpsan.replay.product_registers import ProductRegisters
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
        if (descriptors & BASE_OFFSET != 0).any():
            raise UnsupportedInstruction(
                f"{self.instruction.text}: a matrix descriptor with a base offset is not modelled",
                self.instruction.line,
            )
        return chunk_offsets(descriptors, self.rows, k_major=self.k_major)

    def announce(self, sel: Selection, offsets: Indices) -> list[Reading]:
        """Check the addresses, and report the coming reads to the observers; 32 chunks of each warp at a time."""
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
        columns, result = form.shape[0], form.types[0]
        d, a, b, scale, *immediates = instruction.operands
        # The signs of A and B, and for 16-bit types whether they are MN-major (for A only in shared memory).
        majors = [isinstance(each, Immediate) and each.value == 1 for each in immediates[2:]]
        self.registers: tuple[ProductRegisters, ...] = (self._registers(d, result),)
        self.a: _Operand | None = None
        if isinstance(a, Vector):
            self.registers += (self._registers(a, ""),)
        else:
            self.a = _Operand(decoder, instruction, a, 64, not (len(majors) > 1 and majors[0]), shared_by_all=False)
        self.b = _Operand(decoder, instruction, b, columns, not (majors and majors[-1]), shared_by_all=True)
        self.scale = decoder.predicate(instruction, scale)

    def _registers(self, operand: Operand, kind: str) -> ProductRegisters:
        items = operand.items if isinstance(operand, Vector) else ()
        return self.unit.registers[tuple(item.name for item in items if isinstance(item, Register)), kind]

    def issue(self, sel: Selection) -> None:
        """One warpgroup of some CTAs executes it."""
        unit = self.unit
        ctas = count(sel) // (GROUP_WARPS * WARP)
        b = self.b.offsets(self._same("the descriptor of B", self.b.values[sel], sel, ctas))
        self._same("scale-d", self.scale(sel), sel, ctas)
        readings: list[Reading] = []
        if self.a is not None:
            readings += self.a.announce(
                sel, self.a.offsets(self._same("the descriptor of A", self.a.values[sel], sel, ctas))
            )
        readings += self.b.announce(sel, b)
        leaders = unit.leaders(sel)
        unit.issue(Flight(self, sel, leaders, unit.groups[leaders], readings))

    def _same(self, name: str, values: Array, sel: Selection, ctas: int) -> Array:
        """A value that must be equal in all threads of a warpgroup: one value for each CTA."""
        grid = values.reshape(GROUP_WARPS, ctas, WARP)
        first: Array = grid[0, :, 0].copy()
        if not (grid == first[None, :, None]).all():
            self.unit.report(sel, self.instruction, f"{name} is not the same in all threads of the warpgroup", "")
        return first


@opcode("wgmma.mma_async")
def _mma_async(decoder: Decoder, instruction: Instruction) -> Step:
    product = _WgmmaInstruction(decoder, instruction)
    return lambda sel: product.unit.meet(sel, instruction, product.issue)


@opcode("wgmma.wait_group")
def _wait_group(decoder: Decoder, instruction: Instruction) -> Step:
    unit, keep = Warpgroups.of(decoder.machine), form_of(instruction, ProductWait).keep
    return lambda sel: unit.meet(sel, instruction, lambda part: unit.wait(part, keep))


@opcode("wgmma")
def _wgmma(decoder: Decoder, instruction: Instruction) -> Step:
    """``wgmma.fence`` and ``wgmma.commit_group``, of each warp separately."""
    unit = Warpgroups.of(decoder.machine)
    act = unit.fence if form_of(instruction, Form).name == "wgmma.fence" else unit.commit

    def step(sel: Selection) -> None:
        lanes, _ = split_warps(sel)
        if lanes is not None:
            act(lanes)

    return step
