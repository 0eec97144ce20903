"""The memory of native code besides the context, as structs: the program, warps, barriers and copies in flight."""

from __future__ import annotations

from warpsan.engine.layout import (
    MOST_AXES,
    MOST_PATHS,
    MOST_SETS,
    OPERANDS,
    RAW_WORDS,
    RECORD_WORDS,
    TENSOR_UNITS,
    WARP,
)
from warpsan.engine.structs import Address, NativeStruct, Ptr, i32, i64, inline

__all__ = [
    "MOST_WARPS",
    "BarrierState",
    "Block",
    "DoubledArrival",
    "GlobalMark",
    "HazardRow",
    "LaneMark",
    "Link",
    "LinkList",
    "MapFence",
    "MbarrierState",
    "Path",
    "ProductInFlight",
    "Reader",
    "Record",
    "Release",
    "ReleaseList",
    "Row",
    "RowCopy",
    "TensorMark",
    "TensorState",
    "TensorWords",
    "ThreadCopy",
    "TransferEntry",
    "Warp",
]

MOST_WARPS = 32
"""Warps of a CTA."""


class Record(NativeStruct):
    """One operation."""

    function: i32  # index into the table of operations
    guard: i32  # 0, or the row of a predicate plus 1, plus 2 if it is negated
    operands: Ptr[i32] = inline(RECORD_WORDS - OPERANDS)  # offsets of rows in the warp's registers, or numbers


class Block(NativeStruct):
    """Straight-line code."""

    first: i32  # range of its records, without the last
    last: i32
    size: i32  # its PTX instructions
    end: i32  # the kind of its end: one of the END_ numbers
    end_guard: i32
    target: i32
    collective: i32  # 1 if whole warps are needed, 2 if the lanes of a member mask are needed, otherwise 0
    members: i32  # the row of the member mask
    end_a: i32  # operands of the end
    end_b: i32
    end_c: i32
    end_d: i32
    end_e: i32
    end_pc: i32  # the number of the end's instruction
    end_token: i32  # whether a wait is for the phase of a state token, or a barrier is aligned
    polls: i32  # whether it is part of a polling loop (:mod:`warpsan.analysis.polling`); 2 if only memory can end it


class BarrierState(NativeStruct):
    """A barrier of a CTA."""

    arrived: i64  # threads that have arrived in this phase
    given: i64  # the number that completes it; 0: all live threads
    kind: i64  # 1 or 2 (reduction)
    syncthreads: i64  # whether threads have arrived by a ``__syncthreads()`` in this phase
    came: Ptr[i64] = inline(MOST_WARPS)  # lanes that have arrived in this phase, for each warp of the CTA
    arrived_at: Ptr[i64] = inline(MOST_WARPS)  # with checks, the time of each warp's arrival in this phase
    before_at: Ptr[i64] = inline(MOST_WARPS)  # ... and in the phase before; 0: none


class MbarrierState(NativeStruct):
    """An mbarrier of a CTA."""

    offset: i64
    valid: i64  # SPENT if all threads have dropped out of it, ENDED after its end, 1 for others; 0: no mbarrier
    expected: i64
    pending: i64
    pending_bytes: i64
    phase: i64
    cta: i64
    unfenced: i64  # the thread of the cluster, plus one, that has initialised it without a later fence, if it needs one
    initialised_by: i64  # the pc of its initialisation
    generic: i64  # whether a cp.async has signalled it, which writes in the generic proxy
    turn: i64  # the turn of lockstep of its last arrivals, and their record: such arrivals are at once
    turn_record: i64
    turn_pending: i64  # ... the pending arrivals before them
    turn_total: i64  # ... their number
    turn_warp: i64  # ... the first warp, and its lanes
    turn_lanes: i64


