"""The ``memory`` check for registers: uses of undefined values.

Beside each register that may be read before it was written lies a shadow of it, whose bits are 1 where the register's
are undefined. What an instruction computes from undefined bits is undefined; only addresses, stored values, branches
and what other lanes or units see are reported. So a value that is set and used under the same condition is never
reported, whatever the compiler computes in between. The idea is that of MemorySanitizer (Stepanov and Serebryany, CGO
2015). What is stored in local memory, or passed to a function, counts as set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sdpalab.sim.decode import HANDLERS, Decoder, Step
from sdpalab.sim.definedness import Undefined, computes, find_undefined, is_followed, stores_shared, writes
from sdpalab.sim.fusion import registers_in
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.ir import Address, Immediate, Instruction, Operand, Pair, Register, Symbol, TensorAddress, Vector
from sdpalab.sim.machine import Machine
from sdpalab.sim.observer import Observer
from sdpalab.sim.opcodes import opcode_of
from sdpalab.sim.selection import Array, Indices, Mask, Selection, indices, subset
from sdpalab.sim.types import TYPES, PtxType, unsigned

__all__ = ["UNSET_USUALLY", "RegisterCheck", "bits_moved", "ones", "only_integers", "report_unset"]

UNSET_USUALLY = "usually a variable that is set in one branch only, or an accumulator that is not zeroed"
_SHADOW = "~"
"""Before a register's name, the name of its shadow."""
Logic = Callable[[Array, Array, Array, Array], Array]
_LOGIC: dict[str, Logic] = {
    "and": lambda a, b, undefined_a, undefined_b: (undefined_a | a) & (undefined_b | b) & (undefined_a | undefined_b),
    "or": lambda a, b, undefined_a, undefined_b: (undefined_a | ~a) & (undefined_b | ~b) & (undefined_a | undefined_b),
}
"""The shadow of what one defined operand may decide alone."""


class _ShadowDecoder(Decoder):
    """Binds operands to registers, or to shadows where their names say so."""

    def __init__(self, machine: Machine, shadows: dict[str, Array]) -> None:
        super().__init__(machine)
        self.shadows = shadows

    def _raw(self, instruction: Instruction, name: str) -> tuple[Array, PtxType]:
        if name.startswith(_SHADOW):
            register = name.removeprefix(_SHADOW)
            return self.shadows[register], self.machine.entry.registers[register]
        return super()._raw(instruction, name)

    def shadow_of(self, operand: Operand, *, target: bool = False) -> Operand:
        """The operand of an operand's shadow; an operand without one is defined, or not relevant as a target."""
        if isinstance(operand, Vector):
            return Vector(tuple(self.shadow_of(item, target=target) for item in operand.items))
        if isinstance(operand, Pair):
            return Pair(self.shadow_of(operand.first, target=target), Symbol("_"))
        if isinstance(operand, Register) and operand.name in self.shadows:
            return Register(_SHADOW + operand.name)
        return Symbol("_") if target else Immediate(0)


