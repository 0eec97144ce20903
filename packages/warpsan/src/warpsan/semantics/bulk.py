"""Bulk copies, st.async and addresses of a cluster (PTX ISA, "Tensor copies", "st.async", "mapa")."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.engine.transfers import (
    commit_transfers,
    copy_within,
    load_box,
    load_box_of_pair,
    load_bytes,
    store_box,
    store_bytes,
    store_words,
    wait_for_transfers,
)
from warpsan.host.memory import RANK_SHIFT
from warpsan.ptx.grammar import Computation, Form
from warpsan.ptx.ir import Instruction, Operand, Register
from warpsan.ptx.synchronising import (
    AsyncStore,
    BulkCopy,
    BulkPrefetch,
    BulkWait,
    TensorBox,
    TensorCopy,
)
from warpsan.semantics.mbarriers import shared_address, wide_row
from warpsan.semantics.move import without_policy

__all__ = [
    "box_operands",
    "bytes_operands",
]


@native("mapa")
def _mapa(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The address of the same variable in another CTA of the cluster."""
    type_ = form.type
    keep = ((1 << type_.bits) - 1) ^ (0xFF << RANK_SHIFT)

    def function(address: Lanes, rank: Lanes) -> Lanes:
        return (address & keep) | ((rank.to(type_.name) + 1) << RANK_SHIFT)

    asm.elementwise(instruction, f"mapa.{type_.name}", function, type_.name, type_.name, "u32")


@native("getctarank")
def _getctarank(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The rank of the CTA whose shared memory contains an address."""

    def function(address: Lanes, own: Lanes) -> Lanes:
        rank = (address >> RANK_SHIFT).to("u32") & 0xFF
        return where(rank == 0, own, rank - 1)

    (target, origin), type_ = instruction.operands, form.type
    sources = [(origin, type_.name), (Register("%cluster_ctarank"), "u32")]
    asm.compute(f"getctarank.{type_.name}", function, [(target, "u32")], sources)


@native("cp.async.bulk.commit_group")
def _commit_group(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Closes the lane's current bulk group."""
    asm.call("bulk.commit_group", commit_transfers, [])


@native("cp.async.bulk.wait_group")
def _wait_group(asm: Assembler, instruction: Instruction, form: BulkWait) -> None:
    """Completes the copies of all bulk groups of the lane but the last few; with ``.read``, only their reading."""
    asm.call("bulk.wait_group", wait_for_transfers, [form.keep, int(form.reads)])


@native("cp.async.bulk.tensor")
def _tensor_copy(asm: Assembler, instruction: Instruction, form: TensorCopy) -> None:
    """One lane copies a box of a tensor, in tile mode."""
    operands = without_policy(asm, instruction, form.hint)
    many = asm.source(operands.pop(), "u16") if form.casts else -1
    words = box_operands(asm, instruction, form, operands, many)
    load = ("tensor.load.pair", load_box_of_pair) if form.pairs else ("tensor.load", load_box)
    asm.call(*(("tensor.store", store_box) if form.stores else load), words)


def box_operands(
    asm: Assembler, instruction: Instruction, form: TensorCopy, operands: list[Operand], more: int
) -> list[int]:
    """The operands of the record of a copy of a box; ``more`` is the row of the CTAs of a multicast, or the place of
    the combinations of elements."""
    shared = shared_address(asm, operands[1 if form.stores else 0], form.space)
    row, bits, offset = asm.address(form.box.map)
    coordinates = [asm.source(each, "s32") for each in form.box.coordinates]
    mbarrier = (0, 0) if form.stores else shared_address(asm, operands[2], form.space)
    place = wide_row(asm, row, bits), offset
    return [*shared, *place, instruction.pc, len(coordinates), *mbarrier, more, *coordinates]


@native("cp.async.bulk")
def _bulk_copy(asm: Assembler, instruction: Instruction, form: BulkCopy) -> None:
    """One lane copies many bytes between global and shared memory, or to another CTA of the cluster."""
    operands = without_policy(asm, instruction, form.hint)
    many = asm.source(operands.pop(), "u16") if form.casts else -1 if form.way[1] == "global" else 0
    asm.call(*_BYTES[form.way], bytes_operands(asm, instruction, operands, form.way, many))


_BYTES: dict[tuple[str, str], tuple[str, Callable[..., int]]] = {
    ("shared::cluster", "global"): ("bulk.load", load_bytes),
    ("shared", "global"): ("bulk.load", load_bytes),
    ("global", "shared"): ("bulk.store", store_bytes),
    ("shared::cluster", "shared"): ("bulk.within", copy_within),
}
"""Names of the operations, by destination and source."""


def bytes_operands(
    asm: Assembler, instruction: Instruction, operands: list[Operand], spaces: tuple[str, str], more: int
) -> list[int]:
    """The operands of the record of a copy of bytes, at the indices :data:`~warpsan.engine.layout.COPY_SHARED` and
    others.

    ``spaces`` are those of destination and source; ``more`` is the row of the CTAs of a multicast, or the combination
    of elements.
    """
    target, source = spaces
    stores = target == "global"
    shared = shared_address(asm, operands[1 if stores else 0], source if stores else target)
    if source == "shared" and not stores:
        far = shared_address(asm, operands[1], source)
    else:
        row, bits, offset = asm.address(operands[0 if stores else 1])
        far = wide_row(asm, row, bits), offset
    mbarrier = (0, 0) if stores else shared_address(asm, operands[3], target)
    return [*shared, *far, instruction.pc, asm.source(operands[2], "u32"), *mbarrier, more]


@native("cp.async.bulk.prefetch.tensor")
def _prefetch_box(asm: Assembler, instruction: Instruction, form: TensorBox) -> None:
    """Has no effect: the simulator has no L2 cache."""
    without_policy(asm, instruction, form.hint)
    asm.address(form.box.map)
    for each in form.box.coordinates:
        asm.source(each, "s32")


@native("cp.async.bulk.prefetch")
def _prefetch(asm: Assembler, instruction: Instruction, form: BulkPrefetch) -> None:
    """Has no effect, for any address: the simulator has no L2 cache."""
    operands = without_policy(asm, instruction, form.hint)
    asm.address(operands[0])
    asm.source(operands[1], "u32")


@native("st.async")
def _st_async(asm: Assembler, instruction: Instruction, form: AsyncStore) -> None:
    """A store whose bytes an mbarrier counts; until then its destination is poison."""
    sources = [asm.source(item, f"b{form.type.bits}") for item in asm.vector(instruction.operands[1])]
    place = shared_address(asm, instruction.operands[0], "shared::cluster")
    mbarrier = shared_address(asm, instruction.operands[2], "shared::cluster")
    words = [*place, *mbarrier, form.type.bytes, len(sources), instruction.pc, 0, *sources]
    asm.call("st.async", store_words, words)
