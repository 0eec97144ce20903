"""Deadlocks: the exception for a launch in which nothing can run, from the state of its warps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from warpsan.analysis.polling import polling_loops
from warpsan.engine import layout
from warpsan.engine.context import Context
from warpsan.engine.decoded import Decoded
from warpsan.engine.memory import DoubledArrival, Path, Warp
from warpsan.engine.parts import lowest_ready, pop_lanes
from warpsan.errors import Deadlock
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog, ThreadPlace, Wording
from warpsan.report.places import Places
from warpsan.report.rows import report_row
from warpsan.report.rules import USUALLY_REGISTERS

__all__ = ["deadlock"]

_NO_OTHER = "and no thread that could still arrive"
_MAY_WAIT = "blocks run in any order, and one may only wait for others if all are resident"
_USUALLY_PROGRESS = (
    "use a cooperative launch, or let blocks take their work by an atomic counter and wait only for those before them"
)


@dataclass(frozen=True)
class _Wait:
    """Lanes of a warp that wait at the end of a block."""

    warp: Warp
    path: Path
    instruction: Instruction
    place: ThreadPlace
    """The first lane."""
    at: str

    @property
    def group(self) -> tuple[int, int]:
        """The CTA, and the warpgroup in it."""
        return self.warp.cta, self.warp.number // 4

    def text(self, detail: str = "") -> str:
        """The instruction and its place in the code."""
        return f"{self.instruction.text}{detail}{self.at}"


def deadlock(places: Places, context: Context, decoded: Decoded, log: HazardLog) -> Deadlock | None:
    """The exception for the end of a run without a warp that can run; None if no warp waits.

    Parameters
    ----------
    places : Places
    context : Context
        The context of the run, at its end.
    decoded : Decoded
    log : HazardLog
        Receives the hazards of waits that no other thread could end.
    """
    stuck = _Stuck(places, context, decoded, log)
    waits = sorted(stuck.waits(), key=lambda wait: wait.path.since)
    if not waits:
        return stuck.polls_in_vain()
    there = [wait.path.status for wait in waits]
    status = next((status for status in _CAUSES if status in there), there[0])
    return Deadlock(_WORDS[status](stuck, [wait for wait in waits if wait.path.status == status]))


@dataclass(frozen=True)
class _Stuck:
    """A run in which nothing can run."""

    places: Places
    context: Context
    decoded: Decoded
    log: HazardLog

    def warps(self) -> list[Warp]:
        """All warps that run together."""
        count = self.context.warp_count * self.context.cta_count
        warps = (self.context.warps[number] for number in range(count))
        return [warp for warp in warps if warp.linear_cta >= 0]

    def waits(self) -> Iterator[_Wait]:
        """The lanes that wait for others."""
        for warp in self.warps():
            for k in range(warp.path_count):
                path = warp.paths[k]
                end = self.places.setup.program.blocks[path.block - 1].end
                if path.status in _WORDS and end is not None:
                    source, place = self.places.source(end), self.places.thread(warp.linear_cta, warp.number, path.mask)
                    at = f" at PTX line {end.line}{f' ({source})' if source else ''}"
                    yield _Wait(warp, path, end, place, at)

    def at_barrier(self, waits: Sequence[_Wait]) -> str:
        """Waits at barriers of CTAs: the text of the first barrier. Warps that were counted twice are a hazard, in this
        phase or in one without the waiting warps."""
        for k in range(self.context.doubled_count if "async" in self.places.setup.checks else 0):
            doubled = self.context.doubled[k]
            if any(_is_missed(doubled, wait) for wait in waits):
                report_row(self.places, self.log, doubled.row[0], self.decoded)
        first = min(waits, key=lambda wait: wait.path.info)
        barrier = self.context.barriers[layout.BARRIER_COUNT * first.warp.cta + first.path.info]
        need = barrier.given or sum(warp.live.bit_count() for warp in self.warps() if warp.cta == first.warp.cta)
        there, block, thread = f"{barrier.arrived} of {need}", first.place.block, first.place.thread
        at = first.text(f" on barrier {first.path.more}")
        return f"{at}: block {block} has {there} threads there, {_NO_OTHER} (thread {thread} is among those waiting)"

    def at_cluster(self, waits: Sequence[_Wait]) -> str:
        """Waits at the barrier of a cluster."""
        first, size = waits[0], self.context.cluster_size
        cluster = first.warp.cta // size
        alive = sum(warp.live.bit_count() for warp in self.warps() if warp.cta // size == cluster)
        there, phase = self.context.cluster_arrived[cluster], self.context.cluster_phase[cluster]
        return (
            f"{first.text()}: the cluster of block {first.place.block} has {there} of {alive} threads at its barrier "
            f"in phase {phase}, {_NO_OTHER} (thread {first.place.thread} is among those waiting)"
        )

    def at_mbarrier(self, waits: Sequence[_Wait]) -> str:
        """Waits for a phase of an mbarrier."""
        first, mbarrier = waits[0], waits[0].path.mbarrier
        thread, arrivals = first.place.thread, f"{mbarrier.pending} of {mbarrier.expected} arrivals"
        return (
            f"{first.text()}: the mbarrier at offset {mbarrier.offset} of shared memory is in phase {mbarrier.phase}, "
            f"with {arrivals} and {mbarrier.pending_bytes} bytes still to come, and nothing that could complete it "
            f"(thread {thread} of block {first.place.block} waits for the end of phase {first.path.more})"
        )

    def at_product(self, waits: Sequence[_Wait]) -> str:
        """Warps of a warpgroup that wait for its other warps."""
        first = waits[0]
        together = (wait for wait in waits if wait.instruction == first.instruction and wait.group == first.group)
        there = sum(wait.path.mask.bit_count() for wait in together)
        return (
            f"{first.text()} needs all {4 * layout.WARP} threads of a warpgroup: {there} of that of thread "
            f"{first.place.thread} in block {first.place.block} are there, and the others cannot come"
        )

    def for_registers(self, waits: Sequence[_Wait]) -> str:
        """Waits for registers, also a hazard."""
        first, setup = waits[0], self.places.setup
        asked = {wait.warp.number: wait.path.more for wait in waits if wait.warp.cta == first.warp.cta}
        mine = (warp for warp in self.warps() if warp.cta == first.warp.cta)
        total = layout.WARP * sum(asked.get(warp.number, warp.held_registers) for warp in mine)
        what = (
            f"waits forever: the warps of the block ask for {total} registers in all, and a block of "
            f"{setup.geometry.threads} threads has {self.context.register_limit}"
        )
        if "async" in setup.checks:
            self.log.put(self.places, "registers", first.instruction, first.place, Wording(what, USUALLY_REGISTERS))
        return f"{first.text()} {what} (thread {first.place.thread} of block {first.place.block})"

    def polls_in_vain(self) -> Deadlock | None:
        """The exception for a deadlock in polling. Also a hazard if blocks that have not begun might end it."""
        setup = self.places.setup
        endless = polling_loops(setup.entry, setup.program).endless
        for warp in self.warps() if endless else ():
            block = lowest_ready(warp)
            if block not in endless:
                continue
            place = self.places.thread(warp.linear_cta, warp.number, pop_lanes(warp, block))
            instruction, what = endless[block], "polls for what no thread that has begun can write any more"
            if setup.geometry.ctas > self.context.cta_count and "async" in setup.checks:
                wording = Wording(f"{what}: {_MAY_WAIT}", _USUALLY_PROGRESS)
                self.log.put(self.places, "progress", instruction, place, wording)
            return Deadlock(
                f"thread {place.thread} of block {place.block} {what} (PTX line {instruction.line}), and so does every "
                "other that could run"
            )
        return None


def _is_missed(doubled: DoubledArrival, wait: _Wait) -> bool:
    """Whether lanes wait at a barrier at which others were counted twice, and not in that phase if it is complete."""
    there = doubled.there[wait.warp.number] if doubled.complete else 0
    mine = doubled.barrier == layout.BARRIER_COUNT * wait.warp.cta + wait.path.info
    return mine and bool(wait.path.mask & ~there)


_WORDS: Mapping[int, Callable[[_Stuck, Sequence[_Wait]], str]] = {
    layout.FOR_REGISTERS: _Stuck.for_registers,
    layout.AT_BARRIER: _Stuck.at_barrier,
    layout.AT_MBARRIER: _Stuck.at_mbarrier,
    layout.AT_CLUSTER: _Stuck.at_cluster,
    layout.AT_WGMMA: _Stuck.at_product,
}
"""The texts of waits, by status."""
_CAUSES = layout.FOR_REGISTERS, layout.AT_BARRIER
"""Waits that keep warps from the waits of others."""
