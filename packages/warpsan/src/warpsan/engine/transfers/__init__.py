"""Bulk copies: machine code (:mod:`~warpsan.engine.translate`).

An instruction (:mod:`.issue`) makes one entry for each copy (:mod:`.entries`), which lands later (:mod:`.landing`); a
copy moves a box of a tensor, or a range of bytes (:mod:`.boxes`; the boxes are those of
:mod:`~warpsan.host.tensor_map`).
"""

from warpsan.engine.transfers.arrivals import arrive_behind_copies
from warpsan.engine.transfers.issue import (
    copy_within,
    load_box,
    load_box_of_pair,
    load_bytes,
    store_box,
    store_bytes,
    store_words,
)
from warpsan.engine.transfers.landing import commit_transfers, drained, land_next, wait_for_transfers

__all__ = [
    "arrive_behind_copies",
    "commit_transfers",
    "copy_within",
    "drained",
    "land_next",
    "load_box",
    "load_box_of_pair",
    "load_bytes",
    "store_box",
    "store_bytes",
    "store_words",
    "wait_for_transfers",
]
