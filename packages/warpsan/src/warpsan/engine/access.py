"""Memory access of operations: the addresses of all lanes, checked before use.

A lane whose address is misaligned or out of bounds is left out, and noted (:func:`warpsan.engine.hazards.note_fault`);
a run without notes ends there. Inactive lanes get a valid address whose bytes mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from warpsan.engine import layout, rules
from warpsan.engine.hazards import note_fault
from warpsan.engine.lanes import POINTER, WORD32, WORD64, Lanes, llvm_type, where
from warpsan.engine.layout import WARP
from warpsan.engine.operation import OperationCode
from warpsan.host.memory import GLOBAL_BASE, LOCAL_BASE, RANK_SHIFT, SHARED_BASE, WINDOW_BITS

__all__ = ["addresses", "gather", "gather_all", "located", "note_lanes", "scatter", "scatter_all", "side_by_side"]


def located(code: OperationCode, first: int, space: str, bits: int) -> Lanes:
    """The addresses of an operand: operand ``first`` is its row, of ``bits``, and the next one an offset to add."""
    base = code.source(first, f"u{bits}").to("s64").as_type("s64")
    return base + code.spread(code.operand(first + 1), "s64")


def addresses(
    code: OperationCode,
    address: Lanes,
    space: str,
    width: int,
    align: int | None = None,
    lengths: Lanes | None = None,
    *,
    reads: bool = False,
    reports: bool = True,
) -> Lanes:
    """The places of the lanes' accesses in this process, s64. Lanes with an illegal access become inactive.

    Parameters
    ----------
    address : Lanes
        s64, in PTX's address space.
    space : str
        ``global``, ``shared``, ``shared::cluster``, ``local`` or ``generic``.
    width : int
        Bytes that each lane accesses.
    align : int, optional
        Required alignment; by default, the width.
    lengths : Lanes, optional
        In global memory, the bytes that each lane accesses, s64, if they are not the width.
    reads : bool
        Whether inactive lanes get a place with poison in it.
    reports : bool
        Whether illegal accesses are noted or end the run here; otherwise another record of the instruction does that.
    """
    bounds = _Bounds(code, width, width if align is None else align, lengths, reports)
    place = bounds.of_space(space, address)
    other = code.spread(code.context("scratch"), "s64") + (layout.SCRATCH_POISON if reads else 0)
    return where(code.active, place, other)


@dataclass(frozen=True)
class _Bounds:
    """The conditions for a legal access."""

    code: OperationCode
    width: int
    align: int
    lengths: Lanes | None
    reports: bool

    def of_space(self, space: str, address: Lanes) -> Lanes:
        """Places of addresses of a space."""
        if space == "global":
            return self.in_global(address - GLOBAL_BASE)
        if space == "shared":
            return self.in_window(address, layout.IN_SHARED, "shared_limit", "current_shared")
        if space == "shared::cluster":
            return self.in_cluster(address)
        return self.in_local(address) if space == "local" else _generic(self, address)

    def leave_out(self, bad: Lanes, offsets: Lanes, kind: int, space: int) -> None:
        """Lanes make an illegal access of a kind, and become inactive."""
        code = self.code
        if self.reports:
            widths = offsets.like(self.align if kind == rules.MISALIGNED else self.width)
            if self.lengths is not None and kind == rules.OUT_OF_BOUNDS:
                widths = self.lengths
            note_lanes(code, code.those(bad), offsets, widths, kind, space)
        code.mask = code.those(~bad)

    def aligned(self, offset: Lanes, space: int) -> None:
        """Leave out lanes whose offset is not a multiple of the alignment."""
        if self.align > 1:
            self.leave_out((offset & (self.align - 1)) != 0, offset, rules.MISALIGNED, space)

    def in_window(self, offset: Lanes, space: int, limit: str, base: str) -> Lanes:
        """Places in the shared memory of a CTA or the local memory of a lane, by the context's fields for its limit and
        its start."""
        code = self.code
        self.aligned(offset, space)
        last = code.spread(code.builder.sub(code.context(limit), WORD64(self.width)), "s64")
        self.leave_out((offset < 0) | (offset > last), offset, rules.OUT_OF_BOUNDS, space)
        return offset + code.spread(code.context(base), "s64")

    def in_cluster(self, address: Lanes) -> Lanes:
        """Shared memory of the CTA whose rank plus one an address has; without a rank, of the own CTA."""
        code, rank = self.code, address >> RANK_SHIFT
        last = code.spread(code.context("cluster_size"), "s64")
        cta = code.builder.load(code.state("cta"), typ=WORD64)
        first = code.builder.sub(cta, code.builder.srem(cta, code.context("cluster_size")))
        own, first = code.spread(cta, "s64"), code.spread(first, "s64")
        begin = where(rank == 0, own, first + rank - 1) * code.spread(code.context("shared_stride"), "s64")
        # A rank without a CTA stays in the offset, which is therefore out of bounds.
        offset = where((rank < 0) | (rank > last), address, address & (1 << RANK_SHIFT) - 1)
        return begin + self.in_window(offset, layout.IN_SHARED, "shared_limit", "shared")

    def in_local(self, offset: Lanes) -> Lanes:
        """The local memory of each lane."""
        place = self.in_window(offset, layout.IN_LOCAL, "local_limit", "current_local")
        lane = place.each("s64", range(WARP))
        return place + lane * self.code.spread(self.code.context("local_stride"), "s64")

    def in_global(self, index: Lanes) -> Lanes:
        """Limit every lane to one of several extents: a loop over the extents, until all lanes are covered."""
        code, b = self.code, self.code.builder
        self.aligned(index, layout.IN_GLOBAL)
        outside = b.not_(code.mask)
        extents, number = code.pointer("extents"), code.context("extent_count")
        before = b.block
        loop, following, done = (b.append_basic_block(name) for name in ("extent", "following", "done"))
        b.branch(loop)
        b.position_at_end(loop)
        k, covered = b.phi(WORD64), b.phi(WORD32)
        begin, end = (
            b.load(b.gep(extents, [b.add(b.shl(k, WORD64(1)), WORD64(j))], source_etype=WORD64), typ=WORD64)
            for j in range(2)
        )
        if self.lengths is None:
            last = code.spread(b.sub(end, WORD64(self.width)), "s64")
        else:
            last = code.spread(end, "s64") - self.lengths
        inside = (index >= code.spread(begin, "s64")) & (index <= last)
        now = b.or_(covered, b.bitcast(inside.value, WORD32))
        after = b.add(k, WORD64(1))
        k.add_incoming(WORD64(0), before)
        k.add_incoming(after, following)
        covered.add_incoming(outside, before)
        covered.add_incoming(now, following)
        b.cbranch(b.icmp_signed("==", now, WORD32(-1)), done, following)
        b.position_at_end(following)
        b.cbranch(b.icmp_signed("<", after, number), loop, done)
        b.position_at_end(done)
        self.leave_out(code.lanes_of(b.not_(now)), index, rules.OUT_OF_BOUNDS, layout.IN_GLOBAL)
        return index + code.spread(code.context("arena"), "s64")


def _generic(bounds: _Bounds, address: Lanes) -> Lanes:
    """Generic addresses. If lanes use several spaces, the lanes of each space go separately."""
    code, b = bounds.code, bounds.code.builder
    window, before = address >> WINDOW_BITS, code.mask
    own = (window == SHARED_BASE >> WINDOW_BITS, window == LOCAL_BASE >> WINDOW_BITS)
    words = [b.and_(b.bitcast(each.value, WORD32), before) for each in own]
    result, legal = b.alloca(llvm_type("s64")), b.alloca(WORD32)
    result.align = 64
    shared, other, local, rest, done = (b.append_basic_block(name) for name in ("s", "o", "l", "g", "done"))
    b.cbranch(b.icmp_signed("!=", words[0], WORD32(0)), shared, other)
    b.position_at_end(other)
    b.cbranch(b.icmp_signed("!=", words[1], WORD32(0)), local, rest)
    for block, word, base, space in (
        (shared, words[0], SHARED_BASE, "shared::cluster"),
        (local, words[1], LOCAL_BASE, "local"),
        (rest, before, 0, "global"),
    ):
        b.position_at_end(block)
        code.mask = before
        code.one_by_one((word, b.and_(before, b.not_(word))), layout.SPREAD)
        b.store(bounds.of_space(space, address - base).value, result, align=64)
        b.store(code.mask, legal)
        b.branch(done)
    b.position_at_end(done)
    code.mask = b.load(legal, typ=WORD32)
    return Lanes(b, b.load(result, typ=llvm_type("s64"), align=64), "s64")


def note_lanes(code: OperationCode, lanes: Any, first: Lanes, second: Lanes, kind: int, space: int) -> None:
    """If any lane of an ``i32`` is bad, note it with two values of each lane, s64, or end the run."""
    b = code.builder
    with b.if_then(b.icmp_signed("!=", lanes, WORD32(0)), likely=False):
        for name, values in (("fault_offsets", first), ("fault_widths", second)):
            b.store(values.value, code.pointer(name), align=64)
        code.note(lanes, note_fault, WORD64(kind), WORD64(space))


def _pointers(place: Lanes) -> Any:
    return place.builder.inttoptr(place.value, ir.VectorType(POINTER, WARP))


def gather(code: OperationCode, place: Lanes, type_: str, align: int) -> Lanes:
    """A value for every lane, from addresses that are all readable."""
    vector = llvm_type(type_)
    pointers = _pointers(place)
    everyone = ir.Constant(llvm_type("pred"), [1] * WARP)
    name = f"llvm.masked.gather.v{WARP}i{vector.element.width}.v{WARP}p0"
    types = [pointers.type, WORD32, everyone.type, vector]
    function = _intrinsic(code, name, vector, types)
    nothing = ir.Constant(vector, ir.Undefined)
    return Lanes(code.builder, code.builder.call(function, [pointers, WORD32(align), everyone, nothing]), type_)


def gather_all(code: OperationCode, place: Lanes, type_: str, many: int, align: int, *, coalesced: bool) -> list[Lanes]:
    """``many`` consecutive values for every lane, from addresses that are all readable. ``coalesced``: the lanes'
    places probably lie side by side."""
    size = place.constant(type_, 0).bits // 8
    if many == 1 and coalesced:
        return [_gather_one(code, place, type_, align, size)]
    if size != 4 or many == 1 or align != 4:
        return [gather(code, place + size * k, type_, align) for k in range(many)]
    # One load for each lane, whose words are transposed: LLVM makes 32 loads of each gather of one word.
    b, pointers, vector = code.builder, _pointers(place), llvm_type(type_, many)
    rows = [
        Lanes(b, b.load(b.extract_element(pointers, WORD32(lane)), typ=vector, align=align), type_)
        for lane in range(WARP)
    ]
    blocks = [_transposed(rows[first : first + many]) for first in range(0, WARP, many)]
    return [_joined([block[k] for block in blocks]) for k in range(many)]


def _gather_one(code: OperationCode, place: Lanes, type_: str, align: int, size: int) -> Lanes:
    """A value for every lane; values side by side in the order of the lanes are one load."""
    b = code.builder
    first, follow = side_by_side(code, place, size)
    with b.if_else(follow) as (together, apart):
        with together:
            whole, after_whole = code.load(first, type_, align=align), b.block
        with apart:
            parts, after_parts = gather(code, place, type_, align), b.block
    value = b.phi(whole.value.type)
    value.add_incoming(whole.value, after_whole)
    value.add_incoming(parts.value, after_parts)
    return Lanes(b, value, type_)


def side_by_side(code: OperationCode, place: Lanes, size: int) -> tuple[Any, Any]:
    """A pointer to the first lane's place, and whether the others of ``size`` bytes follow it in order, an ``i1``."""
    b = code.builder
    first = b.extract_element(place.value, WORD32(0))
    follow = place == code.spread(first, "s64") + place.each("s64", [size * lane for lane in range(WARP)])
    return b.inttoptr(first, POINTER), b.icmp_signed("==", b.bitcast(follow.value, WORD32), WORD32(-1))


