"""Number and order of a warp's executions of the basic blocks of machine code.

The simulator counts PTX, while time is spent on SASS with other blocks. Some instructions are equal in both: matrix
products, exponentials, copies, barriers. Their counts (anchors), with the rule that a block is left as often as it is
entered, determine the flow on each edge of the control-flow graph, by least squares in non-negative flows. The flows
give one path, that of a mean warp: the number of iterations of a loop and the directions of a branch inside a loop
match the flow, evenly spread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpalab.compile.loops import natural_loops, reached
from sdpalab.compile.sass import SassInstruction, successors
from sdpalab.errors import UserError

__all__ = ["Anchor", "Blocks", "edge_flows", "least_squares", "mean_path"]

CONSERVED = 10.0
"""Weight of flow conservation in a block; anchors have weights of their own."""
HINT = 0.02
"""Weight of a block's hint, which decides only between flows that fit all anchors."""
TURNS = 0.5
"""Executions of a loop from which on it must have been entered."""
RIDGE = 1e-16
"""Added to the squares, relative to the largest, so that flows without influence are determined: nearly 0."""
_EXIT = -1
_NONE = 1e-6
_FEW = 0.01


@dataclass(frozen=True)
class Anchor:
    """Constraint: the sum of ``amounts`` times the executions of their blocks equals ``total``.

    Attributes
    ----------
    amounts : mapping of int to float
        Amounts by position of the instruction in the code.
    total : float
        Count of one warp.
    weight : float
    """

    amounts: Mapping[int, float]
    total: float
    weight: float = 1.0


@dataclass(frozen=True)
class Blocks:
    """Reachable basic blocks of a function in code order, the entry first.

    Attributes
    ----------
    spans : tuple of (int, int)
        Position of the first instruction of each block, and the one behind its last.
    edges : tuple of (int, int)
        Source and target block; target -1 if the warp ends.
    """

    spans: tuple[tuple[int, int], ...]
    edges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, code: Sequence[SassInstruction]) -> Blocks:
        """The reachable blocks of a function's machine code."""
        follow = successors(code)
        live = sorted(reached(follow, 0))
        leaders = {0} | {to for place in live for to in follow[place] if to != place + 1 or len(follow[place]) > 1}
        leaders |= {place + 1 for place in live if follow[place] != [place + 1]}
        leaders |= {place + 1 for place in live if code[place].base == "EXIT"}
        starts = [place for place in live if place in leaders]
        ends = [*starts[1:], live[-1] + 1]
        number = {start: block for block, start in enumerate(starts)}
        last = [max(place for place in live if place < end) for end in ends]
        edges = [(block, number[to]) for block, place in enumerate(last) for to in dict.fromkeys(follow[place])]
        edges += [(block, _EXIT) for block, place in enumerate(last) if code[place].base == "EXIT" or not follow[place]]
        spans = tuple((start, place + 1) for start, place in zip(starts, last, strict=True))
        return cls(spans, tuple(edges))

    def block_of(self) -> dict[int, int]:
        """Block number by position."""
        return {place: block for block, (start, end) in enumerate(self.spans) for place in range(start, end)}

    def leaving(self) -> list[tuple[int, ...]]:
        """Numbers in ``edges`` of each block's outgoing edges."""
        edges: list[list[int]] = [[] for _ in self.spans]
        for number, (start, _) in enumerate(self.edges):
            edges[start].append(number)
        return [tuple(each) for each in edges]

    def loops(self) -> list[frozenset[int]]:
        """The natural loops, with those of one header joined, smallest first."""
        follow: list[list[int]] = [[] for _ in self.spans]
        for start, end in self.edges:
            if end != _EXIT:
                follow[start].append(end)
        joined: dict[int, set[int]] = {}
        for header, *body in natural_loops(follow):
            joined.setdefault(header, {header}).update(body)
        return sorted(map(frozenset, joined.values()), key=len)


