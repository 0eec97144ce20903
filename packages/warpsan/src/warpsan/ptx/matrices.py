"""Forms of warp-level matrices and of exchange between lanes (PTX ISA, "Warp Level Matrix Multiply-Accumulate
Instructions").
"""

from __future__ import annotations

import re
from collections.abc import Callable

from warpsan.ptx.grammar import Form, Opcode, choice, element, flag, form, opcodes, part, space
from warpsan.ptx.ir import Operand, Vector
from warpsan.ptx.modifiers import Mods
from warpsan.ptx.types import PtxType

__all__ = ["ELEMENTS", "WarpProduct", "WmmaMove", "WmmaProduct"]

_SECTION = "Warp-Level Matrix Instructions"

opcodes("mma", Opcode(_SECTION, pipe="tensor", lanes="warp", undefined="followed"))
opcodes("wmma", Opcode(_SECTION, pipe="tensor", lanes="warp", undefined="used", awaited=True))

ELEMENTS = {
    **dict.fromkeys(("f16", "bf16"), 2),
    "tf32": 1,
    **dict.fromkeys(("e4m3", "e5m2", "s8", "u8"), 4),
    **dict.fromkeys(("s4", "u4"), 8),
}
"""Elements of each type in a 32-bit register of a fragment."""
_PARTNERS = {
    ("f16",): ("f32", "f16"),
    ("bf16",): ("f32",),
    ("tf32",): ("f32",),
    ("e4m3", "e5m2"): ("f32", "f16"),
    ("s8", "u8"): ("s32",),
    ("s4", "u4"): ("s32",),
}
"""Types of both factors of one mma, and those of its sums."""


def _all_of(*words: str) -> Callable[[Mods], tuple[str, ...]]:
    """Required modifiers before those that :func:`_rest` takes."""
    return lambda mods: tuple(mods.choice((word,)) for word in words)


def _rest(mods: Mods) -> tuple[str, ...]:
    """The other modifiers, in order."""
    names, mods.left = tuple(mods.left), []
    return names


def _widths(operands: tuple[Operand, ...]) -> list[int]:
    """Registers of each operand."""
    return [len(each.items) if isinstance(each, Vector) else 1 for each in operands]


@form("mma")
class WarpProduct(Form):
    """A product of a warp.

    Attributes
    ----------
    shape : str
        ``m``, ``n`` and ``k`` with their numbers.
    types : tuple of str
        Types of D, A, B and C.
    """

    saturates: bool = flag("satfinite")
    shape: str = choice("m8n8k4", *(f"m16n8k{depth}" for depth in (4, 8, 16, 32, 64)))
    words: tuple[str, ...] = part(_all_of("sync", "aligned", "row", "col"))
    types: tuple[str, ...] = part(_rest)

    @property
    def size(self) -> tuple[int, int, int]:
        """M, N and K."""
        rows, columns, depth = map(int, re.findall(r"\d+", self.shape))
        return rows, columns, depth

    @property
    def depth(self) -> int:
        """K."""
        return self.size[2]

    @property
    def k_blocks(self) -> int:
        """Registers of B."""
        return self.depth // (4 * ELEMENTS[self.types[1]])

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Types, shapes or numbers of registers that are not modelled."""
        if len(self.types) != 4:
            return "expected four types"
        result, kind, kind_b, addend = self.types
        if self.shape == "m8n8k4":
            if set(self.types) != {"f64"} or self.saturates:
                return "these operand types are not modelled"
            registers = [2, 1, 1, 2]
        else:
            partners = next((each for each in _PARTNERS if {kind, kind_b} <= set(each)), None)
            if partners is None or addend != result or result not in _PARTNERS[partners]:
                return "these operand types are not modelled"
            if self.saturates and result != "s32":
                return "these operand types are not modelled"
            blocks, held = self.k_blocks, 2 if result == "f16" else 4
            if self.depth not in (4 * ELEMENTS[kind], 8 * ELEMENTS[kind]):
                return "there is no such shape for these types"
            registers = [held, 2 * blocks, blocks, held]
        return "" if _widths(operands) == registers else "wrong number of registers for its shape and types"


_PRODUCTS = (("f32", "f32"), ("f16", "f16"), ("f32", "bf16", "bf16", "f32"))


@form("wmma.mma")
class WmmaProduct(Form):
    """A product of 16 x 16 x 16; its fragments are in registers, so that their memory layout is not needed."""

    words: tuple[str, ...] = part(_all_of("sync", "aligned", "m16n16k16"))
    layouts: tuple[str, ...] = part(lambda mods: (mods.choice(("row", "col")), mods.choice(("row", "col"))))
    types: tuple[str, ...] = part(_rest)

    size = 16, 16, 16
    """M, N and K."""

    @property
    def kind(self) -> str:
        """Type of the factors."""
        return "bf16" if "bf16" in self.types else "f16"

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Types or numbers of registers that are not modelled."""
        if self.types not in _PRODUCTS:
            return "these operand types are not modelled"
        held = 4 if self.types[0] == "f16" else 8
        return "" if _widths(operands)[::3] == [held, held] else "wrong number of registers"


@form("wmma.load", "wmma.store", words=("sync", "aligned", "m16n16k16"))
class WmmaMove(Form):
    """A tile of 16 x 16 between memory and a fragment."""

    matrix: str = choice("a", "b", "c", "d")
    order: str = choice("row", "col")
    space: str = space()
    type: PtxType = element()

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Spaces, or types of elements that are not modelled."""
        if self.space in ("const", "param"):
            return f"not modelled: .{self.space}"
        known = self.type.name in (("f16", "bf16") if self.matrix in "ab" else ("f16", "f32"))
        return "" if known else "this element type is not modelled"
