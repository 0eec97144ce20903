"""Where everything is that native code shares with Python: words of records, blocks, warps and the context.

Addresses are bytes of this process. A record is one operation to execute, 16 words of 32 bits; a block is straight-line
code, 16 words of 32 bits. The context has 64-bit words; a warp's state too.
"""

from __future__ import annotations

__all__: list[str] = []

WARP = 32
EVERY_LANE = (1 << 32) - 1

# ---- a record: int32 words -------------------------------------------------------------------------------------------

RECORD_WORDS = 16
FUNCTION = 0
"""Index into the table of operations."""
GUARD = 1
"""0, or the row of a predicate, plus 1, plus 2 where it is negated."""
OPERANDS = 2
"""The first of fourteen: offsets of rows in the warp's registers, or numbers."""
LAST_OPERAND = 13

# ---- a block: int32 words --------------------------------------------------------------------------------------------

BLOCK_WORDS = 16
FIRST, LAST, SIZE = 0, 1, 2
"""Its records, up to before the last; the instructions of PTX in it."""
END = 3
"""How it ends: one of the END_ numbers."""
END_GUARD, TARGET = 4, 5
COLLECTIVE = 6
"""0, or 1 if whole warps are needed, or 2 if the lanes of a member mask are."""
MEMBERS = 7
"""The row of that mask."""
END_A, END_B, END_C, END_D, END_E, END_PC, END_TOKEN = range(8, 15)
"""Operands of the end, the number of its instruction, and whether a wait is for the phase of a state token."""
POLLS = 15
"""Whether it is part of a polling loop (:mod:`warpsan.analysis.polling`); 2 if nothing but memory can end that."""

END_NEXT, END_BRANCH, END_EXIT, END_BARRIER, END_ARRIVE, END_STOP = 0, 1, 2, 3, 4, 5
END_INDEXED, END_CLUSTER_ARRIVE, END_CLUSTER_WAIT, END_TRY_WAIT, END_WGMMA, END_WGMMA_WAIT = 6, 7, 8, 9, 10, 11
END_REGISTERS, END_REDUCE, END_INNER = 12, 13, 14

# ---- statuses --------------------------------------------------------------------------------------------------------

UNWRITTEN = "uninitialised"
"""Why a launch ends in which shared memory is read that nobody wrote."""
NOTHING_CAN_RUN = "nothing can run"
"""Why one does in which all threads wait, most likely for each other or for blocks that have not begun."""
DONE = 0
"""An operation is done."""
GIVE_UP = 2
"""From this number on: the run ends, and why."""
WHY = (
    "illegal access",
    "several buffers in one access",
    "lanes of a warp missing at a warp-wide instruction",
    "barrier rules",
    NOTHING_CAN_RUN,
    "too many steps",
    "trap",
    UNWRITTEN,
    "race",
    "asynchronous access",
    "mbarrier rules",
    "too many in flight",
    "tensor map",
    "wgmma rules",
    "cluster rules",
    "branch index",
    "registers of setmaxnreg",
    "counters where lanes of a warp wait apart",
    "an instruction that is not modelled",
    "a register that was never set",
    "not algebraic",
    "an access that comes after no griddepcontrol.wait",
    "calls within calls that are too deep",
    "too many releases",
)
(ILLEGAL, SPREAD, DIVERGENT, BARRIER_RULE, STUCK, STEPS, TRAP, UNDEFINED, RACE, ASYNC, MBARRIER_RULE, FULL) = range(
    2, 14
)
(TENSOR_MAP, WGMMA_RULE, CLUSTER_RULE, INDEX, REGISTER_RULE, APART, REFUSED, UNSET, NOT_ALGEBRAIC, EARLY_ACCESS) = (
    range(14, 24)
)
TOO_DEEP, LATE = 24, 25

FIRST_TIME, LAST_TIME = 64, 1 << 30
"""Times of the checks' clock. An operation's time, or a status, is a number of which those below ``FIRST_TIME`` are
statuses. Times are 32 bits wide in some shadows (``READERS``, ``UPDATERS``, tags of global memory): beyond
``LAST_TIME`` the run ends at the next block."""

# ---- the context: int64 words ----------------------------------------------------------------------------------------

