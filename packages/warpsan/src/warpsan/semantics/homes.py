"""The ``provenance`` check: records that test whether an access stays in the buffer from whose pointer its address
is computed (:mod:`warpsan.checks.provenance`). The buffer depends on the launch: its bounds are constants."""

from __future__ import annotations

from warpsan.engine import layout, rules
from warpsan.engine.access import located, note_lanes
from warpsan.engine.assembler import Assembler, Constant
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.host.memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, WINDOW_BITS
from warpsan.ptx.ir import Instruction

__all__ = ["keep_in_buffer"]


def keep_in_buffer(
    asm: Assembler, instruction: Instruction, space: str, row: int, bits: int, offset: int, width: int
) -> None:
    """Append the record that notes lanes whose access to global memory leaves its known buffer, or ends the run.
    Such a lane accesses another buffer."""
    if instruction.pc not in asm.origins or space not in ("global", "generic"):
        return
    bounds = [asm.constant(Constant(kind, instruction.pc, 64)) for kind in ("home begins", "home ends")]

    def build(code: OperationCode) -> None:
        address = located(code, 0, space, bits)
        begin, end = (code.source(2 + k, "s64") for k in range(2))
        strays = (address < begin + GLOBAL_BASE) | (address > end + (GLOBAL_BASE - width))
        if space == "generic":
            window = address >> WINDOW_BITS
            strays = strays & (window != SHARED_BASE >> WINDOW_BITS) & (window != LOCAL_BASE >> WINDOW_BITS)
        offsets = address - GLOBAL_BASE
        note_lanes(code, code.those(strays), offsets, offsets.like(width), rules.OUT_OF_BOUNDS, layout.IN_GLOBAL)

    asm.record(NativeOperation(f"home.{space}.{bits}.{width}", build), [row, offset, *bounds])
