"""Texts of the rules whose violations native code reports as rows (:mod:`warpsan.engine.rules`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from warpsan.engine import layout, rules
from warpsan.engine.memory import HazardRow
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import Wording
from warpsan.report.illegal import FAULTS, illegal_access
from warpsan.report.places import Places
from warpsan.report.undefined import unwritten_global, unwritten_shared

__all__ = ["RULES", "SPACES", "Rule"]

SPACES = {layout.IN_SHARED: "shared", layout.IN_GLOBAL: "global", layout.IN_LOCAL: "local"}

Words = Callable[[Places, HazardRow, Instruction], Wording]


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes
    ----------
    kind : str
        One of :data:`~warpsan.report.hazards.KINDS`.
    words : callable
        The text of a violation.
    check : str
        The check that includes the rule.
    """

    kind: str
    words: Words
    check: str = "memory"


def sentence(what: str, advice: str) -> Words:
    """A text with numbers of the row in braces, besides ``{opcode}``, ``{other}`` and ``{lanes}``, the number of
    lanes."""

    def words(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
        numbers = {name: getattr(row, name) for name in ("offset", "width", "expected", "found", "space")}
        text = what.format(opcode=instruction.opcode, other="{other}", lanes=row.lanes.bit_count(), **numbers)
        return Wording(text, advice, places.other(row))

    return words


def _illegal(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
    return illegal_access(places, row.rule, instruction, SPACES[row.space], row.offset, row.width)


def _unwritten(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
    if row.space == layout.IN_GLOBAL:
        return unwritten_global(places.space, row.width, row.offset)
    return unwritten_shared(row.width, row.offset)


def _absent(need: str) -> Rule:
    what = f"{need}, and only {{lanes}} of the lanes are there"
    return Rule("divergent", sentence(what, "move it out of the divergent branch"))


RULES: Mapping[int, Rule] = {
    **{rule: Rule(kind, _illegal) for rule, kind in enumerate(FAULTS)},
    rules.UNWRITTEN_READ: Rule("uninitialised", _unwritten),
    rules.PARTIAL_WARP: _absent("{opcode} needs all 32 lanes of a warp"),
    rules.NAMES_ABSENT: _absent("the member mask {offset:#010x} names threads {width:#010x} too"),
    rules.LEAVES_OUT: _absent("the member mask {offset:#010x} leaves out a thread that executes this"),
}
"""The rules by their numbers, besides those of undefined registers (:mod:`.undefined`)."""
