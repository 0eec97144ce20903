"""Tensor maps as native code reads them."""

from __future__ import annotations

import numpy as np

from warpsan.engine import layout
from warpsan.engine.arrays import Array
from warpsan.engine.memory import MapWords
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
    tensor, words = placed.map, np.zeros(MapWords.byte_size // 8, np.int64)
    kinds, state = [TYPES[name].dtype for name in layout.COMBINED], MapWords(words.ctypes.data)
    state.begin, state.axes, state.item, state.box_bytes = placed.begin, len(tensor.dims), tensor.item, tensor.box_bytes
    state.swizzle = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[tensor.swizzle]
    state.kind = kinds.index(tensor.dtype) if tensor.dtype in kinds else -1
    described = raw[:DESCRIBED_BYTES].ljust(8 * layout.RAW_WORDS, b"\0")
    for array, values in (
        (state.fill, [int.from_bytes(tensor.fill.ljust(8, b"\0"), "little", signed=True)]),
        (state.dims, tensor.dims),
        (state.strides, tensor.strides),
        (state.steps, tensor.steps),
        (state.counts, tensor.counts),
        (state.raw, np.frombuffer(described, np.int64).tolist()),
    ):
        for k, value in enumerate(values):
            array[k] = value
    return words
