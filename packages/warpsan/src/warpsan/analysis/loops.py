"""The loops of a program: natural loops of its control flow (Aho, Lam, Sethi and Ullman, "Compilers", chapter 9).

Each function is analysed separately, and control continues after a call; callees can be added to a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from warpsan.analysis.program import BasicBlock, Program, instructions_of
from warpsan.ptx.ir import Entry, Instruction
from warpsan.ptx.linking import callee, function_label

__all__ = ["Loop", "short_loops", "with_calls"]


@dataclass(frozen=True)
class Loop:
    """Blocks that reach each other through one of them, the header.

    Attributes
    ----------
    program : Program
    header : int
    blocks : tuple of int
        In code order.
    whole : bool
        Whether it contains all back edges to its header, or only one of several.
    called : mapping of str to frozenset of int
        Blocks of functions that the loop calls (:func:`with_calls`).
    """

    program: Program
    header: int
    blocks: tuple[int, ...]
    whole: bool
    called: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def code(self) -> dict[int, list[Instruction]]:
        """Instructions of each block."""
        return {number: _code_of(self.program.blocks[number]) for number in self.blocks}

    @cached_property
    def successors(self) -> dict[int, list[int]]:
        """Successors of each block within the loop, -1 for outside. Callees return into the loop."""
        inside = set(self.blocks)
        following = {number: self.program.blocks[number].successors for number in self.blocks}
        return {
            number: [each if each in inside else -1 for each in ways if each in inside or number not in self._returning]
            for number, ways in following.items()
        }

    @cached_property
    def _returning(self) -> frozenset[int]:
        """Blocks that end with a return into the loop."""
        inner = frozenset[int]().union(*self.called.values())
        return frozenset(number for number in inner if _ends_with(self.program.blocks[number], "ret"))

    @property
    def exits(self) -> Iterator[int]:
        """Blocks after which some lanes may leave the loop."""
        for number in self.blocks:
            leaves = _ends_with(self.program.blocks[number], "exit", "ret", "trap", "brkpt")
            if (leaves and number not in self._returning) or -1 in self.successors[number]:
                yield number

    @cached_property
    def deciders(self) -> dict[int, list[int]]:
        """For each block, the blocks whose branches decide whether it is executed: it post-dominates one of their
        successors, but not the branch ("control dependence", Ferrante, Ottenstein and Warren 1987).
        """
        after = self._post_dominators()
        return {
            number: [
                other
                for other in self.blocks
                if any(following != -1 and number in after[following] for following in self.successors[other])
                and (number == other or number not in after[other])
                and len(set(self.successors[other])) > 1
            ]
            for number in self.blocks
        }

    def _post_dominators(self) -> dict[int, set[int]]:
        """For each block, itself and all blocks on every path from it to an exit or the header."""
        everything = set(self.blocks)
        after = {number: set(everything) for number in self.blocks}
        changed = True
        while changed:
            changed = False
            for number in reversed(self.blocks):
                ways = [
                    after[each] if each not in (-1, self.header) else set[int]() for each in self.successors[number]
                ]
                behind = {number} | (set.intersection(*ways) if ways else set())
                if behind != after[number]:
                    after[number], changed = behind, True
        return after


def short_loops(entry: Entry, program: Program, most: int) -> list[Loop]:
    """All loops of at most ``most`` blocks: one per header with all its back edges; for several back edges, also one
    loop each, which may continue with other work on one edge and retry on another.
    """
    ways = _ways(program)
    before: list[list[int]] = [[] for _ in program.blocks]
    for number, following in enumerate(ways):
        for each in following:
            before[each].append(number)
    loops: list[Loop] = []
    starts = [program.start, *(program.block_of_label[function_label(name)] for name in entry.functions)]
    for header, latches in _ways_back(ways, starts).items():
        bodies = [_body(before, header, [latch], most) for latch in latches]
        if len(latches) > 1:
            loops += [Loop(program, header, tuple(sorted(body)), False) for body in bodies if body]
        body = _body(before, header, latches, most)
        loops += [Loop(program, header, tuple(sorted(body)), True)] if body else []
    return loops


def with_calls(entry: Entry, loop: Loop, most: int) -> Loop | None:
    """A loop with all functions it calls; None if it has more blocks than ``most``, an undefined or recursive callee,
    or a call through a register.
    """
    program, ways = loop.program, _ways(loop.program)
    called: dict[str, frozenset[int]] = {}
    left = list(loop.blocks)
    while left:
        block = program.blocks[left.pop()]
        if block.end is None or block.end.opcode != "call":
            continue
        name = callee(block.end)
        if name not in entry.functions or name in entry.circles:
            return None
        if name not in called:
            called[name] = frozenset(_reached(ways, program.block_of_label[function_label(name)]))
            left += called[name]
    blocks = {*loop.blocks}.union(*called.values())
    return replace(loop, blocks=tuple(sorted(blocks)), called=called) if len(blocks) <= most else None


def _ends_with(block: BasicBlock, *opcodes: str) -> bool:
    return block.end is not None and block.end.opcode in opcodes


def _ways(program: Program) -> list[list[int]]:
    """Successors of each block within its function: a call continues after itself, a return has none."""
    ways = []
    for number, block in enumerate(program.blocks):
        stays = block.end is not None and block.end.guard is not None
        if _ends_with(block, "call"):
            ways.append([number + 1])
        elif _ends_with(block, "ret"):
            ways.append([number + 1] if stays else [])
        else:
            ways.append(block.successors)
    return ways


def _reached(ways: Sequence[Sequence[int]], start: int) -> set[int]:
    """All blocks reachable from a block, including itself."""
    reached, left = set[int](), [start]
    while left:
        number = left.pop()
        if number not in reached:
            reached.add(number)
            left += ways[number]
    return reached


def _ways_back(ways: Sequence[Sequence[int]], starts: Sequence[int]) -> dict[int, list[int]]:
    """For each header, the blocks with a back edge to it, by depth-first search."""
    back: dict[int, list[int]] = {}
    state: dict[int, int] = {}
    waiting = [*starts]
    stack: list[tuple[int, Iterator[int]]] = []
    while waiting or stack:
        if not stack:
            start = waiting.pop()
            if start not in state:
                state[start] = 1
                stack.append((start, iter(ways[start])))
            continue
        number, following = stack[-1]
        after = next(following, None)
        if after is None:
            state[number] = 2
            stack.pop()
        elif state.get(after) == 1:
            if number not in back.setdefault(after, []):
                back[after].append(number)
        elif after not in state:
            state[after] = 1
            stack.append((after, iter(ways[after])))
    return back


def _body(before: Sequence[Sequence[int]], header: int, latches: Sequence[int], most: int) -> set[int]:
    """The header and all blocks on paths from it to these; empty above the maximum."""
    body = {header}
    left = [each for each in latches if each != header]
    while left:
        number = left.pop()
        if number in body:
            continue
        body.add(number)
        if len(body) > most:
            return set()
        left += before[number]
    return body


def _code_of(block: BasicBlock) -> list[Instruction]:
    code = [each for item in block.items for each in instructions_of(item)]
    return code if block.end is None else [*code, block.end]
