"""Tensor memory: its allocation, the moves between it and registers, and their checks: machine code
(:mod:`~warpsan.engine.translate`).

A CTA has 128 lanes of 512 columns of 32 bits (PTX ISA, "Tensor Memory"). A warp accesses the 32 lanes of its number
modulo 4 ("Access restrictions"). Loads and stores run asynchronously until the warp waits for them: each warp's loads
are one actor of the checks, and its stores another. Operations of the tensor cores (:mod:`.tensor_products`) belong to
the actor of the operations of the warp that issues them.
"""

from __future__ import annotations

from warpsan.engine.clocks import operation_time, vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.layout import (
    BY_COPY,
    BY_STORE,
    EVERY_LANE,
    LEFT_OUT,
    TENSOR_BYTES,
    TENSOR_COLUMNS,
    TENSOR_GRANULES,
    TENSOR_LANES,
    TENSOR_UNIT,
    TENSOR_UNITS,
)
from warpsan.engine.memory import HazardRow, Record, TensorMark
from warpsan.engine.rules import (
    ADDRESSES_DIFFER,
    FREES_USED,
    NEVER_FREED,
    NEVER_WRITTEN,
    NO_COLUMNS,
    NO_FENCE_AFTER_SYNC,
    NO_FENCE_BEFORE_SYNC,
    NOT_ALLOCATED,
    NOT_ITS_COLUMNS,
    NOT_ITS_LANES,
    READS_PRODUCT,
    READS_STORE,
    STORES_PRODUCT,
    STORES_READ,
    STORES_STORED,
    USES_LOADED,
    WITHOUT_PERMIT,
    WRONG_COLUMNS,
)
from warpsan.engine.suspects import act_for, current_instruction
from warpsan.engine.tags import actor_of_tag, shared_tag, time_of_tag
from warpsan.engine.unit_addresses import check_shared, offset_of
from warpsan.engine.watch import write_shared
from warpsan.engine.words import copy, fill, load32, load64, store32

__all__ = [
    "allocate_columns",
    "begin_tensor_memory",
    "cell",
    "check_columns",
    "check_sums",
    "fence_tensor",
    "free_columns",
    "leaked_columns",
    "load_tensor",
    "look_at_loaded",
    "mark_tensor_write",
    "read_tensor",
    "relinquish_permit",
    "store_tensor",
    "tensor_hazard",
    "wait_for_tensor",
    "write_tensor",
]

_SPLIT = 4


def begin_tensor_memory(context: Context) -> None:
    """A cluster begins: no column is allocated."""
    if context.tensor_memory == 0:
        return
    context.tensor_began = context.time
    for cta in range(context.cta_count):
        state = context.tensor_states[cta]
        for unit in range(TENSOR_UNITS):
            state.sizes[unit] = 0
        state.relinquished = 0
    for k in range(context.tensor_load_count * context.warp_count * context.cta_count):
        context.tensor_pending[k] = 0


def cell(context: Context, cta: int, lane: int, column: int) -> int:
    """The address of a cell in this process."""
    return context.tensor_memory + TENSOR_BYTES * cta + 4 * (TENSOR_LANES * column + lane)


def tensor_hazard(context: Context, rule: int, lanes: int, column: int, columns: int) -> HazardRow:
    """A row for a hazard of the current warp at columns of tensor memory."""
    row = hazard_row(context, context.current_record, rule, lanes)
    row.offset = column
    row.width = columns
    return row


def same_in_warp(context: Context, row: int, mask: int) -> int:
    """All lanes must give one address or number. Returns a status."""
    for lane in range(32):
        if load32(row + 4 * lane) != load32(row):
            return add_hazard(context, tensor_hazard(context, ADDRESSES_DIFFER, mask, 0, 0))
    return 0


# ---- allocation ------------------------------------------------------------------------------------------------------


