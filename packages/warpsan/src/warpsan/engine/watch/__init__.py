"""The checks of accesses to shared and global memory: machine code (:mod:`~warpsan.engine.translate`).

One warp acts at a time, so happens-before needs only this (FastTrack, Flanagan and Freund 2009): a time that grows with
every release; for each granule of memory, the warp and the time of its last write, and the time of each warp's last
read; for each warp, the time up to which every warp's accesses come before its own. A page of shared memory has a
summary of its granules, so that most accesses need no check of them.

A race in shared memory is a row (:mod:`~..races`), which ends a run without space for rows. Lanes of one warp are
compared exactly if rows are kept (:mod:`~..lane_races`), and so are accesses to global memory (:mod:`~..global_races`).
Without space for rows, the first run ends at a possible race, which may be none; it misses none.
"""

from warpsan.engine.watch.global_memory import (
    conflicts,
    plain_tag,
    read_constant,
    read_global,
    read_pieces,
    read_strong,
    update_pieces,
    write_global,
    write_pieces,
    write_strong,
    written_nearby,
)
from warpsan.engine.watch.prerequisites import wait_for_grids
from warpsan.engine.watch.releases import fence_memory
from warpsan.engine.watch.shared_memory import (
    copies_landed,
    copy_begins,
    look_at_pages,
    look_before_write,
    mark_flying,
    mark_pages,
    mark_written,
    read_followed,
    read_shared,
    read_strong_shared,
    update_shared,
    write_shared,
    write_strong_shared,
)

__all__ = [
    "conflicts",
    "copies_landed",
    "copy_begins",
    "fence_memory",
    "look_at_pages",
    "look_before_write",
    "mark_flying",
    "mark_pages",
    "mark_written",
    "plain_tag",
    "read_constant",
    "read_followed",
    "read_global",
    "read_pieces",
    "read_shared",
    "read_strong",
    "read_strong_shared",
    "update_pieces",
    "update_shared",
    "wait_for_grids",
    "write_global",
    "write_pieces",
    "write_shared",
    "write_strong",
    "write_strong_shared",
    "written_nearby",
]
