"""Code that launches did not execute, by source line, with the condition of the branch that leads to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from warpsan.analysis.conditions import IDENTITY, Conditions, LaunchValues
from warpsan.analysis.fusion import registers_read
from warpsan.analysis.program import Program
from warpsan.host.launch import linked
from warpsan.ptx.ir import Entry, Immediate, Instruction
from warpsan.ptx.linking import callee
from warpsan.ptx.names import resolve, short_name
from warpsan.ptx.parser import parse
from warpsan.ptx.source_lines import frames_of

__all__ = ["CodeOfEntry", "Shape", "UnexecutedCode", "UnseenDecision"]

Frames = tuple[str, ...]
"""``file:line:column`` of an instruction and of the calls that inlined it, innermost first."""
Origin = tuple[Frames, str]
"""Frames and opcode of an instruction. Copies of a line (loops are unrolled, functions inlined) share them."""


@dataclass(frozen=True)
class UnexecutedCode:
    """Connected basic blocks that no launch executed.

    Attributes
    ----------
    pcs : tuple of int
        pc of the first instruction of each block.
    instructions : int
        Instructions without an executed copy.
    places : tuple of str
        Source lines as ``flash.cu:88-131``; PTX lines as ``PTX:12-20`` without line information.
    branch : str
        ``file:line:column`` of the branch that leads there, or empty.
    depends : tuple of str
        Origins of the branch's condition (:meth:`warpsan.analysis.conditions.Conditions.sources`).
    constants : tuple of int
        Integer constants in the condition.
    fails : bool
        Whether each path through it ends in a trap or a failed assertion.
    """

    pcs: tuple[int, ...]
    instructions: int
    places: tuple[str, ...]
    branch: str
    depends: tuple[str, ...]
    constants: tuple[int, ...]
    fails: bool


@dataclass(frozen=True)
class UnseenDecision:
    """An executed branch, select, minimum or maximum on arguments and grid, with one outcome in all launches.

    Attributes
    ----------
    pc : int
    outcome : bool
        The outcome that no launch had (:meth:`warpsan.analysis.conditions.Conditions.decision`).
    place : str
        ``file:line:column``.
    depends, constants
        As for :class:`UnexecutedCode`.
    """

    pc: int
    outcome: bool
    place: str
    depends: tuple[str, ...]
    constants: tuple[int, ...]


Shape = tuple[Sequence[int | None], Sequence[int], Sequence[int]]
"""A launch: its integer arguments (None for others), grid and block."""


class CodeOfEntry:
    """An entry, and the blocks of it that some launches did not execute.

    Parameters
    ----------
    ptx, entry
        As for :func:`warpsan.launch`.
    unexecuted : collection of int
        :attr:`warpsan.Report.unexecuted`, common to all launches.
    """

    def __init__(self, ptx: str, entry: str, unexecuted: Collection[int]) -> None:
        facts = _facts(ptx, entry)
        self.code, self.program, self._reachable = facts.code, facts.program, facts.reachable
        self._origins, self._conditions = facts.origins, facts.conditions
        self.name = short_name(self.code.name)
        pcs = set(unexecuted)
        self._missing = {n for n in self._reachable if self.program.blocks[n].first in pcs and self._body(n)}
        self.blocks = sum(bool(self._body(n)) for n in self._reachable)
        self.executed = self.blocks - len(self._missing)

    @property
    def executed_origins(self) -> set[Origin]:
        """Origins of the executed instructions."""
        return {self._origin(each) for n in self._reachable - self._missing for each in self._body(n)}

    @property
    def identity(self) -> tuple[str, ...]:
        """Special registers it reads that tell the machine or the time."""
        names = {name for n in self._reachable for each in self._body(n) for name in registers_read(each)}
        return tuple(sorted(name for name in names if name.startswith(IDENTITY)))

    def regions(self, executed: Collection[Origin], innermost: Callable[[Frames], str]) -> Iterator[UnexecutedCode]:
        """The unexecuted code, in code order.

        ``executed`` has the origins that launches of all builds of the source executed; a block without any other is a
        copy of executed code, and is left out. ``innermost`` selects the frame to show.
        """
        failing = _failing(self.program, self._missing, self._body)
        for group, fails in [
            *((each, False) for each in self._components(self._missing - failing)),
            *((each, True) for each in self._components(failing)),
        ]:
            new = [
                each
                for n in sorted(group)
                for each in self._body(n)
                if self._origin(each)[0] and self._origin(each) not in executed
            ]
            if not any(each.opcode not in _GLUE for each in new):
                continue
            entrances = [block for block, _, _ in self._entrances(group)]
            sources = [self._conditions.sources(register) for _, register, _ in self._entrances(group) if register]
            ends = [end for n in entrances if (end := self.program.blocks[n].end) is not None]
            yield UnexecutedCode(
                tuple(self.program.blocks[n].first for n in sorted(group)),
                len(new),
                _ranges([innermost(self._origin(each)[0]) for each in new]),
                innermost(self._origin(ends[0])[0]) if ends else "",
                tuple(sorted(set().union(*(origins for origins, _ in sources)))),
                tuple(sorted(set().union(*(constants for _, constants in sources)))),
                fails,
            )

    def outcomes(self, shapes: Sequence[Shape]) -> dict[Origin, set[bool]]:
        """Outcomes of the executed decisions in these launches, where arguments and grid determine them."""
        launches = [self._values(shape) for shape in shapes]
        seen: dict[Origin, set[bool]] = {}
        for each in self._decisions():
            values = [self._conditions.decision(each, launch) for launch in launches]
            outcomes = {bool(value) for array in values if array is not None for value in np.unique(array)}
            if outcomes and self._origin(each)[0]:
                seen.setdefault(self._origin(each), set()).update(outcomes)
        return seen

    def unseen(
        self, seen: Mapping[Origin, Collection[bool]], innermost: Callable[[Frames], str]
    ) -> Iterator[UnseenDecision]:
        """The decisions with one outcome in ``seen``, those of all builds of the source."""
        listed: set[Origin] = set()
        for each in self._decisions():
            origin = self._origin(each)
            if origin in listed or len(outcomes := seen.get(origin, ())) != 1:
                continue
            listed.add(origin)
            sources = [self._conditions.sources(name) for name in registers_read(each)]
            yield UnseenDecision(
                each.pc,
                not next(iter(outcomes)),
                innermost(self._origin(each)[0]),
                tuple(sorted(set().union(*(origins for origins, _ in sources)))),
                tuple(sorted(set().union(*(constants for _, constants in sources), _constants(each)))),
            )

    def _decisions(self) -> Iterator[Instruction]:
        """Executed selects, minima, maxima and guarded instructions; not branches into unexecuted code."""
        for n in sorted(self._reachable - self._missing):
            beyond = self._missing.intersection(self.program.blocks[n].successors)
            for each in self._body(n):
                if (each.guard is not None or each.opcode in _SELECTS) and not (each.opcode == "bra" and beyond):
                    yield each

    def decides(self, pc: int, outcome: bool, shape: Shape) -> bool:
        """Whether a decision has an outcome in some lane of a launch."""
        value = self._conditions.decision(self.code.instructions[pc], self._values(shape))
        return value is not None and bool(((value != 0) == outcome).any())

    def _values(self, shape: Shape) -> LaunchValues:
        arguments, (gx, gy, gz), (bx, by, bz) = shape
        params = {
            param.offset: value for param, value in zip(self.code.params, arguments, strict=True) if value is not None
        }
        return LaunchValues.of(params, (gx, gy, gz), (bx, by, bz))

    def reaches(self, pcs: Collection[int], shape: Shape) -> bool | None:
        """Whether a launch takes a branch into the unexecuted blocks with these ``pcs``; None if that depends on more
        than its integer arguments, grid and block."""
        launch = self._values(shape)
        group = {n for n in self._missing if self.program.blocks[n].first in pcs}
        unknown = False
        for _, register, taken_if in self._entrances(group):
            value = self._conditions.value(register, launch) if register else None
            if value is None:
                unknown = True
            elif bool(((value != 0) == taken_if).any()):
                return True
        return None if unknown else False

    def _entrances(self, group: set[int]) -> Iterator[tuple[int, str, bool]]:
        """Executed blocks with a branch into the group: the predicate, and its value for lanes that go there."""
        for n in sorted(self._reachable - self._missing):
            block = self.program.blocks[n]
            if not group.intersection(block.successors):
                continue
            if block.end is None or block.end.guard is None:
                yield n, "", True
                continue
            guard, falls_through = block.end.guard, n + 1 in group
            jumps = any(after in group and after != n + 1 for after in block.successors)
            if jumps:
                yield n, guard.register.name, not guard.negated
            if falls_through:
                yield n, guard.register.name, guard.negated

    def _body(self, number: int) -> list[Instruction]:
        block = self.program.blocks[number]
        return self.code.instructions[block.first : block.first + block.size]

    def _origin(self, instruction: Instruction) -> Origin:
        return self._origins[instruction.pc]

    def _components(self, numbers: Collection[int]) -> Iterator[set[int]]:
        """Groups of blocks that branch to each other."""
        edges: dict[int, set[int]] = {n: set() for n in numbers}
        for n in numbers:
            for after in self.program.blocks[n].successors:
                if after in edges:
                    edges[n].add(after)
                    edges[after].add(n)
        left = set(numbers)
        while left:
            group = _closure({min(left)}, edges)
            left -= group
            yield group


class _EntryFacts(NamedTuple):
    """Facts about an entry that do not depend on launches; instructions that the compiler added have no frames."""

    code: Entry
    program: Program
    reachable: set[int]
    origins: list[Origin]
    conditions: Conditions


@lru_cache(maxsize=64)
def _facts(ptx: str, entry: str) -> _EntryFacts:
    module = parse(ptx)
    code, program = linked(ptx, resolve(entry, module.entries, "entry"))
    origins = []
    for each in code.instructions:
        frames = tuple(frame for frame in frames_of(module, each) if ":0:" not in frame)
        origins.append((frames if module.files else (f"PTX:{each.line}:0",), each.text))
    return _EntryFacts(code, program, _reachable(program), origins, Conditions(code))


_GLUE = ("bra", "mov", "exit", "ret", "bar")
"""Instructions that alone are no code of interest: they join the paths around a block."""
_FAILURES = ("trap", "brkpt")
_SELECTS = ("selp", "min", "max")


def _constants(instruction: Instruction) -> set[int]:
    return {each.value for each in instruction.operands if isinstance(each, Immediate) and isinstance(each.value, int)}


def _reachable(program: Program) -> set[int]:
    """Blocks on a path from the start."""
    return _closure({program.start}, {n: block.successors for n, block in enumerate(program.blocks)})


def _closure(start: set[int], edges: Mapping[int, Collection[int]]) -> set[int]:
    seen, stack = set(start), list(start)
    while stack:
        for after in edges[stack.pop()]:
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return seen


def _failing(program: Program, missing: Collection[int], body: Callable[[int], list[Instruction]]) -> set[int]:
    """Unexecuted blocks whose paths all end in a trap or a failed assertion."""
    failing = {
        n
        for n in missing
        if any(e.opcode in _FAILURES or (e.opcode == "call" and "__assertfail" in callee(e)) for e in body(n))
    }
    changed = True
    while changed:
        further = {
            n
            for n in set(missing) - failing
            if program.blocks[n].successors and failing.issuperset(program.blocks[n].successors)
        }
        changed = bool(further)
        failing |= further
    after = {  # the code behind __assertfail, which does not return
        n
        for n in missing
        if not program.blocks[n].successors and any(n in program.blocks[f].successors for f in failing)
    }
    return failing | after


def _ranges(frames: Sequence[str]) -> tuple[str, ...]:
    """``flash.cu:88-131`` for each run of lines that are at most three apart, in order of the first appearance."""
    lines: dict[str, set[int]] = {}
    for frame in frames:
        name, line, _ = frame.rsplit(":", 2)
        lines.setdefault(name, set()).add(int(line))
    ranges = []
    for name, numbers in lines.items():
        ordered = sorted(numbers)
        first = last = ordered[0]
        for number in [*ordered[1:], None]:
            if number is not None and number <= last + 3:
                last = number
                continue
            ranges.append(f"{name}:{first}" + (f"-{last}" if last > first else ""))
            first = last = number or 0
    return tuple(ranges)
