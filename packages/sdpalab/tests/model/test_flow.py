"""Flows through a control-flow graph and the paths they give, on graphs whose answer is known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sdpalab.compile.sass import SassInstruction
from sdpalab.errors import UserError
from sdpalab.model.flow import Anchor, Blocks, edge_flows, least_squares, mean_path


def code(*lines: str) -> list[SassInstruction]:
    """Instructions ``opcode``, ``opcode>TARGET`` (a jump) or ``opcode?TARGET`` (a branch), targets by place."""
    found = []
    for place, line in enumerate(lines):
        guarded = "?" in line
        opcode, _, target = line.replace("?", ">").partition(">")
        found.append(SassInstruction(16 * place, opcode, 16 * int(target) if target else None, guarded=guarded))
    return found


def runs(lines: list[SassInstruction], anchors: list[Anchor]) -> Counter[int]:
    """How often the path of a mean warp runs each place."""
    blocks = Blocks.of(lines)
    path = mean_path(blocks, edge_flows(blocks, anchors, {}))
    return Counter(place for block in path for place in range(*blocks.spans[block]))


def test_a_path_goes_through_a_block_that_some_warps_pass() -> None:
    #             0      1         2       3        4       5       6
    parting = code("MOV", "BRA?4", "STAS", "EXIT", "STSM", "STG", "EXIT")
    blocks = Blocks.of(parting)
    flows = edge_flows(blocks, [Anchor({2: 1.0}, 0.5), Anchor({4: 1.0}, 0.5)], {})
    passed = {
        place: [parting[blocks.spans[block][0]].opcode for block in mean_path(blocks, flows, through=[place])]
        for place in (blocks.block_of()[2], blocks.block_of()[4])
    }
    assert list(passed.values()) == [["MOV", "STAS"], ["MOV", "STSM"]]
    never = edge_flows(blocks, [Anchor({2: 1.0}, 0.0), Anchor({4: 1.0}, 1.0)], {})
    (stas,) = (block for block in passed if passed[block][1] == "STAS")
    assert mean_path(blocks, never, through=[stas]) == mean_path(blocks, never)


LOOP = code("MOV", "HMMA", "BRA?1", "EXIT", "BRA>4", "NOP")


def test_blocks_end_where_control_parts_and_padding_is_none() -> None:
    assert Blocks.of(LOOP) == Blocks(((0, 1), (1, 3), (3, 4)), ((0, 1), (1, 1), (1, 2), (2, -1)))


@pytest.mark.parametrize("turns", [1, 2, 7, 300])
def test_a_loop_turns_as_often_as_its_anchor_says(turns: int) -> None:
    assert runs(LOOP, [Anchor({1: 1.0}, turns)]) == {0: 1, 1: turns, 2: turns, 3: 1}


def test_a_long_loop_is_no_less_exact() -> None:
    assert runs(LOOP, [Anchor({1: 1.0}, 20_000)])[1] == pytest.approx(20_000, rel=1e-3)


def test_turns_are_rounded() -> None:
    assert [runs(LOOP, [Anchor({1: 1.0}, turns)])[1] for turns in (2.3, 2.6, 8.8)] == [2, 3, 9]


def test_an_instruction_that_does_twice_as_much_counts_twice() -> None:
    assert runs(LOOP, [Anchor({1: 4096.0}, 8 * 4096)])[1] == 8


NESTED = code("MOV", "LDG", "HMMA", "BRA?2", "STG", "BRA?1", "EXIT")


def test_loops_in_loops() -> None:
    assert runs(NESTED, [Anchor({2: 1.0}, 12), Anchor({1: 1.0}, 3)]) == {0: 1, 1: 3, 2: 12, 3: 12, 4: 3, 5: 3, 6: 1}


def test_a_mean_of_1_2_entries_keeps_the_turns_of_all_of_them() -> None:
    found = runs(NESTED, [Anchor({2: 1.0}, 3.0), Anchor({1: 1.0}, 1.2)])
    assert (found[1], found[2]) == (1, 3)


def test_a_branch_inside_a_loop_goes_each_way_as_often_as_it_should() -> None:
    branch = code("MOV", "BRA?4", "MUFU", "MUFU", "HMMA", "BRA?1", "EXIT")
    found = runs(branch, [Anchor({4: 1.0}, 40), Anchor({2: 1.0, 3: 1.0}, 20)])
    assert (found[2], found[4]) == (10, 40)


def test_a_loop_that_turns_is_entered_though_a_circle_would_satisfy_the_counts() -> None:
    # The second loop can be passed by; its turns and those of the straight copy are counted together.
    around = code("HMMA", "BRA?4", "HMMA", "BRA?2", "EXIT")
    found = runs(around, [Anchor({0: 1.0, 2: 1.0}, 9)])
    assert (found[0], found[2]) == (1, 8)


def test_a_hint_decides_only_what_anchors_leave_open() -> None:
    lines = code("MOV", "BRA?3", "MUFU", "HMMA", "BRA?1", "EXIT")
    blocks = Blocks.of(lines)
    flows = edge_flows(blocks, [Anchor({3: 1.0}, 10)], {2: 4.0, 3: 99.0})
    of_block = [sum(flows[edge] for edge in edges) for edges in blocks.leaving()]
    assert of_block[2] == pytest.approx(4, rel=0.05)
    assert of_block[3] == pytest.approx(10, rel=0.05)


def test_a_path_that_does_not_end_is_refused() -> None:
    endless = code("MOV", "HMMA", "BRA>1")
    with pytest.raises(UserError, match="fit no path"):
        mean_path(Blocks.of(endless), np.ones(2), limit=100)


def test_least_squares_meets_the_conditions_of_an_optimum() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        matrix, target = random.normal(size=(12, 8)), random.normal(size=12)
        x = least_squares(matrix, target)
        gradient = matrix.T @ (target - matrix @ x)
        assert (x >= 0).all()
        assert gradient[x > 0] == pytest.approx(0, abs=1e-4)
        assert (gradient[x == 0] < 1e-3).all()