class HazardRow(NativeStruct):
    """A hazard: a broken rule, both parties, and the place (:mod:`~warpsan.engine.hazards`)."""

    rule: i64  # one of :mod:`~warpsan.engine.rules`
    record: i64  # the number of its record
    lanes: i64  # the lanes of the warp, as bits
    warp: i64  # the number of the warp in its CTA
    cta: i64  # the linear index of the CTA in the grid
    space: i64  # the state space, or another number that tells hazards of the rule and record apart
    origin: i64  # ... as does this; for undefined values, the pc plus one of the instruction that they come from
    offset: i64  # of the first lane's access, in bytes
    width: i64
    expected: i64  # numbers in the text of the rule
    actual: i64
    limit: i64
    other_pc: i64  # the instruction of the conflicting access; -1: none
    other_lanes: i64
    other_warp: i64
    other_cta: i64
    turn: i64  # in lockstep, the turn of the cluster; otherwise 0
    before: i64  # the previous row of its record, plus one; 0: none


class DoubledArrival(NativeStruct):
    """Lanes that wait at a barrier at which they have arrived in the same phase: a hazard if others wait forever."""

    row: Ptr[HazardRow] = inline(1)
    barrier: i64  # among those of all CTAs that run together
    complete: i64  # whether the phase is complete
    there: Ptr[i64] = inline(MOST_WARPS)  # then the lanes that arrived in it, for each warp of the CTA


class Path(NativeStruct):
    """Lanes of a warp at one block."""

    block: i64
    mask: i64
    status: i64
    info: i64  # the barrier, the phase or the registers that the lanes wait for
    mbarrier: MbarrierState  # ... or the mbarrier
    came_from: Block  # the block at whose end they wait
    more: i64  # the phase of the mbarrier
    since: i64  # the number of the wait, in the order in which they began


class Warp(NativeStruct):
    """The state of a warp."""

    path_count: i64
    live: i64  # lanes that have not exited
    steps: i64
    cta: i64  # among the CTAs that run together
    number: i64  # in its CTA
    copies_in_flight: i64  # entries of cp.async
    linear_cta: i64  # the linear index of its CTA in the grid
    passed_wait: i64  # with counters, lanes that passed a wait at once, possibly after other lanes of the warp
    held_registers: i64
    register_changes: i64  # instructions setmaxnreg that it has executed
    register_pc: i64  # the last of them
    product_groups: i64
    product_count: i64
    busy_sets: i64  # sets of registers of products in flight, as bits
    touched_sets: i64  # sets accessed since the last wgmma.fence, as bits
    fenced: i64  # whether there was a wgmma.fence
    tensor_waits: i64  # waits for loads from tensor memory
    copy_groups: Ptr[i32] = inline(WARP)  # groups of cp.async that each lane has committed
    bulk_groups: Ptr[i32] = inline(WARP)  # bulk groups that each lane has committed
    products_of_set: Ptr[i64] = inline(MOST_SETS)  # products in flight of each set of wgmma registers
    cluster_arrivals: Ptr[i32] = inline(WARP)  # arrivals of each lane at the barrier of the cluster
    cluster_waits: Ptr[i32] = inline(WARP)  # ... and its waits there
    paths: Ptr[Path] = inline(MOST_PATHS)


class FrameItem(NativeStruct):
    """A row of registers, with the bytes of an element (0: predicates); or a row of addresses, with the bytes of the
    variable, or of the address."""

    row: i32
    size: i32


class RecursionFrame(NativeStruct):
    """The frame of the functions of a call cycle, in the lists of a program."""

    depth: i32  # the row of each lane's depth
    local: i32  # bytes by which its local variables move at a call
    most: i32  # the largest depth
    base: i32  # the start of its frames in the stack of a warp
    size: i32  # bytes of a frame
    rows: i32  # the number of saved rows
    variables: i32  # ... of ``.param`` variables
    moving: i32  # ... of rows with addresses that move
    items: Ptr[FrameItem] = inline(1)  # of each of these


class MapWords(NativeStruct):
    """A tensor map (:mod:`~warpsan.engine.maps`)."""

    begin: i64  # offset of the tensor in the arena
    axes: i64
    item: i64  # bytes of an element
    swizzle: i64  # mask of the chunk of 16 bytes
    box_bytes: i64
    fill: Ptr[i64] = inline(1)  # the bytes of an element outside the tensor
    kind: i64  # index in COMBINED, or -1
    dims: Ptr[i64] = inline(MOST_AXES)
    strides: Ptr[i64] = inline(MOST_AXES)
    steps: Ptr[i64] = inline(MOST_AXES)
    counts: Ptr[i64] = inline(MOST_AXES)  # elements of a box
    raw: Ptr[i64] = inline(RAW_WORDS)  # the bytes of the map in a kernel's format


