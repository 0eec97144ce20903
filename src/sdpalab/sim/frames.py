"""What functions that call themselves put aside at a call: their registers, parameters and local variables.

All functions of a circle share a stack. A call from one to another saves what they have for the lanes that call, and
the return restores it. Their local variables are not copied, because pointers to them may be passed on: each depth has
its own, and the variable's address moves.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.errors import IllegalAccess
from sdpalab.sim.geometry import Dim3
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.parameters import parameter_column
from sdpalab.sim.machine import Machine
from sdpalab.sim.selection import Array, Selection, indices, subset

__all__ = ["MOST_DEPTH", "Frames", "too_deep"]

MOST_DEPTH = 1024
"""Of calls within calls of functions without local variables."""


def too_deep(instruction: Instruction, depth: int, block: Dim3, thread: Dim3) -> IllegalAccess:
    """The exception for a call by which a thread's stack ends."""
    return IllegalAccess(
        f"{instruction.text} at PTX line {instruction.line}: calls within calls are {depth} deep, where the stack ends "
        f"(block {block}, thread {thread})"
    )


class Frames:
    """The stack of one circle of functions, for every lane of a machine.

    Parameters
    ----------
    machine : Machine
    circle : frozenset of str
        The functions.
    callers : list of ndarray
        For each of them where every lane goes on behind it.
    """

    def __init__(self, machine: Machine, circle: frozenset[str], callers: list[Array]) -> None:
        self.machine = machine
        functions = [machine.entry.functions[name] for name in sorted(circle)]
        rows = {
            machine.program.rows[name]: name
            for each in functions
            for name in each.registers
            if name in machine.program.rows
        }
        variables = [each for function in functions for each in function.variables.values()]
        self.saved = [*callers]
        for name in rows.values():
            row = machine.row(name)
            assert row is not None
            self.saved.append(row[0])
        self.saved += [parameter_column(machine, each, 0, each.size) for each in variables if each.space == "param"]
        self.bytes = machine.symbols.frames.get(circle, (0, MOST_DEPTH))[0]
        self.most = machine.symbols.frames.get(circle, (0, MOST_DEPTH))[1]
        self.moving = [machine.moving[each.name] for each in variables if each.name in machine.moving]
        self.depth = np.zeros(machine.lanes, np.int64)
        self.stack: list[list[Array]] = []
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs: nobody has called."""
        self.depth.fill(0)

    def push(self, sel: Selection, instruction: Instruction) -> None:
        """These lanes call a function of the circle from within it.

        Raises
        ------
        IllegalAccess
            If their stack ends.
        """
        depths = self.depth[sel]
        if int(depths.max()) + 1 >= self.most:
            block, thread = self.machine.where(int(indices(sel)[int(depths.argmax())]))
            raise too_deep(instruction, self.most, block, thread)
        for depth in np.unique(depths):
            part = subset(sel, depths == depth)
            while len(self.stack) <= depth:
                self.stack.append([np.empty(len(each), each.dtype) for each in self.saved])
            for place, values in zip(self.stack[depth], self.saved, strict=True):
                place[part] = values[part]
        self.depth[sel] += 1
        for address in self.moving:
            address[sel] += self.bytes

    def pop(self, sel: Selection) -> None:
        """These lanes return into the circle."""
        self.depth[sel] -= 1
        depths = self.depth[sel]
        for depth in np.unique(depths):
            part = subset(sel, depths == depth)
            for place, values in zip(self.stack[depth], self.saved, strict=True):
                values[part] = place[part]
        for address in self.moving:
            address[sel] -= self.bytes
