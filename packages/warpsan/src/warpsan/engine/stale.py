"""Memory accesses of native code in launches with stale reads.

The records of such accesses (:mod:`warpsan.semantics.stale`) leave their lanes' addresses and the values to write in
the scratch, and call Python; :class:`~warpsan.weak.WeakMemory` decides the values that they read, and executes them.
Fences and barriers (:mod:`.stale_events`) call it too. No Python runs between two accesses, as in other launches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from warpsan.checks.orders import SAME_CLUSTER, MemoryOrder
from warpsan.engine import layout
from warpsan.engine.layout import WARP
from warpsan.engine.observer import Access, CompletionBarrier
from warpsan.engine.selection import Array, Indices, in_turns
from warpsan.engine.stale_events import ARRIVES, LEAVES, OF_BLOCK, OF_CLUSTER
from warpsan.engine.words import load32
from warpsan.host.memory import POISON, WORDS, Space
from warpsan.host.setup import Setup
from warpsan.ptx.types import unsigned
from warpsan.weak import WeakMemory

__all__ = ["LateRow", "StaleAccess", "StaleFence", "StaleReads", "StaleSettling"]


@dataclass(frozen=True)
class LateRow:
    """The target of an element of a load that reads later: its row (-1: none), the bits of the register, and whether
    the element is sign-extended."""

    row: int
    bits: int
    signed: bool


@dataclass(frozen=True)
class StaleAccess:
    """An instruction that accesses memory.

    Attributes
    ----------
    pc, width : int
        The instruction's number, and the bytes that each lane accesses.
    does : {"load", "store", "update"}
    element : int
        Bytes of an element.
    late : tuple of LateRow
        The targets of a load that may read later.
    compute : int
        For an update, the number of the operation that computes new words from the old ones.
    """

    pc: int
    width: int
    does: str
    element: int
    late: tuple[LateRow, ...] = ()
    compute: int = -1


@dataclass(frozen=True)
class StaleFence:
    """A fence, by its pc."""

    pc: int


@dataclass(frozen=True)
class StaleSettling:
    """Loads, by their pc, that must have read before the next instruction."""

    loads: frozenset[int]


@dataclass
class _Together:
    """The resident CTAs and their memory; lanes are numbered by CTA and warp."""

    warps: int
    n_cta: int
    cluster_size: int
    thread: Indices
    cta: Indices
    cta_ids: Indices
    spaces: Mapping[str, Space]


_ACCESS = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
_EVENT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p)
_LANE = np.arange(WARP)
_LOW = (1 << 32) - 1
_IDLE = 32
"""Reads of polling loops for each warp, without other reads between them, after which reads are not stale."""
_CLUSTER = "barrier.cluster"


class StaleReads:
    """Handles the calls of one thread's native code.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory.
    context : ndarray of int64
        The thread's context, complete before the first call.
    calls : sequence of StaleAccess, StaleFence and StaleSettling
        The calls of the program.
    fail : function
        Called with an exception; the native run ends then.

    Attributes
    ----------
    access, event : int
        Addresses of the functions that native code calls.
    """

    def __init__(
        self,
        setup: Setup,
        space: Space,
        context: Array,
        calls: tuple[StaleAccess | StaleFence | StaleSettling, ...],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.setup, self.space, self.context, self.calls, self.fail = setup, space, context, calls, fail
        self.weak = WeakMemory(setup.entry, setup.seed, volatile_is_data=setup.volatile == "data")
        self._callbacks = _ACCESS(self._access), _EVENT(self._event)
        self.access, self.event = (int(ctypes.cast(each, ctypes.c_void_p).value or 0) for each in self._callbacks)
        self._cluster = -1
        self._progress, self._idle = -1, 0
        self._threads: _Together
        self._bases: tuple[tuple[int, int, Space], ...] = ()
        """Start of each space in this process, its bytes, and the space; global memory last."""
        self._places: Array
        self._words: Array
        self._table: Array

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _access(self, registers: int, record: int, mask: int, context: int) -> int:
        try:
            if self._cluster != self.context[layout.CLUSTER]:
                self._begin()
            call = self.calls[load32(record + 4 * (layout.OPERANDS + layout.LAST_OPERAND))]
            lanes = _lanes(mask)
            sel = lanes + WARP * int(self.context[layout.CURRENT])
            if isinstance(call, StaleSettling):
                self.weak.loads.settle(call.loads, sel)
            elif isinstance(call, StaleFence):
                self.weak.fence(sel, self.setup.entry.instructions[call.pc])
            elif len(lanes):
                access = self._at(call, lanes, sel)
                if call.does == "load":
                    self._load(call, access, lanes, registers)
                elif call.does == "store":
                    self._store(call, access, lanes)
                else:
                    self._update(call, access, lanes, registers, record, context)
        except BaseException as error:
            self.fail(error)
            return layout.TRAP
        return layout.DONE

    def _event(self, what: int, where: int, order: int, context: int) -> int:
        try:
            if self._cluster != self.context[layout.CLUSTER]:
                self._begin()
            kind, lane = what >> 32, np.array([WARP * (what & _LOW)])
            self._happens(kind & 3, kind & ~3, lane, where >> 32, where & _LOW, order)
        except BaseException as error:
            self.fail(error)
            return layout.TRAP
        return layout.DONE

    def _happens(self, does: int, kind: int, lane: Indices, cta: int, place: int, order: int) -> None:
        """A warp, by its first lane, arrives at a barrier or leaves it, or a phase is complete."""
        weak, here = self.weak, np.arange(self._threads.n_cta) == cta
        if kind == OF_BLOCK:
            if does == ARRIVES:
                weak.release(("bar", place), lane)
            elif does == LEAVES:
                weak.acquire(("bar", place), lane)
            else:
                weak.forget(("bar", place), here)
        elif kind == OF_CLUSTER:
            first = cta * self._threads.cluster_size
            if does == ARRIVES:
                passes = MemoryOrder(True, not order, not order, SAME_CLUSTER)
                weak.release((_CLUSTER, "arrived"), lane, np.array([first]), passes)
            elif does == LEAVES:
                weak.acquire((_CLUSTER, "complete"), lane, np.array([first]))
            else:
                weak.publish((_CLUSTER, "arrived"), (_CLUSTER, "complete"), np.arange(self._threads.n_cta) == first)
        else:
            barrier = CompletionBarrier(place, np.array([cta]))
            passes = MemoryOrder(True, order > 0, order > 0, abs(order) - 1)
            if does == ARRIVES:
                weak.arrive(barrier, lane, passes)
            elif does == LEAVES:
                weak.leave(barrier, lane, passes)
            else:
                weak.publish(barrier.key, (barrier.key, "complete"), here)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Switch to other CTAs."""
        context, geometry, shared = self.context, self.setup.geometry, self.setup.symbols.shared_bytes
        self._cluster = int(context[layout.CLUSTER])
        many = int(context[layout.CTA_COUNT])
        lane = np.arange(WARP * geometry.warps * many)
        ctas = _bytes_at(int(context[layout.CTAS]) + 8 * self._cluster * many, 8 * many).view(np.int64)
        spaces = {"global": self.space}
        bases = []
        for name, word, size, limit in (
            ("shared", layout.SHARED, many * int(context[layout.SHARED_STRIDE]), shared),
            ("local", layout.LOCAL, len(lane) * int(context[layout.LOCAL_STRIDE]), self.setup.symbols.local_bytes),
        ):
            spaces[name] = Space(name, size, limit, data=_bytes_at(int(context[word]), size))
            bases.append((int(context[word]), size, spaces[name]))
        self._bases = *bases, (int(context[layout.GLOBAL]), len(self.space.data), self.space)
        block = WARP * geometry.warps
        self._threads = _Together(
            *(geometry.warps, many, geometry.cluster_size, lane % block, lane // block, ctas.copy(), spaces)
        )
        scratch = int(context[layout.SCRATCH])
        self._places = _bytes_at(scratch + layout.STALE_PLACES, 8 * WARP).view(np.int64)
        self._words = _bytes_at(scratch + layout.STALE_WORDS, layout.STALE_BYTES * WARP).reshape(WARP, -1)
        self.weak.attach(self._threads)

    def _at(self, call: StaleAccess, lanes: Indices, sel: Indices) -> Access:
        """The access of lanes whose places are all in one space."""
        places = self._places[lanes]
        first = int(places[0])
        for begin, size, memory in self._bases:
            if begin <= first < begin + size:
                base, space = begin, memory
        index = places - base
        return Access(space, index, index, call.width, sel, self.setup.entry.instructions[call.pc])

    def _held(self, lanes: Indices, width: int) -> Array:
        """The values that native code has left for each lane, as words."""
        return np.ascontiguousarray(self._words[lanes, :width]).view(WORDS[width])[:, 0]

    def _leave(self, lanes: Indices, words: Array, width: int) -> None:
        """Store words for native code."""
        self._words[lanes, :width] = words.view(np.uint8).reshape(-1, width)

    def _load(self, call: StaleAccess, access: Access, lanes: Indices, registers: int) -> None:
        progress = int(self.context[layout.PROGRESS])
        self._idle = self._idle + 1 if progress == self._progress else 0
        self._progress = progress
        self.weak.choices.newest = self._idle > _IDLE * self._threads.warps * self._threads.n_cta
        self._words.fill(POISON)
        if not call.late:
            self._leave(lanes, self.weak.read(access), call.width)
            return
        now = True

        def deliver() -> None:
            words = self.weak.read(access)
            if now:
                self._leave(lanes, words, call.width)
            else:
                self._put(call, words, lanes, registers)

        self.weak.loads.add(access.instruction, [access], deliver)
        now = False

    def _put(self, call: StaleAccess, words: Array, lanes: Indices, registers: int) -> None:
        """Write the values of a late load into its registers."""
        columns = words.view(unsigned(8 * call.element)).reshape(len(lanes), -1)
        for k, target in enumerate(call.late):
            if target.row < 0:
                continue
            row = _bytes_at(registers + target.row, target.bits // 8 * WARP).view(unsigned(target.bits))
            values = columns[:, k]
            if target.signed:
                values = values.view(f"i{call.element}").astype(f"i{target.bits // 8}")
            row[lanes] = values.astype(row.dtype)

    def _store(self, call: StaleAccess, access: Access, lanes: Indices) -> None:
        words = self._held(lanes, call.width)
        self.weak.write(access, words)
        if not self.setup.checks:
            return
        last = {place: k for k, place in enumerate(access.index.tolist())}
        raw, differ = words.view(np.uint8).reshape(-1, call.width), 0
        for k, place in enumerate(access.index.tolist()):
            if last[place] != k and (raw[k] != raw[last[place]]).any():
                differ |= 1 << int(lanes[k])
        word = _bytes_at(int(self.context[layout.SCRATCH]) + layout.STALE_DIFFER, 4).view(np.uint32)
        word[0] = differ

    def _update(
        self, call: StaleAccess, access: Access, lanes: Indices, registers: int, record: int, context: int
    ) -> None:
        table = _bytes_at(int(self.context[layout.TABLE]) + 8 * call.compute, 8).view(np.int64)
        compute = _ACCESS(int(table[0]))
        scratch = int(self.context[layout.SCRATCH]) + layout.STALE_WORDS
        self._places[:] = scratch + layout.STALE_BYTES * _LANE
        for turn in in_turns(access.index):
            mine = lanes[turn]

            def updated(words: Array, mine: Indices = mine) -> Array:
                self._leave(mine, words, call.width)
                compute(registers, record, int((1 << mine).sum()), context)
                return self._held(mine, call.width)

            self.weak.update(access.at(turn), updated)


@lru_cache(maxsize=4096)
def _lanes(mask: int) -> Indices:
    """The lanes of a mask."""
    return np.flatnonzero(mask >> _LANE & 1)


def _bytes_at(address: int, size: int) -> Array:
    """Memory of this process."""
    if size == 0:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
