"""Which loops of a program poll: they read a place again and again until another thread has changed it.

Such a loop can be left by a branch on what it has read from an address that is the same in every turn, and changes
nothing that others wait for. While it turns, other threads must run. A loop that counts its turns, or reads a clock,
may end without them; if nothing but memory decides whether it ends, and all threads that can run are in such loops,
nothing will happen any more.

A register is worth following if it is written in the loop: its value depends on the registers that compute it, and
where several instructions write it, on the branches that choose one of these. It is as in the turn before if that
leads to nothing but memory at fixed addresses. What a turn passes on to itself in the next one (a counter, a pointer
that walks) is not, nor is a clock.

A function that the loop calls is a part of it. If it is called from elsewhere, too, its blocks do not count as the
loop's: a thread that is in them need not be polling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from warpsan.analysis.fusion import registers_in, registers_read, registers_written
from warpsan.analysis.loops import Loop, short_loops, with_calls
from warpsan.analysis.program import Program
from warpsan.ptx.ir import Address, Entry, Immediate, Instruction, Operand, Register, Symbol, Vector
from warpsan.ptx.linking import callee
from warpsan.ptx.opcodes import opcode_of, updates_memory

__all__ = ["LONGEST", "Polling", "polling_loops"]

LONGEST = 64
"""Blocks of a polling loop at most."""
_READING = ("cas", "exch")
"""Atomic operations that change nothing while what they wait for has not come; others do with the operand 0."""
_CLOCKS = ("%clock", "%globaltimer")
_PASSED, _LOCAL = ".param ", ".local"
"""In place of registers: what functions pass to each other (and its name), and the memory of a thread alone."""


@dataclass(frozen=True)
class Polling:
    """The polling loops of a program.

    Attributes
    ----------
    blocks : frozenset of int
        All their blocks.
    endless : dict of int to Instruction
        Those of them in loops that nothing but memory can end, with an instruction that reads it.
    """

    blocks: frozenset[int]
    endless: dict[int, Instruction]


@dataclass
class _Dependences:
    """What the registers that a loop writes are computed from.

    Attributes
    ----------
    sources : dict of str to set of str
        For each, the registers that its value depends on; of what is read from memory, those of the address.
    clocks : set of str
        Those that are read from a clock.
    """

    sources: dict[str, set[str]] = field(default_factory=dict)
    clocks: set[str] = field(default_factory=set)

    def behind(self, names: Sequence[str]) -> set[str]:
        """These registers and all that they depend on."""
        reached, left = set[str](), list(names)
        while left:
            name = left.pop()
            if name not in reached:
                reached.add(name)
                left += self.sources.get(name, ())
        return reached


def polling_loops(entry: Entry, program: Program) -> Polling:
    """The polling loops of an entry."""
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
    for inner in others:  # a delay, or a few tries, inside a loop that polls
        if any(inner.header != loop.header and {*inner.blocks} <= {*loop.blocks} for loop, _ in endless):
            waits = {number: read for number, read in waits.items() if number not in inner.blocks}
    return Polling(frozenset(polling), waits)


def _own(entry: Entry, loop: Loop) -> set[int]:
    """The blocks of a loop without those of functions that are called from elsewhere, too."""
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
    """Registers that hold 0 wherever they are set."""
    zero, other = set[str](), set[str]()
    for instruction in code:
        operands = instruction.operands
        null = instruction.opcode == "mov" and len(operands) == 2 and operands[1] == Immediate(0)
        (zero if null else other).update(registers_written(instruction))
    return frozenset(zero - other)


def _judge(entry: Entry, loop: Loop, zeros: frozenset[str]) -> tuple[Instruction | None, bool]:
    """An instruction by which a loop reads what it waits for, if it polls; and whether it may end without that."""
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
    """The registers that decide where control goes on behind a block."""
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
    """Registers that a turn may read as the one before has left them: read before they are written, by live variables
    (Aho, Lam, Sethi and Ullman, chapter 9)."""
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
    """Whether an instruction reads what another thread may change, without changing it itself."""
    if instruction.opcode == "ld":
        return not {"param", "const", "local"} & _spaces(instruction)
    if instruction.opcode == "mbarrier":
        return "test_wait" in instruction.mods
    if instruction.opcode != "atom":
        return False
    return not set(_READING).isdisjoint(instruction.mods) or _is_zero(instruction.operands[-1], zeros)


def _has_effects(instruction: Instruction, zeros: frozenset[str]) -> bool:
    """Whether an instruction may change what others wait for, or waits for others itself."""
    if instruction.opcode in ("bar", "barrier"):
        return instruction.mods[:1] != ("warp",)
    if instruction.opcode == "st":
        return not {"param", "local"} & _spaces(instruction)
    if instruction.opcode in ("cp", "discard", "griddepcontrol", "stmatrix", "tensormap", "wgmma", "wmma"):
        return True
    if instruction.opcode == "mbarrier":
        return not {"test_wait", "try_wait"} & set(instruction.mods)
    return updates_memory(instruction) and not _reads_memory(instruction, zeros)


def _spaces(instruction: Instruction) -> set[str]:
    return {mod.split("::")[0] for mod in instruction.mods}


def _is_zero(operand: Operand, zeros: frozenset[str]) -> bool:
    return operand == Immediate(0) or (isinstance(operand, Register) and operand.name in zeros)


def _address(instruction: Instruction) -> set[str]:
    """The registers of an address, and of the guard."""
    names = [name for each in instruction.operands if isinstance(each, Address) for name in registers_in(each)]
    return {*names, *([] if instruction.guard is None else [instruction.guard.register.name])}


def _is_known(instruction: Instruction, loop: Loop) -> bool:
    """Whether it can be seen what an instruction passes on: a call to a function in the loop, and parameters there by
    their names."""
    if instruction.opcode == "call":
        return callee(instruction) in loop.called
    return not loop.called or not _parameters(instruction) or all(map(_named, _parameters(instruction)))


def _parameters(instruction: Instruction) -> list[Address]:
    """The addresses of parameters that an instruction accesses."""
    inside = opcode_of(instruction).memory and "param" in _spaces(instruction)
    return [each for each in instruction.operands if isinstance(each, Address)] if inside else []


def _named(address: Address) -> str:
    """The name of a parameter; empty if a register has its address."""
    return address.base.name if isinstance(address.base, Symbol) else ""


def _passes(entry: Entry, call: Instruction) -> list[tuple[str, list[str]]]:
    """What a call sets, and what that is a copy of: the function's parameters, and the results."""
    function = entry.functions[callee(call)]
    results, _, *arguments = call.operands
    given = [item for each in arguments if isinstance(each, Vector) for item in each.items]
    taken = list(results.items) if isinstance(results, Vector) else []
    pairs = [*zip(function.params, given, strict=False), *zip(taken, function.results, strict=False)]
    guard = [] if call.guard is None else [call.guard.register.name]
    return [(name, [*_place(source), *guard]) for target, source in pairs for name in _place(target)]


def _place(operand: Operand) -> list[str]:
    """The name of a register or parameter that is passed on."""
    if isinstance(operand, Symbol):
        return [f"{_PASSED}{operand.name}"]
    return [operand.name] if isinstance(operand, Register) else []


def _private(instruction: Instruction) -> list[str]:
    """What stands for the memory of a thread alone that it accesses."""
    local = opcode_of(instruction).memory and "local" in _spaces(instruction)
    return [*(f"{_PASSED}{_named(each)}" for each in _parameters(instruction)), *([_LOCAL] if local else [])]


def _read(instruction: Instruction) -> set[str]:
    return {*registers_read(instruction), *(_private(instruction) if instruction.opcode == "ld" else [])}


def _written(instruction: Instruction) -> set[str]:
    return {*registers_written(instruction), *(_private(instruction) if instruction.opcode == "st" else [])}