def _transposed(rows: list[Lanes]) -> list[Lanes]:
    """Element ``k`` of value ``j`` as element ``j`` of value ``k``, of as many values as each has elements."""
    many, half = len(rows), len(rows) // 2
    while half:
        low = [k for j in range(0, many, 2 * half) for k in (*range(j, j + half), *range(many + j, many + j + half))]
        high = [k + half for k in low]
        for k in range(many):
            if k & half == 0:
                one, other = rows[k], rows[k + half]
                rows[k], rows[k + half] = one.shuffled(low, other), one.shuffled(high, other)
        half //= 2
    return rows


def _joined(parts: list[Lanes]) -> Lanes:
    """All elements of values of as many elements, in their order."""
    while len(parts) > 1:
        order = range(2 * parts[0].count)
        parts = [one.shuffled(order, other) for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def scatter_all(code: OperationCode, place: Lanes, values: list[Lanes], align: int, *, coalesced: bool) -> None:
    """Write consecutive values of every lane, as :func:`scatter`; the addresses are multiples of all of their bytes."""
    b, many, size = code.builder, len(values), values[0].bits // 8
    if many == 1 and coalesced:
        first, follow = side_by_side(code, place, size)
        with b.if_else(follow) as (together, apart):
            with together:
                b.store(values[0].value, first, align=align)
            with apart:
                scatter(code, place, values[0], align)
        return
    if size != 4 or many == 1 or align != 4:
        for k, value in enumerate(values):
            scatter(code, place + size * k, value, align)
        return
    pointers = _pointers(place)
    for first in range(0, WARP, many):
        order = range(first, first + many)
        for lane, row in zip(order, _transposed([value.shuffled(order) for value in values]), strict=True):
            b.store(row.value, b.extract_element(pointers, WORD32(lane)), align=align)


def scatter(code: OperationCode, place: Lanes, value: Lanes, align: int) -> None:
    """Write a value of every lane; where two lanes name one address, the last one wins."""
    pointers = _pointers(place)
    everyone = ir.Constant(llvm_type("pred"), [1] * WARP)
    name = f"llvm.masked.scatter.v{WARP}i{value.bits}.v{WARP}p0"
    types = [value.value.type, pointers.type, WORD32, everyone.type]
    function = _intrinsic(code, name, ir.VoidType(), types)
    code.builder.call(function, [value.value, pointers, WORD32(align), everyone])


def _intrinsic(code: OperationCode, name: str, result: Any, types: list[Any]) -> Any:
    module = code.builder.module
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, types), name)
