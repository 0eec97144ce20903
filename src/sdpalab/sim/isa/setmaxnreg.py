"""setmaxnreg: warps give registers back or ask for more (PTX ISA, "setmaxnreg").

Virtual registers do not run out, so nothing changes for the program; but a block whose warps ask for more than it has
would wait for ever, and does here.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Mods, Step, opcode
from sdpalab.sim.errors import Deadlock
from sdpalab.sim.ir import Immediate, Instruction
from sdpalab.sim.isa.fragments import whole_warps
from sdpalab.sim.machine import Machine, Unit
from sdpalab.sim.selection import WARP, Selection
from sdpalab.sim.types import TYPES

__all__: list[str] = []

_NAME = "setmaxnreg"
_REGISTER_FILE = 65536
"""32-bit registers of one SM, and the most that one block can have."""


class _Budget(Unit):
    """Registers that each thread has asked for. What it had before is known from ``.maxnreg`` alone."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.before = machine.entry.directives.get("maxnreg", (0,))[0]
        self.registers = np.full(machine.lanes, self.before, dtype=np.int64)
        self.line = 0

    @staticmethod
    def of(machine: Machine) -> _Budget:
        """The machine's, made when first asked for."""
        unit = machine.units.get(_NAME)
        if not isinstance(unit, _Budget):
            unit = machine.units[_NAME] = _Budget(machine)
        return unit

    def reset(self) -> None:
        """Every thread has what it was launched with."""
        self.registers.fill(self.before)

    def check_drained(self) -> None:
        """Raise Deadlock if some block's warps asked for more, all together, than the block has."""
        allocated = self.before * self.machine.warps * WARP or _REGISTER_FILE
        wanted = np.bincount(self.machine.cta, weights=self.registers)
        if wanted.max() > allocated:
            block, _ = self.machine.where(int(np.flatnonzero(self.machine.cta == wanted.argmax())[0]))
            raise Deadlock(
                f"setmaxnreg at PTX line {self.line}: the warps of block {block} ask for {int(wanted.max())} registers "
                f"in all, and a block of {self.machine.geometry.threads} threads has {min(allocated, _REGISTER_FILE)}"
            )


@opcode(_NAME)
def _setmaxnreg(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    mods.choice(("inc", "dec"))
    for name in ("sync", "aligned"):
        mods.choice((name,))
    if mods.type() is not TYPES["u32"]:
        raise mods.unsupported("expected .u32")
    mods.done()
    number = instruction.operands[0]
    if not (isinstance(number, Immediate) and isinstance(number.value, int)):
        raise mods.unsupported("expected a constant number of registers")
    wanted = number.value
    if not 24 <= wanted <= 256 or wanted % 8:
        raise mods.unsupported(f"the number of registers is a multiple of 8 from 24 to 256, not {wanted}")
    budget = _Budget.of(decoder.machine)
    whole = whole_warps(decoder, instruction)

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is not None:
            budget.registers[lanes] = wanted
            budget.line = instruction.line

    return step
