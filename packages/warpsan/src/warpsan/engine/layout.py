"""Numbers that native code shares with Python: statuses, kinds, sizes, and the words of memory that is no struct of
:mod:`~warpsan.engine.context` or :mod:`~warpsan.engine.memory`."""

from __future__ import annotations

__all__: list[str] = []

WARP = 32
EVERY_LANE = (1 << 32) - 1

# ---- a record: words of 32 bits --------------------------------------------------------------------------------------

RECORD_WORDS = 16
OPERANDS = 2
"""The first operand."""

# ---- ends of blocks -------------------------------------------------------------------------------------------------

END_NEXT, END_BRANCH, END_EXIT, END_BARRIER, END_ARRIVE, END_STOP = 0, 1, 2, 3, 4, 5
END_INDEXED, END_CLUSTER_ARRIVE, END_CLUSTER_WAIT, END_TRY_WAIT, END_WGMMA, END_WGMMA_WAIT = 6, 7, 8, 9, 10, 11
END_REGISTERS, END_REDUCE, END_INNER = 12, 13, 14

# ---- statuses --------------------------------------------------------------------------------------------------------

UNWRITTEN = "uninitialised"
"""Reason of a launch's end: a read of unwritten shared memory."""
NOTHING_CAN_RUN = "nothing can run"
"""Reason of a launch's end: all threads wait, most likely for each other or for blocks that have not begun."""
DONE = 0
"""An operation is done."""
NO_MAP_BOX, NO_DESCRIPTOR = -2, -3
"""With the status ``UNMODELLED``, ``Context.end_number``: a swizzled box that is not modelled, a descriptor with
a base offset, or else the type of elements that a reduction does not combine, as in ``MapWords.kind``."""
LEFT_OUT = 1
"""A lane is left out of an operation, because of a hazard that has a row."""
GIVE_UP = 2
"""First of the statuses that end the run; :data:`WHY` has their reasons."""
WHY = (
    "illegal access",
    "several buffers in one access",
    "lanes of a warp missing at a warp-wide instruction",
    "broken rules",
    NOTHING_CAN_RUN,
    "too many steps",
    "trap",
    UNWRITTEN,
    "race",
    "asynchronous access",
    "too many in flight",
    "tensor map",
    "an operand that is not modelled",
    "branch index",
    "counters where lanes of a warp wait apart",
    "an instruction that is not modelled",
    "a register that was never set",
    "not algebraic",
    "calls within calls that are too deep",
    "too many releases",
)
ILLEGAL, SPREAD, DIVERGENT, BROKEN_RULE, STUCK, STEPS, TRAP, UNDEFINED, RACE, ASYNC, FULL = range(2, 13)
TENSOR_MAP, UNMODELLED, INDEX, APART, REFUSED, UNSET, NOT_ALGEBRAIC, TOO_DEEP, LATE = range(13, 22)

FIRST_TIME, LAST_TIME = 64, 1 << 30
"""First and last time of the checks' clock. Numbers below ``FIRST_TIME`` are statuses. Times are 32 bits wide in
some shadows (reads of shared memory, tags of global memory): beyond ``LAST_TIME`` the run ends at the next block."""

# ---- shadows ---------------------------------------------------------------------------------------------------------

IN_FLIGHT, OPAQUE, READ_IN_FLIGHT = 1, 2, 4
"""A granule: a copy in flight writes it; it belongs to an mbarrier; an operation in flight reads it."""
NOT_READABLE = IN_FLIGHT | OPAQUE

SCRATCH_BYTES = (1 << 17) + 256
SCRATCH_POISON = 1 << 17
"""In the scratch: the values that lanes with an illegal access read."""

SCRATCH_CHUNKS, SCRATCH_A, SCRATCH_RECORD, SCRATCH_B = 20480, 24576, 28672, 32768
"""In the scratch, for wgmma: places of chunks, factors as float32, and a record."""
SCRATCH_TILE = 97280
"""In the scratch, for wgmma: the sums of a tile."""
SCRATCH_EXPONENTS, SCRATCH_ROWS = 98304, 106496
"""In the scratch, for matrix products: the exponents of A, and its factors as float32, the same in all columns."""
SCRATCH_COUNTS = 65536
"""In the scratch, for each bank of shared memory: the number of words that it delivers, and the words."""

