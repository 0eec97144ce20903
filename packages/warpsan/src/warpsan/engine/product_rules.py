"""Rules of wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"): machine code
(:mod:`~warpsan.engine.translate`).

A product belongs to the group that its warpgroup commits next, and is complete when the warpgroup has waited for that
group. Until then the program may not touch its accumulator registers, nor overwrite registers or shared memory that it
reads ("wgmma.wait_group"). Registers that were touched need a wgmma.fence before the next product on them
("wgmma.fence").
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.layout import (
    EVERY_LANE,
    IN_SHARED,
    MOST_PRODUCTS,
    MOST_SETS,
    NO_DESCRIPTOR,
    SCRATCH_CHUNKS,
    SCRATCH_POISON,
    UNMODELLED,
)
from warpsan.engine.memory import HazardRow, ProductInFlight, ProductWords
from warpsan.engine.rules import (
    A_DIFFERS,
    B_DIFFERS,
    NO_FENCE,
    OUT_OF_BOUNDS,
    SCALE_DIFFERS,
    SHARES_REGISTERS,
    TOUCHED_REGISTERS,
)
from warpsan.engine.suspects import current_instruction
from warpsan.engine.words import load32, load64, store64

__all__ = [
    "bits_of",
    "check_operands",
    "check_placed",
    "check_registers",
    "not_modelled",
    "place_chunks",
    "registers_in_flight",
]

_CHUNK = 16
_ILLEGAL = 2


def bits_of(low: int, high: int) -> int:
    """The bits of two words, the low one first."""
    return low & 0xFFFFFFFF | high << 32


def check_operands(context: Context, first: int, entry: ProductInFlight, words: ProductWords, keep: int) -> int:
    """The descriptors and the scale of D must be the same in all threads of a warpgroup. Returns a status."""
    status = same_in_all(context, first, words.b, entry.b, B_DIFFERS)
    row = words.scale & ~3
    for k in range(4):
        mine = load32(context.registers + context.register_bytes * (first + k) + row)
        if status == 0 and mine != (-1 if keep else 0):
            status = add_hazard(context, row_of_warp(context, first, SCALE_DIFFERS, 1))
    if status == 0 and words.a >= 0:
        status = same_in_all(context, first, words.a, entry.a, A_DIFFERS)
    return status


def same_in_all(context: Context, first: int, row: int, value: int, rule: int) -> int:
    """A row of 64 bits must have one value in all threads of a warpgroup. Returns a status."""
    for k in range(4):
        place, differ = context.registers + context.register_bytes * (first + k) + row, 0
        for lane in range(32):
            differ |= load64(place + 8 * lane) ^ value
        if differ != 0:
            return add_hazard(context, row_of_warp(context, first, rule, 1))
    return 0


def check_placed(context: Context, first: int, pc: int, placed: int, descriptor: int, k_major: int, warps: int) -> int:
    """The chunks of an operand, of which so many warps read a part each, must be modelled and legal; ``placed`` is the
    result of :func:`place_chunks`, which has left them in the scratch. Returns a status."""
    if placed == 1:
        return 0
    scratch = context.scratch
    if placed == 0:
        return not_modelled(context, pc)
    current_instruction(context, pc)
    k = 0
    while load64(scratch + SCRATCH_CHUNKS + 8 * k) != scratch + SCRATCH_POISON:
        k += 1
    row = row_of_warp(context, first + (k // 32 if warps > 1 else 0), OUT_OF_BOUNDS, 1 << k % 32)
    row.space = IN_SHARED
    row.offset = chunk_offset(descriptor, k_major, k // 16, k // 8 % 2, k % 8)
    row.width = _CHUNK
    return add_hazard(context, row)


def not_modelled(context: Context, pc: int) -> int:
    """An instruction's descriptor is not modelled. Returns the status that ends the run."""
    context.ended_by = pc
    context.end_number = NO_DESCRIPTOR
    return UNMODELLED


