"""Records before accesses, for the checks: a possible hazard ends the native run (:mod:`warpsan.engine.watch`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from warpsan.analysis.definedness import follows_load
from warpsan.checks.orders import SAME_GPU, is_strong, memory_order
from warpsan.checks.shadow import granule_of
from warpsan.engine import layout, traffic, watch
from warpsan.engine.access import addresses, located
from warpsan.engine.assembler import Assembler
from warpsan.engine.clocks import lanes_there
from warpsan.engine.communication import orders_by_memory
from warpsan.engine.host import WatchedAccess, call_back
from warpsan.engine.lane_races import READ, WATCHED, note_lanes, race_in_step
from warpsan.engine.lanes import WORD32, WORD64, Lanes, llvm_type, where
from warpsan.engine.layout import WARP
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.races import SHAPE
from warpsan.engine.watch.cluster_memory import FOLLOWED, READS, UPDATES, WRITES, watch_cluster
from warpsan.engine.watch.undefined_global import (
    copy_undefined,
    define_global,
    read_undefined,
    sized_copy_undefined,
    update_undefined,
)
from warpsan.host.memory import LOCAL_BASE, RANK_SHIFT, SHARED_BASE, WINDOW_BITS
from warpsan.ptx.accesses import LoadStore
from warpsan.ptx.grammar import Form, form_of
from warpsan.ptx.ir import Instruction
from warpsan.semantics.global_marks import check_global
from warpsan.semantics.homes import keep_in_buffer
from warpsan.semantics.shared_marks import check_copy, check_read, check_write

__all__ = ["Access", "Place", "check_step", "strong_effect", "watch_access", "watch_copy"]

_SPACES = ("shared", "shared::cluster", "global")
_GLOBAL: dict[str, Callable[..., int]] = {
    "load": watch.read_global,
    "load.followed": watch.read_global,
    "store": watch.write_global,
}
_STRONG: dict[str, Callable[..., int]] = {
    "load": watch.read_strong,
    "load.followed": watch.read_strong,
    "store": watch.write_strong,
    "update": watch.write_strong,
}
_UNDEFINED: dict[str, Callable[..., int]] = {
    "load": read_undefined,
    "store": define_global,
    "update": update_undefined,
}
"""Functions for accesses to global memory with unwritten bytes."""
_CLUSTER = {"load": READS, "load.followed": FOLLOWED, "store": WRITES, "update": UPDATES}


class Access(NamedTuple):
    """The code of an access that its check may execute too.

    Attributes
    ----------
    name : str
    act : callable
        Accesses the places of the active lanes: code, places, the lanes that execute the instruction, and the number of
        its first operand.
    rows : sequence of int
        Its operands.
    """

    name: str
    act: Callable[[OperationCode, Lanes, Any, int], None]
    rows: Sequence[int]


def watch_access(
    asm: Assembler,
    instruction: Instruction,
    space: str,
    row: int,
    bits: int,
    offset: int,
    width: int,
    does: str,
    lanes: int = WARP,
    lengths: int = -1,
    strong: int = -1,
    written: tuple[int, Sequence[int]] = (0, ()),
    access: Access | None = None,
) -> bool:
    """Append the records that check, count and record an access of each lane, by the first ``lanes`` lanes. Returns
    whether the record of the check executes the ``access`` too, at the same addresses.

    ``does`` is ``load``, ``store``, ``update`` or ``copy``; ``lengths`` is the row of the bytes that each lane reads,
    if they differ; ``strong`` has the effects of a strong access, as bits (:data:`~warpsan.engine.layout.ACQUIRES` and
    so on), or is -1 for a weak one. ``written`` has the bytes of an element that is written, and the rows that it comes
    from.
    """
    if space == "local":
        return False
    assert space in (*_SPACES, "generic"), space
    place = Place(space, row, bits, offset, width, lanes, lengths)
    if asm.checked:
        keep_in_buffer(asm, instruction, space, row, bits, offset, width)
        followed = (
            asm.tracking
            and does == "load"
            and follows_load(instruction, track_unwritten_global=asm.track_unwritten_global)
        )
        others = asm.counted or instruction.pc in asm.recorded or space not in ("shared", "global")
        access = None if others or followed else access
        _check(asm, instruction, place, "load.followed" if followed else does, strong, *written, access)
    if asm.counted:
        _count(asm, place, does, instruction.pc)
    if instruction.pc in asm.recorded:
        _record(asm, place, instruction.pc)
    return asm.checked and access is not None


def strong_effect(asm: Assembler, instruction: Instruction) -> int:
    """The effects of a strong access, for :func:`watch_access`; -1 for a weak one."""
    if not is_strong(instruction):
        return -1
    if asm.volatile_is_data and memory_order(instruction).volatile:
        if asm.checked and instruction.opcode == "ld" and orders_by_memory(asm.entry):
            _excuse(asm)
        return -1
    order = memory_order(instruction)
    effect = layout.ACQUIRES * order.acquire | layout.RELEASES * order.release
    effect |= min(order.level, SAME_GPU) << layout.SCOPE_SHIFT
    if instruction.opcode == "atom":
        return effect | layout.OBSERVES | layout.CONTINUES
    return effect | layout.CONTINUES if instruction.opcode == "red" else effect


def _excuse(asm: Assembler) -> None:
    """Append the record by which a volatile load of data acquires the releases that its warp has observed: no cache
    holds that data (CUDA C++ Programming Guide, "Memory Fence Functions", the example of the last block)."""
    asm.call("fence.memory", watch.fence_memory, [1, 0, SAME_GPU, 0])


@dataclass(frozen=True)
class Place:
    """The target of the lanes of an access."""

    space: str
    row: int
    bits: int
    offset: int
    width: int
    lanes: int
    lengths: int

    @property
    def name(self) -> str:
        """The inputs of a record's code."""
        sized = ".sized" if self.lengths >= 0 else ""
        return f"{self.space}.{self.bits}.{self.width}.{self.lanes}{sized}"

    @property
    def operands(self) -> list[int]:
        """The operands of a record."""
        return [self.row, self.offset, self.lengths]

    def put(self, code: OperationCode) -> Lanes:
        """The addresses of the active lanes' accesses in this process."""
        b = code.builder
        if self.lanes < WARP:
            code.mask = b.and_(code.mask, WORD32((1 << self.lanes) - 1))
        sizes = None
        if self.lengths >= 0:
            sizes = self.sizes(code)
            code.mask = b.and_(code.mask, b.bitcast((sizes != 0).value, WORD32))
        located_at = located(code, 0, self.space, self.bits)
        return addresses(code, located_at, self.space, self.width, lengths=sizes, reports=False)

    def sizes(self, code: OperationCode) -> Lanes:
        """The bytes that each lane reads, s64, if they differ."""
        given = code.source(2, "u32")
        return where(given > self.width, given.like(self.width), given).to("s64")

    def by_width(self, code: OperationCode, act: Callable[[OperationCode, str, Lanes, int], Any]) -> None:
        """Return the status of ``act`` (code, space, offsets, bytes) for the lanes that access as many bytes, as
        :meth:`in_space`: all lanes, or, if their lengths differ, those of each length."""
        place = self.put(code)
        if self.lengths < 0:
            self.in_space(code, place, lambda code, space, places: act(code, space, places, self.width))
            return
        b, everyone, sizes = code.builder, code.mask, self.sizes(code)
        places = self.offsets(code, self.space, place)
        for width in (self.width, *range(1, self.width)):
            code.mask = b.and_(everyone, b.bitcast((sizes == width).value, WORD32))
            with b.if_then(b.icmp_signed("!=", code.mask, WORD32(0)), likely=width == self.width):
                status = act(code, self.space, places, width)
                with b.if_then(b.icmp_signed("!=", status, WORD64(layout.DONE)), likely=False):
                    b.ret(status)
        code.mask = everyone
        b.ret(WORD64(layout.DONE))

    def offsets(self, code: OperationCode, space: str, place: Lanes) -> Lanes:
        """The offsets of places in a space, which are then in the scratch."""
        begin = code.context("current_shared" if space == "shared" else "arena")
        return _into_scratch(code, place - code.spread(begin, "s64"))

    def in_space(self, code: OperationCode, place: Lanes, act: Callable[[OperationCode, str, Lanes], Any]) -> None:
        """Return the result of ``act`` for the lanes' offsets in their space, which are then in the scratch.

        The lanes of a generic access are all in one space (:func:`warpsan.engine.access.addresses`); local memory is
        private. In shared::cluster the offsets have the ranks of their CTAs.
        """
        b = code.builder

        def within(space: str) -> None:
            if space == "shared::cluster":
                places = _into_scratch(code, address - (SHARED_BASE if self.space == "generic" else 0))
            else:
                places = self.offsets(code, space, place)
            b.ret(act(code, space, places))

        address = located(code, 0, self.space, self.bits)
        if self.space != "generic":
            within(self.space)
            return
        window = address >> WINDOW_BITS
        with b.if_then(code.any_of(window == SHARED_BASE >> WINDOW_BITS)):
            with b.if_then(code.any_of((address - SHARED_BASE) >= 1 << RANK_SHIFT)):
                within("shared::cluster")
            within("shared")
        code.leave_if(code.any_of(window == LOCAL_BASE >> WINDOW_BITS), layout.DONE)
        within("global")


