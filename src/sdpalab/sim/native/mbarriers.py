"""mbarriers: their phases, and the lanes that wait for them: machine code (:mod:`~sdpalab.sim.native.translate`).

The rules are those of :mod:`sdpalab.sim.mbarriers`; where one is broken, the native run ends.
"""

from __future__ import annotations

from sdpalab.sim.memory import RANK_SHIFT
from sdpalab.sim.native.layout import (
    AT_MBARRIER,
    CTA_COUNT,
    CURRENT_STATE,
    END_D,
    FIRST_PART,
    LIVE,
    MB_BYTES,
    MB_CTA,
    MB_EXPECTED,
    MB_OFFSET,
    MB_PENDING,
    MB_PHASE,
    MB_VALID,
    MBARRIER_RULE,
    MBARRIER_WORDS,
    MBARRIERS,
    MOST_MBARRIERS,
    OPERANDS,
    PART_FROM,
    PART_INFO,
    PART_MASK,
    PART_MORE,
    PART_STATUS,
    PART_WORDS,
    PARTS,
    READY,
    REGISTER_BYTES,
    REGISTERS,
    SHARED,
    SHARED_LIMIT,
    SHARED_STRIDE,
    WARP_COUNT,
    WARP_CTA,
    WARP_WORDS,
    WARPS,
)
from sdpalab.sim.native.words import load32, load64, store32, store64

__all__ = ["arrive_at", "begin_mbarrier", "bytes_came", "cta_alive", "cta_of", "mbarrier_at", "offset_of"]

_LOW = (1 << RANK_SHIFT) - 1
_MOST = (1 << 20) - 1


def cta_of(context: int, address: int) -> int:
    """The CTA in whose shared memory an address of shared::cluster lies; -1 if there is none."""
    rank = address >> RANK_SHIFT
    if rank == 0:
        return load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    if rank < 0 or rank > load64(context + 8 * CTA_COUNT):
        return -1
    return rank - 1


def offset_of(address: int) -> int:
    """The offset of an address of shared::cluster in its CTA."""
    return address & _LOW


def cta_alive(context: int, cta: int) -> int:
    """Whether a CTA has threads that have not exited."""
    warps = load64(context + 8 * WARP_COUNT)
    for k in range(warps):
        if load64(load64(context + 8 * WARPS) + 8 * (WARP_WORDS * (warps * cta + k) + LIVE)) != 0:
            return 1
    return 0


def mbarrier_at(context: int, cta: int, offset: int) -> int:
    """The mbarrier at an offset of a CTA's shared memory; 0 if there is none."""
    first = load64(context + 8 * MBARRIERS) + 8 * MBARRIER_WORDS * MOST_MBARRIERS * cta
    for k in range(MOST_MBARRIERS):
        entry = first + 8 * MBARRIER_WORDS * k
        if load64(entry + 8 * MB_VALID) == 0:
            return 0
        if load64(entry + 8 * MB_OFFSET) == offset:
            return entry
    return 0


def begin_mbarrier(registers: int, record: int, mask: int, context: int) -> int:
    """``mbarrier.init``: operands are the address's row (64 bits), its offset, and the row of the counts."""
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        address = load64(registers + load32(record + 4 * OPERANDS) + 8 * lane) + load32(record + 4 * (OPERANDS + 1))
        count = load32(registers + load32(record + 4 * (OPERANDS + 2)) + 4 * lane)
        cta, offset = cta_of(context, address), offset_of(address)
        if cta < 0 or offset & 7 or offset > load64(context + 8 * SHARED_LIMIT) - 8 or count < 1 or count > _MOST:
            return MBARRIER_RULE
        if mbarrier_at(context, cta, offset) != 0:  # again: whether that is allowed is a longer story
            return MBARRIER_RULE
        first = load64(context + 8 * MBARRIERS) + 8 * MBARRIER_WORDS * MOST_MBARRIERS * cta
        k = 0
        while k < MOST_MBARRIERS - 1 and load64(first + 8 * (MBARRIER_WORDS * k + MB_VALID)) != 0:
            k += 1
        if k == MOST_MBARRIERS - 1:
            return MBARRIER_RULE
        entry = first + 8 * MBARRIER_WORDS * k
        store64(entry + 8 * MB_OFFSET, offset)
        store64(entry + 8 * MB_VALID, 1)
        store64(entry + 8 * MB_EXPECTED, count)
        store64(entry + 8 * MB_PENDING, count)
        store64(entry + 8 * MB_BYTES, 0)
        store64(entry + 8 * MB_PHASE, 0)
        store64(entry + 8 * MB_CTA, cta)
        place = load64(context + 8 * SHARED) + cta * load64(context + 8 * SHARED_STRIDE) + offset
        store64(place, count)
    return 0


