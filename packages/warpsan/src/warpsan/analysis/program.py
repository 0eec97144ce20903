"""An entry as basic blocks, with grouped mma instructions and register rows.

Virtual registers with disjoint lifetimes share a row: the registers alive at once fit the processor's cache, the
thousands of registers of an unrolled kernel do not. A register with a possible read before its first write has its own
row, which starts as poison.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from warpsan.analysis.collectives import is_collective, meets_at_barrier, member_mask
from warpsan.analysis.fusion import MmaGroup, group_mma, registers_read, registers_used, registers_written
from warpsan.ptx.ir import Entry, Instruction, Operand, Symbol
from warpsan.ptx.linking import branch_targets, callee, function_label, is_indirect
from warpsan.ptx.opcodes import ends_block, opcode_of

__all__ = ["BasicBlock", "Program", "build_program", "instructions_of"]

Item = Instruction | MmaGroup


@dataclass
class BasicBlock:
    """Straight-line code.

    Attributes
    ----------
    first : int
        pc of its first instruction.
    items : list of Instruction or MmaGroup
        In an execution order equivalent to the program's.
    end : Instruction, optional
        Branch, barrier or exit at its end; without one, control continues with the next block.
    size : int
        Number of instructions.
    line : int
        PTX line of the first instruction.
    collective : bool
        Whether an instruction needs lanes of a warp together.
    members : (Instruction, Operand), optional
        Such an instruction and its member mask; None for whole warps.
    inner : bool
        Whether it ends only for the lockstep order; the next block continues the same basic block.
    """

    first: int
    items: list[Item]
    end: Instruction | None
    size: int
    line: int
    collective: bool
    members: tuple[Instruction, Operand] | None
    inner: bool = False
    successors: list[int] = field(default_factory=list)


@dataclass
class Program:
    """Blocks in code order (the last is the empty end), the block of each label, and a row for each register.

    ``start`` is the block where a launch begins. ``rows`` maps a register to (bits, row in the file of that width);
    ``files`` has the number of rows of each file, with predicates in the 1-bit file. ``undefined`` has the registers
    with a possible read before their first write.
    """

    blocks: list[BasicBlock]
    block_of_label: dict[str, int]
    rows: dict[str, tuple[int, int]]
    files: dict[int, int]
    start: int = 0
    undefined: frozenset[str] = frozenset()


def build_program(entry: Entry, *, lockstep: bool = False) -> Program:
    """Build the blocks, products and rows of an entry.

    With ``lockstep``, blocks end after each memory operation, fence, wait for copies and warp-wide instruction: warps
    that run each block in turn are then in lockstep.
    """
    blocks, block_of_label = _blocks(entry, lockstep)
    start = next(index for index, block in enumerate(blocks) if block.first == entry.start)
    rows, files, undefined = _allocate(entry, blocks, start)
    return Program(blocks, block_of_label, rows, files, start, undefined)


_ORDERED = ("bar", "barrier", "cp", "discard", "fence", "ldmatrix", "mbarrier", "membar", "stmatrix", "wmma")
"""Opcodes, besides accesses lane by lane, whose order among warps affects the reports of the checks."""


def _blocks(entry: Entry, lockstep: bool) -> tuple[list[BasicBlock], dict[str, int]]:
    code = entry.instructions
    outer = {
        *(0, entry.start, len(code), *entry.labels.values()),
        *(each.pc + 1 for each in code if ends_block(each)),
        *(each.pc for each in code if meets_at_barrier(each)),
    }
    ends = (each for each in code if lockstep and (opcode_of(each).memory or each.opcode in _ORDERED))
    starts = sorted(outer | {each.pc + 1 for each in ends})
    number = {pc: index for index, pc in enumerate(starts)}
    block_of_label = {name: number[pc] for name, pc in entry.labels.items()}
    returns: dict[str, list[int]] = {}
    for instruction in code:
        if instruction.opcode == "call":
            for name in entry.targets if is_indirect(instruction) else (callee(instruction),):
                returns.setdefault(name, []).append(number[instruction.pc + 1])
    uses = registers_used(code)
    blocks = []
    for index, (first, last) in enumerate(zip(starts, [*starts[1:], len(code)], strict=True)):
        body = code[first:last]
        end = body[-1] if body and ends_block(body[-1]) else None
        block = BasicBlock(
            first,
            group_mma(body[:-1] if end else body, uses),
            end,
            len(body),
            body[0].line if body else 0,
            any(is_collective(instruction) or meets_at_barrier(instruction) for instruction in body),
            member_mask(body),
            last not in outer,
        )
        if index + 1 < len(starts):
            block.successors += _successors(end, index + 1, block_of_label, returns, entry.targets)
        blocks.append(block)
    return blocks, block_of_label


def _successors(
    end: Instruction | None,
    following: int,
    block_of_label: dict[str, int],
    returns: dict[str, list[int]],
    targets: tuple[str, ...],
) -> list[int]:
    """Successors of a block; ``returns`` has the blocks after calls of each function, ``targets`` the functions that
    calls through registers may reach.
    """
    if end is None:
        return [following]
    target = end.operands[0] if end.operands else None
    jumps: list[int] = []
    if end.opcode == "bra" and isinstance(target, Symbol):
        jumps = [block_of_label[target.name]]
    elif end.opcode == "brx":
        jumps = [block_of_label[label.name] for label in branch_targets(end)]
    elif end.opcode == "ret" and isinstance(target, Symbol):
        jumps = returns.get(target.name, [])
    elif is_indirect(end):
        jumps = [block_of_label[function_label(name)] for name in targets]
        if end.guard is None and jumps:
            return jumps
    elif end.opcode == "call" and function_label(callee(end)) in block_of_label:
        jumps = [block_of_label[function_label(callee(end))]]
        if end.guard is None:
            return jumps
    return jumps if end.guard is None and not opcode_of(end).goes_on else [*jumps, following]


def instructions_of(item: Item) -> list[Instruction]:
    """The instruction, or the instructions of a product."""
    return item.instructions if isinstance(item, MmaGroup) else [item]


def _allocate(
    entry: Entry, blocks: list[BasicBlock], start: int
) -> tuple[dict[str, tuple[int, int]], dict[int, int], frozenset[str]]:
    """Live ranges by data flow over the blocks, then rows by linear scan (Poletto and Sarkar, 1999).

    Also returns the registers that are undefined: alive at the ``start``.
    """
    index = {name: i for i, name in enumerate(entry.registers)}
    names = list(index)
    used, killed = [], []
    uses: list[list[list[int]]] = []
    for block in blocks:
        before: set[int] = set()
        written: set[int] = set()
        uses.append([])
        for item in _items(block):
            here: list[int] = []
            for instruction in instructions_of(item):
                reads = [index[name] for name in registers_read(instruction) if name in index]
                writes = [index[name] for name in registers_written(instruction) if name in index]
                before |= {*reads} - written
                if instruction.guard is None:
                    written.update(writes)
                else:  # lanes that do not execute it keep the old value
                    before |= {*writes} - written
                here += reads
                here += writes
            uses[-1].append(here)
        used.append(_bits(before, len(names)))
        killed.append(_bits(written, len(names)))
    live_in = [0] * len(blocks)
    live_out = [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for b in range(len(blocks) - 1, -1, -1):
            out = 0
            for successor in blocks[b].successors:
                out |= live_in[successor]
            into = used[b] | out & ~killed[b]
            if (out, into) != (live_out[b], live_in[b]):
                live_out[b], live_in[b], changed = out, into, True
    touched = [before | written for before, written in zip(used, killed, strict=True)]
    first, last, end = _ranges(uses, touched, live_in, live_out)
    for block in blocks:
        if block.end is not None and block.end.opcode == "wgmma":  # its results are written at the wait
            for name in registers_written(block.end):
                first[index[name]], last[index[name]] = 0, end
    return *_linear_scan(entry, names, first, last), frozenset(names[each] for each in _members(live_in[start]))


def _items(block: BasicBlock) -> list[Item]:
    return [*block.items, block.end] if block.end else block.items


def _ranges(
    uses: list[list[list[int]]], touched: list[int], live_in: list[int], live_out: list[int]
) -> tuple[dict[int, int], dict[int, int], int]:
    """First and last position at which each register is alive, in item order, and the last position of all.

    ``uses`` has the registers of each item of each block, ``touched`` those of each block, as bits.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    known = position = 0
    for b, items in enumerate(uses):
        first.update(dict.fromkeys(_members(live_in[b] & ~known), position))
        for here in items:
            position += 1
            for register in here:
                if register not in first:
                    first[register] = position
        known |= live_in[b] | touched[b]  # includes the registers alive at the end
        position += 1
    end, known = position, 0
    for b in range(len(uses) - 1, -1, -1):
        last.update(dict.fromkeys(_members(live_out[b] & ~known), position))
        for here in reversed(uses[b]):
            position -= 1
            for register in here:
                if register not in last:
                    last[register] = position
        known |= live_out[b] | touched[b]
        position -= 1
        last.update(dict.fromkeys(_members(live_in[b] & ~known), position))
        known |= live_in[b]
    return first, last, end