def check_registers(context: Context, number: int, words: ProductWords) -> int:
    """A product's registers must be fenced, and no other set in flight may contain one of them. Returns a status."""
    state, status = context.warps[number], 0
    own = bits_of(words.own[0], words.own[1])
    others = bits_of(words.others[0], words.others[1])
    if state.fenced == 0:
        status = add_hazard(context, row_of_warp(context, number, NO_FENCE, EVERY_LANE))
    elif state.touched_sets & own:
        row = row_of_warp(context, number, TOUCHED_REGISTERS, EVERY_LANE)
        result = words.result_set
        row.space = result if state.touched_sets >> result & 1 else words.factor_set
        status = add_hazard(context, row)
    if status != 0:
        return status
    return registers_in_flight(context, number, state.busy_sets & others, EVERY_LANE, SHARES_REGISTERS)


def registers_in_flight(context: Context, number: int, sets: int, lanes: int, rule: int) -> int:
    """Lanes of a warp use registers of these sets, which products in flight use. Returns a status."""
    for one in range(MOST_SETS):
        if sets >> one & 1:
            row = row_of_warp(context, number, rule, lanes)
            row.space = one
            row.other_pc = product_of(context, number, one).pc
            row.other_lanes = lanes
            row.other_warp = row.warp
            row.other_cta = row.cta
            status = add_hazard(context, row)
            if status != 0:
                return status
    return 0


def product_of(context: Context, number: int, one: int) -> ProductInFlight:
    """The oldest product in flight of a warp's warpgroup that uses a set of registers."""
    base, k = MOST_PRODUCTS * (number // 4), 0
    while True:
        words = context.products[base + k].words
        if words.result_set == one or words.factor_set == one:
            return context.products[base + k]
        k += 1


def row_of_warp(context: Context, number: int, rule: int, lanes: int) -> HazardRow:
    """A row for lanes of a warp, by its number among all that run together, at the current instruction."""
    row, state = hazard_row(context, context.current_record, rule, lanes), context.warps[number]
    row.warp = state.number
    row.cta = state.linear_cta
    return row


def place_chunks(context: Context, cta: int, descriptor: int, rows: int, k_major: int, out: int) -> int:
    """Place the chunks of an operand, ``rows`` lines of 32 bytes of K (PTX ISA, "Shared Memory Matrix Layout",
    "Strides", "Canonical Layouts" and "Matrix Descriptor Format").

    K-major, a chunk is half a line, and 8 lines of it make a core matrix; MN-major, a chunk is 8 lines of 16-bit
    elements at one k. Chunks are in the order [rows / 8, 2, 8]: by eight lines, by half of K, and the eight chunks of a
    core matrix. Returns 2 if one is illegal, and 0 if the descriptor is not modelled: its chunks are poison.
    """
    modelled = descriptor >> 49 & 7 == 0
    limit = context.shared_limit - _CHUNK
    begin = context.shared + cta * context.shared_stride
    poison, placed = context.scratch + SCRATCH_POISON, 1 if modelled else 0
    for outer in range(rows // 8):
        for half in range(2):
            for inner in range(8):
                address = chunk_offset(descriptor, k_major, outer, half, inner)
                legal = address >= 0 and address <= limit
                there = legal and modelled
                store64(out + 8 * (16 * outer + 8 * half + inner), begin + address if there else poison)
                placed = placed if legal or not modelled else _ILLEGAL
    return placed


def chunk_offset(descriptor: int, k_major: int, outer: int, half: int, inner: int) -> int:
    """The offset of a chunk in the CTA's shared memory. A swizzle exchanges chunks by address bits: bits 4 to 6 are
    XORed with bits 7 to 9, within the width of the mode."""
    start, leading = (descriptor & 0x3FFF) << 4, (descriptor >> 16 & 0x3FFF) << 4
    stride, mode = (descriptor >> 32 & 0x3FFF) << 4, descriptor >> 62 & 3
    width = 16 if mode == 0 else 256 >> mode
    across = width // 16
    if k_major:
        place = inner * width + outer * stride + half * (16 if mode else leading)
    elif mode:
        place = (outer & across - 1) * 16 + (outer >> 4 - mode) * leading + inner * width + half * stride
    else:
        place = outer * stride + inner * 16 + half * leading
    address = start + place
    return address ^ (address >> 7 & across - 1) << 4
