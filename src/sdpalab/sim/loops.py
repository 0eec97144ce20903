"""The loops of a program: natural loops of its control flow (Aho, Lam, Sethi and Ullman, "Compilers", chapter 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sdpalab.sim.ir import Instruction
from sdpalab.sim.program import BasicBlock, Program, instructions_of

__all__ = ["Loop", "short_loops"]


@dataclass(frozen=True)
class Loop:
    """Blocks of which each leads to the others by way of one of them, the header.

    Attributes
    ----------
    program : Program
    header : int
    blocks : tuple of int
        In the order of the code.
    whole : bool
        Whether it has all ways back to its header; else it has one of several.
    """

    program: Program
    header: int
    blocks: tuple[int, ...]
    whole: bool

    @cached_property
    def code(self) -> dict[int, list[Instruction]]:
        """The instructions of each block."""
        return {number: _code_of(self.program.blocks[number]) for number in self.blocks}

    @cached_property
    def successors(self) -> dict[int, list[int]]:
        """The blocks of the loop that may follow each; those outside are -1."""
        inside = set(self.blocks)
        return {
            number: [each if each in inside else -1 for each in self.program.blocks[number].successors]
            for number in self.blocks
        }

    @property
    def exits(self) -> Iterator[int]:
        """The blocks behind which some lanes may leave the loop."""
        for number in self.blocks:
            end = self.program.blocks[number].end
            leaves = end is not None and end.opcode in ("exit", "ret", "trap", "brkpt")
            if leaves or -1 in self.successors[number]:
                yield number

    @cached_property
    def deciders(self) -> dict[int, list[int]]:
        """For each block those that decide whether it is executed: it is on each way behind one of their branches, and
        not on each way behind them ("control dependence", Ferrante, Ottenstein and Warren 1987)."""
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
        """For each block those on each way from it out of the loop, or back to its header; itself, too."""
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


def short_loops(program: Program, most: int) -> list[Loop]:
    """All loops of at most so many blocks: for each header the loop of all ways back to it; and where there are
    several, that of each, as a loop that goes on to other work by one of them and tries again by another."""
    before: list[list[int]] = [[] for _ in program.blocks]
    for number, block in enumerate(program.blocks):
        for following in block.successors:
            before[following].append(number)
    loops: list[Loop] = []
    for header, latches in _ways_back(program.blocks, program.start).items():
        bodies = [_body(before, header, [latch], most) for latch in latches]
        if len(latches) > 1:
            loops += [Loop(program, header, tuple(sorted(body)), False) for body in bodies if body]
        body = _body(before, header, latches, most)
        loops += [Loop(program, header, tuple(sorted(body)), True)] if body else []
    return loops


def _ways_back(blocks: Sequence[BasicBlock], start: int) -> dict[int, list[int]]:
    """For each header the blocks from which a way leads back to it: found by a search in depth."""
    back: dict[int, list[int]] = {}
    state = {start: 1}
    stack = [(start, iter(blocks[start].successors))]
    while stack:
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
            stack.append((after, iter(blocks[after].successors)))
    return back


def _body(before: Sequence[Sequence[int]], header: int, latches: Sequence[int], most: int) -> set[int]:
    """The header and all blocks on ways from it to these; empty if there are too many."""
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
