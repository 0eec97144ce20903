"""Memory order and scope of each instruction as data (PTX ISA, "Memory Consistency Model").

A strong operation is one with an order (``.relaxed``, ``.acquire``, ``.release``, ``.acq_rel``), ``.volatile`` or
atomic; all other loads and stores are weak. Two strong operations of different threads that overlap are morally strong
if the scope of each includes the thread of the other: they do not race. Scopes are levels, so that an operation
includes a thread in relation ``r`` to its own (:data:`SAME_CTA`, ...) if its level is at least ``r``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from warpsan.analysis.derived import derived
from warpsan.ptx.grammar import Form, form_of, has_form, known_form
from warpsan.ptx.ir import Entry, Instruction
from warpsan.ptx.opcodes import opcode_of, spaces_of, updates_memory
from warpsan.ptx.synchronising import MbarrierArrival, MbarrierFence, MbarrierTest, MemoryFence

__all__ = [
    "BARRIER",
    "LEVELS",
    "SAME_CLUSTER",
    "SAME_CTA",
    "SAME_GPU",
    "VOLATILE_MODES",
    "WEAK",
    "MemoryOrder",
    "arrival_order",
    "communications",
    "fence_order",
    "is_communication",
    "is_memory_fence",
    "is_strong",
    "memory_order",
    "strong_in_shared",
    "synchronises",
]

SAME_CTA, SAME_CLUSTER, SAME_GPU = range(3)
"""The relation of two threads: the smallest group that contains both."""
LEVELS = {"cta": SAME_CTA, "cluster": SAME_CLUSTER, "gpu": SAME_GPU, "gl": SAME_GPU, "sys": 3}
"""Scopes by their modifier; ``gl`` is the modifier of ``membar``."""
VOLATILE_MODES = ("sync", "data")
"""Meaning of ``.volatile``. ``sync``: the same as ``.relaxed.sys``, as PTX defines. ``data``: a weak access, as a
data race on a volatile object is a race in CUDA C++."""
_NAMES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True)
class MemoryOrder:
    """The effect of an access or a fence on the order of a thread's accesses.

    Attributes
    ----------
    strong : bool
        False for weak accesses.
    acquire, release : bool
    level : int
        Its scope, as one of :data:`LEVELS`.
    volatile : bool
    sequential : bool
        Whether it is a ``fence.sc``; these are in one order ("Fence-SC Order").
    implied : bool
        Whether the scope is the default, and not written.
    """

    strong: bool
    acquire: bool = False
    release: bool = False
    level: int = SAME_CTA
    volatile: bool = False
    sequential: bool = False
    implied: bool = False

    @property
    def scope(self) -> str:
        """The scope's modifier, with its dot."""
        return "." + _NAMES[self.level]


WEAK = MemoryOrder(False)
BARRIER = MemoryOrder(True, acquire=True, release=True, level=SAME_CLUSTER)
"""The order of barriers of a CTA or a cluster, which pass all accesses on."""
_VOLATILE = MemoryOrder(True, level=LEVELS["sys"], volatile=True)


@lru_cache(maxsize=4096)
def memory_order(instruction: Instruction) -> MemoryOrder:
    """The order of a load, a store or an atomic operation, as PTX defines it ("ld", "st", "atom", "red").

    Bulk reductions are relaxed operations with the scope of the GPU ("cp.reduce.async.bulk").
    """
    form = known_form(instruction, Form)
    order, scope = ("", "") if form is None else form.access_order
    if order == "volatile":
        return _VOLATILE
    if order in ("", "weak"):
        return WEAK
    return MemoryOrder(True, order in ("acquire", "acq_rel"), order in ("release", "acq_rel"), LEVELS[scope or "gpu"])


@lru_cache(maxsize=256)
def fence_order(instruction: Instruction) -> MemoryOrder:
    """The order of a ``fence`` or a ``membar``, which is ``fence.sc`` ("membar, fence")."""
    form = known_form(instruction, MemoryFence)
    if form is None:  # fence.mbarrier_init.release.cluster
        return MemoryOrder(True, release=True, level=SAME_CLUSTER)
    return MemoryOrder(
        *(True, form.order != "release", form.order != "acquire", LEVELS[form.scope]), sequential=form.order == "sc"
    )


@lru_cache(maxsize=1024)
def arrival_order(instruction: Instruction) -> MemoryOrder:
    """The order of an arrival at an mbarrier, or a wait: releases and acquires, with the scope of the CTA, by default
    ("mbarrier.arrive", "mbarrier.try_wait")."""
    form = form_of(instruction, Form)
    assert isinstance(form, MbarrierArrival | MbarrierTest)
    ordered = form.order != "relaxed"
    return MemoryOrder(True, ordered, ordered, LEVELS[form.scope or "cta"], implied=not form.scope)


def is_memory_fence(instruction: Instruction) -> bool:
    """Whether it is a fence of release and acquire patterns."""
    return has_form(instruction, MemoryFence)


def is_strong(instruction: Instruction) -> bool:
    """Whether it is a strong access."""
    return bool(opcode_of(instruction).memory or updates_memory(instruction)) and memory_order(instruction).strong


def is_communication(instruction: Instruction) -> bool:
    """Whether it is a strong access that may be to global memory, by which blocks may synchronise."""
    spaces = spaces_of(instruction)
    return is_strong(instruction) and (not spaces or "global" in spaces)


@derived
def communications(entry: Entry) -> tuple[Instruction, ...]:
    """The instructions that are strong accesses to global memory (:func:`is_communication`)."""
    return tuple(filter(is_communication, entry.instructions))


@derived
def strong_in_shared(entry: Entry) -> tuple[Instruction, ...]:
    """The instructions that are strong accesses which may be to shared memory."""
    return tuple(each for each in entry.instructions if is_strong(each) and "shared" in (spaces_of(each) or {"shared"}))


@derived
def synchronises(entry: Entry) -> bool:
    """Whether a kernel has the instructions of acquire or release patterns."""
    for instruction in entry.instructions:
        if has_form(instruction, MemoryFence) or has_form(instruction, MbarrierFence):
            return True
        if opcode_of(instruction).memory:
            order = memory_order(instruction)
            if order.acquire or order.release:
                return True
    return False
