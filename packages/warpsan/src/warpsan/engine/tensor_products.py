"""Operations of the tensor cores on tensor memory: products, copies from shared memory, and the arrivals behind them:
machine code (:mod:`~warpsan.engine.translate`).

One thread issues an operation, which lands when nothing else can run, or at once in the early mode. Operations of a CTA
land in the order of their issue (PTX ISA, "Pipelined tcgen05 Instructions"). The instruction descriptor has the types
and the shape ("Instruction descriptor"), and the group has one CTA or both of a pair; each CTA of a pair has half of
the rows of A and half of the columns of B.
"""

from __future__ import annotations

from warpsan.engine.clocks import first_of_cluster, join_vector, operation_time, vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.flights import read_chunks, reads_complete
from warpsan.engine.hazards import add_hazard
from warpsan.engine.layout import (
    BY_COPY,
    BY_PRODUCT,
    FULL,
    LANDED,
    LEFT_OUT,
    MOST_COMMITS,
    SCRATCH_A,
    SCRATCH_B,
    SCRATCH_CHUNKS,
    SCRATCH_RECORD,
    TENSOR,
)
from warpsan.engine.mbarriers import (
    check_arrivals,
    count_arrivals,
    is_remote,
    mbarrier_instruction,
    named_mbarrier,
    use_mbarrier,
    vectors_of,
)
from warpsan.engine.memory import MbarrierState, Record, TensorWords, TransferEntry
from warpsan.engine.product_rules import check_placed, not_modelled, place_chunks
from warpsan.engine.rules import STORES_PRODUCT, WRONG_PRODUCT
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import act_for, current_instruction, is_status
from warpsan.engine.tensor_memory import (
    cell,
    check_columns,
    check_sums,
    mark_tensor_write,
    read_tensor,
    tensor_hazard,
    write_tensor,
)
from warpsan.engine.transfers.entries import new_entry, next_serial
from warpsan.engine.words import call_operation, copy, load32, load64
from warpsan.host.memory import RANK_SHIFT

__all__ = ["commit_tensor", "issue_copy", "issue_product", "land_tensor"]

_D, _A, _B, _DESCRIPTOR, _KEEP, _WORDS, _SCALE_A, _SCALE_B = range(8)
"""Coordinates of an entry: the address of D, A, the descriptor of B, the instruction descriptor, whether D is added,
the list of the instruction (0 for others), and the addresses of the scales."""


def first_column_lane(entry: TransferEntry) -> int:
    """The lane of D's first row."""
    return entry.coordinates[_D] >> 16 & 0xFFFF


def rows_of(entry: TransferEntry, words: TensorWords) -> int:
    """M, of each CTA."""
    return (entry.coordinates[_DESCRIPTOR] >> 24 & 31) * 16 // words.group


def columns_of(entry: TransferEntry) -> int:
    """N, of all CTAs."""
    return (entry.coordinates[_DESCRIPTOR] >> 17 & 63) * 8


def is_folded(entry: TransferEntry, words: TensorWords) -> int:
    """Whether the second half of D's columns is in the other 64 lanes."""
    return words.group == 2 and rows_of(entry, words) == 64


def lane_of(entry: TransferEntry, words: TensorWords, strip: int) -> int:
    """The lane of 16 rows (PTX ISA, "Data Path Layout Organization")."""
    if words.group == 1 and rows_of(entry, words) == 64:
        return 32 * strip + first_column_lane(entry)
    return 16 * strip


def leader_of(context: Context, words: TensorWords, cta: int) -> int:
    """The first CTA of a group."""
    return cta - (cta - first_of_cluster(context, cta)) % words.group


def issuing(context: Context, entry: TransferEntry) -> None:
    """Hazards from now on belong to the warp and the instruction that issued an operation."""
    act_for(context, entry.warp)
    current_instruction(context, entry.pc)


# ---- products --------------------------------------------------------------------------------------------------------


