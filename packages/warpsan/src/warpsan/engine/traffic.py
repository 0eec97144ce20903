"""The counters of memory traffic: machine code (:mod:`~warpsan.engine.translate`).

Sectors of global memory and wavefronts of shared memory, by the rules of :mod:`warpsan.profile.counters`, for one
warp's access at a time.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import SCRATCH_COUNTS
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.words import load64, store64
from warpsan.profile.tally import SECTOR

__all__ = ["count_global", "count_shared", "count_stretch"]

_BANKS = 32


def distinct(places: Ptr[i64], mask: int, lane: int, shift: int) -> int:
    """Whether no earlier lane has the same place, in units of ``1 << shift`` bytes."""
    mine = places[lane] >> shift
    for other in range(lane):
        if mask >> other & 1 and places[other] >> shift == mine:
            return 0
    return 1


def count_global(context: Context, mask: int, width: int, pc: int, kind: int) -> int:
    """Lanes access global memory at the offsets in the context; ``kind`` is 1 for reads, 2 for writes, 3 for both."""
    places = context.places
    touched, plane = context.touched, context.touched_bytes
    sectors = 0
    different = 0
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        sector = places[lane] // SECTOR
        sectors += distinct(places, mask, lane, 5)
        different += distinct(places, mask, lane, 0)
        if kind & 1:
            touched[sector] = 1
        if kind & 2:
            touched[plane + sector] = 1
    place = context.sectors.at(2 * pc)
    place[0] += sectors
    place[1] += (different * width + SECTOR - 1) // SECTOR
    return 0


def count_shared(context: Context, mask: int, width: int, pc: int, kind: int) -> int:
    """Lanes access shared memory at the offsets in the context: passes of 128 bytes, in phases of a warp's lanes."""
    places = context.places
    words = max(width // 4, 1)
    together = 32 // words
    passes = 0
    least = 0
    for phase in range(words):
        lanes = mask >> phase * together & ((1 << together) - 1)
        if lanes == 0:
            continue
        least += 1
        passes += conflicts_of(places.at(phase * together), lanes, together, words, context.scratch)
    place = context.wavefronts.at(2 * pc)
    place[0] += passes
    place[1] += least
    return 0


def count_stretch(context: Context, pc: int, size: int) -> None:
    """A lane updates a range of shared memory: in one phase, as many passes as words for each bank."""
    place = context.wavefronts.at(2 * pc)
    place[0] += (size + 4 * _BANKS - 1) // (4 * _BANKS)
    place[1] += 1


def conflicts_of(places: Ptr[i64], lanes: int, many: int, words: int, scratch: int) -> int:
    """The largest number of different words that one bank must deliver to some lanes."""
    counts = scratch + SCRATCH_COUNTS
    seen = counts + 8 * _BANKS  # for each bank the words so far
    for bank in range(_BANKS):
        store64(counts + 8 * bank, 0)
    most = 0
    for lane in range(many):
        if lanes >> lane & 1 == 0:
            continue
        first = places[lane] // 4
        for word in range(first, first + words):
            bank = word % _BANKS
            count = load64(counts + 8 * bank)
            known = 0
            for k in range(count):
                if load64(seen + 8 * (_BANKS * bank + k)) == word:
                    known = 1
                    break
            if known == 0:
                store64(seen + 8 * (_BANKS * bank + count), word)
                store64(counts + 8 * bank, count + 1)
                most = max(most, count + 1)
    return most
