"""Pictures of one access: which banks its lanes touch, and which elements of a tensor.

Banks: CUDA C++ Programming Guide, "Shared Memory": 32 banks of 4 bytes; lanes that access one word share it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from warpsan.engine.selection import WARP, Indices
from warpsan.host.memory import Extent
from warpsan.profile.counters import BANKS
from warpsan.profile.recording import RecordedAccess

__all__ = ["AccessPicture", "TileMap", "TileRow", "access_pictures", "bank_passes", "tile_map"]

_WORD = 4
_MOST_CELLS = 64
"""Of a row of a tile."""
_LONG_ROW = 1024
"""Elements from which on an innermost axis is folded."""

Lanes = tuple[int, ...]


def bank_passes(access: RecordedAccess) -> tuple[tuple[Lanes, ...], ...]:
    """For each pass of a warp's access of shared memory, and each bank, the lanes that it serves.

    Lanes are served 32, 16 or 8 at a time, so that a phase is of 128 bytes; a bank delivers one word a pass, and the
    phase takes as many as the bank with most different words. There are :attr:`RecordedAccess.cost` passes.
    """
    words = max(1, access.width // _WORD)
    phases: dict[int, dict[int, dict[int, list[int]]]] = {}
    for lane, offset in zip(access.lanes.tolist(), access.offset.tolist(), strict=True):
        banks = phases.setdefault(lane // (WARP // words), {})
        for word in range(offset // _WORD, offset // _WORD + words):
            banks.setdefault(word % BANKS, {}).setdefault(word, []).append(lane)
    passes = []
    for _, banks in sorted(phases.items()):
        by_bank = [[tuple(lanes) for _, lanes in sorted(banks.get(bank, {}).items())] for bank in range(BANKS)]
        deepest = max(map(len, by_bank))
        passes += [tuple(each[row] if row < len(each) else () for each in by_bank) for row in range(deepest)]
    return tuple(passes)


@dataclass(frozen=True)
class TileRow:
    """One row: its index along all axes but the innermost, and its cells.

    A cell has the lanes of the pictured access that touch it; None if the block touches it in no access of the
    instruction, and no lane if in another than the pictured one.
    """

    index: tuple[int, ...]
    first: int
    cells: tuple[Lanes | None, ...]


@dataclass(frozen=True)
class TileMap:
    """The elements of a buffer that a block touches at one instruction.

    Attributes
    ----------
    region : str
        ``k[0, 0, 0:64, 0:64]``: the smallest box that holds them all.
    elements : int
        How many there are.
    unit : int
        Elements of a cell.
    rows : tuple of TileRow
        Those that the block touches.
    """

    region: str
    elements: int
    unit: int
    rows: tuple[TileRow, ...]


def tile_map(access: RecordedAccess) -> TileMap | None:
    """The elements of an access of global memory; None if the launch names no array there."""
    buffer = access.buffer
    if buffer is None or not buffer.shape:
        return None
    touched = _elements(access.touched, access.width, buffer)
    pictured = [
        (lane, _elements(np.array([offset]), access.width, buffer))
        for lane, offset in zip(access.lanes.tolist(), access.offset.tolist(), strict=True)
    ]
    length = buffer.shape[-1]
    folded = length > _LONG_ROW
    unit = max(1, access.width // buffer.itemsize)
    row_length = _MOST_CELLS * unit if folded else length
    while -(-row_length // unit) > _MOST_CELLS:
        unit *= 2
    by_cell: dict[int, set[int]] = {}
    for lane, elements in pictured:
        for element in elements.tolist():
            by_cell.setdefault(_cell(element, row_length, unit), set()).add(lane)
    touched_cells = {_cell(element, row_length, unit) for element in touched.tolist()}
    per_row = -(-row_length // unit)
    columns = [cell % per_row for cell in touched_cells]
    first, last = min(columns), max(columns)
    rows = []
    for row in sorted({cell // per_row for cell in touched_cells}):
        index = tuple(int(each) for each in np.unravel_index(row * row_length, buffer.shape))
        cells = tuple(
            tuple(sorted(by_cell.get(row * per_row + column, ()))) if row * per_row + column in touched_cells else None
            for column in range(first, last + 1)
        )
        start = first * unit
        rows.append(TileRow(index[:-1], start + (index[-1] if folded else 0), cells))
    return TileMap(_region(touched, buffer), len(touched), unit, tuple(rows))


@dataclass(frozen=True)
class AccessPicture:
    """What a line accesses in one space or buffer: its instruction of most cost, and all that the block touches.

    Attributes
    ----------
    access : RecordedAccess
        Of the instruction whose access took most wavefronts or sectors.
    instructions : int
        PTX instructions of the line that access the same space or buffer.
    passes : tuple
        Of shared memory, :func:`bank_passes`; else empty.
    tile : TileMap or None
        Of global memory, the elements of all these instructions.
    """

    access: RecordedAccess
    instructions: int
    passes: tuple[tuple[Lanes, ...], ...]
    tile: TileMap | None

    @property
    def least_passes(self) -> int:
        """Wavefronts that the access would take without bank conflicts: one for each 128 bytes of lanes."""
        words = max(1, self.access.width // _WORD)
        return len(np.unique(self.access.lanes // (WARP // words)))


def access_pictures(records: Iterable[RecordedAccess]) -> tuple[AccessPicture, ...]:
    """One picture for each memory, buffer and width that the recorded instructions of a line access."""
    groups: defaultdict[tuple[str, str, Extent | None, int], list[RecordedAccess]] = defaultdict(list)
    for record in records:
        groups[record.entry, record.space, record.buffer, record.width].append(record)
    pictures = []
    for members in groups.values():
        worst = max(members, key=lambda record: record.cost)  # the first of them
        touched = np.unique(np.concatenate([each.touched for each in members if each.block == worst.block]))
        access = replace(worst, touched=touched)
        passes = bank_passes(access) if access.space == "shared" else ()
        pictures.append(AccessPicture(access, len(members), passes, tile_map(access)))
    return tuple(pictures)


def _cell(element: int, row_length: int, unit: int) -> int:
    return element // row_length * -(-row_length // unit) + element % row_length // unit


def _elements(offset: Indices, width: int, buffer: Extent) -> Indices:
    """The elements that accesses of so many bytes touch, each once."""
    each = max(1, width // buffer.itemsize)
    elements: Indices = np.unique((offset // buffer.itemsize)[:, None] + np.arange(each))
    return elements[elements < int(np.prod(buffer.shape))]


def _region(elements: Indices, buffer: Extent) -> str:
    axes: Sequence[Indices] = np.unravel_index(elements, buffer.shape)
    spans = [(int(axis.min()), int(axis.max()) + 1) for axis in axes]
    parts = [str(first) if last == first + 1 else f"{first}:{last}" for first, last in spans]
    return f"{buffer.name}[{', '.join(parts)}]"
