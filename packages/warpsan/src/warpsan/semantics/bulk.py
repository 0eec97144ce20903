"""mbarriers, bulk tensor copies, st.async, fences and addresses of a cluster (PTX ISA, "mbarrier", "Tensor copies",
"st.async", "mapa", "fence")."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.checks.orders import LEVELS, SAME_CLUSTER, SAME_GPU, arrival_order, fence_order, is_memory_fence
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.clocks import fence_proxies, fence_warp
from warpsan.engine.communication import orders_by_memory, relaxed_arrivals, relaxed_waits
from warpsan.engine.initialised import fence_mbarriers
from warpsan.engine.lanes import Lanes, where
from warpsan.engine.map_fences import fence_maps
from warpsan.engine.mbarriers import acquire_observed, arrive_at, begin_mbarrier, count_bytes, end_mbarrier
from warpsan.engine.operation import NativeOperation
from warpsan.engine.phases import test_phase
from warpsan.engine.transfers import (
    arrive_behind_copies,
    commit_transfers,
    copy_within,
    load_box,
    load_bytes,
    store_box,
    store_bytes,
    store_words,
    wait_for_transfers,
)
from warpsan.engine.watch import fence_memory
from warpsan.host.memory import RANK_SHIFT, SHARED_BASE
from warpsan.ptx.grammar import Computation, Form
from warpsan.ptx.ir import Address, Entry, Immediate, Instruction, Operand, Register, Symbol
from warpsan.ptx.synchronising import (
    AsyncStore,
    BulkCopy,
    BulkPrefetch,
    BulkWait,
    CopyArrival,
    Mbarrier,
    MbarrierArrival,
    MbarrierBytes,
    MbarrierTest,
    ProxyFence,
    TensorBox,
    TensorCopy,
    TensorMapFence,
)
from warpsan.semantics.move import without_policy

__all__ = [
    "box_operands",
    "bytes_operands",
    "order_number",
    "relaxed_arrivals",
    "shared_address",
]

_OPERATION = Callable[..., int]


def _handed(asm: Assembler, name: str, function: _OPERATION, operands: list[int]) -> None:
    """Append the record of an operation that a translated function executes."""
    asm.record(NativeOperation(name, lambda code: code.hand_over(function)), operands)


def shared_address(asm: Assembler, operand: Operand, space: str) -> tuple[int, int]:
    """An address of shared memory, including the cluster's, as a row of 64 bits and an offset."""
    row, bits, offset = asm.address(operand)
    if space not in ("shared", "shared::cluster", "generic"):
        raise asm.unsupported(f"shared memory, not .{space}")
    row = wide_row(asm, row, bits)
    if space == "generic":  # addresses of other spaces are then in no CTA's shared memory
        within = asm.temporary(64)
        asm.lanewise("generic.shared", lambda x: x - SHARED_BASE, [within], [row], ["u64"], ["u64"])
        row = within
    return row, offset


def wide_row(asm: Assembler, row: int, bits: int) -> int:
    """The row of an address of 64 bits, or of 32 bits, which are extended."""
    if bits == 64:
        return row
    wide = asm.temporary(64)
    asm.resize(row, 32, wide, 64, signed=False)
    return wide


def copies_complete(entry: Entry) -> bool:
    """Whether bulk copies complete on mbarriers, whose initialisation is then checked."""
    return any({"bulk", "mbarrier::complete_tx::bytes"} <= set(each.mods) for each in entry.instructions)


