"""Records in front of accesses, for the checks: what may be a hazard ends the native run (:mod:`..watch`)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from sdpalab.sim.checks.shadow import granule_of
from sdpalab.sim.ir import Instruction
from sdpalab.sim.native import layout, watch
from sdpalab.sim.native.access import addresses, located
from sdpalab.sim.native.assembler import Assembler, NotNative
from sdpalab.sim.native.lanes import POINTER, WORD32, WORD64, Lanes, where
from sdpalab.sim.native.layout import WARP
from sdpalab.sim.native.operation import Code, Operation

__all__ = ["watch_access", "watch_copy"]

_SHARED = {"load": watch.read_shared, "store": watch.write_shared, "copy": watch.copy_begins}
_GLOBAL = {"load": watch.read_global, "store": watch.write_global, "update": watch.update_global}


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
) -> None:
    """Append the record that watches an access of each lane, by the first ``lanes`` lanes.

    ``does`` is ``load``, ``store`` or ``copy``; ``lengths`` the row of the bytes that each lane reads, if they differ.
    """
    if space == "local":
        return
    if space not in ("shared", "global") or (space == "shared" and does == "update"):
        raise NotNative(f"checks of accesses to .{space}")

    shift = granule_of(asm.entry, ("shared",)).bit_length() - 1

    def build(code: Code) -> None:
        b = code.builder
        if lanes < WARP:
            code.mask = b.and_(code.mask, WORD32((1 << lanes) - 1))
        sizes = None
        if lengths >= 0:
            given = code.source(2, "u32")
            sizes = where(given > width, given.like(width), given).to("s64")
            code.mask = b.and_(code.mask, b.bitcast((sizes != 0).value, WORD32))
        place = addresses(code, located(code, 0, space, bits), space, width, lengths=sizes)
        begin = code.context(layout.CURRENT_SHARED if space == "shared" else layout.GLOBAL)
        places = place - code.spread(begin, "s64")
        scratch = code.at(code.pointer(layout.SCRATCH), WORD64(layout.SCRATCH_PLACES))
        b.store(places.value, scratch, align=64)
        context, mask = b.ptrtoint(code.base, WORD64), b.zext(code.mask, WORD64)
        if space == "shared":
            active = code.active
            low = _least(where(active, places, places.like((1 << 62) - 1)))
            high = _least(where(active, -places, places.like(1 << 62)))
            status = code.call(_SHARED[does], context, mask, low, b.neg(high), WORD64(width))
            if does == "load":
                _mark_read(code, places, width, shift)
            b.ret(status)
        else:
            b.ret(code.call(_GLOBAL[does], context, mask, WORD64(width)))

    name = f"watch.{does}.{space}.{bits}.{width}.{lanes}.{shift}{'.sized' * (lengths >= 0)}"
    asm.record(Operation(name, build), [row, offset, lengths])


def _mark_read(code: Code, places: Lanes, width: int, shift: int) -> None:
    """Note the time of the current warp's reads of all granules; whatever the status was, no harm is done."""
    b = code.builder
    warp = code.context(layout.CURRENT)
    clock = b.load(b.gep(code.pointer(layout.CLOCKS), [warp], source_etype=WORD64), typ=WORD64)
    many = max(width >> shift, 1)
    now = code.spread(b.trunc(clock, WORD32), "u32", many)
    plane = code.spread(code.context(layout.CURRENT_PLANE), "s64")
    scratch = code.spread(code.context(layout.SCRATCH), "s64")
    target = where(code.active, plane + ((places >> shift) << 2), scratch)
    for lane in range(WARP):
        pointer = b.inttoptr(b.extract_element(target.value, WORD32(lane)), POINTER)
        b.store(now.value, pointer, align=4)


def _least(values: Lanes) -> Any:
    """The least of all lanes, an ``i64``."""
    module, name = values.builder.module, f"llvm.vector.reduce.smin.v{values.count}i64"
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(WORD64, [values.value.type]), name)
    return values.builder.call(function, [values.value])


def watch_copy(
    asm: Assembler,
    instruction: Instruction,
    target: tuple[int, int, int],
    source: tuple[int, int, int],
    width: int,
    lengths: int,
) -> None:
    """Append the records that watch a cp.async."""
    watch_access(asm, instruction, "shared", *target, width, "copy")
    watch_access(asm, instruction, "global", *source, width, "load", lengths=lengths)
