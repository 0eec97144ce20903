"""Texts of the registers of wgmma products (:mod:`warpsan.engine.product_rules`)."""

from __future__ import annotations

from collections.abc import Iterator

from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.engine.decoded import Decoded
from warpsan.engine.memory import HazardRow
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import Wording
from warpsan.report.places import Places
from warpsan.semantics.warpgroup import product_sets

__all__ = ["USUALLY_NO_FENCE", "shares_registers", "touched_registers", "uses_of_registers"]

_NO_WAIT = "usually a missing wgmma.wait_group, a wait for too few groups, or a missing wgmma.commit_group before it"
USUALLY_NO_FENCE = "usually a missing wgmma.fence between that access and the product"


def touched_registers(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
    """A product works on registers that were accessed without a later fence."""
    names, _ = _set_of(places, row)
    return Wording(f"registers {names[0]} to {names[-1]} were accessed since the last wgmma.fence", USUALLY_NO_FENCE)


def shares_registers(places: Places, row: HazardRow, instruction: Instruction) -> Wording:
    """A product works on registers of another one in flight."""
    return _in_flight(places, row, "uses registers of")


def uses_of_registers(places: Places, row: HazardRow, decoded: Decoded) -> Iterator[tuple[Instruction, Wording]]:
    """The instructions that use registers of a product in flight; reads of A fragments are allowed."""
    names, kind = _set_of(places, row)
    for pc in decoded.looks[row.record]:
        instruction = places.setup.entry.instructions[pc]
        if not set(registers_written(instruction)).isdisjoint(names):
            yield instruction, _in_flight(places, row, "overwrites")
        elif kind and not set(registers_read(instruction)).isdisjoint(names):
            yield instruction, _in_flight(places, row, "reads")


def _in_flight(places: Places, row: HazardRow, does: str) -> Wording:
    _, kind = _set_of(places, row)
    what = f"{does} what {{other}} {'accumulates in' if kind else 'reads'}"
    return Wording(what, _NO_WAIT, places.other(row, "in flight"))


def _set_of(places: Places, row: HazardRow) -> tuple[tuple[str, ...], str]:
    """The registers of a row's set, and the type of accumulators."""
    return list(product_sets(places.setup.entry))[row.space]
