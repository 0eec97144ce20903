"""Modifiers of an instruction, consumed one by one; an unconsumed modifier is an error, so none is ignored silently."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.ir import Instruction
from warpsan.ptx.types import TYPES, PtxType

__all__ = ["Mods", "Syntax", "find_handler", "registering", "take_space", "types_of", "unknown_register"]

_Entry = TypeVar("_Entry")

_NO_TIME, _NO_PLACE = "a simulated run has no time", "the simulator has no SMs that blocks are placed on"
_WITHOUT_VALUE = {
    **dict.fromkeys(("%clock", "%globaltimer"), "a clock, which counts steps here, is read with mov"),
    "%pm": _NO_TIME,
    **dict.fromkeys(("%smid", "%nsmid"), _NO_PLACE),
}
"""Reasons why special registers have no value, by name prefix: an invented value would be misleading."""


def find_handler(table: dict[str, _Entry], text: str) -> _Entry | None:
    """The table entry of the longest matching prefix of an instruction's text."""
    key = text
    while key and key not in table:
        key = key.rpartition(".")[0]
    return table.get(key)


def registering(table: dict[str, _Entry]) -> Callable[..., Callable[[_Entry], _Entry]]:
    """Decorator that adds a handler to a table, for opcodes or for forms of them with a modifier prefix (arguments)."""

    def register(*names: str) -> Callable[[_Entry], _Entry]:
        def add(handler: _Entry) -> _Entry:
            for name in names:
                assert name not in table, f"two handlers for {name}"
                table[name] = handler
            return handler

        return add

    return register


class Syntax(NamedTuple):
    """Names of each type, of each list of alternatives, and of flags."""

    types: tuple[tuple[str, ...], ...] = ()
    modes: tuple[tuple[str, ...], ...] = ()
    flags: tuple[str, ...] = ()

    def allows(self, types: list[str]) -> bool:
        """Whether an instruction may have these types."""
        if not self.types:
            return True
        return len(types) == len(self.types) and all(map(tuple.__contains__, self.types, types))


class Mods:
    """Modifiers of an instruction, consumed one by one; unconsumed modifiers are unsupported.

    Attributes
    ----------
    left : list of str
        Unconsumed modifiers.
    syntax : Syntax
    """

    def __init__(self, instruction: Instruction, syntax: Syntax = Syntax()) -> None:  # noqa: B008
        self.instruction = instruction
        self.left = list(instruction.mods)
        self.syntax = syntax

    def flag(self, name: str) -> bool:
        """Consume a modifier, and return whether it was present."""
        if name in self.left:
            self.left.remove(name)
            return True
        return False

    def choice(self, names: Iterable[str], default: str | None = None) -> str:
        """Consume the modifier among ``names``; without one, the default, or unsupported without a default."""
        names = tuple(names)
        for name in names:
            if self.flag(name):
                return name
        if default is None:
            raise self.unsupported(f"expected one of {', '.join('.' + name for name in names)}")
        return default

    def type(self, allowed: tuple[str, ...] = ()) -> PtxType:
        """Consume the next type suffix, from the left, one of ``allowed``, or any."""
        name = next((each for each in self.left if each in TYPES), "")
        if not name:
            raise self.unsupported("expected a modelled type")
        if allowed and name not in allowed:
            raise self.unsupported(f"expected one of {', '.join('.' + each for each in allowed)}, not .{name}")
        self.left.remove(name)
        return TYPES[name]

    def end(self, words: tuple[str, ...]) -> None:
        """Raise UnsupportedInstruction without the required modifiers ``words``, or for other unconsumed ones."""
        for word in words:
            if word not in self.instruction.mods:
                raise self.unsupported(f"expected .{word}")
        left = [name for name in self.left if name not in words]
        if left:
            raise self.unsupported("not modelled: " + ", ".join("." + name for name in left))

    def unsupported(self, why: str) -> UnsupportedInstruction:
        """The exception for this instruction."""
        return UnsupportedInstruction(f"{self.instruction.text}: {why}", self.instruction.line)


def types_of(instruction: Instruction) -> list[PtxType]:
    """The types that an instruction names, in order."""
    return [TYPES[mod] for mod in instruction.mods if mod in TYPES]


def take_space(mods: Mods) -> str:
    """Consume the state space of an access: global, shared, shared::cluster, local, const, param or generic."""
    if mods.flag("shared::cta"):
        return "shared"
    if mods.flag("shared::cluster"):
        return "shared::cluster"
    if mods.flag("param::entry") or mods.flag("param::func"):
        return "param"
    return mods.choice(("global", "shared", "local", "const", "param"), default="generic")


def unknown_register(name: str) -> str:
    """Message for a register without a model."""
    why = next((f": {why}" for prefix, why in _WITHOUT_VALUE.items() if name.startswith(prefix)), "")
    return f"register {name} is not modelled{why}"
