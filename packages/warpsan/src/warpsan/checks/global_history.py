"""History of accesses to global memory for the ``race`` check: for each granule the last access of each kind, and
earlier accesses that are not ordered before it.

One access a granule is enough as long as each comes after the one before: a later access that comes after the last one
comes after all. Unordered accesses of warps of one cluster are kept as a group, so that an access which comes after
each of them is clean (FastTrack, Flanagan and Freund 2009, keeps a vector of reads for the same reason). For unordered
accesses of several clusters, only a flag is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from warpsan.checks.clocks import ACTOR_SHIFT, TIME_MASK, Clocks
from warpsan.checks.scopes import ReleaseChain, Synchronisation
from warpsan.checks.shadow import Shadow, granule_of
from warpsan.engine.selection import Array, Indices, Mask
from warpsan.ptx.ir import Entry

__all__ = ["FIRST_GROUP", "SEVERAL", "GlobalHistory", "GlobalOrder", "Marks", "Member", "distinct"]

SEVERAL = 0xFFFFFFFF
"""Block number that stands for blocks of several clusters."""
FIRST_GROUP = 0x80000000
"""First of the block numbers that stand for groups: several warps of one cluster."""


@dataclass
class Marks:
    """The last access to each granule: block + 1 (0: none; or a group), the tag of the warp, and the instruction."""

    owner: Shadow
    tag: Shadow
    pc: Shadow

    @staticmethod
    def of(size: int, granule: int) -> Marks:
        """Reset: no access yet."""
        return Marks(*(Shadow(size, granule) for _ in range(3)))


class Member(NamedTuple):
    """An access of a group: block + 1, the tag of the warp, and the instruction."""

    owner: int
    tag: int
    pc: int


class GlobalHistory:
    """Accesses to global memory by all chunks of a launch.

    Parameters
    ----------
    entry : Entry
    size : int
        Bytes of the arena.
    ctas : int
        Blocks of the grid.

    Attributes
    ----------
    writes, reads : Marks
        Weak accesses.
    strong, watched : Marks
        Strong writes and atomic operations; strong reads.
    earlier : Marks
        Strong writes before the last one that are not ordered before it.
    chains : dict
        The releases of strong writes, by place.
    """

    def __init__(self, entry: Entry, size: int, ctas: int) -> None:
        granule = granule_of(entry, ("global",))
        self.writes, self.reads, self.strong, self.watched, self.earlier = (Marks.of(size, granule) for _ in range(5))
        self.granule = granule
        self.chains: dict[int, ReleaseChain] = {}
        self.cluster_of: Indices = np.arange(ctas)
        """For each block that has begun, the first block of its cluster."""
        self._groups: list[tuple[Member, ...]] = []
        self._numbers: dict[tuple[Member, ...], int] = {}

    def members(self, owner: int, tag: int, pc: int) -> tuple[Member, ...]:
        """The accesses of a mark that is not of several clusters."""
        if owner >= FIRST_GROUP:
            return self._groups[owner - FIRST_GROUP]
        return (Member(owner, tag, pc),) if owner else ()

    def owner_of(self, members: tuple[Member, ...]) -> int:
        """The mark for accesses that are not ordered among themselves."""
        if len(members) == 1:
            return members[0].owner
        if len({int(self.cluster_of[each.owner - 1]) for each in members}) > 1:
            return SEVERAL
        members = tuple(sorted(members))
        number = self._numbers.setdefault(members, len(self._groups))
        if number == len(self._groups):
            self._groups.append(members)
        return FIRST_GROUP + number


class GlobalOrder:
    """Orders the marks of a history with accesses of a machine's warps, and updates them.

    Parameters
    ----------
    history : GlobalHistory
    clocks, sync : as in :class:`~warpsan.checks.race.RaceCheck`
    size : int
        Bytes of the arena.
    """

    def __init__(self, history: GlobalHistory, clocks: Clocks, sync: Synchronisation, size: int) -> None:
        self.history, self.clocks, self.sync = history, clocks, sync
        self.last: Array = np.empty(size, np.int32)
        """The last of the step's accesses, by place."""

    def comes_before(self, member: Member, seat: int, cluster: int) -> bool:
        """Whether an access comes before the next access of a warp of a cluster."""
        there = int(self.history.cluster_of[member.owner - 1])
        if there == cluster:
            return self.clocks.comes_before(member.tag, seat)
        actor, time = member.tag >> int(ACTOR_SHIFT), member.tag & int(TIME_MASK)
        return self.sync.foreign and self.sync.comes_after(seat, there, actor, time)

    def unordered_members(self, owners: Array, tags: Array, seats: Array, own: Array) -> tuple[Mask, Array, Array]:
        """For marks of groups [accesses], whether a member is not ordered before the access of the warp ``seats``,
        of block + 1 ``own``; and the owner and tag of that member."""
        firsts, inverse = distinct(owners, seats)
        bad, owner, tag = np.zeros(len(firsts), np.bool_), owners[firsts], tags[firsts]
        for k, row in enumerate(firsts.tolist()):
            cluster = int(self.history.cluster_of[int(own[row]) - 1])
            for member in self.history.members(int(owners[row]), int(tags[row]), 0):
                if not self.comes_before(member, int(seats[row]), cluster):
                    bad[k], owner[k], tag[k] = True, member.owner, member.tag
                    break
        return bad[inverse], owner[inverse], tag[inverse]

    def add(self, marks: Marks, index: Indices, width: int, accesses: Array, seats: Array) -> None:
        """Mark accesses of ``width`` bytes at ``index``, and keep earlier marks that are not ordered before them.

        Parameters
        ----------
        accesses : ndarray of uint32 [3, accesses]
            Block + 1, tag and instruction.
        seats : ndarray [accesses]
            Warps of the same clusters: accesses before theirs need no longer be kept.
        """
        planes = marks.owner, marks.tag, marks.pc
        marked = (each.gather(index, width) for each in planes)
        alike = all((each == each[:, :1]).all() for each in marked)
        part = width if alike else min(width, self.history.granule)
        for offset in range(0, width, part):
            self._add_parts(planes, index + offset, part, accesses, seats)

    def _add_parts(
        self, planes: tuple[Shadow, Shadow, Shadow], index: Indices, width: int, accesses: Array, seats: Array
    ) -> None:
        """One access to each place at a time, until all are marked; all granules of a place are marked alike."""
        while len(index):
            marked = np.stack([each.gather(index, width)[:, 0] for each in planes])
            place = index // width
            self.last[place] = rows = np.arange(len(index), dtype=np.int32)
            last = self.last[place]
            now = np.flatnonzero(last == rows)
            after = self._joined(marked[:, now], accesses[:, now], seats[now])
            for each, words in zip(planes, after, strict=True):
                each.scatter(index[now], width, words)
            left: Mask = (seats != seats[last]) | (accesses[:2] != accesses[:2, last]).any(axis=0)
            left &= planes[0].gather(index, width)[:, 0] != SEVERAL  # already the final state
            index, accesses, seats = index[left], accesses[:, left], seats[left]

    def _joined(self, marked: Array, accesses: Array, seats: Array) -> Array:
        """Owner, tag and instruction [3, accesses] of marks, each with one more access."""
        history = self.history
        after: Array = accesses.copy()
        owners, cluster_of = marked[0], history.cluster_of
        single = (owners != 0) & (owners < FIRST_GROUP)
        far: Mask = single & (cluster_of[np.where(single, owners, 1) - 1] != cluster_of[accesses[0] - 1])
        far = np.logical_or(owners == SEVERAL, far & (not self.sync.foreign))
        after[0, far] = SEVERAL
        near = np.flatnonzero(~far)
        if not len(near):
            return after
        firsts, inverse = distinct(*marked[:2, near], *accesses[:2, near], seats[near])
        joined = np.empty(len(firsts), np.uint32)
        for k, row in enumerate(near[firsts].tolist()):
            fresh = Member(*accesses[:, row].tolist())
            cluster, seat = int(cluster_of[fresh.owner - 1]), int(seats[row])
            before = history.members(*marked[:, row].tolist())
            joined[k] = history.owner_of(
                (*(each for each in before if each != fresh and not self.comes_before(each, seat, cluster)), fresh)
            )
        after[0, near] = joined[inverse]
        return after


def distinct(*keys: Array) -> tuple[Indices, Indices]:
    """The first row of each distinct combination of ``keys`` [rows, at least one], and the number of each row's
    combination."""
    if all((key == key[0]).all() for key in keys):  # as in most steps
        return np.zeros(1, np.int64), np.zeros(len(keys[0]), np.int64)
    order = np.lexsort(keys)
    fresh = np.zeros(len(order), np.bool_)
    fresh[:1] = True
    for key in keys:
        there = key[order]
        fresh[1:] |= there[1:] != there[:-1]
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.cumsum(fresh) - 1
    return order[fresh], inverse
