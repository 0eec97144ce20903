"""The table of instructions: the properties of each opcode, and the grammar of each form's modifiers as data. A form is
a frozen dataclass, and each field states the modifiers that it takes.

The modules of families (:mod:`~warpsan.ptx.arithmetic` and others) fill the table; parser, analyses, handlers, checks,
counters, documentation and tests read it.

:func:`form_of` reads an instruction once, at its first execution, and keeps the record on the instruction. Modifiers
that no field takes are refused (:class:`~warpsan.ptx.modifiers.Mods`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.ir import Immediate, Instruction, Operand
from warpsan.ptx.modifiers import Mods, Syntax, find_handler, take_space
from warpsan.ptx.types import TYPES, PtxType

__all__ = [
    "FORMS",
    "OPCODES",
    "Computation",
    "Form",
    "Grammar",
    "Opcode",
    "choice",
    "compute",
    "element",
    "find_grammar",
    "flag",
    "form",
    "form_of",
    "groups",
    "has_form",
    "known_form",
    "opcodes",
    "part",
    "space",
]

SPACES = frozenset({"global", "shared", "local", "const", "param"})
_FormT = TypeVar("_FormT", bound="Form")


@dataclass(frozen=True)
class Opcode:
    """Properties of an opcode that do not depend on its modifiers.

    Attributes
    ----------
    section : str
        Section of the PTX ISA manual.
    pipe : str
        Execution unit; empty if it depends on the type, ``space`` if it depends on the state space.
    goes_on : bool
        Whether control continues after it, without a guard.
    lanes : {"each", "warp", "members"}
        Executed per lane, per warp, or by the lanes in the mask of its last operand.
    writes : bool
        Whether the first operand is a result if it is a register.
    undefined : {"computed", "used", "followed"}
        Effect of an undefined operand: the result is undefined, the use is reported, or each element is tracked
        separately.
    moves : int
        Number of sources whose bits move to the result unchanged; 0 for a computation.
    passes_pointers : bool
        Whether a result may be a pointer into a source's buffer.
    effects : bool
        Whether it has effects other than register writes.
    awaited : bool
        Whether other threads may wait for its effect, or it waits itself.
    memory : {"", "load", "store", "update"}
        Memory access of each lane.
    forms : bool
        Whether forms with another first modifier have records of their own.
    """

    section: str
    pipe: str = ""
    goes_on: bool = True
    lanes: str = "each"
    writes: bool = True
    undefined: str = "computed"
    moves: int = 0
    passes_pointers: bool = False
    effects: bool = False
    awaited: bool = False
    memory: str = ""
    forms: bool = False


OPCODES: dict[str, Opcode] = {}
"""The properties of each opcode."""


def opcodes(names: str, record: Opcode) -> None:
    """Add opcodes, separated by spaces, to the table."""
    for name in names.split():
        assert name not in OPCODES, f"two records for {name}"
        OPCODES[name] = record


@dataclass(frozen=True)
class Form:
    """The modifiers of an instruction; this class itself is a form without optional modifiers.

    Attributes
    ----------
    name : str
        The beginning of the instruction's text that selects the form.
    """

    name: str

    @property
    def named_spaces(self) -> frozenset[str]:
        """State spaces that it names, without their windows (``::cta``); empty for a generic address."""
        return SPACES & {getattr(self, "space", "").partition("::")[0]}

    @property
    def access_order(self) -> tuple[str, str]:
        """Memory order and scope of an access to memory; empty for a weak access, and for the default scope."""
        return "", ""

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Reason why these operands or this combination of modifiers are not supported; empty otherwise."""
        return ""


class Grammar(NamedTuple):
    """An entry of the table of forms.

    Attributes
    ----------
    name : str
        The beginning of the instruction's text.
    kind : type of Form
    words : tuple of str
        Required modifiers without alternatives.
    syntax : Syntax
        Types, alternatives and flags of a :class:`Computation`.
    sources : int or None
        Number of operands after the first; None for a number that the form or the handler checks.
    unit : {"", "copies", "mbarriers", "bulk", "products", "proxies", "tensor"}
        Asynchronous unit, whose memory a launch needs: ``cp.async``; mbarriers; operations that complete like bulk
        copies; products of warpgroups; fences between proxies; tensor memory.
    ends : bool
        Whether a basic block ends after it: control may branch, or lanes wait.
    """

    name: str
    kind: type[Form]
    words: tuple[str, ...]
    syntax: Syntax
    sources: int | None
    unit: str
    ends: bool


FORMS: dict[str, list[Grammar]] = {}
"""Grammars by the beginning of an instruction's text; the longest one is valid, and of several with that name, the last
one whose types and words the instruction has, or the first one.
"""


def form(
    *names: str,
    words: tuple[str, ...] = (),
    syntax: Syntax = Syntax(),  # noqa: B008
    sources: int | None = None,
    unit: str = "",
    ends: bool = False,
) -> Callable[[type[_FormT]], type[_FormT]]:
    """Decorator that makes a class a frozen dataclass, and adds it to the table (arguments: see :class:`Grammar`)."""

    def add(kind: type[_FormT]) -> type[_FormT]:
        if "__dataclass_fields__" not in vars(kind):
            dataclass(frozen=True)(kind)
        for name in names:
            others = FORMS.setdefault(name, [])
            assert kind is Computation or not others, f"two grammars for {name}"
            others.append(Grammar(name, kind, words, syntax, sources, unit, ends))
        return kind

    return add


