"""Replay of the resident warps of one SM, instruction by instruction, clock by clock.

Each of the four sub-cores issues at most one instruction per clock: from the last warp while possible, otherwise from
the youngest eligible one (Huerta et al., "Analyzing Modern NVIDIA GPU Cores", arXiv 2503.20481: greedy, then youngest).
A warp is eligible if its last instruction's stall count has expired, the scoreboards of the wait mask are free and the
unit accepts another instruction. Float, integer and matrix units accept one per interval; special functions, shared
memory and global memory have queues, and only a full queue blocks a warp. The sub-cores share shared memory and the
port to L2.

A path gives each warp the order of its instructions. Assumptions beyond the order: data loaded by other warps arrive
evenly, so a wait half-way through a warp's waits is for the first half of its CTA's copies; copying warps run ahead of
waiting warps as far as the shared memory of the CTA allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

from sdpalab.compile.control import SCOREBOARDS
from sdpalab.errors import UserError
from sdpalab.model.operations import WAVEFRONT, Act, Operation
from sdpalab.model.pipes import SUB_CORES, Pipes

__all__ = ["replay"]

QUEUE = 4
"""Instructions in the queue of a unit besides the one in progress."""
WGMMA_QUEUE = 1
READ = 8.0
"""Clocks after which a unit has read the operands of the instruction in progress; an assumption."""


@dataclass
class _Warp:
    """One resident warp; ``ready``: issue time by its stall count; ``free``: time of each scoreboard."""

    cta: int
    path: Sequence[int]
    waits: int
    copies: bool
    at: int = 0
    ready: float = 0.0
    free: list[float] = field(default_factory=lambda: [0.0] * SCOREBOARDS)
    groups: list[float] = field(default_factory=list)
    copied: float = 0.0
    products: list[float] = field(default_factory=list)
    product: float = 0.0
    waited: int = 0


@dataclass
class _SubCore:
    """A sub-core; ``planned``: time of its next choice; ``units``: time at which each unit accepts an instruction."""

    now: float = 0.0
    planned: float = inf
    warps: list[int] = field(default_factory=list)
    last: int = -1
    units: dict[str, float] = field(default_factory=dict)


def replay(
    code: Sequence[Operation],
    paths: Sequence[Sequence[int]],
    ctas: int,
    pipes: Pipes,
    shared_bytes: float = inf,
    trace: list[tuple[float, int, int]] | None = None,
) -> float:
    """Clocks in which an SM does the work of ``ctas`` equal CTAs, at this number of resident CTAs.

    The CTAs start together. When the first one ends, the elapsed clocks are divided by the share of instructions that
    all have issued: on a full SM a lagging CTA would be joined by the next one instead of running alone.

    Parameters
    ----------
    code : sequence of Operation
        Operations of the machine code, by position.
    paths : sequence of sequence of int
        Positions in execution order, for each warp of a CTA.
    ctas : int
        At least 1.
    pipes : Pipes
    shared_bytes : float
        Shared memory of a CTA, the limit for copied data that other warps have not yet waited for.
    trace : list of (float, int, int) or None
        Receives clock, warp and position of each issued instruction; warps are numbered CTA by CTA.

    Raises
    ------
    UserError
        If warps wait for each other in a deadlock.
    """
    return _Sm(code, paths, ctas, pipes, shared_bytes, trace).run()


class _Sm:
    def __init__(
        self,
        code: Sequence[Operation],
        paths: Sequence[Sequence[int]],
        ctas: int,
        pipes: Pipes,
        shared_bytes: float = inf,
        trace: list[tuple[float, int, int]] | None = None,
    ) -> None:
        self.trace = trace
        self.code, self.per_cta, self.l2_rate = code, len(paths), pipes.l2_bytes_per_clk_sm
        copies = [sum(code[place].act is Act.COPY for place in path) for path in paths]
        waits = [sum(code[place].act is Act.DATA_WAIT for place in path) for path in paths]
        self.copies = sum(copies)
        moved = sum(code[place].interval for path in paths for place in path if code[place].act is Act.COPY)
        self.ahead = max(1.0, self.copies * min(1.0, shared_bytes / moved)) if moved else inf
        self.waiters = [number for number, waits in enumerate(waits) if waits and not copies[number]]
        self.warps = [
            _Warp(cta, path, waits[number], copies[number] > 0)
            for cta in range(ctas)
            for number, path in enumerate(paths)
        ]
        self.cores = [_SubCore() for _ in range(SUB_CORES)]
        for number in range(len(self.warps)):
            self.cores[number % SUB_CORES].warps.append(number)
        self.landed: list[list[float]] = [[] for _ in range(ctas)]
        self.shared = self.l2 = 0.0
        self.barriers: dict[tuple[int, int], list[int]] = {}
        self.arrived: dict[tuple[int, int], int] = {}
        self.alive = [self.per_cta] * ctas
        self.end = self.progress = 0.0
        self.ended = False
        self.queue: list[tuple[float, int]] = []

    def run(self) -> float:
        """Result of :func:`replay`."""
        for number, core in enumerate(self.cores):
            if core.warps:
                self.plan(number, 0.0)
        while not self.ended:
            if not self.queue:
                self.unblock()
                continue
            when, number = heappop(self.queue)
            core = self.cores[number]
            if when != core.planned:
                continue  # already woken
            core.planned, core.now = inf, max(core.now, when)
            chosen, first = self.choose(core)
            if chosen >= 0:
                for other, ready in self.issue(core, chosen):
                    self.plan(other, ready)
                self.plan(number, core.now + 1)
            elif first < inf:
                self.plan(number, first)
        return self.end * len(self.alive) / self.progress

    def plan(self, number: int, when: float) -> None:
        """Schedule a choice of the sub-core at that clock, unless an earlier one is scheduled."""
        core = self.cores[number]
        if core.warps and when < core.planned:
            core.planned = when
            heappush(self.queue, (when, number))

    def choose(self, core: _SubCore) -> tuple[int, float]:
        """The warp that issues now; or -1 with the earliest possible time."""
        first, chosen = inf, -1
        for warp in reversed(core.warps):
            when = self.earliest(core, self.warps[warp])
            if when > core.now:
                first = min(first, when)
            elif warp == core.last:
                return warp, when
            elif chosen < 0:
                chosen = warp
        return chosen, first

    def earliest(self, core: _SubCore, warp: _Warp) -> float:
        """Earliest time at which a warp may issue its next instruction."""
        when = warp.ready
        if when == inf:
            return when
        one = self.code[warp.path[warp.at]]
        mask = one.control.wait_mask
        if mask:
            for board in one.control.waits_for:
                when = max(when, warp.free[board])
        act = one.act
        if act is Act.PLAIN:
            return max(when, core.units.get(one.unit, 0.0)) if one.unit else when
        if act is Act.QUEUED:
            return max(when, core.units.get(one.unit, 0.0) - QUEUE * one.interval)
        if act is Act.SHARED:
            return max(when, self.shared - QUEUE * SUB_CORES * one.interval)
        if act is Act.WGMMA:
            return max(when, core.units.get(one.unit, 0.0) - WGMMA_QUEUE * one.interval)
        if act is Act.WGMMA_WAIT:
            late = len(warp.products) - one.group
            return max(when, warp.products[late - 1]) if late > 0 else when
        if act is Act.COPY_WAIT:
            late = len(warp.groups) - one.group
            return max(when, warp.groups[late - 1]) if late > 0 else when
        if act is Act.DATA_WAIT:
            return max(when, self.arrival(warp))
        if act is Act.COPY and self.waiters:
            return when if len(self.landed[warp.cta]) - self.consumed(warp.cta) < self.ahead else inf
        return when

    def consumed(self, cta: int) -> float:
        """Copies that all waiting warps have waited for, without those of the last wait, which are still in use."""
        waiting = (self.warps[cta * self.per_cta + number] for number in self.waiters)
        return min(self.copies * max(0, each.waited - 1) / each.waits for each in waiting)

    def arrival(self, warp: _Warp) -> float:
        """Arrival time of the data of a warp's next wait, as far as they are in flight."""
        if warp.copies or not self.copies:
            return 0.0
        landed = self.landed[warp.cta]
        needed = ceil(self.copies * (warp.waited + 1) / warp.waits)
        return landed[needed - 1] if len(landed) >= needed else (inf if self.can_copy(warp.cta) else 0.0)

    def can_copy(self, cta: int) -> bool:
        first = cta * self.per_cta
        return any(each.copies and each.at < len(each.path) for each in self.warps[first : first + self.per_cta])

    def issue(self, core: _SubCore, number: int) -> list[tuple[int, float]]:
        """Issue a warp's next instruction; returns the sub-cores of woken warps, with times."""
        warp, now = self.warps[number], core.now
        one = self.code[warp.path[warp.at]]
        act, control = one.act, one.control
        if self.trace is not None:
            self.trace.append((now, number, warp.path[warp.at]))
        warp.at += 1
        warp.ready = now + max(1, control.stall)
        core.last = -1 if control.yields else number
        woken: list[tuple[int, float]] = []
        start = done = now
        if act is Act.PLAIN:
            if one.unit:
                core.units[one.unit] = now + one.interval
                done = now + one.latency
        elif act is Act.QUEUED:
            start = max(now, core.units.get(one.unit, 0.0))
            core.units[one.unit] = start + one.interval
            done = start + one.latency
        elif act is Act.SHARED:
            start = max(now, self.shared)
            self.shared = start + one.interval
            done = self.shared + one.latency
        elif act in (Act.LOAD, Act.COPY):
            self.l2 = max(now, self.l2) + one.interval / self.l2_rate
            done = self.l2 + one.latency
            if act is Act.COPY:
                self.shared = max(self.shared, now) + one.interval / WAVEFRONT
                warp.copied = max(warp.copied, done)
                landed = self.landed[warp.cta]
                landed.append(max(done, landed[-1] if landed else 0.0))
                woken = [(other, now + 1) for other in range(SUB_CORES)]
        elif act is Act.COPY_GROUP:
            warp.groups.append(warp.copied)
            done = warp.copied
        elif act is Act.WGMMA:
            start = max(now, core.units.get(one.unit, 0.0))
            core.units[one.unit] = start + one.interval
            warp.product = start + one.interval + one.latency
            if one.threads:
                warp.products.append(warp.product)
        elif act is Act.DATA_WAIT:
            warp.waited += 1
            done = now + one.latency
            woken = [(other, now + 1) for other in range(SUB_CORES)]
        elif act in (Act.BARRIER, Act.ARRIVE):
            woken = self.arrive(warp, number, one, now, stays=act is Act.BARRIER)
        if control.write_barrier is not None:
            board = control.write_barrier
            warp.free[board] = max(warp.free[board], done)
        if control.read_barrier is not None:
            board = control.read_barrier
            warp.free[board] = max(warp.free[board], start + READ)
        self.end = max(self.end, now)
        if act is Act.EXIT or warp.at >= len(warp.path):
            woken = [*woken, *self.leave(warp, core, number, now)]
        return woken

    def arrive(self, warp: _Warp, number: int, one: Operation, now: float, *, stays: bool) -> list[tuple[int, float]]:
        """Count a warp at a barrier; ``stays`` if it waits there."""
        key = warp.cta, one.group
        waiting = self.barriers.setdefault(key, [])
        self.arrived[key] = self.arrived.get(key, 0) + 1
        if stays:
            waiting.append(number)
            warp.ready = inf
        needed = one.threads // 32 if one.threads else self.alive[warp.cta]
        return self.release(key, now + one.latency) if self.arrived[key] >= needed else []

    def release(self, key: tuple[int, int], when: float) -> list[tuple[int, float]]:
        """Resume the warps that wait at a barrier."""
        waiting = self.barriers.pop(key, [])
        self.arrived.pop(key, None)
        for number in waiting:
            self.warps[number].ready = when
        return [(core, when) for core in {number % SUB_CORES for number in waiting}]

    def leave(self, warp: _Warp, core: _SubCore, number: int, now: float) -> list[tuple[int, float]]:
        """End a warp; barriers for all warps no longer wait for it."""
        core.warps.remove(number)
        warp.at = len(warp.path)
        self.alive[warp.cta] -= 1
        if not self.alive[warp.cta]:
            done, all_of_it = (sum(map(count, self.warps)) for count in (lambda w: w.at, lambda w: len(w.path)))
            self.ended, self.progress = True, len(self.alive) * done / all_of_it
        key = warp.cta, 0
        full = 0 < self.alive[warp.cta] <= self.arrived.get(key, 0)
        return [*(self.release(key, now) if full else []), *((other, now + 1) for other in range(SUB_CORES))]

    def unblock(self) -> None:
        """Release the barrier with the most waiting warps: paths of mean warps need not meet like those of real ones.

        Without waiting warps, copies may run ahead by one more.
        """
        waiting = {key: warps for key, warps in self.barriers.items() if warps}
        now = max(core.now for core in self.cores)
        if waiting:
            for core, when in self.release(max(waiting, key=lambda each: len(waiting[each])), now):
                self.plan(core, when)
        elif self.ahead <= self.copies:
            self.ahead += 1
            for core in range(SUB_CORES):
                self.plan(core, now)
        else:
            raise UserError("warps of the replayed machine code wait for data that nothing copies")
