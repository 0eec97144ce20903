"""Texts of races (:mod:`warpsan.engine.races`, :mod:`warpsan.engine.global_races`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warpsan.checks.orders import SAME_CLUSTER, SAME_CTA, SAME_GPU, memory_order
from warpsan.engine import layout, rules
from warpsan.engine.lane_races import READ, UPDATED, WATCHED, WROTE
from warpsan.engine.memory import HazardRow
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import updates_memory
from warpsan.report.hazard_log import Wording
from warpsan.report.missing import missing
from warpsan.report.places import Places

__all__ = ["RACES"]

_Words = Callable[[Places, HazardRow, Instruction], Wording]

_USUALLY = "usually a missing barrier between them"
_USUALLY_IN_BLOCK = "usually a missing barrier"
_USUALLY_BETWEEN_BLOCKS = "blocks run in any order: use an atomic, or give each its own part"
_USUALLY_VALUES = "one of them wins, and which is undefined: let one thread write, or use an atomic"
_USUALLY_IN_FLIGHT = "usually a missing wait for the copy, or a missing barrier after that wait"
_USUALLY_PROXY = "usually a missing fence.proxy.async between the write and the barrier after it"
_USUALLY_SCOPE = "each of the two must include the other's thread in its scope: use .gpu"
_USUALLY_CONSTANT = "__ldg() and const __restrict__ are for memory that the kernel does not write"
_USUALLY_LANES, _DIVERGED = "usually a missing __syncwarp() between them", "the warp had diverged"
_NOTE_VOLATILE = (
    "; volatile accesses count as data here (volatile=data), by the letter of PTX they are relaxed operations"
)
_USUALLY_WAIT = (
    "launched with programmatic stream serialization, the kernel before it may still run: usually a missing "
    "griddepcontrol.wait (cudaGridDependencySynchronize()) before the access"
)
_TOGETHER = "writes what {other} writes at the same time"

_WHAT = {
    rules.READS_WRITTEN: "reads what {other} wrote",
    rules.READS_UPDATED: "reads what {other} updates",
    rules.OVERWRITES_WRITTEN: "overwrites what {other} wrote",
    rules.OVERWRITES_READ: "overwrites what {other} reads",
    rules.OVERWRITES_UPDATED: "overwrites what {other} updates",
    rules.UPDATES_WRITTEN: "updates what {other} wrote",
    rules.UPDATES_READ: "updates what {other} reads",
    rules.COPIES_WRITTEN: "overwrites what {other} wrote",
    rules.COPIES_READ: "overwrites what {other} reads",
    rules.COPIES_UPDATED: "overwrites what {other} updates",
    rules.SIGNALS_WRITTEN: "signals what {other} wrote",
    rules.COPIES_TOGETHER: "overwrites what {other} writes at the same time",
    rules.USES_MAP_WRITTEN: "uses the tensor map that {other} wrote",
}
_WITH_ADVICE = {
    rules.WRITES_TOGETHER: (_TOGETHER, _USUALLY_VALUES),
    rules.READS_CONSTANT: (
        "reads through a cache that is not coherent what {other} wrote in the same kernel",
        _USUALLY_CONSTANT,
    ),
    rules.SCOPES_OF_READ: ("reads what {other} updates", _USUALLY_SCOPE),
    rules.SCOPES_OF_WRITE: ("overwrites what {other} updates", _USUALLY_SCOPE),
    rules.SCOPES_OF_UPDATE: ("updates what {other} updates", _USUALLY_SCOPE),
}
_UNFENCED = {
    rules.UNFENCED_READ: "reads in the async proxy what {other} wrote in the generic proxy",
    rules.UNFENCED_WRITE: "overwrites in the async proxy what {other} wrote in the generic proxy",
}
_DID = {WROTE: "wrote", READ: "reads", UPDATED: "updates", WATCHED: "reads"}
_DOES = {rules.LANE_READS: "reads", rules.LANE_WRITES: "overwrites", rules.LANE_UPDATES: "updates"}


def _place(places: Places, row: HazardRow) -> str:
    """The target of an access."""
    if row.space == layout.IN_SHARED:
        return f"{row.width} bytes of shared memory at offset {row.offset}"
    extent = places.space.extent_near(row.offset)
    where = f"byte {row.offset - extent.begin} of {extent.name}" if extent else "global memory"
    return f"{row.width} bytes at {where}"


def _volatile(places: Places, row: HazardRow, instruction: Instruction) -> str:
    """A note if a volatile access to global memory counts as data."""
    both = instruction, places.setup.entry.instructions[row.other_pc]
    data = places.setup.volatile == "data" and row.space == layout.IN_GLOBAL
    return _NOTE_VOLATILE if data and any(memory_order(each).volatile for each in both) else ""


def _words(what: str, advice: str = "") -> _Words:
    def words(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
        other = places.setup.entry.instructions[row.other_pc]
        apart = bool(row.actual)
        if row.space == layout.IN_SHARED:
            apart = apart or (other.opcode == "cp" and not updates_memory(other))
            usually = _USUALLY
        else:
            usually = _USUALLY_IN_BLOCK if row.cta == row.other_cta else _USUALLY_BETWEEN_BLOCKS
        usually = advice or missing(row.expected) or (_USUALLY_IN_FLIGHT if apart else usually)
        usually += _volatile(places, row, instruction)
        return Wording(f"{what}, {_place(places, row)}", usually, places.other(row, "asynchronously" if apart else ""))

    return words


def _lanes(what: str, advice: str = "") -> _Words:
    def words(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
        usually = _USUALLY_LANES if "lanes" in places.setup.checks else f"{_USUALLY_LANES}: {_DIVERGED}"
        if advice:
            usually = advice + _volatile(places, row, instruction)
        return Wording(f"{what}, {_place(places, row)}", usually, places.other(row))

    return words


def _early(what: str) -> _Words:
    def words(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
        return Wording(f"{what}, {_place(places, row)}", _USUALLY_WAIT)

    return words


def _after_exit(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
    what = f"accesses the shared memory of CTA {row.expected} of its cluster, which may have exited"
    return Wording(what, "usually a missing barrier.cluster at the end of the kernel")


_RELATIONS = {SAME_CTA: ".cta", SAME_CLUSTER: ".cluster", SAME_GPU: ".gpu"}
_USES = "uses the tensor map that {other} wrote"
_ACQUIRE = (
    "usually a missing fence.proxy.tensormap::generic.acquire{scope} [map], 128 in the thread that issues the copy, "
    "behind what it waits for"
)
_RELEASE = (
    "usually a missing fence.proxy.tensormap::generic.release{scope} between the write and what announces it; "
    "tensormap.cp_fenceproxy is both a copy and such a fence"
)
_MAPS = {
    rules.MAP_NOT_ACQUIRED: (f"{_USES}, without an acquire of it", _ACQUIRE),
    rules.MAP_ACQUIRE_NARROW: (
        f"{_USES}, and its acquire is {{actual}}",
        "the writer is in another {where}: use {scope}",
    ),
    rules.MAP_NOT_RELEASED: (f"{_USES}, without a release of it that the acquire comes after", _RELEASE),
    rules.MAP_RELEASE_NARROW: (
        f"{_USES}, and its release is {{actual}}",
        "the copy is issued in another block: use {scope}",
    ),
}


def _map(what: str, advice: str) -> _Words:
    def words(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
        scope, actual = _RELATIONS[row.expected], _RELATIONS[row.actual]
        where = "block" if row.expected == SAME_CLUSTER else "cluster or block"
        return Wording(what.replace("{actual}", actual), advice.format(scope=scope, where=where), places.other(row))

    return words


RACES: Mapping[int, tuple[str, _Words]] = {
    **{rule: ("race", _words(what)) for rule, what in _WHAT.items()},
    **{rule: ("race", _words(*texts)) for rule, texts in _WITH_ADVICE.items()},
    **{rule: ("proxy", _words(what, _USUALLY_PROXY)) for rule, what in _UNFENCED.items()},
    **{
        first + kind: ("lane-race", _lanes(f"{does} what {{other}} {did}"))
        for first, does in _DOES.items()
        for kind, did in _DID.items()
    },
    rules.EARLY_READ: ("race", _early("reads what the kernel before it may still write")),
    rules.EARLY_WRITE: ("race", _early("writes what the kernel before it may still access")),
    rules.EARLY_UPDATE: ("race", _early("updates what the kernel before it may still access")),
    **{rule: ("proxy", _map(*texts)) for rule, texts in _MAPS.items()},
    rules.AFTER_EXIT: ("cluster", _after_exit),
    rules.LANES_TOGETHER: ("lane-race", _lanes(_TOGETHER, _USUALLY_VALUES)),
}
"""The kind and the text of each rule."""
