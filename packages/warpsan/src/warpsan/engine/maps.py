"""Tensor maps as native code reads them."""

from __future__ import annotations

import numpy as np

from warpsan.engine import layout
from warpsan.engine.arrays import Array
from warpsan.errors import LaunchError
from warpsan.host.memory import Space
from warpsan.host.tensor_map import DESCRIBED_BYTES, DESCRIPTOR_BYTES, PlacedMap
from warpsan.ptx.types import TYPES

__all__ = ["map_words", "tensor_maps"]


def tensor_maps(params: bytes, space: Space) -> list[Array]:
    """The tensor maps among the parameters; those of tensors outside ``space`` are left out."""
    places = range(0, len(params) - DESCRIPTOR_BYTES + 1, 64)
    maps = [map_words(params[begin : begin + DESCRIPTOR_BYTES], space) for begin in places]
    return [words for words in maps if words is not None]


def map_words(raw: bytes, space: Space) -> Array | None:
    """The tensor map that 128 bytes describe, int64; None if they describe no tensor in ``space``."""
    try:
        placed = PlacedMap.read(raw)
    except LaunchError:
        return None
    if placed is None or not space.holds(placed.begin, placed.map.reach):
        return None
    tensor, words = placed.map, np.zeros(layout.MAP_WORDS, np.int64)
    described = raw[:DESCRIBED_BYTES].ljust(8 * layout.RAW_WORDS, b"\0")
    words[layout.MAP_RAW : layout.MAP_RAW + layout.RAW_WORDS] = np.frombuffer(described, np.int64)
    words[layout.MAP_BEGIN] = placed.begin
    words[layout.MAP_AXES], words[layout.MAP_ITEM] = len(tensor.dims), tensor.item
    words[layout.MAP_SWIZZLE] = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[tensor.swizzle]
    words[layout.MAP_BYTES] = tensor.box_bytes
    kinds = [TYPES[name].dtype for name in layout.COMBINED]
    words[layout.MAP_KIND] = kinds.index(tensor.dtype) if tensor.dtype in kinds else -1
    words[layout.MAP_FILL] = int.from_bytes(tensor.fill.ljust(8, b"\0"), "little", signed=True)
    for first, values in (
        (layout.MAP_DIMS, tensor.dims),
        (layout.MAP_STRIDES, tensor.strides),
        (layout.MAP_STEPS, tensor.steps),
        (layout.MAP_COUNTS, tensor.counts),
    ):
        words[first : first + len(values)] = values
    return words
