"""A further run of a launch that records the events at suspicious places (:mod:`.trace`), for the reports of the
checks (:mod:`.replay`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from warpsan.checks.shadow import granule_of
from warpsan.engine import layout
from warpsan.engine.assembler import NotNative
from warpsan.engine.communication import ctas_together, orders_blocks
from warpsan.engine.engine import NativeCode
from warpsan.engine.replay import replay
from warpsan.engine.row_space import RowSpace
from warpsan.engine.selection import Array
from warpsan.engine.state import State
from warpsan.engine.suspicions import Suspicions
from warpsan.errors import SimError
from warpsan.host.memory import Space
from warpsan.host.setup import Setup
from warpsan.ptx.opcodes import in_async_proxy
from warpsan.report.hazard_log import HazardLog
from warpsan.report.hazards import Hazard

__all__ = ["Repetition", "TooManyEvents", "address_of", "leave_part", "marks_of", "record"]

_CHUNK = 16
_PARTS = (4, 32)
"""Numbers of parts in which the places are recorded, if memory does not suffice for all events: first, and then."""
_STRIPE = 64
"""Consecutive granules in one part."""


class TooManyEvents(Exception):
    """Memory does not suffice for the events of all requested places."""


@dataclass(frozen=True)
class Repetition:
    """A launch with suspicious places, ready for another run.

    Attributes
    ----------
    setup : Setup
        The setup of the earlier run.
    order : dict of int to int
        Fields of the context with the order in which warps run.
    code : NativeCode
        Native code that records events.
    log : HazardLog
        Receives the hazards.
    suspicions : Suspicions
    noted : set of (str, int)
        Kind and instruction of hazards that are already known.
    before : ndarray of uint8
        Global memory as it was before the launch.
    """

    setup: Setup
    order: Mapping[str, int]
    code: NativeCode
    log: HazardLog
    suspicions: Suspicions
    noted: set[tuple[str, int]]
    before: Array
    looked: list[tuple[dict[int, Array], Array]] = field(default_factory=list)
    """The places recorded so far, as in :func:`record`: granules by space, and clusters."""

    @property
    def shown(self) -> list[Hazard]:
        """The hazards found in events so far."""
        return [each for each in self.log.hazards() if (each.kind, each.pc) not in self.noted]

    @property
    def parties(self) -> set[int]:
        """The instructions of the hazards, and of the accesses that they conflict with."""
        return {each.pc for each in self.shown} | {each.other.pc for each in self.shown if each.other is not None}

    @property
    def explained(self) -> bool:
        """Whether each suspicion has a hazard."""
        kinds, suspicions = {each.kind for each in self.shown}, self.suspicions
        if suspicions.beside and "cluster" not in kinds:
            return False
        return bool(kinds) and suspicions.pcs <= self.parties

    def in_parts(self) -> bool:
        """Record all suspicious places, one part of them after the other. Returns whether the checks could report them.

        Raises
        ------
        SimError
            The exception with which the launch ends.
        """
        for parts in _PARTS:
            ends: SimError | None = None
            try:
                for part in range(parts):
                    try:
                        if not self.report(closely=True, part=part, parts=parts):
                            return False
                    except SimError as error:
                        ends = error
            except TooManyEvents:
                continue
            with self.log.attach_to_errors():
                if ends is not None:
                    raise ends
            return True
        return False

    def report(self, *, closely: bool, part: int = 0, parts: int = 1) -> bool:
        """Run the launch with a record of some of the suspicious places, or ``closely`` of all places without a hazard
        so far, or of one part of these. The checks report its events, unless all are known. Returns whether they could.

        Raises
        ------
        TooManyEvents
        SimError
            The exception with which the launch ends.
        """
        setup, suspicions, code = self.setup, self.suspicions, self.code
        space = code.space
        marks, clusters = self._watched(closely=closely)
        if parts == 1:
            if any(_within(marks, clusters, *before) for before in self.looked):
                return True
            self.looked.append(({number: mine.copy() for number, mine in marks.items()}, clusters.copy()))
        space.data[:] = self.before
        if parts > 1:
            for mine in marks.values():
                leave_part(mine, part, parts)
        order = {**self.order, "illegal_ends": int(suspicions.illegal)}
        state, status, events = record(setup, order, code, marks, clusters)
        end = state.context.trace_end
        if status != suspicions.status or state.host.error is not None:
            return False
        if end > layout.TRACE_WORDS:
            if status != layout.STEPS:
                raise TooManyEvents
            end = _end_of(events)  # a loop: its events have occurred before
        try:
            with self.log.attach_to_errors():
                replay(
                    *(setup, space, self.log, events[:end]),
                    {"shared": marks[layout.IN_SHARED], "global": marks[layout.IN_GLOBAL]},
                    together=state.context.order == layout.TOGETHER,
                    ending=suspicions.ending,
                )
        except NotNative:
            return False
        return not status  # otherwise threads wait for something other than a barrier

    def _watched(self, *, closely: bool) -> tuple[dict[int, Array], Array]:
        """Which granules of each space are watched; and for each cluster, as bits, whether its shared memory is
        watched, and whether all of its events are recorded."""
        suspicions, marks = self.suspicions, marks_of(self.setup, self.code.space)
        clusters = np.zeros(self.code.clusters, np.uint8)
        clusters[suspicions.ruled(closely=closely)] = 2
        if suspicions.status:
            clusters[suspicions.last] = 2
        if orders_blocks(self.setup.entry):  # releases of a cluster affect all later clusters
            clusters |= 2
        for row in suspicions.watched(self.parties, closely=closely):
            marks[int(row[layout.SU_SPACE])][row[layout.SU_GRANULE]] = 1
            if row[layout.SU_SPACE] == layout.IN_SHARED:
                clusters[row[layout.SU_CLUSTER]] |= 1
        if closely:
            clusters |= suspicions.clusters
            for number, more in suspicions.marks.items():
                marks[number] |= more
        if closely and suspicions.beside:  # any access may be the one
            marks[layout.IN_SHARED][:] = 1
            clusters[suspicions.ruled(closely=True)] |= 1
        return marks, clusters


def _within(marks: Mapping[int, Array], clusters: Array, more: Mapping[int, Array], others: Array) -> bool:
    """Whether ``more`` and ``others`` have no further marked granules and no further wanted clusters."""
    return not (clusters & ~others).any() and not any((mine & ~more[number]).any() for number, mine in marks.items())


def leave_part(marks: Array, part: int, parts: int) -> None:
    """Keep one of so many parts of the marks of granules."""
    marks[np.arange(len(marks)) // _STRIPE % parts != part] = 0


def record(
    setup: Setup, order: Mapping[str, int], code: NativeCode, marks: Mapping[int, Array], clusters: Array
) -> tuple[State, int, Array]:
    """Run a launch with a record of the events at marked granules.

    Parameters
    ----------
    setup : Setup
    order : mapping of int to int
        Fields of the context with the order in which warps run.
    code : NativeCode
        Native code that records events.
    marks : mapping of int to ndarray of uint8
        The watched granules, by space.
    clusters : ndarray of uint8
        For each cluster as bits, whether its shared memory is watched, and whether all of its events are recorded.

    Returns
    -------
    state : State
    status : int
    events : ndarray of int64
        Consecutive events, followed by zeros; some may be missing if memory did not suffice.
    """
    shifts = {number: granule.bit_length() - 1 for number, granule in _granules(setup).items()}
    if any(map(in_async_proxy, setup.entry.instructions)):  # these access whole chunks
        for number, shift in shifts.items():
            _widen(marks[number], _CHUNK >> shift)
    events = np.zeros(layout.TRACE_WORDS, np.int64)
    aside = np.zeros((ctas_together(setup), 1 + setup.geometry.warps * layout.EVENT_WORDS), np.int64)
    hazards = RowSpace(len(code.decoded.records) + len(setup.entry.instructions))  # known from the earlier run
    words = {
        "trace": address_of(events),
        "deferred_arrivals": address_of(aside),
        "granule_shift": shifts[layout.IN_SHARED],
        "global_shift": shifts[layout.IN_GLOBAL],
        "watched_shared": address_of(marks[layout.IN_SHARED]),
        "watched_global": address_of(marks[layout.IN_GLOBAL]),
        "watched_clusters": address_of(clusters),
    }
    state = code.state({**order, **words, **hazards.words})
    return state, code.run(state, 0, code.clusters), events


def _granules(setup: Setup) -> dict[int, int]:
    """Bytes of a granule, by space."""
    spaces = ((layout.IN_SHARED, "shared"), (layout.IN_GLOBAL, "global"))
    return {number: granule_of(setup.entry, (name,)) for number, name in spaces}


def marks_of(setup: Setup, space: Space) -> dict[int, Array]:
    """A byte for each granule of a CTA's shared memory and of global memory, uint8: zeros."""
    sizes = {layout.IN_SHARED: setup.symbols.shared_bytes, layout.IN_GLOBAL: len(space.data)}
    return {number: np.zeros(sizes[number] // granule + 16, np.uint8) for number, granule in _granules(setup).items()}


def _end_of(events: Array) -> int:
    """The end of the recorded events."""
    end = 0
    while end < len(events) and events[end + layout.EV_WORDS]:
        end += int(events[end + layout.EV_WORDS])
    return end


def address_of(array: Array) -> int:
    """The address of its data in this process."""
    return int(array.ctypes.data)


def _widen(marks: Array, many: int) -> None:
    """Watch all of each ``many`` aligned granules if one of them is watched."""
    whole = marks[: len(marks) // many * many].reshape(-1, many)
    whole |= whole.max(axis=1, keepdims=True)
