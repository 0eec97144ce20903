"""Bodies of entries and functions: scopes, labels, declarations and instructions (PTX ISA, "Syntax")."""

from __future__ import annotations

import re
from dataclasses import replace

from warpsan.errors import PtxSyntaxError
from warpsan.ptx.declarations import variable
from warpsan.ptx.ir import Code, Guard, Instruction, Location, Operand, Register, Symbol, Vector
from warpsan.ptx.operands import Scope, parse_operand
from warpsan.ptx.text import PtxText, clip, split_items

__all__ = ["LINE_DIRECTIVE", "BodyParser", "line_directive"]

LINE_DIRECTIVE = re.compile(r"\.(loc|file)\b([^\n]*)")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([%\w$]+)\s+)?([a-z][\w]*(?:\.[\w:]+|::\w+)*)\s*(.*)\Z", re.S)
_CALL = re.compile(r"(?:\(([^)]*)\)\s*,\s*)?([%\w$]+)\s*(?:,\s*\(([^)]*)\)\s*)?(?:,\s*([%\w$]+)\s*)?\Z", re.S)
_REGISTERS = re.compile(r"\.reg\s*(?:\.v[248]\s*)?\.(\w+)\s+(.*)\Z", re.S)
_TARGETS = re.compile(r"\.branchtargets\s+(.*)\Z", re.S)
_DEEPEST = 16
"""Maximum depth of inlined calls in a location; outer calls are omitted."""
_WITHOUT_EFFECT = (".pragma", ".callprototype", ".calltargets")
"""Directives without effect in a body; instructions that need them are rejected on execution."""


def line_directive(
    match: re.Match[str], source: PtxText, files: dict[int, str], calls: dict[tuple[int, int, int], Location]
) -> Location | None:
    """Consume ``.file`` or ``.loc``: the location of a ``.loc``, or None after an addition to ``files``.

    ``calls`` holds the last location at each place. A call's ``.loc`` precedes that of the code inlined there, and
    links to the surrounding calls (PTX ISA, ".loc").
    """
    source.at = match.end()
    words = match.group(2).replace(",", " ").split()
    try:
        if match.group(1) == "file":
            files[int(words[0])] = match.group(2).split('"')[1]
            return None
        place = int(words[0]), int(words[1]), int(words[2]) if len(words) > 2 else 0
        caller = None
        if "inlined_at" in words:
            start = words.index("inlined_at") + 1
            call = int(words[start]), int(words[start + 1]), int(words[start + 2])
            caller = calls.get(call) or Location(*call)
            if len(caller.chain) >= _DEEPEST:
                caller = Location(*call)
        calls[place] = Location(*place, caller)
        return calls[place]
    except (IndexError, ValueError):
        expected = '.file NUMBER "NAME"' if match.group(1) == "file" else ".loc FILE LINE COLUMN"
        raise source.error(f"expected {expected}, found {clip(match.group(0))!r}", match.start()) from None


