"""The axioms of PTX's memory model for small programs: enumeration of all allowed outcomes.

Written only from PTX ISA, "Memory Consistency Model", sections "Morally strong operations" to "Axioms", without code of
the simulator. All accesses are 4 bytes wide, in the generic proxy, so that overlaps are complete and proxies preserve
causality. An execution chooses a write for each read, an order of the writes to each location, and an order of the
``fence.sc`` fences; it is allowed if it violates no axiom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

LEVELS = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}
PLACES = "xyz"

Outcome = tuple[tuple[int, ...], tuple[int, ...]]
"""Results of the reads in program order, and final contents of the locations."""


@dataclass(frozen=True)
class Event:
    """One operation of a thread: ``ld``, ``st``, ``add``, ``exch``, ``red``, ``fence``, ``bar``; or ``init`` (thread
    -1)."""

    number: int
    thread: int
    kind: str
    place: str = ""
    value: int = 0
    order: str = "weak"
    level: int = -1

    @property
    def reads(self) -> bool:
        return self.kind in ("ld", "add", "exch", "red")

    @property
    def writes(self) -> bool:
        return self.kind in ("st", "add", "exch", "red", "init")

    @property
    def updates(self) -> bool:
        return self.reads and self.writes

    @property
    def acquires(self) -> bool:
        return self.order in ("acquire", "acq_rel", "sc") and self.kind != "red"

    @property
    def releases(self) -> bool:
        return self.order in ("release", "acq_rel", "sc")


def event(number: int, thread: int, text: str) -> Event:
    """``st.release.gpu x 1``, ``ld y``, ``add.acq_rel.gpu x 1``, ``fence.sc.cta``, ``bar``."""
    head, *rest = text.split()
    kind, *mods = head.split(".")
    scope = next((mod for mod in mods if mod in LEVELS), "")
    order = next((mod for mod in mods if mod not in LEVELS), "weak")
    level = LEVELS[scope] if scope else -1
    return Event(number, thread, kind, rest[0] if rest else "", int(rest[1]) if len(rest) > 1 else 0, order, level)


Pairs = set[tuple[int, int]]


def closed(pairs: Pairs) -> Pairs:
    """The transitive closure."""
    after: dict[int, set[int]] = {}
    for a, b in pairs:
        after.setdefault(a, set()).add(b)
    for middle in list(after):
        for targets in after.values():
            if middle in targets:
                targets |= after[middle]
    return {(a, b) for a, targets in after.items() for b in targets}


def cyclic(pairs: Pairs) -> bool:
    return any(a == b for a, b in closed(pairs))


def joined(first: Pairs, second: Pairs) -> Pairs:
    """The composition."""
    starts: dict[int, list[int]] = {}
    for a, b in second:
        starts.setdefault(a, []).append(b)
    return {(a, c) for a, b in first for c in starts.get(b, ())}


class Axioms:
    """Executions of a program.

    Parameters
    ----------
    threads : sequence of sequence of str
        Operations of each thread (:func:`event`).
    blocks, clusters : sequence of int
        Block and cluster of each thread.
    """

    def __init__(self, threads: Sequence[Sequence[str]], blocks: Sequence[int], clusters: Sequence[int]) -> None:
        self.blocks, self.clusters = blocks, clusters
        texts = [(thread, text) for thread, ops in enumerate(threads) for text in ops]
        self.events = [event(number, *each) for number, each in enumerate(texts)]
        places = sorted({each.place for each in self.events if each.place})
        first = len(self.events)
        self.events += [Event(first + k, -1, "init", place) for k, place in enumerate(places)]
        self.places = places
        pairs = [(a, b) for a in self.events for b in self.events if a.number != b.number]
        self.po = {(a.number, b.number) for a, b in pairs if a.thread == b.thread >= 0 and a.number < b.number}
        self.po |= {(a.number, b.number) for a, b in pairs if a.thread < 0 <= b.thread}
        self.same = {(a.number, b.number) for a, b in pairs if a.place and a.place == b.place}
        self.strong = {(a.number, b.number) for a, b in pairs if self._morally_strong(a, b)}
        self.reach = {(a.number, b.number) for a, b in pairs if self._in_scope(a, b)}
        """Pairs of operations whose scopes include each other's threads, also at different locations."""
        self.barriers = self._barriers()
        self.released, self.acquired = self._patterns()
        self.kept = {(a, b) for a, b in self.po if not self._may_pass(a, b)}

    def _relation(self, a: Event, b: Event) -> int:
        if self.blocks[a.thread] == self.blocks[b.thread]:
            return 0
        return 1 if self.clusters[a.thread] == self.clusters[b.thread] else 2

    def _in_scope(self, a: Event, b: Event) -> bool:
        if min(a.thread, b.thread) < 0 or a.thread == b.thread:
            return True
        return "weak" not in (a.order, b.order) and self._relation(a, b) <= min(a.level, b.level)

    def _morally_strong(self, a: Event, b: Event) -> bool:
        return self._in_scope(a, b) and (a.place == b.place or not (a.place and b.place))

    def _barriers(self) -> Pairs:
        """The k-th barriers of all threads of a block synchronize with each other."""
        number: dict[int, tuple[int, int]] = {}
        counts: dict[int, int] = {}
        for each in self.events:
            if each.kind == "bar":
                counts[each.thread] = counts.get(each.thread, 0) + 1
                number[each.number] = self.blocks[each.thread], counts[each.thread]
        return {(a, b) for a in number for b in number if a != b and number[a] == number[b]}

    def _patterns(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Release patterns (first operation, write) and acquire patterns (read, last operation)."""
        released, acquired = [], []
        for a in self.events:
            if a.writes and a.releases:
                released.append((a.number, a.number))
            if a.reads and a.acquires:
                acquired.append((a.number, a.number))
            for b in self.events:
                if (a.number, b.number) not in self.po or a.thread < 0:
                    continue
                here = a.kind == "fence" or (a.writes and a.place == b.place)
                if a.releases and here and b.writes and b.order != "weak":
                    released.append((a.number, b.number))
                there = b.kind == "fence" or (b.reads and a.place == b.place)
                if b.acquires and there and a.reads and a.kind != "red" and a.order != "weak":
                    acquired.append((a.number, b.number))
        return released, acquired

    def _may_pass(self, a: int, b: int) -> bool:
        """Whether the simulator allows a load to complete after another access (not an axiom)."""
        if a >= len(self.events) - len(self.places):
            return False
        first, second = self.events[a], self.events[b]
        plain = ("weak", "relaxed")
        between = self.events[a + 1 : b + 1]
        return (
            first.kind == "ld"
            and first.order in plain
            and all(each.kind in ("ld", "st") and each.order in plain for each in between)
            and all(each.place != first.place for each in between)
            and second.place != first.place
        )

    # ---- executions -------------------------------------------------------------------------------------------------

    def outcomes(self, *, late: str = "any") -> set[Outcome]:
        """All allowed outcomes. With ``late="plain"``: of executions that the simulator can make, whose order differs
        from program order only by late loads, with a total coherence order, and with each atomic operation after the
        write it reads.
        """
        reads = [each for each in self.events if each.reads]
        fences = [each.number for each in self.events if each.kind == "fence" and each.order == "sc"]
        allowed: set[Outcome] = set()
        for sources in product(*(self._writes_to(each.place, each.number) for each in reads)):
            source = {read.number: write for read, write in zip(reads, sources, strict=True)}
            values = self._values(source)
            if values is None:
                continue
            rf = {(write, read) for read, write in source.items()}
            for order in permutations(fences):
                causality = self._causality(rf, order)
                if causality is None:
                    continue
                base, cause = causality
                if late == "plain" and self._needs_foresight(rf, base):
                    continue
                for final, co in self._coherence_orders(cause, total=late == "plain"):
                    if late == "plain" and not co.isdisjoint(source.items()):  # updates come after the write they read
                        continue
                    if self._holds(rf, source, co, cause):
                        ends = tuple(values[final[place]][1] for place in self.places)
                        returned = (values[each.number][0] for each in reads if each.kind != "red")
                        allowed.add((tuple(returned), ends))
        return allowed

    def _needs_foresight(self, rf: Pairs, base: Pairs) -> bool:
        """Whether no execution order with only late loads puts each write before its reads."""
        meets = {each.number for each in self.events if each.kind == "bar"}  # these come before each other
        pairs = rf | self.kept | (base - self.po)
        return cyclic({(a, b) for a, b in pairs if not {a, b} & meets})

    def _writes_to(self, place: str, read: int) -> list[int]:
        return [each.number for each in self.events if each.writes and each.place == place and each.number != read]

    def _values(self, source: dict[int, int]) -> dict[int, tuple[int, int]] | None:
        """Values read and written by each event; None if a value comes out of thin air."""
        values = {each.number: (0, each.value) for each in self.events if each.writes and not each.reads}
        left = {each.number for each in self.events if each.reads}
        while left:
            ready = [number for number in left if source[number] in values]
            if not ready:
                return None
            for number in ready:
                read, each = values[source[number]][1], self.events[number]
                written = read + each.value if each.kind in ("add", "red") else each.value
                values[number] = read, written
                left.discard(number)
        return values

    def _causality(self, rf: Pairs, order: Sequence[int]) -> tuple[Pairs, Pairs] | None:
        """Base causality order, and causality order of operations on one location; None if Fence-SC contradicts it."""
        observed = {pair for pair in rf if pair in self.strong}
        updates = {each.number for each in self.events if each.updates}
        through = {(a, b) for a, b in observed if b in updates}
        observed |= joined(closed(through), observed)
        fences = {(a, b) for k, a in enumerate(order) for b in order[k + 1 :] if (a, b) in self.strong}
        synchronised = {
            (first, last)
            for first, write in self.released
            for read, last in self.acquired
            if (write, read) in observed and (first == last or (first, last) in self.reach)
        }
        base = closed(self.po | synchronised | fences | self.barriers)
        if any((b, a) in base for a, b in fences):
            return None
        cause = {pair for pair in base | joined(observed, base) if pair in self.same or pair[0] == pair[1]}
        cause = {(a, b) for a, b in cause if self.events[a].place}
        return base, cause

    def _coherence_orders(self, cause: Pairs, *, total: bool) -> Iterator[tuple[dict[str, int], Pairs]]:
        """Last write to each location, and coherence order: total, restricted to related pairs unless ``total``."""
        choices = []
        for place in self.places:
            writes = self._writes_to(place, -1)
            choices.append([(writes[-1], *rest) for rest in permutations(writes[:-1])])
        for orders in product(*choices):
            co: Pairs = set()
            for order in orders:
                for k, a in enumerate(order):
                    for b in order[k + 1 :]:
                        if total or (a, b) in self.strong or (a, b) in cause or (b, a) in cause:
                            co.add((a, b))
            yield {place: order[-1] for place, order in zip(self.places, orders, strict=True)}, closed(co)

    def _holds(self, rf: Pairs, source: dict[int, int], co: Pairs, cause: Pairs) -> bool:
        writes = {each.number for each in self.events if each.writes}
        if any(a == b or (b, a) in co for a, b in cause if a in writes and b in writes):
            return False  # Coherence
        fr = {(read, write) for read, before in source.items() for at, write in co if at == before and write != read}
        for each in self.events:  # Atomicity
            if each.updates:
                before = source[each.number]
                between = {w for w in writes if (before, w) in co and (w, each.number) in co}
                if any((w, each.number) in self.strong for w in between):
                    return False
        com = rf | co | fr
        per_place = {pair for pair in self.po if pair in self.same} | {pair for pair in com if pair in self.strong}
        if cyclic(per_place):
            return False  # SC per location
        return not any(a == b for a, b in joined(com, cause))  # Causality
