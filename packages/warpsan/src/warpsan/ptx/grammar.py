"""Grammars of modifiers as data: a form is a frozen dataclass, and each field states the modifiers that it takes.

:func:`form_of` reads an instruction once, at its first execution, and keeps the record on the instruction. Modifiers
that no field takes are refused (:class:`~warpsan.ptx.modifiers.Mods`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from warpsan.ptx.ir import Immediate, Instruction, Operand
from warpsan.ptx.modifiers import Mods, find_handler, require, take_space
from warpsan.ptx.types import PtxType

__all__ = [
    "FORMS",
    "Form",
    "Grammar",
    "choice",
    "element",
    "flag",
    "form",
    "form_of",
    "groups",
    "has_form",
    "part",
    "space",
]

_FormT = TypeVar("_FormT", bound="Form")


@dataclass(frozen=True)
class Form:
    """The modifiers of an instruction; this class itself is a form without optional modifiers.

    Attributes
    ----------
    name : str
        The beginning of the instruction's text that selects the form.
    """

    name: str

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
    role : {"", "orders", "issues", "copies"}
        Role in synchronisation: it orders threads, other than by a barrier of the block; it also issues operations that
        land by themselves, when nothing else can run; or it belongs to ``cp.async``, which an mbarrier may wait for.
    """

    name: str
    kind: type[Form]
    words: tuple[str, ...]
    role: str


FORMS: dict[str, Grammar] = {}
"""Grammars by the beginning of an instruction's text; the longest one is valid."""


def form(*names: str, words: tuple[str, ...] = (), role: str = "orders") -> Callable[[type[_FormT]], type[_FormT]]:
    """Decorator that makes a class a frozen dataclass, and adds it to the table (arguments: see :class:`Grammar`)."""

    def add(kind: type[_FormT]) -> type[_FormT]:
        if "__dataclass_fields__" not in vars(kind):
            dataclass(frozen=True)(kind)
        for name in names:
            assert name not in FORMS, f"two grammars for {name}"
            FORMS[name] = Grammar(name, kind, words, role)
        return kind

    return add


def has_form(instruction: Instruction, kind: type[Form]) -> bool:
    """Whether an instruction has a form of ``kind``; its modifiers are not read."""
    grammar = find_handler(FORMS, instruction)
    return grammar is not None and issubclass(grammar.kind, kind)


def form_of(instruction: Instruction, kind: type[_FormT]) -> _FormT:
    """The modifiers of an instruction, of a form of ``kind``.

    Raises
    ------
    UnsupportedInstruction
        For modifiers or operands outside the grammar.
    """
    if instruction.form is None:
        grammar = find_handler(FORMS, instruction)
        assert grammar is not None
        mods = Mods(instruction)
        del mods.left[: grammar.name.count(".")]
        parts = [each.metadata["take"](mods) for each in fields(grammar.kind)[1:]]
        mods.only(*grammar.words)
        record = grammar.kind(grammar.name, *parts)
        why = record.refusal(instruction.operands)
        if why:
            raise mods.unsupported(why)
        object.__setattr__(instruction, "form", record)
    assert isinstance(instruction.form, kind)
    return instruction.form


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
    """A field: the type, one of ``names``."""

    def take(mods: Mods) -> PtxType:
        type_ = mods.type()
        require(mods, type_, names)
        return type_

    return part(take)


def groups(most: int | None = None) -> Any:
    """A field: the number of groups of a wait, its first operand."""

    def take(mods: Mods) -> int:
        number = mods.instruction.operands[0] if mods.instruction.operands else None
        value = number.value if isinstance(number, Immediate) else None
        if isinstance(value, int) and value >= 0 and (most is None or value <= most):
            return value
        raise mods.unsupported("expected a number of groups" + (f" from 0 to {most}" if most is not None else ""))

    return part(take)
