"""PTX text as a sequence of statements, and basic grammar: integers, lists, types and alignments."""

from __future__ import annotations

import re
from bisect import bisect_right

from warpsan.errors import PtxSyntaxError, UnsupportedInstruction
from warpsan.ptx.types import TYPES, PtxType

__all__ = ["INTEGER", "PtxText", "clip", "integer", "split_items"]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_SPACE = re.compile(r"\s*")
INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?\Z")
_OCTAL = re.compile(r"[+-]?0[0-7]+")
_ITEM = re.compile(r"\s*(\{[^}]*\}|\[[^\]]*\]|[^,\[{]+)\s*(?:,|\Z)")


class PtxText:
    """A PTX text without comments, and the position of the reader.

    Attributes
    ----------
    text : str
        The text, with blanks for comments to keep line numbers.
    at : int
        Position of the next token.
    """

    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(_blank, text)
        self.at = 0
        self._newlines = [match.start() for match in re.finditer("\n", self.text)]

    def line(self, at: int) -> int:
        """The line of a position in the text, counted from 1."""
        return bisect_right(self._newlines, at - 1) + 1

    def error(self, message: str, at: int | None = None) -> PtxSyntaxError:
        """The exception for a position in the text; default: the reader's position."""
        return PtxSyntaxError(message, self.line(self.at if at is None else at))

    def unsupported(self, message: str, at: int) -> UnsupportedInstruction:
        """The exception for PTX without a model."""
        return UnsupportedInstruction(message, self.line(at))

    def skip_space(self) -> bool:
        """Move to the next token; False at the end of the text."""
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.at < len(self.text)

    def statement(self) -> str:
        """Consume the text up to the next semicolon."""
        end = self.text.find(";", self.at)
        if end < 0:
            raise self.error(f"expected ';' after {clip(self.text[self.at :])!r}")
        body = self.text[self.at : end]
        self.at = end + 1
        return body.strip()

    def skip_braces(self) -> None:
        """Skip the next block in braces."""
        depth, at = 0, self.text.find("{", self.at)
        if at < 0:
            raise self.error("expected '{'")
        for match in re.finditer(r"[{}]", self.text[at:]):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                self.at = at + match.end()
                return
        raise self.error("expected '}' before the end of the text")

    def type(self, name: str, at: int) -> PtxType:
        """The type of that name."""
        try:
            return TYPES[name]
        except KeyError:
            raise self.unsupported(f"type .{name} is not modelled", at) from None

    def alignment(self, align: str | None, natural: int, at: int) -> int:
        """Value of ``.align`` in bytes; default: the natural alignment."""
        value = int(align or natural)
        if value.bit_count() != 1:
            raise self.error(f"expected an alignment that is a power of two, found {value}", at)
        return value


def _blank(comment: re.Match[str]) -> str:
    """Blanks of the same length, with the same line ends."""
    return "\n".join(" " * len(line) for line in comment[0].split("\n"))


def split_items(text: str) -> list[str]:
    """Split at commas outside brackets and braces."""
    if "{" not in text and "[" not in text:
        return [item.strip() for item in text.split(",")]
    return [item.strip() for item in _ITEM.findall(text)]


def integer(text: str, line: int) -> int:
    """An integer literal (PTX ISA, "Integer Constants").

    Raises
    ------
    PtxSyntaxError
        If the text is not an integer literal.
    """
    if not INTEGER.match(text):
        raise PtxSyntaxError(f"expected an integer, found {clip(text)!r}", line)
    digits = text.rstrip("U")
    try:
        return int(digits, 8 if _OCTAL.fullmatch(digits) else 0)
    except ValueError:
        raise PtxSyntaxError(f"expected an integer, found {clip(text)!r}", line) from None


def clip(text: str) -> str:
    """The first line of a text, for messages."""
    first = text.strip().split("\n")[0]
    return first if len(first) <= 60 else first[:57] + "..."
