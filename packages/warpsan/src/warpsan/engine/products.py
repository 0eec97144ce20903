"""wgmma: convergence of warps, products in flight and their waits: machine code (:mod:`~warpsan.engine.translate`).

While products are in flight, hidden rows of the registers hold the sums; in the late mode, the accumulators are poison.
"""

from __future__ import annotations

from warpsan.engine.clocks import completed, operation_time, set_floors, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.flights import read_chunks, reads_complete
from warpsan.engine.layout import (
    AT_WGMMA,
    END_WGMMA,
    FULL,
    MOST_PRODUCTS,
    READY,
    SCRATCH_A,
    SCRATCH_B,
    SCRATCH_CHUNKS,
    SCRATCH_RECORD,
)
from warpsan.engine.memory import Block, Path, ProductInFlight, ProductWords, Record, Warp
from warpsan.engine.parts import begin_wait
from warpsan.engine.product_rules import (
    bits_of,
    check_operands,
    check_placed,
    check_registers,
    place_chunks,
    registers_in_flight,
)
from warpsan.engine.rules import USES_REGISTERS
from warpsan.engine.suspects import current_instruction
from warpsan.engine.words import call_operation, copy, fill, load32, load64

__all__ = ["commit_products", "fence_products", "look_at_registers", "meet"]

_EVERYONE = (1 << 32) - 1


def meet(context: Context, state: Warp, block: Block, part: Path, end: int) -> int:
    """A warp has reached a wgmma that its warpgroup executes together. Returns a status."""
    begin_wait(context, part, AT_WGMMA)
    part.came_from = block
    warps, warp = context.warp_count, state.number
    first = state.cta * warps + warp - warp % 4
    if warp - warp % 4 + 4 > warps:  # a part of a warpgroup waits forever
        return 0
    for k in range(4):
        if waiting_part(context, first + k, block) == 0:
            return 0
    for k in range(4):
        waiting_part(context, first + k, block).status = READY
    if end == END_WGMMA:
        current_instruction(context, block.end_pc)
        return issue(context, first, ProductWords(context.lists.at(block.end_a)), block.end_pc)
    return wait(context, first, block.end_a)


def waiting_part(context: Context, number: int, block: Block) -> Path:
    """The part of a warp that waits at this wgmma with all lanes; 0 if there is none."""
    state = context.warps[number]
    for k in range(state.path_count):
        part = state.paths[k]
        whole = part.mask == _EVERYONE
        if whole and part.status == AT_WGMMA and part.came_from == block:
            return part
    return Path(0)


def commit_products(registers: int, record: Record, mask: int, context: Context) -> int:
    """``wgmma.commit_group``, of each warp separately."""
    context.current_warp.product_groups += 1
    return 0


def fence_products(registers: int, record: Record, mask: int, context: Context) -> int:
    """``wgmma.fence``, of each warp separately: products may use its registers again."""
    state = context.current_warp
    state.fenced = 1
    state.touched_sets = 0
    return 0


def look_at_registers(registers: int, record: Record, mask: int, context: Context) -> int:
    """Registers of these sets (operands 0 and 1, as bits) are used: no product in flight may use them."""
    state, sets = context.current_warp, bits_of(record.operands[0], record.operands[1])
    state.touched_sets |= sets
    if state.busy_sets & sets and context.checked != 0:
        context.current_record = record
        return registers_in_flight(context, context.current, state.busy_sets & sets, mask, USES_REGISTERS)
    return 0


