"""Banks and elements accessed by a source line, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from warpsan.profile.pictures import AccessPicture, TileMap

__all__ = ["picture_dict", "print_picture"]

_LANES = "0123456789abcdefghijklmnopqrstuv"
"""One character per lane of a warp."""
_MOST_ROWS = 16
"""Maximum rows of a tile."""


def print_picture(console: Console, picture: AccessPicture) -> None:
    """Print the banks by pass, or the part of the tile that the pictured access touches."""
    access = picture.access
    of = f", the costliest of {picture.instructions} at this line" if picture.instructions > 1 else ""
    who = f"warp {access.warp} of block {access.block}"
    console.print(f"{access.text}: {who}, {access.width} bytes a lane{of}", soft_wrap=True)
    if picture.passes:
        _print_banks(console, picture)
    elif picture.tile is not None:
        _print_tile(console, picture.tile, access.cost)
    else:
        console.print(f"  {access.cost} sectors of a buffer without a name", soft_wrap=True)


def _print_banks(console: Console, picture: AccessPicture) -> None:
    """Print a row per pass and a column per bank, with the served lane (0-9, a-v; + for several)."""
    passes = picture.passes
    ideal = picture.least_passes
    count = f"{len(passes)} wavefront{'s' if len(passes) > 1 else ''}"
    text = "no bank conflict" if len(passes) == ideal else f"{len(passes) / ideal:.1f}x: bank conflicts"
    console.print(f"  shared memory: {count}, at least {ideal}; {text}", soft_wrap=True)
    console.print("  bank " + "".join(f"{bank:<8}" for bank in range(0, 32, 4)).rstrip(), soft_wrap=True)
    for number, banks in enumerate(passes, 1):
        cells = "".join(_bank(lanes) for lanes in banks)
        console.print(Text(f"  {number:>4} {cells.rstrip()}"), no_wrap=True, overflow="ellipsis")
    console.print("  columns are banks, rows are wavefronts, 0-9a-v are lanes, + is for several")


def _bank(lanes: tuple[int, ...]) -> str:
    return f"{_LANES[lanes[0]]}{'+' if len(lanes) > 1 else ' '}" if lanes else ". "


def _print_tile(console: Console, tile: TileMap, sectors: int) -> None:
    """Print the rows that the pictured access touches."""
    console.print(
        f"  {tile.region}: {tile.elements:,} elements by the block; {sectors} sectors by this access", soft_wrap=True
    )
    rows = [row for row in tile.rows if any(row.cells)]
    labels = [f"{', '.join(map(str, (*row.index, row.first)))}" for row in rows[:_MOST_ROWS]]
    width = max(map(len, labels), default=0)
    for label, row in zip(labels, rows, strict=False):
        cells = "".join(" " if lanes is None else _LANES[lanes[0]] if lanes else "." for lanes in row.cells)
        console.print(Text(f"  [{label:>{width}}] {cells}"), no_wrap=True, overflow="ellipsis")
    if len(rows) > _MOST_ROWS:
        console.print(f"  and {len(rows) - _MOST_ROWS} more rows")
    elements = f"{tile.unit} element{'s' if tile.unit > 1 else ''}"
    console.print(f"  a cell is {elements}, with its first lane; . if only other accesses touch it")


def picture_dict(place: str, picture: AccessPicture) -> dict[str, Any]:
    """Plain JSON values."""
    access, tile = picture.access, picture.tile
    return {
        "line": place,
        "entry": access.entry,
        "instruction": access.text,
        "instructions": picture.instructions,
        "space": access.space,
        "buffer": access.buffer.name if access.buffer else "",
        "block": list(access.block),
        "warp": access.warp,
        "width": access.width,
        "lanes": access.lanes.tolist(),
        "offsets": access.offset.tolist(),
        "cost": access.cost,
        "passes": [[list(lanes) for lanes in banks] for banks in picture.passes],
        "region": tile.region if tile else "",
        "elements": tile.elements if tile else 0,
    }
