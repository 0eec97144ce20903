"""Operands of instructions, and name resolution (PTX ISA, "Instruction Operands", "Constants")."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from warpsan.engine.arrays import WARP
from warpsan.ptx.ir import Address, Immediate, Negated, Operand, Pair, Register, Symbol, TensorAddress, Vector
from warpsan.ptx.text import INTEGER, PtxText, integer, split_items

__all__ = ["Scope", "literal", "parse_operand"]

_DECIMAL = re.compile(r"[+-]?\d+\.\d*(?:[eE][+-]?\d+)?\Z")
_ADDRESS = re.compile(r"\s*([%\w$.]+)?\s*(?:([+-])\s*([+-]?\s*\w+))?\s*\Z")
_TENSOR_ADDRESS = re.compile(r"\[([^,{\]]*),\s*\{([^}]*)\}\s*\]\Z")


@dataclass
class Scope:
    """Names declared in a pair of braces, each with its unique name in the module."""

    suffix: str
    names: dict[str, str] = field(default_factory=dict)
    registers: set[str] = field(default_factory=set)
    operands: dict[str, Operand] = field(default_factory=dict)
    """Parsed operands by text."""

    def declare(self, name: str, *, register: bool = False) -> str:
        """Add a name, and return its unique name."""
        self.names[name] = name + self.suffix
        if register:
            self.registers.add(name)
        self.operands.clear()
        return self.names[name]


def parse_operand(text: str, scopes: Sequence[Scope], source: PtxText, start: int) -> Operand:
    """Parse an operand; ``scopes`` are the surrounding scopes, innermost last.

    Raises
    ------
    PtxSyntaxError, UnsupportedInstruction
        If the operand is invalid or has no model; with the line of ``start``.
    """
    cache = scopes[-1].operands
    operand = cache.get(text)
    if operand is None:
        operand = cache[text] = _operand(text, scopes, source, start)
    return operand


def _operand(text: str, scopes: Sequence[Scope], source: PtxText, start: int) -> Operand:
    if not text:
        raise source.error("expected an operand, found nothing", start)
    if text.startswith("{"):
        return Vector(tuple(parse_operand(item, scopes, source, start) for item in split_items(text[1:-1])))
    if text.startswith("["):
        return _address(text, scopes, source, start)
    if text[:1] == "!":
        return Negated(parse_operand(text[1:].strip(), scopes, source, start))
    if "|" in text:
        first, _, second = text.partition("|")
        return Pair(*(parse_operand(item.strip(), scopes, source, start) for item in (first, second)))
    if text[0].isdigit() or text[0] in "+-":
        return literal(text, source.line(start))
    if text == "WARP_SZ":  # PTX ISA, "Predefined Constants"
        return literal(str(WARP), source.line(start))
    for scope in reversed(scopes):
        if text in scope.names:
            unique = scope.names[text]
            return Register(unique) if text in scope.registers else Symbol(unique)
    return Register(text) if text.startswith("%") else Symbol(text)


def _address(text: str, scopes: Sequence[Scope], source: PtxText, start: int) -> Address | TensorAddress:
    tensor = _TENSOR_ADDRESS.match(text)
    if tensor is not None:
        address = parse_operand(f"[{tensor[1]}]", scopes, source, start)
        assert isinstance(address, Address)
        items = split_items(tensor[2])
        return TensorAddress(address, tuple(parse_operand(item, scopes, source, start) for item in items))
    match = _ADDRESS.match(text[1:-1])
    if match is None:
        raise source.unsupported(f"address {text} is not modelled", start)
    base, sign, offset = match.groups()
    shift = integer(offset.replace(" ", ""), source.line(start)) if offset else 0
    shift = -shift if sign == "-" else shift
    if base is None or INTEGER.match(base):
        return Address(None, shift + (integer(base, source.line(start)) if base else 0))
    named = parse_operand(base, scopes, source, start)
    if not isinstance(named, (Register, Symbol)):
        raise source.error(f"expected a register or a variable in {text!r}", start)
    return Address(named, shift)


def literal(text: str, line: int) -> Immediate:
    """A number as an operand: hexadecimal float patterns, decimal floats, integers."""
    if text[:2] in ("0f", "0F") and len(text) == 10:
        bits = int(text[2:], 16)
        return Immediate(struct.unpack("<f", struct.pack("<I", bits))[0], 32)
    if text[:2] in ("0d", "0D") and len(text) == 18:
        bits = int(text[2:], 16)
        return Immediate(struct.unpack("<d", struct.pack("<Q", bits))[0], 64)
    if _DECIMAL.match(text):
        return Immediate(float(text), 64)
    return Immediate(integer(text, line))
