"""Loops of a control-flow graph (Aho, Lam, Sethi, Ullman, "Compilers", 9.6: natural loops)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["natural_loops", "reached"]


def natural_loops(successors: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The natural loop of each back edge, i.e. each edge to a node that dominates its source.

    A branch to a lower number is not sufficient: code that the compiler moved away returns with one. Unreachable loops
    are included.

    Parameters
    ----------
    successors : sequence of sequence of int
        Successors of each node; node 0 is the entry.

    Returns
    -------
    list of tuple of int
        The header first, then the other nodes in order of numbers; the last one is not necessarily the source of the
        back edge. Loops that share a header are separate.
    """
    chains = _chains(successors)
    chain_of = {node: number for number, chain in enumerate(chains) for node in chain}
    edges = [[chain_of[following] for following in successors[chain[-1]]] for chain in chains]
    back = _predecessors(edges)
    entry = chain_of.get(0, 0)
    loops = []
    for number in sorted(range(len(chains)), key=lambda number: chains[number][-1]):
        for header in edges[number]:
            if chains[header][0] > chains[number][-1] or number in reached(edges, entry, without=header):
                continue
            body = reached(back, number, without=header)
            first, *others = chains[header]
            inside = [node for each in body for node in chains[each]]
            if number == header or not body.isdisjoint(edges[header]):  # otherwise the edge leaves the loop
                inside += others
            loops.append((first, *sorted(inside)))
    return loops


def _chains(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """The nodes in chains with one entry, the first node, and one exit, the last: basic blocks."""
    predecessors = _predecessors(successors)
    heads = {0} if successors else set[int]()
    for node, before in enumerate(predecessors):
        if len(before) != 1 or len(successors[before[0]]) != 1 or before[0] >= node:
            heads.add(node)
    chains = []
    for head in sorted(heads):
        chain = [head]
        while len(following := successors[chain[-1]]) == 1 and following[0] not in heads:
            chain.append(following[0])
        chains.append(chain)
    return chains


def _predecessors(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    predecessors: list[list[int]] = [[] for _ in successors]
    for node, following in enumerate(successors):
        for successor in following:
            predecessors[successor].append(node)
    return predecessors


def reached(edges: Sequence[Sequence[int]], start: int, *, without: int | None = None) -> set[int]:
    """Nodes reachable from ``start``, itself included, on paths that avoid the node ``without``."""
    seen: set[int] = set()
    todo = [start] if start != without else []
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(one for one in edges[node] if one != without)
    return seen