CONTEXT_WORDS = 208
(
    TABLE,  # addresses of the operations' functions
    RECORDS,
    BLOCKS,
    REGISTERS,  # of all warps of a cluster
    REGISTER_BYTES,  # of one warp
    TEMPLATE,  # what they are at first
    SHARED,  # of all CTAs of a cluster
    SHARED_STRIDE,
    SHARED_LIMIT,
    GLOBAL,  # where the arena is in this process
    EXTENTS,  # pairs of offsets in the arena
    EXTENT_COUNT,
    LOCAL,
    LOCAL_STRIDE,
    LOCAL_LIMIT,
    WARPS,  # the states of all warps of a cluster
    WARP_COUNT,  # of one CTA
    CTA_COUNT,  # of one cluster, or of a cooperative launch
    THREADS,  # of one CTA
    CTAS,  # linear indices of the launch's CTAs, by cluster
    SPECIALS,  # (kind, row) of special registers to fill in
    SPECIAL_COUNT,
    START,  # the first block
    MOST_STEPS,
    LANES_BY_BLOCK,
    WARPS_BY_BLOCK,
    STEPS_TAKEN,
    BARRIERS,
    SCRATCH,  # room for operations to work in
    CURRENT,  # the index of the warp that runs
    CURRENT_STATE,
    CURRENT_SHARED,  # the shared memory of its CTA
    CURRENT_LOCAL,
    CURRENT_LIVE,  # its lanes that have not exited
    CURRENT_PC,  # of a warp that gave up: where, a record; or the block: before too many steps, or with a wrong index
    GRID_X,
    GRID_Y,
    GRID_Z,
    BLOCK_X,
    BLOCK_Y,
    BLOCK_Z,
    CLUSTER_X,
    CLUSTER_Y,
    CLUSTER_Z,
    ORDER,  # FORWARD, BACKWARD or DRAWN
    SEED,
    DRAW,  # the state of what is drawn in a cluster
    EARLY,  # whether asynchronous copies land at once
    COPIES,  # in flight, MOST_COPIES a warp
    CHECKED,  # whether the checks are on
    ACTORS,  # words of a vector: one for each actor of a cluster, with asynchronous units in both proxies
    TIME,  # counts releases and asynchronous operations; goes back where a cluster begins late (LAST_TIME)
    TIME_LIMIT,  # the time beyond which the run ends; a cluster that begins beyond half of it restarts the clock
    CLOCKS,  # for each warp the time of its last release, for other actors that of their last operation
    VECTORS,  # for each warp, up to which time each actor's accesses come before its own
    FLOORS,  # a time up to which the accesses of all actors come before a warp's, but for itself
    RELEASED,  # for each barrier of each CTA, the vector of those that have arrived
    GRANULE_SHIFT,  # of shared memory
    GRANULES,  # of a CTA
    WRITERS,  # of each granule: time << 16 | warp
    READERS,  # of each warp, or its operations, and granule: time
    FLYING,  # of each granule: IN_FLIGHT, OPAQUE, and READ_IN_FLIGHT for each operation that reads it
    WRITTEN,  # of each byte of shared memory: a bit
    WRITTEN_BYTES,  # of a CTA
    PAGES,  # of a CTA
    PAGE_WRITTEN,  # of each page: the time of its last write
    PAGE_READ,  # ... of its last read
    PAGE_FLYING,  # ... granules that nobody may read: copies in flight write them, or there is an mbarrier
    PAGE_FULL,  # ... whether all of it has been written
    GLOBAL_SHIFT,  # granules of global memory
    GLOBAL_WRITERS,  # of each: (CTA + 1) << 40 | time << 8 | number of the warp in the CTA
    GLOBAL_READERS,  # of each 16 bytes
    GLOBAL_PAGES,  # whether anything in a page has been written
    MBARRIERS,  # of each CTA, MOST_MBARRIERS
    TRANSFERS,  # bulk copies in flight, in the order of their issue
    TRANSFER_FIRST,
    TRANSFER_COUNT,
    TRANSFER_ROOM,  # how many there may be
    TRANSFER_SERIAL,
    TENSOR_MAPS,
    TENSOR_MAP_COUNT,
    CLUSTER_ARRIVED,  # of each cluster that runs: threads that have arrived at its barrier
    CLUSTER_PHASE,
    REGISTER_LIMIT,  # of a CTA, for setmaxnreg
    REGISTERS_BEFORE,
    LISTS,  # of wgmma instructions
    PRODUCTS,  # wgmma in flight, MOST_PRODUCTS a warpgroup
    GLOBAL_STRONG,  # of each granule, the last atomic operation; 0 if the kernel has none
    GRID_ROWS,  # for each warp of a cluster, up to which time each warp of the grid comes before it; 0 if none does
    GRID_WARPS,
    COUNTING,  # whether traffic is counted
    SECTORS,  # for each instruction those it took, and the fewest
    WAVEFRONTS,
    TOUCHED,  # sectors that were read; behind them those that were written
    TOUCHED_BYTES,
    ISSUED,  # warp instructions of each CTA of the grid
    BY_WARP,  # for each warp of a CTA how often it has run each block
    BLOCK_COUNT,
    CURRENT_PLANE,  # of READERS: the current warp's, of its own CTA
    CURRENT_CTA,  # the linear index, plus one, of the CTA of the warp that runs
    COLUMNS,  # actors of a cluster
    PLANES,  # of READERS, in a CTA: a warp's, and with asynchronous units those of its operations
    LAST_READ,  # of each plane: the time of its last read
    PAGE_READING,  # of each page of shared memory: chunks that operations in flight read
    PAGE_TAG,  # ... the tag of its last write, if that wrote all of it; else 0
    PAGE_GENERIC,  # ... the time of its last write in the generic proxy
    PAGE_OWNER,  # ... who wrote it last
    PAGE_OTHERS,  # ... and up to which time others did
    FENCED_FLOORS,  # as FLOORS, of accesses that have passed a proxy fence
    FENCED_AT,  # for each warp its vector at its last fence, and at its last of the cluster; 0 if no arrival is relaxed
    OBSERVED_AT,  # ... what its relaxed waits have observed of its CTA, and of others; 0 if there are none
    MBARRIER_VECTORS,  # for each mbarrier, what its CTA passed on in this phase and in all before, and what others did
    CLUSTER_VECTORS,  # the same for the barrier of the cluster
    REMOTE,  # for each CTA and actor, the time of its last access to the shared memory of that CTA from another
    UPDATERS,  # of each warp and granule of shared memory: the time of its last atomic operation; 0 if there are none
    PAGE_UPDATED,  # of each page: the time of the last one
    CAPTURED,  # room for what bulk copies have read and not yet written
    CAPTURED_BYTES,
    CAPTURED_END,
    WRITE_MASKS,  # of each granule of shared memory: the lanes that executed its last write
    PARTIAL_READS,  # whether lanes of a warp were missing at a read of shared memory
    PARTIAL_TAGS,  # of each granule: time << 16 | warp of such a read
    PARTIAL_MASKS,  # ... and the lanes that executed all of them
    GLOBAL_WRITE_MASKS,  # the same of global memory: of each granule
    GLOBAL_READ_MASKS,  # of each 16 bytes
    CHAINS,  # of each granule of global memory, the list of its releases from the last one back; 0: none
    GLOBAL_WATCHED,  # of each granule, the last strong read
    ROW_STATES,  # of each row
    ROW_PAIRS,  # for each two warps, the version of the second's row that the first has taken over; then of its fences
    POOL,  # room for releases, their lists and copies of rows
    POOL_WORDS,
    POOL_END,
    PROGRESS,  # blocks that warps have run, but for polling loops
    STARVED,  # whether nothing else has been run for so long that lanes may go ahead of others that poll
    STRICT,  # whether lanes that execute an instruction together need not stay together
    COPY_COUNT,  # instructions of cp.async so far
    CLOCK,  # what the steps taken are ahead of the clock of a cluster, negative; each reading takes one of it
    LANES_ARRIVED,  # for each lane of each warp, when it last arrived at an mbarrier or released; 0 if there is neither
    LANES_SEEN,  # ... and up to which time what it did comes before what all lanes of its warp do
    HOST,  # the function that calls back into Python
    READ_MAP,  # ... and the one that reads a tensor map
    HOST_ACCESS,  # of an access that Python gets: its bytes, and HOST_GLOBAL if it is to global memory
    STACK,  # of functions that call themselves
    STACK_BYTES,  # of one warp
    POSITIONS,  # for each CTA of the grid, its place plus one among those that run together; 0 if it does not run
    GLOBAL_SCOPES,  # of each granule, the narrowest scope of its last strong writes; 0 if all have all blocks in them
    NEEDS_FENCE,  # in the strict check an mbarrier that copies complete on needs a fence behind its initialisation
    UNFENCED,  # how many mbarriers there are without it
    RANKS,  # CTAs of a cluster, which addresses may name; several clusters may run together
    UNWAITED,  # for each instruction, copies of threads that ended without a wait for them
    CLUSTER,  # the number of the cluster that runs, in the order in which they run
    CURRENT_RECORD,  # the record of the access that is checked
    SUSPECTS,  # rows of places where there may be a hazard; 0: a suspicion ends the run
    SUSPECT_COUNT,
    SUSPECTS_OF,  # how many of them each record has
    MARKED_SHARED,  # granules of more of them: bytes for those of a CTA,
    MARKED_GLOBAL,  # for those of global memory,
    MARKED_CLUSTERS,  # and for each cluster bits: it has such granules, a rule may be broken in it
    ARRIVALS_OF,  # for the end of each block the last cluster, plus one, that has a row
    FAULTS,  # rows of what is wrong; 0: one ends the run
    FAULT_COUNT,
    FAULTS_OF,  # for each record its last row, plus one
    FAULT_ENDS,  # whether an illegal access ends the run all the same
    TRACE,  # events, one behind the other, and zeros behind them; 0: none are recorded
    TRACE_END,
    TRACE_BEGAN,  # the end of the events of all clusters before
    TRACED_ACCESSES,  # of the cluster that runs
    WATCHED_SHARED,  # of each granule of shared memory, whether accesses to it are recorded: a byte
    WATCHED_GLOBAL,
    WATCHED_CLUSTERS,  # of each cluster, whether its accesses to shared memory are (1), and all that orders it is (2)
    FORCED,  # the block, plus one, that lanes run without those of their warp that it needs; 0: none
    PREREQUISITES,  # what the kernel before accesses: from, to and whether it writes; 0 if that is complete
    PREREQUISITE_COUNT,
    WAITED,  # for each warp of a cluster the time of its griddepcontrol.wait; 0: none yet
    RECORD_COUNT,  # behind the last record's number, instructions have numbers by their pc where records are named
    TURN,  # in lockstep, how often all warps in front of a block have run it
    TURN_BEGAN,  # ... before the cluster began
    ARRIVALS_PENDING,  # ... and whether warps have arrived at barriers in this turn, or exited: all at once
    ORIGINS,  # of each four bytes of shared memory: the pc, plus one, of the load from which undefined bits came
    TRACED_WRITE,  # where the last event of a write or an atomic operation begins
    STALE_ACCESS,  # functions of Python, where reads may be stale: of accesses and fences; 0: none
    STALE_EVENT,  # and of what barriers pass on
    RECORDED,  # of each instruction, whether recorders collect its accesses: a byte; 0: of none
    RECORD_SHARED,  # functions of Python for such accesses, of shared memory
    RECORD_LINE,  # and of global memory by copies
    READ_TAG,  # what a copy that reads global memory leaves there; 0: what the current warp does
    COUNTED_COPIES,  # with counters, of boxes
    COPY_OF_SECTOR,  # ... for each sector of global memory the last of them that touched it, int32
    GLOBAL_UNDEFINED,  # of each byte of global memory whether nobody has written it: a byte; 0: that is not looked for
    ARRIVALS_ASIDE,  # for each CTA, arrivals at barriers that are not events yet; 0: all are at once
    PHASES,  # how many phases of barriers have been complete whose arrivals are events
    TRACED_COPY,  # the number of the last copy of cp.async whose access is an event
    TRACED_PHASE,  # where the last event of an empty phase begins; -1: there is none of this cluster
    TIMED,  # addresses and bytes of all that holds times of the running cluster's actors, and no others
    TIMED_COUNT,
) = range(195)

