"""Loops of a control-flow graph (Aho, Lam, Sethi, Ullman, "Compilers", 9.6: natural loops)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["natural_loops", "reached"]


def natural_loops(successors: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The natural loop of each edge back to a node through which all ways to the edge lead.

    A branch to a lower number is not enough: code that was moved out of the way comes back with one. A loop that
    nothing leads to is one too.

    Parameters
    ----------
    successors : sequence of sequence of int
        Where each node may go; node 0 is the entry.

    Returns
    -------
    list of tuple of int
        The header first, then the other nodes, of which the last in order of numbers need not be the one that goes
        back. Loops with one header are listed apart.
    """
    predecessors: list[list[int]] = [[] for _ in successors]
    for node, following in enumerate(successors):
        for successor in following:
            predecessors[successor].append(node)
    loops = []
    for node, following in enumerate(successors):
        for header in following:
            if header <= node and node not in reached(successors, 0, without=header):
                body = reached(predecessors, node, without=header) - {header}
                loops.append((header, *sorted(body)))
    return loops


def reached(edges: Sequence[Sequence[int]], start: int, *, without: int | None = None) -> set[int]:
    """Nodes that can be reached from ``start``, itself among them, by ways that avoid one node."""
    seen: set[int] = set()
    todo = [start] if start != without else []
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(one for one in edges[node] if one != without)
    return seen
