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

# ---- mbarriers -------------------------------------------------------------------------------------------------------

NO_MBARRIER, INITIALISED_AGAIN, ARRIVALS_OF_INIT, MORE_ARRIVALS, MORE_DROPS, COMPLETES_PHASE, MORE_BYTES = range(48, 55)
TOO_MANY_BYTES, OLD_PHASE, SIGNALS_ANOTHER_CTA, REACHES_EXITED = range(55, 59)
"""``offset`` is that of the mbarrier in its CTA (:mod:`.mbarriers`)."""

# ---- bulk copies -----------------------------------------------------------------------------------------------------

NOT_IN_CHUNKS, READS_EXITED, WRITES_EXITED, STILL_READS, NO_TENSOR_MAP, AXES_DIFFER = range(64, 70)
"""For a tensor map, ``offset`` is its place in global memory (:mod:`.transfers`)."""

# ---- products of a warpgroup -----------------------------------------------------------------------------------------

A_DIFFERS, B_DIFFERS, SCALE_DIFFERS, NO_FENCE, TOUCHED_REGISTERS, SHARES_REGISTERS, USES_REGISTERS = range(80, 87)
"""For registers, ``space`` is the number of their set (:mod:`.products`)."""
