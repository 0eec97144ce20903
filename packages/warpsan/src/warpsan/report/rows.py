"""Reports of the rows of hazards that native code has written (:mod:`warpsan.engine.hazards`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from warpsan.analysis.definedness import follows_load
from warpsan.engine import layout, rules
from warpsan.engine.decoded import Decoded
from warpsan.engine.memory import HazardRow
from warpsan.host.memory import Space
from warpsan.host.setup import Setup
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import updates_memory
from warpsan.report.endings import illegal_access, mbarrier_misused
from warpsan.report.hazard_log import HazardLog
from warpsan.report.illegal import FAULTS
from warpsan.report.places import Places
from warpsan.report.products import uses_of_registers
from warpsan.report.rules import RULES, SPACES
from warpsan.report.undefined import UndefinedUses, unset_stored, unset_used

__all__ = ["report_row", "report_rows"]

_BY_UNIT = (("", "as an operand"),)
"""The role in which an asynchronous unit uses undefined bytes of shared memory."""
_REGISTERS = (rules.NEVER_SET, rules.REACHED, rules.STORED_UNSET)


def report_rows(setup: Setup, space: Space, log: HazardLog, rows: Sequence[HazardRow], decoded: Decoded) -> None:
    """Report hazards that native code has found.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory after the launch.
    log : HazardLog
    rows : sequence of HazardRow
    decoded : Decoded
        The program of the rows.

    Raises
    ------
    IllegalAccess
        Without the ``memory`` check, for the first illegal access; without checks, also for the first wrong use of an
        mbarrier.
    """
    places, in_turn = Places(setup, space), sorted(rows, key=_in_turn(setup))
    uses = UndefinedUses(places, log)
    for row in in_turn if setup.tracking else ():
        _begin(uses, setup, row, decoded)
    for row in in_turn:
        instruction, place = places.instruction(row, decoded), places.of(row)
        if "memory" not in setup.checks and row.rule <= rules.OUT_OF_BOUNDS:
            access = FAULTS[row.rule], instruction, SPACES[row.space], row.offset
            raise illegal_access(places, *access, place.block, place.thread)
        if not setup.checks and row.rule in RULES and RULES[row.rule].kind == "mbarrier":
            raise mbarrier_misused(RULES[row.rule].words(places, row, instruction).what, instruction, place)
        if row.rule in _REGISTERS:
            if "memory" in setup.checks:
                _report_register(uses, setup, row, decoded)
            continue
        if not (setup.tracking and _is_followed(setup, row, instruction)):
            report_row(places, log, row, decoded)


def report_row(places: Places, log: HazardLog, row: HazardRow, decoded: Decoded) -> None:
    """Report a hazard, if its check is on."""
    if row.rule == rules.USES_REGISTERS:
        for user, wording in uses_of_registers(places, row, decoded) if "async" in places.setup.checks else ():
            log.put(places, "wgmma", user, places.of(row), wording)
        return
    rule, instruction = RULES[row.rule], places.instruction(row, decoded)
    if rule.check in places.setup.checks:
        log.put(
            places, rule.kind, instruction, places.of(row), rule.words(places, row, instruction), at_end=rule.at_end
        )


def _begin(uses: UndefinedUses, setup: Setup, row: HazardRow, decoded: Decoded) -> None:
    """Undefined bits that are tracked begin at a row's instruction, unless its hazard is another one."""
    instruction, place = uses.places.instruction(row, decoded), uses.places.of(row)
    if row.rule == rules.STORED_UNSET:
        uses.begin(instruction.pc, place, unset_stored(_register(row, decoded)[0]))
    elif row.rule == rules.UNWRITTEN_READ and _is_followed(setup, row, instruction):
        wording = RULES[row.rule].words(uses.places, row, instruction)
        uses.begin(instruction.pc, place, replace(wording, what=f"{wording.what}, and used"))


def _report_register(uses: UndefinedUses, setup: Setup, row: HazardRow, decoded: Decoded) -> None:
    """Report the use of a register with undefined bits."""
    instruction, place = uses.places.instruction(row, decoded), uses.places.of(row)
    name, role = _register(row, decoded)
    if row.rule == rules.REACHED:
        uses.matter((row.origin & rules.FROM_GLOBAL - 1) - 1, instruction, place, role)
    elif row.rule == rules.NEVER_SET or not setup.tracking:
        uses.log.put(uses.places, "uninitialised", instruction, place, unset_used(name, role))


def _register(row: HazardRow, decoded: Decoded) -> tuple[str, str]:
    """Name and role of the register that a record uses."""
    return decoded.uses.get(row.record, _BY_UNIT)[row.space]


def _is_followed(setup: Setup, row: HazardRow, instruction: Instruction) -> bool:
    """Whether undefined bytes that an instruction reads are tracked from there on."""
    if row.rule != rules.UNWRITTEN_READ:
        return False
    copies = row.space == layout.IN_GLOBAL and instruction.opcode == "cp" and not updates_memory(instruction)
    return copies or follows_load(instruction, track_unwritten_global=setup.track_unwritten_global)


def _in_turn(setup: Setup) -> Callable[[HazardRow], tuple[int, ...]]:
    """The lockstep order: by chunk, and within it by turn and record; without lockstep there is one turn, and the
    order stays."""
    chunk_of = {int(cta): number for number, chunk in enumerate(setup.chunks) for cta in chunk}

    def key(row: HazardRow) -> tuple[int, ...]:
        if row.turn == 0:
            return (0,)
        return chunk_of[row.cta], row.turn, row.record, row.space, row.origin

    return key
