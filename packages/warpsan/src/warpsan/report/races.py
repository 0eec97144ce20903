"""Texts of races (:mod:`warpsan.engine.races`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warpsan.engine import rules
from warpsan.engine.lane_races import READ, UPDATED, WATCHED, WROTE
from warpsan.engine.memory import HazardRow
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import updates_memory
from warpsan.report.hazard_log import Wording
from warpsan.report.missing import missing
from warpsan.report.places import Places

__all__ = ["RACES"]

_USUALLY = "usually a missing barrier between them"
_USUALLY_VALUES = "one of them wins, and which is undefined: let one thread write, or use an atomic"
_USUALLY_IN_FLIGHT = "usually a missing wait for the copy, or a missing barrier after that wait"
_USUALLY_PROXY = "usually a missing fence.proxy.async between the write and the barrier after it"

_USUALLY_LANES, _DIVERGED = "usually a missing __syncwarp() between them", "the warp had diverged"
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
}


def _words(what: str, advice: str = "") -> Callable[[Places, HazardRow, Instruction], Wording]:
    def words(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
        text = f"{what}, {row.width} bytes of shared memory at offset {row.offset}"
        copy = places.setup.entry.instructions[row.other_pc]
        apart = bool(row.found) or (copy.opcode == "cp" and not updates_memory(copy))
        usually = advice or missing(row.expected) or (_USUALLY_IN_FLIGHT if apart else _USUALLY)
        return Wording(text, usually, places.other(row, "asynchronously" if apart else ""))

    return words


def _lanes(what: str, usually: str = "") -> Callable[[Places, HazardRow, Instruction], Wording]:
    def words(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
        text = f"{what}, {row.width} bytes of shared memory at offset {row.offset}"
        advice = usually or (_USUALLY_LANES if "lanes" in places.setup.checks else f"{_USUALLY_LANES}: {_DIVERGED}")
        return Wording(text, advice, places.other(row))

    return words


_DID = {WROTE: "wrote", READ: "reads", UPDATED: "updates", WATCHED: "reads"}
_DOES = {rules.LANE_READS: "reads", rules.LANE_WRITES: "overwrites", rules.LANE_UPDATES: "updates"}

RACES: Mapping[int, tuple[str, Callable[[Places, HazardRow, Instruction], Wording]]] = {
    **{rule: ("race", _words(what)) for rule, what in _WHAT.items()},
    rules.WRITES_TOGETHER: ("race", _words(_TOGETHER, _USUALLY_VALUES)),
    **{
        first + kind: ("lane-race", _lanes(f"{does} what {{other}} {did}"))
        for first, does in _DOES.items()
        for kind, did in _DID.items()
    },
    rules.LANES_TOGETHER: ("lane-race", _lanes(_TOGETHER, _USUALLY_VALUES)),
    rules.UNFENCED_READ: (
        "proxy",
        _words("reads in the async proxy what {other} wrote in the generic proxy", _USUALLY_PROXY),
    ),
    rules.UNFENCED_WRITE: (
        "proxy",
        _words("overwrites in the async proxy what {other} wrote in the generic proxy", _USUALLY_PROXY),
    ),
}
"""The kind and the text of each rule."""
