"""Declarations: variables with their initial values, and the parameters of entries and functions (PTX ISA, "Variables",
"Kernel and Function Directives")."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from warpsan.ptx.ir import Function, Param, Register, Relocation, Symbol, Variable
from warpsan.ptx.operands import Scope, literal
from warpsan.ptx.text import PtxText, clip, integer

__all__ = ["entry_params", "formals", "variable"]

_VARIABLE = re.compile(
    r"(?:\.(?:visible|weak|extern|common)\s+)?\.(shared|global|const|local|param)\s+"
    r"(?:\.attribute\s*\([^)]*\)\s*)?(?:\.align\s+(\d+)\s+)?(?:\.v([248])\s+)?\.(\w+)\s+([\w$%]+)\s*((?:\[\w*\]\s*)*)(?:=\s*(.*))?\Z",
    re.S,
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?([\w$%]+)\s*(?:\[(\w+)\])?\Z"
)
_ADDRESS = re.compile(r"(?:(generic)\(([\w$%]+)\)|([A-Za-z_$%][\w$]*))(?:\+(\w+))?\Z")
_OPAQUE = ("texref", "samplerref", "surfref")
"""Types of textures, samplers and surfaces; declarations are valid, and their use is rejected on execution."""
_REGISTER = re.compile(r"\.reg\s*\.(\w+)\s+([\w$%]+)\Z")


def variable(body: str, source: PtxText, start: int) -> Variable | None:
    """The variable that a statement declares; None for other statements."""
    match = _VARIABLE.match(body)
    if match is None:
        return None
    space, align, vector, type_name, name, dims, initial = match.groups()
    if type_name in _OPAQUE:
        return Variable(name, "opaque", 0, 1)
    size = source.type(type_name, start).bytes * int(vector or 1)
    element = size
    for dim in re.findall(r"\[(\w*)\]", dims):
        size *= integer(dim, source.line(start)) if dim else 0
    pieces, relocations = [], []
    for place, item in enumerate(re.findall(r"[^\s,{}]+", initial or "")):
        if item[0] in "+-0123456789":
            pieces.append(_initial(item, element, source, start))
        else:
            relocations.append(_relocation(item, place * element, element, source, start))
            pieces.append(bytes(element))
    data = b"".join(pieces)
    alignment = source.alignment(align, element, start)
    return Variable(name, space, max(size, len(data)), alignment, data, tuple(relocations))


def _relocation(text: str, offset: int, size: int, source: PtxText, start: int) -> Relocation:
    """An address as an element: ``name`` or ``generic(name)``, optionally with ``+ number``."""
    match = _ADDRESS.match(text)
    if match is None:
        raise source.unsupported(f"the initial value {clip(text)} is not modelled", start)
    generic, inner, name, addend = match.groups()
    line = source.line(start)
    return Relocation(offset, size, inner or name, integer(addend, line) if addend else 0, bool(generic), line)


def _initial(text: str, size: int, source: PtxText, start: int) -> bytes:
    """A number as an element."""
    value = literal(text, source.line(start)).value
    if isinstance(value, float):
        return struct.pack("<f" if size == 4 else "<d", value)
    return (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def entry_params(text: str, source: PtxText, start: int) -> list[Param]:
    """Parameters of an entry, with their offsets in the parameter block."""
    params: list[Param] = []
    offset = 0
    for item in _items(text):
        param, align = _param(item, source, start)
        offset = -(-offset // align) * align
        params.append(Param(param.name, param.type, param.size, offset))
        offset += param.size
    return params


def formals(text: str, function: Function, scope: Scope, source: PtxText, start: int) -> tuple[Register | Symbol, ...]:
    """Declare the parameters or results of a function in its scope: registers or ``.param`` variables."""
    declared: list[Register | Symbol] = []
    for item in _items(text):
        register = _REGISTER.match(item)
        if register is not None:
            unique = scope.declare(register[2], register=True)
            function.registers[unique] = source.type(register[1], start)
            declared.append(Register(unique))
        else:
            param, align = _param(item, source, start)
            unique = scope.declare(param.name)
            function.variables[unique] = Variable(unique, "param", param.size, align)
            declared.append(Symbol(unique))
    return tuple(declared)


def _items(text: str) -> Iterator[str]:
    return filter(None, (part.strip() for part in text.split(",")))


def _param(item: str, source: PtxText, start: int) -> tuple[Param, int]:
    """A ``.param`` without an offset, and its alignment."""
    match = _PARAM.match(item)
    if match is None:
        raise source.error(f"expected a parameter, found {clip(item)!r}", start)
    align, type_name, name, count = match.groups()
    type_ = source.type("u64" if type_name in _OPAQUE else type_name, start)
    size = type_.bytes * (integer(count, source.line(start)) if count else 1)
    return Param(name, type_, size, 0), source.alignment(align, type_.bytes, start)
