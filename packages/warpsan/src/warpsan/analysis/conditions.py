"""Branch conditions of an entry as functions of the launch: its arguments, grid and block.

A register with one unguarded definition is evaluated through that definition, in integers. Any other value (memory,
a register with several definitions, floating point) is unknown; :func:`sources_of` names its origins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.ptx.accesses import LoadStore
from warpsan.ptx.grammar import Computation, form_of, known_form
from warpsan.ptx.ir import Address, Entry, Immediate, Instruction, Operand, Register, Symbol
from warpsan.ptx.opcodes import loads_parameter, opcode_of
from warpsan.ptx.types import TYPES

__all__ = ["IDENTITY", "Conditions", "LaunchValues"]

Ints = npt.NDArray[np.int64]

IDENTITY = ("%clock", "%globaltimer", "%smid", "%nsmid", "%envreg", "%gridid", "%warpid", "%nwarpid")
"""Beginnings of the special registers that tell the machine or the time (PTX ISA, "Special Registers")."""
_LAUNCH = ("%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%clusterid", "%nclusterid", "%cluster_", "%lanemask")


@dataclass(frozen=True)
class LaunchValues:
    """Values of one launch, for lanes that represent all of its lanes.

    Attributes
    ----------
    params : mapping of int to int
        Integer arguments by their offset in the parameter block.
    special : mapping of str to ndarray
        Special registers, such as ``%ctaid.x``, of all lanes.
    computed : dict of str to ndarray or None
        Values of the registers of one entry, as :class:`Conditions` computes them.
    """

    params: Mapping[int, int]
    special: Mapping[str, Ints]
    computed: dict[str, Ints | None] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, params: Mapping[int, int], grid: tuple[int, int, int], block: tuple[int, int, int]) -> LaunchValues:
        """All lanes of a block, in up to six blocks along each axis: the first, last and middle ones."""
        blocks = np.meshgrid(*(_extremes(size) for size in grid), indexing="ij")
        threads = np.meshgrid(*(np.arange(size) for size in block), indexing="ij")
        many, lanes = blocks[0].size, threads[0].size
        special: dict[str, Ints] = {}
        for axis, name in enumerate("xyz"):
            special[f"%ctaid.{name}"] = np.repeat(blocks[axis].reshape(-1), lanes).astype(np.int64)
            special[f"%tid.{name}"] = np.tile(threads[axis].reshape(-1), many).astype(np.int64)
            special[f"%nctaid.{name}"] = np.array([grid[axis]], np.int64)
            special[f"%ntid.{name}"] = np.array([block[axis]], np.int64)
        return cls(params, special)


class Conditions:
    """The definitions of an entry's registers."""

    def __init__(self, entry: Entry) -> None:
        self._offsets = {param.name: param for param in entry.params}
        self._definitions: dict[str, list[Instruction]] = {}
        for instruction in entry.instructions:
            for name in registers_written(instruction):
                self._definitions.setdefault(name, []).append(instruction)

    def sources(self, register: str) -> tuple[set[str], set[int]]:
        """The origins of a register's value, and the constants on the way.

        Origins are ``arguments``, ``launch`` (indices and sizes of the grid), ``memory``, ``other lanes`` (shuffles and
        votes), and the name of each register of :data:`IDENTITY`.
        """
        origins, constants, seen, stack = set[str](), set[int](), set[str](), [register]
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            if name.startswith(IDENTITY):
                origins.add(name)
            elif name.startswith(_LAUNCH):
                origins.add("launch")
            for each in self._definitions.get(name, ()):
                if self._parameter(each) is not None:
                    origins.add("arguments")
                    continue
                if opcode_of(each).memory:
                    origins.add("memory")
                    continue  # its address does not decide the value
                if each.opcode in ("shfl", "vote", "redux", "match", "activemask", "call"):
                    origins.add("other lanes" if each.opcode != "call" else "a call")
                stack += registers_read(each)
                constants |= {value for op in each.operands if (value := _integer(op)) is not None}
        return origins, constants

    def value(self, register: str, launch: LaunchValues) -> Ints | None:
        """The register's value in all lanes; None if it is unknown."""
        return self._register(register, launch, 0)

    def decision(self, instruction: Instruction, launch: LaunchValues) -> Ints | None:
        """The outcome of a guarded instruction, ``selp``, ``min`` or ``max`` in all lanes: 1 if the guard holds or the
        first operand is selected, else 0; None for other instructions, and if it is unknown."""
        if instruction.guard is not None:
            value = self.value(instruction.guard.register.name, launch)
            return None if value is None else (value != 0).astype(np.int64) ^ int(instruction.guard.negated)
        if instruction.opcode == "selp":
            return self._operand(instruction.operands[3], launch, 0)
        if instruction.opcode not in ("min", "max"):
            return None
        form = known_form(instruction, Computation)
        if form is None or _wrapped(np.zeros(1, np.int64), form.type.name) is None:
            return None
        first, second = (self._operand(operand, launch, 0) for operand in instruction.operands[1:3])
        if first is None or second is None:
            return None
        return (first <= second if instruction.opcode == "min" else first >= second).astype(np.int64)

    def _parameter(self, instruction: Instruction) -> int | None:
        """Offset in the parameter block that a load reads; None for other instructions."""
        if not loads_parameter(instruction):
            return None
        address = instruction.operands[1]
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            return None
        param = self._offsets.get(address.base.name)
        return None if param is None else param.offset + address.offset

    def _operand(self, operand: Operand, launch: LaunchValues, depth: int) -> Ints | None:
        if (value := _integer(operand)) is not None:
            return np.array([value], np.int64)
        return self._register(operand.name, launch, depth) if isinstance(operand, Register) else None

    def _register(self, name: str, launch: LaunchValues, depth: int) -> Ints | None:
        if name in launch.special:
            return launch.special[name]
        if name not in launch.computed:
            launch.computed[name] = self._defined(name, launch, depth)
        return launch.computed[name]

    def _defined(self, name: str, launch: LaunchValues, depth: int) -> Ints | None:
        definitions = self._definitions.get(name, [])
        if len(definitions) != 1 or definitions[0].guard is not None or depth > _DEEPEST:
            return None
        each = definitions[0]
        offset = self._parameter(each)
        if offset is not None:
            value = launch.params.get(offset)
            type_ = form_of(each, LoadStore).type.name
            return None if value is None else _wrapped(np.array([value % 2**64]).astype(np.uint64), type_)
        form = known_form(each, Computation)
        if form is None or not form.types:
            return None
        operands = [self._operand(operand, launch, depth + 1) for operand in each.operands[1:]]
        if each.opcode in ("and", "or") and form.type.kind == "pred":
            return _logic(each.opcode, operands)
        if any(operand is None for operand in operands):
            return None
        return _computed(form, [operand for operand in operands if operand is not None])


