"""Constant expressions of C++: conditions of ``#if`` and sizes of launches, evaluated without execution."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["Call", "Lookup", "Value", "arguments_in", "evaluate"]

Value: TypeAlias = int | float | None
"""Value of an expression; None if it is not constant."""
Lookup: TypeAlias = Callable[[str], Value]
Call: TypeAlias = Callable[[str, Sequence[Value]], Value]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?P<suffix>[uUlLfF]*)"
    r"|(?P<name>[A-Za-z_]\w*(?:\s*(?:::|\.)\s*[A-Za-z_]\w*)*)|(?P<operator><<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>()!?:,~&|^{}]))"
)
_PRECEDENCE: tuple[tuple[str, ...], ...] = (
    *(("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>")),
    *(("+", "-"), ("*", "/", "%")),
)
_WIDTHS = {f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}
_TYPES = frozenset({"bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double", "size_t", "uint"})
_TYPES |= {*_WIDTHS, "std::size_t", "const", "auto"}
_SIZES = {"char": 1, "bool": 1, "short": 2, "int": 4, "unsigned": 4, "float": 4, "long": 8, "double": 8, "size_t": 8}
_SIZES |= _WIDTHS | dict.fromkeys(("half", "__half", "__nv_bfloat16", "nv_bfloat16"), 2)
_SIZES |= dict.fromkeys(("half2", "__half2", "__nv_bfloat162", "uint"), 4) | {"float2": 8, "float4": 16, "int4": 16}


class _NotConstant(Exception):
    """Construct outside the supported subset."""


def evaluate(text: str, lookup: Lookup, call: Call = lambda name, values: None) -> Value:
    """Evaluate an expression; None if an evaluated part (not skipped by && or ||) has no value.

    Parameters
    ----------
    text : str
        C++ without comments.
    lookup : callable
        Returns the value of a name.
    call : callable
        Returns the value of a function, or of a macro with parameters, for argument values. ``ceil``, ``min``, ``max``
        and ``sizeof`` of plain types are built in.
    """
    try:
        reader = _ExpressionReader(re.sub(r"(?<=\d)'(?=\d)", "", text), lookup, call)
        value = reader.ternary()
        return value if reader.peek() == "" else None
    except (_NotConstant, ArithmeticError, RecursionError, TypeError, ValueError):
        return None


def arguments_in(text: str, *, angles: bool = False) -> list[str]:
    """Parts of a list of arguments or parameters between its outer commas, stripped; ``angles`` says that < and > are
    brackets, as in types."""
    opening, ending = ("<([{", ">)]}") if angles else ("([{", ")]}")
    parts, depth = [""], 0
    for character in text:
        depth += (character in opening) - (character in ending)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


class _ExpressionReader:
    """Recursive descent parser for the tokens of one expression."""

    def __init__(self, text: str, lookup: Lookup, call: Call) -> None:
        self._lookup, self._call, self._at = lookup, call, 0
        self._tokens: list[tuple[str, str]] = []
        place = 0
        text = text.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise _NotConstant
            place = match.end()
            kind = "number" if match["number"] else "name" if match["name"] else "operator"
            suffix = "f" if kind == "number" and "f" in match["suffix"].lower() else ""
            self._tokens.append((kind, re.sub(r"\s", "", match[kind]) + suffix))

    def peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead][1] if self._at + ahead < len(self._tokens) else ""

    def _take(self, expected: str = "") -> tuple[str, str]:
        if self._at >= len(self._tokens) or (expected and self.peek() != expected):
            raise _NotConstant
        self._at += 1
        return self._tokens[self._at - 1]

    def ternary(self) -> Value:
        condition = self._binary(0)
        if self.peek() != "?":
            return condition
        self._take()
        yes = self.ternary()
        self._take(":")
        no = self.ternary()
        return None if condition is None else yes if condition else no

    def _binary(self, level: int) -> Value:
        if level == len(_PRECEDENCE):
            return self._unary()
        left = self._binary(level + 1)
        while self.peek() in _PRECEDENCE[level]:
            operator = self._take()[1]
            left = _combined(operator, left, self._binary(level + 1))
        return left

    def _unary(self) -> Value:
        token = self.peek()
        if token in ("+", "-", "!", "~"):
            self._take()
            value = self._unary()
            if value is None:
                return None
            if token == "!":
                return int(not value)
            return ~int(value) if token == "~" else -value if token == "-" else value
        if token == "(":
            if self.peek(1) in _TYPES:  # a cast
                self._take()
                names = []
                while self.peek() != ")":
                    names.append(self._take()[1])
                self._take(")")
                return _cast(names, self._unary())
            self._take()
            value = self.ternary()
            self._take(")")
            return value
        return self._primary()

    def _primary(self) -> Value:
        kind, token = self._take()
        if kind == "number":
            plain = token.removesuffix("f") if not token.lower().startswith("0x") else token
            if re.fullmatch(r"0\d+", plain):
                return int(plain, 8)
            return int(plain, 0) if re.fullmatch(r"0[xXbB].+|\d+", plain) else float(plain)
        if kind != "name":
            raise _NotConstant
        if token == "static_cast":
            self._take("<")
            names = []
            while self.peek() != ">":
                names.append(self._take()[1])
            self._take(">")
            self._take("(")
            value = self.ternary()
            self._take(")")
            return _cast(names, value)
        if token == "sizeof":
            return self._sizeof()
        if self.peek() in ("(", "{") and token not in ("true", "false"):
            return self._called(token)
        return {"true": 1, "false": 0}[token] if token in ("true", "false") else self._lookup(token)

    def _sizeof(self) -> Value:
        self._take("(")
        names = []
        while self.peek() != ")":
            names.append(self._take()[1])
        self._take(")")
        if "*" in names:
            return 8
        return _SIZES.get(next((name for name in reversed(names) if name in _SIZES), ""))

    def _called(self, name: str) -> Value:
        closing = ")" if self._take()[1] == "(" else "}"
        values: list[Value] = []
        while self.peek() != closing:
            values.append(self.ternary())
            if self.peek() == ",":
                self._take()
        self._take(closing)
        if name in _TYPES:
            return _cast([name], values[0]) if len(values) == 1 else None
        plain = name.rpartition("::")[2]
        if plain in ("min", "max", "ceil", "ceilf", "floor", "floorf") and None not in values:
            numbers = [value for value in values if value is not None]
            if plain in ("min", "max"):
                return (min if plain == "min" else max)(numbers)
            return float((math.ceil if plain.startswith("ceil") else math.floor)(numbers[0]))
        return self._call(plain, values)


def _cast(names: Sequence[str], value: Value) -> Value:
    if value is None or {"float", "double"} & set(names):
        return value if value is None else float(value)
    return int(value)


def _combined(operator: str, left: Value, right: Value) -> Value:
    """``left operator right`` with C's division and shifts; && and || evaluate to a value if one side decides them."""
    if operator in ("&&", "||"):
        decides = operator == "||"
        if any(side is not None and bool(side) == decides for side in (left, right)):
            return int(decides)
        return None if left is None or right is None else int(not decides)
    if left is None or right is None:
        return None
    both_integers = isinstance(left, int) and isinstance(right, int)
    if operator == "/":
        quotient = abs(left) // abs(right) if both_integers else left / right
        return quotient if not both_integers or (left < 0) == (right < 0) else -quotient
    if operator == "%":
        return int(math.fmod(left, right))
    if operator in ("<<", ">>", "&", "|", "^"):
        a, b = int(left), int(right)
        if operator in ("<<", ">>") and not 0 <= b < 64:
            return None
        return {"<<": a << min(b, 64), ">>": a >> b, "&": a & b, "|": a | b, "^": a ^ b}[operator]
    compared = {"==": left == right, "!=": left != right, "<": left < right, ">": left > right}
    compared |= {"<=": left <= right, ">=": left >= right}
    return (
        int(compared[operator])
        if operator in compared
        else {"+": left + right, "-": left - right}.get(operator, left * right)
    )
