"""Shadow of CUDA C++ text for a parser without preprocessor: same length and lines, no directives or qualifiers.

Blanks replace comments, contents of literals, preprocessor directives, inactive branches, and CUDA qualifiers, so that
plain C++ remains; the positions of qualifiers are recorded. Every position in the shadow is the same position in the
text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from warpsan.build.constants import Value, evaluate

__all__ = [
    "Directive",
    "Lexed",
    "Macro",
    "Macros",
    "PlainText",
    "blanked",
    "closing",
    "lexed",
    "shadow_of",
    "without_literals",
    "words",
]

_LITERALS = re.compile(
    r"//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/"
    r'|(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)")'
    r'|(?P<quoted>"(?:[^"\\\n]|\\.|\\\n)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)+\')',
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)?((?:[^\n\\]|\\\r?\n|\\.)*)", re.MULTILINE)
_DEFINE = re.compile(r"\s*(\w+)(\(([^)]*)\))?(.*)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")

_DEVICE = frozenset({"__device__", "__global__", "__constant__", "__shared__", "__managed__"})
_PLAIN = frozenset(
    {"__host__", "__forceinline__", "__noinline__", "__inline__", "__restrict__", "__restrict", "__grid_constant__"}
)
_CALLED = frozenset(
    {
        "__launch_bounds__",
        "__attribute__",
        "__declspec",
        "__align__",
        "__cluster_dims__",
        "__maxnreg__",
        "__block_size__",
    }
)
_QUALIFIERS = _DEVICE | _PLAIN | _CALLED
_BESIDE = _QUALIFIERS | frozenset(
    ["inline", "static", "constexpr", "extern", "C", "const", "volatile", "alignas", "always_inline", "noinline"]
)
"""Allowed words in a macro that expands to qualifiers only."""

_UNDEFINED = frozenset({"_WIN32", "_WIN64", "WIN32", "_MSC_VER", "__clang__", "__HIP__", "__HIPCC__", "USE_ROCM"})
_DEFINED = frozenset({"__CUDACC_RTC__", "__CUDACC__", "__CUDA_ARCH__", "__cplusplus"})


@dataclass(frozen=True)
class Macro:
    """A ``#define``; ``parameters`` is None for a macro without any."""

    name: str
    parameters: tuple[str, ...] | None
    body: str


@dataclass(frozen=True)
class Directive:
    """A preprocessor directive, from ``start`` to ``end``; ``rest`` is the text after its name."""

    start: int
    end: int
    name: str
    rest: str


@dataclass(frozen=True)
class Lexed:
    """A text, and ``code``: the text with blanks for comments, contents of literals, and directives.

    Attributes
    ----------
    text, code : str
    directives : tuple of Directive
    macros : tuple of Macro
    """

    text: str
    code: str
    directives: tuple[Directive, ...]
    macros: tuple[Macro, ...]


def without_literals(text: str) -> str:
    """The text with blanks for comments and contents of literals; directives stay."""

    def blank(match: re.Match[str]) -> str:
        literal = match[0]
        if match["raw"] or match["quoted"]:
            return literal[0] + _spaces(literal[1:-1]) + literal[-1]
        return _spaces(literal)

    return _LITERALS.sub(blank, text)


@lru_cache(maxsize=256)
def lexed(text: str) -> Lexed:
    """Remove comments and literals from a text, and find its directives."""
    code = without_literals(text)
    directives = []
    macros = []
    for match in _DIRECTIVE.finditer(code):
        directive = Directive(match.start(), match.end(), match[1] or "", match[2])
        directives.append(directive)
        defined = _DEFINE.match(match[2]) if directive.name == "define" else None
        if defined is not None:
            parameters = defined[3]
            listed = None if parameters is None else tuple(each.strip() for each in parameters.split(","))
            macros.append(Macro(defined[1], listed, defined[4].replace("\\\n", " \n").strip()))
    characters = list(code)
    for directive in directives:
        _erase(characters, directive.start, directive.end)
    return Lexed(text, "".join(characters), tuple(directives), tuple(macros))