def _linear_scan(
    entry: Entry, names: list[str], begins: dict[int, int], ends: dict[int, int]
) -> tuple[dict[str, tuple[int, int]], dict[int, int]]:
    rows: dict[str, tuple[int, int]] = {}
    files: dict[int, int] = {}
    free: dict[int, list[int]] = {}
    active: list[tuple[int, int, int]] = []
    for register, first in sorted(begins.items(), key=itemgetter(1)):
        while active and active[0][0] < first:
            _, bits, row = heapq.heappop(active)
            heapq.heappush(free[bits], row)
        type_ = entry.registers[names[register]]
        bits = 1 if type_.kind == "pred" else type_.bits
        spare = free.setdefault(bits, [])
        if spare:
            row = heapq.heappop(spare)
        else:
            row = files.get(bits, 0)
            files[bits] = row + 1
        rows[names[register]] = bits, row
        heapq.heappush(active, (ends[register], bits, row))
    return rows, files


def _bits(registers: Collection[int], many: int) -> int:
    flags = np.zeros(many, np.uint8)
    flags[list(registers)] = 1
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def _members(bits: int) -> list[int]:
    if not bits:
        return []
    content = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
    numbers: list[int] = np.flatnonzero(np.unpackbits(content, bitorder="little")).tolist()
    return numbers