IN_FLIGHT, OPAQUE, READ_IN_FLIGHT = 1, 2, 4
"""A granule: a copy in flight writes it; it belongs to an mbarrier; an operation in flight reads it."""
NOT_READABLE = IN_FLIGHT | OPAQUE

SCRATCH_BYTES = (1 << 17) + 1024
SCRATCH_POISON = 1 << 17
"""In the scratch: what lanes read whose access is illegal."""
SCRATCH_FAULTS, SCRATCH_WIDTHS = (1 << 17) + 256, (1 << 17) + 512
"""There too: offsets and widths of illegal accesses; or the lane that ends the launch, and its index or depth."""
SCRATCH_PLACES = 1 << 14
"""In the scratch: 32 offsets that an operation passes to a function."""
STALE_PLACES, STALE_WORDS, STALE_BYTES, STALE_DIFFER = (1 << 14) + 1024, (1 << 14) + 2048, 16, (1 << 14) + 1536
"""There too, of accesses whose reads may be stale: 32 addresses; for each lane so many bytes that it reads or writes;
and lanes whose place holds another lane's value now, as bits."""

SCRATCH_CHUNKS, SCRATCH_A, SCRATCH_RECORD, SCRATCH_B = 20480, 24576, 28672, 32768
"""In the scratch, for wgmma: where chunks lie, factors as float32, and a record."""
SCRATCH_EXPONENTS, SCRATCH_TILE = 98304, 106496
"""There too: the exponents of A, and room for the sums of a tile."""
SCRATCH_COUNTS = 65536
"""In the scratch: for each bank of shared memory how many words it delivers, and which."""

