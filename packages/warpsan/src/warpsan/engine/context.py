"""The context: the state of one thread's native code, and the addresses of all its memory.

Fields are 64 bits wide. An address of 0 is that of memory that the launch does not need.
"""

from __future__ import annotations

from warpsan.engine.memory import (
    BarrierState,
    Block,
    DoubledArrival,
    GlobalMark,
    HazardRow,
    LaneMark,
    Link,
    LinkList,
    MapFence,
    MapWords,
    MbarrierState,
    ProductInFlight,
    Reader,
    Record,
    Row,
    TensorMark,
    TensorState,
    ThreadCopy,
    TransferEntry,
    Warp,
)
from warpsan.engine.structs import Address, NativeStruct, Ptr, i32, i64, u8

__all__ = ["Context"]


class Context(NativeStruct):
    """The context of one thread."""

    table: Ptr[i64]  # addresses of the operations' functions
    records: Ptr[Record]
    blocks: Ptr[Block]
    registers: Address  # of all warps of a cluster
    register_bytes: i64  # of one warp
    template: Address  # their initial values
    shared: Address  # of all CTAs of a cluster
    shared_stride: i64
    shared_limit: i64
    arena: Address  # the address of the arena in this process
    extents: Ptr[i64]  # pairs of offsets in the arena
    extent_count: i64
    local: Address
    local_stride: i64
    local_limit: i64
    warps: Ptr[Warp]  # the states of all warps of a cluster
    warp_count: i64  # of one CTA
    cta_count: i64  # of one cluster, or of a cooperative launch
    threads: i64  # of one CTA
    ctas: Ptr[i64]  # linear indices of the launch's CTAs, by cluster
    specials: Ptr[i32]  # (kind, row) of special registers to fill in
    special_count: i64
    start: i64  # the first block
    most_steps: i64
    lanes_by_block: Ptr[i64]
    warps_by_block: Ptr[i64]
    steps_taken: i64
    barriers: Ptr[BarrierState]
    wait_count: i64
    arrived_by: Ptr[i32]  # with checks, per barrier and thread, the block at whose end it arrived in this phase
    scratch: Address  # working memory of operations
    places: Ptr[i64]  # per lane, the offset of an access that is checked, counted or recorded
    fault_offsets: Ptr[i64]  # ... of an access with a hazard
    fault_widths: Ptr[i64]  # ... its bytes
    ended_by: i64  # the lane that ends the launch, or with UNMODELLED the pc
    end_number: i64  # its index or depth, or with UNMODELLED what is not modelled
    current: i64  # the index of the warp that runs
    current_warp: Warp
    current_shared: Address  # the shared memory of its CTA
    current_local: Address
    current_live: i64  # its lanes that have not exited
    current_pc: i64  # record at which a warp gave up; or block, for too many steps or a wrong index
    grid_x: i64
    grid_y: i64
    grid_z: i64
    block_x: i64
    block_y: i64
    block_z: i64
    cluster_x: i64
    cluster_y: i64
    cluster_z: i64
    order: i64  # FORWARD, BACKWARD or DRAWN
    seed: i64
    draw: i64  # the random state of a cluster
    early: i64  # whether asynchronous copies land at once
    copies: Ptr[ThreadCopy]  # in flight, MOST_COPIES a warp
    checked: i64  # whether the checks are on
    actors: i64  # words of a vector: one per actor of a cluster; with asynchronous units, in both proxies
    time: i64  # counts releases and asynchronous operations; restarts between clusters (:data:`layout.LAST_TIME`)
    time_limit: i64  # the last time of a run; a cluster that begins beyond half of it restarts the clock
    clocks: Ptr[i64]  # per warp the time of its last release, per other actor that of its last operation
    vectors: Ptr[i64]  # per warp and actor, the time up to which the actor's accesses come before the warp's
    floors: Ptr[i64]  # per warp, a time up to which the accesses of all other actors come before its own
    released: Ptr[i64]  # per barrier of each CTA, the vector of the threads that have arrived
    granule_shift: i64  # of shared memory
    granules: i64  # of a CTA
    writers: Ptr[i64]  # per granule: time << 16 | warp
    readers: Ptr[i32]  # per warp, or its operations, and granule: time
    flying: Ptr[i32]  # per granule: IN_FLIGHT, OPAQUE, and READ_IN_FLIGHT for each operation that reads it
    written: Ptr[u8]  # per byte of shared memory: a bit
    written_bytes: i64  # of a CTA
    pages: i64  # of a CTA
    page_written: Ptr[i64]  # per page: the time of its last write
    page_read: Ptr[i64]  # ... the time of its last read
    page_flying: Ptr[i64]  # ... unreadable granules: copies in flight write them, or an mbarrier is there
    page_full: Ptr[i64]  # ... whether all of it has been written
    global_shift: i64  # granules of global memory
    global_writers: Ptr[i64]  # per granule: (CTA + 1) << 40 | time << 8 | number of the warp in the CTA
    global_readers: Ptr[i64]  # per 16 bytes
    global_pages: Ptr[u8]  # per page: PAGE_WRITTEN, and PAGE_STRONG after strong operations
    mbarriers: Ptr[MbarrierState]  # of each CTA, MOST_MBARRIERS
    transfers: Ptr[TransferEntry]  # bulk copies in flight, in the order of their issue
    transfer_first: i64
    transfer_count: i64
    transfer_room: i64  # the most bulk copies in flight
    transfer_serial: i64
    copies_overlap: i64  # whether copies in flight have written the same place
    tensor_maps: Ptr[MapWords]
    tensor_map_count: i64
    cluster_arrived: Ptr[i64]  # per running cluster: threads that have arrived at its barrier
    cluster_phase: Ptr[i64]
    register_limit: i64  # of a CTA, for setmaxnreg
    registers_before: i64
    lists: Ptr[i32]  # of wgmma instructions
    products: Ptr[ProductInFlight]  # wgmma in flight, MOST_PRODUCTS a warpgroup
    global_strong: Ptr[i64]  # per granule, the last atomic operation; 0 if the kernel has none
    # per warp of a cluster, the time up to which each warp of the grid comes before it; 0 if none does
    grid_rows: Ptr[i64]
    grid_warps: i64
    counting: i64  # whether traffic is counted
    sectors: Ptr[i64]  # per instruction, the sectors that it took, and the fewest possible
    wavefronts: Ptr[i64]
    touched: Ptr[u8]  # sectors that were read, followed by those that were written
    touched_bytes: i64
    issued: Ptr[i64]  # warp instructions of each CTA of the grid
    by_warp: Ptr[i64]  # per warp of a CTA, the number of runs of each block
    block_count: i64
    current_plane: Ptr[i32]  # `readers` plane of the current warp, of its own CTA
    current_cta: i64  # linear index, plus one, of the current warp's CTA
    columns: i64  # actors of a cluster
    planes: i64  # `readers` planes of a CTA: one per warp, and with asynchronous units one for its operations
    last_read: Ptr[i64]  # per plane: the time of its last read
    page_reading: Ptr[i64]  # per page of shared memory: chunks that operations in flight read
    page_tag: Ptr[i64]  # ... the tag of its last write, if it wrote the whole page; otherwise 0
    page_generic: Ptr[i64]  # ... the time of its last write in the generic proxy
    page_owner: Ptr[i64]  # ... its last writer
    page_others: Ptr[i64]  # ... the time up to which other actors wrote it
    fenced_floors: Ptr[i64]  # as `floors`, for accesses that have passed a proxy fence
    # per warp, its vectors at its last fence and its last cluster fence; 0 without relaxed arrivals
    fenced_at: Ptr[i64]
    # ... observations of its relaxed waits, of its CTA and of others; 0 without relaxed waits
    observed_at: Ptr[i64]
    # per mbarrier, vectors of its own CTA and of others: of this phase, and of all before
    mbarrier_vectors: Ptr[i64]
    cluster_vectors: Ptr[i64]  # the same for the barrier of the cluster
    remote: Ptr[i64]  # per CTA and actor, the time of its last access to the shared memory of that CTA from another
    # per warp and granule of shared memory, the time of its last atomic operation; 0 without any
    updaters: Ptr[i32]
    page_updated: Ptr[i64]  # per page, the time of the last atomic operation
    captured: Address  # buffer for data that bulk copies have read and not yet written
    captured_bytes: i64
    captured_end: i64
    write_masks: Ptr[i32]  # per granule of shared memory: the lanes that executed its last write
    partial_reads: i64  # whether lanes of a warp were absent at a read of shared memory
    partial_tags: Ptr[i64]  # per granule: time << 16 | warp of such a read
    partial_masks: Ptr[i32]  # ... and the lanes that executed all such reads
    global_write_masks: Ptr[i32]  # the same for global memory, per granule
    global_read_masks: Ptr[i32]  # per 16 bytes
    chains: Ptr[i64]  # per granule of global memory, the list of its releases, the last one first; 0: none
    global_watched: Ptr[i64]  # per granule, the last strong read
    row_states: Ptr[Row]  # per row
    # per pair of warps, the version of the second's row that the first has merged; then of its fences
    row_pairs: Ptr[i64]
    pool: Ptr[i64]  # releases, their lists and copies of rows
    pool_words: i64
    pool_end: i64
    progress: i64  # blocks that warps have run, without polling loops
    starved: i64  # whether polling has lasted so long that lanes may pass other lanes that poll
    strict: i64  # whether lanes that execute an instruction together need not stay together
    copy_count: i64  # instructions of cp.async so far
    clock: i64  # steps ahead of the clock of a cluster, negative; each reading adds one
    # per lane of each warp, the time of its last arrival at an mbarrier or release; 0 without these
    lanes_arrived: Ptr[i64]
    lanes_seen: Ptr[i64]  # ... and the time up to which its accesses come before those of all lanes of its warp
    host: Address  # the function that calls back into Python
    read_map: Address  # ... and the function that reads a tensor map
    host_access: i64  # bytes of an access that Python receives, and HOST_GLOBAL if it is to global memory
    stack: Address  # of recursive functions
    stack_bytes: i64  # of one warp
    positions: Ptr[i32]  # per CTA of the grid, its place plus one among the resident CTAs; 0 if it does not run
    # per granule, the narrowest scope of its last strong writes; 0 if all contain all blocks
    global_scopes: Ptr[u8]
    needs_fence: i64  # strict check: an mbarrier that copies complete on needs a fence after its initialisation
    unfenced: i64  # the number of mbarriers without this fence
    cluster_size: i64  # CTAs of a cluster, for addresses; several clusters may run together
    unwaited: Ptr[i64]  # per instruction, copies of threads that ended without a wait for them
    cluster: i64  # number of the running cluster, in the order in which they run
    current_record: Record  # the record of the access that is checked
    hazards: Ptr[HazardRow]  # rows of hazards, and one more
    hazard_room: i64  # the most rows; 0: a hazard ends the run
    hazard_count: i64
    hazards_of: Ptr[i32]  # per record, its last row plus one
    doubled: Ptr[DoubledArrival]  # of the running cluster; with rows of hazards
    doubled_count: i64
    illegal_ends: i64  # whether an illegal access ends the run in any case
    forced: i64  # the block, plus one, that lanes run without required lanes of their warp; 0: none
    prerequisites: Ptr[i64]  # accesses of the kernel before: from, to and whether it writes; 0 if that is complete
    prerequisite_count: i64
    waited: Ptr[i64]  # per warp of a cluster, the time of its griddepcontrol.wait; 0: none yet
    record_count: i64  # instructions have numbers from here on, by their pc, in place of records
    turn: i64  # in lockstep, the number of times that all warps at a block have run it
    turn_began: i64  # ... before the cluster began
    arrivals_pending: i64  # ... and whether warps have arrived at barriers in this turn, or exited: all at once
    # per four bytes of shared memory: the pc, plus one, of the load that undefined bits came from
    origins: Ptr[i32]
    recorded: Ptr[u8]  # per instruction, whether recorders collect its accesses: a byte; 0: none
    record_shared: Address  # Python functions for such accesses, of shared memory
    record_line: Address  # and of global memory by copies
    read_tag: i64  # the tag of a copy that reads global memory; 0: that of the current warp
    counted_copies: i64  # with counters, copies of boxes
    copy_of_sector: Ptr[i32]  # ... per sector of global memory, the last copy that touched it, int32
    global_undefined: Ptr[u8]  # per byte of global memory, whether it is unwritten: a byte; 0: no detection
    flights_checked: i64  # whether the async check reports accesses to memory that operations in flight use
    values_count: i64  # whether writes of the stored value race
    # the parties of accesses to shared memory (:mod:`~warpsan.engine.races`), if rows of hazards are kept: per granule,
    write_parties: Ptr[i64]
    flight_parties: Ptr[i64]  # ... of the cp.async in flight that was the last to write; 0: none
    read_parties: Ptr[i32]  # ... and per element of `readers`, `updaters` and `watchers`, only the number of the record
    update_parties: Ptr[i32]
    watch_parties: Ptr[i32]
    watchers: Ptr[i32]  # as `updaters`, the time of the last strong read; 0 without any
    remote_parties: Ptr[i64]  # ... per element of `remote`
    shared_chains: Ptr[i64]  # as `chains`, per granule of shared memory
    lane_marks: Ptr[LaneMark]  # a hash table (:mod:`~warpsan.engine.lane_races`)
    global_marks: Ptr[GlobalMark]  # per kind of access (:mod:`~warpsan.engine.global_races`) and granule
    global_kinds: i64
    global_granules: i64
    map_fences: Ptr[MapFence]  # (:mod:`~warpsan.engine.map_fences`)
    map_fence_count: i64
    map_fence_room: i64  # 0: none are kept
    map_vectors: Ptr[i64]
    map_releases: MapFence  # the last one
    map_acquires: MapFence
    marks_after: Ptr[GlobalMark]  # further ones
    mark_count: i64
    mark_room: i64
    lane_step: i64
    lanes_known: Ptr[
        i32
    ]  # per warp, lane and other lane of the warp, the time up to which the other's accesses come first
    # for advice (:mod:`~warpsan.engine.missing`): per CTA, CTA of the barrier, and kind, the time of an arrival,
    weak_arrivals: Ptr[i64]
    weak_waits: Ptr[i64]  # per warp, what its last wait lacked
    links: Ptr[Link]  # strong writes,
    link_count: i64
    link_room: i64  # the most of them; 0: none are kept
    global_links: Ptr[i64]  # per granule of global memory, the last one
    shared_links: Ptr[i64]  # ... and of shared memory
    seen_links: Ptr[LinkList]  # those that warps have read
    seen_count: i64
    readers_of_links: Ptr[Reader]  # per warp
    pcs: Ptr[i32]  # the pc of each record, followed by those of the instructions
    landed: Ptr[i64]  # per actor, the time of the last copy that has landed and signalled an mbarrier
    step_began: i64  # the time before the copies of one instruction
    tensor_memory: Address  # of each CTA; 0 without instructions on it
    tensor_states: Ptr[TensorState]  # of each CTA
    tensor_marks: Ptr[TensorMark]  # per CTA and granule, the last write
    # per CTA, warp or its operations, and granule, the time of the last read
    tensor_reads: Ptr[i64]
    tensor_readers: Ptr[i32]  # ... and the number of its record, if rows of hazards are kept
    # per warp and load from tensor memory, the waits before its last execution, plus one
    tensor_pending: Ptr[i64]
    tensor_load_count: i64
    tensor_load_pcs: Ptr[i32]
    tensor_actors: i64  # the first of the actors that are the loads, and then the stores, of each warp
    tensor_waits_checked: i64  # whether registers of loads need a wait for these
    # if fences of tensor memory are checked, the part of a vector with what passed one before a synchronisation
    tensor_part: i64
    tensor_after: Ptr[i64]  # ... per warp and actor, what also passed one after it
    commits: i64  # arrivals of tcgen05.commit so far
    committed: Ptr[i64]  # per place, whether such an arrival in flight uses it
    commit_vectors: Ptr[i64]  # ... what comes before it
    tensor_began: i64  # the time at which the cluster began: earlier writes do not count
    shared_columns: i64  # actors that access shared memory
    timed: Ptr[i64]  # addresses and bytes of all arrays with times of only the running cluster's actors
    timed_count: i64