def issue(context: Context, first: int, words: ProductWords, pc: int) -> int:
    """Put a product in flight; in the early mode, its result is ready at once. Returns a status."""
    size = context.register_bytes
    leader = context.warps[first]
    count = leader.product_count
    if count == MOST_PRODUCTS:
        return FULL
    entry = context.products[MOST_PRODUCTS * (first // 4) + count]
    leader.product_count = count + 1
    entry.words = words
    entry.pc = pc
    entry.group = leader.product_groups
    registers = context.registers + size * first
    in_shared = words.a >= 0
    entry.b = load64(registers + words.b)
    if in_shared:
        entry.a = load64(registers + words.a)
    scale = words.scale
    keep = load32(registers + (scale & ~3)) & 1
    entry.keep = keep ^ (1 if scale & 2 else 0)
    status = check_operands(context, first, entry, words, keep) if context.checked != 0 else 0
    if status == 0 and context.checked != 0:
        status = announce(context, first, entry, words)
    if status != 0:
        return status
    for k in range(4):
        mine = registers + size * k
        if in_shared == 0:
            for j in range(4):
                target = entry.fragments + 128 * (4 * k + j)
                copy(target, mine + words.fragments[j], 128)
        status = begin_sums(context, first + k, mine, words)
        if status != 0:
            return status
    if context.early != 0:
        return land(context, first, entry)
    return 0


def announce(context: Context, first: int, entry: ProductInFlight, words: ProductWords) -> int:
    """A warpgroup's product will read its operands from shared memory: each warp its quarter of A, and all of B.
    Returns a status.

    All reads are marked for the first warp: a wait of one warp is a wait of all four.
    """
    async_actor = warps_of_cluster(context) + first
    time = operation_time(context, async_actor)
    entry.time = time
    cta, chunks = first // context.warp_count, context.scratch + SCRATCH_CHUNKS
    if words.a >= 0:
        placed = place_chunks(context, cta, entry.a, 64, words.major_a, chunks)
        status = check_placed(context, first, entry.pc, placed, entry.a, words.major_a, 4)
        if status != 0:
            return status
        for k in range(4):
            status = read_chunks(context, chunks + 8 * 32 * k, 32, cta, first + k, 1, async_actor, time)
            if status != 0:
                return status
    columns = words.columns
    placed = place_chunks(context, cta, entry.b, columns, words.major_b, chunks)
    status = check_placed(context, first, entry.pc, placed, entry.b, words.major_b, 1)
    if status != 0:
        return status
    return read_chunks(context, chunks, 2 * columns, cta, first, 4, async_actor, time)


def complete(context: Context, first: int, entry: ProductInFlight, words: ProductWords) -> None:
    """A warpgroup has waited for a product, which no longer reads its operands; in the late mode, :func:`land` has
    noted that."""
    cta, chunks = first // context.warp_count, context.scratch + SCRATCH_CHUNKS
    if context.early != 0:
        if words.a >= 0:
            place_chunks(context, cta, entry.a, 64, words.major_a, chunks)
            reads_complete(context, chunks, 128, cta)
        columns = words.columns
        place_chunks(context, cta, entry.b, columns, words.major_b, chunks)
        reads_complete(context, chunks, 2 * columns, cta)
    for k in range(4):
        completed(context, first + k, warps_of_cluster(context) + first, entry.time)


def begin_sums(context: Context, number: int, registers: int, words: ProductWords) -> int:
    """Another product uses a warp's registers; the first one takes the accumulators' values. Returns a status."""
    state = context.warps[number]
    if context.checked != 0:
        status = check_registers(context, number, words)
        if status != 0:
            return status
    hidden = registers + words.hidden
    if begin_use(state, words.result_set) == 1:
        for k in range(words.many):
            row = registers + words.rows[k]
            copy(hidden + 128 * k, row, 128)
            if context.early == 0:
                fill(row, 0xFF, 128)
    if words.factor_set >= 0:
        begin_use(state, words.factor_set)
    return 0


def begin_use(state: Warp, number: int) -> int:
    """Another product uses a set of registers of a warp. Returns the number of products."""
    busy = state.products_of_set[number] + 1
    state.products_of_set[number] = busy
    state.busy_sets |= 1 << number
    return busy


def end_use(state: Warp, number: int) -> int:
    """A product no longer uses a set of registers of a warp. Returns the number of products left."""
    busy = state.products_of_set[number] - 1
    state.products_of_set[number] = busy
    if busy == 0:
        state.busy_sets &= ~(1 << number)
    return busy


def write_sums(registers: int, words: ProductWords) -> None:
    """Copy the sums to the accumulators."""
    hidden = registers + words.hidden
    for k in range(words.many):
        copy(registers + words.rows[k], hidden + 128 * k, 128)


def wait(context: Context, first: int, keep: int) -> int:
    """Complete all products of a warpgroup but those of its last ``keep`` groups, in order. Returns a status."""
    leader = context.warps[first]
    count, groups = leader.product_count, leader.product_groups
    size = context.register_bytes
    base = MOST_PRODUCTS * (first // 4)
    left = 0
    for k in range(count):
        entry = context.products[base + k]
        if entry.group >= groups - keep:
            if left != k:
                copy(context.products[base + left], entry, ProductInFlight.byte_size)
            left += 1
            continue
        late = context.early == 0
        if late:
            status = land(context, first, entry)
            if status != 0:
                return status
        words = entry.words
        for warp in range(4):
            state = context.warps[first + warp]
            if end_use(state, words.result_set) == 0 and late:
                write_sums(context.registers + size * (first + warp), words)
            if words.factor_set >= 0:
                end_use(state, words.factor_set)
        if context.checked != 0:
            complete(context, first, entry, words)
    if left != count and context.checked != 0:
        for warp in range(4):
            set_floors(context, first + warp)
    leader.product_count = left
    return 0


def land(context: Context, first: int, entry: ProductInFlight) -> int:
    """Read the operands of a product and add it to the sums of four warps. Returns a status."""
    words, scratch = entry.words, context.scratch
    table, record = context.table, Record(scratch + SCRATCH_RECORD)
    cta = first // context.warp_count
    columns = words.columns
    chunks = scratch + SCRATCH_CHUNKS
    placed = place_chunks(context, cta, entry.b, columns, words.major_b, chunks)
    status = 0  # with checks, the places have been checked at the issue
    if context.checked == 0:
        status = check_placed(context, first, entry.pc, placed, entry.b, words.major_b, 1)
    elif context.early == 0:
        reads_complete(context, chunks, 2 * columns, cta)
    if status != 0:
        return status
    record.operands[0] = columns // 8
    record.operands[1] = 0
    record.operands[2] = SCRATCH_B
    call_operation(table[words.load_b], 0, record, -1, context)
    if words.a >= 0:
        placed = place_chunks(context, cta, entry.a, 64, words.major_a, chunks)
        if context.checked == 0:
            status = check_placed(context, first, entry.pc, placed, entry.a, words.major_a, 4)
        elif context.early == 0:
            reads_complete(context, chunks, 128, cta)
        if status != 0:
            return status
    for warp in range(4):
        registers = context.registers + context.register_bytes * (first + warp)
        record.operands[0] = 2
        record.operands[1] = 2 * 16 * 8 * warp
        record.operands[2] = SCRATCH_A
        source = entry.fragments + 512 * warp
        call_operation(table[words.load_a], source, record, -1, context)
        record.operands[0] = columns // 8
        record.operands[1] = words.hidden
        record.operands[2] = entry.keep
        record.operands[3] = words.sign
        call_operation(table[words.product], registers, record, -1, context)
        if context.early != 0:
            write_sums(registers, words)
    return 0
