"""st.async and red.async: from registers into the shared memory of any CTA of the cluster, with completion on an
mbarrier there (PTX ISA, "st.async", "red.async"). They are in flight like bulk copies, and land when nothing else can
run.
"""

from __future__ import annotations

import numpy as np

from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Indices, Selection, indices
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Instruction
from warpsan.ptx.synchronising import AsyncReduction, AsyncStore
from warpsan.ptx.types import PtxType
from warpsan.replay.access import Accessor
from warpsan.replay.bulk_copies import BulkCopies, Transfer
from warpsan.replay.decoder import Decoder, Step, opcode
from warpsan.replay.mbarrier import MbarrierOperand

__all__: list[str] = []


@opcode("st.async")
def _st_async(decoder: Decoder, instruction: Instruction) -> Step:
    """A store whose bytes an mbarrier counts; until then its destination is poison."""
    form = form_of(instruction, AsyncStore)
    return _asynchronous(decoder, instruction, form.type, int(form.vector[1:]))


@opcode("red.async")
def _red_async(decoder: Decoder, instruction: Instruction) -> Step:
    """An atomic update whose bytes an mbarrier counts."""
    return _asynchronous(decoder, instruction, form_of(instruction, AsyncReduction).type, 1, reduces=True)


def _asynchronous(
    decoder: Decoder, instruction: Instruction, type_: PtxType, vector: int, *, reduces: bool = False
) -> Step:
    """The step of ``[a], b, [mbarrier]``; both addresses lie in the same CTA."""
    width = vector * type_.bytes
    target = Accessor(decoder, instruction, instruction.operands[0], "shared::cluster", width)
    mbarrier = MbarrierOperand(decoder, instruction, instruction.operands[2], "shared::cluster")
    unit = BulkCopies.of(decoder.machine)
    units = type_.bytes * np.arange(vector)

    def issue(lanes: Indices, index: Indices, barrier: CompletionBarrier) -> None:
        places = index[:, None] + units
        unit.issue(
            Transfer(
                *(instruction, lanes, np.zeros(len(lanes), np.int64), type_.bytes),
                ("registers", places),
                ("shared", places),
                barrier=barrier,
                reduces=reduces,
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