class RegisterCheck(Observer):
    """Shadows of the registers that may be read before they were written; 1 is undefined."""

    follows = False
    """Whether undefined values are followed through instructions across lanes, too."""

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        self.undefined = self.find()
        self.shadows: dict[str, Array] = {}
        for name in self.undefined.registers:
            type_ = machine.entry.registers.get(name)
            if type_ is None:
                continue  # damaged PTX: decoding says so
            dtype = np.dtype(np.bool_) if type_.kind == "pred" else unsigned(type_.bits)
            self.shadows[name] = self.shadow_for(name, dtype)
        self.decoder = _ShadowDecoder(machine, self.shadows)
        machine.on_reset.append(self.reset)

    def find(self) -> Undefined:
        """Which registers have shadows, and where they may be undefined."""
        return find_undefined(self.machine.program, self.machine.entry)

    def shadow_for(self, name: str, dtype: np.dtype[np.generic]) -> Array:
        """The shadow of a register."""
        return np.empty(self.machine.lanes, dtype)

    def reset(self) -> None:
        """A new chunk of CTAs: all registers are undefined."""
        for shadow in self.shadows.values():
            shadow.fill(ones(shadow))

    def before(self, instructions: Sequence[Instruction]) -> Step | None:
        """What follows from instructions for the shadows, and whether they use what is undefined."""
        looks = [look for look in map(self._look, instructions) if look is not None]
        if not looks:
            return None

        def run(sel: Selection) -> None:
            for look in looks:
                look(sel)

        return run

    # ---- an instruction ---------------------------------------------------------------------------------------------

    def _look(self, instruction: Instruction) -> Step | None:
        targets = [self.shadows[name] for name in writes(self.machine.entry, instruction) if name in self.shadows]
        reads = self.undefined.reads.get(instruction.pc, frozenset())
        act = self._act(instruction, reads, targets)
        guard = instruction.guard
        if guard is None:
            return act
        check = self._use(instruction, guard.register, "as a predicate") if guard.register.name in reads else None
        if act is None:
            return check
        predicate = self.decoder.src(instruction, guard.register, TYPES["pred"])

        def look(sel: Selection) -> None:
            if check is not None:
                check(sel)
            mask = predicate[sel] != guard.negated
            if mask.any():
                act(subset(sel, mask))

        return look

    def _act(self, instruction: Instruction, reads: frozenset[str], targets: list[Array]) -> Step | None:
        """What happens to the lanes that execute it."""
        if (computes(instruction) or (self.follows and is_followed(instruction))) and reads:
            return self._propagation(instruction, reads, targets) if targets else None
        uses = self._uses(instruction, reads)
        if not uses and not targets:
            return None

        def act(sel: Selection) -> None:
            for use in uses:
                use(sel)
            for target in targets:
                target[sel] = 0

        return act

    # ---- undefined results ------------------------------------------------------------------------------------------

    def _propagation(self, instruction: Instruction, reads: frozenset[str], targets: list[Array]) -> Step:
        if instruction.opcode in _LOGIC:
            return self._logic(instruction, targets[0])
        moved = bits_moved(instruction)
        sources = instruction.operands[1 + moved :] if moved else instruction.operands
        decisive = [self.shadows[name] for operand in sources for name in registers_in(operand) if name in reads]
        if not moved:
            decisive = [self.shadows[name] for name in reads]
        move = self._moved(instruction, moved) if moved else None
        first = instruction.operands[0]
        others = registers_in(first.second) if isinstance(first, Pair) else []
        unmoved = [self.shadows[name] for name in others if name in self.shadows]

        def step(sel: Selection) -> None:
            undefined = np.zeros(1, np.bool_)
            for shadow in decisive:
                undefined = undefined | (shadow[sel] != 0)
            for target in targets if move is None else unmoved:
                target[sel] = 0
            if move is not None:
                move(sel)
            for target in targets if decisive else ():
                target[sel] = np.where(undefined, ones(target), target[sel])

        return step

    def _moved(self, instruction: Instruction, moved: int) -> Step:
        """The instruction on shadows."""
        target, *sources = instruction.operands
        shadows = [self.decoder.shadow_of(source) for source in sources[:moved]]
        operands = (self.decoder.shadow_of(target, target=True), *shadows, *sources[moved:])
        return HANDLERS[instruction.opcode](self.decoder, replace(instruction, operands=operands, guard=None))

    def _logic(self, instruction: Instruction, target: Array) -> Step:
        type_ = TYPES[instruction.mods[-1]]
        values = [self.decoder.src(instruction, operand, type_) for operand in instruction.operands[1:]]
        shadows = [
            self.decoder.src(instruction, self.decoder.shadow_of(operand), type_)
            for operand in instruction.operands[1:]
        ]
        combine = _LOGIC[instruction.opcode]

        def step(sel: Selection) -> None:
            target[sel] = combine(*(array[sel] for array in (*values, *shadows)))

        return step

    # ---- uses -------------------------------------------------------------------------------------------------------

    def _uses(self, instruction: Instruction, reads: frozenset[str]) -> list[Step]:
        """Checks of the operands by which undefined values come to matter."""
        uses: list[Step] = []
        added_to: list[Step] = []
        stores = instruction.opcode == "st"
        private = not {"local", "param"}.isdisjoint(instruction.mods)
        width = next((TYPES[mod] for mod in instruction.mods if mod in TYPES), None) if stores else None
        accumulates = instruction.opcode == "wgmma" and len(instruction.operands) > 3
        for place, operand in enumerate(instruction.operands):
            address = isinstance(operand, (Address, TensorAddress))
            if stores and private and not address:
                continue
            role = "as an address" if address else "as a stored value" if stores else "as an operand"
            for name in registers_in(operand):
                if name not in reads:
                    continue
                to_shared = stores_shared(instruction) and not address
                use = self._use(instruction, Register(name), role, width if not address else None, to_shared=to_shared)
                (added_to if accumulates and place == 0 else uses).append(use)
        if added_to:
            uses.append(_where(self.decoder.predicate(instruction, instruction.operands[3]), added_to))
        return uses

    def _use(
        self,
        instruction: Instruction,
        register: Register,
        role: str,
        width: PtxType | None = None,
        *,
        to_shared: bool = False,
    ) -> Step:
        """Report lanes in which a register is undefined; of a stored one the low ``width`` bits count. In shared
        memory its bits can be followed."""
        shadow = self.shadows[register.name]
        if width is not None and width.bits < 8 * shadow.itemsize:
            shadow = self.decoder.src(instruction, self.decoder.shadow_of(register), TYPES[f"b{width.bits}"])

        def check(sel: Selection) -> None:
            bad: Mask = shadow[sel] != 0
            if bad.any():
                self.log.unwritten_reads |= to_shared
                self.report(instruction, indices(sel)[bad], register.name, role)

        return check

    def report(self, instruction: Instruction, lanes: Indices, name: str, role: str) -> None:
        """The value of a register that is undefined in these lanes comes to matter."""
        report_unset(self.machine, self.log, instruction, int(lanes[0]), name, role)


def report_unset(machine: Machine, log: HazardLog, instruction: Instruction, lane: int, name: str, role: str) -> None:
    """Record that a lane uses a register in a role, such as ``as an address``, which was never set."""
    what = f"register {name.split('@')[0]} is used {role}, and was never set"
    log.add(machine, "uninitialised", instruction, lane, what, UNSET_USUALLY)


def _where(predicate: Callable[[Selection], Mask], uses: Sequence[Step]) -> Step:
    """``uses`` for the lanes in which a predicate holds."""

    def check(sel: Selection) -> None:
        mask = predicate(sel)
        if mask.any():
            chosen = subset(sel, mask)
            for use in uses:
                use(chosen)

    return check


def ones(shadow: Array) -> int:
    """All bits undefined."""
    return 1 if shadow.dtype == np.bool_ else (1 << 8 * shadow.itemsize) - 1


def bits_moved(instruction: Instruction) -> int:
    """Of how many sources an instruction moves bits: executed on shadows, with these, it gives the result's shadow."""
    if instruction.opcode == "cvt" and not only_integers(instruction):
        return 0
    return opcode_of(instruction).moves


def only_integers(instruction: Instruction) -> bool:
    """Whether a conversion keeps low bits and extends or drops high ones."""
    types = [TYPES[mod] for mod in instruction.mods if mod in TYPES]
    return len(types) == len(instruction.mods) == 2 and not any(type_.is_float for type_ in types)