class BodyParser:
    """Parser of one body, from after its opening brace.

    Parameters
    ----------
    source : PtxText
    code : Code
        The entry or function to fill.
    scope : Scope
        Its outermost scope, with the declared parameters.
    files : dict
        Source files of the module by number.
    """

    def __init__(self, source: PtxText, code: Code, scope: Scope, files: dict[int, str]) -> None:
        self.source, self.code, self.files = source, code, files
        self.scopes = [scope]
        self.outer = scope.suffix
        self.opened = 0
        self.loc: Location | None = None
        self.calls: dict[tuple[int, int, int], Location] = {}
        self.branches: list[tuple[int, tuple[Scope, ...]]] = []
        self.targets: dict[str, tuple[str, ...]] = {}
        """Labels in a ``.branchtargets``, by its own label."""
        self.label = ""

    def read(self) -> None:
        """Parse up to the closing brace.

        Raises
        ------
        PtxSyntaxError, UnsupportedInstruction
        """
        while self.scopes:
            self.next()
        for pc, around in self.branches:
            self.code.instructions[pc] = self.resolve_target(self.code.instructions[pc], around)

    def next(self) -> None:
        """Parse a brace, a directive, a label or an instruction."""
        source, code = self.source, self.code
        if not source.skip_space():
            raise source.error("expected '}' before the end of the text")
        start, character = source.at, source.text[source.at]
        if character == "{":
            self.opened += 1
            self.scopes.append(Scope(f"{self.outer}@{self.opened}"))
            source.at += 1
        elif character == "}":
            self.scopes.pop()
            source.at += 1
        elif character == ".":
            directive = LINE_DIRECTIVE.match(source.text, start)
            if directive:
                self.loc = line_directive(directive, source, self.files, self.calls) or self.loc
            else:
                self.declaration(source.statement(), start)
        elif label := _LABEL.match(source.text, start):
            source.at = label.end()
            unique = self.scopes[-1].declare(label.group(1))
            if unique in code.labels:
                raise source.error(f"label {label.group(1)} is declared twice", start)
            code.labels[unique] = len(code.instructions)
            self.label = unique
        elif body := source.statement():
            instruction = self.instruction(body, start)
            if instruction.opcode in ("bra", "brx"):
                self.branches.append((instruction.pc, tuple(self.scopes)))
            code.instructions.append(instruction)

    def declaration(self, body: str, start: int) -> None:
        """Parse ``.reg``, a variable, or a directive without effect inside a body."""
        scope, code = self.scopes[-1], self.code
        match = _REGISTERS.match(body)
        if match:
            # Instructions on 128-bit registers are rejected on execution.
            type_ = None if match.group(1) == "b128" else self.source.type(match.group(1), start)
            for name in (part.strip() for part in match.group(2).split(",")):
                ranged = re.fullmatch(r"([%\w$]+)<(\d+)>", name)
                names = [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [name]
                for item in names:
                    unique = scope.declare(item, register=True)
                    if type_ is not None:
                        code.registers[unique] = type_
            return
        declared = variable(body, self.source, start)
        if declared is not None:
            unique = scope.declare(declared.name)
            code.variables[unique] = replace(declared, name=unique)
        elif targets := _TARGETS.match(body):
            self.targets[self.label] = tuple(split_items(targets[1]))
        elif not body.startswith(_WITHOUT_EFFECT):
            raise self.source.error(f"expected a declaration, found {clip(body)!r}", start)

    def instruction(self, body: str, start: int) -> Instruction:
        """Parse one instruction with its guard and operands."""
        match = _INSTRUCTION.match(body)
        if match is None:
            raise self.source.error(f"expected an instruction, found {clip(body)!r}", start)
        negated, guard_name, opcode, rest = match.groups()
        guard = None
        if guard_name:
            register = self.operand(guard_name, start)
            if not isinstance(register, Register):
                raise self.source.error(f"expected a predicate register after '@', found {guard_name!r}", start)
            guard = Guard(register, bool(negated))
        base, *mods = opcode.split(".")
        if base == "call":
            operands = self.call_operands(rest, start)
        else:
            known, items = self.scopes[-1].operands, split_items(rest) if rest else []
            operands = tuple([known.get(item) or self.operand(item, start) for item in items])
        return Instruction(
            len(self.code.instructions), base, tuple(mods), operands, guard, self.source.line(start), self.loc
        )

    def operand(self, text: str, start: int) -> Operand:
        """An operand in the open scopes."""
        return parse_operand(text, self.scopes, self.source, start)

    def call_operands(self, text: str, start: int) -> tuple[Operand, ...]:
        """Results, function and arguments of a call, and its list or prototype of targets, if any.

        PTX ISA, "call": ``call (results), function, (arguments), targets;``.
        """
        match = _CALL.match(text)
        if match is None:
            raise self.source.error(
                f"expected (results), function, (arguments) after call, found {clip(text)!r}", start
            )
        results, function, arguments, targets = match.groups()
        given, taken = (
            Vector(tuple(self.operand(item, start) for item in split_items(part)) if part and part.strip() else ())
            for part in (results, arguments)
        )
        return given, self.operand(function, start), taken, *((Symbol(targets),) if targets else ())

    def resolve_target(self, instruction: Instruction, scopes: tuple[Scope, ...]) -> Instruction:
        """Bind the label of a branch, or the labels in the list of ``brx.idx``; a label may be declared later."""
        target = instruction.operands[-1] if instruction.operands else None
        label = self.bound(target.name if isinstance(target, Symbol) else "", scopes, instruction.line)
        if instruction.opcode == "bra":
            return replace(instruction, operands=(label,))
        if label.name not in self.targets:
            raise PtxSyntaxError(f"there is no .branchtargets at the label {label.name!r}", instruction.line)
        labels = tuple(self.bound(name, scopes, instruction.line) for name in self.targets[label.name])
        return replace(instruction, operands=(*instruction.operands[:-1], Vector(labels)))

    def bound(self, name: str, scopes: tuple[Scope, ...], line: int) -> Symbol:
        """A label in the innermost scope that declares it."""
        for scope in reversed(scopes):
            unique = scope.names.get(name.split("@")[0])
            if unique in self.code.labels:
                return Symbol(str(unique))
        raise PtxSyntaxError(f"branch to the label {name or '?'!r}, which is not declared", line)
