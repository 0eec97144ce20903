"""How operations reach memory: the addresses of all lanes, checked before any of them is used.

An address that is misaligned or out of bounds makes the operation give up: the reference engine then runs the launch
and reports it. Lanes that are not active get an address that may be read and written, and whose bytes mean nothing.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from sdpalab.sim.memory import GLOBAL_BASE, LOCAL_BASE, RANK_SHIFT, SHARED_BASE, WINDOW_BITS
from sdpalab.sim.native import layout
from sdpalab.sim.native.lanes import POINTER, WORD32, WORD64, Lanes, llvm_type, where
from sdpalab.sim.native.layout import WARP
from sdpalab.sim.native.operation import OperationCode

__all__ = ["addresses", "gather", "located", "scatter"]


def located(code: OperationCode, first: int, space: str, bits: int) -> Lanes:
    """The addresses of an operand: operand ``first`` is its row, of ``bits``, and the next one an offset to add."""
    base = code.source(first, f"u{bits}").to("s64").as_type("s64")
    return base + code.spread(code.operand(first + 1), "s64")


def addresses(
    code: OperationCode, address: Lanes, space: str, width: int, align: int | None = None, lengths: Lanes | None = None
) -> Lanes:
    """Where the lanes' accesses are in this process, s64.

    Parameters
    ----------
    address : Lanes
        s64, as PTX has it.
    space : str
        ``global``, ``shared``, ``shared::cluster``, ``local`` or ``generic``.
    width : int
        Bytes that each lane accesses.
    align : int, optional
        What the address must be a multiple of; by default, the width.
    lengths : Lanes, optional
        In global memory, the bytes that each lane accesses, s64, if they are not the width.
    """
    align = width if align is None else align
    active = code.active
    if align > 1:
        code.leave_if((((address & (align - 1)) != 0) & active).any(), layout.ILLEGAL)
    if space == "global":
        place = _in_global(code, address - GLOBAL_BASE, width if lengths is None else lengths)
    elif space == "shared":
        place = _in_window(code, address, width, layout.SHARED_LIMIT, layout.CURRENT_SHARED, active)
    elif space == "shared::cluster":
        place = _in_cluster(code, address, width, active)
    elif space == "local":
        place = _in_local(code, address, width, active)
    else:
        place = _generic(code, address, width, active)
    return where(active, place, code.spread(code.context(layout.SCRATCH), "s64"))


def _in_window(code: OperationCode, offset: Lanes, width: int, limit: int, base: int, active: Lanes) -> Lanes:
    last = code.spread(code.builder.sub(code.context(limit), WORD64(width)), "s64")
    code.leave_if((((offset < 0) | (offset > last)) & active).any(), layout.ILLEGAL)
    return offset + code.spread(code.context(base), "s64")


def _in_cluster(code: OperationCode, address: Lanes, width: int, active: Lanes) -> Lanes:
    """Shared memory of the CTA whose rank an address has, plus one; or else of the own."""
    b, rank = code.builder, address >> RANK_SHIFT
    last = code.spread(code.context(layout.RANKS), "s64")
    code.leave_if((((rank < 0) | (rank > last)) & active).any(), layout.ILLEGAL)
    own = code.spread(b.load(code.state(layout.WARP_CTA), typ=WORD64), "s64")
    begin = where(rank == 0, own, rank - 1) * code.spread(code.context(layout.SHARED_STRIDE), "s64")
    return begin + _in_window(code, address & (1 << RANK_SHIFT) - 1, width, layout.SHARED_LIMIT, layout.SHARED, active)


def _in_local(code: OperationCode, offset: Lanes, width: int, active: Lanes) -> Lanes:
    place = _in_window(code, offset, width, layout.LOCAL_LIMIT, layout.CURRENT_LOCAL, active)
    lane = place.each("s64", range(WARP))
    return place + lane * code.spread(code.context(layout.LOCAL_STRIDE), "s64")


def _in_global(code: OperationCode, index: Lanes, width: int | Lanes) -> Lanes:
    """Every lane within one extent or another: a loop over the extents, until all lanes are covered."""
    b = code.builder
    outside = b.not_(code.mask)
    extents, number = code.pointer(layout.EXTENTS), code.context(layout.EXTENT_COUNT)
    before = b.block
    loop, matched, missing = (b.append_basic_block(name) for name in ("extent", "matched", "missing"))
    b.branch(loop)
    b.position_at_end(loop)
    k, covered = b.phi(WORD64), b.phi(WORD32)
    begin, end = (
        b.load(b.gep(extents, [b.add(b.shl(k, WORD64(1)), WORD64(j))], source_etype=WORD64), typ=WORD64)
        for j in range(2)
    )
    if isinstance(width, Lanes):
        last = code.spread(end, "s64") - width
    else:
        last = code.spread(b.sub(end, WORD64(width)), "s64")
    inside = (index >= code.spread(begin, "s64")) & (index <= last)
    now = b.or_(covered, b.bitcast(inside.value, WORD32))
    following = b.add(k, WORD64(1))
    k.add_incoming(WORD64(0), before)
    k.add_incoming(following, missing)
    covered.add_incoming(outside, before)
    covered.add_incoming(now, missing)
    b.cbranch(b.icmp_signed("==", now, WORD32(-1)), matched, missing)
    b.position_at_end(missing)
    none = b.append_basic_block("none")
    more = b.icmp_signed("<", following, number)
    b.cbranch(more, loop, none)
    b.position_at_end(none)
    b.ret(WORD64(layout.ILLEGAL))
    b.position_at_end(matched)
    return index + code.spread(code.context(layout.GLOBAL), "s64")


def _generic(code: OperationCode, address: Lanes, width: int, active: Lanes) -> Lanes:
    """Generic addresses, all in the window of one space."""
    b = code.builder
    window = address >> WINDOW_BITS
    own = (window == SHARED_BASE >> WINDOW_BITS, window == LOCAL_BASE >> WINDOW_BITS)
    words = [b.and_(b.bitcast(each.value, WORD32), code.mask) for each in own]
    result = b.alloca(llvm_type("s64"))
    result.align = 64
    shared, other, local, rest, done = (b.append_basic_block(name) for name in ("s", "o", "l", "g", "done"))
    b.cbranch(b.icmp_signed("!=", words[0], WORD32(0)), shared, other)
    b.position_at_end(other)
    b.cbranch(b.icmp_signed("!=", words[1], WORD32(0)), local, rest)
    for block, word, base, resolve in (
        (shared, words[0], SHARED_BASE, "shared"),
        (local, words[1], LOCAL_BASE, "local"),
        (rest, code.mask, GLOBAL_BASE, "global"),
    ):
        b.position_at_end(block)
        code.leave_if(b.icmp_signed("!=", word, code.mask), layout.SPREAD)
        if resolve == "shared":
            place = _in_cluster(code, address - base, width, active)
        elif resolve == "local":
            place = _in_local(code, address - base, width, active)
        else:
            place = _in_global(code, address - base, width)
        b.store(place.value, result, align=64)
        b.branch(done)
    b.position_at_end(done)
    return Lanes(b, b.load(result, typ=llvm_type("s64"), align=64), "s64")


def _pointers(place: Lanes) -> Any:
    return place.builder.inttoptr(place.value, ir.VectorType(POINTER, WARP))


def gather(code: OperationCode, place: Lanes, type_: str, align: int) -> Lanes:
    """A value for every lane, from addresses that may all be read."""
    vector = llvm_type(type_)
    pointers = _pointers(place)
    everyone = ir.Constant(llvm_type("pred"), [1] * WARP)
    name = f"llvm.masked.gather.v{WARP}i{vector.element.width}.v{WARP}p0"
    types = [pointers.type, WORD32, everyone.type, vector]
    function = _intrinsic(code, name, vector, types)
    nothing = ir.Constant(vector, ir.Undefined)
    return Lanes(code.builder, code.builder.call(function, [pointers, WORD32(align), everyone, nothing]), type_)


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
