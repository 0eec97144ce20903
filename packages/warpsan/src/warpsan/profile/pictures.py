"""Pictures of one access: the banks that its lanes touch, and the tensor elements.

Banks: CUDA C++ Programming Guide, "Shared Memory": 32 banks of 4 bytes; one access serves all lanes of a word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from warpsan.engine.arrays import WARP, Indices
from warpsan.host.memory import Extent
from warpsan.profile.counters import BANKS
from warpsan.profile.recording import RecordedAccess

__all__ = ["AccessPicture", "TileMap", "TileRow", "access_pictures", "bank_passes", "tile_map"]

_WORD = 4
_MOST_CELLS = 64
"""Maximum cells in a row of a tile."""
_LONG_ROW = 1024
"""Length in elements from which the innermost axis is folded."""

Lanes = tuple[int, ...]


def bank_passes(access: RecordedAccess) -> tuple[tuple[Lanes, ...], ...]:
    """Lanes served per bank, for each pass of a warp's shared memory access.

    A phase serves 32, 16 or 8 lanes (128 bytes). A bank delivers one word per pass, and a phase takes as many passes as
    the largest number of distinct words in one bank. There are :attr:`RecordedAccess.cost` passes.
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
    """A row of a tile: its index along all axes but the innermost, and its cells.

    A cell has the lanes of the pictured access that touch it: None if the block never touches it at the instruction,
    empty if only other accesses do.
    """

    index: tuple[int, ...]
    first: int
    cells: tuple[Lanes | None, ...]


@dataclass(frozen=True)
class TileMap:
    """Elements of a buffer that a block touches at one instruction.

    Attributes
    ----------
    region : str
        ``k[0, 0, 0:64, 0:64]``: the smallest box that contains the elements.
    elements : int
        Number of elements.
    unit : int
        Elements per cell.
    rows : tuple of TileRow
        Rows that the block touches.
    """

    region: str
    elements: int
    unit: int
    rows: tuple[TileRow, ...]


def tile_map(access: RecordedAccess) -> TileMap | None:
    """Elements of a global memory access; None if the launch has no named array there."""
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
    """Accesses of a source line to one space or buffer: the most expensive instruction, and all touched elements.

    Attributes
    ----------
    access : RecordedAccess
        Access with the most wavefronts or sectors.
    instructions : int
        PTX instructions of the line with an access to the same space or buffer.
    passes : tuple
        :func:`bank_passes` for shared memory; empty for global memory.
    tile : TileMap or None
        Elements of all these instructions, for global memory.
    """

    access: RecordedAccess
    instructions: int
    passes: tuple[tuple[Lanes, ...], ...]
    tile: TileMap | None

    @property
    def least_passes(self) -> int:
        """Wavefronts of the access without bank conflicts: one per 128 bytes."""
        words = max(1, self.access.width // _WORD)
        return len(np.unique(self.access.lanes // (WARP // words)))


def access_pictures(records: Iterable[RecordedAccess]) -> tuple[AccessPicture, ...]:
    """One picture per memory, buffer and width accessed by the recorded instructions of a line."""
    groups: defaultdict[tuple[str, str, Extent | None, int], list[RecordedAccess]] = defaultdict(list)
    for record in records:
        groups[record.entry, record.space, record.buffer, record.width].append(record)
    pictures = []
    for members in groups.values():
        worst = max(members, key=lambda record: record.cost)  # the first maximum
        touched = np.unique(np.concatenate([each.touched for each in members if each.block == worst.block]))
        access = replace(worst, touched=touched)
        passes = bank_passes(access) if access.space == "shared" else ()
        pictures.append(AccessPicture(access, len(members), passes, tile_map(access)))
    return tuple(pictures)


def _cell(element: int, row_length: int, unit: int) -> int:
    return element // row_length * -(-row_length // unit) + element % row_length // unit


def _elements(offset: Indices, width: int, buffer: Extent) -> Indices:
    """Distinct elements touched by accesses of ``width`` bytes."""
    each = max(1, width // buffer.itemsize)
    elements: Indices = np.unique((offset // buffer.itemsize)[:, None] + np.arange(each))
    return elements[elements < int(np.prod(buffer.shape))]


def _region(elements: Indices, buffer: Extent) -> str:
    axes: Sequence[Indices] = np.unravel_index(elements, buffer.shape)
    spans = [(int(axis.min()), int(axis.max()) + 1) for axis in axes]
    parts = [str(first) if last == first + 1 else f"{first}:{last}" for first, last in spans]
    return f"{buffer.name}[{', '.join(parts)}]"
