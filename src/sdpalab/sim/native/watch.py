"""The checks of accesses to shared and global memory: machine code (:mod:`~sdpalab.sim.native.translate`).

One warp acts at a time, so happens-before needs no more than this (FastTrack, Flanagan and Freund 2009): a time that
grows with every release; for each granule of memory, the warp and the time of its last write, and when each warp last
read it; for each warp, up to which time every warp's accesses come before its own. A page of shared memory sums up what
is known of its granules, so that most accesses need no look at them.

Nothing is reported here. What might be a hazard ends the native run, and the reference engine decides and reports: so
what is suspected may be more than what is wrong, but never less.
"""

from __future__ import annotations

from sdpalab.sim.native.layout import (
    ACTORS,
    ASYNC,
    CLOCKS,
    CURRENT,
    CURRENT_CTA,
    CURRENT_STATE,
    FLOORS,
    FLYING,
    GLOBAL_READERS,
    GLOBAL_SHIFT,
    GLOBAL_WRITERS,
    GRANULE_SHIFT,
    GRANULES,
    PAGE_FLYING,
    PAGE_FULL,
    PAGE_READ,
    PAGE_SHIFT,
    PAGE_WRITTEN,
    PAGES,
    RACE,
    READERS,
    SCRATCH,
    SCRATCH_PLACES,
    SEVERAL,
    UNDEFINED,
    VECTORS,
    WARP_CTA,
    WRITERS,
    WRITTEN,
    WRITTEN_BYTES,
)
from sdpalab.sim.native.words import load8, load32, load64, store8, store32, store64

__all__ = ["copy_begins", "copy_landed", "read_global", "read_shared", "write_global", "write_shared"]


def ordered(context: int, warp: int, tag: int) -> int:
    """Whether the access of a tag (time << 16 | warp) comes before a warp's next one."""
    other = tag & 0xFFFF
    if other == warp:
        return 1
    vector = load64(context + 8 * VECTORS) + 8 * load64(context + 8 * ACTORS) * warp
    return 1 if tag >> 16 <= load64(vector + 8 * other) else 0


# ---- shared memory ---------------------------------------------------------------------------------------------------


def read_shared(context: int, mask: int, low: int, high: int, width: int) -> int:
    """Lanes read; their offsets are in the scratch, the least and the greatest here. A status."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    suspect = 0
    missing = 0
    first = load64(context + 8 * PAGES) * cta
    for page in range(low >> PAGE_SHIFT, (high + width - 1 >> PAGE_SHIFT) + 1):
        place = 8 * (first + page)
        if load64(load64(context + 8 * PAGE_WRITTEN) + place) > floor:
            suspect = 1
        if load64(load64(context + 8 * PAGE_FLYING) + place) != 0:
            suspect = 1
        if load64(load64(context + 8 * PAGE_FULL) + place) == 0:
            missing = 1
        store64(load64(context + 8 * PAGE_READ) + place, max(now, load64(load64(context + 8 * PAGE_READ) + place)))
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    granules = load64(context + 8 * GRANULES) * cta
    plane = load64(context + 8 * READERS) + 4 * load64(context + 8 * GRANULES) * warp_plane(context, warp, cta)
    if missing:
        status = defined(context, mask, width, cta, low, high)
        if status != 0:
            return status
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(many):
                store32(plane + 4 * (granule + k), now)
                if suspect:
                    if load32(load64(context + 8 * FLYING) + 4 * (granules + granule + k)) != 0:
                        return ASYNC
                    tag = load64(load64(context + 8 * WRITERS) + 8 * (granules + granule + k))
                    if not ordered(context, warp, tag):
                        return RACE
    return 0


def warp_plane(context: int, warp: int, cta: int) -> int:
    """The plane of a warp's reads of a CTA's shared memory."""
    return load64(context + 8 * ACTORS) * cta + warp


def defined(context: int, mask: int, width: int, cta: int, low: int, high: int) -> int:
    """Whether all bytes that lanes read have been written; a status."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            bits = load32(written + (offset >> 3)) >> (offset & 7)
            need = (1 << width) - 1
            if bits & need != need:
                return UNDEFINED
    for page in range(low >> PAGE_SHIFT, (high + width - 1 >> PAGE_SHIFT) + 1):
        begin = written + (page << PAGE_SHIFT - 3)
        full = 1
        for k in range(1 << PAGE_SHIFT - 6):
            if load64(begin + 8 * k) != -1:
                full = 0
                break
        store64(load64(context + 8 * PAGE_FULL) + 8 * (load64(context + 8 * PAGES) * cta + page), full)
    return 0


def write_shared(context: int, mask: int, low: int, high: int, width: int) -> int:
    """Lanes write; as :func:`read_shared`."""
    status = may_write(context, mask, low, high, width)
    if status != 0:
        return status
    mark_written(context, mask, width)
    return 0