class Macros:
    """Macros of a build: all of its own files; of other headers, only those with a CUDA qualifier."""

    def __init__(self, own: Iterable[Macro], others: Iterable[Macro], defines: Mapping[str, str]) -> None:
        self.defines = defines
        self.own: dict[str, list[Macro]] = {}
        for macro in own:
            self.own.setdefault(macro.name, []).append(macro)
        self._all = {name: list(macros) for name, macros in self.own.items()}
        for macro in others:
            self._all.setdefault(macro.name, []).append(macro)

    def body_words(self, name: str) -> frozenset[str]:
        """Words that a macro may expand to, including those of nested macros; empty for any other name."""
        named: set[str] = set()
        pending = [name]
        while pending:
            for macro in self._all.get(pending.pop(), ()):
                new = set(_WORD.findall(macro.body)) - named
                named |= new
                pending += new
        return frozenset(named)

    def is_qualifier(self, name: str) -> bool:
        """Whether a name is a CUDA qualifier, or a macro that expands only to qualifiers with a CUDA one among them."""
        if name in _QUALIFIERS:
            return True
        body = self.body_words(name)
        parameters = {
            each for one in (name, *body) for macro in self._all.get(one, ()) for each in macro.parameters or ()
        }
        return bool(body & _QUALIFIERS) and all(
            word in _BESIDE or word in parameters or word in self._all for word in body
        )

    def is_device(self, name: str) -> bool:
        """Whether a qualifier marks device functions or variables."""
        return name in _DEVICE or bool(self.body_words(name) & _DEVICE)

    def has_parameters(self, name: str) -> bool:
        """Whether a name is a macro with parameters."""
        return any(macro.parameters is not None for macro in self._all.get(name, ()))

    def condition(self, directive: Directive) -> Value:
        """Value of ``#if``, ``#ifdef``, ``#ifndef`` or ``#elif``; None if unknown."""
        if directive.name in ("ifdef", "ifndef"):
            known = self._defined(directive.rest.strip())
            return None if known is None else known if directive.name == "ifdef" else int(not known)
        text = re.sub(
            r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", lambda each: f"defined({each[1] or each[2]})", directive.rest
        )
        names: dict[str, Value] = {}

        def number(match: re.Match[str]) -> str:
            names[f"defined_{match[1]}"] = self._defined(match[1])
            return f"defined_{match[1]}"

        text = re.sub(r"defined\((\w+)\)", number, text).replace("\\\n", " ")
        return evaluate(text, lambda name: names[name] if name in names else self._value(name))

    def _defined(self, name: str) -> Value:
        if name in self.defines or name in _DEFINED:
            return 1
        if name in _UNDEFINED:
            return 0
        return None if name in self.own or name.startswith(("_", "CUDA", "CUTLASS", "CUTE")) else 0

    def _value(self, name: str) -> Value:
        if name in self.defines:
            return evaluate(self.defines[name], self._value) if self.defines[name] != name else None
        return 0 if self._defined(name) == 0 else None


@dataclass(frozen=True)
class PlainText:
    """Parser input in place of a text.

    Attributes
    ----------
    text : str
        ASCII text with the length of the original.
    marks : tuple of (int, str)
        Positions of qualifiers, and of macros that contain any, in order.
    live : tuple of Directive
        Directives in possibly active branches.
    """

    text: str
    marks: tuple[tuple[int, str], ...]
    live: tuple[Directive, ...]

    def words_between(self, start: int, end: int) -> list[str]:
        """Qualifiers in a range of the text."""
        first = bisect_left(self.marks, (start, ""))
        last = bisect_left(self.marks, (end, ""))
        return [word for _, word in self.marks[first:last]]


