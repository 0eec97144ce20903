"""Natural loops."""

from __future__ import annotations

from random import Random

from sdpalab.compile.loops import natural_loops, reached


def test_straight_code_and_forward_branches_have_none() -> None:
    assert natural_loops([[1], [2, 3], [3], []]) == []


def test_nested_loops_each_with_what_can_come_back() -> None:
    #        0 -> 1 -> 2 -> 3 -> 4 -> 5, back 3 -> 2 and 4 -> 1
    assert natural_loops([[1], [2], [3], [4, 2], [5, 1], []]) == [(2, 3), (1, 2, 3, 4)]


def test_a_way_around_the_target_makes_it_no_header() -> None:
    # 3 goes back to 1, but 0 goes to 3 as well.
    assert natural_loops([[1, 3], [2], [], [1]]) == []


def test_a_loop_onto_itself_and_one_that_nothing_leads_to() -> None:
    assert natural_loops([[0, 1], [], [3], [2]]) == [(0,), (2, 3)]


def test_they_are_those_of_the_definition() -> None:
    generator = Random(3)
    for _ in range(300):
        size = generator.randint(1, 9)
        graph = [
            generator.sample(range(size), k=min(size, generator.choice((0, 1, 1, 1, 2)))) for _ in range(size - 1)
        ] + [[]]
        backwards = [[node for node in range(size) if one in graph[node]] for one in range(size)]
        expected = [
            (header, *sorted(reached(backwards, node, without=header) - {header}))
            for node in range(size)
            for header in graph[node]
            if header <= node and node not in reached(graph, 0, without=header)
        ]
        assert natural_loops(graph) == expected, graph
