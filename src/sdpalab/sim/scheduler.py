"""Runs the lanes of a chunk of CTAs from the entry to their exits.

The run queue maps blocks to the lanes that wait to run them. The lowest block runs until it would pass the next
waiting one, and lanes that meet are merged, so that divergent lanes reconverge at the earliest common instruction.
Barriers take lanes out of the queue and put them back. Warp-wide instructions need all lanes of a warp that they name
and that have not exited: others are parked in front of such a block, and run it incomplete only when nothing else can,
and nothing is in flight that would let the missing lanes go on. Asynchronous operations in the late mode complete when
nothing else can run at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdpalab.sim.barriers import Barriers
from sdpalab.sim.checks.orders import is_communication
from sdpalab.sim.collectives import pack_warps, warp_words
from sdpalab.sim.decode import Decoder, Step
from sdpalab.sim.errors import UnsupportedInstruction
from sdpalab.sim.flow import End, build_end, goto, leave, polls_in_vain, too_many_steps
from sdpalab.sim.fusion import MmaGroup
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.tensor import mma_group_step
from sdpalab.sim.machine import Machine
from sdpalab.sim.polling import LONGEST, polling_loops
from sdpalab.sim.program import BasicBlock, instructions_of
from sdpalab.sim.run_queue import RunQueue
from sdpalab.sim.selection import WARP, Array, Selection, count, indices, merge, split_warps, subset
from sdpalab.sim.tally import Tally
from sdpalab.sim.types import TYPES
from sdpalab.sim.warpgroups import Warpgroups

__all__ = ["Scheduler"]

_QUANTUM = 4096
"""Blocks that the same lanes may run while others are ready."""
_POLLS = 16
"""Blocks of polling loops that may run before others must."""
_ROUNDS = 2 * LONGEST // _POLLS
"""Turns of each that polls, about, in which nothing else ran, after which nothing will come of it: each has been in
front of what it reads at least once."""
_GROUPS = 4
"""Groups of clusters that take turns in a kernel whose blocks may communicate."""
_SCATTERED = 24
"""The same where reads may be stale."""


@dataclass
class _Block:
    """Straight-line code: its closures, and what decides where its lanes go."""

    steps: list[Step]
    end: End
    size: int
    collective: bool
    members: Array | None
    """The mask of the lanes that must come together; None for whole warps."""
    line: int


class Scheduler:
    """Decodes a machine's program, and runs it.

    Parameters
    ----------
    machine : Machine
    max_steps : int
        Vector steps that one chunk of CTAs may take.
    schedule : str
        See :mod:`sdpalab.sim.run_queue`.
    tally : Tally
        Where steps and what runs each block are counted.
    """

    def __init__(self, machine: Machine, max_steps: int, schedule: str, tally: Tally) -> None:
        self.machine = machine
        self.max_steps = max_steps
        self.tally = tally
        self.barriers = Barriers(machine)
        machine.units["bar"] = self.barriers
        self.decoder = Decoder(machine)
        if any(instruction.opcode == "wgmma" for instruction in machine.entry.instructions):
            self.decoder.watch = Warpgroups.of(machine).watched
        code = machine.entry.instructions
        if machine.weak is None:
            self.queue = RunQueue(machine, schedule, _GROUPS if any(map(is_communication, code)) else 1)
        else:
            self.queue = RunQueue(machine, schedule, _SCATTERED, scattered=True)
        self.polling = polling_loops(machine.entry, machine.program)
        self.polls = 0
        """Blocks of polling loops since others had their turn."""
        self.idle = 0
        """How often that was since any other block ran, or an operation in flight completed."""
        self.steps = 0
        self.blocks = [self._block(basic, index + 1) for index, basic in enumerate(machine.program.blocks)]
        self.blocks[-1].end = leave(self)  # running off the end is a return

    def _block(self, basic: BasicBlock, following: int) -> _Block:
        """A block's closures, each behind the functions of the observers for it."""
        steps: list[Step] = []
        for item in basic.items:
            try:
                step = mma_group_step(self.decoder, item) if isinstance(item, MmaGroup) else self.decoder.step(item)
                steps += [*self._looks(instructions_of(item)), step]
            except UnsupportedInstruction as error:
                steps.append(self._refusal(error, instructions_of(item)[0]))
        try:
            end = build_end(self, basic.end, following)
            steps += self._looks([] if basic.end is None else [basic.end])
        except UnsupportedInstruction as error:
            assert basic.end is not None
            steps.append(self._refusal(error, basic.end))
            end = goto(following)
        members = None if basic.members is None else self.decoder.src(*basic.members, TYPES["u32"])
        return _Block(steps, end, basic.size, basic.collective, members, basic.line)

    def _refusal(self, error: UnsupportedInstruction, instruction: Instruction) -> Step:
        """What is not modelled stops the launch where a lane executes it: a path that never runs blocks nothing."""

        def refuse(sel: Selection) -> None:
            raise error

        try:
            return refuse if instruction.guard is None else self.decoder.guarded(instruction, refuse)
        except UnsupportedInstruction:  # the predicate is not modelled either
            return refuse

    def _looks(self, instructions: Sequence[Instruction]) -> list[Step]:
        looks = (observer.before(instructions) for observer in self.machine.observers)
        return [look for look in looks if look is not None]

    def run(self, seed: tuple[int, int]) -> None:
        """Run all live lanes of a machine that was just reset; ``seed`` is for the random schedule.

        Raises
        ------
        Deadlock
            If lanes wait for what can never come.
        StepLimit
            If more than ``max_steps`` vector steps were taken.
        """
        machine, queue = self.machine, self.queue
        queue.clear(seed)
        self.steps = self.polls = self.idle = 0
        everyone = slice(0, machine.lanes) if machine.live.all() else np.flatnonzero(machine.live)
        queue.push([(machine.program.start, everyone)])
        fair, alive = False, np.count_nonzero(machine.live)
        while True:
            if queue.parked and alive != (alive := np.count_nonzero(machine.live)):
                queue.unpark()
            if not queue.ready and queue.parked and self._advance():
                continue  # what the missing lanes of a warp wait for may still be in flight
            picked = queue.pick(fair)
            if picked is None:
                if not self._advance():
                    break
                continue
            turn, at, sel, forced, following = picked
            fair = self._run_from(turn, at, sel, forced, following)
            if self.polls > _POLLS:
                fair = self._all_poll()
            if fair and not queue.ready:
                self._advance()
        for unit in machine.units.values():
            unit.check_drained()
        self.tally.steps += self.steps

    def _all_poll(self) -> bool:
        """Polling loops have turned long enough: others must run. True, unless that has been so for long.

        Raises
        ------
        Deadlock
            If nothing but polling loops can run, and none of them can end.
        """
        self.polls = 0
        self.idle += 1
        if any(block not in self.polling.blocks for _, block in self.queue.ready):
            self.idle = 0
        if self.machine.weak is not None:
            self.machine.weak.choices.newest = self.idle > 1
        if self.idle > _ROUNDS * (len(self.queue.ready) + 1):
            self.idle = 0
            ends = any(block not in self.polling.endless for _, block in self.queue.ready)
            if not self._advance_one() and not ends:
                (_, block), sels = next(iter(self.queue.ready.items()))
                raise polls_in_vain(self.machine, self.polling.endless[block], sels[0])
        return True

    def _advance_one(self) -> bool:
        moved = sum(unit.advance() for unit in self.machine.units.values()) > 0
        before = len(self.machine.woken)
        self._collect()
        return moved or before > 0

    def _advance(self) -> bool:
        """Complete an operation in flight, and collect the lanes that waited for it."""
        moved = sum(unit.advance() for unit in self.machine.units.values()) > 0
        self._collect()
        return moved or bool(self.queue.ready)

    def _collect(self) -> None:
        if self.machine.woken:
            self.queue.push(self.machine.woken)
            self.machine.woken.clear()

    def _meeting(self, block: _Block, sel: Selection) -> tuple[Selection | None, Selection | None]:
        """The lanes of ``sel`` whose required lanes are all present, and the others; None for an empty part."""
        whole, partial = split_warps(sel)
        if partial is None:
            return whole, None
        lanes, live = indices(partial), self.machine.live
        warp = lanes // WARP
        absent = pack_warps(live)[warp] & ~warp_words(lanes, len(live))[warp]
        met = (absent if block.members is None else absent & block.members[partial]) == 0
        if met.all():
            return sel, None
        together = [part for part in (whole, subset(partial, met) if met.any() else None) if part is not None]
        return (merge(together) if together else None), subset(partial, ~met)

    def _count_ctas(self, at: int, instructions: int, warps: Array) -> None:
        """Count what each of these warps issues for its CTA, and that they run block ``at``."""
        ctas = self.machine.n_cta
        self.tally.by_warp[:, at] += np.bincount(warps // ctas, minlength=self.machine.warps)
        issued = np.bincount(warps % ctas, minlength=ctas) * instructions
        self.tally.issued[self.machine.cta_ids] += issued

    def _run_from(self, turn: int, at: int, sel: Selection, forced: bool, following: int) -> bool:
        """Run lanes until they part, block or meet others; True if they ran so long that others may starve."""
        machine = self.machine
        for _ in range(_QUANTUM):
            block = self.blocks[at]
            if at in self.polling.blocks:
                self.polls += 1
            if block.collective and not forced:
                met, waiting = self._meeting(block, sel)
                if waiting is not None:
                    self.queue.park(turn, at, waiting)
                if met is None:
                    return False
                sel = met
            forced = False
            lanes = count(sel)
            self.steps += block.size
            machine.clock = max(machine.clock + 1, self.steps)
            self.tally.lanes[at] += lanes
            whole_slice = isinstance(sel, slice) and lanes % WARP == 0
            warps = None if whole_slice else np.unique(indices(sel) // WARP)
            self.tally.warps[at] += lanes // WARP if warps is None else len(warps)
            if len(self.tally.issued):
                self._count_ctas(at, block.size, indices(sel)[::WARP] // WARP if warps is None else warps)
            if self.steps > self.max_steps:
                raise too_many_steps(self.max_steps, block.line)
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
            if self.polls > _POLLS:
                break
        self.queue.push([(at, sel)])
        return True
