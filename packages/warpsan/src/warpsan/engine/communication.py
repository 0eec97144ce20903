"""Detection of blocks of a launch that may communicate through global memory."""

from __future__ import annotations

from dataclasses import replace

from warpsan.analysis.derived import derived
from warpsan.analysis.polling import polling_loops
from warpsan.analysis.program import instructions_of
from warpsan.checks.orders import SAME_GPU, communications, is_communication, is_strong, memory_order, synchronises
from warpsan.host.setup import Setup
from warpsan.ptx.accesses import Atomic, MapChange
from warpsan.ptx.grammar import Form, has_form, known_form
from warpsan.ptx.ir import Entry, Instruction
from warpsan.ptx.opcodes import unit_of
from warpsan.ptx.synchronising import (
    AsyncReduction,
    BulkReduction,
    ClusterAction,
    MbarrierArrival,
    MbarrierTest,
    TensorMapCopy,
    TensorMapFence,
)

__all__ = [
    "all_resident",
    "changes_maps",
    "communicates",
    "ctas_together",
    "orders_blocks",
    "orders_by_memory",
    "reaches_all_blocks",
    "relaxed_arrivals",
    "relaxed_waits",
    "units",
    "updates_shared",
]

_TOGETHER = 4
"""Clusters that run together, in a random order, in a kernel whose blocks poll the writes of others."""


def reaches_all_blocks(instruction: Instruction) -> bool:
    """Whether the scope of a strong access contains all blocks: such accesses do not race with each other."""
    return memory_order(instruction).level >= SAME_GPU


def communicates(entry: Entry) -> bool:
    """Whether an entry has a strong access to global memory."""
    return bool(communications(entry))


@derived
def changes_maps(entry: Entry) -> bool:
    """Whether an entry has instructions for tensor maps that a kernel changes."""
    kinds = (MapChange, TensorMapCopy, TensorMapFence)
    return any(has_form(each, kind) for each in entry.instructions for kind in kinds)


@derived
def units(entry: Entry) -> frozenset[str]:
    """The asynchronous units of an entry's instructions (:class:`~warpsan.ptx.grammar.Grammar`)."""
    return frozenset(map(unit_of, entry.instructions)) - {""}


@derived
def updates_shared(entry: Entry) -> bool:
    """Whether an entry has an atomic operation on shared memory, or on a generic address."""
    for each in entry.instructions:
        form = known_form(each, Form)
        if isinstance(form, Atomic) and (not form.named_spaces or "shared" in form.named_spaces):
            return True
        if isinstance(form, AsyncReduction) or (isinstance(form, BulkReduction) and form.completes):
            return True
    return False


def orders_blocks(entry: Entry) -> bool:
    """Whether a block may be ordered after another by reading its writes."""
    return synchronises(entry) and communicates(entry)


@derived
def orders_by_memory(entry: Entry) -> bool:
    """Whether a thread may be ordered after another by reading its strong writes."""
    return synchronises(entry) and any(map(is_strong, entry.instructions))


@derived
def relaxed_arrivals(entry: Entry) -> bool:
    """Whether an entry has a relaxed arrival at an mbarrier or the barrier of a cluster, which releases the vector
    of the last fence."""
    forms = (known_form(each, MbarrierArrival) or known_form(each, ClusterAction) for each in entry.instructions)
    return any(form is not None and form.order == "relaxed" for form in forms)


@derived
def relaxed_waits(entry: Entry) -> bool:
    """Whether an entry has a relaxed wait for an mbarrier, which acquires at a later fence."""
    forms = (known_form(each, MbarrierTest) for each in entry.instructions)
    return any(form is not None and form.order == "relaxed" for form in forms)


def ctas_together(setup: Setup) -> int:
    """CTAs that run together: those of a cluster, of a cooperative launch, of a chunk if blocks are ``resident``, or
    of a few clusters in a random order if blocks poll. Otherwise a lock is always free, and no block waits for
    another."""
    geometry = setup.geometry
    if setup.workspace:
        return geometry.ctas
    if setup.resident:
        return max(map(len, setup.chunks))
    clusters = geometry.ctas // geometry.cluster_size
    many = min(_TOGETHER, clusters)
    return geometry.cluster_size * (many if setup.schedule == "random" and many > 1 and _blocks_poll(setup) else 1)


def all_resident(setup: Setup) -> Setup | None:
    """The launch with more resident blocks, which may wait for each other; None if they do not wait, or no more fit."""
    if not _blocks_poll(setup) or ctas_together(setup) >= max(map(len, setup.chunks)):
        return None
    return replace(setup, resident=True)


def _blocks_poll(setup: Setup) -> bool:
    """Whether an entry has a polling loop on memory that other blocks may write."""
    if not communicates(setup.entry):
        return False
    blocks = [setup.program.blocks[number] for number in polling_loops(setup.entry, setup.program).blocks]
    return any(is_communication(each) for block in blocks for item in block.items for each in instructions_of(item))
