"""Branch regions: the code between a branch and its reconvergence point, and whether it only computes.

The reconvergence point is the branch's immediate post-dominator (Aho, Lam, Sethi and Ullman, "Compilers", chapter 9).
"""

from __future__ import annotations

from collections.abc import Iterator

from warpsan.analysis.collectives import is_collective
from warpsan.analysis.definedness import Region, writes
from warpsan.analysis.program import Program, instructions_of
from warpsan.ptx.ir import Entry
from warpsan.ptx.opcodes import opcode_of

__all__ = ["pure_regions"]


def pure_regions(program: Program, entry: Entry) -> dict[int, Region]:
    """Regions of guarded branches by pc, for regions that only compute and have no loop."""
    ends = [
        (number, block.end)
        for number, block in enumerate(program.blocks)
        if block.end is not None and block.end.opcode == "bra" and block.end.guard is not None
    ]
    after = _post_dominators(program) if ends else []
    regions: dict[int, Region] = {}
    for number, end in ends:
        meeting = after[number]
        inside = _inside(program, number, meeting) if meeting is not None else None
        if inside is None or meeting is None or not _has_look(program, meeting):
            continue
        code = [
            instruction
            for each in inside
            for item in (*program.blocks[each].items, *filter(None, [program.blocks[each].end]))
            for instruction in instructions_of(item)
        ]
        if any(opcode_of(each).effects or is_collective(each) for each in code):
            continue
        regions[end.pc] = Region(meeting, frozenset(name for each in code for name in writes(entry, each)))
    return regions


def _has_look(program: Program, number: int) -> bool:
    """Whether a block executes any instruction."""
    block = program.blocks[number]
    return bool(block.items) or block.end is not None


def _inside(program: Program, number: int, meeting: int) -> list[int] | None:
    """Blocks between a branch and its reconvergence point; None for a loop or a region that contains the branch."""
    order: list[int] = []
    state: dict[int, int] = {meeting: 2}
    stack: list[tuple[int, Iterator[int]]] = []
    for start in program.blocks[number].successors:
        if start in state:
            continue
        stack.append((start, iter(program.blocks[start].successors)))
        state[start] = 1
        order.append(start)
        while stack:
            block, successors = stack[-1]
            following = next(successors, None)
            if following is None:
                state[block] = 2
                stack.pop()
            elif following == number or state.get(following) == 1:
                return None
            elif following not in state:
                state[following] = 1
                order.append(following)
                stack.append((following, iter(program.blocks[following].successors)))
    return order


def _post_dominators(program: Program) -> list[int | None]:
    """Immediate post-dominator of every block; None without a common one."""
    count = len(program.blocks)
    before: list[list[int]] = [[] for _ in range(count + 1)]
    for number, block in enumerate(program.blocks):
        for successor in block.successors or [count]:
            before[successor].append(number)
    order: list[int] = []
    seen = {count}
    stack = [(count, iter(before[count]))]
    while stack:
        block_number, predecessors = stack[-1]
        following = next(predecessors, None)
        if following is None:
            order.append(block_number)
            stack.pop()
        elif following not in seen:
            seen.add(following)
            stack.append((following, iter(before[following])))
    rank = {number: place for place, number in enumerate(order)}
    immediate: dict[int, int] = {count: count}
    changed = True
    while changed:
        changed = False
        for number in reversed(order[:-1]):
            meeting: int | None = None
            for successor in program.blocks[number].successors or [count]:
                if successor in immediate:
                    meeting = successor if meeting is None else _meet(immediate, rank, successor, meeting)
            if meeting is not None and immediate.get(number) != meeting:
                immediate[number] = meeting
                changed = True
    return [immediate[number] if immediate.get(number, count) != count else None for number in range(count)]


def _meet(immediate: dict[int, int], rank: dict[int, int], one: int, other: int) -> int:
    while one != other:
        while rank[one] < rank[other]:
            one = immediate[one]
        while rank[other] < rank[one]:
            other = immediate[other]
    return one
