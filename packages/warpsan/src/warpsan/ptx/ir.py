"""A parsed PTX module: instructions, operands, variables. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from warpsan.ptx.types import PtxType

__all__ = [
    "Address",
    "Code",
    "Entry",
    "Function",
    "Guard",
    "Immediate",
    "Instruction",
    "Location",
    "Negated",
    "Operand",
    "Pair",
    "Param",
    "PtxModule",
    "Register",
    "Relocation",
    "Symbol",
    "TensorAddress",
    "Variable",
    "Vector",
]


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register with a name unique over scopes and functions; special registers keep dots (``%tid.x``)."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. ``bits`` is the raw pattern of a ``0f``/``0d`` float literal of that many bits, else None."""

    value: int | float
    float_bits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that is not a register: a label, a variable, a function, or the sink ``_``."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; the base is a register, a variable's name, or None for an absolute address."""

    base: Register | Symbol | None
    offset: int


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """``[map, {x, y, ...}]``: address of a tensor map, and coordinates of a box in its tensor, innermost first."""

    map: Address
    coordinates: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``p|q``: two destinations of one instruction."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``: a predicate operand, read negated."""

    register: Operand


Operand = Register | Immediate | Symbol | Address | TensorAddress | Vector | Pair | Negated


@dataclass(frozen=True, slots=True)
class Guard:
    """``@p`` or ``@!p`` before an instruction."""

    register: Register
    negated: bool


class Location(NamedTuple):
    """A source position from ``.loc``: number of the file, line and column, and for inlined code the call."""

    file: int
    line: int
    column: int = 0
    caller: Location | None = None

    @property
    def chain(self) -> tuple[Location, ...]:
        """This position and the surrounding calls of inlined code, innermost first."""
        return (self, *(self.caller.chain if self.caller else ()))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``mods`` are the opcode's parts after the first, ``loc`` is the source position or None."""

    pc: int
    opcode: str
    mods: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    loc: Location | None
    registers: tuple[tuple[str, ...], ...] = field(default=(), init=False, repr=False, compare=False)
    """Written and read registers, cached by :mod:`warpsan.analysis.fusion` for passes over a program."""
    form: Any = field(default=None, init=False, repr=False, compare=False)
    """The record of its modifiers, cached by :mod:`warpsan.ptx.grammar`."""

    @property
    def text(self) -> str:
        """The opcode with its modifiers, as written."""
        return ".".join((self.opcode, *self.mods))


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter: a scalar of ``type``, or ``size`` bytes. ``offset`` is its offset in the parameter block."""

    name: str
    type: PtxType
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """An address in a variable's initial value: ``size`` bytes at ``offset``, the address of ``name`` plus ``addend``.

    A ``generic`` address is in the generic address space. ``line`` is for messages.
    """

    offset: int
    size: int
    name: str
    addend: int
    generic: bool
    line: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in shared, global, const, local or parameter memory.

    Size 0 is an unsized array (dynamic shared memory). A ``.param`` variable passes values through a device function's
    call.
    """

    name: str
    space: str
    size: int
    align: int
    data: bytes = b""
    relocations: tuple[Relocation, ...] = ()


@dataclass(slots=True)
class Code:
    """A body: registers with their types, local variables, instructions, labels.

    The names in a function are unique in the module, so that its body can precede an entry's.
    """

    name: str
    registers: dict[str, PtxType] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Function(Code):
    """A device function, with the registers or ``.param`` variables of its arguments and results."""

    params: tuple[Register | Symbol, ...] = ()
    results: tuple[Register | Symbol, ...] = ()


@dataclass(slots=True)
class Entry(Code):
    """A kernel.

    Attributes
    ----------
    params : list of Param
    directives : dict
        Performance-tuning and cluster directives with their numbers.
    functions : dict
        Functions placed before the entry's code (:mod:`warpsan.ptx.linking`), by name.
    targets : tuple of str
        Functions that a call through a register may reach.
    circles : dict
        For each recursive function, the functions of its call cycle.
    start : int
        First pc of the entry's own code.
    derived : dict
        Results computed from the code alone, by a key per analysis; linked code does not change.
    """

    params: list[Param] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    circles: dict[str, frozenset[str]] = field(default_factory=dict)
    start: int = 0
    derived: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(slots=True)
class PtxModule:
    """A whole PTX text: target, code by name, module-level variables, and source files of ``.loc``.

    ``aliases`` maps other names of functions.
    """

    version: str = ""
    target: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
