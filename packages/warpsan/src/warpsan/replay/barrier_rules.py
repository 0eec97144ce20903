"""Rules of CTA barriers (PTX ISA, "bar, barrier"); violations are reported to the observers as ``barrier``.

Besides the undefined cases of PTX (a count that is not a multiple of a warp, reductions beside other uses, a warp's
threads at different aligned instructions), these are contradictions: counts that differ within a phase, and threads
that arrive twice or in excess. A warp that arrives and then waits at one barrier in one phase is counted twice,
possibly by intention: it is reported if the count is never reached and a warp waits forever. (A mere arrival that is
left over at the end is not evidence of this: warps that take turns, each by its arrival, leave the last one.)

``bar.sync 0`` without a count is the code of ``__syncthreads()``, which may be in conditional code only if the
condition is the same for the whole block (CUDA C++ Programming Guide, "Synchronization Functions"). Its phase is
therefore also checked for threads that arrive by another such instruction, and for threads that have exited: from sm_70
on, the barrier does not wait for these, and does not order their accesses before later ones.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from warpsan.engine.machine import Machine
from warpsan.engine.selection import WARP, Array, Indices, Mask, Selection
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import conflicting_access_at
from warpsan.report.hazards import ConflictingAccess

__all__ = ["BarrierRules"]

_MOST = 16
"""Barriers of a CTA."""
_USUALLY_COUNT = "usually a wrong number of threads, or one barrier used for two purposes"
_USUALLY_TWICE = "usually a missing wait before the next round, or one barrier used for two purposes"
_USUALLY_CONDITION = (
    "usually a __syncthreads() in a branch or behind a return that not all threads of the block take: move it out, or "
    "use a named barrier with the number of threads that come"
)
_USUALLY_PARTS = "all threads of a warp must execute the same instruction: move it out of the divergent branch"


@dataclass
class _Doubled:
    """A wait of a CTA's lanes at a barrier at which they have arrived in the same phase.

    ``there`` has the lanes that arrived in that phase, once it is complete.
    """

    lanes: Indices
    instruction: Instruction
    what: str
    other: ConflictingAccess
    there: Mask | None = None


class BarrierRules:
    """Checks the phases of a machine's barriers in which not all threads arrive in one step."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.block = machine.warps * WARP
        """Threads of a CTA."""
        self._came: dict[int, Array] = defaultdict(lambda: np.zeros(machine.lanes, dtype=np.int32))
        """For each barrier and lane, the pc plus one of its arrival in this phase; 0 without an arrival."""
        self._given: dict[int, Indices] = defaultdict(lambda: np.zeros(machine.n_cta, dtype=np.int64))
        """For each barrier and CTA, the number of threads of this phase; 0 before it begins."""
        self._doubled: dict[int, list[_Doubled]] = defaultdict(list)
        """For each barrier, the waits of warps that had arrived in the same phase."""

    def reset(self) -> None:
        """A new chunk of CTAs."""
        self._came.clear()
        self._given.clear()
        self._doubled.clear()

    def check_operands(self, sel: Selection, name: int, threads: int, instruction: Instruction, waits: bool) -> None:
        """The broken rule of an arrival by itself; 0 ``threads`` is the whole CTA."""
        what = ""
        if name >= _MOST:
            what = f"barrier {name} does not exist: there are 0 to {_MOST - 1}"
        elif not waits and not threads:
            what = f"arrives at barrier {name} without a number of threads, which it needs"
        elif threads % WARP:
            what = f"barrier {name} is given {threads} threads, which is not a multiple of the {WARP} of a warp"
        elif threads > self.block:
            what = f"barrier {name} is given {threads} threads, and the block has {self.block}"
        if what:
            self._report(sel, instruction, what, "usually a wrong operand")

    def arrive(self, lanes: Indices, name: int, threads: int, instruction: Instruction) -> None:
        """Lanes arrive: check the arrival against earlier ones of the same phase."""
        came, given, threads = self._came[name], self._given[name], threads or self.block
        ctas = self.machine.cta[lanes]
        begun = given[ctas] > 0
        if begun.any():
            self._check_beside(lanes, begun, name, threads, instruction)
        given[ctas] = threads
        came[lanes] = instruction.pc + 1

    def complete(self, name: int, done: Mask, arrived: Indices, need: Indices) -> None:
        """The phase is complete in the CTAs ``done``: report more threads than expected."""
        self._check_exited(name, done)
        came, over = self._came[name], done & (arrived > need)
        if over.any():
            cta = int(over.argmax())
            lane = int(np.flatnonzero((self.machine.cta == cta) & (came > 0))[-1])
            what = f"{int(arrived[cta])} threads are at barrier {name}, which is given {int(need[cta])}"
            self._report(np.array([lane]), self._instruction(came, lane), what, _USUALLY_COUNT)
        ours = done[self.machine.cta]
        for each in self._doubled.get(name, ()):
            if each.there is None and done[self.machine.cta[each.lanes[0]]]:
                each.there = (came > 0) & ours
        came[done[self.machine.cta]] = 0
        self._given[name][done] = 0

    def _check_exited(self, name: int, done: Mask) -> None:
        """Threads that have exited do not arrive at ``__syncthreads()``."""
        cta, live, threads = self.machine.cta, self.machine.live, self.machine.geometry.threads
        short = done & (np.bincount(cta[live], minlength=self.machine.n_cta) < threads)
        for lane in np.flatnonzero(short[cta] & (self._came[name] > 0)):
            instruction = self._instruction(self._came[name], int(lane))
            if _is_syncthreads(instruction, name):
                gone = threads - int(np.count_nonzero(live & (cta == cta[lane])))
                what = f"{gone} of the block's {threads} threads have exited and never come to barrier {name}"
                self._report(np.array([lane]), instruction, what, _USUALLY_CONDITION)
                return

    def _check_paths(self, came: Array, lanes: Indices, name: int, instruction: Instruction) -> None:
        """All threads of a block must arrive at ``__syncthreads()`` by the same instruction; ``lanes`` are not the
        first."""
        other = self._earlier(came, int(lanes[0]))
        earlier = self.machine.entry.instructions[other.pc]
        if earlier != instruction and _is_syncthreads(earlier, name) and _is_syncthreads(instruction, name):
            what = f"part of the block is at barrier {name}, and part at {{other}}"
            self._report(lanes, instruction, what, _USUALLY_CONDITION, other)

    def drained(self, name: int, waiting: Indices) -> None:
        """Nothing can run, and these lanes wait at a barrier: report the warps that were counted twice there, in
        this phase or in one without the waiting warps."""
        for each in self._doubled.get(name, ()):
            stuck = waiting[self.machine.cta[waiting] == self.machine.cta[each.lanes[0]]]
            if len(stuck if each.there is None else stuck[~each.there[stuck]]):
                self._report(each.lanes, each.instruction, each.what, _USUALLY_TWICE, each.other)

    def _check_beside(self, lanes: Indices, begun: Mask, name: int, threads: int, instruction: Instruction) -> None:
        came, cta = self._came[name], self.machine.cta
        before = self._given[name][cta[lanes]]
        differ = begun & (before != threads)
        if differ.any():
            what = f"barrier {name} is given {threads} threads, and {before[differ][0]} by {{other}} in the same phase"
            earlier = self._earlier(came, int(lanes[differ][0]))
            self._report(lanes[differ], instruction, what, _USUALLY_COUNT, earlier)
        again = came[lanes] > 0
        if again.any():
            other = self._conflicting_access(came, int(lanes[again][0]))
            what = f"arrives at barrier {name} again, before the phase is complete in which it was at {{other}}"
            if "arrive" in other.text.split(".") and "arrive" not in instruction.mods:
                self._note_doubled(name, _Doubled(lanes[again], instruction, what, other))
            else:
                self._report(lanes[again], instruction, what, _USUALLY_TWICE, other)
        elif instruction.opcode == "bar" or "aligned" in instruction.mods:
            self._check_parts(came, lanes, name, instruction)
            self._check_paths(came, lanes[begun], name, instruction)
        other = self._earlier(came, int(lanes[begun][0]))
        if ("red" in instruction.mods) != ("red" in other.text.split(".")):
            what = f"meets {{other}} at barrier {name}, and only one of the two is a reduction"
            self._report(lanes[begun], instruction, what, "use two barriers", other)

    def _note_doubled(self, name: int, doubled: _Doubled) -> None:
        """A warp waits at a barrier at which it has arrived; each CTA is separate."""
        cta = self.machine.cta[doubled.lanes]
        known = {(int(self.machine.cta[each.lanes[0]]), each.instruction.pc) for each in self._doubled[name]}
        for number in np.unique(cta):
            if (int(number), doubled.instruction.pc) not in known:
                self._doubled[name].append(replace(doubled, lanes=doubled.lanes[cta == number]))

    def _check_parts(self, came: Array, lanes: Indices, name: int, instruction: Instruction) -> None:
        """The lanes of a warp must not arrive at an aligned barrier by different instructions."""
        warps = np.unique(lanes // WARP)
        there = came.reshape(-1, WARP)[warps]
        elsewhere = (there > 0) & (there != instruction.pc + 1)
        if elsewhere.any():
            row, lane = (int(place[0]) for place in np.nonzero(elsewhere))
            mine = lanes[lanes // WARP == warps[row]]
            other = self._conflicting_access(came, int(warps[row]) * WARP + lane)
            what = f"part of a warp is at barrier {name}, and part at {{other}}"
            self._report(mine, instruction, what, _USUALLY_PARTS, other)

    def _instruction(self, came: Array, lane: int) -> Instruction:
        """The instruction by which a lane has arrived."""
        return self.machine.entry.instructions[int(came[lane]) - 1]

    def _conflicting_access(self, came: Array, lane: int) -> ConflictingAccess:
        return conflicting_access_at(self.machine, self._instruction(came, lane), lane)

    def _earlier(self, came: Array, lane: int) -> ConflictingAccess:
        """The first thread of a lane's CTA that has arrived in this phase."""
        cta = self.machine.cta
        return self._conflicting_access(came, int(np.flatnonzero((cta == cta[lane]) & (came > 0))[0]))

    def _report(
        self, sel: Selection, instruction: Instruction, what: str, usually: str, other: ConflictingAccess | None = None
    ) -> None:
        for observer in self.machine.observers:
            observer.misuse("barrier", sel, instruction, what, usually, other)


def _is_syncthreads(instruction: Instruction, name: int) -> bool:
    """Whether an arrival at barrier ``name`` is the code of ``__syncthreads()``."""
    aligned = instruction.opcode == "bar" or "aligned" in instruction.mods
    return name == 0 and aligned and "sync" in instruction.mods and len(instruction.operands) == 1
