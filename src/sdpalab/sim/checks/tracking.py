"""The ``memory`` check where bytes of shared memory are read that were never written: whether that matters.

Kernels read rows of a last tile that nobody wrote, and mask what they compute from them. So a launch in which such a
read was seen is run again with this check in place of the two that found it. It follows the undefined elements through
registers, matrix products and shared memory, as :mod:`~sdpalab.sim.checks.registers` follows registers that were never
set, and reports a read whose value reaches a store to global memory, a branch or an address. An element of a matrix
product is undefined if one of its row of A, of its column of B, or its addend is. A branch that only decides what is
computed makes that undefined, where its ways meet again, and does not matter by itself. Reads of other instructions,
such as bulk copies and wgmma, are reported where they are made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sdpalab.sim.checks.matrix_shadows import matrix_fragments, matrix_rows, product_shadows
from sdpalab.sim.checks.registers import RegisterCheck, ones
from sdpalab.sim.checks.undefined_reads import UndefinedReads
from sdpalab.sim.decode import Step
from sdpalab.sim.definedness import Region, Undefined, computes, find_undefined, is_followed, stores_shared, writes
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.ir import Instruction, Operand, Register
from sdpalab.sim.machine import Machine
from sdpalab.sim.observer import Access
from sdpalab.sim.opcodes import opcode_of
from sdpalab.sim.program import instructions_of
from sdpalab.sim.regions import pure_regions
from sdpalab.sim.selection import WARP, Array, Indices, Selection, indices, split_warps, subset
from sdpalab.sim.types import TYPES, unsigned

__all__ = ["TrackingCheck"]

_HALVES = ("f16x2", "bf16x2")
_ALL = np.uint32(0xFFFFFFFF)


class TrackingCheck(RegisterCheck):
    """Shadows of registers, some of whose bits came from undefined shared memory.

    Beside each shadow lies an origin: the pc, plus one, of the load that read the undefined bytes, or of the store to
    shared memory of a register that was never set; 0 for such a register itself.
    """

    follows = True

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self._by_row: dict[tuple[int, int], Array] = {}
        self._origins: dict[int, Array] = {}
        self._lanes = machine.lanes
        super().__init__(machine, log)
        self._waiting = {pc: np.zeros(machine.lanes, np.uint32) for pc in self._regions}
        """For a branch, the lanes that have not come to the meeting yet, by the origins of their predicates."""
        self._meeting: dict[int, list[int]] = {}
        """By the first pc of a block, the branches whose ways meet there."""
        for pc, region in self._regions.items():
            block = machine.program.blocks[region.meeting]
            items = [*block.items, *filter(None, [block.end])]
            first = min(each.pc for each in instructions_of(items[0]))
            self._meeting.setdefault(first, []).append(pc)
        self.pending: dict[int, tuple[Indices, Array, Array, list[str]]] = {}
        """For the pc of a store, its lanes, the shadows of their words, the origins, and the registers' names."""
        self.undefined_reads = UndefinedReads(machine, log)

    def find(self) -> Undefined:
        """All that may be undefined if every load from shared memory is."""
        program, entry = self.machine.program, self.machine.entry
        self._regions = pure_regions(program, entry)
        return find_undefined(program, entry, self._regions)

    def shadow_for(self, name: str, dtype: np.dtype[np.generic]) -> Array:
        """Registers that share a row share a shadow: they are not alive at once."""
        row = self.machine.program.rows.get(name)
        if row is None:
            return np.empty(self._lanes, dtype)
        if row not in self._by_row:
            self._by_row[row] = np.empty(self._lanes, dtype)
        shadow = self._by_row[row]
        self._origins.setdefault(id(shadow), np.zeros(self._lanes, np.uint32))
        return shadow

    def reset(self) -> None:
        """A new chunk of CTAs."""
        super().reset()
        for origin in self._origins.values():
            origin.fill(0)
        self.pending.clear()
        for waiting in self._waiting.values():
            waiting.fill(0)

    def origin(self, shadow: Array) -> Array:
        """The origins of a shadow."""
        return self._origins.setdefault(id(shadow), np.zeros(self._lanes, np.uint32))

    # ---- instructions -----------------------------------------------------------------------------------------------

    def _look(self, instruction: Instruction) -> Step | None:
        guard = instruction.guard
        reads = self.undefined.reads.get(instruction.pc, frozenset())
        region = self._regions.get(instruction.pc)
        if guard is not None and region is not None and guard.register.name in reads:
            return self._decides(instruction, guard.register, region)
        if guard is None or guard.register.name not in reads or not writes(self.machine.entry, instruction):
            return super()._look(instruction)
        if not (computes(instruction) or is_followed(instruction)):
            return super()._look(instruction)
        # What a lane computes under an undefined condition is undefined, but does not matter yet.
        targets = [self.shadows[name] for name in writes(self.machine.entry, instruction) if name in self.shadows]
        act = self._act(instruction, reads - {guard.register.name}, targets)
        predicate = self.decoder.src(instruction, guard.register, TYPES["pred"])
        condition = self.shadows[guard.register.name]

        def look(sel: Selection) -> None:
            mask = predicate[sel] != guard.negated
            if act is not None and mask.any():
                act(subset(sel, mask))
            unknown = condition[sel]
            if unknown.any():
                lanes = indices(sel)[unknown]
                for target in targets:
                    target[lanes] = ones(target)
                    self.origin(target)[lanes] = self.origin(condition)[lanes]

        return look

    def before(self, instructions: Sequence[Instruction]) -> Step | None:
        """Where the ways of a branch meet, first what was computed in between."""
        if not instructions:
            return None
        look = super().before(instructions)
        meeting = [self._meet(pc) for pc in self._meeting.pop(min(each.pc for each in instructions), ())]
        if not meeting:
            return look

        def run(sel: Selection) -> None:
            for meet in meeting:
                meet(sel)
            if look is not None:
                look(sel)

        return run

    def _decides(self, instruction: Instruction, predicate: Register, region: Region) -> Step:
        """A branch that only decides what is computed: that is undefined where the ways meet, if the predicate is."""
        condition = self.shadows[predicate.name]
        waiting, origins = self._waiting[instruction.pc], self.origin(condition)

        def look(sel: Selection) -> None:
            unknown = condition[sel]
            if not unknown.any():
                waiting[sel] = 0
                return
            unset = unknown & (origins[sel] == 0)
            if unset.any():
                RegisterCheck.report(self, instruction, indices(sel)[unset], predicate.name, "as a predicate")
            waiting[sel] = np.where(unknown, origins[sel], np.uint32(0))

        return look

    def _meet(self, pc: int) -> Step:
        waiting = self._waiting[pc]
        targets = [self.shadows[name] for name in self._regions[pc].writes if name in self.shadows]

        def meet(sel: Selection) -> None:
            origins = waiting[sel]
            if origins.any():
                lanes, origins = indices(sel)[origins != 0], origins[origins != 0]
                for target in targets:
                    target[lanes] = ones(target)
                    self.origin(target)[lanes] = origins
                waiting[lanes] = 0

        return meet

    def _act(self, instruction: Instruction, reads: frozenset[str], targets: list[Array]) -> Step | None:
        if instruction.opcode == "mma" and reads:
            return self._product(instruction)
        if instruction.opcode in ("st", "stmatrix") and not {"global", "local", "param"} & set(instruction.mods):
            return self._stored(instruction, reads, super()._act(instruction, frozenset(), targets))
        return super()._act(instruction, reads, targets)

    def _propagation(self, instruction: Instruction, reads: frozenset[str], targets: list[Array]) -> Step:
        shadows = [self.shadows[name] for name in reads]
        inner = self._by_halves(instruction) or super()._propagation(instruction, reads, targets)
        across = instruction.opcode in ("shfl", "movmatrix")

        def step(sel: Selection) -> None:
            origins = np.zeros(1, np.uint32)
            undefined = False
            for shadow in shadows:
                bad = shadow[sel] != 0
                if bad.any():
                    undefined = True
                    origins = np.maximum(origins, np.where(bad, self.origin(shadow)[sel], np.uint32(0)))
            if not undefined:
                for target in targets:
                    target[sel] = 0
                return
            if across:  # an element of any lane of the warp may have come
                origins = self._warp_most(sel, origins)
            inner(sel)
            for target in targets:
                self.origin(target)[sel] = origins

        return step

    def _warp_most(self, sel: Selection, origins: Array) -> Array:
        most = np.zeros(self._lanes // WARP, np.uint32)
        np.maximum.at(most, indices(sel) // WARP, origins)
        picked: Array = most[indices(sel) // WARP]
        return picked

    def _by_halves(self, instruction: Instruction) -> Step | None:
        """Packed arithmetic on two halves, and conversions of two floats into the halves of a register."""
        mods, operands = instruction.mods, instruction.operands
        packed = any(mod in _HALVES for mod in mods)
        target = self._shadow(operands[0]) if operands else None
        if not packed or target is None or (opcode_of(instruction).moves and instruction.opcode != "cvt"):
            return None
        if target.itemsize != 4 or instruction.opcode == "setp" or instruction.opcode.startswith("set"):
            return None
        sources = [self._shadow(operand) for operand in operands[1:]]
        if instruction.opcode == "cvt":
            if len(operands) != 3 or "f32" not in mods:
                return None

            def convert(sel: Selection) -> None:
                upper, lower = (0 if each is None else (each[sel] != 0).astype(np.uint32) for each in sources)
                target[sel] = (upper * np.uint32(0xFFFF) << np.uint32(16)) | lower * np.uint32(0xFFFF)

            return convert
        if any(source is not None and source.itemsize != 4 for source in sources):
            return None

        def step(sel: Selection) -> None:
            total = np.zeros(len(indices(sel)), np.uint32)
            for source in sources:
                if source is not None:
                    total |= source[sel]
            halves = total.view(np.uint16)
            halves[halves != 0] = 0xFFFF
            target[sel] = total

        return step

    def _shadow(self, operand: Operand) -> Array | None:
        return self.shadows.get(operand.name) if isinstance(operand, Register) else None

    # ---- matrix products --------------------------------------------------------------------------------------------

    def _rows(self, operand: Operand) -> list[Array]:
        """The shadows of a fragment; zeros where there is none."""
        zeros = np.zeros(self._lanes, np.uint32)
        shadows = [self._shadow(item) for item in self.decoder.vector(operand)]
        return [zeros if shadow is None else shadow for shadow in shadows]

    def _product(self, instruction: Instruction) -> Step:
        d, a, b, c = (self._rows(operand) for operand in instruction.operands[:4])
        sources = [*a, *b, *c]
        known = {id(shadow) for shadow in self.shadows.values()}
        regular = instruction.mods[2].startswith("m16n8") and all(source.itemsize == 4 for source in sources)
        reads = self.undefined.reads.get(instruction.pc, frozenset())
        unset = [self._never_set(instruction, name, "as an operand") for name in sorted(reads) if name in self.shadows]

        def step(sel: Selection) -> None:
            whole, partial = split_warps(sel)
            if partial is not None:
                for target in d:
                    target[partial] = 0
            if whole is None:
                return
            lanes = indices(whole)
            for check in unset:
                check(whole)
            if not any(source[lanes].any() for source in sources):
                for target in d:
                    target[lanes] = 0
                return
            origins = np.zeros(len(lanes), np.uint32)
            for source in sources:
                if id(source) in known:
                    origins = np.maximum(
                        origins, np.where(source[lanes] != 0, self.origin(source)[lanes], np.uint32(0))
                    )
            if regular:
                product_shadows(a, b, c, d, lanes)
            else:
                bad = np.logical_or.reduce([source[lanes].reshape(-1, WARP).any(axis=1) for source in sources])
                for target in d:
                    target[lanes] = np.where(np.repeat(bad, WARP), ones(target), 0)
            origins = self._warp_most(lanes, origins)
            for target in d:
                if id(target) in known:
                    self.origin(target)[lanes] = origins

        return step

    def _never_set(self, instruction: Instruction, name: str, role: str, width: int = 8) -> Step:
        """Report the register in lanes where it was never set; from then on it counts as set there."""
        shadow, origins = self.shadows[name], self.origin(self.shadows[name])
        mask = ones(shadow) & (1 << 8 * min(width, shadow.itemsize)) - 1

        def check(sel: Selection) -> None:
            bad = (shadow[sel] & mask != 0) & (origins[sel] == 0)
            if bad.any():
                lanes = indices(sel)[bad]
                RegisterCheck.report(self, instruction, lanes, name, role)
                shadow[lanes] = 0

        return check

    # ---- shared memory ----------------------------------------------------------------------------------------------

    def loaded(self, access: Access, words: Array, origins: Array, transposed: bool) -> None:
        """Lanes load words whose undefined bits are set in ``words`` (uint8 [lanes, width])."""
        instruction = access.instruction
        lanes = indices(access.sel)
        bad = words.any(axis=1)
        origins = np.where(bad, np.where(origins != 0, origins, np.uint32(instruction.pc + 1)), np.uint32(0))
        targets = [self._shadow(item) for item in self.decoder.vector(instruction.operands[0])]
        if instruction.opcode == "ldmatrix":
            self._fragments(lanes, words, origins, targets, transposed)
            return
        size = words.shape[1] // len(targets)
        for number, target in enumerate(targets):
            if target is not None and target.dtype != np.bool_:
                part = np.ascontiguousarray(words[:, number * size : (number + 1) * size])
                target[lanes] = part.view(unsigned(8 * size))[:, 0].astype(target.dtype)
                self.origin(target)[lanes] = origins

    def _fragments(
        self, lanes: Indices, words: Array, origins: Array, targets: Sequence[Array | None], transposed: bool
    ) -> None:
        loaded, fragments, most = matrix_fragments(lanes, words, origins, transposed)
        for number, target in enumerate(targets):
            if target is not None:
                target[loaded] = fragments[number]
                self.origin(target)[loaded] = most

    def _stored(self, instruction: Instruction, reads: frozenset[str], inner: Step | None) -> Step:
        """Keep the shadows of what is stored until it is known where; the address matters at once."""
        address, value = instruction.operands[:2]
        items = self.decoder.vector(value)
        shadows = [self._shadow(item) for item in items]
        matrix = instruction.opcode == "stmatrix"
        element = 4 if matrix else next(TYPES[mod].bytes for mod in instruction.mods if mod in TYPES)
        addressed = [
            self._use(instruction, Register(name), "as an address")
            for name in self._registers_of(address)
            if name in reads
        ]

        names = [item.name if isinstance(item, Register) else "" for item in items]
        followed = stores_shared(instruction)
        named = () if followed else sorted({name for name in names if name in self.shadows})
        unset = [self._never_set(instruction, name, "as a stored value", element) for name in named]

        def step(sel: Selection) -> None:
            for use in (*addressed, *unset):
                use(sel)
            if inner is not None:
                inner(sel)
            self.pending.pop(instruction.pc, None)
            live = [(place, shadow) for place, shadow in enumerate(shadows) if shadow is not None]
            if not any((shadow[sel] != 0).any() for _, shadow in live):
                return
            lanes = indices(sel)
            words = np.zeros((len(lanes), len(items) * element), np.uint8)
            origins = np.zeros(len(lanes), np.uint32)
            for place, shadow in live:
                raw = np.ascontiguousarray(shadow[lanes]).view(np.uint8).reshape(len(lanes), -1)
                words[:, place * element : (place + 1) * element] = raw[:, :element]
                origins = np.maximum(origins, np.where(shadow[lanes] != 0, self.origin(shadow)[lanes], np.uint32(0)))
            if matrix:
                words, origins, lanes = matrix_rows(instruction, words, origins, lanes)
            self.pending[instruction.pc] = lanes, words, origins, names

        return step

    @staticmethod
    def _registers_of(operand: Operand) -> list[str]:
        base = getattr(operand, "base", None)
        return [base.name] if isinstance(base, Register) else []

    # ---- reports ----------------------------------------------------------------------------------------------------

    def report(self, instruction: Instruction, lanes: Indices, name: str, role: str) -> None:
        """A register matters: because it was never set, or because of a read, each cause and place once."""
        origins = self.origin(self.shadows[name])[lanes]
        never = lanes[origins == 0]
        if len(never):
            super().report(instruction, never, name, role)
        for origin in np.unique(origins[origins != 0]):
            self.undefined_reads.matter(int(origin) - 1, instruction, int(lanes[origins == origin][0]), role)
