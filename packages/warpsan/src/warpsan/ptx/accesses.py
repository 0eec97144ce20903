"""Forms of instructions that access memory (PTX ISA, "Data Movement and Conversion Instructions", "atom", "red",
"ldmatrix", "stmatrix", "tensormap.replace").
"""

from __future__ import annotations

from warpsan.ptx.forms import MAP_FIELDS, PRIORITIES, UPDATE_TYPES, VECTOR_UPDATES, WITHOUT_RESULT
from warpsan.ptx.grammar import Form, Opcode, choice, compute, element, flag, form, opcodes, part, space
from warpsan.ptx.ir import Immediate, Operand, Vector
from warpsan.ptx.modifiers import Mods, take_space
from warpsan.ptx.types import PtxType

__all__ = [
    "Atomic",
    "LoadStore",
    "MapChange",
    "MatrixAccess",
]

_MOVE = "Data Movement and Conversion Instructions"
_UPDATE = "Parallel Synchronization and Communication Instructions"
_MATRIX = "Warp-Level Matrix Instructions"

# ---- loads and stores ------------------------------------------------------------------------------------------------

opcodes("ld ldu", Opcode(_MOVE, pipe="space", undefined="used", memory="load"))
opcodes("st", Opcode(_MOVE, pipe="space", writes=False, effects=True, memory="store"))

_SCOPES = ("cta", "cluster", "gpu", "sys")
_HINTS = (
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"),
    *("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"),
    *("L2::64B", "L2::128B", "L2::256B", "L2::evict_last", "L2::evict_normal", "L2::evict_first"),
)
"""Cache operators, eviction priorities and prefetch sizes, which change no value (PTX ISA, "Cache Operators", "Cache
Eviction Priority")."""


@form("ld", "ldu", "st")
class LoadStore(Form):
    """A load or a store.

    Attributes
    ----------
    hint : bool
        Whether the last operand is a cache policy.
    order, scope : str
        Memory order and scope as written; empty for a weak access.
    """

    hint: bool = flag("L2::cache_hint")
    order: str = choice("weak", "volatile", "relaxed", "acquire", "release", default="")
    scope: str = choice(*_SCOPES, default="")
    space: str = space()
    hints: tuple[str, ...] = part(lambda mods: tuple(filter(mods.flag, _HINTS)))
    vector: int = part(lambda mods: int(mods.choice(("v2", "v4", "v8"), default="v1")[1:]))
    type: PtxType = element()

    @property
    def access_order(self) -> tuple[str, str]:
        """As for every form."""
        return self.order, self.scope

    @property
    def width(self) -> int:
        """Bytes of each lane."""
        return self.vector * self.type.bytes

    @property
    def loads_parameter(self) -> bool:
        """Whether it reads the parameter space."""
        return self.name == "ld" and self.space == "param"

    @property
    def too_wide(self) -> str:
        """Reason why an access outside the parameter space has too many bytes."""
        return f"accesses of {self.width} bytes are not modelled" if self.width > 16 else ""

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


# ---- atomic operations -----------------------------------------------------------------------------------------------

opcodes("atom", Opcode(_UPDATE, pipe="atomic", undefined="used", effects=True, memory="update"))
opcodes("red", Opcode(_UPDATE, pipe="atomic", writes=False, effects=True, memory="update"))


def _update(mods: Mods) -> tuple[str, PtxType]:
    if not {"v2", "v4", "v8"}.isdisjoint(mods.instruction.mods):
        name = mods.choice(VECTOR_UPDATES)
        type_ = mods.type(VECTOR_UPDATES[name])
    else:
        name = mods.choice(UPDATE_TYPES if mods.instruction.opcode == "atom" else WITHOUT_RESULT)
        type_ = mods.type(UPDATE_TYPES[name])
    if type_.is_float and type_.bits == 16 * type_.lanes and not mods.flag("noftz"):
        raise mods.unsupported("16-bit floating point needs .noftz")
    return name, type_