_DEEPEST = 200
"""Longest chain of definitions that is evaluated."""


def _extremes(size: int) -> npt.NDArray[np.int64]:
    return np.unique(np.clip([0, 1, size // 2, size - 2, size - 1], 0, size - 1))


def _integer(operand: Operand) -> int | None:
    """Value of an integer literal; None for other operands."""
    if isinstance(operand, Immediate) and not operand.float_bits and isinstance(operand.value, int):
        return operand.value
    return None


def _wrapped(value: npt.NDArray[np.integer], name: str) -> Ints | None:
    """Values in an integer type of PTX, as int64; None for floating point."""
    type_ = TYPES.get(name)
    if type_ is None or type_.kind not in ("b", "u", "s") or type_.lanes > 1:
        return None
    return value.astype(type_.dtype).astype(np.int64)


def _logic(opcode: str, operands: list[Ints | None]) -> Ints | None:
    """``and`` and ``or`` of predicates, of which one may be unknown where the other decides."""
    decides = opcode == "or"
    for operand in operands:
        if operand is not None and bool(np.all(operand.astype(bool) == decides)):
            return np.array([int(decides)], np.int64)
    first, second = operands
    if first is None or second is None:
        return None
    return first | second if decides else first & second


def _divided(a: Ints, b: Ints) -> Ints:
    safe = np.where(b == 0, 1, b)
    return np.asarray(np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe)), np.int64)


_BINARY: Mapping[str, Callable[[Ints, Ints], Ints]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divided,
    "rem": lambda a, b: a - b * _divided(a, b),
    "min": np.minimum,
    "max": np.maximum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: np.where(b < 64, a << np.minimum(b, 63), 0),
    "shr": lambda a, b: a >> np.clip(b, 0, 63),
}
_COMPARED: Mapping[str, Callable[[Ints, Ints], npt.NDArray[np.bool_]]] = {
    **dict.fromkeys(("gt", "hi"), np.greater),
    **dict.fromkeys(("ge", "hs"), np.greater_equal),
    **dict.fromkeys(("lt", "lo"), np.less),
    **dict.fromkeys(("le", "ls"), np.less_equal),
    "eq": np.equal,
    "ne": np.not_equal,
}


def _computed(form: Computation, operands: list[Ints]) -> Ints | None:
    """Result of an integer instruction (PTX ISA, "Integer Arithmetic", "Comparison and Selection"); None if it is not
    one of those that index computations use."""
    opcode, mode, type_ = form.name, "".join(form.modes), form.types[-1].name
    if form.flags or mode not in ("", "hi", "lo", "wide", *_COMPARED):
        return None
    if type_ == "pred":
        if opcode == "not":
            return 1 - operands[0]
        return _BINARY[opcode](*operands) if opcode in ("xor",) else operands[0] if opcode == "mov" else None
    if opcode == "cvt":
        return _wrapped(operands[0], form.type.name) if _wrapped(operands[0], type_) is not None else None
    taken = [_wrapped(operand, type_) for operand in operands]
    if opcode == "selp":
        taken[2] = operands[2]
    values = [each for each in taken if each is not None]
    if len(values) < len(operands):
        return None
    if opcode == "setp":
        return _COMPARED[mode](*values).astype(np.int64) if len(values) == 2 else None
    if opcode == "selp":
        return np.where(values[2] != 0, values[0], values[1])
    if opcode == "mov":
        return values[0]
    if opcode in ("mul", "mad") and mode == "hi":
        return _wrapped(values[0] * values[1] >> 32, type_) if opcode == "mul" and TYPES[type_].bits == 32 else None
    wide = f"{type_[0]}{2 * TYPES[type_].bits}" if mode == "wide" else type_
    if opcode == "mad":
        return _wrapped(values[0] * values[1] + operands[2], wide)
    if opcode in ("neg", "abs", "not"):
        return _wrapped({"neg": np.negative, "abs": np.abs, "not": np.invert}[opcode](values[0]), type_)
    return _wrapped(_BINARY[opcode](*values), wide) if opcode in _BINARY and len(values) == 2 else None
