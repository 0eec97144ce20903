"""Forms of instructions that access memory (PTX ISA, "Data Movement and Conversion Instructions", "atom", "red",
"ldmatrix", "stmatrix", "tensormap.replace").
"""

from __future__ import annotations

from warpsan.ptx.forms import LINE, PRIORITIES, UPDATE_TYPES, WITHOUT_RESULT
from warpsan.ptx.grammar import Form, choice, flag, form, part, space
from warpsan.ptx.ir import Immediate, Operand, Vector
from warpsan.ptx.modifiers import Mods, require, take_space
from warpsan.ptx.types import PtxType

__all__ = [
    "Atomic",
    "LineControl",
    "LoadStore",
    "MatrixAccess",
]

_HINTS = (
    *("weak", "volatile", "relaxed", "acquire", "release", "cta", "cluster", "gpu", "sys"),
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"),
    *("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"),
    *("L2::64B", "L2::128B", "L2::256B", "L2::evict_last", "L2::evict_normal", "L2::evict_first"),
)
"""Cache operators, eviction priorities, prefetch sizes and memory orders, which change no value in a sequential
simulation (PTX ISA, "State Spaces", "Cache Operators", "Cache Eviction Priority")."""


@form("ld", "ldu", "st", role="")
class LoadStore(Form):
    """A load or a store.

    Attributes
    ----------
    hint : bool
        Whether the last operand is a cache policy.
    """

    hint: bool = flag("L2::cache_hint")
    space: str = space()
    hints: tuple[str, ...] = part(lambda mods: tuple(filter(mods.flag, _HINTS)))
    vector: int = part(lambda mods: int(mods.choice(("v2", "v4", "v8"), default="v1")[1:]))
    type: PtxType = part(Mods.type)

    @property
    def too_wide(self) -> str:
        """Reason why an access outside the parameter space has too many bytes."""
        width = self.vector * self.type.bytes
        return f"accesses of {width} bytes are not modelled" if width > 16 else ""

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """A wrong number of operands, or an access that is too wide."""
        if self.space != "param" and self.too_wide:
            return self.too_wide
        loads = self.name != "st"
        if len(operands) != 2 + self.hint:
            return "expected a destination and an address" if loads else "expected an address and a value"
        if loads:
            return ""
        return self.too_wide or ("constant memory is read-only" if self.space == "const" else "")


def _update(mods: Mods) -> tuple[str, PtxType]:
    name = mods.choice(UPDATE_TYPES if mods.instruction.opcode == "atom" else WITHOUT_RESULT)
    type_ = mods.type()
    require(mods, type_, UPDATE_TYPES[name])
    if type_.is_float and type_.bits == 16 * type_.lanes and not mods.flag("noftz"):
        raise mods.unsupported("16-bit floating point needs .noftz")
    return name, type_


@form("atom", "red", role="")
class Atomic(Form):
    """An atomic operation.

    Attributes
    ----------
    update : (str, PtxType)
        The operation and its type.
    hint : bool
        Whether the last operand is a cache policy.
    """

    order: str = choice("relaxed", "acquire", "release", "acq_rel", default="relaxed")
    scope: str = choice("cta", "cluster", "gpu", "sys", default="gpu")
    space: str = space()
    update: tuple[str, PtxType] = part(_update)
    hint: bool = flag("L2::cache_hint")

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Spaces without atomic operations, or a wrong number of operands."""
        if self.space not in ("global", "shared", "shared::cluster", "generic"):
            return f"no atomics on .{self.space}"
        expected = 1 + (self.name == "atom") + (2 if self.update[0] == "cas" else 1) + self.hint
        return "" if len(operands) == expected else "wrong number of operands"


@form("ldmatrix", "stmatrix", words=("sync", "aligned", "m8n8", "b16"), role="")
class MatrixAccess(Form):
    """A load or a store of 8 x 8 matrices."""

    number: int = part(lambda mods: int(mods.choice(("x1", "x2", "x4"))[1:]))
    trans: bool = flag("trans")
    space: str = space()

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """A space other than shared memory, or a wrong number of registers."""
        loads = self.name == "ldmatrix"
        if self.space not in ("shared", "generic"):
            return f"{'loads from' if loads else 'stores to'} shared memory"
        registers = operands[0 if loads else 1]
        given = len(registers.items) if isinstance(registers, Vector) else 1
        return "" if given == self.number else f"expected {self.number} registers"


# ---- cache control ---------------------------------------------------------------------------------------------------


def _level(mods: Mods) -> str:
    space = take_space(mods)
    levels = ("L1", "L2") if space in ("global", "local", "generic") else ()
    maps = ("tensormap",) if space in ("const", "param", "generic") else ()
    return mods.choice((*levels, *PRIORITIES[:2], *maps) if space == "global" else (*levels, *maps))


@form("prefetch", role="")
class _Prefetch(Form):
    level: str = part(_level)


form("prefetchu", words=("L1",), role="")(Form)


@form("applypriority", words=("L2::evict_normal",), role="")
@form("discard", words=("L2",), role="")
class LineControl(Form):
    """An instruction on a cache line."""

    in_global: bool = flag("global")

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Another size."""
        return "" if operands[1] == Immediate(LINE) else f"the size must be {LINE}"


@form("createpolicy.fractional", words=("b64",), role="")
class _CachePolicy(Form):
    priority: str = choice(*PRIORITIES)
    other: str = choice("L2::evict_first", "L2::evict_unchanged", default="")


@form("createpolicy.range", words=("b64",), role="")
class _RangePolicy(_CachePolicy):
    in_global: bool = flag("global")


@form("createpolicy", role="")
class _UnknownPolicy(Form):
    source: str = choice("fractional", "range", "cvt")


form("createpolicy.cvt", words=("L2", "b64"), role="")(Form)
