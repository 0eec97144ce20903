"""PTX text to :mod:`sdpalab.sim.ir` (PTX ISA, "Syntax"). Reads what NVRTC, nvcc, Triton and people write."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache

from sdpalab.sim.errors import PtxSyntaxError, UnsupportedInstruction
from sdpalab.sim.ir import (
    Address,
    Entry,
    Guard,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Param,
    PtxModule,
    Register,
    Symbol,
    TensorAddress,
    Variable,
    Vector,
)
from sdpalab.sim.types import TYPES, PtxType

__all__ = ["parse"]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_SPACE = re.compile(r"\s*")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([%\w$]+)\s+)?([a-z][\w]*(?:\.[\w:]+|::\w+)*)\s*(.*)\Z", re.S)
_LINE_DIRECTIVE = re.compile(r"\.(loc|file)\b([^\n]*)")
_ENTRY = re.compile(r"(?:\.(?:visible|weak|extern)\s+)?\.(entry|func)\b")
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?\Z")
_OCTAL = re.compile(r"[+-]?0[0-7]+")
_DECIMAL = re.compile(r"[+-]?\d+\.\d*(?:[eE][+-]?\d+)?\Z")
_ADDRESS = re.compile(r"\s*([%\w$.]+)?\s*(?:([+-])\s*([+-]?\s*\w+))?\s*\Z")
_TENSOR_ADDRESS = re.compile(r"\[([^,{\]]*),\s*\{([^}]*)\}\s*\]\Z")
_VARIABLE = re.compile(
    r"(?:\.(?:visible|weak|extern|common)\s+)?\.(shared|global|const|local|param)\s+"
    r"(?:\.align\s+(\d+)\s+)?(?:\.v([248])\s+)?\.(\w+)\s+([\w$%]+)\s*((?:\[\w*\]\s*)*)(?:=\s*(.*))?\Z",
    re.S,
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?([\w$%]+)\s*(?:\[(\w+)\])?\Z"
)
_ITEM = re.compile(r"\s*(\{[^}]*\}|\[[^\]]*\]|[^,\[{]+)\s*(?:,|\Z)")
_REGISTERS = re.compile(r"\.reg\s*(?:\.v[248]\s*)?\.(\w+)\s+(.*)\Z", re.S)


@lru_cache(maxsize=64)
def parse(text: str) -> PtxModule:
    """Parse a PTX module. Results are shared: do not change them.

    Raises
    ------
    PtxSyntaxError
        If the text is not PTX; the message has the line and what was expected.
    UnsupportedInstruction
        For what is PTX but not modelled, such as device functions that were not inlined.
    """
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
        self.newlines = [match.start() for match in re.finditer("\n", self.text)]
        self.at = 0
        self.out = PtxModule()

    def line(self, at: int) -> int:
        return bisect_right(self.newlines, at - 1) + 1

    def error(self, message: str, at: int | None = None) -> PtxSyntaxError:
        return PtxSyntaxError(message, self.line(self.at if at is None else at))

    def skip_space(self) -> bool:
        """Move to the next token; False at the end of the text."""
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.at < len(self.text)

    def statement(self) -> str:
        """The text up to the next semicolon, which is consumed."""
        end = self.text.find(";", self.at)
        if end < 0:
            raise self.error(f"expected ';' after {_clip(self.text[self.at :])!r}")
        body = self.text[self.at : end]
        self.at = end + 1
        return body.strip()

    # ---- module level ---------------------------------------------------------------------------------------------

    def module(self) -> PtxModule:
        while self.skip_space():
            start = self.at
            line_directive = _LINE_DIRECTIVE.match(self.text, start)
            if line_directive:
                self.line_directive(line_directive)
                continue
            if self.text.startswith((".version", ".target", ".address_size"), start):
                self.header()
            elif self.text.startswith(".section", start):
                self.skip_braces()
            elif _ENTRY.match(self.text, start):
                self.entry()
            elif self.text[start] == ".":
                self.module_directive()
            else:
                raise self.error(f"expected a directive, found {_clip(self.text[start:])!r}")
        if not self.out.version:
            raise PtxSyntaxError("expected a .version directive", 1)
        return self.out

    def header(self) -> None:
        end = self.text.find("\n", self.at)
        name, _, rest = self.text[self.at : end if end >= 0 else len(self.text)].partition(" ")
        if name == ".version":
            self.out.version = rest.strip()
        elif name == ".target":
            self.out.target = rest.split(",")[0].strip()
        elif rest.strip() != "64":
            raise self.error(f"expected .address_size 64, found {rest.strip()!r}")
        self.at = end if end >= 0 else len(self.text)

    def line_directive(self, match: re.Match[str]) -> tuple[int, int] | None:
        """Consume ``.file`` or ``.loc``; the location of a ``.loc``."""
        self.at = match.end()
        words = match.group(2).replace(",", " ").split()
        try:
            if match.group(1) == "file":
                self.out.files[int(words[0])] = match.group(2).split('"')[1]
                return None
            return int(words[0]), int(words[1])
        except (IndexError, ValueError):
            expected = '.file NUMBER "NAME"' if match.group(1) == "file" else ".loc FILE LINE COLUMN"
            raise self.error(f"expected {expected}, found {_clip(match.group(0))!r}", match.start()) from None

    def skip_braces(self) -> None:
        depth, at = 0, self.text.find("{", self.at)
        if at < 0:
            raise self.error("expected '{'")
        for match in re.finditer(r"[{}]", self.text[at:]):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                self.at = at + match.end()
                return
        raise self.error("expected '}' before the end of the text")

    def module_directive(self) -> None:
        start = self.at
        body = self.statement()
        variable = self.variable(body, start)
        if variable is not None:
            self.out.variables[variable.name] = variable
        elif not body.startswith((".pragma", ".extern .func", ".alias")):
            raise self.error(f"expected a variable or a function, found {_clip(body)!r}", start)

    def alignment(self, align: str | None, natural: int, start: int) -> int:
        value = int(align or natural)
        if value.bit_count() != 1:
            raise self.error(f"expected an alignment that is a power of two, found {value}", start)
        return value

    def variable(self, body: str, start: int) -> Variable | None:
        match = _VARIABLE.match(body)
        if match is None:
            return None
        space, align, vector, type_name, name, dims, initial = match.groups()
        size = self.type(type_name, start).bytes * int(vector or 1)
        element = size
        for dim in re.findall(r"\[(\w*)\]", dims):
            size *= _integer(dim, self.line(start)) if dim else 0
        data = b""
        if initial:
            items = re.findall(r"[^\s,{}]+", initial)
            data = b"".join(self.initial(item, element, start) for item in items)
            size = max(size, len(data))
        return Variable(name, space, size, self.alignment(align, element, start), data)

    def initial(self, text: str, size: int, start: int) -> bytes:
        """One element of a variable's initial value."""
        if text[0] not in "+-0123456789":
            raise UnsupportedInstruction(
                f"an initial value that is an address ({text}) is not modelled", self.line(start)
            )
        value = self.literal(text, start).value
        if isinstance(value, float):
            return struct.pack("<f" if size == 4 else "<d", value)
        return (value & (1 << 8 * size) - 1).to_bytes(size, "little")

    def type(self, name: str, at: int) -> PtxType:
        try:
            return TYPES[name]
        except KeyError:
            raise UnsupportedInstruction(f"type .{name} is not modelled", self.line(at)) from None

    # ---- entries ----------------------------------------------------------------------------------------------------

    def entry(self) -> None:
        start = self.at
        match = _ENTRY.match(self.text, start)
        assert match is not None
        brace, semicolon = self.text.find("{", start), self.text.find(";", start)
        if brace < 0 or 0 <= semicolon < brace:
            self.statement()  # a declaration without a body
            return
        if match.group(1) == "func":
            raise UnsupportedInstruction(
                "device functions (.func) that were not inlined are not modelled", self.line(start)
            )
        head = re.match(r"\s*([\w$]+)\s*(?:\((.*?)\))?(.*)\Z", self.text[match.end() : brace], re.S)
        if head is None:
            raise self.error("expected the entry's name and its parameters")
        entry = Entry(head.group(1))
        self.params(entry, head.group(2) or "", start)
        for name, numbers in re.findall(r"\.(\w+)[ \t]*([\d, ]*)", head.group(3)):
            entry.directives[name] = tuple(int(number) for number in re.findall(r"\d+", numbers))
        self.at = brace + 1
        self.body(entry)
        self.out.entries[entry.name] = entry

    def params(self, entry: Entry, text: str, start: int) -> None:
        offset = 0
        for item in filter(None, (part.strip() for part in text.split(","))):
            match = _PARAM.match(item)
            if match is None:
                raise self.error(f"expected a parameter, found {_clip(item)!r}", start)
            align, type_name, name, count = match.groups()
            type_ = self.type(type_name, start)
            size = type_.bytes * (_integer(count, self.line(start)) if count else 1)
            step = self.alignment(align, type_.bytes, start)
            offset = -(-offset // step) * step
            entry.params.append(Param(name, type_, size, offset))
            offset += size

    def body(self, entry: Entry) -> None:
        scopes = [_Scope("")]
        branches: list[tuple[int, tuple[_Scope, ...]]] = []
        loc: tuple[int, int] | None = None
        opened = 0
        while scopes:
            if not self.skip_space():
                raise self.error("expected '}' before the end of the text")
            start, character = self.at, self.text[self.at]
            if character == "{":
                opened += 1
                scopes.append(_Scope(f"@{opened}"))
                self.at += 1
            elif character == "}":
                scopes.pop()
                self.at += 1
            elif character == ".":
                directive = _LINE_DIRECTIVE.match(self.text, start)
                if directive:
                    loc = self.line_directive(directive) or loc
                else:
                    self.declaration(entry, self.statement(), scopes[-1], start)
            elif label := _LABEL.match(self.text, start):
                self.at = label.end()
                unique = scopes[-1].declare(label.group(1))
                if unique in entry.labels:
                    raise self.error(f"label {label.group(1)} is declared twice", start)
                entry.labels[unique] = len(entry.instructions)
            elif body := self.statement():
                instruction = self.instruction(body, len(entry.instructions), start, loc, scopes)
                if instruction.opcode == "bra":
                    branches.append((instruction.pc, tuple(scopes)))
                entry.instructions.append(instruction)
        for pc, around in branches:
            entry.instructions[pc] = self.resolve_target(entry, entry.instructions[pc], around)

    def declaration(self, entry: Entry, body: str, scope: _Scope, start: int) -> None:
        """``.reg``, a variable, or a ``.pragma`` inside a body."""
        match = _REGISTERS.match(body)
        if match:
            type_ = self.type(match.group(1), start)
            for name in (part.strip() for part in match.group(2).split(",")):
                ranged = re.fullmatch(r"([%\w$]+)<(\d+)>", name)
                names = [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [name]
                scope.registers.update(names)
                for item in names:
                    entry.registers[scope.declare(item)] = type_
            return
        variable = self.variable(body, start)
        if variable is not None:
            if variable.space == "param":
                raise UnsupportedInstruction("device function calls are not modelled", self.line(start))
            unique = scope.declare(variable.name)
            entry.variables[unique] = replace(variable, name=unique)
        elif not body.startswith(".pragma"):
            raise self.error(f"expected a declaration, found {_clip(body)!r}", start)

    def instruction(
        self, body: str, pc: int, start: int, loc: tuple[int, int] | None, scopes: list[_Scope]
    ) -> Instruction:
        match = _INSTRUCTION.match(body)
        if match is None:
            raise self.error(f"expected an instruction, found {_clip(body)!r}", start)
        negated, guard_name, opcode, rest = match.groups()
        guard = None
        if guard_name:
            register = self.operand(guard_name, scopes, start)
            if not isinstance(register, Register):
                raise self.error(f"expected a predicate register after '@', found {guard_name!r}", start)
            guard = Guard(register, bool(negated))
        operands = tuple(self.operand(item, scopes, start) for item in _split(rest)) if rest else ()
        base, *mods = opcode.split(".")
        return Instruction(pc, base, tuple(mods), operands, guard, self.line(start), loc)

    def operand(self, text: str, scopes: list[_Scope], start: int) -> Operand:
        cache = scopes[-1].operands
        found = cache.get(text)
        if found is None:
            found = cache[text] = self.parse_operand(text, scopes, start)
        return found

    def parse_operand(self, text: str, scopes: list[_Scope], start: int) -> Operand:
        if not text:
            raise self.error("expected an operand, found nothing", start)
        if text.startswith("{"):
            return Vector(tuple(self.operand(item, scopes, start) for item in _split(text[1:-1])))
        if text.startswith("["):
            tensor = _TENSOR_ADDRESS.match(text)
            if tensor is not None:
                address = self.operand(f"[{tensor[1]}]", scopes, start)
                assert isinstance(address, Address)
                return TensorAddress(address, tuple(self.operand(item, scopes, start) for item in _split(tensor[2])))
            match = _ADDRESS.match(text[1:-1])
            if match is None:
                raise UnsupportedInstruction(f"address {text} is not modelled", self.line(start))
            base, sign, offset = match.groups()
            shift = _integer(offset.replace(" ", ""), self.line(start)) if offset else 0
            shift = -shift if sign == "-" else shift
            if base is None or _INTEGER.match(base):
                return Address(None, shift + (_integer(base, self.line(start)) if base else 0))
            named = self.operand(base, scopes, start)
            if not isinstance(named, (Register, Symbol)):
                raise self.error(f"expected a register or a variable in {text!r}", start)
            return Address(named, shift)
        if text[:1] == "!":
            return Negated(self.operand(text[1:].strip(), scopes, start))
        if "|" in text:
            first, _, second = text.partition("|")
            return Pair(self.operand(first.strip(), scopes, start), self.operand(second.strip(), scopes, start))
        if text[0].isdigit() or text[0] in "+-":
            return self.literal(text, start)
        for scope in reversed(scopes):
            if text in scope.names:
                unique = scope.names[text]
                return Register(unique) if text in scope.registers else Symbol(unique)
        return Register(text) if text.startswith("%") else Symbol(text)

    def literal(self, text: str, start: int) -> Immediate:
        if text[:2] in ("0f", "0F") and len(text) == 10:
            bits = int(text[2:], 16)
            return Immediate(struct.unpack("<f", struct.pack("<I", bits))[0], 32)
        if text[:2] in ("0d", "0D") and len(text) == 18:
            bits = int(text[2:], 16)
            return Immediate(struct.unpack("<d", struct.pack("<Q", bits))[0], 64)
        if _DECIMAL.match(text):
            return Immediate(float(text), 64)
        return Immediate(_integer(text, self.line(start)))

    def resolve_target(self, entry: Entry, instruction: Instruction, scopes: tuple[_Scope, ...]) -> Instruction:
        """Bind a branch's label, which may be declared after it, in the innermost scope that has it."""
        target = instruction.operands[0] if instruction.operands else None
        name = target.name if isinstance(target, Symbol) else ""
        for scope in reversed(scopes):
            unique = scope.names.get(name.split("@")[0])
            if unique in entry.labels:
                return replace(instruction, operands=(Symbol(str(unique)),))
        raise PtxSyntaxError(f"branch to the label {name or '?'!r}, which is not declared", instruction.line)


@dataclass
class _Scope:
    """The names declared between a pair of braces, each with the name that makes it unique in its entry."""

    suffix: str
    names: dict[str, str] = field(default_factory=dict)
    registers: set[str] = field(default_factory=set)
    operands: dict[str, Operand] = field(default_factory=dict)

    def declare(self, name: str) -> str:
        self.names[name] = name + self.suffix
        self.operands.clear()
        return self.names[name]


def _split(text: str) -> list[str]:
    """Split at the commas that are outside brackets and braces."""
    if "{" not in text and "[" not in text:
        return [item.strip() for item in text.split(",")]
    return [item.strip() for item in _ITEM.findall(text)]


def _integer(text: str, line: int) -> int:
    if not _INTEGER.match(text):
        raise PtxSyntaxError(f"expected an integer, found {_clip(text)!r}", line)
    digits = text.rstrip("U")
    try:
        return int(digits, 8 if _OCTAL.fullmatch(digits) else 0)
    except ValueError:
        raise PtxSyntaxError(f"expected an integer, found {_clip(text)!r}", line) from None


def _clip(text: str) -> str:
    first = text.strip().split("\n")[0]
    return first if len(first) <= 60 else first[:57] + "..."