def find_grammar(instruction: Instruction) -> Grammar | None:
    """The entry of an instruction in the table of forms; its modifiers need not be supported."""
    return _find_grammar(instruction.opcode, instruction.mods)


@lru_cache(maxsize=4096)
def _find_grammar(opcode: str, mods: tuple[str, ...]) -> Grammar | None:
    grammars = find_handler(FORMS, ".".join((opcode, *mods)))
    if grammars is None:
        return None
    types = [mod for mod in mods if mod in TYPES]
    fitting = (each for each in reversed(grammars) if {*mods} >= {*each.words} and each.syntax.allows(types))
    return next(fitting, grammars[0])


def has_form(instruction: Instruction, kind: type[Form]) -> bool:
    """Whether an instruction has a form of ``kind``; its modifiers are not read."""
    grammar = find_grammar(instruction)
    return grammar is not None and issubclass(grammar.kind, kind)


def form_of(instruction: Instruction, kind: type[_FormT]) -> _FormT:
    """The modifiers of an instruction, of a form of ``kind``.

    Raises
    ------
    UnsupportedInstruction
        For modifiers or operands outside the grammar.
    """
    if instruction.form is None:
        grammar = find_grammar(instruction)
        if grammar is None:
            raise UnsupportedInstruction(f"opcode {instruction.text} is not modelled", instruction.line)
        mods = Mods(instruction, grammar.syntax)
        del mods.left[: grammar.name.count(".")]
        parts = [each.metadata["take"](mods) for each in fields(grammar.kind)[1:]]
        mods.end(grammar.words)
        if grammar.sources not in (None, len(instruction.operands) - 1):
            number = "one source operand" if grammar.sources == 1 else f"{grammar.sources} source operands"
            raise mods.unsupported(f"expected {number}")
        record = grammar.kind(grammar.name, *parts)
        why = record.refusal(instruction.operands)
        if why:
            raise mods.unsupported(why)
        object.__setattr__(instruction, "form", record)
    assert isinstance(instruction.form, kind)
    return instruction.form


def known_form(instruction: Instruction, kind: type[_FormT]) -> _FormT | None:
    """The modifiers of an instruction of a form of ``kind``; None for other forms, and if they are not supported."""
    if instruction.form is None:
        try:
            form_of(instruction, Form)
        except (UnsupportedInstruction, *WRONG_OPERANDS):
            return None
    return instruction.form if isinstance(instruction.form, kind) else None


WRONG_OPERANDS = (IndexError, ValueError, StopIteration)
"""Further exceptions for instructions with a wrong number of operands, or without a type."""


def part(take: Callable[[Mods], Any]) -> Any:
    """A field that ``take`` reads from the modifiers or the operands."""
    return field(metadata={"take": take})


def flag(name: str) -> Any:
    """A field: whether a modifier is present."""
    return part(lambda mods: mods.flag(name))


def choice(*names: str, default: str | None = None) -> Any:
    """A field: one modifier of ``names``; required without a default."""
    return part(lambda mods: mods.choice(names, default))


def space() -> Any:
    """A field: the state space of an address."""
    return part(take_space)


def element(*names: str) -> Any:
    """A field: the next type, one of ``names``, or any."""
    return part(lambda mods: mods.type(names))


class Computation(Form):
    """Modifiers that are types, alternatives and flags.

    Attributes
    ----------
    types : tuple of PtxType
    modes : tuple of str
        One modifier of each list of alternatives; empty if it is absent.
    flags : frozenset of str
        Modifiers that may be absent, and required ones.
    """

    types: tuple[PtxType, ...] = part(lambda mods: tuple(map(mods.type, mods.syntax.types)))
    modes: tuple[str, ...] = part(
        lambda mods: tuple(mods.choice(filter(None, names), "" if "" in names else None) for names in mods.syntax.modes)
    )
    flags: frozenset[str] = part(lambda mods: frozenset(filter(mods.flag, mods.syntax.flags)))

    @property
    def type(self) -> PtxType:
        """The first type."""
        return self.types[0]

    @property
    def named_spaces(self) -> frozenset[str]:
        """As for every form; some flags are spaces."""
        return SPACES & {each.partition("::")[0] for each in self.flags}


def compute(
    names: str,
    *types: str | tuple[str, ...],
    sources: int | None = None,
    words: str = "",
    modes: Sequence[str | tuple[str, ...]] = (),
    flags: str = "",
    unit: str = "",
    ends: bool = False,
) -> None:
    """Add computations to the table; several names or modifiers are separated by spaces (arguments: see
    :class:`Grammar`)."""

    def split(group: str | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(group.split()) if isinstance(group, str) else group

    required = tuple(words.split())
    syntax = Syntax(tuple(map(split, types)), tuple(map(split, modes)), (*flags.split(), *required))
    form(*names.split(), words=required, syntax=syntax, sources=sources, unit=unit, ends=ends)(Computation)


def groups(most: int | None = None) -> Any:
    """A field: the number of groups of a wait, its first operand."""

    def take(mods: Mods) -> int:
        number = mods.instruction.operands[0] if mods.instruction.operands else None
        value = number.value if isinstance(number, Immediate) else None
        if isinstance(value, int) and value >= 0 and (most is None or value <= most):
            return value
        raise mods.unsupported("expected a number of groups" + (f" from 0 to {most}" if most is not None else ""))

    return part(take)
