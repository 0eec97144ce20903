"""Streams and events of a device: the order of operations, and races of unordered operations.

Operations execute when they are issued, one after the other. Operations of different streams without an order by events
or synchronization may overlap on a GPU: a byte that one writes and the other accesses is a race. The orders are vector
clocks with one component per stream (CUDA C++ Programming Guide, "Streams", "Events", "Default Stream").

A launch records only the places of its accesses, as byte ranges that may be wider than the reads. For two launches with
common places, both run again in a copy of the initial memory; the repeated runs show whether there is a race, and
between which instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from warpsan.engine.arrays import WARP, Indices, Mask
from warpsan.engine.touched import History, LastAccesses
from warpsan.host.arena import Arena
from warpsan.host.geometry import Dim3
from warpsan.host.launch import Executed
from warpsan.host.memory import GLOBAL_BASE
from warpsan.ptx.ir import Instruction
from warpsan.ptx.names import short_name
from warpsan.ptx.source_lines import source_of
from warpsan.report.hazards import ConflictingAccess, Hazard

__all__ = ["Event", "Runs", "Stream", "StreamOperation", "Streams", "launch_operation"]

_USUALLY = "usually a missing event or a missing synchronisation between the streams"
_HOST_USUALLY = "usually a missing synchronisation of the host with the stream"
_LOOKED_AT_FIRST, _ALL = 1 << 14, 1 << 62
"""Common bytes of two operations that are searched for a race first, and then."""

Clock = dict[int, int]
"""Number of preceding operations, by stream."""


def _join(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


@dataclass(frozen=True)
class Runs:
    """Byte ranges of global memory sorted by address, each with its last access.

    Attributes
    ----------
    begins, ends : ndarray of int64
        Byte indices.
    pcs, owners, warps : ndarray of int64
        pc, block + 1 and warp of a kernel's access; -1 for copies.
    """

    begins: Indices
    ends: Indices
    pcs: Indices
    owners: Indices
    warps: Indices

    @staticmethod
    def of_accesses(accesses: LastAccesses, granule: int, end: int) -> Runs:
        """Ranges of a launch's last accesses in the first ``end`` bytes."""
        there = accesses.granules[accesses.granules < end // granule]
        if not len(there):
            return Runs(*(np.empty(0, np.int64) for _ in range(5)))
        breaks = np.flatnonzero((np.diff(there) != 1) | (np.diff(accesses.pcs[: len(there)]) != 0))
        first, last = np.concatenate([[0], breaks + 1]), np.concatenate([breaks, [len(there) - 1]])
        picked = (values[first] for values in (accesses.pcs, accesses.owners, accesses.warps))
        return Runs(there[first] * granule, (there[last] + 1) * granule, *picked)

    @staticmethod
    def of_stretches(stretches: Indices) -> Runs:
        """Ranges [n, 2] without their accesses."""
        none = np.full(len(stretches), -1, np.int64)
        return Runs(stretches[:, 0], stretches[:, 1], none, none, none)

    @staticmethod
    def of_bytes(begins: int | Indices, size: int) -> Runs:
        """Ranges of a copy, of ``size`` bytes each."""
        begins = np.atleast_1d(np.asarray(begins, np.int64))
        none = np.full(len(begins), -1, np.int64)
        return Runs(begins, begins + size, none, none, none)

    @staticmethod
    def of_all(several: Sequence[Runs]) -> Runs:
        """Union of several ranges, without their accesses."""
        bounds = np.unique(np.concatenate([bound for runs in several for bound in (runs.begins, runs.ends)]))
        inside = np.any([runs.has(bounds) for runs in several], axis=0)
        return Runs.of_stretches(np.stack([bounds[:-1], bounds[1:]], axis=1)[inside[:-1]])

    @property
    def stretches(self) -> Indices:
        """Begin and end of each range [n, 2]."""
        return np.stack([self.begins, self.ends], axis=1)

    @property
    def size(self) -> int:
        """Total bytes."""
        return int((self.ends - self.begins).sum())

    def has(self, places: Indices) -> Mask:
        """Mask of bytes that lie in a range."""
        before = np.searchsorted(self.begins, places, side="right") - 1
        inside: Mask = (before >= 0) & (places < np.append(self.ends, 0)[before])
        return inside

    def shared(self, other: Runs) -> Runs:
        """Intersection with other ranges."""
        bounds = np.unique(np.concatenate([self.begins, self.ends, other.begins, other.ends]))
        both = self.has(bounds) & other.has(bounds)
        return Runs.of_stretches(np.stack([bounds[:-1], bounds[1:]], axis=1)[both[:-1]])

    def first(self, most: int) -> Runs:
        """The first ranges with a total of about ``most`` bytes."""
        many = int(np.searchsorted(np.cumsum(self.ends - self.begins), most)) + 1
        ends = np.minimum(self.ends[:many], self.begins[:many] + most)
        return Runs.of_stretches(np.stack([self.begins[:many], ends], axis=1))

    def meeting(self, other: Runs) -> tuple[int, int] | None:
        """Numbers of the first range and of a range of ``other`` with common bytes; None without an intersection."""
        if not len(self.begins) or not len(other.begins):
            return None
        place = np.searchsorted(other.ends, self.begins, side="right")
        inside = np.minimum(place, len(other.begins) - 1)
        meets = np.flatnonzero((place < len(other.begins)) & (other.begins[inside] < self.ends))
        return (int(meets[0]), int(inside[meets[0]])) if len(meets) else None


@dataclass
class StreamOperation:
    """A launch, copy or fill in a stream.

    Attributes
    ----------
    name : str
        Name in messages.
    reads, writes, atomics : Runs, optional
    instruction : function
        The instruction at a pc.
    place : function
        Block and first thread of the warp of an owner and a tag, and the number of the warp; None for several blocks.
    at : str
        ``file:line`` in the issuing host code, if known.
    again : function, optional
        Repeats a launch with recorded places, and returns the operation with its accesses to byte ranges [n, 2].
    snapshot_bytes : int
        Bytes of the memory snapshot that ``again`` holds.
    """

    name: str
    reads: Runs | None = None
    writes: Runs | None = None
    atomics: Runs | None = None
    instruction: Callable[[int], Instruction] | None = None
    source: Callable[[Instruction], str] = field(default=lambda instruction: "")
    place: Callable[[int, int], tuple[Dim3, int, Dim3] | None] = field(default=lambda owner, warp: None)
    at: str = ""
    again: Callable[[Indices], StreamOperation] | None = None
    snapshot_bytes: int = 0
    stream: int = 0
    index: int = 0
    _known: tuple[Runs, StreamOperation] | None = None
    """The last ranges given to ``again``, with its result."""

    def prerequisites(self) -> Indices | None:
        """Accesses of a launch as begin, end and write flag [n, 3]; None for a copy or a fill."""
        if self.instruction is None:
            return None
        parts = [np.empty((0, 3), np.int64)]
        for runs, writes in ((self.reads, 0), (self.writes, 1), (self.atomics, 1)):
            if runs is not None:
                parts.append(np.stack([runs.begins, runs.ends, np.full(len(runs.begins), writes)], axis=1))
        return np.concatenate(parts)

    def accesses_to(self, places: Runs) -> StreamOperation:
        """The operation with at least its accesses to the given ranges; repeats a launch that has only places."""
        if self.again is None:
            return self
        if self._known is None or self._known[0].shared(places).size < places.size:
            known = [places] if self._known is None else [places, self._known[0]]
            wanted = Runs.of_all(known)
            self._known = wanted, self.again(wanted.stretches)
        return self._known[1]

    def keep_all(self) -> None:
        """Determine all accesses of a launch that has only places, and release the memory snapshot."""
        stretches = self.prerequisites()
        if self.again is not None and stretches is not None:
            whole = self.again(stretches[:, :2])
            self.reads, self.writes, self.atomics = whole.reads, whole.writes, whole.atomics
            self.again, self.snapshot_bytes = None, 0

    def access(self, runs: Runs, number: int, stream: str) -> ConflictingAccess:
        """One of the ranges as a conflicting access."""
        note = f"{self.name} in {stream}"
        if self.instruction is None:
            return ConflictingAccess(self.name, -1, 0, self.at, note=f"in {stream}")
        instruction = self.instruction(int(runs.pcs[number]))
        place = self.place(int(runs.owners[number]), int(runs.warps[number]))
        block, warp = (place[0], place[1]) if place is not None else (None, None)
        source = self.source(instruction)
        return ConflictingAccess(instruction.text, instruction.pc, instruction.line, source, block, warp, None, note)

    def hazard(self, what: str, runs: Runs, number: int, other: ConflictingAccess, where: str, stream: str) -> Hazard:
        """A race of one of the ranges."""
        text = what.replace("{other}", str(other))
        usually = _USUALLY if stream else _HOST_USUALLY
        parts = f"{what}, {where}", usually
        if self.instruction is None:
            actor = f"{self.name} in {stream}" if stream else self.name
            message = f"race: {actor} {text}, {where}{f' ({self.at})' if self.at else ''}; {usually}"
            return Hazard("race", message, -1, 0, self.at, (0, 0, 0), (0, 0, 0), other, actor, *parts)
        instruction = self.instruction(int(runs.pcs[number]))
        place = self.place(int(runs.owners[number]), int(runs.warps[number]))
        block, _, thread = place if place is not None else ((0, 0, 0), 0, (0, 0, 0))
        source = self.source(instruction)
        at = f"{source}, PTX line {instruction.line}" if source else f"PTX line {instruction.line}"
        message = (
            f"race: {text}, {where} ({instruction.text} at {at}; block {block}, thread {thread}; {self.name} in "
            f"{stream}); {usually}"
        )
        where_it_ran = block, thread, other, instruction.text
        return Hazard("race", message, instruction.pc, instruction.line, source, *where_it_ran, *parts)


def launch_operation(executed: Executed, end: int, history: History | None = None) -> StreamOperation:
    """The operation of a launch, with its accesses to the first ``end`` bytes: from a history, or only as places."""
    code, module, geometry = executed.code, executed.module, executed.geometry
    operation = StreamOperation(short_name(code.name), instruction=code.instructions.__getitem__)
    operation.source = lambda instruction: source_of(module, instruction)

    def place(owner: int, warp: int) -> tuple[Dim3, int, Dim3] | None:
        if warp < 0:  # an asynchronous copy
            return None
        return geometry.block_at(owner - 1), warp, geometry.thread_at(warp * WARP)

    operation.place = place
    touched, again = executed.touched, executed.again
    if history is not None:
        operation.reads, operation.writes, operation.atomics = (
            Runs.of_accesses(each, history.granule, end) for each in (history.reads, history.writes, history.strong)
        )
    elif touched is not None:
        operation.reads, operation.writes, operation.atomics = (
            Runs.of_stretches(each[each[:, 0] < end]) for each in (touched.reads, touched.writes, touched.updates)
        )
        if again is not None:
            operation.snapshot_bytes = end
            operation.again = lambda places: launch_operation(executed, end, again(places))
    return operation


_RULES = (
    ("writes", "writes", "overwrites what {other} wrote"),
    ("writes", "reads", "overwrites what {other} reads"),
    ("writes", "atomics", "overwrites what {other} updates"),
    ("reads", "writes", "reads what {other} wrote"),
    ("reads", "atomics", "reads what {other} updates"),
    ("atomics", "writes", "updates what {other} wrote"),
    ("atomics", "reads", "updates what {other} reads"),
)
"""Pairs of access kinds of a later and an earlier operation that conflict."""


def _meeting(later: StreamOperation, mine: str, earlier: StreamOperation, others: str) -> tuple[int, int] | None:
    """Numbers of the first ranges with common bytes, for one access kind of each of two operations."""
    runs: Runs | None = getattr(later, mine)
    before: Runs | None = getattr(earlier, others)
    return runs.meeting(before) if runs is not None and before is not None else None


def _shared(later: StreamOperation, mine: str, earlier: StreamOperation, others: str) -> Runs:
    """Intersection of the ranges of one access kind of each of two operations."""
    runs: Runs | None = getattr(later, mine)
    before: Runs | None = getattr(earlier, others)
    return Runs.of_bytes(np.empty(0, np.int64), 0) if runs is None or before is None else runs.shared(before)


class Streams:
    """All streams of a device, and the operations that later ones may overlap."""

    def __init__(self, arena: Arena, *, host_shares: bool = False) -> None:
        self.arena, self.host_shares = arena, host_shares
        self.host: Clock = {}
        self.overlaps = False
        """Whether some launch may overlap its predecessor in the stream."""
        self.default = Stream(self, 0, blocking=True)
        self.all = [self.default]
        self.pending: list[StreamOperation] = []

    def create(self, *, blocking: bool) -> Stream:
        """Create a stream, ordered after the operations that the host has synchronized with."""
        stream = Stream(self, len(self.all), blocking=blocking)
        self.all.append(stream)
        return stream

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the memory snapshots of launches that have only places."""
        return sum(each.snapshot_bytes for each in self.pending)

    @property
    def needs_accesses(self) -> bool:
        """Whether any operations may overlap."""
        return self.host_shares or len(self.all) > 1

    def begin(self, stream: Stream) -> None:
        """Order a new operation after its predecessors."""
        _join(stream.clock, self.host)
        for other in self.all:
            implicit = stream.blocking and other.blocking and (stream is self.default or other is self.default)
            if other is not stream and implicit:
                _join(stream.clock, other.clock)

    def add(self, stream: Stream, operation: StreamOperation) -> list[Hazard]:
        """Record a completed operation, and return its races with unordered earlier operations."""
        operation.stream, operation.index = stream.number, stream.clock.get(stream.number, 0) + 1
        hazards: dict[tuple[int, str], Hazard] = {}
        for earlier in self.pending:
            if earlier.index > stream.clock.get(earlier.stream, 0):
                for hazard in self._races(operation, earlier):
                    hazards.setdefault((hazard.pc, hazard.kind), hazard)
        stream.clock[stream.number] = operation.index
        stream.last = operation.prerequisites() if self.overlaps else None
        self.pending = [each for each in (*self.pending, operation) if self._unordered_somewhere(each)]
        return list(hazards.values())

    def _unordered_somewhere(self, operation: StreamOperation) -> bool:
        if operation.index <= self.host.get(operation.stream, 0):
            return False
        return self.host_shares or any(operation.index > stream.clock.get(operation.stream, 0) for stream in self.all)

    def host_races(self, operation: StreamOperation) -> list[Hazard]:
        """Races of a host access with operations that the host has not synchronized with."""
        hazards = [
            hazard
            for earlier in self.pending
            if earlier.index > self.host.get(earlier.stream, 0)
            for hazard in self._races(operation, earlier, stream="")
        ]
        return hazards[:1]

    def pending_stretches(self) -> tuple[Indices, Indices]:
        """Byte ranges read and written by operations that the host has not synchronized with: begin and end addresses
        [n, 2].
        """
        stretches: tuple[list[Indices], list[Indices]] = ([np.empty((0, 2), np.int64)], [np.empty((0, 2), np.int64)])
        for each in self.pending:
            if each.index > self.host.get(each.stream, 0):
                for runs, out in zip((each.reads, each.writes, each.atomics), (0, 1, 1), strict=True):
                    if runs is not None:
                        stretches[out].append(GLOBAL_BASE + np.stack([runs.begins, runs.ends], axis=1))
        return np.concatenate(stretches[0]), np.concatenate(stretches[1])

    def _races(self, later: StreamOperation, earlier: StreamOperation, stream: str | None = None) -> Iterable[Hazard]:
        issued = self.all[later.stream].name if stream is None else stream
        others_stream, rules = self.all[earlier.stream].name, list(_RULES)
        for most in (_LOOKED_AT_FIRST, _ALL):  # most races show in the first places
            shared = [_shared(later, mine, earlier, others).first(most) for mine, others, _ in rules]
            if not any(each.size for each in shared):
                return
            places = Runs.of_all(shared)
            seen, before_it = later.accesses_to(places), earlier.accesses_to(places)
            for (mine, others, what), mine_places in zip(tuple(rules), shared, strict=True):
                runs, before = getattr(seen, mine), getattr(before_it, others)
                met = _meeting(seen, mine, before_it, others)
                if met is None:
                    continue
                begin = max(int(runs.begins[met[0]]), int(before.begins[met[1]]))
                if begin >= mine_places.ends.max(initial=0):
                    continue  # an earlier pair may exist
                rules.remove((mine, others, what))
                other = before_it.access(before, met[1], others_stream)
                extent = self.arena.extent_of(GLOBAL_BASE + begin)
                where = f"at byte {begin - extent.begin} of {extent.name}" if extent is not None else "in freed memory"
                yield seen.hazard(what, runs, met[0], other, where, issued)


class Stream:
    """A stream of operations in issue order, created by :meth:`Device.stream`."""

    def __init__(self, streams: Streams, number: int, *, blocking: bool) -> None:
        self._streams, self.number, self.blocking = streams, number, blocking
        self.clock: Clock = {}
        self.last: Indices | None = None
        """Accesses of the last operation (:meth:`StreamOperation.prerequisites`), if it is a launch that the next one
        may overlap.
        """
        self.name = f"stream {number}" if number else "the default stream"

    def record(self) -> Event:
        """Record an event after all operations issued to the stream so far."""
        return Event(self._streams, dict(self.clock))

    def wait(self, event: Event) -> None:
        """Order all later operations of the stream after the event."""
        _join(self.clock, event.clock)

    def synchronize(self) -> None:
        """Wait on the host for all operations issued to the stream so far."""
        _join(self._streams.host, self.clock)


@dataclass(frozen=True)
class Event:
    """A point in the work of a stream, created by :meth:`Stream.record`."""

    _streams: Streams
    clock: Clock

    def synchronize(self) -> None:
        """Wait on the host for the event."""
        _join(self._streams.host, self.clock)