def _into_scratch(code: OperationCode, places: Lanes) -> Lanes:
    """Put the lanes' places into the scratch."""
    scratch = code.pointer("places")
    code.builder.store(places.value, scratch, align=64)
    return places


def _count(asm: Assembler, place: Place, does: str, pc: int) -> None:
    kind = {"load": 1, "store": 2, "copy": 2, "update": 3}[does]

    def count(code: OperationCode, space: str, places: Lanes, width: int) -> Any:
        b = code.builder
        context, mask = b.ptrtoint(code.base, WORD64), b.zext(code.mask, WORD64)
        if space == "shared::cluster":
            _into_scratch(code, places & (1 << RANK_SHIFT) - 1)
        function = traffic.count_global if space == "global" else traffic.count_shared
        return code.call(function, context, mask, WORD64(width), code.operand(3), code.operand(4))

    operation = NativeOperation(f"count.{place.name}", lambda code: place.by_width(code, count))
    asm.record(operation, [*place.operands, pc, kind])


def _record(asm: Assembler, place: Place, pc: int) -> None:
    """Append the record that passes an access to Python."""

    def give(code: OperationCode, space: str, places: Lanes, width: int) -> Any:
        b = code.builder
        access = width | layout.HOST_GLOBAL * (space == "global")
        b.store(WORD64(access), code.field("host_access"))
        return call_back(code)

    asm.host_calls.append(WatchedAccess(pc))
    operation = NativeOperation(f"record.{place.name}", lambda code: place.by_width(code, give))
    asm.record(operation, [*place.operands, len(asm.host_calls) - 1])