class TransferEntry(NativeStruct):
    """A bulk copy in flight."""

    kind: i64
    serial: i64
    warp: i64
    lane: i64
    group: i64
    tensor_map: MapWords  # 0 for plain bytes, whose offset in global memory is the first coordinate
    cta: i64
    offset: i64
    mbarrier: MbarrierState
    bytes: i64
    coordinates: Ptr[i64] = inline(8)  # within the cluster: the source, its CTA, with checks the time of the reading
    data: Ptr[i64] = inline(2)  # words of a register; or lanes that arrive, as bits
    time: i64  # for the checks
    pc: i64
    source: i64  # the address of the data in this process after the read
    state: i64  # WRITTEN_OUT and WAITED_FOR, as bits
    combine: i64  # bytes of an element << 16 | number of an operation + 1; 0: overwrite
    alike: i64  # the lanes that store the same bytes to the same place by the same instruction, as bits


class ThreadCopy(NativeStruct):
    """A cp.async in flight, of one warp."""

    mask: i64
    width: i64  # bytes of a copy
    number: i64  # of earlier copies
    pc: i64
    group: Ptr[i32] = inline(WARP)
    target: Ptr[i64] = inline(WARP)
    source: Ptr[i64] = inline(WARP)
    bytes: Ptr[i64] = inline(WARP)  # to read


class ProductWords(NativeStruct):
    """A wgmma.mma_async, in the lists of a program."""

    result_set: i32  # the number of its set of accumulators
    hidden: i32  # the rows of their sums
    many: i32  # their number
    b: i32  # the row of the descriptor of B
    a: i32  # ... of A; -1 if A is in registers
    fragments: Ptr[i32] = inline(4)  # rows of A
    scale: i32  # the guard that scales D
    sign: i32  # whether the product is subtracted
    load_a: i32  # numbers of operations
    load_b: i32
    product: i32
    major_a: i32  # whether K is contiguous
    major_b: i32
    factor_set: i32  # the number of the set of the A fragments, or -1
    own: Ptr[i32] = inline(2)  # its own sets, as bits
    others: Ptr[i32] = inline(2)  # ... and others that share registers with them
    columns: i32  # N
    rows: Ptr[i32] = inline(1)  # of D


class ProductInFlight(NativeStruct):
    """A wgmma in flight."""

    words: ProductWords
    group: i64
    a: i64  # the descriptors
    b: i64
    keep: i64  # whether sums continue
    time: i64  # of its issue, for the checks
    pc: i64
    unused: i64  # fragments begin at a multiple of 64 bytes, and so do products
    fragments: Ptr[i64] = inline(4 * 4 * 16)  # the A fragments of four warps


class TensorState(NativeStruct):
    """Allocations of a CTA's tensor memory."""

    sizes: Ptr[i64] = inline(TENSOR_UNITS)  # per 32 columns: those of the allocation, 0 if they are free
    begins: Ptr[i64] = inline(TENSOR_UNITS)  # ... the first column of the allocation
    pcs: Ptr[i64] = inline(TENSOR_UNITS)  # ... its instruction
    warps: Ptr[i64] = inline(TENSOR_UNITS)  # ... its warp among the resident ones
    relinquished: i64  # whether the CTA has given up the right to allocate


class TensorMark(NativeStruct):
    """The last write to 16 lanes of a column of tensor memory."""

    tag: i64
    issued: i64  # the clock of the warp that issued it
    party: i64  # the number of its record << 16 | its warp among the resident ones
    kind: i64  # one of :data:`~warpsan.engine.layout.BY_STORE` and others