def edge_flows(blocks: Blocks, anchors: Iterable[Anchor], hints: Mapping[int, float]) -> NDArray[np.float64]:
    """A warp's executions of each edge: the flow that fits anchors and hints best.

    Parameters
    ----------
    blocks : Blocks
    anchors : iterable of Anchor
    hints : mapping of int to float
        Probable executions, by block.

    Returns
    -------
    ndarray of float64 [edges]
    """
    inside = blocks.block_of()
    runs = np.zeros((len(blocks.spans), len(blocks.edges)))  # of a block: the sum of its outgoing flows
    entering = np.zeros_like(runs)
    for number, (start, end) in enumerate(blocks.edges):
        runs[start, number] += 1
        if end != _EXIT:
            entering[end, number] += 1
    source = np.zeros(len(blocks.spans))
    source[0] = 1
    rows, values = [CONSERVED * (runs - entering)], [CONSERVED * source]
    for anchor in anchors:
        row = np.zeros((1, len(blocks.edges)))
        for place, amount in anchor.amounts.items():
            row += amount * runs[inside[place]]
        scale = anchor.weight / max(anchor.total, *anchor.amounts.values())
        rows.append(scale * row)
        values.append(np.array([scale * anchor.total]))
    for block, often in hints.items():
        scale = HINT / max(often, 1.0)
        rows.append(scale * runs[block : block + 1])
        values.append(np.array([scale * often]))
    return _entered(blocks, rows, values)


