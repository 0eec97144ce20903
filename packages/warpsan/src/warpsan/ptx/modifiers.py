"""Modifiers of an instruction, consumed one by one; an unconsumed modifier is an error, so none is ignored silently."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.ir import Instruction, Operand
from warpsan.ptx.types import TYPES, PtxType

__all__ = ["Mods", "find_handler", "registering", "require", "take_space", "unknown_register"]

_Entry = TypeVar("_Entry")

_NO_TIME, _NO_PLACE = "a simulated run has no time", "the simulator has no SMs that blocks are placed on"
_WITHOUT_VALUE = {
    **dict.fromkeys(("%clock", "%globaltimer"), "a clock, which counts steps here, is read with mov"),
    "%pm": _NO_TIME,
    **dict.fromkeys(("%smid", "%nsmid"), _NO_PLACE),
}
"""Reasons why special registers have no value, by name prefix: an invented value would be misleading."""


def find_handler(table: dict[str, _Entry], instruction: Instruction) -> _Entry | None:
    """The table entry of the longest matching prefix of an instruction's text."""
    key = instruction.text
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


class Mods:
    """Modifiers of an instruction, consumed one by one; unconsumed modifiers are unsupported."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.left = list(instruction.mods)

    def flag(self, name: str) -> bool:
        """Consume a modifier, and return whether it was present."""
        if name in self.left:
            self.left.remove(name)
            return True
        return False

    def choice(self, names: Iterable[str], default: str | None = None) -> str:
        """Consume the modifier among ``names``; without one, the default, or unsupported without a default."""
        for name in names:
            if self.flag(name):
                return name
        if default is None:
            raise self.unsupported(f"expected one of {', '.join('.' + name for name in names)}")
        return default

    def type(self) -> PtxType:
        """Consume the next type suffix, from the left."""
        for name in self.left:
            if name in TYPES:
                self.left.remove(name)
                return TYPES[name]
        raise self.unsupported("expected a modelled type")

    def done(self) -> None:
        """Raise UnsupportedInstruction for unconsumed modifiers."""
        if self.left:
            raise self.unsupported("not modelled: " + ", ".join("." + name for name in self.left))

    def operands(self, sources: int) -> tuple[Operand, ...]:
        """A destination and ``sources`` sources; unsupported for other counts."""
        if len(self.instruction.operands) != 1 + sources:
            raise self.unsupported(f"expected {sources} source operands")
        return self.instruction.operands

    def only(self, *names: str) -> None:
        """Consume these required modifiers; any other is unsupported."""
        for name in names:
            self.choice((name,))
        self.done()

    def unsupported(self, why: str) -> UnsupportedInstruction:
        """The exception for this instruction."""
        return UnsupportedInstruction(f"{self.instruction.text}: {why}", self.instruction.line)


def require(mods: Mods, type_: PtxType, names: tuple[str, ...]) -> None:
    """Reject a type outside those of the instruction.

    Raises
    ------
    UnsupportedInstruction
        If ``type_`` is not in ``names``.
    """
    if type_.name not in names:
        raise mods.unsupported(f"expected one of {', '.join('.' + name for name in names)}, not .{type_.name}")


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
