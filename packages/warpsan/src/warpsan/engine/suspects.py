"""Notes of possible hazards in a launch that continues: machine code (:mod:`~warpsan.engine.translate`).

The first run of a launch has no rows for notes: the first suspicion ends it. A run that reports hazards
(:mod:`~warpsan.engine.reporting`) has them.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    IN_GLOBAL,
    IN_SHARED,
    MOST_SUSPECTS,
    SU_CLUSTER,
    SU_GRANULE,
    SU_RECORD,
    SU_SPACE,
    SUSPECT_WORDS,
    SUSPECTS_OF_RECORD,
)
from warpsan.engine.words import store64

__all__ = [
    "current_instruction",
    "first_lane",
    "suspect",
]


def current_instruction(context: Context, pc: int) -> None:
    """Later suspicions belong to an action of an instruction without a record of its own, or after its record."""
    number = context.record_count + pc
    context.current_record = context.records[number]


def suspect(context: Context, space: int, granule: int, status: int) -> int:
    """The checked access may be a hazard at a granule: returns 0 if it has been noted, otherwise the status that
    ends the run. A limited number of granules of each instruction is noted; further ones are only marked
    (:func:`mark`)."""
    suspects = context.suspects
    if suspects == 0:
        return status
    record = (context.current_record - context.records) >> 6
    many = context.suspects_of.at(record)
    count = context.suspect_count
    if many[0] >= SUSPECTS_OF_RECORD or (count >= MOST_SUSPECTS and many[0] > 0):
        mark(context, space, granule)
        return 0
    if count >= MOST_SUSPECTS:
        return status
    many[0] += 1
    context.suspect_count = count + 1
    row = suspects + 8 * SUSPECT_WORDS * count
    store64(row + 8 * SU_RECORD, record)
    store64(row + 8 * SU_SPACE, space)
    store64(row + 8 * SU_GRANULE, granule)
    store64(row + 8 * SU_CLUSTER, context.cluster)
    return 0


def mark(context: Context, space: int, granule: int) -> None:
    """Mark a suspicious granule if its instruction has many others, or a place where a rule may be broken."""
    cluster = context.marked_clusters.at(context.cluster)
    if space == IN_GLOBAL:
        context.marked_global[granule] = 1
        return
    cluster[0] |= 1 if space == IN_SHARED else 2
    if space == IN_SHARED:
        context.marked_shared[granule % context.granules] = 1


def first_lane(mask: int) -> int:
    """The first of some lanes."""
    first = 0
    while mask >> first & 1 == 0:
        first += 1
    return first
