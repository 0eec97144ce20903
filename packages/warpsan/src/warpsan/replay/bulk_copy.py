"""cp.async.bulk on plain bytes (PTX ISA, "Non-tensor copies"): one thread copies many bytes, which an mbarrier counts
or a bulk group contains.
"""

from __future__ import annotations

import numpy as np

from warpsan.engine.machine import Machine
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Array, Indices, Selection, indices
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Instruction
from warpsan.ptx.synchronising import BulkCopy, BulkReduction, BulkWait
from warpsan.ptx.types import TYPES
from warpsan.replay.access import Accessor
from warpsan.replay.bulk_copies import CHUNK, BulkCopies, Transfer
from warpsan.replay.decoder import Decoder, Step, opcode
from warpsan.replay.mbarrier import MbarrierOperand

__all__ = ["multicast_targets"]


def multicast_targets(machine: Machine, lanes: Indices, masks: Array) -> tuple[Indices, Indices]:
    """(position in ``lanes``, CTA of the chunk) of every CTA that a multicast writes to; bits beyond the cluster are
    ignored."""
    size = machine.cluster_size
    bits = masks.astype(np.int64)[:, None] >> np.arange(size) & 1
    row, rank = np.nonzero(bits)
    first = machine.cta[lanes] - machine.cta[lanes] % size
    return row, first[row] + rank


@opcode("cp.async.bulk.commit_group")
def _commit_group(decoder: Decoder, instruction: Instruction) -> Step:
    """Closes the lane's current bulk group."""
    return BulkCopies.of(decoder.machine).commit


@opcode("cp.async.bulk.wait_group")
def _wait_group(decoder: Decoder, instruction: Instruction) -> Step:
    """Completes the copies of all bulk groups of the lane but the last few; with ``.read``, only their reading."""
    unit, form = BulkCopies.of(decoder.machine), form_of(instruction, BulkWait)
    return lambda sel: unit.wait(sel, form.keep, form.reads)


@opcode("cp.async.bulk", "cp.reduce.async.bulk")
def _bulk_copy(decoder: Decoder, instruction: Instruction) -> Step:
    """One lane copies many bytes, or combines them with the stored values."""
    form, unit = form_of(instruction, BulkCopy), BulkCopies.of(decoder.machine)
    operands = list(instruction.operands)
    if form.hint:
        operands.pop()
    masks = decoder.src(instruction, operands.pop(), TYPES["u16"]) if form.casts else None
    reduces = isinstance(form, BulkReduction)
    signals = form.way[0] != "global"
    to, origin = (
        Accessor(decoder, instruction, operand, space, CHUNK)
        for operand, space in zip(operands, form.way, strict=False)
    )
    sizes = decoder.src(instruction, operands[2], TYPES["u32"])
    mbarrier = MbarrierOperand(decoder, instruction, operands[3], form.way[0]) if signals else None
    machine = decoder.machine
    names = (form.way[1], "shared" if signals else "global")

    def transfers(lanes: Indices, target: Indices, source: Indices, size: int) -> None:
        """Copies of equal size: rows of source and target, by the mbarrier that they signal."""
        chunks = CHUNK * np.arange(size // CHUNK)
        if mbarrier is None:
            group = unit.groups[lanes].copy()
            unit.issue(
                Transfer(
                    *(instruction, lanes, group, CHUNK, (names[0], source[:, None] + chunks)),
                    (names[1], target[:, None] + chunks),
                    reduces=reduces,
                )
            )
            return
        for chosen, offset, home in mbarrier.groups(lanes, accessed=False):
            row = np.searchsorted(lanes, indices(chosen))
            goal = target[row]
            if masks is not None:
                many, home = multicast_targets(machine, lanes[row], masks[lanes[row]])
                row, goal = row[many], goal[many] % machine.shared_stride + home * machine.shared_stride
            unit.issue(
                Transfer(
                    *(instruction, lanes[row], np.zeros(len(row), np.int64), CHUNK),
                    (names[0], source[row][:, None] + chunks),
                    (names[1], goal[:, None] + chunks),
                    barrier=CompletionBarrier(offset, home),
                    reduces=reduces,
                )
            )

    def step(sel: Selection) -> None:
        everyone = indices(sel)
        length = sizes[sel].astype(np.int64)
        odd = length % CHUNK != 0
        for size in np.unique(length[(length > 0) & ~odd]):
            lanes = everyone[length == size]
            for target in to.parts(lanes, width=int(size)):
                for source in origin.parts(target.sel, width=int(size)):
                    positions = np.searchsorted(indices(target.sel), indices(source.sel))
                    transfers(indices(source.sel), target.index[positions], source.index, int(size))

    return step