def _check(
    asm: Assembler,
    instruction: Instruction,
    place: Place,
    does: str,
    strong: int,
    element: int,
    rows: Sequence[int],
    access: Access | None,
) -> None:
    width, copies = place.width, instruction.opcode == "cp"
    form = form_of(instruction, Form)
    constant = isinstance(form, LoadStore) and "nc" in form.hints
    # Whether a product uses all of its operands is unknown.
    track_unwritten_global = (
        asm.track_unwritten_global and does in _UNDEFINED and not (instruction.opcode == "wmma" and does == "load")
    )
    shift, global_shift = (granule_of(asm.entry, (space,)).bit_length() - 1 for space in ("shared", "global"))

    def check(present: Any, code: OperationCode, space: str, places: Lanes) -> Any:
        b = code.builder
        context, mask = b.ptrtoint(code.base, WORD64), b.zext(code.mask, WORD64)
        if space == "global":
            if strong >= 0:
                status = code.call(_STRONG[does], context, mask, present, WORD64(width), code.operand(3))
            else:
                function = watch.read_constant if constant else _GLOBAL[does]
                if constant or does not in ("load", "store"):
                    status = code.call(function, context, mask, present, WORD64(width))
                else:
                    writes = does == "store"
                    status = check_global(code, function, present, places, width, global_shift, writes=writes)
            if not track_unwritten_global:
                return status
            with b.if_then(b.icmp_signed("!=", status, WORD64(layout.DONE)), likely=False):
                b.ret(status)
            if place.lengths >= 0:
                widths = code.pointer("fault_widths")
                b.store(place.sizes(code).value, widths, align=64)
                return code.call(sized_copy_undefined, context, mask)
            function = copy_undefined if copies else _UNDEFINED[does]
            return code.call(function, context, mask, WORD64(width))
        if space == "shared::cluster":
            kind = WORD64(_CLUSTER[does])
            return code.call(watch_cluster, context, mask, present, WORD64(width), kind, code.operand(3))
        cta = b.load(code.state("cta"), typ=WORD64)
        low = where(code.active, places, places.like((1 << 62) - 1)).reduced("smin")
        high = where(code.active, places, places.like(-(1 << 62))).reduced("smax")
        span = low, high, WORD64(width)
        if does in ("load", "load.followed") and strong >= 0:
            followed = WORD64(int(does == "load.followed"))
            status = code.call(watch.read_strong_shared, context, cta, mask, *span, code.operand(3), followed)
            _note_partial_read(code, present, width, shift, WATCHED)
            return status
        if does in ("load", "load.followed"):
            status = check_read(code, cta, places, width, shift, followed=does == "load.followed")
            _note_partial_read(code, present, width, shift, READ)
            return status
        if does == "store" and strong >= 0:
            return code.call(watch.write_strong_shared, context, cta, mask, present, *span, code.operand(3))
        if does == "store":
            return check_write(code, cta, present, places, width, shift)
        if does == "update":
            return code.call(watch.update_shared, context, cta, mask, present, *span, code.operand(3))
        return check_copy(code, cta, present, places, width, shift)

    def build(code: OperationCode) -> None:
        # A lane without a place still executes the instruction.
        b = code.builder
        present = b.zext(code.mask, WORD64)
        b.store(b.ptrtoint(code.record, WORD64), code.field("current_record"))
        if access is None:
            place.in_space(code, place.put(code), partial(check, present))
            return
        everyone = code.mask
        address = located(code, 0, place.space, place.bits)
        at = addresses(code, address, place.space, width, reads=does == "load")
        status = check(present, code, place.space, place.offsets(code, place.space, at))
        with b.if_then(b.icmp_signed("!=", status, WORD64(layout.DONE)), likely=False):
            b.ret(status)
        access.act(code, at, everyone, 4)

    kind = f"{'.copy' * copies}{'.nc' * constant}{'.strong' * (strong >= 0)}{'.undefined' * track_unwritten_global}"
    operands = [*place.operands, strong, *(access.rows if access else rows)]
    if does == "store":
        operands += [0] * (SHAPE - len(operands)) + [element | len(rows) << 8]
    name = f"watch.{does}{kind}.{shift}.{global_shift}.{place.name}{f'.and.{access.name}' if access else ''}"
    asm.record(NativeOperation(name, build), operands)


