"""PTX text to :mod:`warpsan.ptx.ir` (PTX ISA, "Syntax"), for PTX of NVRTC, nvcc, Triton and hand-written PTX."""

from __future__ import annotations

import re
from functools import lru_cache

from warpsan.errors import PtxSyntaxError
from warpsan.host.collector import without_collector
from warpsan.ptx.body import LINE_DIRECTIVE, BodyParser, line_directive
from warpsan.ptx.declarations import entry_params, formals, variable
from warpsan.ptx.ir import Entry, Function, Instruction, PtxModule
from warpsan.ptx.opcodes import opcode_of
from warpsan.ptx.operands import Scope
from warpsan.ptx.text import PtxText, clip

__all__ = ["parse"]

_ENTRY = re.compile(r"(?:\.(?:visible|weak|extern)\s+)?\.(entry|func)\b")
_HEAD = re.compile(r"\s*([\w$]+)\s*(?:\((.*?)\))?(.*)\Z", re.S)
_FUNCTION_HEAD = re.compile(
    r"\s*(?:\.attribute\s*\([^)]*\)\s*)?(?:\((.*?)\)\s*)?([A-Za-z_$%][\w$]*)\s*(?:\((.*?)\)\s*)?(?:\..*)?\Z", re.S
)
_ALIAS = re.compile(r"\.alias\s+([\w$%]+)\s*,\s*([\w$%]+)\Z")


@lru_cache(maxsize=64)
def parse(text: str) -> PtxModule:
    """Parse a PTX module. Results are cached and shared: do not modify them.

    Raises
    ------
    PtxSyntaxError
        If the text is not PTX; the message has the line and the expected syntax.
    UnsupportedInstruction
        If the PTX has no model, such as unsupported types.
    """
    with without_collector():
        return _Parser(text).module()


class _Parser:
    """Parser of the module level of a text."""

    def __init__(self, text: str) -> None:
        self.source = PtxText(text)
        self.out = PtxModule()

    def module(self) -> PtxModule:
        source, text = self.source, self.source.text
        while source.skip_space():
            start = source.at
            directive = LINE_DIRECTIVE.match(text, start)
            if directive:
                line_directive(directive, source, self.out.files, {})
            elif text.startswith((".version", ".target", ".address_size"), start):
                self.header()
            elif text.startswith(".section", start):
                source.skip_braces()
            elif match := _ENTRY.match(text, start):
                self.code(match)
            elif text[start] == ".":
                self.directive()
            else:
                raise source.error(f"expected a directive, found {clip(text[start:])!r}")
        if not self.out.version:
            raise PtxSyntaxError("expected a .version directive", 1)
        return self.out

    def header(self) -> None:
        source = self.source
        end = source.text.find("\n", source.at)
        end = end if end >= 0 else len(source.text)
        name, _, rest = source.text[source.at : end].partition(" ")
        if name == ".version":
            self.out.version = rest.strip()
        elif name == ".target":
            self.out.target = rest.split(",")[0].strip()
        elif rest.strip() != "64":
            raise source.error(f"expected .address_size 64, found {rest.strip()!r}")
        source.at = end

    def directive(self) -> None:
        """Parse a variable, an alias, or a directive without effect."""
        start = self.source.at
        body = self.source.statement()
        declared = variable(body, self.source, start)
        if declared is not None:
            self.out.variables[declared.name] = declared
        elif alias := _ALIAS.match(body):
            self.out.aliases[alias[1]] = alias[2]
        elif not body.startswith(".pragma"):
            raise self.source.error(f"expected a variable or a function, found {clip(body)!r}", start)

    def code(self, match: re.Match[str]) -> None:
        """Parse an entry or a function; declarations without a body are skipped."""
        source, start = self.source, match.start()
        brace, semicolon = source.text.find("{", start), source.text.find(";", start)
        if brace < 0 or 0 <= semicolon < brace:
            source.statement()
            return
        head = source.text[match.end() : brace]
        if match.group(1) == "func":
            self.function(head, start, brace)
        else:
            self.entry(head, start, brace)

    def entry(self, text: str, start: int, brace: int) -> None:
        head = _HEAD.match(text)
        if head is None:
            raise self.source.error("expected the entry's name and its parameters")
        entry = Entry(head.group(1), params=entry_params(head.group(2) or "", self.source, start))
        for name, numbers in re.findall(r"\.(\w+)[ \t]*([\d, ]*)", head.group(3)):
            entry.directives[name] = tuple(int(number) for number in re.findall(r"\d+", numbers))
        self.source.at = brace + 1
        BodyParser(self.source, entry, Scope(""), self.out.files).read()
        self.out.entries[entry.name] = entry

    def function(self, text: str, start: int, brace: int) -> None:
        head = _FUNCTION_HEAD.match(text)
        if head is None:
            raise self.source.error("expected the function's name and its parameters")
        results, name, params = head.groups()
        if name in self.out.functions:
            raise self.source.error(f"function {name} is defined twice", start)
        function, scope = Function(name), Scope(f"@{name}")
        function.results = formals(results or "", function, scope, self.source, start)
        function.params = formals(params or "", function, scope, self.source, start)
        self.source.at = brace + 1
        BodyParser(self.source, function, scope, self.out.files).read()
        last = function.instructions[-1] if function.instructions else None
        open_end = last is None or last.guard is not None or opcode_of(last).goes_on
        if open_end or len(function.instructions) in function.labels.values():  # the closing brace returns
            end = self.source.line(self.source.at - 1)
            loc = last.loc if last else None
            function.instructions.append(Instruction(len(function.instructions), "ret", (), (), None, end, loc))
        self.out.functions[name] = function
