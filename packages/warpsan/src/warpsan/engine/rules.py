"""Numbers of the rules whose violations are hazards, for the rows of native code (:mod:`.hazards`).

:mod:`warpsan.report.rules` has their texts. Each family has a range of numbers of its own.
"""

from __future__ import annotations

__all__: list[str] = []

# ---- memory and warps ------------------------------------------------------------------------------------------------

MISALIGNED, OUT_OF_BOUNDS, NEVER_SET, PARTIAL_WARP, NAMES_ABSENT, LEAVES_OUT, UNWRITTEN_READ, REACHED = range(8)
STORED_UNSET = 8
"""Illegal accesses; a use of a register that was never set; absent lanes of a warp; a member mask with absent lanes, or
without a present one (the offset is the mask, the width the missing lanes); a read of undefined bytes; a use of the
value from the load or store at the pc in the low bits of ``origin``; a store of a register that was never set to shared
memory. For uses of registers, ``space`` is the index of the record's register."""

FROM_GLOBAL = 1 << 30
"""Bit of an origin, besides the pc: the bytes are of unwritten global memory."""

# ---- barriers of a CTA -----------------------------------------------------------------------------------------------

(NO_SUCH_BARRIER, ARRIVAL_WITHOUT_COUNT, PART_OF_WARP_COUNTED, COUNT_BEYOND_BLOCK, COUNTS_DIFFER, ARRIVES_AGAIN) = (
    range(16, 22)
)
PARTS_OF_WARP, PARTS_OF_BLOCK, ONE_IS_A_REDUCTION, THREADS_EXITED, TOO_MANY_ARRIVED = range(22, 27)
"""``space`` is the barrier's number (:mod:`.barriers`)."""

# ---- barriers of a cluster, registers --------------------------------------------------------------------------------

ARRIVES_TWICE_IN_CLUSTER, WAITS_WITHOUT_ARRIVAL, REGISTERS_WOULD_SHRINK, REGISTERS_WOULD_GROW = range(32, 36)
"""For registers, ``expected`` is the requested number, and ``found`` that of the warp (:mod:`.waits`)."""
