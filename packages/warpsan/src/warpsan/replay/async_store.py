"""st.async and red.async: from registers into the shared memory of any CTA of the cluster, with completion on an
mbarrier there (PTX ISA, "st.async", "red.async"). They are in flight like bulk copies, and land when nothing else can
run.
"""

from __future__ import annotations

import numpy as np

from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Indices, Selection, indices
from warpsan.ptx.forms import SHARED_REDUCTIONS
from warpsan.ptx.ir import Instruction
from warpsan.ptx.modifiers import Mods, require
from warpsan.ptx.types import PtxType
from warpsan.replay.access import Accessor
from warpsan.replay.bulk_copies import BulkCopies, Transfer
from warpsan.replay.decoder import Decoder, Step, opcode
from warpsan.replay.mbarrier import MbarrierOperand

__all__: list[str] = []

_STORED = ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")


@opcode("st.async")
def _st_async(decoder: Decoder, instruction: Instruction) -> Step:
    """A store whose bytes an mbarrier counts; until then its destination is poison."""
    mods = Mods(instruction)
    mods.choice(("async",))
    mods.flag("weak")
    _take_place(mods)
    vector = int(mods.choice(("v2", "v4"), default="v1")[1:])
    type_ = mods.type()
    require(mods, type_, _STORED)
    mods.done()
    return _asynchronous(decoder, instruction, type_, vector)


@opcode("red.async")
def _red_async(decoder: Decoder, instruction: Instruction) -> Step:
    """An atomic update whose bytes an mbarrier counts."""
    mods = Mods(instruction)
    mods.choice(("async",))
    mods.choice(("relaxed",))
    mods.choice(("cluster",))
    _take_place(mods)
    operation = mods.choice(SHARED_REDUCTIONS)
    type_ = mods.type()
    require(mods, type_, SHARED_REDUCTIONS[operation])
    mods.done()
    return _asynchronous(decoder, instruction, type_, 1, reduces=True)


def _take_place(mods: Mods) -> None:
    mods.choice(("shared::cluster",), default="")
    mods.choice(("mbarrier::complete_tx::bytes",))


def _asynchronous(
    decoder: Decoder, instruction: Instruction, type_: PtxType, vector: int, *, reduces: bool = False
) -> Step:
    """The step of ``[a], b, [mbarrier]``; both addresses lie in the same CTA."""
    mods = Mods(instruction)
    if len(decoder.vector(instruction.operands[1])) != vector:
        raise mods.unsupported(f"expected {vector} values")
    width = vector * type_.bytes
    target = Accessor(decoder, instruction, instruction.operands[0], "shared::cluster", width)
    mbarrier = MbarrierOperand(decoder, instruction, instruction.operands[2], "shared::cluster")
    machine, unit = decoder.machine, BulkCopies.of(decoder.machine)
    units = type_.bytes * np.arange(vector)

    def issue(lanes: Indices, index: Indices, barrier: CompletionBarrier) -> None:
        apart = index // machine.shared_stride != barrier.home
        if apart.any():
            what = "stores to one CTA and signals an mbarrier of another"
            for observer in machine.observers:
                observer.misuse(
                    "mbarrier", lanes[apart], instruction, what, "usually only one address went through mapa"
                )
        places = index[:, None] + units
        unit.issue(
            Transfer(
                *(instruction, lanes, np.zeros(len(lanes), np.int64), type_.bytes),
                ("registers", places),
                ("shared", places),
                barrier=barrier,
                reduces=reduces,
                has_read=True,
            )
        )

    def step(sel: Selection) -> None:
        for part in target.parts(sel):
            mine = indices(part.sel)
            for chosen, offset, home in mbarrier.groups(part.sel, accessed=False):
                issue(
                    indices(chosen), part.index[np.searchsorted(mine, indices(chosen))], CompletionBarrier(offset, home)
                )

    return step