def allocate_columns(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.alloc``: operands are the row and offset of the place for the address, the row of the number of
    columns, and the pc. A request for more columns than are free is a hazard: no other warp's end of an allocation is
    awaited."""
    current_instruction(context, record.operands[3])
    status = same_in_warp(context, registers + record.operands[2], mask)
    if status != 0:
        return status
    wanted = load32(registers + record.operands[2])
    state, cta = context.tensor_states[context.current_warp.cta], context.current_warp.cta
    if wanted < TENSOR_UNIT or wanted > TENSOR_COLUMNS or wanted & wanted - 1 != 0:
        return add_hazard(context, tensor_hazard(context, WRONG_COLUMNS, mask, 0, wanted))
    if state.relinquished != 0:
        status = add_hazard(context, tensor_hazard(context, WITHOUT_PERMIT, mask, 0, wanted))
        if status != 0:
            return status
    units = wanted // TENSOR_UNIT
    first = 0
    while first < TENSOR_UNITS and are_free(context, cta, first, units) == 0:
        first += units
    if first >= TENSOR_UNITS:
        return add_hazard(context, tensor_hazard(context, NO_COLUMNS, mask, 0, wanted))
    for unit in range(first, first + units):
        state.sizes[unit] = wanted
        state.begins[unit] = first * TENSOR_UNIT
        state.pcs[unit] = record.operands[3]
        state.warps[unit] = context.current
    fill(cell(context, cta, 0, first * TENSOR_UNIT), 0xFF, 4 * TENSOR_LANES * wanted)
    address = load64(registers + record.operands[0]) + record.operands[1]
    status = check_shared(context, 0, address, 4, 4)
    if status != 0:
        return 0 if status == LEFT_OUT else status
    offset = offset_of(address)
    context.places[0] = offset
    if context.checked != 0:
        status = write_shared(context, cta, 1, EVERY_LANE, offset, offset, 4)
    store32(context.current_shared + offset, first * TENSOR_UNIT)
    return status


def are_free(context: Context, cta: int, first: int, units: int) -> int:
    """Whether units of columns are free."""
    for unit in range(first, first + units):
        if context.tensor_states[cta].sizes[unit] != 0:
            return 0
    return 1


def free_columns(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.dealloc``: operands are the rows of the address and of the number of columns, and the pc."""
    current_instruction(context, record.operands[2])
    status = same_in_warp(context, registers + record.operands[0], mask)
    if status != 0:
        return status
    column, wanted = load32(registers + record.operands[0]), load32(registers + record.operands[1])
    cta = context.current_warp.cta
    state, unit = context.tensor_states[cta], column // TENSOR_UNIT
    legal = column >= 0 and column < TENSOR_COLUMNS and wanted > 0
    if not legal or state.sizes[unit] != wanted or state.begins[unit] != column:
        return add_hazard(context, tensor_hazard(context, NOT_ITS_COLUMNS, mask, column, wanted))
    for group in range(TENSOR_LANES // 16):
        status = write_tensor(context, FREES_USED, mask, cta, group, 1, column, wanted, 0)
        if status != 0:
            return status
    for k in range(unit, unit + wanted // TENSOR_UNIT):
        state.sizes[k] = 0
    return 0


def relinquish_permit(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.relinquish_alloc_permit``."""
    context.tensor_states[context.current_warp.cta].relinquished = 1
    return 0


def leaked_columns(context: Context) -> int:
    """All threads have exited: columns that are still allocated are a hazard of their allocation. Returns a status."""
    for cta in range(context.cta_count if context.tensor_memory != 0 and context.checked != 0 else 0):
        state = context.tensor_states[cta]
        for unit in range(TENSOR_UNITS):
            if state.sizes[unit] != 0 and state.begins[unit] == unit * TENSOR_UNIT:
                act_for(context, state.warps[unit])
                current_instruction(context, state.pcs[unit])
                row = tensor_hazard(context, NEVER_FREED, EVERY_LANE, state.begins[unit], state.sizes[unit])
                status = add_hazard(context, row)
                if status != 0:
                    return status
    return 0


def check_columns(context: Context, cta: int, column: int, columns: int, lanes: int) -> int:
    """Columns that an instruction accesses must be allocated. Returns 0, 1 if it is to be left out, or a status that
    ends the run."""
    legal = column >= 0 and columns > 0 and column + columns <= TENSOR_COLUMNS
    if legal:
        for unit in range(column // TENSOR_UNIT, (column + columns - 1) // TENSOR_UNIT + 1):
            if context.tensor_states[cta].sizes[unit] == 0:
                legal = False
    if legal:
        return 0
    status = add_hazard(context, tensor_hazard(context, NOT_ALLOCATED, lanes, column, columns))
    return status if status != 0 else 1


# ---- order -----------------------------------------------------------------------------------------------------------


def knows(context: Context, warp: int, mark: TensorMark, pipelined: int) -> int:
    """Whether a write of tensor memory comes before a warp's next access: it is complete, and the warp has
    synchronised with that. For an operation of the tensor cores (``pipelined``), an operation before it need only be
    issued before (PTX ISA, "Pipelined tcgen05 Instructions")."""
    actor, vector = actor_of_tag(mark.tag), vector_of(context, warp)
    if vector[actor] >= time_of_tag(mark.tag):
        return 1
    issuer = mark.party & 0xFFFF
    return pipelined != 0 and mark.kind != BY_STORE and (issuer == warp or vector[issuer] >= mark.issued)


def fence_tensor(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.fence``: the operand is whether it comes before a synchronisation. What a fence of one warp before a
    synchronisation has covered is ordered for another warp by its fence after it."""
    columns, warp = context.columns, context.current
    if context.tensor_part == 0:
        return 0
    mine = vector_of(context, warp)
    fenced = mine.at(columns * context.tensor_part)
    after = context.tensor_after.at(columns * warp)
    for actor in range(columns):
        if record.operands[0]:
            fenced[actor] = max(fenced[actor], mine[actor])
        else:
            after[actor] = fenced[actor]
    if record.operands[0]:
        fenced[warp] = context.clocks[warp]
    return 0


def lacks_fence(context: Context, warp: int, actor: int, time: int) -> int:
    """The rule of the fence that is missing between an operation of an actor, which comes before, and a warp's next
    access; 0 if none is."""
    warps = warps_of_cluster(context)
    issuer = actor - warps if actor < 2 * warps else (actor - context.tensor_actors) % warps
    if context.tensor_part == 0 or issuer == warp:
        return 0
    if vector_of(context, warp)[context.columns * context.tensor_part + actor] < time:
        return NO_FENCE_BEFORE_SYNC
    return NO_FENCE_AFTER_SYNC if context.tensor_after[context.columns * warp + actor] < time else 0


def lacks_fence_of(context: Context, warp: int, mark: TensorMark, pipelined: int) -> int:
    """As :func:`lacks_fence`, for a write; of a pipelined operation, only its issue comes before."""
    actor, time = actor_of_tag(mark.tag), time_of_tag(mark.tag)
    if pipelined and mark.kind != BY_STORE and vector_of(context, warp)[actor] < time:
        return lacks_fence_of_issue(context, warp, mark)
    return lacks_fence(context, warp, actor, time)


def lacks_fence_of_issue(context: Context, warp: int, mark: TensorMark) -> int:
    """As :func:`lacks_fence`, for the issue of an operation by a warp."""
    issuer = mark.party & 0xFFFF
    if context.tensor_part == 0 or issuer == warp:
        return 0
    if vector_of(context, warp)[context.columns * context.tensor_part + issuer] < mark.issued:
        return NO_FENCE_BEFORE_SYNC
    return NO_FENCE_AFTER_SYNC if context.tensor_after[context.columns * warp + issuer] < mark.issued else 0


def read_tensor(
    context: Context, lanes: int, cta: int, group: int, groups: int, column: int, columns: int, actor: int, time: int
) -> int:
    """The current warp reads groups of 16 lanes of columns, as an operation of an actor. Returns a status."""
    if context.checked == 0:
        return 0
    warp, warps = context.current, warps_of_cluster(context)
    by_unit = actor < 2 * warps
    plane = (2 * cta_warps(context) * cta) + by_unit * cta_warps(context) + warp % context.warp_count
    bad = 0
    for line in range(group, group + groups):
        first = TENSOR_COLUMNS * line + column
        for k in range(first, first + columns):
            mark = context.tensor_marks[TENSOR_GRANULES * cta + k]
            if mark.tag == bad and bad != 0:
                continue
            status, written = 0, time_of_tag(mark.tag) > context.tensor_began
            if not written and groups == 2:  # a load of 32 lanes may ignore those that M = 64 does not have
                beside = context.tensor_marks[TENSOR_GRANULES * cta + (k ^ TENSOR_COLUMNS)]
                written = time_of_tag(beside.tag) > context.tensor_began
            if not written:
                status = add_hazard(context, tensor_hazard(context, NEVER_WRITTEN, lanes, k - TENSOR_COLUMNS * line, 1))
                bad = mark.tag
            else:
                pipelined = by_unit and mark.kind == BY_COPY
                rule = READS_STORE if mark.kind == BY_STORE else READS_PRODUCT
                if knows(context, warp, mark, pipelined):
                    rule = lacks_fence_of(context, warp, mark, pipelined)
                if rule != 0:
                    where = k - TENSOR_COLUMNS * line
                    status = tensor_race(context, rule, lanes, where, columns, mark.party, mark.kind)
                    bad = mark.tag
            if status != 0:
                return status
            place = TENSOR_GRANULES * plane + k
            context.tensor_reads[place] = time
            if context.tensor_readers != 0:
                context.tensor_readers[place] = (context.current_record - context.records) >> 6
    return 0


def cta_warps(context: Context) -> int:
    """The number of warps of a CTA."""
    return context.warp_count


def write_tensor(
    context: Context,
    rule: int,
    lanes: int,
    cta: int,
    group: int,
    groups: int,
    column: int,
    columns: int,
    pipelined: int,
) -> int:
    """The current warp writes groups of 16 lanes of columns, or frees them (``rule``); ``pipelined`` as in
    :func:`knows`. Returns a status."""
    if context.checked == 0:
        return 0
    warp, warps, ended = context.current, context.warp_count, 0
    for line in range(group, group + groups):
        first, bad = TENSOR_COLUMNS * line + column, 0
        for k in range(first, first + columns):
            mark = context.tensor_marks[TENSOR_GRANULES * cta + k]
            written = time_of_tag(mark.tag) > context.tensor_began
            if written and mark.tag != bad:
                broken = rule
                if rule != FREES_USED:
                    broken = STORES_STORED if mark.kind == BY_STORE else STORES_PRODUCT
                if knows(context, warp, mark, pipelined):
                    broken = 0 if rule == FREES_USED else lacks_fence_of(context, warp, mark, pipelined)
                if broken != 0:
                    where = k - TENSOR_COLUMNS * line
                    ended = tensor_race(context, broken, lanes, where, columns, mark.party, mark.kind)
                    bad = mark.tag
            for other in range(2 * warps):
                place = TENSOR_GRANULES * (2 * warps * cta + other) + k
                time = context.tensor_reads[place]
                if ended == 0 and time > context.tensor_began and time != bad:
                    reader = warps * cta + other % warps
                    by_unit = other >= warps
                    actor = warps_of_cluster(context) + reader if by_unit else context.tensor_actors + reader
                    broken = 0
                    if vector_of(context, warp)[actor] < time:
                        broken = rule if rule == FREES_USED else STORES_READ
                    elif rule != FREES_USED:
                        broken = lacks_fence(context, warp, actor, time)
                    if broken != 0 and not (pipelined and by_unit and reader == warp):
                        number = context.tensor_readers[place] if context.tensor_readers != 0 else 0
                        party = number << 16 | reader
                        ended = tensor_race(context, broken, lanes, k - TENSOR_COLUMNS * line, columns, party, 0)
                        bad = time
            if ended != 0:
                return ended
    return 0


def check_sums(context: Context, lanes: int, cta: int, group: int, column: int, columns: int) -> int:
    """The sums that a product continues must have been written: 16 lanes of columns. Returns a status."""
    first = TENSOR_GRANULES * cta + TENSOR_COLUMNS * group
    for k in range(column, column + columns):
        if time_of_tag(context.tensor_marks[first + k].tag) <= context.tensor_began:
            return add_hazard(context, tensor_hazard(context, NEVER_WRITTEN, lanes, k, 1))
    return 0


def mark_tensor_write(
    context: Context, cta: int, group: int, groups: int, column: int, columns: int, actor: int, time: int, kind: int
) -> None:
    """The current warp has written groups of 16 lanes of columns, as an operation of an actor."""
    if context.checked == 0:
        return
    number = (context.current_record - context.records) >> 6
    for line in range(group, group + groups):
        first = TENSOR_GRANULES * cta + TENSOR_COLUMNS * line + column
        for k in range(first, first + columns):
            mark = context.tensor_marks[k]
            mark.tag = shared_tag(actor, time)
            mark.issued = context.clocks[context.current]
            mark.party = number << 16 | context.current
            mark.kind = kind


def tensor_race(context: Context, rule: int, lanes: int, column: int, columns: int, party: int, kind: int) -> int:
    """An access of the current warp does not come after one of another party. Returns a status."""
    row = tensor_hazard(context, rule, lanes, column, columns)
    other = context.warps[party & 0xFFFF]
    row.other_pc = context.pcs[party >> 16] if context.pcs != 0 else -1
    row.other_warp = other.number
    row.other_cta = other.linear_cta
    row.expected = kind
    return add_hazard(context, row)


# ---- moves -----------------------------------------------------------------------------------------------------------


def row_in(shape: int, thread: int, register: int) -> int:
    """The lane, from the first one on, of a thread's register (PTX ISA, "Data Movement Shape")."""
    if shape == 0:  # 32x32b
        return thread
    if shape == 1:  # 16x64b
        return (thread & 1) * 8 + (thread >> 2)
    if shape == 2:  # 16x128b
        return (thread >> 2) + 8 * (register & 1)
    if shape == 3:  # 16x256b
        return (thread >> 2) + 8 * (register >> 1 & 1)
    return thread & 15


def column_in(shape: int, thread: int, register: int, split: int) -> int:
    """The column, from the first one on, of a thread's register; ``split`` is the distance of both halves."""
    if shape == 0:
        return register
    if shape == 1:
        return 2 * register + (thread >> 1 & 1)
    if shape == 2:
        return 4 * (register >> 1) + (thread & 3)
    if shape == 3:
        return 8 * (register >> 2) + 2 * (thread & 3) + (register & 1)
    return register + (thread >> 4) * split


def columns_of(shape: int, many: int) -> int:
    """The columns of so many registers of each thread."""
    return 2 * many if shape in (1, 2, 3) else many


def begin_move(registers: int, record: Record, mask: int, context: Context) -> int:
    """A warp moves cells: operands are the row and offset of the address, the start of the list of rows, the number of
    registers, the shape and whether it packs (bit 3), the distance of halves, the pc, and the number of the load.
    Returns the lane << 16 | column, or minus a status, or -1 if the move is left out."""
    current_instruction(context, record.operands[6])
    place = registers + record.operands[0]
    status = same_in_warp(context, place, mask)
    if status != 0:
        return -status
    address = load32(place) + record.operands[1]
    shape, cta = record.operands[4] & 7, context.current_warp.cta
    lane, column = address >> 16 & 0xFFFF, address & 0xFFFF
    own = 32 * (context.current_warp.number & 3)
    if lane != own and (shape == 0 or lane != own + 16):
        row = tensor_hazard(context, NOT_ITS_LANES, mask, column, 0)
        row.expected = own
        row.actual = lane
        status = add_hazard(context, row)
        return -status if status != 0 else -1
    columns = columns_of(shape, record.operands[3]) << (record.operands[4] >> 3)
    status = check_columns(context, cta, column, columns, mask)
    if status == 0 and shape == _SPLIT:
        status = check_columns(context, cta, column + record.operands[5], columns, mask)
    return -status if status != 0 else lane << 16 | column


def load_tensor(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.ld`` (operands: :func:`begin_move`)."""
    start = begin_move(registers, record, mask, context)
    if start < 0:
        return 0 if start == -1 else -start
    lane, column = start >> 16, start & 0xFFFF
    shape, packs, split = record.operands[4] & 7, record.operands[4] >> 3, record.operands[5]
    many, cta, status = record.operands[3], context.current_warp.cta, 0
    columns, groups = columns_of(shape, many) << packs, 2 if shape == 0 else 1
    if context.checked != 0:
        context.tensor_pending[context.tensor_load_count * context.current + record.operands[7]] = (
            context.current_warp.tensor_waits + 1
        )
        actor = context.tensor_actors + context.current
        time = operation_time(context, actor)
        for half in range(2 if shape == _SPLIT else 1):
            first = column + half * split
            if status == 0:
                status = read_tensor(context, mask, cta, lane // 16, groups, first, columns, actor, time)
        if context.tensor_waits_checked == 0:
            vector_of(context, context.current)[actor] = time
    rows = context.lists.at(record.operands[2])
    for register in range(many):
        row = registers + rows[register]
        if shape == 0 and packs == 0:
            copy(row, cell(context, cta, lane, column + register), 128)
            continue
        for thread in range(32):
            across = column_in(shape, thread, register, split) << packs
            source = cell(context, cta, lane + row_in(shape, thread, register), column + across)
            value = load32(source)
            if packs:
                value = value & 0xFFFF | (load32(source + 4 * TENSOR_LANES) & 0xFFFF) << 16
            store32(row + 4 * thread, value)
    return status


def store_tensor(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.st`` (operands: :func:`begin_move`)."""
    start = begin_move(registers, record, mask, context)
    if start < 0:
        return 0 if start == -1 else -start
    lane, column = start >> 16, start & 0xFFFF
    shape, packs, split = record.operands[4] & 7, record.operands[4] >> 3, record.operands[5]
    many, cta, status = record.operands[3], context.current_warp.cta, 0
    columns, groups = columns_of(shape, many) << packs, 2 if shape == 0 else 1
    if context.checked != 0:
        actor = context.tensor_actors + warps_of_cluster(context) + context.current
        time = operation_time(context, actor)
        for half in range(2 if shape == _SPLIT else 1):
            first = column + half * split
            if status == 0:
                status = write_tensor(context, STORES_STORED, mask, cta, lane // 16, groups, first, columns, 0)
            mark_tensor_write(context, cta, lane // 16, groups, first, columns, actor, time, BY_STORE)
    rows = context.lists.at(record.operands[2])
    for register in range(many):
        row = registers + rows[register]
        if shape == 0 and packs == 0:
            copy(cell(context, cta, lane, column + register), row, 128)
            continue
        for thread in range(32):
            across = column_in(shape, thread, register, split) << packs
            target = cell(context, cta, lane + row_in(shape, thread, register), column + across)
            value = load32(row + 4 * thread)
            store32(target, value & 0xFFFF if packs else value)
            if packs:
                store32(target + 4 * TENSOR_LANES, value >> 16 & 0xFFFF)
    return status


def wait_for_tensor(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.wait``: the operand is whether it waits for loads, or for stores."""
    if context.checked != 0:
        context.current_warp.tensor_waits += record.operands[0]
        warp, stores = context.current, 1 - record.operands[0]
        actor = context.tensor_actors + stores * warps_of_cluster(context) + warp
        vector_of(context, warp)[actor] = context.clocks[actor]
    return 0


def look_at_loaded(registers: int, record: Record, mask: int, context: Context) -> int:
    """Registers of loads are used: operands are the start of the list of the loads, and their number. The warp must
    have waited for them. Returns a status."""
    loads = context.lists.at(record.operands[0])
    for k in range(record.operands[1]):
        place = context.tensor_load_count * context.current + loads[k]
        if context.tensor_waits_checked and context.tensor_pending[place] == context.current_warp.tensor_waits + 1:
            row = hazard_row(context, record, USES_LOADED, mask)
            row.other_pc = context.tensor_load_pcs[loads[k]]
            row.other_warp = row.warp
            row.other_cta = row.cta
            context.tensor_pending[place] = 0  # one report for each load
            return add_hazard(context, row)
    return 0
