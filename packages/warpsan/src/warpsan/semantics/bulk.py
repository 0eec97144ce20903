"""mbarriers, bulk tensor copies, st.async, fences and addresses of a cluster (PTX ISA, "mbarrier", "Tensor copies",
"st.async", "mapa", "fence")."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.checks.orders import SAME_CLUSTER, SAME_GPU, arrival_order, fence_order
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.clocks import fence_proxies, fence_warp
from warpsan.engine.communication import communicates, relaxed_arrivals, relaxed_waits
from warpsan.engine.initialised import fence_mbarriers
from warpsan.engine.lanes import Lanes, where
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
from warpsan.host.tensor_map import DESCRIPTOR_BYTES
from warpsan.ptx.ir import Address, Entry, Immediate, Instruction, Operand, Register, Symbol, TensorAddress
from warpsan.ptx.modifiers import Mods, require, take_space
from warpsan.replay.fence import one_way_release
from warpsan.semantics.move import take_cache_hint

__all__ = [
    "bytes_operands",
    "refuse_waiting",
    "relaxed_arrivals",
    "shared_address",
    "take_box",
    "take_ways",
    "wide_row",
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
def _fence(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Instructions run one after the other here: a fence changes no value; only the checks use it."""
    if asm.checked and "proxy" not in instruction.mods:
        order = fence_order(instruction)
        if relaxed_arrivals(asm.entry) and order.release:
            _handed(asm, "fence", fence_warp, [int(order.level >= SAME_CLUSTER)])
        if relaxed_waits(asm.entry) and order.acquire:
            _handed(asm, "fence.observed", acquire_observed, [int(order.level >= SAME_CLUSTER)])
        if communicates(asm.entry):
            operands = [order.acquire, order.release, min(order.level, SAME_GPU), order.sequential]
            _handed(asm, "fence.memory", fence_memory, list(map(int, operands)))
        if order.release and order.level >= SAME_CLUSTER and copies_complete(asm.entry):
            _handed(asm, "fence.mbarriers", fence_mbarriers, [])
    if mods.flag("proxy"):
        kind = mods.choice(("async", "alias", "async::generic", "tensormap::generic"))
        if kind in ("async", "async::generic"):
            if kind == "async":
                shared = mods.choice(("global", "shared::cta", "shared::cluster"), default="") != "global"
            else:
                shared = one_way_release(mods)
            if asm.checked and shared:
                _handed(asm, "fence.proxy", fence_proxies, [])
                if copies_complete(asm.entry):
                    _handed(asm, "fence.mbarriers", fence_mbarriers, [])
        elif kind == "tensormap::generic":
            action = mods.choice(("acquire", "release"))
            mods.choice(("cta", "cluster", "gpu", "sys"))
            _map_of_fence(asm, mods, action)
    elif instruction.opcode == "membar":
        mods.choice(("cta", "gl", "sys"))
    elif mods.flag("mbarrier_init"):
        mods.choice(("release",))
        mods.choice(("cluster",))
    else:
        mods.choice(("sc", "acq_rel", "acquire", "release"), default="acq_rel")
        mods.choice(("cta", "cluster", "gpu", "sys"))
    mods.done()


def _map_of_fence(asm: Assembler, mods: Mods, action: str) -> None:
    """The operands of a fence of tensor maps: an acquire has the address of one, and its size."""
    operands = mods.instruction.operands
    if action == "release" and operands:
        raise mods.unsupported("a release has no operands")
    if action == "acquire":
        if len(operands) != 2 or operands[1] != Immediate(DESCRIPTOR_BYTES):
            raise mods.unsupported(f"an acquire takes the address of a tensor map and its size, {DESCRIPTOR_BYTES}")
        asm.address(operands[0])


