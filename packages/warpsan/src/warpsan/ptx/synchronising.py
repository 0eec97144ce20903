"""Forms of instructions that order threads or run asynchronously (PTX ISA, "Parallel Synchronization and Communication
Instructions", "Asynchronous copy", "Asynchronous Warpgroup-Level Matrix Instructions", "setmaxnreg").
"""

from __future__ import annotations

import re

from warpsan.ptx.forms import DESCRIPTOR_BYTES, OPERATIONS, SHARED_REDUCTIONS
from warpsan.ptx.grammar import Form, Opcode, choice, compute, element, flag, form, groups, opcodes, part, space
from warpsan.ptx.ir import Immediate, Operand, TensorAddress, Vector
from warpsan.ptx.modifiers import Mods
from warpsan.ptx.types import PtxType

__all__ = [
    "AsyncCopy",
    "AsyncReduction",
    "AsyncStore",
    "BarrierReduction",
    "BlockBarrier",
    "BulkCopy",
    "BulkPrefetch",
    "BulkReduction",
    "BulkWait",
    "ClusterAction",
    "CopyArrival",
    "CopyWait",
    "Mbarrier",
    "MbarrierArrival",
    "MbarrierBytes",
    "MbarrierFence",
    "MbarrierTest",
    "MbarrierWait",
    "MemoryFence",
    "Product",
    "ProductFence",
    "ProductWait",
    "ProxyFence",
    "RegisterCount",
    "TensorBox",
    "TensorCopy",
    "TensorMapCopy",
    "TensorMapFence",
    "TensorReduction",
    "WarpBarrier",
]

_SECTION = "Parallel Synchronization and Communication Instructions"
_COPY = "Data Movement and Conversion Instructions: Asynchronous copy"
_GROUP_MATRIX, _OTHERS = "Asynchronous Warpgroup-Level Matrix Instructions", "Miscellaneous Instructions"

_SCOPES = ("cta", "cluster", "gpu", "sys")
_COMPLETES = "mbarrier::complete_tx::bytes"

# ---- fences ----------------------------------------------------------------------------------------------------------


opcodes("fence membar", Opcode(_SECTION, writes=False, effects=True))
opcodes("griddepcontrol", Opcode(_SECTION, writes=False, effects=True, awaited=True))


@form("fence", "membar")
class MemoryFence(Form):
    """A fence of release and acquire patterns; ``membar`` is ``fence.sc``, and its scope ``.gl`` is that of the GPU."""

    order: str = part(
        lambda mods: (
            "sc"
            if mods.instruction.opcode == "membar"
            else mods.choice(("sc", "acq_rel", "acquire", "release"), default="")
        )
    )
    scope: str = part(
        lambda mods: mods.choice(("cta", "gl", "sys") if mods.instruction.opcode == "membar" else _SCOPES)
    )


@form("fence.mbarrier_init", words=("release", "cluster"))
class MbarrierFence(Form):
    """A release of initialised mbarriers to the cluster."""


def _visible_spaces(mods: Mods) -> tuple[str, ...]:
    """The spaces of a fence of the async proxy; none for other proxies, and for the acquire of
    ``async::generic``: it orders reads in the generic proxy, which are not checked."""
    kind = mods.choice(("async", "alias", "async::generic", "tensormap::generic"))
    if kind == "async":
        space = mods.choice(("global", "shared::cta", "shared::cluster"), default="")
        return (space.split("::")[0],) if space else ("shared", "global")
    if kind == "alias":
        return ()
    releases = mods.choice(("acquire", "release")) == "release"
    mods.choice((f"sync_restrict::shared::{'cta' if releases else 'cluster'}",))
    mods.choice(("cluster",))
    return ("shared",) if releases else ()


@form("fence.proxy", "membar.proxy", unit="proxies")
class ProxyFence(Form):
    """A fence between the generic proxy and another.

    Attributes
    ----------
    spaces : tuple of str
        Spaces whose writes become visible in the async proxy.
    """

    spaces: tuple[str, ...] = part(_visible_spaces)


