"""Texts of the rules whose violations native code reports as rows (:mod:`warpsan.engine.rules`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from warpsan.engine import layout, rules
from warpsan.engine.memory import HazardRow
from warpsan.errors import LaunchError
from warpsan.host.tensor_map import DESCRIPTOR_BYTES, PlacedMap
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import Wording
from warpsan.report.illegal import FAULTS, illegal_access
from warpsan.report.places import Places
from warpsan.report.products import USUALLY_NO_FENCE, shares_registers, touched_registers
from warpsan.report.races import RACES
from warpsan.report.undefined import unwritten_global, unwritten_shared

__all__ = ["RULES", "SPACES", "USUALLY_REGISTERS", "HazardRule"]

SPACES = {layout.IN_SHARED: "shared", layout.IN_GLOBAL: "global", layout.IN_LOCAL: "local"}

Words = Callable[[Places, HazardRow, Instruction], Wording]


@dataclass(frozen=True)
class HazardRule:
    """A rule.

    Attributes
    ----------
    kind : str
        One of :data:`~warpsan.report.hazards.KINDS`.
    words : callable
        The text of a violation.
    check : str
        The check that includes the rule.
    at_end : bool
        Whether it is broken at the end of a block: another hazard of its kind at the instruction came earlier.
    """

    kind: str
    words: Words
    check: str = "memory"
    at_end: bool = False


def sentence(what: str, advice: str, note: str = "") -> Words:
    """A text with numbers of the row in braces, besides ``{opcode}``, ``{other}`` and ``{lanes}``, the number of
    lanes; ``note`` is the state of the conflicting access."""

    def words(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
        numbers = {"last": row.offset + row.width - 1} | {
            name: getattr(row, name) for name in ("offset", "width", "expected", "actual", "limit", "space")
        }
        text = what.format(opcode=instruction.opcode, other="{other}", lanes=row.lanes.bit_count(), **numbers)
        return Wording(text, advice, places.other(row, note))

    return words


def _illegal(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
    return illegal_access(places, row.rule, instruction, SPACES[row.space], row.offset, row.width)


def _unwritten(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
    if row.space == layout.IN_GLOBAL:
        return unwritten_global(places.space, row.width, row.offset)
    return unwritten_shared(row.width, row.offset)


def _absent(need: str) -> HazardRule:
    what = f"{need}, and only {{lanes}} of the lanes are there"
    return HazardRule("divergent", sentence(what, "move it out of the divergent branch"))


def _barrier(what: str, advice: str) -> HazardRule:
    return HazardRule("barrier", sentence(what, advice), "async")


_USUALLY_OPERAND = "usually a wrong operand"
_USUALLY_COUNT = "usually a wrong number of threads, or one barrier used for two purposes"
_USUALLY_TWICE = "usually a missing wait before the next round, or one barrier used for two purposes"
_USUALLY_CONDITION = (
    "usually a __syncthreads() in a branch or behind a return that not all threads of the block take: move it out, or "
    "use a named barrier with the number of threads that come"
)
_USUALLY_PARTS = "all threads of a warp must execute the same instruction: move it out of the divergent branch"

_BARRIERS: Mapping[int, HazardRule] = {
    rules.NO_SUCH_BARRIER: _barrier(
        f"barrier {{space}} does not exist: there are 0 to {layout.NO_BARRIER - 1}", _USUALLY_OPERAND
    ),
    rules.ARRIVAL_WITHOUT_COUNT: _barrier(
        "arrives at barrier {space} without a number of threads, which it needs", _USUALLY_OPERAND
    ),
    rules.PART_OF_WARP_COUNTED: _barrier(
        f"barrier {{space}} is given {{actual}} threads, which is not a multiple of the {layout.WARP} of a warp",
        _USUALLY_OPERAND,
    ),
    rules.COUNT_BEYOND_BLOCK: _barrier(
        "barrier {space} is given {actual} threads, and the block has {expected}", _USUALLY_OPERAND
    ),
    rules.COUNTS_DIFFER: _barrier(
        "barrier {space} is given {actual} threads, and {expected} by {other} in the same phase", _USUALLY_COUNT
    ),
    rules.ARRIVES_AGAIN: _barrier(
        "arrives at barrier {space} again, before the phase is complete in which it was at {other}", _USUALLY_TWICE
    ),
    rules.PARTS_OF_WARP: _barrier("part of a warp is at barrier {space}, and part at {other}", _USUALLY_PARTS),
    rules.PARTS_OF_BLOCK: _barrier("part of the block is at barrier {space}, and part at {other}", _USUALLY_CONDITION),
    rules.ONE_IS_A_REDUCTION: _barrier(
        "meets {other} at barrier {space}, and only one of the two is a reduction", "use two barriers"
    ),
    rules.THREADS_EXITED: _barrier(
        "{actual} of the block's {expected} threads have exited and never come to barrier {space}", _USUALLY_CONDITION
    ),
    rules.TOO_MANY_ARRIVED: _barrier(
        "{actual} threads are at barrier {space}, which is given {expected}", _USUALLY_COUNT
    ),
}

_USUALLY_CLUSTER = "each barrier.cluster.arrive has one barrier.cluster.wait of the same thread"
USUALLY_REGISTERS = "usually a number that does not suit the block: the sum over its warps must not grow"

_USUALLY_WARPGROUP = "all warps of a warpgroup must execute the same setmaxnreg: move it out of the branch"

_WAITS: Mapping[int, HazardRule] = {
    rules.PART_OF_WARPGROUP: HazardRule(
        "registers", sentence("only some warps of the warpgroup execute it", _USUALLY_WARPGROUP), "async"
    ),
    rules.WARPGROUP_DIFFERS: HazardRule(
        "registers", sentence("another warp of the warpgroup executes {other}", _USUALLY_WARPGROUP), "async"
    ),
    rules.ARRIVES_TWICE_IN_CLUSTER: HazardRule(
        "cluster", sentence("a thread arrives twice without a wait between", _USUALLY_CLUSTER), "async"
    ),
    rules.WAITS_WITHOUT_ARRIVAL: HazardRule(
        "cluster", sentence("a thread waits without having arrived", _USUALLY_CLUSTER), "async"
    ),
    rules.REGISTERS_WOULD_SHRINK: HazardRule(
        "registers",
        sentence("a thread is to have {expected} registers, fewer than its {actual}", USUALLY_REGISTERS),
        "async",
    ),
    rules.REGISTERS_WOULD_GROW: HazardRule(
        "registers",
        sentence("a thread is to have {expected} registers, more than its {actual}", USUALLY_REGISTERS),
        "async",
    ),
}


def _mbarrier(what: str, advice: str = "") -> HazardRule:
    return HazardRule("mbarrier", sentence(what, advice), "async")


_USUALLY_INIT = "usually a wrong count in mbarrier.init"
_MOST = (1 << 20) - 1

_MBARRIERS: Mapping[int, HazardRule] = {
    rules.NO_MBARRIER: _mbarrier(
        "there is no mbarrier at offset {offset} of shared memory",
        "usually a missing mbarrier.init, or one after its use",
    ),
    rules.INITIALISED_AGAIN: _mbarrier(
        "initialises the mbarrier at offset {offset} again in the middle of a phase",
        "usually a missing mbarrier.inval or barrier",
    ),
    rules.ARRIVALS_OF_INIT: _mbarrier(f"an mbarrier expects 1 to {_MOST} arrivals, not {{actual}}"),
    rules.MORE_ARRIVALS: _mbarrier(
        "{actual} arrivals at once at the mbarrier at offset {offset}, whose phase expects {expected} more of {limit}",
        _USUALLY_INIT,
    ),
    rules.MORE_DROPS: _mbarrier(
        "{actual} arrivals at once drop out of the mbarrier at offset {offset}, which expects {expected}", _USUALLY_INIT
    ),
    rules.COMPLETES_PHASE: _mbarrier(
        "completes the phase of the mbarrier at offset {offset}", "arrive.noComplete must not be the last arrival"
    ),
    rules.MORE_BYTES: _mbarrier(
        "{actual} bytes more than expected come to the mbarrier at offset {offset}",
        "usually a wrong count in expect_tx",
    ),
    rules.TOO_MANY_BYTES: _mbarrier(
        f"the mbarrier at offset {{offset}} counts at most {_MOST} bytes", "split the copy over several phases"
    ),
    rules.OLD_PHASE: _mbarrier(
        "waits for a phase of the mbarrier at offset {offset} that ended more than one phase ago",
        "usually a state token too old",
    ),
    rules.SIGNALS_ANOTHER_CTA: _mbarrier(
        "stores to one CTA and signals an mbarrier of another", "usually only one address went through mapa"
    ),
    rules.UNFENCED_MBARRIER: HazardRule(
        "mbarrier",
        sentence(
            "completes on the mbarrier at offset {offset}, which {other} initialised without a fence",
            "usually a missing fence.mbarrier_init.release.cluster behind mbarrier.init",
        ),
        "strict",
    ),
    rules.REACHES_EXITED: HazardRule(
        "cluster",
        sentence(
            "reaches into the shared memory of a CTA of its cluster that has exited",
            "usually a missing barrier.cluster before the end of the kernel",
        ),
        "async",
    ),
}


def _no_map(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
    """The bytes at the address describe no tensor map, or one of a tensor elsewhere."""
    what = "there is no tensor map at the address"
    try:
        placed = PlacedMap.read(bytes(places.space.data[row.offset : row.offset + DESCRIPTOR_BYTES]))
        if placed is not None and not places.space.holds(placed.begin, placed.map.reach):
            what = f"the tensor map's {placed.map.reach} bytes do not lie in one buffer of global memory"
    except LaunchError as error:
        what = str(error)
    return Wording(what, _USUALLY_MAP)


def _in_flight(does: str, still: str) -> HazardRule:
    what = f"{does} {{width}} bytes of shared memory at offset {{offset}} which {{other}} still {still}"
    usually = "usually a missing or too weak wait, or a copy outside the group or the phase waited for"
    return HazardRule("async", sentence(what, usually, "in flight"), "async")


_FLIGHTS: Mapping[int, HazardRule] = {
    rules.TOUCHES_MBARRIER: _mbarrier(
        "touches {width} bytes of shared memory at offset {offset}, where an mbarrier is",
        "usually a buffer that is too small; after mbarrier.inval the memory is free",
    ),
    rules.READS_TARGET: _in_flight("reads", "writes"),
    rules.OVERWRITES_TARGET: _in_flight("overwrites", "writes"),
    rules.OVERWRITES_SOURCE: _in_flight("overwrites", "reads"),
}


def _at_end(what: str) -> HazardRule:
    return HazardRule(
        "async", sentence(what, "usually a missing wait before the end of the kernel"), "async", at_end=True
    )


_USUALLY_MAP = "pass a TensorMap for a 128-byte parameter"

_COPIES: Mapping[int, HazardRule] = {
    rules.NOT_IN_CHUNKS: HazardRule(
        "misaligned",
        sentence("copies {actual} bytes, which is not a multiple of 16", "bulk copies come in 16-byte chunks"),
        "async",
    ),
    rules.READS_EXITED: _at_end("reads shared memory of a block that has exited meanwhile"),
    rules.WRITES_EXITED: _at_end("writes shared memory of a block that has exited meanwhile"),
    rules.STILL_READS: _at_end("still reads shared memory when its block exits"),
    rules.NO_TENSOR_MAP: HazardRule("tensor-map", _no_map, "async"),
    rules.AXES_DIFFER: HazardRule(
        "tensor-map",
        sentence("the tensor map has {actual} axes, and the instruction {expected}", _USUALLY_MAP),
        "async",
    ),
}


def _differs(name: str) -> HazardRule:
    return HazardRule("wgmma", sentence(f"{name} is not the same in all threads of the warpgroup", ""), "async")


_PRODUCTS: Mapping[int, HazardRule] = {
    rules.A_DIFFERS: _differs("the descriptor of A"),
    rules.B_DIFFERS: _differs("the descriptor of B"),
    rules.SCALE_DIFFERS: _differs("scale-d"),
    rules.NO_FENCE: HazardRule(
        "wgmma", sentence("there was no wgmma.fence before the first product", USUALLY_NO_FENCE), "async"
    ),
    rules.TOUCHED_REGISTERS: HazardRule("wgmma", touched_registers, "async"),
    rules.SHARES_REGISTERS: HazardRule("wgmma", shares_registers, "async"),
}


def _tensor(what: str, advice: str = "", *, at_end: bool = False) -> HazardRule:
    return HazardRule("tensor-memory", sentence(what, advice), "async", at_end=at_end)


def _tensor_race(does: str, still: str, advice: str) -> HazardRule:
    what = f"{does} column {{offset}} of tensor memory, which {{other}} {still}"
    return HazardRule("tensor-memory", sentence(what, advice, "not waited for"), "async")


_USUALLY_COMMIT = "usually a missing tcgen05.commit, or a missing wait for the mbarrier that it arrives at"
_USUALLY_ADDRESS = "usually a wrong address: bits 16 to 31 are the lane, and bits 0 to 15 the column"

_TENSOR_MEMORY: Mapping[int, HazardRule] = {
    rules.NOT_ALLOCATED: _tensor(
        "accesses columns {offset} to {last} of tensor memory, which are not all allocated", _USUALLY_ADDRESS
    ),
    rules.NOT_ITS_LANES: _tensor(
        "accesses tensor memory from lane {actual} on, and the warp has the 32 lanes from {expected} on",
        "a warp accesses the lanes of its number modulo 4",
    ),
    rules.ADDRESSES_DIFFER: _tensor("the operand is not the same in all threads of the warp"),
    rules.WRONG_COLUMNS: _tensor("allocates {width} columns", "the number is a power of two from 32 to 512"),
    rules.NO_COLUMNS: _tensor(
        "allocates {width} columns of tensor memory, and no such block is free",
        "usually an earlier allocation without tcgen05.dealloc",
    ),
    rules.WITHOUT_PERMIT: _tensor(
        "allocates columns of tensor memory after tcgen05.relinquish_alloc_permit", "move it before the other"
    ),
    rules.NOT_ITS_COLUMNS: _tensor(
        "frees {width} columns of tensor memory from column {offset} on, which are no allocation",
        "the address and the number are those of tcgen05.alloc",
    ),
    rules.NEVER_FREED: _tensor(
        "{width} columns of tensor memory are still allocated when the block exits",
        "usually a missing tcgen05.dealloc",
        at_end=True,
    ),
    rules.NEVER_WRITTEN: _tensor(
        "reads column {offset} of tensor memory, which nothing has written",
        "usually a first product with enable-input-d, or a wrong address",
    ),
    rules.WRONG_PRODUCT: _tensor(
        "there is no product with M = {actual}, N = {width} and these types, at lane {expected}",
        "usually a wrong bit in the instruction descriptor",
    ),
    rules.READS_PRODUCT: _tensor_race("reads", "still writes", _USUALLY_COMMIT),
    rules.READS_STORE: _tensor_race(
        "reads", "stores to", "usually a missing tcgen05.wait::st, or a missing barrier behind it"
    ),
    rules.STORES_PRODUCT: _tensor_race("overwrites", "still writes", _USUALLY_COMMIT),
    rules.STORES_READ: _tensor_race(
        "overwrites",
        "still reads",
        "usually a missing tcgen05.wait::ld, or a missing barrier behind it; for an operand, a missing tcgen05.commit",
    ),
    rules.STORES_STORED: _tensor_race(
        "overwrites", "stores to", "usually a missing tcgen05.wait::st, or a missing barrier behind it"
    ),
    rules.NO_FENCE_BEFORE_SYNC: HazardRule(
        "tensor-memory",
        sentence(
            "accesses column {offset} of tensor memory after {other}, without a fence before the synchronisation",
            "usually a missing tcgen05.fence::before_thread_sync in the other warp",
        ),
        "async",
    ),
    rules.NO_FENCE_AFTER_SYNC: HazardRule(
        "tensor-memory",
        sentence(
            "accesses column {offset} of tensor memory after {other}, without a fence after the synchronisation",
            "usually a missing tcgen05.fence::after_thread_sync behind the wait",
        ),
        "async",
    ),
    rules.USES_LOADED: HazardRule(
        "tensor-memory",
        sentence("uses registers that {other} loads", "usually a missing tcgen05.wait::ld", "not waited for"),
        "async",
    ),
    rules.FREES_USED: _tensor_race("frees", "still uses", "usually a missing wait or barrier before tcgen05.dealloc"),
}

RULES: Mapping[int, HazardRule] = {
    **_TENSOR_MEMORY,
    **_PRODUCTS,
    **_FLIGHTS,
    **_MBARRIERS,
    **_COPIES,
    **_BARRIERS,
    **_WAITS,
    **{rule: HazardRule(kind, words, "race") for rule, (kind, words) in RACES.items()},
    **{rule: HazardRule(kind, _illegal) for rule, kind in enumerate(FAULTS)},
    rules.UNWRITTEN_READ: HazardRule("uninitialised", _unwritten),
    rules.PARTIAL_WARP: _absent("{opcode} needs all 32 lanes of a warp"),
    rules.NAMES_ABSENT: _absent("the member mask {offset:#010x} names threads {width:#010x} too"),
    rules.LEAVES_OUT: _absent("the member mask {offset:#010x} leaves out a thread that executes this"),
}
"""The rules by their numbers, besides those of undefined registers (:mod:`.undefined`) and of uses of registers in
flight (:mod:`.products`)."""