@native("mapa")
def _mapa(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """The address of the same variable in another CTA of the cluster."""
    mods.flag("shared::cluster")
    type_ = mods.type()
    require(mods, type_, ("u32", "u64"))
    mods.done()
    target, origin, number = mods.operands(2)
    keep = ((1 << type_.bits) - 1) ^ (0xFF << RANK_SHIFT)

    def function(address: Lanes, rank: Lanes) -> Lanes:
        return (address & keep) | ((rank.to(type_.name) + 1) << RANK_SHIFT)

    sources = [(origin, type_.name), (number, "u32")]
    asm.compute(f"mapa.{type_.name}", function, [(target, type_.name)], sources)


@native("getctarank")
def _getctarank(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """The rank of the CTA whose shared memory contains an address."""
    mods.flag("shared::cluster")
    type_ = mods.type()
    require(mods, type_, ("u32", "u64"))
    mods.done()

    def function(address: Lanes, own: Lanes) -> Lanes:
        rank = (address >> RANK_SHIFT).to("u32") & 0xFF
        return where(rank == 0, own, rank - 1)

    target, origin = mods.operands(1)
    sources = [(origin, type_.name), (Register("%cluster_ctarank"), "u32")]
    asm.compute(f"getctarank.{type_.name}", function, [(target, "u32")], sources)


# ---- mbarriers -------------------------------------------------------------------------------------------------------


def take_order(asm: Assembler, instruction: Instruction, mods: Mods, orders: tuple[str, ...]) -> int:
    """Take the memory order and the scope of an arrival or a wait, as in
    :func:`warpsan.engine.mbarriers.arrive_in_order`.

    PTX defines ``.cta`` as the scope of an instruction without one; only the ``strict`` check applies it.
    """
    if not mods.flag("relaxed"):
        mods.choice(orders, default="")
    mods.choice(("cta", "cluster"), default="")
    order = arrival_order(instruction)
    level = SAME_CLUSTER if order.implied and not asm.default_scope_is_cta else order.level
    return level + 1 if order.release else -(level + 1)


@native("mbarrier.init")
def _init(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """An mbarrier whose phases expect the given number of arrivals."""
    mods.choice(("init",))
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    place = shared_address(asm, instruction.operands[0], space)
    count = asm.source(instruction.operands[1], "u32")
    _handed(asm, "mbarrier.init", begin_mbarrier, [*place, count, instruction.pc])


@native("mbarrier.arrive", "mbarrier.arrive_drop")
def _arrive(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Arrivals; ``arrive_drop`` also leaves all later phases."""
    drops = mods.choice(("arrive", "arrive_drop")) == "arrive_drop"
    expects, incomplete = mods.flag("expect_tx"), mods.flag("noComplete")
    order = take_order(asm, instruction, mods, ("release",))
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    operands = list(instruction.operands)
    token, finish = -1, _nothing
    if not isinstance(operands[0], Address):
        target = operands.pop(0)
        if not isinstance(target, Symbol) or target.name != "_":
            if space == "shared::cluster":
                raise mods.unsupported("an mbarrier of another CTA gives no state token")
            token, finish = asm.target(target, "b64")
    place = shared_address(asm, operands[0], space)
    many = asm.source(operands[1] if len(operands) > 1 else Immediate(1), "u32")
    words = [*place, many, int(expects), instruction.pc, order, token, int(drops), int(incomplete)]
    _handed(asm, "mbarrier.arrive", arrive_at, words)
    finish()


def _nothing() -> None:
    """Returns no result."""


def refuse_waiting(mods: Mods, space: str) -> None:
    """Unsupported if an mbarrier to wait for is in another CTA, by its space."""
    if space == "shared::cluster":
        raise mods.unsupported("waiting for an mbarrier of another CTA is not allowed")


@native("mbarrier.test_wait")
def _test_wait(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Whether a phase is complete."""
    mods.choice(("test_wait",))
    parity = mods.flag("parity")
    order = take_order(asm, instruction, mods, ("acquire",))
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    refuse_waiting(mods, space)
    target, address, state = instruction.operands
    place = shared_address(asm, address, space)
    asked = asm.source(state, "u32" if parity else "b64")
    row, finish = asm.target(target, "pred")
    words = [*place, asked, int(not parity), order, row, instruction.pc]
    _handed(asm, "mbarrier.test_wait", test_phase, words)
    finish()


@native("mbarrier.expect_tx", "mbarrier.complete_tx")
def _transactions(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Bytes that a phase expects, and bytes that have arrived."""
    action = mods.choice(("expect_tx", "complete_tx"))
    take_order(asm, instruction, mods, ())
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    place, many = shared_address(asm, instruction.operands[0], space), asm.source(instruction.operands[1], "u32")
    _handed(asm, "mbarrier.tx", count_bytes, [*place, many, int(action == "expect_tx"), instruction.pc])


@native("cp.async.mbarrier.arrive")
def _arrive_behind_copies(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """The lane arrives after its copies so far have landed; without ``.noinc``, the phase also expects this arrival."""
    for part in ("async", "mbarrier", "arrive"):
        mods.choice((part,))
    expected = mods.flag("noinc")
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    place = shared_address(asm, instruction.operands[0], space)
    doubtful = asm.checked and any(map(_reads_by_proxy, asm.entry.instructions))  # native code has no clocks for these
    words = [*place, int(expected), instruction.pc, int(doubtful)]
    _handed(asm, "mbarrier.copies", arrive_behind_copies, words)


def _reads_by_proxy(instruction: Instruction) -> bool:
    """Whether it may read shared memory in the async proxy."""
    return instruction.opcode == "wgmma" or (instruction.opcode == "cp" and "bulk_group" in instruction.mods)


@native("mbarrier.inval")
def _inval(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Ends the mbarrier; its memory may be reused."""
    mods.choice(("inval",))
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    _handed(asm, "mbarrier.inval", end_mbarrier, [*shared_address(asm, instruction.operands[0], space), instruction.pc])


@native("mbarrier.pending_count")
def _pending_count(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """The number of arrivals that a phase still expected when a state token was made."""
    mods.only("pending_count", "b64")
    target, token = mods.operands(1)
    asm.compute("mbarrier.pending_count", lambda x: x.to("u32"), [(target, "u32")], [(token, "u64")])


# ---- copies ----------------------------------------------------------------------------------------------------------


@native("cp.async.bulk.commit_group")
def _commit_group(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Closes the lane's current bulk group."""
    mods.only("async", "bulk", "commit_group")
    _handed(asm, "bulk.commit_group", commit_transfers, [])


@native("cp.async.bulk.wait_group")
def _wait_group(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Completes the copies of all bulk groups of the lane but the last few; with ``.read``, only their reading."""
    reads_only = mods.flag("read")
    mods.only("async", "bulk", "wait_group")
    number = instruction.operands[0]
    if not (isinstance(number, Immediate) and isinstance(number.value, int) and number.value >= 0):
        raise mods.unsupported("expected a number of groups")
    _handed(asm, "bulk.wait_group", wait_for_transfers, [number.value, int(reads_only)])


@native("cp.async.bulk.tensor")
def _tensor_copy(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """One lane copies a box of a tensor, in tile mode."""
    for part in ("async", "bulk", "tensor"):
        mods.choice((part,))
    box = take_box(mods)
    operands = list(instruction.operands)
    take_cache_hint(asm, mods, operands)
    mods.flag("tile")
    mods.choice(("global",))
    stores = mods.flag("bulk_group")
    space = "shared" if mods.flag("shared::cta") else mods.choice(("shared::cluster",))
    many = -1
    if not stores:
        mods.choice(("mbarrier::complete_tx::bytes",))
        many = asm.source(operands.pop(), "u16") if mods.flag("multicast::cluster") else -1
    mods.done()
    shared = shared_address(asm, instruction.operands[1 if stores else 0], space)
    row, bits, offset = asm.address(box.map)
    coordinates = [asm.source(each, "s32") for each in box.coordinates]
    mbarrier = (0, 0) if stores else shared_address(asm, instruction.operands[2], space)
    place = wide_row(asm, row, bits), offset
    words = [*shared, *place, instruction.pc, len(coordinates), *mbarrier, many, *coordinates]
    _handed(asm, *(("tensor.store", store_box) if stores else ("tensor.load", load_box)), words)


def take_box(mods: Mods) -> TensorAddress:
    """Take the number of axes, and find the tensor map and the coordinates among the operands."""
    rank = int(mods.choice(("1d", "2d", "3d", "4d", "5d"))[0])
    box = next((each for each in mods.instruction.operands if isinstance(each, TensorAddress)), None)
    if box is None or len(box.coordinates) != rank:
        raise mods.unsupported(f"expected a tensor map and {rank} coordinates")
    return box


@native("cp.async.bulk")
def _bulk_copy(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """One lane copies many bytes between global and shared memory, or to another CTA of the cluster."""
    for part in ("async", "bulk"):
        mods.choice((part,))
    operands = list(instruction.operands)
    take_cache_hint(asm, mods, operands)
    target, source = take_ways(mods)
    name, function = _BYTES[target, source]
    stores = target == "global"
    mods.choice(("bulk_group",) if stores else ("mbarrier::complete_tx::bytes",))
    casts = source == "global" and mods.flag("multicast::cluster")
    many = asm.source(operands.pop(), "u16") if casts else -1 if source == "global" else 0
    mods.done()
    _handed(asm, name, function, bytes_operands(asm, instruction, operands, (target, source), many))


def take_ways(mods: Mods) -> tuple[str, str]:
    """Take the spaces of the destination and the source of a copy of bytes."""
    spaces = tuple(mod for mod in mods.instruction.mods if mod in ("global", "shared::cta", "shared::cluster"))
    if spaces not in _BYTES:
        raise mods.unsupported("expected a destination and a source")
    for mod in spaces:
        mods.choice((mod,))
    return spaces[0], spaces[1]


_BYTES: dict[tuple[str, str], tuple[str, _OPERATION]] = {
    ("shared::cluster", "global"): ("bulk.load", load_bytes),
    ("shared::cta", "global"): ("bulk.load", load_bytes),
    ("global", "shared::cta"): ("bulk.store", store_bytes),
    ("shared::cluster", "shared::cta"): ("bulk.within", copy_within),
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
    target, source = (each.replace("shared::cta", "shared") for each in spaces)
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
def _prefetch_box(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Has no effect: the simulator has no L2 cache."""
    for part in ("async", "bulk", "prefetch", "tensor"):
        mods.choice((part,))
    box = take_box(mods)
    take_cache_hint(asm, mods, list(instruction.operands))
    mods.flag("tile")
    mods.only("L2", "global")
    asm.address(box.map)
    for each in box.coordinates:
        asm.source(each, "s32")


@native("cp.async.bulk.prefetch")
def _prefetch(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Has no effect, for any address: the simulator has no L2 cache."""
    for part in ("async", "bulk", "prefetch"):
        mods.choice((part,))
    operands = list(instruction.operands)
    take_cache_hint(asm, mods, operands)
    mods.only("L2", "global")
    asm.address(operands[0])
    asm.source(operands[1], "u32")


@native("st.async")
def _st_async(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """A store whose bytes an mbarrier counts; until then its destination is poison."""
    mods.choice(("async",))
    mods.flag("weak")
    mods.choice(("shared::cluster",), default="")
    mods.choice(("mbarrier::complete_tx::bytes",))
    vector = int(mods.choice(("v2", "v4"), default="v1")[1:])
    type_ = mods.type()
    require(mods, type_, ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"))
    mods.done()
    items = asm.vector(instruction.operands[1])
    if len(items) != vector:
        raise mods.unsupported(f"expected {vector} values")
    if vector * type_.bytes > 16:
        raise mods.unsupported(f"accesses of {vector * type_.bytes} bytes are not modelled")
    sources = [asm.source(item, f"b{type_.bits}") for item in items]
    place = shared_address(asm, instruction.operands[0], "shared::cluster")
    mbarrier = shared_address(asm, instruction.operands[2], "shared::cluster")
    _handed(asm, "st.async", store_words, [*place, *mbarrier, type_.bytes, vector, instruction.pc, 0, *sources])