def may_write(context: int, mask: int, low: int, high: int, width: int) -> int:
    """Whether the writes come after all other accesses; a status."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    first = load64(context + 8 * PAGES) * cta
    written = 0
    read = 0
    for page in range(low >> PAGE_SHIFT, (high + width - 1 >> PAGE_SHIFT) + 1):
        place = 8 * (first + page)
        if load64(load64(context + 8 * PAGE_WRITTEN) + place) > floor:
            written = 1
        if load64(load64(context + 8 * PAGE_FLYING) + place) != 0:
            written = 1
        if load64(load64(context + 8 * PAGE_READ) + place) > floor:
            read = 1
    if written == 0 and read == 0:
        return 0
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    actors, all_granules = load64(context + 8 * ACTORS), load64(context + 8 * GRANULES)
    vector = load64(context + 8 * VECTORS) + 8 * actors * warp
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(many):
                if load32(load64(context + 8 * FLYING) + 4 * (all_granules * cta + granule + k)) != 0:
                    return ASYNC
                if not ordered(context, warp, load64(load64(context + 8 * WRITERS) + 8 * (all_granules * cta + granule + k))):
                    return RACE
    if read:
        for other in range(actors):
            if other == warp:
                continue
            known = load64(vector + 8 * other)
            plane = load64(context + 8 * READERS) + 4 * all_granules * warp_plane(context, other, cta)
            for lane in range(32):
                if mask >> lane & 1:
                    granule = load64(places + 8 * lane) >> shift
                    for k in range(many):
                        if load32(plane + 4 * (granule + k)) > known:
                            return RACE
    return 0


def mark_written(context: int, mask: int, width: int) -> None:
    """The places in the scratch have just been written by the current warp."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    for lane in range(32):
        if mask >> lane & 1:
            mark_bytes(context, cta, load64(places + 8 * lane), width, now << 16 | warp)


def mark_bytes(context: int, cta: int, offset: int, width: int, tag: int) -> None:
    """Bytes of a CTA's shared memory are written, under a tag."""
    shift = load64(context + 8 * GRANULE_SHIFT)
    granule = load64(context + 8 * GRANULES) * cta + (offset >> shift)
    writers = load64(context + 8 * WRITERS)
    for k in range(max(width >> shift, 1)):
        store64(writers + 8 * (granule + k), tag)
    written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta + (offset >> 3)
    if width >= 8:
        for k in range(width >> 3):
            store8(written + k, 0xFF)
    else:
        store8(written, load8(written) | ((1 << width) - 1) << (offset & 7))
    place = load64(context + 8 * PAGE_WRITTEN) + 8 * (load64(context + 8 * PAGES) * cta + (offset >> PAGE_SHIFT))
    store64(place, max(tag >> 16, load64(place)))


# ---- copies in flight ------------------------------------------------------------------------------------------------


def copy_begins(context: int, mask: int, low: int, high: int, width: int) -> int:
    """Lanes issue copies that write these places until they land: nobody may touch them before. A status."""
    status = may_write(context, mask, low, high, width)
    if status != 0:
        return status
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    for lane in range(32):
        if mask >> lane & 1:
            mark_flying(context, cta, load64(places + 8 * lane), width, 1)
    return 0


def mark_flying(context: int, cta: int, offset: int, width: int, by: int) -> None:
    """More copies in flight, or fewer, write these bytes."""
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    granule = load64(context + 8 * GRANULES) * cta + (offset >> shift)
    flying = load64(context + 8 * FLYING)
    for k in range(many):
        store32(flying + 4 * (granule + k), load32(flying + 4 * (granule + k)) + by)
    place = load64(context + 8 * PAGE_FLYING) + 8 * (load64(context + 8 * PAGES) * cta + (offset >> PAGE_SHIFT))
    store64(place, load64(place) + by)


def copy_landed(context: int, offset: int, width: int) -> None:
    """The current warp has waited for a copy: it is as if it had written the data now."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    mark_flying(context, cta, offset, width, -1)
    mark_bytes(context, cta, offset, width, load64(load64(context + 8 * CLOCKS) + 8 * warp) << 16 | warp)


# ---- global memory ---------------------------------------------------------------------------------------------------


def global_tag(context: int) -> int:
    """What an access of the current warp leaves in global memory."""
    warp = load64(context + 8 * CURRENT)
    return load64(context + 8 * CURRENT_CTA) << 40 | load64(load64(context + 8 * CLOCKS) + 8 * warp) << 8 | warp


def conflicts(context: int, tag: int) -> int:
    """Whether the access of a tag may not come before the current warp's: another CTA's, or a warp's unordered."""
    if tag == 0:
        return 0
    cta = tag >> 40
    if cta != load64(context + 8 * CURRENT_CTA):
        return 1
    return 0 if ordered(context, load64(context + 8 * CURRENT), (tag >> 8 & 0xFFFFFFFF) << 16 | tag & 0xFF) else 1


def read_global(context: int, mask: int, width: int) -> int:
    """Lanes read global memory; their offsets in the arena are in the scratch. A status."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GLOBAL_SHIFT)
    many = max(width >> shift, 1)
    writers, readers = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_READERS)
    mine = global_tag(context)
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + many):
                if load64(writers + 8 * k) != 0:
                    if conflicts(context, load64(writers + 8 * k)):
                        return RACE
                before = load64(readers + 8 * k)
                if before != mine:
                    # Of several readers only that there are several is kept, unless those before come first anyway.
                    several = before != 0 and conflicts(context, before)
                    store64(readers + 8 * k, SEVERAL << 40 if several else mine)
    return 0


def write_global(context: int, mask: int, width: int) -> int:
    """Lanes write global memory; as :func:`read_global`."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GLOBAL_SHIFT)
    many = max(width >> shift, 1)
    writers, readers = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_READERS)
    mine = global_tag(context)
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + many):
                if conflicts(context, load64(writers + 8 * k)) or conflicts(context, load64(readers + 8 * k)):
                    return RACE
                store64(writers + 8 * k, mine)
    return 0
