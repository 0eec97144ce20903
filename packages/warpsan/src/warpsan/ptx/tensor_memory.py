"""Forms of instructions on tensor memory (PTX ISA, "TensorCore 5th Generation Family Instructions").

Sparse products, weight-stationary products (``.ws``), shifts, copies of four rows and decompressing
copies are not modelled.
"""

from __future__ import annotations

import re
from dataclasses import replace

from warpsan.ptx.grammar import Form, Opcode, choice, flag, form, opcodes, part
from warpsan.ptx.ir import Operand, Vector
from warpsan.ptx.modifiers import Mods

__all__ = [
    "COPY_SHAPES",
    "TensorAllocation",
    "TensorCommit",
    "TensorCopyIn",
    "TensorFence",
    "TensorMove",
    "TensorPermit",
    "TensorProduct",
    "TensorWait",
]

_SECTION = "TensorCore 5th Generation Family Instructions"
_ASYNC = Opcode(_SECTION, pipe="async", writes=False, undefined="used", effects=True, awaited=True, forms=True)
opcodes("tcgen05", _ASYNC)
opcodes(
    " ".join(
        f"tcgen05.{name}" for name in ("st", "alloc", "dealloc", "relinquish_alloc_permit", "wait::ld", "wait::st")
    ),
    replace(_ASYNC, lanes="warp"),
)
opcodes("tcgen05.mma", replace(_ASYNC, pipe="tensor"))
opcodes("tcgen05.ld", replace(_ASYNC, lanes="warp", writes=True, awaited=False))

_SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""Registers of each thread for ``.x1``, by shape."""
COPY_SHAPES = {
    "128x256b": (128, 2, 1),
    "128x128b": (128, 1, 1),
    "64x128b": (64, 1, 2),
    "32x128b": (32, 1, 4),
}
"""Rows, 16-byte chunks of a row, and copies of each row, by shape of tcgen05.cp."""
_KINDS = {
    "kind::f16": 16,
    "kind::tf32": 8,
    "kind::f8f6f4": 32,
    "kind::i8": 32,
    "kind::mxf8f6f4": 32,
    "kind::mxf4": 64,
    "kind::mxf4nvf4": 64,
}
"""K, by family of types: 32 bytes of elements."""
_SCALES = {
    "kind::mxf8f6f4": {"": 1, "scale_vec::1X": 1, "block32": 1},
    "kind::mxf4": {"": 2, "scale_vec::2X": 2, "block32": 2},
    "kind::mxf4nvf4": {"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4},
}
"""Scales along K of one product, by family and modifier."""
_COLLECTOR = re.compile(r"collector::a::(fill|use|lastuse|discard)")


def _group(mods: Mods) -> int:
    """CTAs that take part: a CTA, or both of a pair."""
    return int(mods.choice(("cta_group::1", "cta_group::2"))[-1])


@form("tcgen05.alloc", "tcgen05.dealloc", words=("sync", "aligned", "b32"), unit="tensor")
class TensorAllocation(Form):
    """An allocation of columns, whose address goes to shared memory, or its end."""

    group: int = part(_group)
    shared: bool = part(lambda mods: mods.flag("shared::cta") or mods.flag("shared"))


@form("tcgen05.relinquish_alloc_permit", words=("sync", "aligned"), unit="tensor")
class TensorPermit(Form):
    """The end of a CTA's right to allocate columns."""

    group: int = part(_group)


def _repeats(mods: Mods) -> int:
    return int(mods.choice([f"x{1 << k}" for k in range(8)])[1:])


@form("tcgen05.ld", "tcgen05.st", words=("sync", "aligned", "b32"), unit="tensor")
class TensorMove(Form):
    """A load of a warp from its 32 lanes to registers, or a store.

    Attributes
    ----------
    shape : str
        Lanes and bits of a row for ``.x1``.
    repeats : int
        Times that the shape repeats along columns.
    packs : bool
        Whether a register holds the lower halves of two columns.
    """

    shape: str = choice(*_SHAPES)
    repeats: int = part(_repeats)
    packs: bool = part(lambda mods: mods.flag("pack::16b") or mods.flag("unpack::16b"))

    @property
    def loads(self) -> bool:
        """Whether it loads registers."""
        return self.name == "tcgen05.ld"

    @property
    def registers(self) -> int:
        """Registers of each thread."""
        return _SHAPES[self.shape] * self.repeats

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """A number of registers that the shape does not have."""
        given = operands[0 if self.loads else -1]
        number = len(given.items) if isinstance(given, Vector) else 1
        if number != self.registers:
            return f"expected {self.registers} registers"
        if len(operands) != 2 + (self.shape == "16x32bx2"):
            return "wrong number of operands"
        return ""


@form("tcgen05.wait::ld", "tcgen05.wait::st", words=("sync", "aligned"), unit="tensor")
class TensorWait(Form):
    """A wait for all loads, or all stores, of the warp."""

    @property
    def loads(self) -> bool:
        """Whether it waits for loads."""
        return self.name.endswith("ld")


@form("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", unit="tensor")
class TensorFence(Form):
    """A fence of tensor memory, before or after threads synchronise."""

    @property
    def before(self) -> bool:
        """Whether it comes before the synchronisation."""
        return "before" in self.name


def _scales(mods: Mods) -> int:
    """Scales of a row along K; 0 for a family without scales."""
    family = next((each for each in mods.instruction.mods if each in _SCALES), "")
    if not family:
        return 0
    mods.choice(("block_scale",))
    known = _SCALES[family]
    return known[mods.choice(filter(None, known), default="" if "" in known else None)]


def _collector(mods: Mods) -> str:
    """Reuse of the collector buffer, which changes no result."""
    used = next((each for each in mods.left if _COLLECTOR.fullmatch(each)), "")
    return mods.choice((used,)) if used else ""


@form("tcgen05.mma", unit="tensor")
class TensorProduct(Form):
    """A product of one CTA, or of a pair, issued by one thread.

    Attributes
    ----------
    group : int
    kind : str
        Family of the types of A and B; the instruction descriptor, a register, has the types.
    scales : int
        Scales of a row of A, and of a column of B, along K; 0 without any.
    """

    group: int = part(_group)
    kind: str = choice(*_KINDS)
    scales: int = part(_scales)
    collector: str = part(_collector)

    @property
    def depth(self) -> int:
        """K."""
        return _KINDS[self.kind]


@form("tcgen05.commit", words=("mbarrier::arrive::one", "b64"), unit="tensor")
class TensorCommit(Form):
    """An arrival at an mbarrier, of each CTA in the mask for a multicast, after the thread's earlier operations."""

    group: int = part(_group)
    cluster: bool = flag("shared::cluster")
    casts: bool = flag("multicast::cluster")


@form("tcgen05.cp", unit="tensor")
class TensorCopyIn(Form):
    """A copy from shared to tensor memory, issued by one thread."""

    group: int = part(_group)
    shape: str = choice(*COPY_SHAPES)
    casts: str = choice("warpx2::02_13", "warpx2::01_23", "warpx4", default="")

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """A multicast that the shape does not have."""
        wanted = {"64x128b": "warpx2", "32x128b": "warpx4"}.get(self.shape, "")
        return "" if self.casts.split("::")[0] == wanted else f"expected .{wanted or 'no multicast'}"