def issue_product(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.mma``: the operand is the place of its list."""
    words = TensorWords(context.lists + 4 * record.operands[0])
    current_instruction(context, words.pc)
    context.transfer_serial = next_serial(context)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        place = new_entry(context, TENSOR, lane, context.current_warp.cta, 0, 0)
        if is_status(place):
            return place
        entry = TransferEntry(place)
        entry.pc = words.pc
        entry.coordinates[_D] = load32(registers + words.tensor + 4 * lane) + words.tensor_offset
        if words.a_in_tensor:
            entry.coordinates[_A] = load32(registers + words.a + 4 * lane) + words.a_offset
        else:
            entry.coordinates[_A] = load64(registers + words.a + 8 * lane)
        entry.coordinates[_B] = load64(registers + words.b + 8 * lane)
        entry.coordinates[_DESCRIPTOR] = load32(registers + words.descriptor + 4 * lane) & 0xFFFFFFFF
        keep = load32(registers + (words.keep & ~3)) >> lane & 1
        entry.coordinates[_KEEP] = keep ^ (words.keep >> 1 & 1)
        entry.coordinates[_WORDS] = words.address
        if words.scales:
            entry.coordinates[_SCALE_A] = load32(registers + words.scale_a + 4 * lane) + words.scale_a_offset
            entry.coordinates[_SCALE_B] = load32(registers + words.scale_b + 4 * lane) + words.scale_b_offset
        entry.data[0] = masked_lanes(registers, words, 0, lane)
        entry.data[1] = masked_lanes(registers, words, 2, lane)
        status = begin_product(context, entry, words)
        if status == 0 and context.early != 0:
            status = land_tensor(context, entry)
        if status == LEFT_OUT:
            entry.kind = LANDED
        elif status != 0:
            return status
    return 0


def masked_lanes(registers: int, words: TensorWords, first: int, lane: int) -> int:
    """64 lanes of D that are not written, as bits."""
    if words.lanes[first] < 0:
        return 0
    low = load32(registers + words.lanes[first] + 4 * lane) & 0xFFFFFFFF
    return low | load32(registers + words.lanes[first + 1] + 4 * lane) << 32


def operations(entry: TransferEntry, words: TensorWords, which: int) -> int:
    """The number of an operation of a product: the load of A (0) or B (1), or the sums (2); -1 without a model."""
    descriptor = entry.coordinates[_DESCRIPTOR]
    a, b = descriptor >> 7 & 7, descriptor >> 10 & 7
    if which == 2:
        return words.products[16 * a + 2 * b + (0 if words.scales else descriptor >> 4 & 1)]
    if which == 1:
        return words.loads[2 * b + 1 - (descriptor >> 16 & 1)]
    return words.fragments[a] if words.a_in_tensor else words.loads[2 * a + 1 - (descriptor >> 15 & 1)]


def begin_product(context: Context, entry: TransferEntry, words: TensorWords) -> int:
    """Check a product, and mark its accesses. Returns ``LEFT_OUT`` for an illegal one, or a status."""
    rows, columns = rows_of(entry, words), columns_of(entry)
    descriptor, lane = entry.coordinates[_DESCRIPTOR], first_column_lane(entry)
    if (
        descriptor & 7
        or (words.scales and descriptor >> 31)
        or min(operations(entry, words, 0), operations(entry, words, 1)) < 0
    ):
        return not_modelled(context, entry.pc)
    step = 8 if rows * words.group == 64 else 16
    right = rows in (64, 128) and columns > 0 and columns <= 256 and columns % step == 0
    half = rows == 64 and words.group == 1 and lane == 16
    if not right or operations(entry, words, 2) < 0 or (lane != 0 and not half):
        row = tensor_hazard(context, WRONG_PRODUCT, 1 << entry.lane, entry.coordinates[_D] & 0xFFFF, columns)
        row.actual = rows * words.group
        row.expected = lane
        status = add_hazard(context, row)
        return status if status != 0 else LEFT_OUT
    if context.checked == 0:
        return 0
    actor = warps_of_cluster(context) + entry.warp
    entry.time = operation_time(context, actor)
    first = leader_of(context, words, entry.cta)
    for rank in range(words.group):
        status = announce(context, entry, words, first + rank, actor)
        if status != 0:
            return status
    return 0


def announce(context: Context, entry: TransferEntry, words: TensorWords, cta: int, actor: int) -> int:
    """A product will read the operands and D of a CTA, and write D. Returns a status."""
    rows, columns, lanes = rows_of(entry, words), columns_of(entry), 1 << entry.lane
    column, folded = entry.coordinates[_D] & 0xFFFF, is_folded(entry, words)
    across = columns // 2 if folded else columns
    status = check_columns(context, cta, column, across, lanes)
    if status == 0 and words.a_in_tensor:
        status = check_columns(context, cta, entry.coordinates[_A] & 0xFFFF, 8, lanes)
    for strip in range(rows // 16):
        group = lane_of(entry, words, strip) // 16
        if status == 0 and words.a_in_tensor:
            from_column = entry.coordinates[_A] & 0xFFFF
            status = read_tensor(context, lanes, cta, group, 1, from_column, 8, actor, entry.time)
        if status == 0 and words.scales and strip == 0:
            status = read_scales(context, entry, cta, entry.coordinates[_SCALE_A], rows, actor)
        if status == 0 and words.scales and strip == 0:
            status = read_scales(context, entry, cta, entry.coordinates[_SCALE_B], columns, actor)
        for fold in range(2 if folded else 1):
            line = group + 4 * fold
            if status == 0 and entry.coordinates[_KEEP]:
                status = check_sums(context, lanes, cta, line, column, across)
            if status == 0:
                status = write_tensor(context, STORES_PRODUCT, lanes, cta, line, 1, column, across, 1)
            mark_tensor_write(context, cta, line, 1, column, across, actor, entry.time, BY_PRODUCT)
    if status == 0 and words.a_in_tensor == 0:
        status = read_operand(context, entry, cta, entry.coordinates[_A], rows, a_major(entry), actor)
    if status == 0:
        status = read_operand(context, entry, cta, entry.coordinates[_B], columns // words.group, b_major(entry), actor)
    return status


def a_major(entry: TransferEntry) -> int:
    """Whether K is contiguous in A."""
    return 1 - (entry.coordinates[_DESCRIPTOR] >> 15 & 1)


def b_major(entry: TransferEntry) -> int:
    """Whether K is contiguous in B."""
    return 1 - (entry.coordinates[_DESCRIPTOR] >> 16 & 1)


def place_operand(
    context: Context, entry: TransferEntry, cta: int, descriptor: int, rows: int, k_major: int, out: int
) -> int:
    """Place the chunks of an operand at ``out``. Returns a status."""
    if descriptor >> 52 & 1 or descriptor >> 61 & 1:
        return not_modelled(context, entry.pc)
    placed = place_chunks(context, cta, descriptor, rows, k_major, out)
    return check_placed(context, entry.warp, entry.pc, placed, descriptor, k_major, 1)


def read_operand(
    context: Context, entry: TransferEntry, cta: int, descriptor: int, rows: int, k_major: int, actor: int
) -> int:
    """A product will read an operand from shared memory. Returns a status."""
    chunks = context.scratch + SCRATCH_CHUNKS
    status = place_operand(context, entry, cta, descriptor, rows, k_major, chunks)
    if status != 0:
        return status
    return read_chunks(context, chunks, 2 * rows, cta, entry.warp, 1, actor, entry.time)


def read_scales(context: Context, entry: TransferEntry, cta: int, address: int, rows: int, actor: int) -> int:
    """A product will read the scales of so many rows of A, or columns of B: those of 32 in a column. Returns a
    status."""
    columns, lanes = (rows + 31) // 32, 1 << entry.lane
    status = check_columns(context, cta, address & 0xFFFF, columns, lanes)
    if status != 0:
        return status
    return read_tensor(context, lanes, cta, 0, 2, address & 0xFFFF, columns, actor, entry.time)


def scale_rows(
    context: Context, entry: TransferEntry, words: TensorWords, cta: int, half: int, b: int, row: int, target: int
) -> None:
    """Multiply the factors of 8 rows of A, or columns of B, in the scratch by their scales."""
    descriptor, record = entry.coordinates[_DESCRIPTOR], Record(context.scratch + SCRATCH_RECORD)
    address = entry.coordinates[_SCALE_B if b else _SCALE_A]
    first, many = (descriptor >> 4 & 3) if b else (descriptor >> 29 & 3), words.scales // words.halves
    record.operands[0] = target
    record.operands[1] = first + half * many
    record.operands[2] = many
    record.operands[3] = 32 // many
    cells = cell(context, cta, row % 32, (address & 0xFFFF) + row // 32)
    call_operation(context.table[words.scaling[descriptor >> 23 & 1]], cells, record, -1, context)


def land_product(context: Context, entry: TransferEntry, words: TensorWords) -> int:
    """Read the operands of a product, and add it to D. Returns a status."""
    first = leader_of(context, words, entry.cta)
    columns, rows = columns_of(entry), rows_of(entry, words)
    chunks, status = context.scratch + SCRATCH_CHUNKS, 0
    share = columns // words.group
    for rank in range(words.group):
        out = chunks + 8 * 2 * share * rank
        place_chunks(context, first + rank, entry.coordinates[_B], share, b_major(entry), out)
        if context.checked != 0:
            reads_complete(context, out, 2 * share, first + rank)
        else:
            status = place_operand(context, entry, first + rank, entry.coordinates[_B], share, b_major(entry), out)
            if status != 0:
                return status
    load_right(context, entry, words, first, 0)
    for rank in range(words.group):
        cta = first + rank
        for half in range(words.halves):
            if words.halves > 1 or words.scales:
                for other in range(words.group):
                    out = chunks + 8 * 2 * share * other
                    place_chunks(context, first + other, entry.coordinates[_B], share, b_major(entry), out)
                load_right(context, entry, words, cta, half)
            if words.a_in_tensor == 0:
                status = place_operand(context, entry, cta, entry.coordinates[_A], rows, a_major(entry), chunks)
                if status != 0:
                    return status
                if context.checked != 0 and half == 0:
                    reads_complete(context, chunks, 2 * rows, cta)
            for strip in range(rows // 16):
                add_strip(context, entry, words, cta, strip, half)
    return 0


def load_right(context: Context, entry: TransferEntry, words: TensorWords, cta: int, half: int) -> None:
    """Convert B, whose chunks are placed, to factors, with a CTA's scales."""
    record, columns = Record(context.scratch + SCRATCH_RECORD), columns_of(entry)
    record.operands[0] = columns // 8
    record.operands[1] = 0
    record.operands[2] = SCRATCH_B
    record.operands[3] = half
    call_operation(context.table[operations(entry, words, 1)], 0, record, -1, context)
    for group in range(columns // 8 if words.scales else 0):
        scale_rows(context, entry, words, cta, half, 1, 8 * group, SCRATCH_B + 32 * 32 * group)


def add_strip(context: Context, entry: TransferEntry, words: TensorWords, cta: int, strip: int, half: int) -> None:
    """Add the product of 16 rows to D, over a part of K."""
    record, lane = Record(context.scratch + SCRATCH_RECORD), lane_of(entry, words, strip)
    column, columns = entry.coordinates[_D] & 0xFFFF, columns_of(entry)
    record.operands[0] = 2
    record.operands[1] = 2 * 16 * 8 * strip
    record.operands[2] = SCRATCH_A
    record.operands[3] = half
    source = 0
    if words.a_in_tensor:
        source = cell(context, cta, lane, entry.coordinates[_A] & 0xFFFF)
    call_operation(context.table[operations(entry, words, 0)], source, record, -1, context)
    for part in range(2 if words.scales else 0):
        scale_rows(context, entry, words, cta, half, 0, 16 * strip + 8 * part, SCRATCH_A + 32 * 32 * part)
    folds = 2 if is_folded(entry, words) else 1
    across = columns // folds
    for fold in range(folds):
        line = lane + 64 * fold
        hidden = entry.data[line >> 6] >> (line & 63) & 0xFFFF
        if hidden != 0:
            keep_lanes(context, cta, line, column, across, 0xFFFF, 0)
        record.operands[0] = across // 8
        record.operands[1] = across // 8 * fold
        record.operands[2] = entry.coordinates[_KEEP] | half
        record.operands[3] = (entry.coordinates[_DESCRIPTOR] >> 13 ^ entry.coordinates[_DESCRIPTOR] >> 14) & 1
        record.operands[4] = words.scale if half == 0 else 0
        target = cell(context, cta, line, column)
        call_operation(context.table[operations(entry, words, 2)], target, record, -1, context)
        if hidden != 0:
            keep_lanes(context, cta, line, column, across, hidden, 1)


def keep_lanes(context: Context, cta: int, lane: int, column: int, columns: int, lanes: int, back: int) -> None:
    """Save cells of 16 lanes in the scratch, or write those of some lanes back."""
    for k in range(columns):
        saved, there = context.scratch + 64 * k, cell(context, cta, lane, column + k)
        for one in range(16):
            if lanes >> one & 1 and back:
                copy(there + 4 * one, saved + 4 * one, 4)
            elif lanes >> one & 1:
                copy(saved + 4 * one, there + 4 * one, 4)


# ---- copies ----------------------------------------------------------------------------------------------------------


def issue_copy(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.cp``: operands are the row and offset of the address, the row of the descriptor, rows, 16-byte chunks
    of a row, lanes of copies as in :func:`copy_lane`, CTAs, and the pc."""
    current_instruction(context, record.operands[7])
    context.transfer_serial = next_serial(context)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        place = new_entry(context, TENSOR, lane, context.current_warp.cta, 0, 0)
        if is_status(place):
            return place
        entry = TransferEntry(place)
        entry.pc = record.operands[7]
        entry.coordinates[_D] = load32(registers + record.operands[0] + 4 * lane) + record.operands[1]
        entry.coordinates[_A] = load64(registers + record.operands[2] + 8 * lane)
        entry.coordinates[_WORDS] = 0
        entry.data[0] = record.address
        entry.data[1] = 0
        status = begin_copy(context, entry, record)
        if status == 0 and context.early != 0:
            status = land_tensor(context, entry)
        if status == LEFT_OUT:
            entry.kind = LANDED
        elif status != 0:
            return status
    return 0


def copy_lane(casts: int, row: int, turn: int) -> int:
    """The lane of a copy of a row: without a multicast, to warps 0 and 2 or 1 and 3, to 0 and 1 or 2 and 3, to all."""
    if casts == 1:
        return row + 64 * turn
    if casts == 2:
        return (row & 31) + (row >> 5) * 64 + 32 * turn
    return row + 32 * turn


def copies_of(casts: int) -> int:
    """The number of copies of each row."""
    return 1 if casts == 0 else 4 if casts == 3 else 2


def begin_copy(context: Context, entry: TransferEntry, record: Record) -> int:
    """Check a copy, and mark its accesses. Returns a status."""
    if context.checked == 0:
        return 0
    rows, wide, casts, group = record.operands[3], record.operands[4], record.operands[5], record.operands[6]
    actor, lanes, column = warps_of_cluster(context) + entry.warp, 1 << entry.lane, entry.coordinates[_D] & 0xFFFF
    entry.time = operation_time(context, actor)
    first = entry.cta - (entry.cta - first_of_cluster(context, entry.cta)) % group
    for cta in range(first, first + group):
        status = check_columns(context, cta, column, 4 * wide, lanes)
        for turn in range(copies_of(casts)):
            for strip in range(rows // 16):
                line = copy_lane(casts, 16 * strip, turn) // 16
                if status == 0:
                    status = write_tensor(context, STORES_PRODUCT, lanes, cta, line, 1, column, 4 * wide, 1)
                mark_tensor_write(context, cta, line, 1, column, 4 * wide, actor, entry.time, BY_COPY)
        if status == 0:
            status = read_operand(context, entry, cta, entry.coordinates[_A], rows, 1, actor)
        if status != 0:
            return status
    return 0


def land_copy(context: Context, entry: TransferEntry) -> int:
    """Copy rows from shared memory to lanes. Returns a status."""
    record, chunks = Record(entry.data[0]), context.scratch + SCRATCH_CHUNKS
    rows, wide, casts, group = record.operands[3], record.operands[4], record.operands[5], record.operands[6]
    first = entry.cta - (entry.cta - first_of_cluster(context, entry.cta)) % group
    for cta in range(first, first + group):
        status = place_operand(context, entry, cta, entry.coordinates[_A], rows, 1, chunks)
        if status != 0:
            return status
        if context.checked != 0:
            reads_complete(context, chunks, 2 * rows, cta)
        for turn in range(copies_of(casts)):
            for row in range(rows):
                for part in range(wide):
                    source = load64(chunks + 8 * (16 * (row >> 3) + 8 * part + (row & 7)))
                    for word in range(4):
                        column = (entry.coordinates[_D] & 0xFFFF) + 4 * part + word
                        copy(cell(context, cta, copy_lane(casts, row, turn), column), source + 4 * word, 4)
    return 0


# ---- arrivals --------------------------------------------------------------------------------------------------------


def commit_tensor(registers: int, record: Record, mask: int, context: Context) -> int:
    """``tcgen05.commit``: operands are the row and offset of the mbarrier's address, the row of the CTAs of a multicast
    (-1: none), and the pc. The arrivals come after the warp's earlier operations."""
    mbarrier_instruction(context, registers, record.operands[0], record.operands[1], mask, record.operands[3])
    context.transfer_serial = next_serial(context)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        address = load64(registers + record.operands[0] + 8 * lane) + record.operands[1]
        ctas = 0
        if record.operands[2] >= 0:
            ctas = load32(registers + record.operands[2] + 4 * lane) & 0xFFFF
        for rank in range(context.cluster_size if record.operands[2] >= 0 else 1):
            if record.operands[2] >= 0:
                if ctas >> rank & 1 == 0:
                    continue
                address = rank + 1 << RANK_SHIFT | address & (1 << RANK_SHIFT) - 1
            status = commit_to(context, lane, address, record.operands[3])
            if status != 0 and status != LEFT_OUT:
                return status
    return 0


def known_at(context: Context, number: int) -> Ptr[i64]:
    """A place for what came before the operations of an arrival in flight: it comes before the arrival, too."""
    return context.commit_vectors.at(context.actors * number)


def commit_to(context: Context, lane: int, address: int, pc: int) -> int:
    """A lane's earlier operations arrive at an mbarrier when they are complete. Returns a status."""
    actual = named_mbarrier(context, lane, address)
    if is_status(actual):
        return actual
    status = use_mbarrier(context, MbarrierState(actual), lane)
    if status != 0:
        return status
    place = new_entry(context, TENSOR, lane, context.current_warp.cta, 0, 0)
    if is_status(place):
        return place
    entry = TransferEntry(place)
    entry.pc = pc
    entry.mbarrier = MbarrierState(actual)
    entry.coordinates[_WORDS] = 0
    entry.data[0] = 0
    if context.checked != 0:
        entry.time = context.clocks[warps_of_cluster(context) + entry.warp]
        entry.group = context.commits % MOST_COMMITS
        if context.committed[entry.group] != 0:
            return FULL
        context.commits += 1
        context.committed[entry.group] = 1
        known = known_at(context, entry.group)
        copy(known, vector_of(context, entry.warp), 8 * context.actors)
        known[entry.warp] = 0  # its own accesses are not released
    return land_tensor(context, entry) if context.early != 0 else 0


def land_tensor(context: Context, entry: TransferEntry) -> int:
    """An operation lands, behind the earlier ones of its CTA. Returns a status."""
    k = context.transfer_first
    while context.transfers[k] != entry:
        earlier = context.transfers[k]
        if earlier.kind == TENSOR and earlier.cta == entry.cta:
            status = land_one(context, earlier)
            if status != 0:
                return status
        k += 1
    return land_one(context, entry)


def land_one(context: Context, entry: TransferEntry) -> int:
    """An operation lands. Returns a status."""
    issuing(context, entry)
    entry.kind = LANDED
    if entry.coordinates[_WORDS] != 0:
        return land_product(context, entry, TensorWords(entry.coordinates[_WORDS]))
    if entry.data[0] != 0:
        return land_copy(context, entry)
    mbarrier = entry.mbarrier
    entry.mbarrier = MbarrierState(0)  # no bytes to count
    if context.checked != 0:
        actor = warps_of_cluster(context) + entry.warp
        vector = vectors_of(context, mbarrier, is_remote(context, entry.warp, mbarrier))
        join_vector(context, vector, known_at(context, entry.group))
        context.committed[entry.group] = 0
        place = vector.at(actor)
        place[0] = max(place[0], entry.time)
        fenced = place.at(context.columns * context.tensor_part)  # an implicit fence before the synchronisation
        fenced[0] = max(fenced[0], entry.time)
    status = check_arrivals(context, mbarrier, 1 << entry.lane, 1, 0, 0, 1)
    count_arrivals(context, mbarrier, 1)
    return status
