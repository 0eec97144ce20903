"""Instructions that whole warps execute."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.analysis.collectives import PARTIAL_WARP
from warpsan.engine.selection import Selection, split_warps
from warpsan.ptx.ir import Instruction
from warpsan.replay.decoder import Decoder

__all__ = ["whole_warps"]


def whole_warps(decoder: Decoder, instruction: Instruction) -> Callable[[Selection], Selection | None]:
    """A check for instructions that all lanes of a warp must execute together.

    The function returned gives the lanes of whole warps (None if there are none) and reports the others to the
    observers.
    """
    observers = decoder.machine.observers
    need = PARTIAL_WARP.format(instruction.opcode)

    def check(sel: Selection) -> Selection | None:
        whole, partial = split_warps(sel)
        if partial is not None:
            for observer in observers:
                observer.divergent(partial, instruction, need)
        return whole

    return check
