"""Runs the lanes of a chunk of CTAs from the entry to their exits.

The run queue maps blocks to the lanes that wait to run them. The lowest block runs until it would pass the next
waiting one, and lanes that meet are merged, so that divergent lanes reconverge at the earliest common instruction.
Barriers take lanes out of the queue and put them back. Warp-wide instructions want whole warps: lanes of an
incomplete warp are parked in front of such a block, and run it incomplete only when nothing else can run.
Asynchronous operations in the late mode complete when nothing else can run at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpalab.sim.barriers import Barriers
from sdpalab.sim.decode import Decoder, Step
from sdpalab.sim.errors import StepLimit
from sdpalab.sim.flow import End, build_end, leave
from sdpalab.sim.fusion import Product
from sdpalab.sim.isa.tensor import product_step
from sdpalab.sim.machine import Machine
from sdpalab.sim.run_queue import RunQueue
from sdpalab.sim.selection import WARP, Selection, count, indices, split_warps
from sdpalab.sim.warpgroups import Warpgroups

__all__ = ["Scheduler"]

_QUANTUM = 4096
"""Blocks that the same lanes may run while others are ready: more is taken for a polling loop."""


@dataclass
class _Block:
    """Straight-line code: its closures, and what decides where its lanes go."""

    steps: list[Step]
    end: End
    size: int
    collective: bool
    line: int
    lanes: int = 0
    """Lanes that have run it."""
    warps: int = 0


class Scheduler:
    """Decodes a machine's program, and runs it.

    Parameters
    ----------
    machine : Machine
    max_steps : int
        Vector steps that one chunk of CTAs may take.
    schedule : str
        See :mod:`sdpalab.sim.run_queue`.
    seed : int
        For the random schedule.
    """

    def __init__(self, machine: Machine, max_steps: int, schedule: str, seed: int) -> None:
        self.machine = machine
        self.max_steps = max_steps
        self.barriers = Barriers(machine)
        machine.units["bar"] = self.barriers
        self.decoder = Decoder(machine)
        if any(instruction.opcode == "wgmma" for instruction in machine.entry.instructions):
            self.decoder.watch = Warpgroups.of(machine).watched
        self.queue = RunQueue(machine, schedule, seed)
        self.steps = 0
        self.blocks = [
            _Block(
                [
                    product_step(self.decoder, item) if isinstance(item, Product) else self.decoder.step(item)
                    for item in basic.items
                ],
                build_end(self, basic.end, index + 1),
                basic.size,
                basic.collective,
                basic.line,
            )
            for index, basic in enumerate(machine.program.blocks)
        ]
        self.blocks[-1].end = leave(self)  # running off the end is a return

    @property
    def lane_instructions(self) -> int:
        """Instructions executed so far, counted once for each lane."""
        return sum(block.size * block.lanes for block in self.blocks)

    def run(self) -> None:
        """Run all live lanes of a machine that was just reset.

        Raises
        ------
        Deadlock
            If lanes wait for what can never come.
        StepLimit
            If more than ``max_steps`` vector steps were taken.
        """
        machine, queue = self.machine, self.queue
        queue.clear()
        queue.push([(0, slice(0, machine.lanes) if machine.live.all() else np.flatnonzero(machine.live))])
        budget = self.steps + self.max_steps
        fair = False
        while True:
            picked = queue.pick(fair)
            if picked is None:
                if not self._advance():
                    break
                continue
            turn, at, sel, forced, following = picked
            fair = self._run_from(turn, at, sel, forced, following, budget)
            if fair and not queue.ready:
                self._advance()
        for unit in machine.units.values():
            unit.check_drained()

    def _advance(self) -> bool:
        """Complete something that is in flight, and collect who waited for it."""
        moved = sum(unit.advance() for unit in self.machine.units.values()) > 0
        self._collect()
        return moved or bool(self.queue.ready)

    def _collect(self) -> None:
        if self.machine.woken:
            self.queue.push(self.machine.woken)
            self.machine.woken.clear()

    def _run_from(self, turn: int, at: int, sel: Selection, forced: bool, following: int, budget: int) -> bool:
        """Run lanes until they part, block or meet others; True if they ran so long that others may starve."""
        for _ in range(_QUANTUM):
            block = self.blocks[at]
            if block.collective and not forced:
                whole, partial = split_warps(sel)
                if partial is not None:
                    self.queue.park(turn, at, partial)
                if whole is None:
                    return False
                sel = whole
            forced = False
            lanes = count(sel)
            self.steps += block.size
            block.lanes += lanes
            whole_slice = isinstance(sel, slice) and lanes % WARP == 0
            block.warps += lanes // WARP if whole_slice else len(np.unique(indices(sel) // WARP))
            if self.steps > budget:
                raise StepLimit(
                    f"more than {self.max_steps} steps, now at PTX line {block.line}: an endless loop, "
                    "or a launch that needs a larger max_steps"
                )
            for step in block.steps:
                step(sel)
            resumed = block.end(sel)
            if self.machine.woken:
                self._collect()
                following = -1
            if len(resumed) != 1 or resumed[0][0] >= following or (turn, resumed[0][0]) in self.queue.parked:
                self.queue.push(resumed)
                return False
            at, sel = resumed[0]
        self.queue.push([(at, sel)])
        return True
