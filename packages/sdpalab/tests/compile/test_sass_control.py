"""Control fields: by hand, and that what they say of real machine code is consistent."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from sdpalab.compile import build, disassemble
from sdpalab.compile.control import Control
from sdpalab.compile.sass import SassInstruction, parse
from sdpalab.kernels.registry import get
from sdpalab.problem import MISSION

KERNELS = (("flash", "sm_80"), ("flash", "sm_86"), ("flash", "sm_89"), ("hopper", "sm_90a"), ("wmma", "sm_90"))
VARIABLE = ("LDS", "LDSM", "LDG", "MUFU", "SHFL", "S2R", "F2I")
"""Instructions that write registers after a time that no stall count covers."""


def test_the_fields_of_a_word_by_hand() -> None:
    # LDSM.16.M88.4 R72, [R116] for sm_89: waits for scoreboard 4, holds it until R72 is written, stalls for one clock.
    control = Control.decode(0x010F220000000200)
    assert control == Control(1, False, 4, None, 0b010000, 0)
    assert str(control) == "[B----4-:R-:W4:-:S01]"


@pytest.mark.parametrize("stall", [0, 9, 15])
@pytest.mark.parametrize("yields", [True, False])
@pytest.mark.parametrize(("write", "read"), [(None, 3), (5, None), (0, 0)])
def test_every_field_is_where_it_was_put(stall: int, yields: bool, write: int | None, read: int | None) -> None:
    barriers = (7 if write is None else write) | (7 if read is None else read) << 3
    bits = stall | (not yields) << 4 | barriers << 5 | 0b101001 << 11 | 0b0110 << 17
    control = Control.decode(bits << 41 | 0x1FF_FFFF_FFFF)  # what lies below belongs to the operation
    assert control == Control(stall, yields, write, read, 0b101001, 0b0110)
    assert control.waits_for == (0, 3, 5)


def test_it_prints_as_the_field_writes_it() -> None:
    assert str(Control(4, True, None, 2, 0b000011, 0)) == "[B01----:R2:W-:Y:S04]"


@pytest.fixture(scope="module", params=KERNELS, ids=lambda each: f"{each[0]}-{each[1]}")
def code(request: pytest.FixtureRequest) -> tuple[SassInstruction, ...]:
    name, arch = request.param
    (launch,) = get(name).launch_plan(MISSION).launches
    assert launch.module is not None
    built = build(launch.module, arch)
    return parse(disassemble(built))[built.entry]


def _registers(operand: str, width: int = 1) -> set[int]:
    found = re.match(r"R(\d+)", operand)
    return set(range(int(found[1]), int(found[1]) + width)) if found else set()


def _width(opcode: str) -> int:
    if opcode.startswith("LDSM"):
        return int(opcode[-1]) if opcode[-1] in "24" else 1
    return 4 if ".128" in opcode else 2 if ".64" in opcode else 1


def _mentions(instruction: SassInstruction, registers: set[int]) -> bool:
    return bool({int(number) for number in re.findall(r"\bR(\d+)\b", instruction.operands)} & registers)


def _targets(code: Sequence[SassInstruction]) -> set[int]:
    """Addresses to which control may come from elsewhere."""
    return {each.target for each in code if each.target is not None}


def _straight(code: Sequence[SassInstruction], start: int, targets: set[int]) -> list[SassInstruction]:
    """The instructions after ``start`` until control may enter or leave."""
    found: list[SassInstruction] = []
    for each in code[start + 1 :]:
        if each.address in targets:
            break
        found.append(each)
        if each.base in ("BRA", "EXIT", "BSYNC", "RET", "CALL"):
            break
    return found


@pytest.mark.sample(2)
def test_every_instruction_has_its_fields(code: Sequence[SassInstruction]) -> None:
    assert all(each.control is not None for each in code)
    assert sum(each.source != "" for each in code) > 0.9 * len(code)


def test_the_consumer_of_a_variable_latency_waits_for_the_scoreboard_of_the_producer(
    code: Sequence[SassInstruction],
) -> None:
    """Or of a later one of its kind: a unit finishes in order, so one scoreboard may stand for several instructions."""
    checked, targets = 0, _targets(code)
    for place, producer in enumerate(code):
        written = _registers(producer.operands.removeprefix("PT, "), _width(producer.opcode))
        if producer.base not in VARIABLE or not written or producer.guarded:
            continue
        assert producer.control is not None
        barriers = {producer.control.write_barrier} - {None}
        for later in _straight(code, place, targets):
            assert later.control is not None
            if barriers & set(later.control.waits_for):
                checked += 1
                break
            assert not _mentions(later, written), f"{later.opcode} at {later.address:#x} does not wait"
            if not barriers and later.base == producer.base:
                barriers = {later.control.write_barrier} - {None}
    assert checked > 20


def test_what_is_waited_for_was_started(code: Sequence[SassInstruction]) -> None:
    started = {each.control.write_barrier for each in code if each.control}
    started |= {each.control.read_barrier for each in code if each.control}
    waited = {number for each in code if each.control for number in each.control.waits_for}
    assert waited
    assert waited <= started


def test_a_float_result_is_used_no_sooner_than_four_clocks_later(code: Sequence[SassInstruction]) -> None:
    checked, targets = 0, _targets(code)
    for place, producer in enumerate(code):
        if producer.base not in ("FFMA", "FADD", "FMUL") or producer.guarded:
            continue
        written = _registers(producer.operands)
        clocks = producer.control.stall if producer.control else 0
        for later in _straight(code, place, targets):
            if later.base in ("FFMA", "FADD", "FMUL") and _mentions(later, written):
                operands = later.operands.partition(",")[2]
                if written & {int(number) for number in re.findall(r"\bR(\d+)\b", operands)}:
                    assert clocks >= 4, f"{later.opcode} at {later.address:#x} reads {clocks} clocks after the write"
                    checked += 1
                break
            assert later.control is not None
            clocks += later.control.stall
    assert checked > 10