def arrive_at(registers: int, record: int, mask: int, context: int) -> int:
    """``mbarrier.arrive`` without a token.

    Operands are the address's row and offset, the row of the counts or bytes, and whether these are bytes to expect.
    """
    left = mask
    while left != 0:
        entry = 0
        total = 0
        for lane in range(32):
            if left >> lane & 1 == 0:
                continue
            row = registers + load32(record + 4 * OPERANDS)
            address = load64(row + 8 * lane) + load32(record + 4 * (OPERANDS + 1))
            many = load32(registers + load32(record + 4 * (OPERANDS + 2)) + 4 * lane)
            cta = cta_of(context, address)
            mine = mbarrier_at(context, cta, offset_of(address)) if cta >= 0 else 0
            if mine == 0 or many < 0 or cta_alive(context, cta) == 0:
                return MBARRIER_RULE
            if entry == 0:
                entry = mine
            if mine != entry:
                continue
            left = left & ~(1 << lane)
            if load32(record + 4 * (OPERANDS + 3)):
                store64(entry + 8 * MB_BYTES, load64(entry + 8 * MB_BYTES) + many)
                total += 1
            else:
                total += many
        pending = load64(entry + 8 * MB_PENDING)
        if total > pending or load64(entry + 8 * MB_BYTES) > _MOST:
            return MBARRIER_RULE
        store64(entry + 8 * MB_PENDING, pending - total)
        settle(context, entry)
    return 0


def bytes_came(context: int, entry: int, many: int) -> int:
    """Bytes have come that an mbarrier counts; a status."""
    left = load64(entry + 8 * MB_BYTES) - many
    store64(entry + 8 * MB_BYTES, left)
    if left < -_MOST or (left < 0 and load64(entry + 8 * MB_PENDING) == 0):
        return MBARRIER_RULE
    settle(context, entry)
    return 0


def settle(context: int, entry: int) -> None:
    """A complete phase ends, and lanes that wait for it go on."""
    if load64(entry + 8 * MB_PENDING) != 0 or load64(entry + 8 * MB_BYTES) != 0:
        return
    phase = load64(entry + 8 * MB_PHASE) + 1
    store64(entry + 8 * MB_PHASE, phase)
    store64(entry + 8 * MB_PENDING, load64(entry + 8 * MB_EXPECTED))
    warps = load64(context + 8 * WARP_COUNT)
    for number in range(warps * load64(context + 8 * CTA_COUNT)):
        state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * number
        for p in range(load64(state + 8 * PARTS)):
            part = state + 8 * (FIRST_PART + PART_WORDS * p)
            if load64(part + 8 * PART_STATUS) != AT_MBARRIER or load64(part + 8 * PART_INFO) != entry:
                continue
            if phase > load64(part + 8 * PART_MORE):
                store64(part + 8 * PART_STATUS, READY)
                registers = load64(context + 8 * REGISTERS) + number * load64(context + 8 * REGISTER_BYTES)
                row = registers + load32(load64(part + 8 * PART_FROM) + 4 * END_D)
                store32(row, load32(row) | load64(part + 8 * PART_MASK))
