"""wgmma: matrix products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"): when they
read shared memory and registers. Each warp reads its own quarter of A and all of B.
"""

from __future__ import annotations

import re

import numpy as np

from sdpalab.sim.errors import UnsupportedInstruction
from sdpalab.sim.ir import Address, Immediate, Instruction, Operand, Register, Vector
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.ordering.access import Accessor
from sdpalab.sim.ordering.decoder import Decoder, Step, opcode
from sdpalab.sim.ordering.matrix_descriptor import BASE_OFFSET, CHUNK, chunk_offsets
from sdpalab.sim.ordering.product_registers import ProductRegisters
from sdpalab.sim.ordering.warpgroups import GROUP_WARPS, Flight, Reading, Warpgroups
from sdpalab.sim.ordering.whole_warps import whole_warps
from sdpalab.sim.selection import WARP, Array, Indices, Selection, count, indices
from sdpalab.sim.types import TYPES

__all__: list[str] = []

_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
"""K of one instruction: 32 bytes."""
_FP8 = ("e4m3", "e5m2")
_INTEGER = ("s8", "u8")


def _results(kind: str, kind_b: str) -> tuple[str, ...]:
    """Accumulator types for a pair of factor types."""
    if (kind in _FP8 and kind_b in _FP8) or kind == kind_b == "f16":
        return ("f32", "f16")
    if kind in _INTEGER and kind_b in _INTEGER:
        return ("s32",)
    return ("f32",) if kind == kind_b and kind in ("bf16", "tf32") else ()


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
        """Check the addresses, and report to the observers what will be read; 32 chunks of each warp at a time."""
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
        mods = Mods(instruction)
        for name in ("mma_async", "sync", "aligned"):
            mods.choice((name,))
        saturates = mods.flag("satfinite")
        shape = re.fullmatch(r"m64n(\d+)k(\d+)", mods.left.pop(0)) if mods.left else None
        if shape is None or len(mods.left) != 3:
            raise mods.unsupported("expected a shape m64nNkK and three types")
        self.columns, depth = int(shape[1]), int(shape[2])
        self.result, self.kind, self.kind_b = mods.left
        if self.result not in _results(self.kind, self.kind_b) or (saturates and self.result != "s32"):
            raise mods.unsupported("these operand types are not modelled")
        step = 16 if self.result == "s32" and self.columns > 32 else 8
        if depth != _DEPTH[self.kind] or not 8 <= self.columns <= 256 or self.columns % step:
            raise mods.unsupported("there is no such shape for these types")
        d, a, b, scale, *immediates = instruction.operands
        in_registers = isinstance(a, Vector)
        trans_a, trans_b = self._immediates(mods, immediates, in_registers)
        accumulators = self._registers(mods, d, self.result, self.columns // (4 if self.result == "f16" else 2))
        self.registers: tuple[ProductRegisters, ...] = (accumulators,)
        self.a: _Operand | None = None
        if isinstance(a, Vector):
            self.registers += (self._registers(mods, a, "", 4),)
        else:
            self.a = _Operand(decoder, instruction, a, 64, not trans_a, shared_by_all=False)
        self.b = _Operand(decoder, instruction, b, self.columns, not trans_b, shared_by_all=True)
        self.scale = decoder.predicate(instruction, scale)

    def _immediates(self, mods: Mods, operands: list[Operand], in_registers: bool) -> tuple[bool, bool]:
        """Whether A and B are MN-major."""
        halves = self.kind in ("f16", "bf16")
        expected = 0 if self.result == "s32" else 2 + (0 if not halves else 1 if in_registers else 2)
        values = [operand.value if isinstance(operand, Immediate) else None for operand in operands]
        if len(values) != expected:
            raise mods.unsupported(f"expected {4 + expected} operands")
        if any(value not in (1, -1) for value in values[:2]) or any(value not in (0, 1) for value in values[2:]):
            raise mods.unsupported("imm-scale is 1 or -1, and imm-trans 0 or 1")
        return len(values) == 4 and values[2] == 1, len(values) > 2 and values[-1] == 1

    def _registers(self, mods: Mods, operand: Operand, kind: str, number: int) -> ProductRegisters:
        items = operand.items if isinstance(operand, Vector) else ()
        names = tuple(item.name for item in items if isinstance(item, Register))
        rows = [self.unit.machine.row(name) for name in names]
        if len(names) != number or any(row is None or row[1].bits != 32 for row in rows):
            raise mods.unsupported(f"expected {number} 32-bit registers")
        return self.unit.registers[names, kind]

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


def _group_number(mods: Mods, instruction: Instruction) -> int:
    number = instruction.operands[0] if instruction.operands else None
    if not (isinstance(number, Immediate) and isinstance(number.value, int) and 0 <= number.value <= 7):
        raise mods.unsupported("expected a number of groups from 0 to 7")
    return number.value


@opcode("wgmma.mma_async")
def _mma_async(decoder: Decoder, instruction: Instruction) -> Step:
    product = _WgmmaInstruction(decoder, instruction)
    return lambda sel: product.unit.meet(sel, instruction, product.issue)


@opcode("wgmma.wait_group")
def _wait_group(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    for name in ("wait_group", "sync", "aligned"):
        mods.choice((name,))
    mods.done()
    keep = _group_number(mods, instruction)
    unit = Warpgroups.of(decoder.machine)
    return lambda sel: unit.meet(sel, instruction, lambda part: unit.wait(part, keep))


@opcode("wgmma")
def _wgmma(decoder: Decoder, instruction: Instruction) -> Step:
    """``wgmma.fence`` and ``wgmma.commit_group``: each warp for itself."""
    mods = Mods(instruction)
    action = mods.choice(("fence", "commit_group"))
    for name in ("sync", "aligned"):
        mods.choice((name,))
    mods.done()
    unit = Warpgroups.of(decoder.machine)
    act = unit.fence if action == "fence" else unit.commit
    whole = whole_warps(decoder, instruction)

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is not None:
            act(lanes)

    return step