@native("fence", "membar")
def _fence(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Instructions run one after the other here: a fence changes no value; only the checks use it."""
    if asm.checked and not isinstance(form, ProxyFence | TensorMapFence):
        order = fence_order(instruction)
        if relaxed_arrivals(asm.entry) and order.release:
            _handed(asm, "fence", fence_warp, [int(order.level >= SAME_CLUSTER), int(is_memory_fence(instruction))])
        if relaxed_waits(asm.entry) and order.acquire:
            _handed(asm, "fence.observed", acquire_observed, [int(order.level >= SAME_CLUSTER)])
        if orders_by_memory(asm.entry):
            operands = [order.acquire, order.release, min(order.level, SAME_GPU), order.sequential]
            _handed(asm, "fence.memory", fence_memory, list(map(int, operands)))
        if order.release and order.level >= SAME_CLUSTER and copies_complete(asm.entry):
            _handed(asm, "fence.mbarriers", fence_mbarriers, [])
    if isinstance(form, TensorMapFence):
        row, bits, offset = asm.address(instruction.operands[0]) if instruction.operands else (0, 64, 0)
        if asm.checked:
            wide = wide_row(asm, row, bits) if instruction.operands else 0
            operands = [wide, offset, min(LEVELS[form.scope], SAME_GPU), int(form.order == "acquire")]
            _handed(asm, "fence.maps", fence_maps, operands)
    if asm.checked and isinstance(form, ProxyFence):
        _handed(asm, "fence.proxy", fence_proxies, [int(each in form.spaces) for each in ("shared", "global")])
        if "shared" in form.spaces and copies_complete(asm.entry):
            _handed(asm, "fence.mbarriers", fence_mbarriers, [])


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


# ---- mbarriers -------------------------------------------------------------------------------------------------------


def order_number(asm: Assembler, instruction: Instruction) -> int:
    """The memory order and the scope of an arrival or a wait, as in
    :func:`warpsan.engine.mbarriers.arrive_in_order`.

    PTX defines ``.cta`` as the scope of an instruction without one; only the ``strict`` check applies it.
    """
    order = arrival_order(instruction)
    level = SAME_CLUSTER if order.implied and not asm.default_scope_is_cta else order.level
    return level + 1 if order.release else -(level + 1)


@native("mbarrier.init")
def _init(asm: Assembler, instruction: Instruction, form: Mbarrier) -> None:
    """An mbarrier whose phases expect the given number of arrivals."""
    place = shared_address(asm, instruction.operands[0], form.space)
    count = asm.source(instruction.operands[1], "u32")
    _handed(asm, "mbarrier.init", begin_mbarrier, [*place, count, instruction.pc])


@native("mbarrier.arrive", "mbarrier.arrive_drop")
def _arrive(asm: Assembler, instruction: Instruction, form: MbarrierArrival) -> None:
    """Arrivals; ``arrive_drop`` also leaves all later phases."""
    operands = list(instruction.operands)
    token, finish = -1, _nothing
    if not isinstance(operands[0], Address):
        target = operands.pop(0)
        if not isinstance(target, Symbol) or target.name != "_":
            if form.space == "shared::cluster":
                raise asm.unsupported("an mbarrier of another CTA gives no state token")
            token, finish = asm.target(target, "b64")
    place = shared_address(asm, operands[0], form.space)
    many = asm.source(operands[1] if len(operands) > 1 else Immediate(1), "u32")
    order, drops = order_number(asm, instruction), form.name == "mbarrier.arrive_drop"
    words = [*place, many, int(form.expects), instruction.pc, order, token, int(drops), int(form.incomplete)]
    _handed(asm, "mbarrier.arrive", arrive_at, words)
    finish()


def _nothing() -> None:
    """Returns no result."""


@native("mbarrier.test_wait")
def _test_wait(asm: Assembler, instruction: Instruction, form: MbarrierTest) -> None:
    """Whether a phase is complete."""
    target, address, state = instruction.operands
    place = shared_address(asm, address, form.space)
    asked = asm.source(state, "u32" if form.parity else "b64")
    row, finish = asm.target(target, "pred")
    words = [*place, asked, int(not form.parity), order_number(asm, instruction), row, instruction.pc]
    _handed(asm, "mbarrier.test_wait", test_phase, words)
    finish()


@native("mbarrier.expect_tx", "mbarrier.complete_tx")
def _transactions(asm: Assembler, instruction: Instruction, form: MbarrierBytes) -> None:
    """Bytes that a phase expects, and bytes that have arrived."""
    (address, number) = instruction.operands
    place, many = shared_address(asm, address, form.space), asm.source(number, "u32")
    _handed(asm, "mbarrier.tx", count_bytes, [*place, many, int(form.name == "mbarrier.expect_tx"), instruction.pc])


@native("cp.async.mbarrier.arrive")
def _arrive_behind_copies(asm: Assembler, instruction: Instruction, form: CopyArrival) -> None:
    """The lane arrives after its copies so far have landed; without ``.noinc``, the phase also expects this arrival."""
    place = shared_address(asm, instruction.operands[0], form.space)
    words = [*place, int(form.expected), instruction.pc]
    _handed(asm, "mbarrier.copies", arrive_behind_copies, words)


@native("mbarrier.inval")
def _inval(asm: Assembler, instruction: Instruction, form: Mbarrier) -> None:
    """Ends the mbarrier; its memory may be reused."""
    place = shared_address(asm, instruction.operands[0], form.space)
    _handed(asm, "mbarrier.inval", end_mbarrier, [*place, instruction.pc])


@native("mbarrier.pending_count")
def _pending_count(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """The number of arrivals that a phase still expected when a state token was made."""
    asm.elementwise(instruction, "mbarrier.pending_count", lambda x: x.to("u32"), "u32", "u64")


# ---- copies ----------------------------------------------------------------------------------------------------------


@native("cp.async.bulk.commit_group")
def _commit_group(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Closes the lane's current bulk group."""
    _handed(asm, "bulk.commit_group", commit_transfers, [])


@native("cp.async.bulk.wait_group")
def _wait_group(asm: Assembler, instruction: Instruction, form: BulkWait) -> None:
    """Completes the copies of all bulk groups of the lane but the last few; with ``.read``, only their reading."""
    _handed(asm, "bulk.wait_group", wait_for_transfers, [form.keep, int(form.reads)])


@native("cp.async.bulk.tensor")
def _tensor_copy(asm: Assembler, instruction: Instruction, form: TensorCopy) -> None:
    """One lane copies a box of a tensor, in tile mode."""
    operands = without_policy(asm, instruction, form.hint)
    many = asm.source(operands.pop(), "u16") if form.casts else -1
    words = box_operands(asm, instruction, form, operands, many)
    _handed(asm, *(("tensor.store", store_box) if form.stores else ("tensor.load", load_box)), words)


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
    _handed(asm, *_BYTES[form.way], bytes_operands(asm, instruction, operands, form.way, many))


_BYTES: dict[tuple[str, str], tuple[str, _OPERATION]] = {
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
    _handed(asm, "st.async", store_words, words)