@form("atom", "red")
class Atomic(Form):
    """An atomic operation.

    Attributes
    ----------
    update : (str, PtxType)
        The operation and the type of an element.
    vector : int
        Elements, each of which is updated in an atomic operation of its own.
    hint : bool
        Whether the last operand is a cache policy.
    """

    order: str = choice("relaxed", "acquire", "release", "acq_rel", default="relaxed")
    scope: str = choice(*_SCOPES, default="gpu")
    space: str = space()
    update: tuple[str, PtxType] = part(_update)
    vector: int = part(lambda mods: int(mods.choice(("v2", "v4", "v8"), default="v1")[1:]))
    hint: bool = flag("L2::cache_hint")

    @property
    def access_order(self) -> tuple[str, str]:
        """As for every form."""
        return self.order, self.scope

    @property
    def width(self) -> int:
        """Bytes of each lane."""
        return self.vector * self.update[1].bytes

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Spaces without atomic operations, or a wrong number of operands."""
        if self.space not in ("global", "shared", "shared::cluster", "generic"):
            return f"no atomics on .{self.space}"
        if self.vector > 1 and self.space not in ("global", "generic"):
            return "atomic operations on a vector are of global memory"
        if self.width > 16:
            return f"accesses of {self.width} bytes do not exist"
        values = (*operands[: self.name == "atom"], *operands[1 + (self.name == "atom") :][:1])
        if any((len(each.items) if isinstance(each, Vector) else 1) != self.vector for each in values):
            return f"expected {self.vector} values"
        expected = 1 + (self.name == "atom") + (2 if self.update[0] == "cas" else 1) + self.hint
        return "" if len(operands) == expected else "wrong number of operands"


# ---- matrices and tensor maps ----------------------------------------------------------------------------------------

opcodes("ldmatrix", Opcode(_MATRIX, pipe="shared", lanes="warp", undefined="used"))
opcodes("stmatrix", Opcode(_MATRIX, pipe="shared", lanes="warp", awaited=True))
opcodes("tensormap", Opcode(_MOVE, undefined="used", effects=True, awaited=True))


@form("ldmatrix", "stmatrix", words=("sync", "aligned", "m8n8", "b16"))
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


@form("tensormap.replace", words=("tile", "b1024"))
class MapChange(Form):
    """A change of a field of a tensor map."""

    field: str = choice(*MAP_FIELDS)
    space: str = space()
    type: PtxType = element("b32", "b64")

    @property
    def place(self) -> tuple[int, int, int]:
        """Offset of the field in bytes, the width of an element, and the number of elements."""
        return MAP_FIELDS[self.field]

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Another space, type or element."""
        _, width, many = self.place
        if self.space not in ("global", "shared", "generic"):
            return "a tensor map lies in global or shared memory"
        bits = 64 if width == 8 else 32
        if self.type.bits != bits:
            return f"the field .{self.field} takes a .b{bits}"
        number = operands[1] if many > 1 else Immediate(0)
        known = isinstance(number, Immediate) and 0 <= int(number.value) < many
        return "" if known else f"the field .{self.field} has the elements 0 to {many - 1}"


# ---- cache control ---------------------------------------------------------------------------------------------------


opcodes("applypriority createpolicy prefetch prefetchu", Opcode(_MOVE))
opcodes("discard", Opcode(_MOVE, effects=True, awaited=True))


def _level(mods: Mods) -> str:
    space = take_space(mods)
    levels = ("L1", "L2") if space in ("global", "local", "generic") else ()
    maps = ("tensormap",) if space in ("const", "param", "generic") else ()
    return mods.choice((*levels, *PRIORITIES[:2], *maps) if space == "global" else (*levels, *maps))


@form("prefetch")
class _Prefetch(Form):
    level: str = part(_level)


compute("prefetchu", words="L1")
compute("applypriority", sources=1, words="L2::evict_normal", flags="global")
compute("discard", sources=1, words="L2", flags="global")
_POLICY = [PRIORITIES, ("", "L2::evict_first", "L2::evict_unchanged")]
compute("createpolicy.fractional", words="b64", modes=_POLICY)
compute("createpolicy.range", words="b64", modes=_POLICY, flags="global")
compute("createpolicy.cvt", words="L2 b64")
