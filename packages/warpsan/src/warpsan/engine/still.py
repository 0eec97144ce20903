"""A machine that stands in for one that has run: it moves no data, and executes only the instructions of
:mod:`.steps`, whose events native code has recorded."""

from __future__ import annotations

from collections.abc import Mapping

from warpsan.checks.provenance import home_buffers, pointer_origins
from warpsan.checks.shadow import granule_of
from warpsan.engine.assembler import NotNative
from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.selection import Array, Indices, Selection
from warpsan.engine.steps import step_registers
from warpsan.host.memory import Space
from warpsan.host.setup import Setup
from warpsan.ptx.ir import Instruction
from warpsan.ptx.modifiers import find_handler
from warpsan.replay.barriers import Barriers
from warpsan.replay.decoder import HANDLERS, Decoder, Step

__all__ = ["StillFlow", "still_machine"]


class _StillSpace(Space):
    """Memory that keeps its content."""

    def store(self, index: Indices, width: int, values: Array) -> None:
        """Ignore writes, which have been made already."""

    def fill(self, index: Indices, width: int, byte: int = 0) -> None:
        """Ignore the poison of copies in flight, which has been written already."""


def still_machine(setup: Setup, space: Space, ctas: int, watched: Mapping[str, Array] | None = None) -> Machine:
    """A machine of so many CTAs, with the launch's final global memory.

    ``watched`` selects the watched granules of a space. Accesses of asynchronous operations to other granules are left
    out, because other accesses there are not recorded.
    """
    still = _StillSpace("global", len(space.data), space.limit, space.extents, space.data)
    machine = Machine(
        *(setup.module, setup.entry, setup.program, setup.geometry, ctas, setup.symbols, still, setup.params),
        async_mode=setup.async_mode,
    )
    if "provenance" in setup.checks:
        machine.homes = home_buffers(pointer_origins(setup.entry), setup.params, space.extents)
    if watched is not None:
        granules = {name: granule_of(setup.entry, (name,)) for name in watched}
        machine.follows = lambda name, offsets: watched[name][offsets // granules[name]] != 0
    shared = machine.spaces["shared"]
    machine.spaces["shared"] = _StillSpace("shared", 0, shared.limit, data=shared.data)
    return machine


class StillFlow:
    """Executes the instructions of :mod:`.steps` on a still machine with their handlers.

    Parameters
    ----------
    machine : Machine
        With its observers.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine, self.decoder, self.barriers = machine, Decoder(machine), Barriers(machine)
        machine.units["bar"] = self.barriers
        self._steps: dict[int, Step] = {}
        self._flying: dict[tuple[int, int], list[tuple[AsyncUnit, int]]] = {}
        """The operations in flight, by cluster and native code's number."""

    def reset(self, ctas: Indices) -> None:
        """Begin with these CTAs."""
        self.machine.reset(ctas)
        self._flying.clear()

    def execute(
        self, instruction: Instruction, sel: Selection, lanes: Indices, values: Array, cluster: int, operation: int
    ) -> None:
        """Lanes execute an instruction.

        Parameters
        ----------
        instruction : Instruction
        sel, lanes : Selection, ndarray of int64
            The lanes, twice.
        values : ndarray of int64 [registers, lanes]
            The values of its registers.
        cluster, operation : int
            The cluster of the lanes, and the number of the instruction's operation, or -1.
        """
        machine = self.machine
        step = self._steps.get(instruction.pc)
        if step is None:
            handler = find_handler(HANDLERS, instruction)
            if handler is None:
                raise NotNative(instruction.text)
            step = self._steps[instruction.pc] = handler(self.decoder, instruction)
        for name, mine in zip(step_registers(machine.entry, instruction), values, strict=True):
            row = machine.row(name)
            assert row is not None
            row[0][lanes] = mine.astype(row[0].dtype)
        before = {unit: unit.issued for unit in machine.units.values()}
        step(sel)
        issued = [(unit, number) for unit, first in before.items() for number in range(first, unit.issued)]
        if operation >= 0:
            self._flying.setdefault((cluster, operation), []).extend(issued)

    def land(self, cluster: int, operation: int) -> None:
        """The operations of an instruction land."""
        for unit, number in self._flying.pop((cluster, operation), ()):
            unit.land(number)

    def leave(self, sel: Selection) -> None:
        """Lanes exit."""
        self.machine.live[sel] = False
        for unit in self.machine.units.values():
            unit.exited()

    def finish(self) -> None:
        """The launch has ended."""
        for observer in self.machine.observers:
            observer.finish()
