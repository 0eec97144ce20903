"""Polling loops of a program: loops that read memory until another thread changes it.

A polling loop can exit by a branch on a value read from an address that is constant over iterations, and has no effect
that other threads wait for. While it iterates, other threads must run. A loop that counts iterations or reads a clock
may exit without them. If only memory decides the exit, and all runnable threads are in such loops, the launch is
deadlocked.

The analysis tracks registers written in the loop: the value depends on the registers that compute it, and with several
writes, on the branches that select one. A value is unchanged from the previous iteration if it depends only on memory
at constant addresses. Values carried between iterations (a counter, a moving pointer) and clocks are excluded.

Functions called by the loop are part of it. Blocks of a function with other callers are not: a thread in them need not
be polling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from warpsan.analysis.fusion import registers_in, registers_read, registers_written
from warpsan.analysis.loops import Loop, short_loops, with_calls
from warpsan.analysis.program import Program
from warpsan.ptx.accesses import Atomic
from warpsan.ptx.grammar import has_form, known_form
from warpsan.ptx.ir import Address, Entry, Immediate, Instruction, Operand, Register, Symbol, Vector
from warpsan.ptx.linking import callee
from warpsan.ptx.opcodes import is_warp_barrier, opcode_of, spaces_of, updates_memory
from warpsan.ptx.synchronising import MbarrierTest, MbarrierWait

__all__ = ["LONGEST", "Polling", "polling_loops"]

LONGEST = 64
"""Maximum blocks of a polling loop."""
_READING = ("cas", "exch")
"""Atomic operations without an effect while the awaited value is missing; others with operand 0."""
_CLOCKS = ("%clock", "%globaltimer")
_PASSED, _LOCAL = ".param ", ".local"
"""Pseudo-registers for values passed between functions (with the parameter's name), and for a thread's local memory."""


@dataclass(frozen=True)
class Polling:
    """Polling loops of a program.

    Attributes
    ----------
    blocks : frozenset of int
        All their blocks.
    endless : dict of int to Instruction
        Blocks of loops that only memory can end, each with an instruction that reads it.
    """

    blocks: frozenset[int]
    endless: dict[int, Instruction]


@dataclass
class _Dependences:
    """Dependences of the registers that a loop writes.

    Attributes
    ----------
    sources : dict of str to set of str
        Registers that each value depends on; for a value from memory, the registers of the address.
    clocks : set of str
        Registers read from a clock.
    """

    sources: dict[str, set[str]] = field(default_factory=dict)
    clocks: set[str] = field(default_factory=set)

    def behind(self, names: Sequence[str]) -> set[str]:
        """These registers and all their dependences."""
        reached, left = set[str](), list(names)
        while left:
            name = left.pop()
            if name not in reached:
                reached.add(name)
                left += self.sources.get(name, ())
        return reached


def polling_loops(entry: Entry, program: Program) -> Polling:
    """Polling loops of an entry."""
    zeros = _zeros(entry.instructions)
    polling: set[int] = set()
    endless: list[tuple[Loop, Instruction]] = []
    others: list[Loop] = []
    reads = any(_reads_memory(each, zeros) for each in entry.instructions)
    for short in short_loops(entry, program, LONGEST) if reads else ():
        loop = with_calls(entry, short, LONGEST) or short
        read, ends = _judge(entry, loop, zeros)
        if read is not None:
            polling.update(_own(entry, loop))
        if read is not None and not ends:
            endless.append((loop, read))
        else:
            others.append(loop)
    waits = {number: read for loop, read in endless for number in _own(entry, loop)}
    for inner in others:  # a delay or bounded retry inside a polling loop
        if any(inner.header != loop.header and {*inner.blocks} <= {*loop.blocks} for loop, _ in endless):
            waits = {number: read for number, read in waits.items() if number not in inner.blocks}
    return Polling(frozenset(polling), waits)


def _own(entry: Entry, loop: Loop) -> set[int]:
    """Blocks of a loop, without those of functions with other callers."""
    own = {number: name for name, blocks in loop.called.items() for number in blocks}
    shared = {name for name in loop.called if name in entry.targets}
    before = None
    while before != shared:
        before = set(shared)
        for number, block in enumerate(loop.program.blocks):
            outside = number not in loop.blocks or own.get(number) in shared
            if outside and block.end is not None and block.end.opcode == "call":
                shared.add(callee(block.end))
    return {number for number in loop.blocks if own.get(number) not in shared}


def _zeros(code: Sequence[Instruction]) -> frozenset[str]:
    """Registers that are only ever set to 0."""
    zero, other = set[str](), set[str]()
    for instruction in code:
        operands = instruction.operands
        null = instruction.opcode == "mov" and len(operands) == 2 and operands[1] == Immediate(0)
        (zero if null else other).update(registers_written(instruction))
    return frozenset(zero - other)


def _judge(entry: Entry, loop: Loop, zeros: frozenset[str]) -> tuple[Instruction | None, bool]:
    """An instruction that reads the awaited value of a polling loop, and whether the loop may end without it."""
    code = [each for number in loop.blocks for each in loop.code[number]]
    if any(_has_effects(each, zeros) or not _is_known(each, loop) for each in code):
        return None, True
    values = _values(entry, loop, zeros)
    reads = {name: each for each in code if _reads_memory(each, zeros) for name in registers_written(each)}
    carried = {name for name in _carried(entry, loop, values) if name in values.behind(sorted(values.sources[name]))}
    moving = carried | values.clocks
    waited: Instruction | None = None
    ends = False
    for number in loop.exits:
        decided = _decides(loop.code[number][-1])
        behind = values.behind(decided)
        if not decided:
            return None, True
        if not moving.isdisjoint(behind):
            ends = True
        for name in sorted(behind & reads.keys()):
            if moving.isdisjoint(values.behind([name])):
                waited = waited or reads[name]
    return waited, ends


def _decides(end: Instruction) -> list[str]:
    """Registers that decide the successor of a block."""
    names = [] if end.guard is None else [end.guard.register.name]
    return [*names, *registers_in(end.operands[0])] if end.opcode == "brx" else names


def _values(entry: Entry, loop: Loop, zeros: frozenset[str]) -> _Dependences:
    values = _Dependences()
    writers: dict[str, list[tuple[int, Instruction]]] = {}
    for number in loop.blocks:
        for each in loop.code[number]:
            if each.opcode == "call":
                for name, passed in _passes(entry, each):
                    values.sources.setdefault(name, set()).update(passed)
                continue
            for name in _written(each):
                writers.setdefault(name, []).append((number, each))
    for name, each_one in writers.items():
        sources = values.sources.setdefault(name, set())
        for number, each in each_one:
            reads = _reads_memory(each, zeros)
            sources.update(_address(each) if reads else _read(each))
            if not reads and any(register.startswith(_CLOCKS) for register in registers_read(each)):
                values.clocks.add(name)
            if len(each_one) > 1:
                for other in loop.deciders[number]:
                    sources.update(_decides(loop.code[other][-1]))
    return values


def _carried(entry: Entry, loop: Loop, values: _Dependences) -> set[str]:
    """Registers that an iteration may read from the previous one, before a write: live variables (Aho, Lam, Sethi and
    Ullman, chapter 9).
    """
    used: dict[int, set[str]] = {}
    killed: dict[int, set[str]] = {}
    for number in loop.blocks:
        used[number], killed[number] = set(), set()
        for each in loop.code[number]:
            names = {name for name in _read(each) if name in values.sources}
            used[number] |= names - killed[number]
            if each.guard is None and each.opcode == "call":
                killed[number].update(name for name, _ in _passes(entry, each))
            elif each.guard is None:
                killed[number].update(name for name in _written(each) if not name.startswith((_PASSED, _LOCAL)))
    alive = {number: set(used[number]) for number in loop.blocks}
    changed = True
    while changed:
        changed = False
        for number in reversed(loop.blocks):
            behind = {name for each in loop.successors[number] if each not in (-1, loop.header) for name in alive[each]}
            more = behind - killed[number] - alive[number]
            if more:
                alive[number] |= more
                changed = True
    return alive[loop.header]


# ---- instructions ----------------------------------------------------------------------------------------------------


def _reads_memory(instruction: Instruction, zeros: frozenset[str]) -> bool:
    """Whether an instruction reads memory that another thread may change, without a change of its own."""
    if instruction.opcode == "ld":
        return not {"param", "const", "local"} & spaces_of(instruction)
    if has_form(instruction, MbarrierTest):
        return not has_form(instruction, MbarrierWait)
    if instruction.opcode != "atom":
        return False
    form = known_form(instruction, Atomic)
    return (form is not None and form.update[0] in _READING) or _is_zero(instruction.operands[-1], zeros)


def _has_effects(instruction: Instruction, zeros: frozenset[str]) -> bool:
    """Whether an instruction may have an effect that others wait for, or waits itself."""
    if instruction.opcode == "st":
        return not {"param", "local"} & spaces_of(instruction)
    if is_warp_barrier(instruction) or has_form(instruction, MbarrierTest):
        return False
    if opcode_of(instruction).awaited:
        return True
    return updates_memory(instruction) and not _reads_memory(instruction, zeros)


def _is_zero(operand: Operand, zeros: frozenset[str]) -> bool:
    return operand == Immediate(0) or (isinstance(operand, Register) and operand.name in zeros)


def _address(instruction: Instruction) -> set[str]:
    """Registers of an address, and of the guard."""
    names = [name for each in instruction.operands if isinstance(each, Address) for name in registers_in(each)]
    return {*names, *([] if instruction.guard is None else [instruction.guard.register.name])}


def _is_known(instruction: Instruction, loop: Loop) -> bool:
    """Whether passed values are known: a call of a function in the loop, or named parameters."""
    if instruction.opcode == "call":
        return callee(instruction) in loop.called
    return not loop.called or not _parameters(instruction) or all(map(_named, _parameters(instruction)))


def _parameters(instruction: Instruction) -> list[Address]:
    """Addresses of parameters that an instruction accesses."""
    inside = opcode_of(instruction).memory and "param" in spaces_of(instruction)
    return [each for each in instruction.operands if isinstance(each, Address)] if inside else []


def _named(address: Address) -> str:
    """Name of a parameter; empty for an address in a register."""
    return address.base.name if isinstance(address.base, Symbol) else ""


def _passes(entry: Entry, call: Instruction) -> list[tuple[str, list[str]]]:
    """Parameters and results that a call sets, each with its sources."""
    function = entry.functions[callee(call)]
    results, _, *arguments = call.operands
    given = [item for each in arguments if isinstance(each, Vector) for item in each.items]
    taken = list(results.items) if isinstance(results, Vector) else []
    pairs = [*zip(function.params, given, strict=False), *zip(taken, function.results, strict=False)]
    guard = [] if call.guard is None else [call.guard.register.name]
    return [(name, [*_place(source), *guard]) for target, source in pairs for name in _place(target)]


def _place(operand: Operand) -> list[str]:
    """Name of a passed register or parameter."""
    if isinstance(operand, Symbol):
        return [f"{_PASSED}{operand.name}"]
    return [operand.name] if isinstance(operand, Register) else []


def _private(instruction: Instruction) -> list[str]:
    """Pseudo-register of the thread's local memory, if the instruction accesses it."""
    local = opcode_of(instruction).memory and "local" in spaces_of(instruction)
    return [*(f"{_PASSED}{_named(each)}" for each in _parameters(instruction)), *([_LOCAL] if local else [])]


def _read(instruction: Instruction) -> set[str]:
    return {*registers_read(instruction), *(_private(instruction) if instruction.opcode == "ld" else [])}


def _written(instruction: Instruction) -> set[str]:
    return {*registers_written(instruction), *(_private(instruction) if instruction.opcode == "st" else [])}