SCRATCH_REGIONS = {
    "an operation": (0, 1 << 14),
    "chunks": (SCRATCH_CHUNKS, 8 * 16 * (256 // 8)),  # of 256 columns
    "A": (SCRATCH_A, 4 * 16 * 32),  # of a warp
    "record": (SCRATCH_RECORD, 4 * RECORD_WORDS),
    "B": (SCRATCH_B, 4 * 256 * 32),
    "counts": (SCRATCH_COUNTS, 8 * 32 * (1 + 32)),
    "tile": (SCRATCH_TILE, 1024),
    "exponents": (SCRATCH_EXPONENTS, 2 * 16 * 8 * 32),
    "rows": (SCRATCH_ROWS, 4 * 16 * 8 * 32),
    "poison": (SCRATCH_POISON, 256),
}
"""Start and bytes of each region of the scratch."""

HOST_GLOBAL = 1 << 8
"""In ``Context.host_access``: the access is to global memory."""

PAGE_SHIFT = 10
"""Size of a page of shared memory, for which the checks keep a summary of its granules."""
READ_SHIFT, GLOBAL_PAGE_SHIFT = 4, 12
PAGE_WRITTEN, PAGE_STRONG = 1, 2
SEVERAL = (1 << 23) - 1
"""CTA number that stands for several CTAs."""
EVERY_WARP = 0xFF
"""Warp number that stands for any warp of the cluster."""
OF_COPIES = 0x40
"""First of the warp numbers that stand for copies that complete on the mbarriers of a CTA, in their order there."""

FORWARD, BACKWARD, DRAWN, TOGETHER = 0, 1, 2, 3
"""The order of a cluster's warps; ``TOGETHER``: all warps at the lowest block run it, one after the other."""

# ---- what may be a hazard: int64 words -------------------------------------------------------------------------------

IN_SHARED, IN_GLOBAL, IN_LOCAL = range(3)
"""Spaces in rows."""

MATRIX_ROWS, TRANSPOSED_ROWS = 32, 33
"""Element bytes that stand for stmatrix: lanes write the rows of matrices of 16-bit elements, or their columns, from
registers of all lanes of the warp."""

# ---- releases through global memory: int64 words ---------------------------------------------------------------------

ACQUIRES, RELEASES, OBSERVES, CONTINUES, SCOPE_SHIFT = 1, 2, 4, 8, 4
"""Effects of a strong operation, as bits: a reduction does not observe, a write does not continue. The bits from
SCOPE_SHIFT on are its scope as one of :data:`warpsan.checks.orders.LEVELS`, at most that of the GPU."""

OF_FENCES = -1
"""Reach of an element that is not a release, but a list of ``fence.sc`` before the operation."""

# ---- a warp ----------------------------------------------------------------------------------------------------------

MOST_PATHS = 33
MOST_SETS = 62

# ---- an mbarrier -----------------------------------------------------------------------------------------------------

MOST_MBARRIERS = 64
SPENT, ENDED = 2, 3
"""``valid`` of an mbarrier that all threads have dropped out of, and of one that is invalid again; 1 for others, 0 for
none."""

# ---- a bulk copy in flight -------------------------------------------------------------------------------------------

MOST_TRANSFERS = 1 << 13  # of each CTA that runs together with others
WRITTEN_OUT, WAITED_FOR = 1, 2
LANDED, LOADS, STORES, WORDS, ARRIVALS, WITHIN, TENSOR = 0, 1, 2, 3, 4, 5, 6
"""Kinds: landed, a copy to shared memory, a copy from there, words of a register, arrivals of lanes (bits in
the first word of its data) at an mbarrier once their copies of cp.async up to the number in its offset have landed, a
copy from one CTA to another, an operation of the tensor cores on tensor memory."""

COPY_SHARED, COPY_FAR, COPY_PC, COPY_MANY, COPY_SIGNAL, COPY_CASTS = 0, 2, 4, 5, 6, 8
COPY_COMBINE, COPY_COORDINATES = 8, 9
"""Operands of the instructions that issue copies: row and offset of the address in shared memory (for a copy within
the cluster, the destination), and of the other side (a tensor map, global memory, or the source in shared memory);
the pc; the row of the number of bytes, or the number of axes; row and offset of the mbarrier's address; for loads,
the row of the multicast CTAs (16 bits), or -1; for others, the combination of elements as in
``TransferEntry.combine`` (for a box, the start of the list of combinations by element type, or -1); the rows of
coordinates."""

# ---- a tensor map ----------------------------------------------------------------------------------------------------

COMBINED = ("u16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")
"""Types of elements that reductions combine: ``MapWords.kind`` is the index here, or -1."""
RAW_WORDS, MOST_AXES = 13, 5

# ---- a wgmma in flight: int64 words ----------------------------------------------------------------------------------

MOST_PRODUCTS = 64

# ---- tensor memory ---------------------------------------------------------------------------------------------------

TENSOR_LANES, TENSOR_COLUMNS, TENSOR_UNIT = 128, 512, 32
"""Lanes and columns of a CTA, and the columns of the smallest allocation. The cells of a column are contiguous."""
TENSOR_UNITS = TENSOR_COLUMNS // TENSOR_UNIT
TENSOR_BYTES = 4 * TENSOR_LANES * TENSOR_COLUMNS
TENSOR_GRANULES = TENSOR_LANES // 16 * TENSOR_COLUMNS
"""Granules of the checks: 16 lanes of a column."""
MOST_COMMITS = 256
"""The most arrivals of tcgen05.commit in flight."""
BY_STORE, BY_PRODUCT, BY_COPY = 1, 2, 3
"""Writers of tensor memory."""

# ---- a cp.async in flight, of one warp: int64 words ------------------------------------------------------------------

MOST_COPIES = 256
MANY_COPIES = 64
"""Number of a warp's entries from which landed copies are dropped."""

READY, PARKED, AT_BARRIER, AT_CLUSTER, AT_MBARRIER, AT_WGMMA, FOR_REGISTERS = 0, 1, 2, 3, 4, 5, 6

# ---- a barrier of a CTA ----------------------------------------------------------------------------------------------

BARRIER_COUNT, NO_BARRIER = 17, 16
"""The barriers, and after them one for all names without a barrier."""
MOST_DOUBLED = 64

# ---- special registers that depend on the warp or its CTA ------------------------------------------------------------

(TID_X, TID_Y, TID_Z, CTAID_X, CTAID_Y, CTAID_Z, WARPID, CTARANK, CLUSTERID_X, CLUSTERID_Y, CLUSTERID_Z) = range(11)
(CLUSTER_CTAID_X, CLUSTER_CTAID_Y, CLUSTER_CTAID_Z) = range(11, 14)
