"""Memory with stale reads: ``launch(..., reads="stale")``.

Every written word has a history in coherence order, and every warp a view of the writes before it
(:mod:`~warpsan.weak.views`). A read draws one of the writes that its view allows: the last one that the warp has seen,
or any later one (PTX ISA, "Memory Consistency Model", axioms "Coherence" and "Causality"). A write may come before
later ones in coherence order that its warp has not seen. An atomic operation reads the write directly before its own
("Atomicity"), unless a scope is too narrow for the two (:mod:`~warpsan.weak.choices`). Unordered loads may be late
(:mod:`~warpsan.weak.late_loads`). :mod:`~warpsan.weak.passing` passes views on.

The rules are sometimes stronger than those of PTX for simplicity, and never weaker: the lanes of a warp have one view;
accesses of several words read one moment of memory; all warps see the writes of asynchronous copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from warpsan.checks.orders import BARRIER, WEAK, MemoryOrder, memory_order
from warpsan.engine.observer import Access, CompletionBarrier
from warpsan.engine.selection import Array, Indices, Mask, Selection, indices
from warpsan.ptx.ir import Entry, Instruction
from warpsan.ptx.opcodes import opcode_of
from warpsan.weak.choices import Choices
from warpsan.weak.history import History, Release, Write
from warpsan.weak.late_loads import LateLoads
from warpsan.weak.passing import PassedViews
from warpsan.weak.warps import Threads, WarpTable, WarpViews

__all__ = ["WeakMemory"]

_MOST_WRITES = 1 << 19
"""Most kept writes, of some 200 bytes each; beyond, all warps have seen all writes."""


class WeakMemory:
    """The histories of global and shared memory of a launch, and the views of its warps.

    Parameters
    ----------
    entry : Entry
    seed : int
        The seed of all choices.
    volatile_is_data : bool
        Whether volatile accesses are weak.

    Attributes
    ----------
    choices : Choices
        Draws the writes that reads return.
    loads : LateLoads
    """

    def __init__(self, entry: Entry, seed: int, *, volatile_is_data: bool) -> None:
        draw = random.Random(f"stale reads {seed}")
        self._volatile_is_data = volatile_is_data
        self._warps = WarpTable()
        self._histories: dict[str, History] = {}
        self._orders: dict[int, MemoryOrder] = {}
        """The memory order of an instruction, by its pc."""
        self._number = 0
        """The number of the last write."""
        self.choices = Choices(self._warps, draw)
        self.loads = LateLoads(draw)
        self._passing = PassedViews(entry, self._warps)

    def attach(self, threads: Threads) -> None:
        """These threads begin; earlier ones have run to their end."""
        if "global" not in self._histories:
            self._histories["global"] = History(threads.spaces["global"])
        self._histories["shared"] = History(threads.spaces["shared"])
        self._warps.attach(threads)
        self._passing.clear()
        self.choices.newest = False
        self.loads.clear()

    def _order(self, instruction: Instruction) -> MemoryOrder:
        order = self._orders.get(instruction.pc)
        if order is None:
            order = memory_order(instruction) if opcode_of(instruction).memory else WEAK
            if order.volatile and self._volatile_is_data:
                order = WEAK
            self._orders[instruction.pc] = order
        return order

    # ---- reads and writes -------------------------------------------------------------------------------------------

    def read(self, access: Access) -> Array:
        """A word for each lane: the value that a load reads."""
        self.loads.settle_overlapping(access)
        values = access.space.load(access.index, access.width)
        history = self._histories.get(access.space.name)
        if history is None:
            return values
        order, many = self._order(access.instruction), max(1, access.width // 4)
        raw: Array | None = None
        for row, (lane, index) in enumerate(_rows(access)):
            warp, words = self._warps.of_lane(lane), range(index // 4, index // 4 + many)
            last = [history.last(word) for word in words]
            if any(self.choices.is_open(warp, each, order) for each in last):
                if raw is None:
                    values = values.copy()
                    raw = values.view(np.uint8).reshape(-1, access.width)
                chosen = self._chosen(warp, access, history, words, last)
                for word, (write, _) in zip(words, chosen, strict=True):
                    if write is not None and order.strong and self.choices.morally_strong(warp, order, write):
                        self._passing.observe(warp, (access.space.name, word), write, order, returns=True)
                read = b"".join(value.to_bytes(4, "little") for _, value in chosen)
                raw[row] = list(read[index & 3 :][: access.width] if many == 1 else read)
            if order.acquire:
                for word in words:
                    self._passing.acquire_again(warp, (access.space.name, word), order)
        return values

    def _chosen(
        self, warp: WarpViews, access: Access, history: History, words: Sequence[int], last: Sequence[Write | None]
    ) -> list[tuple[Write | None, int]]:
        memory = access.space.views[4]
        held = [int(memory[word]) if each is None else None for word, each in zip(words, last, strict=True)]
        return self.choices.choose(warp, history, words, held)

    def write(self, access: Access, words: Array) -> None:
        """Lanes write words."""
        self.loads.settle_overlapping(access)
        history = self._histories.get(access.space.name)
        if history is None:
            access.space.store(access.index, access.width, words)
            return
        places, memory = _lane_of_each_word(access), access.space.views[4]
        before = memory[list(places)].tolist()
        late: dict[int, Write | None] = {}
        for word, lane in places.items() if access.width == 4 and not self.choices.newest else ():
            last, warp = history.last(word), self._warps.of_lane(lane)
            if last is not None and last.warp != warp.number:
                overtaken, after = self.choices.overtaken(warp, history, word)
                if overtaken:
                    late[word] = after
        access.space.store(access.index, access.width, words)
        order = self._order(access.instruction)
        self._begin_writes()
        for (word, lane), value, held in zip(places.items(), memory[list(places)].tolist(), before, strict=True):
            warp = self._warps.of_lane(lane)
            write = self._new_write(warp, value, order, update=False)
            if word in late:
                history.insert(word, write, late[word])
                memory[word] = held
            else:
                history.append(word, write, held)
            if order.strong:
                self._passing.release_write(warp, (access.space.name, word), write, order, [])

    def update(self, access: Access, update: Callable[[Array], Array]) -> Array:
        """Lanes with different places read and write in one operation. Returns the old values.

        ``update`` gives the new words from the old ones.
        """
        self.loads.settle_overlapping(access)
        history, memory = self._histories[access.space.name], access.space.views[4]
        old = access.space.load(access.index, access.width)
        order, returns = self._order(access.instruction), access.instruction.opcode == "atom"
        places = _lane_of_each_word(access)
        before = memory[list(places)].tolist()
        torn, observed = set[int](), dict[int, list[Release]]()
        for k, (word, lane) in enumerate(places.items()):
            warp, last = self._warps.of_lane(lane), history.last(word)
            read = last
            if last is not None and access.width == 4 and not self.choices.morally_strong(warp, order, last):
                read, value = self.choices.update_reads(warp, history, word, order)
                if read is not last:
                    old = old.copy() if not torn else old
                    old[k] = value
                    torn.add(word)
            if read is not None and order.strong and self.choices.morally_strong(warp, order, read):
                place = access.space.name, word
                observed[word] = self._passing.observe(warp, place, read, order, returns=returns)
            if order.acquire and returns:
                self._passing.acquire_again(warp, (access.space.name, word), order)
        access.space.store(access.index, access.width, update(old))
        self._begin_writes()
        for (word, lane), value, held in zip(places.items(), memory[list(places)].tolist(), before, strict=True):
            warp = self._warps.of_lane(lane)
            write = self._new_write(warp, value, order, update=word not in torn)
            history.append(word, write, held)
            self._passing.release_write(warp, (access.space.name, word), write, order, observed.get(word, []))
        return old

    def _begin_writes(self) -> None:
        """Begin a step of writes."""
        self._warps.time += 1
        if sum(history.many for history in self._histories.values()) > _MOST_WRITES:
            for history in self._histories.values():
                history.clear()

    def _new_write(self, warp: WarpViews, value: int, order: MemoryOrder, *, update: bool) -> Write:
        self._number += 1
        level = order.level if order.strong else -1
        return Write(self._number, value, warp.number, self._warps.time, level, update=update)

    # ---- synchronisation --------------------------------------------------------------------------------------------

    def fence(self, sel: Selection, instruction: Instruction) -> None:
        """See :meth:`PassedViews.fence`."""
        self._passing.fence(sel, instruction)

    def release(self, key: Hashable, sel: Selection, home: Indices | None = None, order: MemoryOrder = BARRIER) -> None:
        """See :meth:`PassedViews.release`."""
        self._passing.release(key, sel, home, order)

    def acquire(self, key: Hashable, sel: Selection, home: Indices | None = None) -> None:
        """See :meth:`PassedViews.acquire`."""
        self._passing.acquire(key, sel, home)

    def arrive(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """See :meth:`PassedViews.arrive`."""
        self._passing.arrive(barrier, sel, order)

    def leave(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """See :meth:`PassedViews.leave`."""
        self._passing.leave(barrier, sel, order)

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """See :meth:`PassedViews.publish`."""
        self._passing.publish(source, target, ctas)

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """See :meth:`PassedViews.forget`."""
        self._passing.forget(key, ctas)


def _rows(access: Access) -> Iterator[tuple[int, int]]:
    """(lane, byte index) of each access."""
    return zip(indices(access.sel).tolist(), access.index.tolist(), strict=True)


def _lane_of_each_word(access: Access) -> dict[int, int]:
    """The words that a step accesses, without duplicates, and the lane with the last access."""
    many = max(1, access.width // 4)
    return {word: lane for lane, index in _rows(access) for word in range(index // 4, index // 4 + many)}