SCRATCH_REGIONS = {
    "an operation": (0, SCRATCH_PLACES),
    "places": (SCRATCH_PLACES, 8 * WARP),
    "stale places": (STALE_PLACES, 8 * WARP),
    "stale lanes": (STALE_DIFFER, 8),
    "stale bytes": (STALE_WORDS, STALE_BYTES * WARP),
    "chunks": (SCRATCH_CHUNKS, 8 * 16 * (256 // 8)),  # of 256 columns
    "A": (SCRATCH_A, 4 * 16 * 32),  # of a warp
    "record": (SCRATCH_RECORD, 4 * RECORD_WORDS),
    "B": (SCRATCH_B, 4 * 256 * 32),
    "counts": (SCRATCH_COUNTS, 8 * 32 * (1 + 32)),
    "exponents": (SCRATCH_EXPONENTS, 2 * 16 * 8 * 32),
    "tile": (SCRATCH_TILE, 1024),
    "poison": (SCRATCH_POISON, 256),
    "faults": (SCRATCH_FAULTS, 8 * WARP),
    "widths": (SCRATCH_WIDTHS, 8 * WARP),
}
"""Where each region of the scratch begins, and its bytes."""

HOST_GLOBAL = 1 << 8
"""In ``HOST_ACCESS``: the access is to global memory."""

PAGE_SHIFT = 10
"""Pages of shared memory, for which the checks keep the sum of what they know of their granules."""
READ_SHIFT, GLOBAL_PAGE_SHIFT = 4, 12
SEVERAL = (1 << 23) - 1
"""In place of a CTA: more than one."""
EVERY_WARP = 0xFF
"""In place of a warp's number: any of its cluster."""
OF_COPIES = 0x40
"""From this number on, in place of a warp's, copies that complete on the mbarriers of a CTA, by their order there."""

FORWARD, BACKWARD, DRAWN, TOGETHER = 0, 1, 2, 3
"""The order of a cluster's warps; together, all warps in front of the lowest block run that, one after the other."""

# ---- what may be a hazard: int64 words -------------------------------------------------------------------------------

IN_SHARED, IN_GLOBAL, IN_LOCAL, AT_ARRIVAL, AT_RULE, AT_UNIT = range(6)
"""Spaces, as rows and events have them; and in place of one, an arrival at a barrier (its block is the granule), an
instruction that may break a rule, and one beside which another may have broken one."""

SUSPECT_WORDS, MOST_SUSPECTS, SUSPECTS_OF_RECORD = 4, 1 << 16, 512
SU_RECORD, SU_SPACE, SU_GRANULE, SU_CLUSTER = range(4)

FAULT_WORDS, MOST_FAULTS = 44, 1 << 13
FA_RECORD, FA_KIND, FA_SPACE, FA_WARP, FA_LINEAR, FA_MASK, FA_WIDTH, FA_ORIGIN, FA_TURN, FA_BEFORE = range(10)
FA_OFFSETS = 10
"""The first fault of a kind, space and origin by each record: lanes as bits, the CTA's linear index, in lockstep the
turn of the cluster, the row before of the same record, plus one, and each lane's offset."""
FROM_GLOBAL = 1 << 30
"""In an origin, besides the pc: the bytes are of global memory that nobody has written."""
MISALIGNED, OUT_OF_BOUNDS, NEVER_SET, PARTIAL_WARP, NAMES_ABSENT, LEAVES_OUT, UNWRITTEN_READ, REACHED = range(8)
STORED_UNSET = 8
"""Illegal accesses; a register is used that was never set; lanes of a warp are missing; a member mask names lanes that
are not there, or leaves out one that is (of these two the offsets are masks, and the width the missing lanes); bytes of
shared memory are read that are not defined; what the load or the store at the pc below the origin has brought is used;
a register that was never set is stored to shared memory. Of uses of registers the space is which of the record's it
is."""

# ---- events: int64 words ---------------------------------------------------------------------------------------------

TRACE_WORDS = 1 << 23
EV_KIND, EV_WORDS, EV_WARP, EV_MASK, EV_PLACE, EV_TURN = range(6)
"""``EV_PLACE``: the pc of the instruction, or the block at whose end it is. ``EV_TURN``: in lockstep, the turn in which
all warps in front of a block run it."""
EVENT_WORDS = 9
TRACE_CLUSTER, TRACE_ACCESS, TRACE_ARRIVAL, TRACE_EXIT, TRACE_MEETING, TRACE_LANDING, TRACE_TRAP = range(7)
TRACE_STEP, TRACE_ADVANCE, TRACE_REGISTERS, TRACE_MAP, TRACE_PHASE = 7, 8, 9, 10, 11
TRACE_FENCE = -1
"""An instruction of :mod:`.steps`; asynchronous operations of one instruction land; registers that products work on are
used; a tensor map is read that a kernel may change; phases of a barrier order nothing (:mod:`.empty_phases`); behind
its accesses, an instruction is a fence of tensor maps."""
EV_MAP, EV_DESCRIPTOR = 6, 9
"""Of a tensor map, its place in global memory, and behind the other words its bytes."""
EV_NAME, EV_THREADS, EV_WAITS = 6, 7, 8
"""Of an arrival at a barrier."""
EV_TIMES = 8
"""Of empty phases how many there are, one behind the other; the name and the threads are those of an arrival."""
EV_GROUPS = EVENT_WORDS
"""Of lanes that meet, the members of each one's group."""
EV_OPERATION = 6
"""Of an instruction that issues asynchronous operations, their number, or -1; of those that land, theirs."""
EV_ROWS = EVENT_WORDS
"""Of an instruction, what its registers hold: 32 words for each."""
EV_COPY = 6
"""Of copies that land, the number of the instruction in the order of execution."""
EV_SPACE, EV_DOES, EV_WIDTH, EV_CHANGES, EV_VALUED, EV_NUMBER, EV_OFFSETS = 7, 8, 9, 10, 11, 12, 13
EV_VALUES = EV_OFFSETS + WARP
"""Of an access: lanes that change what is there, as bits; whether the values are there, 16 bytes a lane; of
copies the number."""
ACCESS_WORDS = EV_VALUES + 2 * WARP
READS_IT, WRITES_IT, UPDATES_IT, COPIES_TO_IT = 1, 2, 3, 4
ORDERS_IT = 8
"""Besides: a strong access, which may order threads. It is recorded wherever it is."""
SUSPICIOUS_PLACE, ORDERING_PLACE = 1, 2
"""Of a granule whose accesses are recorded, why: there may be a hazard; there was an access that may order threads."""
MATRIX_ROWS, TRANSPOSED_ROWS = 32, 33
"""In place of the bytes of an element: lanes write the rows of matrices of 16-bit elements, or their columns, from
registers of all lanes of the warp (stmatrix)."""

# ---- releases through global memory: int64 words ---------------------------------------------------------------------

ACQUIRES, RELEASES, OBSERVES, CONTINUES, SCOPE_SHIFT = 1, 2, 4, 8, 4
"""What a strong operation does, as bits: a reduction observes nothing, a write continues nothing. From SCOPE_SHIFT on,
its scope as one of :data:`warpsan.checks.orders.LEVELS`, that of the GPU at most."""

ROW_WORDS = 12
ROW_JOINED, ROW_MERGED, ROW_VERSION, ROW_SNAPSHOT, ROW_SEEN, ROW_FENCED, ROW_NEAR, ROW_REACH = range(8)
ROW_FENCES, ROW_OBSERVED, ROW_FENCES_AT = range(8, 11)
"""Of a warp's row: when the warp last joined a release, and when it last took over the row of another; how often it has
changed; its copy in the pool (0: none since then). Lists of releases that the warp has read since its last fence; and
what came before its last fence whose scope is the GPU, and before the last narrower one since then, with its scope. The
list of ``fence.sc`` of the GPU's scope that come before the warp, a list of such lists that it has observed, and when
one of the two has changed."""

RELEASE_TIME, RELEASE_WARP, RELEASE_ROW, RELEASE_USED, RELEASE_LINEAR = range(5)
"""A release: its time, its warp in the cluster, a copy of that warp's row (0: it was empty), whether a list has it;
from RELEASE_LINEAR on the linear index of each CTA of the cluster, and behind those the warp's vector."""

NODE_WORDS = 4
NODE_ITEM, NODE_BEFORE, NODE_SCOPE, NODE_REACH = range(4)
"""An element of a list, and the rest of it; the scope of the operation that added it, and that of the fence in front of
it, to which the element reaches."""
OF_FENCES = -1
"""In place of the latter: the element is no release, but a list of ``fence.sc`` that come before the operation."""

# ---- a warp: int64 words ---------------------------------------------------------------------------------------------

PART_WORDS = 8
PART_BLOCK, PART_MASK, PART_STATUS, PART_INFO, PART_FROM, PART_MORE = 0, 1, 2, 3, 4, 5
MOST_PARTS = 33
PARTS, LIVE, WARP_STEPS, WARP_CTA, WARP_NUMBER = 0, 1, 2, 3, 4
COPIES_FLYING = 5
"""Entries of cp.async in flight."""
WARP_LINEAR = 6
"""The linear index of the warp's CTA in the grid."""
PASSED, HELD_REGISTERS, PRODUCT_GROUPS, PRODUCT_COUNT = 7, 10, 11, 12
"""``PASSED``: with counters, lanes that passed a wait at once, which might have let others of the warp go ahead."""
BUSY_SETS, TOUCHED_SETS, FENCED = 13, 14, 15
"""Sets of registers that products in flight work on, and those accessed since the last wgmma.fence, as bits; whether
there was one."""
COPY_GROUPS = 16
"""For each lane the groups of cp.async that it has committed, int32."""
BULK_GROUPS = 32
"""For each lane the bulk groups that it has committed, int32."""
BUSY, MOST_SETS = 48, 62
"""For each set of registers that wgmma works on, the products in flight."""
LAST_EVENT = 110
"""Where the warp's last event begins in the trace, plus one; 0: there is none of this cluster."""
LAST_PHASE, NO_PHASE = 111, -1
"""The phase of a barrier that the warp has left with others, by its number, if it has had no event since."""
CLUSTER_ARRIVALS, CLUSTER_WAITS = 112, 128
"""For each lane its arrivals and its waits at the barrier of the cluster, int32."""
FIRST_PART = 144
WARP_WORDS = FIRST_PART + PART_WORDS * MOST_PARTS

# ---- an mbarrier: int64 words ----------------------------------------------------------------------------------------

MBARRIER_WORDS, MOST_MBARRIERS = 9, 64
MB_OFFSET, MB_VALID, MB_EXPECTED, MB_PENDING, MB_BYTES, MB_PHASE, MB_CTA, MB_TAG, MB_UNFENCED = range(9)
"""``MB_TAG``: with checks, the tag of its initialisation. ``MB_UNFENCED``: where that needs a fence, the thread of the
cluster, plus one, that has initialised it and has made none since."""
SPENT = 2
"""``MB_VALID`` of an mbarrier that all have dropped out of; 1 of others, 0 where there is none."""

# ---- a bulk copy in flight: int64 words ------------------------------------------------------------------------------

TRANSFER_WORDS, MOST_TRANSFERS = 24, 1 << 13  # of each CTA that runs together with others
TR_KIND, TR_SERIAL, TR_WARP, TR_LANE, TR_GROUP, TR_MAP, TR_CTA, TR_OFFSET, TR_MBARRIER, TR_BYTES = range(10)
TR_COORDINATES, TR_DATA, TR_TIME, TR_PC, TR_SOURCE, TR_STATE, TR_LINEAR, TR_COMBINE = 10, 16, 18, 19, 20, 21, 22, 23
"""Of the operation: its time for the checks, its instruction, where its data is in this process if that has been read,
bits of what is done, the linear index of the CTA that issued it, plus one, and how it combines elements with those of
global memory: bytes of an element << 16 | number of an operation + 1 (0: it overwrites them)."""
WRITTEN_OUT, WAITED_FOR = 1, 2
LANDED, LOADS, STORES, WORDS, ARRIVALS, WITHIN = 0, 1, 2, 3, 4, 5
"""Kinds: none any more, a copy to shared memory, a copy from there, words of a register, arrivals of lanes (bits in
TR_DATA) at an mbarrier when their copies of cp.async up to the one numbered TR_OFFSET have landed, a copy from one CTA
to another. A copy of plain bytes has 0 as its map, and the offset in global memory as its first coordinate."""
TR_ORIGIN, TR_ORIGIN_CTA, TR_READ_TIME = TR_COORDINATES, TR_COORDINATES + 1, TR_COORDINATES + 2
"""Of a copy within the cluster: where it reads, the CTA there, and for the checks the time of its reading."""

COPY_SHARED, COPY_FAR, COPY_PC, COPY_MANY, COPY_SIGNAL, COPY_CASTS = 0, 2, 4, 5, 6, 8
COPY_COMBINE, COPY_COORDINATES = 8, 9
"""Operands of the instructions that issue copies: row and offset of the address in shared memory (of a copy within the
cluster, the one that is written), and of what is on the other side (a tensor map, global memory, or the shared memory
that is read); the pc; the row of the number of bytes, or the number of axes; row and offset of the mbarrier's address;
of loads the row of the CTAs that a multicast writes to (16 bits), or -1; of others how elements are combined, as in
TR_COMBINE (of a box, where the list of the operations begins that combine elements of each type, or -1); the rows of
coordinates."""

# ---- a tensor map: int64 words ---------------------------------------------------------------------------------------

MAP_WORDS, MAP_RAW = 48, 28
MAP_BEGIN, MAP_AXES, MAP_ITEM, MAP_SWIZZLE, MAP_BYTES, MAP_FILL, MAP_KIND = range(7)
MAP_DIMS, MAP_STRIDES, MAP_STEPS, MAP_COUNTS = 8, 13, 18, 23
"""From MAP_RAW on, the bytes of the map as a kernel has them."""
COMBINED = ("u16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")
"""Types of elements that reductions combine: MAP_KIND is the place here, or -1."""
RAW_WORDS = 13

# ---- a wgmma in flight: int64 words ----------------------------------------------------------------------------------

PR_LIST, PR_GROUP, PR_A, PR_B, PR_KEEP, PR_TIME, PR_FRAGMENT = 0, 1, 2, 3, 4, 5, 8
"""Its list, the group it belongs to, descriptors, whether sums go on, the time of its issue for the checks, and behind
them A fragments of four warps."""
PRODUCT_WORDS, MOST_PRODUCTS = 8 + 4 * 4 * 16, 64

# ---- the list of a wgmma instruction: int32 words --------------------------------------------------------------------

(L_SET, L_HIDDEN, L_MANY, L_B, L_A, L_FRAGMENTS, L_SCALE, L_SIGN, L_LOAD_A, L_LOAD_B, L_PRODUCT) = (
    *range(6),
    *range(9, 14),
)
L_MAJOR_A, L_MAJOR_B, L_SET_A, L_OWN, L_OTHERS, L_COLUMNS, L_ROWS = 14, 15, 16, 17, 19, 21, 22
"""Its set of accumulators and their rows of sums; how many; rows of the descriptors (A: -1 where it is in registers,
whose rows follow), the guard that scales D, the sign; numbers of operations; whether K is contiguous; the set of the A
fragments, or -1; its own sets, and others that share registers with them, as bits of two words each; N; rows of D."""

# ---- a cp.async in flight, of one warp: int64 words ------------------------------------------------------------------

COPY_MASK, COPY_WIDTH, COPY_NUMBER, COPY_INSTRUCTION, COPY_TRACED = range(5)
COPY_GROUP, COPY_TARGET, COPY_SOURCE, COPY_SIZE = 8, 24, 56, 88
"""Lanes, bytes of a copy, how many were issued before, the instruction, whether the access is an event; for each lane
its group (int32), target and source (int64), and bytes to read (int64)."""
COPY_WORDS = 120
MOST_COPIES = 256
MANY_COPIES = 64
"""Entries of a warp's copies from which on those that have landed are left behind."""

READY, PARKED, AT_BARRIER, AT_CLUSTER, AT_MBARRIER, AT_WGMMA, FOR_REGISTERS = 0, 1, 2, 3, 4, 5, 6

# ---- the list of a frame of functions that call themselves: int32 words --------------------------------------------

FRAME_DEPTH, FRAME_LOCAL, FRAME_MOST, FRAME_BASE, FRAME_BYTES, FRAME_ROWS, FRAME_VARIABLES, FRAME_MOVING = range(8)
FRAME_ITEMS = 8
"""The row of how deep each lane is; bytes by which its local variables move at a call; how deep it may be; where its
frames begin in the stack of a warp, and their bytes; how many rows are saved, how many ``.param`` variables, and how
many rows have addresses that move. Behind that two words for each of these: the row and the bytes of an element (0: a
predicate), or the row of the address and the bytes of the variable."""

# ---- a barrier of a CTA: int64 words ---------------------------------------------------------------------------------

BARRIER_WORDS = 104
ARRIVED, GIVEN, KIND, SYNCTHREADS = 0, 1, 2, 3
"""Threads that have arrived in this phase, the number that completes it (0: all that are alive), 1 or 2 (reduction);
the block at whose end a ``__syncthreads()`` of this phase is (0: none came by one)."""
CAME = 4
"""From here on, for each warp of the CTA the lanes that have arrived in this phase."""
ARRIVED_AT, BEFORE_AT = 36, 68
"""With checks, for each warp of the CTA the time of its arrival in this phase, and in the phase before (0: none)."""
BARRIER_COUNT, NO_BARRIER = 17, 16
"""Those that there are, and behind them one for all names that no barrier has."""

# ---- special registers that depend on the warp or its CTA ------------------------------------------------------------

(TID_X, TID_Y, TID_Z, CTAID_X, CTAID_Y, CTAID_Z, WARPID, CTARANK, CLUSTERID_X, CLUSTERID_Y, CLUSTERID_Z) = range(11)
(CLUSTER_CTAID_X, CLUSTER_CTAID_Y, CLUSTER_CTAID_Z) = range(11, 14)