class TensorWords(NativeStruct):
    """The list of a tcgen05.mma or tcgen05.cp: rows of operands and numbers of operations."""

    tensor: i32  # row of the address of D, or of the target of a copy
    tensor_offset: i32
    a: i32  # row of A's descriptor, or of its address in tensor memory
    a_offset: i32
    a_in_tensor: i32
    b: i32
    descriptor: i32  # row of the instruction descriptor
    keep: i32  # row of the predicate, with its negation in bit 1
    scale: i32  # D is divided by two to this power
    lanes: Ptr[i32] = inline(8)  # rows of the lanes that are not written; -1: none
    group: i32  # CTAs
    halves: i32  # parts of K that the sums take one after the other
    pc: i32
    scale_a: i32  # row of the address of A's scales
    scale_a_offset: i32
    scale_b: i32
    scale_b_offset: i32
    scales: i32  # of a row along K; 0: none
    scaling: Ptr[i32] = inline(2)  # operations, by format of the scales
    loads: Ptr[i32] = inline(16)  # operations, by type of elements and whether it is K-major
    fragments: Ptr[i32] = inline(8)  # ... by type, for A in tensor memory
    products: Ptr[i32] = inline(128)  # ... by types of A, B and D


class RowCopy(NativeStruct):
    """A copy of a warp's row."""

    times: Ptr[i64] = inline(1)  # of each warp of the grid


class Release(NativeStruct):
    """A release through global memory; the warp's vector follows ``linear_ctas``."""

    time: i64
    warp: i64  # in the cluster
    row: RowCopy  # a copy of that warp's row; 0: empty
    used: i64  # whether a list contains it
    linear_ctas: Ptr[i64] = inline(1)  # the linear index of each CTA of the cluster


class ReleaseList(NativeStruct):
    """An element of a list of releases, and the rest of the list."""

    item: Address  # a release; in lists of fences and observations, a list
    before: ReleaseList
    scope: i64  # of the operation that added it
    reach: i64  # the scope of the fence before it; OF_FENCES: the item is a list of ``fence.sc`` before the operation


class LaneMark(NativeStruct):
    """The last access of a kind to a granule with absent lanes."""

    key: i64  # the space, the kind and the granule

    time: i64
    party: i64
    mask: i64  # the lanes that come after it in program order
    step: i64  # the number of its instruction's execution
    several: i64  # whether it stands for several lanes
    cluster: i64  # the number of its cluster plus one; 0: no access


class MapFence(NativeStruct):
    """A fence of the tensor map proxy, or an element of a list of releases."""

    before: MapFence  # the one before it; 0: none
    target: MapFence  # of an element: the release
    warp: i64  # among the resident ones
    cta: i64  # the linear index of its CTA in the grid
    cluster: i64  # the number of its cluster
    time: i64
    scope: i64
    place: i64  # of an acquire, the offset of the map in global memory; -1 for a release
    releases: MapFence  # of an acquire, the list of releases before it
    vector: Ptr[i64]  # that of its warp


class GlobalMark(NativeStruct):
    """An access of a kind to a granule of global memory."""

    tag: i64  # 0: none
    party: i64
    info: i64  # of a strong access its scope, and flags (:mod:`.global_races`)
    before: GlobalMark  # an earlier one that does not come before it; 0: none


class Link(NativeStruct):
    """A strong write of a place, for the advice about races."""

    before: Link  # the earlier write that it continues; 0: none
    warp: i64  # among the resident ones
    cta: i64  # the linear index of its CTA in the grid
    time: i64
    scope: i64
    fence: i64  # the scope of the widest fence before it, or of its own release, plus one; 0: none


class LinkList(NativeStruct):
    """Strong writes that a warp has read."""

    links: Link
    scope: i64  # of the read
    before: LinkList


class Reader(NativeStruct):
    """A warp, as a reader and writer of links."""

    seen: LinkList
    acquired: i64  # the scope of the widest fence since its last read of a link, plus one; 0: none
    fence: i64  # ... and of its widest fence that releases


class Row(NativeStruct):
    """Operations of the grid that happen before those of a warp."""

    joined: i64  # the time at which the warp last joined a release
    merged: i64  # ... and last merged the row of another warp
    version: i64
    snapshot: RowCopy  # its copy in the pool; 0: none since the last change
    seen: ReleaseList  # releases that the warp has read since its last fence
    fenced: Release  # its past at its last fence of GPU scope
    near: Release  # ... and at the last narrower fence since then
    reach: i64  # the scope of that fence
    fences: ReleaseList  # the ``fence.sc`` of GPU scope before the warp
    observed: ReleaseList  # lists of these that it has observed
    fences_at: i64  # the time of the last change of the two