def _note_partial_read(code: OperationCode, present: Any, width: int, shift: int, kind: int) -> None:
    """Note the reads of the places in the context if some lanes of the current warp were absent, as
    :func:`warpsan.engine.watch.cluster_memory.note_partial_read`, all granules of a lane at a time."""
    b, many = code.builder, max(width >> shift, 1)
    there = code.call(lanes_there, b.ptrtoint(code.base, WORD64), present)
    with b.if_then(b.icmp_signed("!=", there, WORD64(layout.EVERY_LANE))):
        b.store(WORD64(1), code.field("partial_reads"))
        warp, actors = code.context("current"), code.context("actors")
        now = b.load(b.gep(code.pointer("clocks"), [warp], source_etype=WORD64), typ=WORD64)
        place = b.mul(b.add(actors, WORD64(1)), warp)
        met = b.load(b.gep(code.pointer("vectors"), [place], source_etype=WORD64), typ=WORD64)
        tag = code.spread(b.or_(b.shl(now, WORD64(16)), warp), "s64", many)
        own = code.spread(warp, "s64", many)
        last = code.spread(b.or_(b.shl(met, WORD64(16)), WORD64(0xFFFF)), "s64", many)
        cta = b.load(code.state("cta"), typ=WORD64)
        mask, context = b.zext(code.mask, WORD64), b.ptrtoint(code.base, WORD64)
        words = WORD64(layout.IN_SHARED), WORD64(kind)
        code.call(note_lanes, context, *words, cta, mask, there, WORD64(width), WORD64(-1))
        first = b.mul(code.context("granules"), cta)
        first_tag = b.gep(code.pointer("partial_tags"), [first], source_etype=WORD64)
        first_mask = b.gep(code.pointer("partial_masks"), [first], source_etype=WORD32)
        alone = b.icmp_signed("==", there, WORD64(0))
        offsets = code.pointer("places")
        with code.loop(WORD64(WARP)) as lane:
            bit = b.shl(WORD32(1), b.trunc(lane, WORD32))
            with b.if_then(b.icmp_signed("!=", b.and_(code.mask, bit), WORD32(0))):
                offset = b.load(b.gep(offsets, [lane], source_etype=WORD64), typ=WORD64)
                granule = b.ashr(offset, WORD64(shift))
                tags = b.gep(first_tag, [granule], source_etype=WORD64)
                masks = b.gep(first_mask, [granule], source_etype=WORD32)
                before = Lanes(b, b.load(tags, typ=llvm_type("s64", many), align=8), "s64")
                noted = Lanes(b, b.load(masks, typ=llvm_type("u32", many), align=4), "u32")
                after = code.spread(b.select(alone, bit, b.trunc(there, WORD32)), "u32", many)
                again = ((before & 0xFFFF) == own) & (before > last)
                b.store(where(again, after & noted, after).value, masks, align=4)
                b.store(tag.value, tags, align=8)


def check_step(code: OperationCode, space: str, address: Lanes, differ: Any, width: int) -> None:
    """Lanes that ``differ``, an ``i32``, find another lane's value in the place that they have just written: a race in
    one step.

    Their offsets are still in the scratch, from the record that checks the access.
    """
    b = code.builder
    where_it_is: Any = WORD64(layout.IN_GLOBAL if space == "global" else layout.IN_SHARED)
    if space == "generic":
        in_shared = code.any_of(address >> WINDOW_BITS == SHARED_BASE >> WINDOW_BITS)
        where_it_is = b.select(in_shared, WORD64(layout.IN_SHARED), WORD64(layout.IN_GLOBAL))
    code.note(differ, race_in_step, where_it_is, b.zext(code.mask, WORD64), WORD64(width))


def watch_copy(
    asm: Assembler,
    instruction: Instruction,
    target: tuple[int, int, int],
    source: tuple[int, int, int],
    width: int,
    lengths: int,
) -> None:
    """Append the records that check a cp.async."""
    watch_access(asm, instruction, "shared", *target, width, "copy")
    watch_access(asm, instruction, "global", *source, width, "load", lengths=lengths)
