"""A parsed PTX module: instructions, operands, variables. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from sdpalab.sim.types import PtxType

__all__ = [
    "Address",
    "Entry",
    "Guard",
    "Immediate",
    "Instruction",
    "Negated",
    "Operand",
    "Pair",
    "Param",
    "PtxModule",
    "Register",
    "Symbol",
    "TensorAddress",
    "Variable",
    "Vector",
]


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register, by its name made unique over scopes; special registers keep their dots (``%tid.x``)."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. ``bits`` is the raw pattern of a ``0f``/``0d`` float literal of that many bits, else None."""

    value: int | float
    float_bits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that is no register: a label, a variable, a function, or the sink ``_``."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; the base is a register, a variable's name, or None for an absolute address."""

    base: Register | Symbol | None
    offset: int


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """``[map, {x, y, ...}]``: where a tensor map lies, and the coordinates of a box in its tensor, innermost first."""

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


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``mods`` are the parts of the opcode after its first, ``loc`` is (file, line) or None."""

    pc: int
    opcode: str
    mods: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    loc: tuple[int, int] | None

    @property
    def text(self) -> str:
        """The opcode with its modifiers, as written."""
        return ".".join((self.opcode, *self.mods))


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter: a scalar of ``type``, or ``size`` bytes. ``offset`` is its place in the parameter block."""

    name: str
    type: PtxType
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in shared, global, const or local memory. Size 0: an unsized array (dynamic shared memory)."""

    name: str
    space: str
    size: int
    align: int
    data: bytes = b""


@dataclass(slots=True)
class Entry:
    """A kernel: parameters, registers with their types, variables declared inside it, instructions, labels."""

    name: str
    params: list[Param] = field(default_factory=list)
    registers: dict[str, PtxType] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class PtxModule:
    """A whole PTX text: its target, its entries and module-level variables, and the source files of ``.loc``."""

    version: str = ""
    target: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