@form("fence.proxy.tensormap::generic", "membar.proxy.tensormap::generic")
class TensorMapFence(Form):
    """A release of writes to tensor maps, or an acquire of the map at an address."""

    order: str = choice("acquire", "release")
    scope: str = choice(*_SCOPES)

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Wrong operands."""
        if self.order == "release":
            return "a release has no operands" if operands else ""
        right = len(operands) == 2 and operands[1] == Immediate(DESCRIPTOR_BYTES)
        return "" if right else f"an acquire takes the address of a tensor map and its size, {DESCRIPTOR_BYTES}"


@form(
    "tensormap.cp_fenceproxy",
    words=("global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"),
)
class TensorMapCopy(Form):
    """A copy of a tensor map from shared to global memory, with a release."""

    scope: str = choice(*_SCOPES)

    @property
    def named_spaces(self) -> frozenset[str]:
        """As for every form."""
        return frozenset({"global", "shared"})

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """Another size."""
        _, _, size = operands
        return "" if size == Immediate(DESCRIPTOR_BYTES) else f"the size must be {DESCRIPTOR_BYTES}"


compute("griddepcontrol.wait")
compute("griddepcontrol.launch_dependents")

# ---- barriers and registers ------------------------------------------------------------------------------------------

opcodes("bar barrier", Opcode(_SECTION, pipe="barrier", writes=False, undefined="used", effects=True, awaited=True))
opcodes("setmaxnreg", Opcode(_OTHERS, lanes="warp", effects=True))


@form("bar.warp", "barrier.warp", words=("sync",), sources=0)
class WarpBarrier(Form):
    """A barrier of the lanes in a mask, which a warp reaches together."""


def _is_aligned(mods: Mods) -> bool:
    """Whether all threads of a warp execute the barrier together; ``bar`` is ``barrier.aligned``."""
    return mods.flag("aligned") or mods.instruction.opcode == "bar"


@form("bar", "barrier", ends=True)
class BlockBarrier(Form):
    """An arrival at a barrier of the block, with a wait or without."""

    action: str = choice("sync", "arrive")
    cta: bool = flag("cta")
    aligned: bool = part(_is_aligned)


@form("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", ends=True)
class BarrierReduction(Form):
    """A wait at a barrier of the block that combines a predicate of all threads."""

    operation: str = choice("popc", "and", "or")
    type: PtxType = part(lambda mods: mods.type(("u32",) if "popc" in mods.instruction.mods else ("pred",)))
    aligned: bool = part(_is_aligned)


@form("barrier.cluster", ends=True)
class ClusterAction(Form):
    """An arrival at the barrier of a cluster, or a wait for its phase."""

    action: str = choice("arrive", "wait")
    order: str = part(
        lambda mods: mods.choice(
            ("release", "relaxed") if "arrive" in mods.instruction.mods else ("acquire",), default=""
        )
    )
    aligned: bool = flag("aligned")


def _register_count(mods: Mods) -> int:
    number = mods.instruction.operands[0]
    if not (isinstance(number, Immediate) and isinstance(number.value, int)):
        raise mods.unsupported("expected a constant number of registers")
    if not 24 <= number.value <= 256 or number.value % 8:
        raise mods.unsupported(f"the number of registers is a multiple of 8 from 24 to 256, not {number.value}")
    return number.value


@form("setmaxnreg", words=("sync", "aligned", "u32"), ends=True)
class RegisterCount(Form):
    """A request for more registers of each thread, or a release of some."""

    action: str = choice("inc", "dec")
    wanted: int = part(_register_count)


# ---- mbarriers -------------------------------------------------------------------------------------------------------

opcodes("mbarrier", Opcode(_SECTION, pipe="barrier", undefined="used", effects=True, awaited=True))


@form("mbarrier.init", "mbarrier.inval", words=("b64",), unit="mbarriers")
class Mbarrier(Form):
    """An instruction on the mbarrier at an address in ``space``."""

    space: str = space()


@form("mbarrier.arrive", "mbarrier.arrive_drop", words=("b64",), unit="mbarriers")
class MbarrierArrival(Mbarrier):
    """Arrivals, with the bytes that the phase also expects."""

    expects: bool = flag("expect_tx")
    incomplete: bool = flag("noComplete")
    order: str = choice("relaxed", "release", default="")
    scope: str = choice("cta", "cluster", default="")


@form("mbarrier.test_wait", words=("b64",), unit="mbarriers")
class MbarrierTest(Mbarrier):
    """A test of a phase."""

    parity: bool = flag("parity")
    order: str = choice("relaxed", "acquire", default="")
    scope: str = choice("cta", "cluster", default="")

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """A wait for an mbarrier of another CTA."""
        return "waiting for an mbarrier of another CTA is not allowed" if self.space == "shared::cluster" else ""


@form("mbarrier.try_wait", words=("b64",), ends=True, unit="mbarriers")
class MbarrierWait(MbarrierTest):
    """A wait for a phase."""


@form("mbarrier.expect_tx", "mbarrier.complete_tx", words=("b64",), unit="mbarriers")
class MbarrierBytes(Mbarrier):
    """Bytes that a phase expects, or bytes that have arrived."""

    order: str = choice("relaxed", default="")
    scope: str = choice("cta", "cluster", default="")


form("mbarrier.pending_count", words=("b64",), unit="mbarriers")(Form)


# ---- cp.async --------------------------------------------------------------------------------------------------------

opcodes("cp", Opcode(_COPY, pipe="async", writes=False, effects=True, awaited=True))


form("cp.async.commit_group", "cp.async.wait_all", unit="copies")(Form)


@form("cp.async.wait_group", unit="copies")
class CopyWait(Form):
    """Waits for all groups but the last ``keep``."""

    keep: int = groups()


@form("cp.async.mbarrier.arrive", words=("b64",), unit="bulk")
class CopyArrival(Mbarrier):
    """An arrival after the lane's copies so far; without ``expected``, the phase also expects it."""

    expected: bool = flag("noinc")


