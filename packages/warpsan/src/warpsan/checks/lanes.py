"""Races between the lanes of one warp (PTX ISA, "Axioms"; CUDA C++ Programming Guide, "Independent Thread Scheduling").

Lanes of a warp need not run together (sm_70 and later). A lane that executed an instruction together with another comes
after it in its own program; a lane that was absent, because the warp had diverged, does not. ``__syncwarp()`` orders
the lanes of its mask, and a barrier orders the lanes that arrive. An access matters here only if lanes of its warp were
absent, and only such accesses are kept. (The ``strict`` check does not assume that lanes which run together stay
together.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from warpsan.analysis.collectives import is_collective, pack_warps, warp_words
from warpsan.checks.clocks import TIME_MASK, Clocks
from warpsan.checks.shadow import Shadow
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access
from warpsan.engine.selection import WARP, Array, Indices, Mask, Selection, indices
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog, conflicting_access_at, conflicting_access_of

__all__ = ["Changes", "LaneOrder", "LaneRaces", "SameStep", "place_of"]

_DID = {"wrote": "wrote", "reads": "reads", "updates": "updates", "watches": "reads"}
_SEVERAL = np.uint32(WARP)
"""Lane number that stands for several lanes."""
_EVERY = np.uint32(0xFFFFFFFF)
_USUALLY = "usually a missing __syncwarp() between them"
_DIVERGED = _USUALLY + ": the warp had diverged"
_USUALLY_VALUES = "one of them wins, and which is undefined: let one thread write, or use an atomic"


class Changes:
    """Which writes of a step change the stored value; computed only if the other conditions of a race hold.

    With ``always``, all writes."""

    def __init__(self, access: Access, words: Array, *, always: bool) -> None:
        self._access, self._words = access, words
        self._mask: Mask | None = np.ones(len(access.index), np.bool_) if always else None

    def __call__(self) -> Mask:
        """One value for each access."""
        if self._mask is None:
            self._mask = self._access.changes(self._words)
        return self._mask


class LaneOrder:
    """For each lane of a warp, the time up to which the accesses of every other lane of it come before its own."""

    def __init__(self, machine: Machine, clocks: Clocks, *, strict: bool) -> None:
        self.machine, self.clocks, self.strict = machine, clocks, strict
        lane = np.arange(machine.lanes)
        self.warp: Indices = lane // WARP
        self.lane: Indices = lane % WARP
        self._before = np.zeros((machine.lanes // WARP, WARP, WARP), dtype=np.uint32)
        """[warp, lane, other lane]"""
        self._arrived = np.zeros((machine.lanes // WARP, WARP), dtype=np.uint32)
        self.numbers: Array = np.empty(0, np.uint32)
        """The number of each lane's warp in the launch, plus one."""

    def reset(self) -> None:
        """A new chunk of CTAs."""
        machine = self.machine
        self._before.fill(0)
        self._arrived.fill(0)
        slot = self.warp // machine.n_cta
        self.numbers = (machine.cta_ids[machine.cta] * machine.warps + slot + 1).astype(np.uint32)

    def meet(self, sel: Selection, groups: Array | None) -> None:
        """The lanes of each warp in ``sel``, or of each group (for each lane the bits of its own), have converged:
        the earlier accesses of each come before the next accesses of the others."""
        now = np.uint32(self.clocks.now)
        if groups is None and isinstance(sel, slice) and sel.start % WARP == 0 and sel.stop % WARP == 0:
            self._before[sel.start // WARP : sel.stop // WARP] = now
            return
        lanes = indices(sel)
        words = warp_words(lanes, self.machine.lanes)[self.warp[lanes]] if groups is None else groups
        for warp, word in set(zip(self.warp[lanes].tolist(), words.tolist(), strict=True)):
            mine = np.flatnonzero(word >> np.arange(WARP) & 1)
            known = self._before[warp, mine].max(axis=0)
            known[mine] = now
            self._before[warp, mine] = known

    def arrive(self, sel: Selection) -> None:
        """The lanes release their accesses, to a barrier or by an atomic operation."""
        self._arrived[self.warp[sel], self.lane[sel]] = self.clocks.now

    def leave(self, sel: Selection, until: int = int(TIME_MASK)) -> None:
        """The lanes come after releases of other lanes of their warps, the last one at ``until``."""
        warp, lane = self.warp[sel], self.lane[sel]
        arrived = self._arrived[warp]
        self._before[warp, lane] = np.maximum(self._before[warp, lane], np.where(arrived <= until, arrived, 0))

    def all_before(self, sel: Selection, others: Array, times: Array) -> Mask:
        """Whether the accesses of ``others`` (lane numbers) at these times come before those of all lanes."""
        floor = self._before.min(axis=1)[self.warp[sel]]
        known = floor[np.arange(len(others)), np.minimum(others, WARP - 1)]
        ordered: Mask = times <= np.where(others == _SEVERAL, floor.min(axis=1), known)
        return ordered

    def before(self, sel: Selection, others: Array, times: Array) -> Mask:
        """Whether the accesses of lanes ``others`` of the same warps at these times come before those of ``sel``."""
        mine = self._before[self.warp[sel], self.lane[sel]]
        known = mine[np.arange(len(others)), np.minimum(others, WARP - 1)]
        if (others == _SEVERAL).any():
            known = np.where(others == _SEVERAL, mine.min(axis=1), known)
        ordered: Mask = times <= known
        return ordered

    def missing(self, sel: Selection, instruction: Instruction) -> Array | None:
        """For each lane, the lanes of its warp that execute this, if live lanes are absent; None if none is.

        With ``strict``, no lane counts as executing together with another."""
        if self.strict:
            alone: Array = np.uint32(1) << self.lane[sel].astype(np.uint32)
            return alone
        if isinstance(sel, slice) and sel.start % WARP == 0 and sel.stop % WARP == 0:
            return None
        if is_collective(instruction):  # only some lanes name addresses
            return None
        lanes, live = indices(sel), self.machine.live
        words, alive = warp_words(lanes, len(live)), pack_warps(live)
        mine = self.warp[lanes]
        if not (alive[mine] & ~words[mine]).any():
            return None
        return np.where(alive[mine] & ~words[mine] != 0, words[mine], _EVERY)


@dataclass(frozen=True)
class _LaneMarks:
    """The last access of each granule for which lanes of its warp were absent."""

    warp: Shadow
    time: Shadow
    lane: Shadow
    mask: Shadow
    pc: Shadow

    @staticmethod
    def of(size: int, granule: int) -> _LaneMarks:
        return _LaneMarks(*(Shadow(size, granule) for _ in range(5)))

    def clear(self) -> None:
        for shadow in (self.warp, self.time, self.lane, self.mask, self.pc):
            shadow.clear()


class LaneRaces:
    """Races between lanes that had diverged, in one space.

    Parameters
    ----------
    machine, log : as for every check
    order : LaneOrder
    space : str
    granule : int
        Bytes of a granule.
    """

    def __init__(self, machine: Machine, log: HazardLog, order: LaneOrder, space: str, granule: int) -> None:
        self.machine, self.log, self.order, self.space = machine, log, order, space
        self._size, self._granule = len(machine.spaces[space].data), granule
        self._marks: dict[str, _LaneMarks] = {}
        """The accesses, by kind."""

    def reset(self) -> None:
        """A new chunk of CTAs: their warps have made no access yet."""
        if self.space == "shared":
            for marks in self._marks.values():
                marks.clear()

    def access(
        self, access: Access, does: str, verb: str, against: tuple[str, ...], matters: Callable[[], Mask] | None
    ) -> None:
        """Compare accesses of lanes with accesses of lanes that they may have diverged from.

        Parameters
        ----------
        does : str
            The kind under which it is kept: ``wrote``, ``reads``, ``updates`` or ``watches`` (strong reads).
        verb : str
            The verb in the message.
        against : tuple of str
            The kinds that it conflicts with.
        matters : function, optional
            Selects the accesses that count; the others are benign.
        """
        self.compare(access, verb, against, matters)
        mask = self.order.missing(access.sel, access.instruction)
        if mask is not None:
            self._note(access, does, mask)

    def compare(
        self, access: Access, verb: str, against: tuple[str, ...], matters: Callable[[], Mask] | None = None
    ) -> None:
        """The first half of :meth:`access`: compares, and keeps no access."""
        for other in against:
            if other in self._marks:
                self._check(access, self._marks[other], f"{verb} what {{other}} {_DID[other]}", matters)

    def _note(self, access: Access, does: str, mask: Array) -> None:
        index, width, sel, order = access.index, access.width, access.sel, self.order
        if does not in self._marks:
            self._marks[does] = _LaneMarks.of(self._size, self._granule)
        marks = self._marks[does]
        if does in ("reads", "watches"):  # a write must come after all of them: keep the lanes present at each
            before = marks.warp.gather(index, width).max(axis=1) == order.numbers[sel]
            if before.any():
                lanes, times = marks.lane.gather(index, width)[:, 0], marks.time.gather(index, width)[:, 0]
                counts = before & ~order.all_before(sel, lanes, times)
                mask = np.where(counts, mask & marks.mask.gather(index, width)[:, 0], mask)
        marks.warp.scatter(index, width, order.numbers[sel])
        marks.time.scatter(index, width, np.full(len(index), order.clocks.now, np.uint32))
        marks.lane.scatter(index, width, order.lane[sel].astype(np.uint32))
        marks.mask.scatter(index, width, mask)
        marks.pc.scatter(index, width, np.full(len(index), access.instruction.pc, np.uint32))
        if order.strict:
            together = marks.lane.gather(index, width)[:, 0] != order.lane[sel]
            if together.any():
                marks.lane.scatter(index[together], width, np.full(int(together.sum()), _SEVERAL, np.uint32))
                marks.mask.scatter(index[together], width, np.zeros(int(together.sum()), np.uint32))

    def _check(self, access: Access, marks: _LaneMarks, what: str, matters: Callable[[], Mask] | None) -> None:
        index, width, sel, order = access.index, access.width, access.sel, self.order
        near = marks.warp.gather(index, width) == order.numbers[sel][:, None]
        if near.any() and matters is not None:
            near &= matters()[:, None]
        if not near.any() or self.log.seen("lane-race", access.instruction):
            return
        lane = order.lane[sel].astype(np.uint32)
        for column in range(near.shape[1]):
            others = marks.lane.gather(index, width)[:, column]
            bad = near[:, column] & (others != lane)
            bad &= marks.mask.gather(index, width)[:, column] >> lane & np.uint32(1) == 0
            bad &= ~order.before(sel, others, marks.time.gather(index, width)[:, column])
            if bad.any():
                row = int(bad.argmax())
                mine = int(indices(sel)[row])
                pc = int(marks.pc.gather(index[row : row + 1], width)[0, column])
                instruction = self.machine.entry.instructions[pc]
                if others[row] == _SEVERAL:
                    block, _ = self.machine.where(mine)
                    warp = self.machine.warp_of(mine)
                    other = conflicting_access_of(self.machine, instruction, block=block, warp=warp)
                else:
                    other = conflicting_access_at(self.machine, instruction, mine - mine % WARP + int(others[row]))
                text = f"{what}, {place_of(self.machine, access, row)}"
                usually = _USUALLY if order.strict else _DIVERGED
                self.log.add(self.machine, "lane-race", access.instruction, mine, text, usually, other)
                return


class SameStep:
    """Reports lanes that write different values to one place in one step: of a warp, of several, or of several blocks.

    With ``values``, equal values are reported too.
    """

    def __init__(self, machine: Machine, log: HazardLog, space: str, *, values: bool) -> None:
        self.machine, self.log, self._values = machine, log, values
        self._last = np.empty(len(machine.spaces[space].data), dtype=np.int32)
        """The last of the step's accesses, by place."""

    def check(self, access: Access, words: Array, note: str = "") -> None:
        """Report the first of the writes ``words`` that another one in the same step overwrites with another value.

        ``note`` is appended to the message.
        """
        index = access.index
        if len(index) < 2 or bool((index[1:] > index[:-1]).all()):
            return
        place = index // access.width
        rows = np.arange(len(place), dtype=np.int32)
        self._last[place] = rows
        last = self._last[place]
        again = np.flatnonzero(last != rows)
        if not len(again):
            return
        raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(rows), -1)
        differ = again if self._values else again[(raw[again] != raw[last[again]]).any(axis=1)]
        if len(differ):
            row, lanes = int(differ[0]), indices(access.sel)
            mine, other = int(lanes[row]), int(lanes[last[row]])
            kind = "lane-race" if mine // WARP == other // WARP else "race"
            conflict = conflicting_access_at(self.machine, access.instruction, other)
            text = f"writes what {{other}} writes at the same time, {place_of(self.machine, access, row)}"
            self.log.add(self.machine, kind, access.instruction, mine, text, _USUALLY_VALUES + note, conflict)


def place_of(machine: Machine, access: Access, row: int) -> str:
    """The target of one of the accesses of a step, for messages."""
    if access.space.name == "shared":
        return f"{access.width} bytes of shared memory at offset {int(access.offset[row])}"
    extent = machine.spaces["global"].extent_near(int(access.index[row]))
    where = f"byte {int(access.index[row]) - extent.begin} of {extent.name}" if extent else "global memory"
    return f"{access.width} bytes at {where}"
