"""The turn of a main loop that takes no branch it could skip, and the clocks of its units, against examples by hand."""

from __future__ import annotations

import pytest

from sdpalab.compile import build, disassemble
from sdpalab.compile.sass import SassInstruction, parse
from sdpalab.kernels.registry import get
from sdpalab.model.turn import TurnClocks, short_turn, turn_clocks
from sdpalab.problem import MISSION, Problem
from warpsan.gpus import Gpu, gpu_named

# 10 SMs at 1 GHz: 4096 FLOP a clock and SM, 1024 of a sub-core.
TOY = Gpu("toy", "sm_89", 10, 1000, 40.96, 81.92, 100, 1, 16, 64, None, (), "made up for this test")


def code(*opcodes: str, jumps: dict[int, int]) -> tuple[SassInstruction, ...]:
    """Opcodes one behind the other; ``jumps`` are the targets of branches, by place. Only BRA.U has no way past it."""
    return tuple(
        SassInstruction(16 * place, opcode, 16 * jumps[place] if place in jumps else None, guarded=opcode != "BRA.U")
        for place, opcode in enumerate(opcodes)
    )


def opcodes(turn: tuple[SassInstruction, ...]) -> list[str]:
    return [one.opcode for one in turn]


HMMA = "HMMA.16816.F32"


def test_a_turn_skips_what_it_can_but_no_product_and_no_copy() -> None:
    #        0      1      2        3     4       5      6       7      8      9      10
    loop = ("MOV", "BRA", "LDGSTS", HMMA, "BRA", "FMUL", "FMUL", "FFMA", "BRA", "MOV", "EXIT")
    turn = short_turn(code(*loop, jumps={1: 3, 4: 7, 8: 1}))
    assert opcodes(turn) == ["BRA", "LDGSTS", HMMA, "BRA", "FFMA", "BRA"]


def test_a_turn_is_of_the_innermost_loop_with_products() -> None:
    loop = ("MOV", HMMA, "FFMA", "BRA", HMMA, "BRA", "EXIT")
    assert opcodes(short_turn(code(*loop, jumps={3: 1, 5: 0}))) == [HMMA, "FFMA", "BRA"]


@pytest.mark.parametrize(
    ("loop", "jumps"),
    [
        (("MOV", "FFMA", "BRA", "EXIT"), {2: 0}),  # no product
        (("MOV", HMMA, "BRA", HMMA, "BRA", "BRA", "EXIT"), {2: 1, 4: 3, 5: 0}),  # two loops that work
        (("BRA", HMMA, "BRA.U", HMMA, "BRA", "EXIT"), {0: 3, 2: 4, 4: 0}),  # either product, never both
    ],
)
def test_without_one_turn_that_has_all_products_there_is_none(loop: tuple[str, ...], jumps: dict[int, int]) -> None:
    assert short_turn(code(*loop, jumps=jumps)) == ()
    assert turn_clocks(code(*loop, jumps=jumps), 64, TOY) is None


def test_clocks_by_hand() -> None:
    turn = code(HMMA, "MUFU.EX2", "FFMA", "FFMA", "FMNMX", "F2FP.F16.F32.PACK_AB", "BRA", "EXIT", jumps={6: 0})
    clocks = turn_clocks(turn, 64, TOY)
    # 128 x 128 scores are 4 * 128 * 128 * 64 FLOP: 1024 products, 256 a sub-core, each of 4096 FLOP.
    assert clocks == TurnClocks(
        instructions=7,
        tensor=pytest.approx(256 * 4096 / 1024),
        issue=256 * 7,
        units={"special": 256 * 8, "float": 256 * 2, "alu": 256 * 2, "integer": 0, "convert": 256 * 2},
    )
    assert clocks.share("issue") == pytest.approx(7 / 4)
    assert clocks.share("special") == pytest.approx(2)
    assert clocks.to_dict()["instructions"] == 7


LONG = Problem(4, 16, 4096, 64)


@pytest.mark.parametrize(
    ("name", "problem", "arch", "gpu", "issue", "special"),
    [
        ("flash", MISSION, "sm_89", "L4", 0.30, 0.26),
        ("fp8", MISSION, "sm_89", "L4", 0.53, 0.51),
        ("hopper", LONG, "sm_90a", "H200", 0.75, 0.80),
        ("hopper", LONG.with_(head_dim=128), "sm_90a", "H200", 0.37, 0.51),
        ("hopper_fp8", LONG.with_(head_dim=128), "sm_90a", "H200", 0.90, 1.04),
    ],
)
def test_what_a_turn_of_the_kernels_takes(
    name: str, problem: Problem, arch: str, gpu: str, issue: float, special: float
) -> None:
    on = gpu_named(gpu)
    module = get(name).launch_plan(problem, sms=on.sms).launches[-1].module
    assert module is not None
    built = build(module, arch)
    clocks = turn_clocks(parse(disassemble(built))[built.entry], problem.head_dim, on)
    assert clocks is not None
    assert issue - 0.04 < clocks.share("issue") <= issue
    assert special - 0.04 < clocks.share("special") <= special