@form("cp.async", unit="copies")
class AsyncCopy(Form):
    """A copy of 4, 8 or 16 bytes from global to shared memory."""

    cache: str = choice("ca", "cg")
    target: str = choice("shared::cta", "shared")
    source: str = choice("global")
    prefetch: str = choice("L2::64B", "L2::128B", "L2::256B", default="")
    hint: bool = flag("L2::cache_hint")

    @property
    def named_spaces(self) -> frozenset[str]:
        """As for every form."""
        return frozenset({"global", "shared"})

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """A size that does not exist, or too many operands."""
        _, _, size, *rest = operands
        if not (isinstance(size, Immediate) and size.value in ((16,) if self.cache == "cg" else (4, 8, 16))):
            return "the copy size must be 16 with .cg, and 4, 8 or 16 with .ca"
        return "expected at most four operands and a cache policy" if len(rest) > 1 + self.hint else ""


# ---- bulk copies -----------------------------------------------------------------------------------------------------


form("cp.async.bulk.commit_group", unit="bulk")(Form)


@form("cp.async.bulk.wait_group", unit="bulk")
class BulkWait(Form):
    """Waits for all bulk groups but the last ``keep``, or only for their reading."""

    reads: bool = flag("read")
    keep: int = groups()


_WAYS = {
    ("shared::cluster", "global"),
    ("shared::cta", "global"),
    ("global", "shared::cta"),
    ("shared::cluster", "shared::cta"),
}


def _way(mods: Mods) -> tuple[str, str]:
    """Spaces of destination and source; the completion depends on them."""
    spaces = tuple(mod for mod in mods.left if mod in ("global", "shared::cta", "shared::cluster"))
    if spaces not in _WAYS:
        raise mods.unsupported("expected a destination and a source")
    for each in spaces:
        mods.choice((each,))
    mods.choice(("bulk_group",) if spaces[0] == "global" else (_COMPLETES,))
    target, source = (each.replace("shared::cta", "shared") for each in spaces)
    return target, source


def _casts(mods: Mods) -> bool:
    """Whether a load from global memory writes to several CTAs."""
    given = mods.instruction.mods
    return "global" in given and "bulk_group" not in given and mods.flag("multicast::cluster")


