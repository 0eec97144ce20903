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
PART_OF_WARPGROUP, WARPGROUP_DIFFERS = 36, 37
"""For registers, ``expected`` is the requested number, and ``actual`` that of the warp; warps of a warpgroup that
execute no setmaxnreg, or another one (:mod:`.waits`)."""

# ---- mbarriers -------------------------------------------------------------------------------------------------------

NO_MBARRIER, INITIALISED_AGAIN, ARRIVALS_OF_INIT, MORE_ARRIVALS, MORE_DROPS, COMPLETES_PHASE, MORE_BYTES = range(48, 55)
TOO_MANY_BYTES, OLD_PHASE, SIGNALS_ANOTHER_CTA, REACHES_EXITED, UNFENCED_MBARRIER = range(55, 60)
"""``offset`` is that of the mbarrier in its CTA (:mod:`.mbarriers`)."""

# ---- bulk copies -----------------------------------------------------------------------------------------------------

NOT_IN_CHUNKS, READS_EXITED, WRITES_EXITED, STILL_READS, NO_TENSOR_MAP, AXES_DIFFER = range(64, 70)
"""For a tensor map, ``offset`` is its place in global memory (:mod:`.transfers`)."""

# ---- products of a warpgroup -----------------------------------------------------------------------------------------

A_DIFFERS, B_DIFFERS, SCALE_DIFFERS, NO_FENCE, TOUCHED_REGISTERS, SHARES_REGISTERS, USES_REGISTERS = range(80, 87)
"""For registers, ``space`` is the number of their set (:mod:`.products`)."""

# ---- accesses to what operations in flight use -----------------------------------------------------------------------

TOUCHES_MBARRIER, READS_TARGET, OVERWRITES_TARGET, OVERWRITES_SOURCE = range(90, 94)
"""(:mod:`.flight_rules`)"""

# ---- races in shared memory ------------------------------------------------------------------------------------------

(RELAXED_ARRIVAL, NARROW_ARRIVAL, RELAXED_IN_CLUSTER, EARLY_FENCE, RELEASED, RELAXED_WAIT, NARROW_WAIT) = range(1, 8)
(LINK_TOO_NARROW, READ_TOO_NARROW, NO_FENCE_BEFORE, FENCE_TOO_NARROW, NO_FENCE_AFTER) = range(8, 13)
WAIT_FENCE_TOO_NARROW, NOT_COVERED = 13, 14
WEAK_ARRIVALS = RELEASED
"""Reasons of a missing order: what an arrival or a wait lacks; what a strong write, its reader, or a fence beside one
of them lacks, with the relation of the threads in bits 8 to 11 and a scope from bit 12 on
(:mod:`warpsan.checks.orders`)."""

FIRST_RACE = 100
(READS_WRITTEN, READS_UPDATED, OVERWRITES_WRITTEN, OVERWRITES_READ, OVERWRITES_UPDATED) = range(100, 105)
(UPDATES_WRITTEN, UPDATES_READ, COPIES_WRITTEN, COPIES_READ, COPIES_UPDATED) = range(105, 110)
SIGNALS_WRITTEN, UNFENCED_READ, UNFENCED_WRITE, COPIES_TOGETHER, WRITES_TOGETHER = range(110, 115)
READS_CONSTANT, SCOPES_OF_READ, SCOPES_OF_WRITE, SCOPES_OF_UPDATE, USES_MAP_WRITTEN = range(115, 120)
LANE_READS, LANE_WRITES, LANE_UPDATES, LANES_TOGETHER = 120, 124, 128, 132
EARLY_READ, EARLY_WRITE, EARLY_UPDATE = 133, 134, 135
AFTER_EXIT = 136
MAP_NOT_ACQUIRED, MAP_ACQUIRE_NARROW, MAP_NOT_RELEASED, MAP_RELEASE_NARROW = range(140, 144)
LAST_RACE = 149
"""The rules of ``LANE_READS``, ``LANE_WRITES`` and ``LANE_UPDATES`` are the first of four, one for each kind of the
other lane's access (:mod:`.lane_races`).

An access, and the earlier one that does not come before it: reads, plain writes, atomic updates, and asynchronous
copies that write; an access to an mbarrier by a copy that completes on it; in the async proxy, accesses to data written
in the generic proxy without a fence; copies of lanes of one instruction to one place, and writes of different values in
one turn of lockstep; accesses that conflict with the kernel before; an access to the shared memory of a CTA
(``expected``) that may have exited; fences between a write to a tensor map and its use (``expected`` is the relation of
the threads, ``found`` a scope). Otherwise ``found`` is whether the earlier access is asynchronous, ``expected`` what is
missing."""

# ---- tensor memory ---------------------------------------------------------------------------------------------------

(NOT_ALLOCATED, NOT_ITS_LANES, ADDRESSES_DIFFER, WRONG_COLUMNS, NO_COLUMNS, WITHOUT_PERMIT, NOT_ITS_COLUMNS) = range(
    160, 167
)
NEVER_FREED, NEVER_WRITTEN, WRONG_PRODUCT = range(167, 170)
"""``offset`` is a column, ``width`` a number of columns (:mod:`.tensor_memory`)."""
READS_PRODUCT, READS_STORE, STORES_PRODUCT, STORES_READ, STORES_STORED, FREES_USED, USES_LOADED = range(170, 177)
NO_FENCE_BEFORE_SYNC, NO_FENCE_AFTER_SYNC = 177, 178
"""An access, and the earlier one that does not come before it; ``expected`` is the kind of the earlier one
(:data:`.layout.BY_STORE` and others; 0 for a read)."""
