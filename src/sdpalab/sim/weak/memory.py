"""Memory in which reads may be stale: ``launch(..., reads="stale")``.

Every word that is written has a history in coherence order, and every warp a view of what comes before it
(:mod:`~sdpalab.sim.weak.views`). A read draws one of the writes that its view does not rule out: the last one that the
warp has seen, or any later one (PTX ISA, "Memory Consistency Model", axioms "Coherence" and "Causality"). A write may
come before later ones in coherence order that its warp has not seen. An atomic operation reads the write right before
its own ("Atomicity"), unless a scope is too narrow for the two. Loads that nothing orders may be late
(:mod:`~sdpalab.sim.weak.late_loads`).

The rules are stronger than those of PTX where that is simpler, never weaker: the lanes of a warp have one view;
accesses of several words read one moment of memory; what asynchronous copies write is seen by all warps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from sdpalab.sim.checks.clocks import far
from sdpalab.sim.checks.orders import (
    BARRIER,
    SAME_CLUSTER,
    SAME_CTA,
    SAME_GPU,
    WEAK,
    MemoryOrder,
    fence_order,
    memory_order,
)
from sdpalab.sim.ir import Entry, Instruction
from sdpalab.sim.machine import Machine
from sdpalab.sim.observer import Access, CompletionBarrier, Observer
from sdpalab.sim.opcodes import opcode_of
from sdpalab.sim.selection import Array, Indices, Mask, Selection, indices
from sdpalab.sim.weak.history import History, Release, Writes
from sdpalab.sim.weak.late_loads import LateLoads
from sdpalab.sim.weak.views import FenceOrder, View

__all__ = ["WeakMemory"]

_MOST_WRITES = 1 << 22
"""Writes that are kept; then all warps have seen everything."""
_RELATIONS = (SAME_CTA, SAME_CLUSTER, SAME_GPU)


class _WarpViews:
    """What a warp has seen, what it has released by fences, and what it may still acquire."""

    def __init__(self, number: int, block: int, cluster: int) -> None:
        self.number, self.block, self.cluster = number, block, cluster
        self.view = View()
        self.fenced: list[View | None] = [None, None, None]
        """For each relation what came before the last fence that releases so far."""
        self.observed: list[View | None] = [None, None, None]
        """For each relation what strong reads have observed, for the next fence that acquires so far."""
        self.released_to: dict[tuple[str, int], list[View | None]] = {}
        """The same as ``fenced`` for the last release operation on each place."""
        self.observed_at: dict[tuple[str, int], list[View | None]] = {}
        """The same as ``observed`` for the reads of each place."""


class WeakMemory(Observer):
    """The histories of global and shared memory of a launch, and the views of its warps.

    Parameters
    ----------
    entry : Entry
    seed : int
        For all choices.
    volatile_is_data : bool
        Whether volatile accesses are weak.
    """

    def __init__(self, entry: Entry, seed: int, *, volatile_is_data: bool) -> None:
        self._draw = random.Random(f"stale reads {seed}")
        self._volatile_is_data = volatile_is_data
        self.newest = False
        """Whether reads are not stale for now: nothing can go on otherwise."""
        self._writes = Writes()
        self._histories: dict[str, History] = {}
        self._warps: dict[int, _WarpViews] = {}
        self._objects: dict[tuple[Hashable, int], View] = {}
        """What was released to each barrier, by its key and its CTA of the chunk."""
        sequential = [fence_order(each).level for each in entry.instructions if _sequential(each)]
        self._levels = {min(level, SAME_GPU) for level in sequential}
        self._orders: dict[tuple[int, int], FenceOrder] = {}
        """The Fence-SC orders, by one of these levels and the block, the cluster or 0."""
        self._cluster_of: dict[int, int] = {}
        """For each block that has begun, the first block of its cluster."""
        self._time = 0
        self.loads = LateLoads(entry, self._draw)
        self.machine: Machine
        self._warp_of: Array = np.empty(0, np.int64)
        """The number in the launch of each lane's warp."""

    def attach(self, machine: Machine) -> None:
        """A machine begins a chunk of CTAs."""
        self.machine = machine
        if "global" not in self._histories:
            self._histories["global"] = History(machine.spaces["global"], self._writes)
        self._histories["shared"] = History(machine.spaces["shared"], self._writes)
        self._objects.clear()
        slot = machine.thread // 32
        self._warp_of = machine.cta_ids[machine.cta] * machine.warps + slot
        first = np.arange(machine.n_cta) // machine.cluster_size * machine.cluster_size
        self._cluster_of.update(zip(machine.cta_ids.tolist(), machine.cta_ids[first].tolist(), strict=True))
        self.newest = False
        self.loads.clear()

    # ---- who --------------------------------------------------------------------------------------------------------

    def _warp(self, lane: int) -> _WarpViews:
        number = int(self._warp_of[lane])
        warp = self._warps.get(number)
        if warp is None:
            block = number // self.machine.warps
            warp = self._warps[number] = _WarpViews(number, block, self._cluster_of[block])
        return warp

    def _relation(self, warp: _WarpViews, block: int) -> int:
        if block == warp.block:
            return SAME_CTA
        return SAME_CLUSTER if self._cluster_of[block] == warp.cluster else SAME_GPU

    def _morally_strong(self, warp: _WarpViews, order: MemoryOrder, write: int) -> bool:
        """Whether an operation of a warp and a write are, which overlap."""
        writer = int(self._writes.warp[write])
        if not write or not order.strong or writer == warp.number:
            return bool(write) and writer == warp.number
        relation = self._relation(warp, writer // self.machine.warps)
        return relation <= min(order.level, int(self._writes.level[write]))

    def _order(self, instruction: Instruction) -> MemoryOrder:
        if not opcode_of(instruction).memory:
            return WEAK
        order = memory_order(instruction)
        return WEAK if order.volatile and self._volatile_is_data else order

    def _present(self, warp: _WarpViews) -> View:
        """What comes before the warp's next operation, to be kept."""
        warp.view.clock[warp.number] = self._time
        return warp.view.copy()

    # ---- reads and writes -------------------------------------------------------------------------------------------

    def read(self, access: Access) -> Array:
        """A word for each lane: what a load reads."""
        self.loads.settle_overlapping(access)
        words = access.space.load(access.index, access.width)
        history = self._histories.get(access.space.name)
        if history is None or not self._writes.many:
            return words
        order = self._order(access.instruction)
        places = _words_of(access)
        last = history.last(places.reshape(-1)).reshape(places.shape)
        rows, lanes = self._undecided(access.sel, last, order), indices(access.sel)
        if len(rows):
            words = words.copy()
            raw = words.view(np.uint8).reshape(len(words), access.width)
        for row in rows.tolist():
            warp = self._warp(int(lanes[row]))
            chosen = self._choose(warp, history, last[row].tolist())
            for column, (number, value) in enumerate(chosen):
                byte = int(access.index[row]) & 3 if access.width < 4 else 0
                raw[row, 4 * column : 4 * column + 4] = list(value.to_bytes(4, "little")[byte : byte + access.width])
                self._observe(warp, (access.space.name, int(places[row, column])), number, order, returns=True)
        if order.acquire:
            self._acquire_again(access, places, order)
        return words

    def write(self, access: Access, words: Array) -> None:
        """Lanes write words."""
        self.loads.settle_overlapping(access)
        if access.space.name not in self._histories:
            access.space.store(access.index, access.width, words)
            return
        places, rows, before = self._replaced(access)
        history = self._histories[access.space.name]
        late = self._overtaken(access, places, rows, history) if access.width == 4 else {}
        access.space.store(access.index, access.width, words)
        numbers = self._added(access, places, rows, before, update=False)
        last = np.ones(len(places), np.bool_)
        last[list(late)] = False
        history.append(places[last], numbers[last])
        for k, after in late.items():
            history.insert(int(places[k]), int(numbers[k]), after)
            access.space.views[4][places[k]] = before[k]
        order = self._order(access.instruction)
        if order.strong:
            self._release(access, places, rows, numbers, order, {})

    def update(self, access: Access, update: Callable[[Array], Array]) -> Array:
        """Lanes that name different places read and write in one operation; what was there.

        ``update`` gives the new words from the old ones.
        """
        self.loads.settle_overlapping(access)
        history = self._histories[access.space.name]
        old = access.space.load(access.index, access.width)
        order, returns = self._order(access.instruction), access.instruction.opcode == "atom"
        places, rows, before = self._replaced(access)
        last = history.last(places)
        lanes = indices(access.sel)
        torn: list[int] = []
        observed: dict[int, list[Release]] = {}
        for k in np.flatnonzero(last).tolist():
            warp, row = self._warp(int(lanes[rows[k]])), int(rows[k])
            number, value = int(last[k]), int(before[k])
            if access.width == 4 and not self._morally_strong(warp, order, number):
                number, value = self._draw.choice(self._readable(warp, history, number, order))
                if number != last[k]:
                    old = old.copy() if not torn else old
                    old[row] = value
                    torn.append(k)
            observed[k] = self._observe(warp, (access.space.name, int(places[k])), number, order, returns=returns)
        if order.acquire and returns:
            self._acquire_again(access, _words_of(access), order)
        access.space.store(access.index, access.width, update(old))
        numbers = self._added(access, places, rows, before, update=True)
        self._writes.update[numbers[torn]] = False
        history.append(places, numbers)
        self._release(access, places, rows, numbers, order, observed)
        return old

    def _replaced(self, access: Access) -> tuple[Indices, Indices, Array]:
        """The words that a step writes, each once, which of the accesses does so last, and what they hold before."""
        places = _words_of(access)
        flat = places.reshape(-1)[::-1]
        words, first = np.unique(flat, return_index=True)
        rows = (len(flat) - 1 - first) // places.shape[1]
        before: Array = access.space.views[4][words]
        return words, rows, before

    def _added(self, access: Access, places: Indices, rows: Indices, before: Array, *, update: bool) -> Array:
        self._time += 1
        if self._writes.many + len(places) > _MOST_WRITES:
            self._writes.clear()
            for history in self._histories.values():
                history.clear()
        order = self._order(access.instruction)
        return self._writes.add(
            len(places),
            value=access.space.views[4][places],
            before=before,
            warp=self._warp_of[indices(access.sel)[rows]],
            time=self._time,
            level=order.level if order.strong else -1,
            update=update,
        )

    # ---- choices ----------------------------------------------------------------------------------------------------

    def _undecided(self, sel: Selection, last: Array, order: MemoryOrder) -> Indices:
        """Which accesses [rows of ``last``] may read something older, or observe what their warp does not know."""
        own = self._warp_of[sel][:, None]
        open_: Mask = (last > 0) & (self._writes.warp[last] != own)
        if open_.any():
            rows, columns = np.nonzero(open_)
            writes = last[rows, columns]
            writers, times = self._writes.warp[writes].astype(np.int64), self._writes.time[writes]
            pairs, inverse = np.unique(own[rows, 0] << 32 | writers, return_inverse=True)
            clocks = [self._clock_of(int(pair) >> 32, int(pair) & 0xFFFFFFFF) for pair in pairs]
            open_[rows, columns] = times > np.array(clocks)[inverse]
        if order.strong:
            open_ |= (last > 0) & self._writes.update[last]
        return np.flatnonzero(open_.any(axis=1))

    def _clock_of(self, warp: int, other: int) -> int:
        return self._warps[warp].view.clock.get(other, 0) if warp in self._warps else 0

    def _possible(self, warp: _WarpViews, history: History, last: int) -> list[tuple[int, int]]:
        """(number, value) of what may be read where ``last`` is the last write, the last one first."""
        possible: list[tuple[int, int]] = []
        writes = self._writes
        for number, value in history.backwards(last):
            possible.append((number, value))
            writer = int(writes.warp[number])
            if writer == warp.number or warp.view.knows(writer, int(writes.time[number]), number):
                break
        return possible

    def _choose(self, warp: _WarpViews, history: History, last: list[int]) -> list[tuple[int, int]]:
        """What the words of an access are, as of one moment."""
        possible = [self._possible(warp, history, number) for number in last]
        if self.newest:
            return [choices[0] for choices in possible]
        if len(possible) == 1:
            return [self._draw.choice(possible[0])]
        time = self._writes.time
        least = max(int(time[choices[-1][0]]) for choices in possible)
        times = {int(time[number]) for choices in possible for number, _ in choices} | {least}
        moment = self._draw.choice(sorted(each for each in times if each >= least))
        return [next(each for each in choices if time[each[0]] <= moment) for choices in possible]

    def _readable(self, warp: _WarpViews, history: History, last: int, order: MemoryOrder) -> list[tuple[int, int]]:
        """What an atomic operation may read: not what comes before a write that is morally strong to it."""
        readable: list[tuple[int, int]] = []
        for number, value in self._possible(warp, history, last):
            readable.append((number, value))
            if self.newest or self._morally_strong(warp, order, number):
                break
        return readable

    def _overtaken(self, access: Access, places: Indices, rows: Indices, history: History) -> dict[int, int]:
        """Which writes come before the last one of their word in coherence order, and right behind which one."""
        last = history.last(places)
        lanes = indices(access.sel)
        late: dict[int, int] = {}
        if self.newest or not last.any():
            return late
        writers = self._warp_of[lanes[rows]]
        for k in np.flatnonzero((last > 0) & (self._writes.warp[last] != writers)).tolist():
            possible = self._possible(self._warp(int(lanes[rows[k]])), history, int(last[k]))
            after = self._draw.randrange(len(possible))
            if after and not self._writes.update[possible[after - 1][0]]:
                late[k] = possible[after][0]
        return late

    # ---- synchronisation --------------------------------------------------------------------------------------------

    def _observe(
        self, warp: _WarpViews, place: tuple[str, int], write: int, order: MemoryOrder, *, returns: bool
    ) -> list[Release]:
        """A warp has read a write: the releases that it observes, and that its own atomic write passes on."""
        if not order.strong or not self._morally_strong(warp, order, write):
            return []
        writer = int(self._writes.warp[write])
        if writer != warp.number:
            warp.view.seen.add(write)
        releases = self._writes.released.get(write, [])
        for release in releases if returns else ():
            relation = self._relation(warp, release.block)
            view = release.views[relation]
            if view is None:
                continue
            if order.acquire and relation <= order.level:
                warp.view.join(view)
            _join(warp.observed, relation, view)
            _join(warp.observed_at.setdefault(place, [None, None, None]), relation, view)
        return releases

    def _acquire_again(self, access: Access, places: Indices, order: MemoryOrder) -> None:
        """An acquire operation also acquires what strong reads of its place have observed before it."""
        lanes = indices(access.sel)
        for row, words in enumerate(places.tolist()):
            warp = self._warp(int(lanes[row]))
            for word in words:
                for relation, view in enumerate(warp.observed_at.get((access.space.name, word), ())):
                    if view is not None and relation <= order.level:
                        warp.view.join(view)

    def _release(
        self,
        access: Access,
        places: Indices,
        rows: Indices,
        numbers: Array,
        order: MemoryOrder,
        observed: dict[int, list[Release]],
    ) -> None:
        """What strong writes make visible to those who observe them."""
        lanes = indices(access.sel)
        for k, number in enumerate(numbers.tolist()):
            warp = self._warp(int(lanes[rows[k]]))
            place = access.space.name, int(places[k])
            before = warp.released_to.get(place, [None, None, None])
            views: list[View | None] = []
            present = self._present(warp) if order.release else None
            for relation in _RELATIONS:
                if present is not None and relation <= order.level:
                    views.append(present)
                    _join(warp.released_to.setdefault(place, [None, None, None]), relation, present)
                else:
                    both: list[View | None] = [None]
                    for view in filter(None, (warp.fenced[relation], before[relation])):
                        _join(both, 0, view)
                    views.append(both[0])
            releases = observed.get(k, [])
            if any(view is not None for view in views):
                releases = [*releases, Release(warp.block, (views[0], views[1], views[2]))]
            if releases:
                self._writes.released[number] = releases

    def fence(self, sel: Selection, instruction: Instruction) -> None:
        """Fences acquire what was observed before, and release what came before to strong writes behind them; those of
        ``fence.sc`` are in one order."""
        order = fence_order(instruction)
        level = min(order.level, SAME_GPU)
        self._time += 1
        for warp in self._each(sel):
            for relation in range(level + 1):
                view = warp.observed[relation]
                if order.acquire and view is not None:
                    warp.view.join(view)
            if _sequential(instruction):
                groups = enumerate((warp.block, warp.cluster, 0)[: level + 1])
                orders = [self._orders.setdefault(each, FenceOrder()) for each in groups if each[0] in self._levels]
                for each in orders:
                    each.lead_to(warp.view)
                present = self._present(warp)
                for each in orders:
                    each.append(present)
            if order.release:
                present = self._present(warp)
                warp.fenced[: level + 1] = [present] * (level + 1)

    def _each(self, sel: Selection) -> list[_WarpViews]:
        lanes = indices(sel)
        _, first = np.unique(self._warp_of[lanes], return_index=True)
        return [self._warp(lane) for lane in lanes[first].tolist()]

    def _arrivals(self, sel: Selection, home: Indices | None) -> list[tuple[_WarpViews, int]]:
        """(warp, CTA of the chunk that has the barrier), each pair once."""
        lanes = indices(sel)
        ctas = self.machine.cta[lanes] if home is None else home
        _, first = np.unique(self._warp_of[lanes] * self.machine.n_cta + ctas, return_index=True)
        return [(self._warp(lane), cta) for lane, cta in zip(lanes[first].tolist(), ctas[first].tolist(), strict=True)]

    def release(self, key: Hashable, sel: Selection, home: Indices | None = None, order: MemoryOrder = BARRIER) -> None:
        """Warps arrive at a barrier."""
        for warp, cta in self._arrivals(sel, home):
            view = self._present(warp) if order.release else warp.fenced[SAME_CLUSTER]
            if view is not None:
                self._objects.setdefault((key, cta), View()).join(view)

    def arrive(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """Warps arrive at an mbarrier; as :mod:`sdpalab.sim.checks.arrivals` has it without ``strict``."""
        for warp, cta in self._arrivals(sel, barrier.home):
            relation = self._relation(warp, int(self.machine.cta_ids[cta]))
            view = self._present(warp) if order.release else warp.fenced[relation]
            if view is not None and (order.implied or relation <= order.level):
                self._objects.setdefault((_at(barrier, relation), cta), View()).join(view)

    def leave(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """Warps have waited for a phase of an mbarrier."""
        for warp, cta in self._arrivals(sel, barrier.home):
            for relation in range((SAME_CLUSTER if order.implied else order.level) + 1):
                view = self._objects.get(((_at(barrier, relation), "complete"), cta))
                if view is not None and order.acquire:
                    warp.view.join(view)
                elif view is not None:
                    _join(warp.observed, relation, view.copy())

    def acquire(self, key: Hashable, sel: Selection, home: Indices | None = None) -> None:
        """Warps leave a barrier."""
        for warp, cta in self._arrivals(sel, home):
            if (key, cta) in self._objects:
                warp.view.join(self._objects[key, cta])

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """What was released to ``source`` can be acquired from ``target``."""
        for cta in np.flatnonzero(ctas).tolist():
            for one, other in ((source, target), (far(source), (far(source), "complete"))):
                view = self._objects.pop((one, cta), None)
                if view is not None:
                    self._objects.setdefault((other, cta), View()).join(view)

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """``key`` begins anew."""
        for cta in np.flatnonzero(ctas).tolist():
            self._objects.pop((key, cta), None)

    def before(self, instructions: Sequence[Instruction]) -> Callable[[Selection], None] | None:
        """What late loads wait for."""
        return self.loads.before(instructions)


def _at(barrier: CompletionBarrier, relation: int) -> Hashable:
    """Where threads in this relation to an mbarrier's CTA release what they pass on there."""
    return barrier.key if relation == SAME_CTA else far(barrier.key)


def _sequential(instruction: Instruction) -> bool:
    """Whether it is a ``fence.sc``; ``membar`` is one ("membar, fence")."""
    return instruction.opcode == "membar" or (instruction.opcode == "fence" and "sc" in instruction.mods)


def _words_of(access: Access) -> Indices:
    """The words of each access [accesses, words]."""
    words: Indices = access.index[:, None] // 4 + np.arange(max(1, access.width // 4))
    return words


def _join(views: list[View | None], place: int, view: View) -> None:
    """Add to one of ``views``, none of which changes."""
    mine = views[place]
    if mine is None:
        views[place] = view
    elif mine is not view:
        both = mine.copy()
        both.join(view)
        views[place] = both