@form("cp.async.bulk", unit="bulk")
class BulkCopy(Form):
    """A copy of bytes.

    Attributes
    ----------
    hint : bool
        Whether the last operand is a cache policy.
    way : tuple of str
        Spaces of destination and source.
    casts : bool
        Whether the last operand but the policy is the mask of the CTAs of a multicast.
    """

    hint: bool = flag("L2::cache_hint")
    way: tuple[str, str] = part(_way)
    casts: bool = part(_casts)

    @property
    def completes(self) -> bool:
        """Whether it completes on an mbarrier."""
        return self.way[0] != "global"

    @property
    def named_spaces(self) -> frozenset[str]:
        """As for every form."""
        return frozenset(each.partition("::")[0] for each in self.way)


def _combination(mods: Mods) -> tuple[str, PtxType]:
    within = _COMPLETES in mods.instruction.mods
    if within and "global" in mods.instruction.mods:
        raise mods.unsupported("reductions of global memory into shared memory do not exist")
    name = mods.choice(SHARED_REDUCTIONS if within else OPERATIONS)
    type_ = mods.type(SHARED_REDUCTIONS[name] if within else ())
    if within:
        return name, type_
    if type_.name in ("f16", "bf16") and name == "add" and not mods.flag("noftz"):
        raise mods.unsupported("16-bit floating point needs .noftz")
    elif (type_.kind == "b") != (name in ("and", "or", "xor")):
        raise mods.unsupported(f".{name} on .{type_.name} is not modelled")
    return name, type_


@form("cp.reduce.async.bulk", unit="bulk")
class BulkReduction(BulkCopy):
    """A copy of bytes whose elements are combined with the stored ones, by an operation and its type."""

    combination: tuple[str, PtxType] = part(_combination)

    @property
    def access_order(self) -> tuple[str, str]:
        """Bulk reductions are relaxed operations with the scope of the GPU."""
        return "relaxed", "gpu"


def _box(mods: Mods) -> TensorAddress:
    rank = int(mods.choice(("1d", "2d", "3d", "4d", "5d"))[0])
    box = next((each for each in mods.instruction.operands if isinstance(each, TensorAddress)), None)
    if box is None or len(box.coordinates) != rank:
        raise mods.unsupported(f"expected a tensor map and {rank} coordinates")
    return box


def _box_space(mods: Mods) -> str:
    if "bulk_group" in mods.instruction.mods:
        mods.choice(("shared::cta",))
        return "shared"
    space = "shared" if mods.flag("shared::cta") else mods.choice(("shared::cluster",))
    mods.choice((_COMPLETES,))
    return space


def _pairs(mods: Mods) -> bool:
    if "bulk_group" in mods.instruction.mods:
        return False
    return mods.choice(("cta_group::1", "cta_group::2"), "cta_group::1") == "cta_group::2"


@form("cp.async.bulk.prefetch.tensor", words=("L2", "global"))
class TensorBox(Form):
    """A prefetch of a box of a tensor, in tile mode."""

    box: TensorAddress = part(_box)
    hint: bool = flag("L2::cache_hint")
    tile: bool = flag("tile")

    @property
    def named_spaces(self) -> frozenset[str]:
        """As for every form."""
        return frozenset({"global"})


@form("cp.async.bulk.tensor", words=("global",), unit="bulk")
class TensorCopy(TensorBox):
    """A copy of a box of a tensor, in tile mode.

    Attributes
    ----------
    stores : bool
        Whether it writes the tensor.
    space : str
        Space of the box in shared memory.
    casts : bool
        Whether the last operand but the policy is the mask of the CTAs of a multicast.
    pairs : bool
        Whether the mbarrier may be that of the other CTA of a pair.
    """

    stores: bool = flag("bulk_group")
    space: str = part(_box_space)
    casts: bool = part(_casts)
    pairs: bool = part(_pairs)

    @property
    def completes(self) -> bool:
        """Whether it completes on an mbarrier."""
        return not self.stores

    @property
    def named_spaces(self) -> frozenset[str]:
        """As for every form."""
        return frozenset({"global", "shared"})


def _box_operation(mods: Mods) -> str:
    if "bulk_group" not in mods.instruction.mods:
        raise mods.unsupported("reductions into shared memory are not modelled")
    return mods.choice(OPERATIONS)