def shadow_of(source: Lexed, macros: Macros) -> PlainText:
    """Shadow of a text, with the macros of its build."""
    characters = list(source.code)
    dead = _dead(source, macros, source.code)
    for start, end in dead:
        _erase(characters, start, end)
    live = tuple(each for each in source.directives if not any(start <= each.start < end for start, end in dead))
    code = "".join(characters)
    marks = []
    for match in _WORD.finditer(code):
        word = match[0]
        if macros.is_device(word) or macros.is_qualifier(word):
            marks.append((match.start(), word))
        if macros.is_qualifier(word):
            end = match.end()
            called = word in _CALLED or macros.has_parameters(word)
            opening = re.compile(r"\s*\(").match(code, end) if called else None
            _erase(characters, match.start(), closing(code, opening.end() - 1) if opening else end)
    text = "".join(character if character.isascii() else "?" for character in characters)
    return PlainText(text, tuple(marks), live)


def _dead(source: Lexed, macros: Macros, code: str) -> list[tuple[int, int]]:
    """Ranges of inactive branches, and of branches that would unbalance the braces beside the first branch."""
    dead: list[tuple[int, int]] = []
    # Each conditional: start of its branch, earlier branches with their values, whether one is certainly active.
    open_ones: list[tuple[list[tuple[int, int, Value]], list[tuple[int, Value]]]] = []
    for directive in source.directives:
        if directive.name in ("if", "ifdef", "ifndef"):
            open_ones.append(([], [(directive.end, macros.condition(directive))]))
        elif directive.name in ("elif", "else", "endif") and open_ones:
            branches, (*_, (start, value)) = open_ones[-1]
            branches.append((start, directive.start, value))
            if directive.name == "endif":
                dead += _branches_not_read(open_ones.pop()[0], code)
            else:
                taken = any(each[2] not in (None, 0) for each in branches)
                known = all(each[2] is not None for each in branches)
                following = macros.condition(directive) if directive.name == "elif" else 1 if known else None
                open_ones[-1][1].append((directive.end, 0 if taken else following))
    return dead


def _branches_not_read(branches: list[tuple[int, int, Value]], code: str) -> list[tuple[int, int]]:
    possible = [each for each in branches if each[2] != 0]
    dead = [(start, end) for start, end, value in branches if value == 0]
    whole = all(_is_whole(code[start:end]) for start, end, _ in possible)
    return dead + ([] if whole else [(start, end) for start, end, _ in possible[1:]])


def _is_whole(part: str) -> bool:
    """Whether a branch contains only whole declarations or statements."""
    stripped = part.strip()
    return part.count("{") == part.count("}") and (not stripped or stripped[-1] in ";}")


def closing(code: str, opening: int) -> int:
    """Position after the bracket that closes the one at ``opening``; the end of the text if unbalanced."""
    pair = {"(": ")", "{": "}", "[": "]"}[code[opening]]
    depth = 0
    for place in range(opening, len(code)):
        depth += (code[place] == code[opening]) - (code[place] == pair)
        if not depth:
            return place + 1
    return len(code)


def words(code: str) -> frozenset[str]:
    """Identifiers in a text without comments and literals."""
    return frozenset(_WORD.findall(code))


def blanked(source: Lexed, stretches: Iterable[tuple[int, int]]) -> str:
    """The text with blanks for the given ranges; directives in them stay, so that conditionals stay balanced."""
    characters = list(source.text)
    for start, end in stretches:
        for part in _between(source.directives, start, end):
            _erase(characters, *part)
    return "".join(characters)


def _between(directives: Iterable[Directive], start: int, end: int) -> Iterable[tuple[int, int]]:
    for directive in directives:
        if start <= directive.start < end:
            yield start, directive.start
            start = directive.end
    yield start, max(start, end)


def _erase(characters: list[str], start: int, end: int) -> None:
    characters[start:end] = [character if character == "\n" else " " for character in characters[start:end]]


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