def _entered(blocks: Blocks, rows: list[NDArray[np.float64]], values: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The flows, with the constraint that every executed loop is entered: isolated cycles also satisfy the
    equations."""
    loops, edges = blocks.loops(), list(enumerate(blocks.edges))
    entries = [[k for k, (start, end) in edges if start not in loop and end in loop] for loop in loops]
    within = [[k for k, (start, end) in edges if start in loop and end in loop] for loop in loops]
    while True:
        flows = least_squares(np.vstack(rows), np.concatenate(values))
        circles = [
            number
            for number, (entry, inside) in enumerate(zip(entries, within, strict=True))
            if entry and inside and flows[inside].max() > TURNS > 100 * flows[entry].sum()
        ]
        if not circles:
            return flows
        row = np.zeros((1, len(blocks.edges)))
        row[0, entries[circles[0]]] = CONSERVED
        rows, values = [*rows, row], [*values, np.array([CONSERVED])]
        entries[circles[0]] = []


def least_squares(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 for which ``matrix @ x`` is nearest to ``target``.

    Source: Lawson, Hanson, "Solving Least Squares Problems" (1974), chapter 23.

    Parameters
    ----------
    matrix : ndarray of float64 [rows, columns]
    target : ndarray of float64 [rows]
    """
    gram, projected = matrix.T @ matrix, matrix.T @ target
    gram[np.diag_indices_from(gram)] += RIDGE * float(np.diag(gram).max(initial=1.0))
    least = 1e-12 * float(target @ target)  # smallest significant gain
    x, best = np.zeros(matrix.shape[1]), 0.0
    free, useless = np.zeros((2, len(x)), dtype=np.bool_)
    for _ in range(3 * len(x)):
        gradient = np.where(free | useless, -np.inf, projected - gram @ x)
        added = int(gradient.argmax())
        if gradient[added] <= 0:
            break
        free[added] = True
        x = _solved(gram, projected, x, free)
        value = float(x @ gram @ x - 2 * projected @ x)
        if best - value < least:
            useless[added] = True
        else:
            useless[:] = False
        best = min(best, value)
    return x


def _solved(
    gram: NDArray[np.float64], projected: NDArray[np.float64], x: NDArray[np.float64], free: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The best x that is 0 outside of ``free``; components that would be negative become 0 and leave ``free``."""
    for _ in range(len(x)):
        trial = np.zeros_like(x)
        trial[free] = np.linalg.solve(gram[np.ix_(free, free)], projected[free])
        negative = free & (trial <= 0)
        if not negative.any():
            return trial
        steps = np.where(negative, x / np.maximum(x - trial, 1e-300), np.inf)
        x = x + float(steps.min()) * (trial - x)
        free &= steps > steps.min()
        x[~free] = 0
    return x


def mean_path(
    blocks: Blocks, flows: NDArray[np.float64], *, through: Collection[int] = (), limit: int = 1_000_000
) -> list[int]:
    """Blocks in execution order of a mean warp.

    Parameters
    ----------
    blocks : Blocks
    flows : ndarray of float64 [edges]
        Result of :func:`edge_flows`.
    through : collection of int
        Blocks. Outside loops, a branch with flow in both directions goes towards the first of these blocks not yet
        passed, if one direction alone leads there: the flows are a mean over warps, and this selects one kind of them.
        Directions with less than a hundredth of the flow are ignored, since flows are that inexact.
    limit : int
        Largest number of blocks of a path.

    Raises
    ------
    UserError
        If the flows have no next edge, or the path does not end within ``limit``.
    """
    leaving, loops = blocks.leaving(), blocks.loops()
    rounded = [_rounded(blocks, flows, loop) for loop in loops]
    shares: list[list[tuple[int, float, bool]]] = []
    for block, edges in enumerate(leaving):
        around = [(loop, factor) for loop, factor in zip(loops, rounded, strict=True) if block in loop]
        total = float(sum(flows[edge] for edge in edges))
        taken = [edge for edge in edges if flows[edge] > max(_NONE, 1e-6 * total)] or list(edges[-1:])
        total = float(sum(flows[edge] for edge in taken)) or 1.0
        shares.append([])
        for edge in taken:
            left = [factor for loop, factor in around if blocks.edges[edge][1] not in loop]
            shares[-1].append((edge, float(flows[edge]) / total * (left[0] if left else 1.0), bool(left)))
    towards = [_leading_to(blocks, each) for each in through]
    outside = [not any(block in loop for loop in loops) for block in range(len(leaving))]
    visits = [0] * len(leaving)
    took = [0] * len(blocks.edges)
    path = [0]
    while len(path) < limit:
        at = path[-1]
        if not shares[at]:
            raise UserError("the machine code has a branch whose target is not in it")
        visits[at] += 1
        ways = shares[at]
        for target, leading in zip(through, towards, strict=True):
            if outside[at] and not visits[target]:
                ways = [way for way in ways if way[1] >= _FEW and blocks.edges[way[0]][1] in leading] or ways
        edge = _next(blocks, ways, visits[at], took)
        took[edge] += 1
        following = blocks.edges[edge][1]
        if following == _EXIT:
            return path
        path.append(following)
    raise UserError(f"the counts fit no path through the machine code that ends within {limit:,} blocks")


def _leading_to(blocks: Blocks, target: int) -> frozenset[int]:
    """Blocks with a path to ``target``, itself included."""
    before: dict[int, list[int]] = {}
    for start, end in blocks.edges:
        before.setdefault(end, []).append(start)
    leading = [target]
    for block in leading:  # grows during the loop
        leading += [each for each in dict.fromkeys(before.get(block, ())) if each not in leading]
    return frozenset(leading)


def _rounded(blocks: Blocks, flows: NDArray[np.float64], loop: frozenset[int]) -> float:
    """Entries of a loop as a whole number, divided by its flow: the iterations cover all entries together."""
    entries = sum(float(flows[k]) for k, (start, end) in enumerate(blocks.edges) if start not in loop and end in loop)
    return max(1, round(entries)) / entries if entries > _NONE else 1.0


def _next(blocks: Blocks, shares: Sequence[tuple[int, float, bool]], visit: int, took: Sequence[int]) -> int:
    """Edge of a block's n-th visit: an exit of a loop when its share of the visits is due, otherwise the edge furthest
    behind its share."""
    due = [edge for edge, share, out in shares if out and int(share * (visit + 0.5) + 1e-6) > took[edge]]
    if due:
        return due[0]
    staying = [each for each in shares if not each[2]] or shares
    # at equal shares the warp continues: a mean path should not end early
    ranked = (
        (round(share * visit - took[edge], 3), blocks.edges[edge][1] != _EXIT, edge) for edge, share, _ in staying
    )
    return max(ranked)[2]