@form("cp.reduce.async.bulk.tensor", words=("global",), unit="bulk")
class TensorReduction(TensorCopy):
    """A store of a box whose elements are combined with those of the tensor."""

    operation: str = part(_box_operation)

    @property
    def access_order(self) -> tuple[str, str]:
        """Bulk reductions are relaxed operations with the scope of the GPU."""
        return "relaxed", "gpu"


@form("cp.async.bulk.prefetch", words=("L2", "global"))
class BulkPrefetch(Form):
    """A prefetch of bytes."""

    hint: bool = flag("L2::cache_hint")

    @property
    def named_spaces(self) -> frozenset[str]:
        """As for every form."""
        return frozenset({"global"})


# ---- asynchronous stores ---------------------------------------------------------------------------------------------


@form("st.async", words=(_COMPLETES,), unit="bulk")
class AsyncStore(Form):
    """A store of one to four values into the shared memory of a cluster."""

    weak: bool = flag("weak")
    space: str = choice("shared::cluster", default="")
    vector: int = part(lambda mods: int(mods.choice(("v2", "v4"), default="v1")[1:]))
    type: PtxType = element("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")

    @property
    def width(self) -> int:
        """Bytes of each lane."""
        return self.vector * self.type.bytes

    def refusal(self, operands: tuple[Operand, ...]) -> str:
        """A wrong number of values, or more than 16 bytes."""
        number = len(operands[1].items) if isinstance(operands[1], Vector) else 1
        if number != self.vector:
            return f"expected {self.vector} values"
        return "" if self.width <= 16 else f"accesses of {self.width} bytes are not modelled"


def _reduced_type(mods: Mods) -> PtxType:
    operation = next(mod for mod in mods.instruction.mods if mod in SHARED_REDUCTIONS)
    return mods.type(SHARED_REDUCTIONS[operation])


@form("red.async", words=("relaxed", "cluster", _COMPLETES), unit="bulk")
class AsyncReduction(Form):
    """An atomic update in the shared memory of a cluster."""

    space: str = choice("shared::cluster", default="")
    operation: str = choice(*SHARED_REDUCTIONS)
    type: PtxType = part(_reduced_type)

    @property
    def access_order(self) -> tuple[str, str]:
        """As for every form."""
        return "relaxed", "cluster"

    @property
    def width(self) -> int:
        """Bytes of each lane."""
        return self.type.bytes


# ---- products of warpgroups ------------------------------------------------------------------------------------------

opcodes("wgmma", Opcode(_GROUP_MATRIX, pipe="tensor", lanes="warp", undefined="used", effects=True, awaited=True))


@form("wgmma.wait_group", words=("sync", "aligned"), ends=True, unit="products")
class ProductWait(Form):
    """Waits for all groups of products but the last ``keep``."""

    keep: int = groups(7)


def _shape(mods: Mods) -> tuple[int, int]:
    shapes = [each for each in mods.left if re.fullmatch(r"m64n\d+k\d+", each)]
    if len(shapes) != 1 or len(mods.left) != 6:
        raise mods.unsupported("expected a shape m64nNkK and three types")
    mods.left.remove(shapes[0])
    columns, depth = shapes[0].removeprefix("m64n").split("k")
    return int(columns), int(depth)


def _types(mods: Mods) -> tuple[str, ...]:
    return tuple(mods.choice((each,)) for each in [name for name in mods.left if name not in ("sync", "aligned")])


@form("wgmma.mma_async", words=("sync", "aligned"), ends=True, unit="products")
class Product(Form):
    """A product.

    Attributes
    ----------
    saturates : bool
    shape : tuple of int
        N and K.
    types : tuple of str
        Types of the sums, A and B.
    """

    saturates: bool = flag("satfinite")
    shape: tuple[int, int] = part(_shape)
    types: tuple[str, ...] = part(_types)

    @property
    def size(self) -> tuple[int, int, int]:
        """M, N and K."""
        return 64, *self.shape


@form("wgmma.fence", words=("sync", "aligned"), unit="products")
class ProductFence(Form):
    """A fence between accesses to the registers of products and the products."""


form("wgmma.commit_group", words=("sync", "aligned"), unit="products")(Form)
