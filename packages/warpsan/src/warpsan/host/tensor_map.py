"""Tensor maps: descriptions of tensors in global memory for bulk tensor copies, and the elements of a box.

The 128 bytes of a map hold the whole description: a kernel may copy it, or change fields (``tensormap.replace``). The
layout is specific to the simulator; the driver's layout is not documented.

Sources: CUDA Driver API, "Tensor Map Object Management" (limits, swizzles), and PTX ISA, "Tensors" (boxes, out of
bounds, swizzling modes), "tensormap.replace" (numbers of the fields' values).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from warpsan.engine.arrays import Array
from warpsan.errors import LaunchError
from warpsan.host.memory import GLOBAL_BASE
from warpsan.ptx.forms import DESCRIPTOR_BYTES

__all__ = [
    "ALIGNMENT",
    "BYTE_STRIDES",
    "CHUNK",
    "DESCRIBED_BYTES",
    "DESCRIPTOR_BYTES",
    "PlacedMap",
    "TensorMap",
    "Tiling",
]

ALIGNMENT, CHUNK = 64, 16
"""Alignment of a tensor map in memory, and bytes per chunk of a copy."""
BYTE_STRIDES = 8.5
"""First PTX version (CUDA 12.5) with strides in bytes instead of units of 16 bytes."""
_MAGIC = b"sdpa-map"
_LAYOUT = struct.Struct("<8s 8x Q 5Q 5I 5H 5B 5B")
"""Magic, unused, address; strides in bytes, dims, box and element strides, innermost first; rank, element, interleave,
swizzle, fill. The second word is unused, because CuTe clears its bit 21 for drivers of CUDA 12.2 and earlier.
"""
DESCRIBED_BYTES = _LAYOUT.size
"""Bytes of a map that hold the description."""
_SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
"""Number of bits of a 128-byte row's number that are XORed into the number of a 16-byte chunk."""
_FILLS = ("zero", "nan")
_ELEMENTS = tuple(
    np.dtype(name)
    for name in (
        *("u1", "u2", "u4", "i4", "u8", "i8", "f2", "f4", "f4", "f8", ml_dtypes.bfloat16, "f4", "f4"),
        # Types without a number in PTX, copied as another type.
        *("i1", "i2", "?", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
)
"""Element types by number."""


@dataclass(frozen=True)
class Tiling:
    """Description of a tensor without its address; axes in PTX order, innermost first.

    Attributes
    ----------
    dtype : dtype
        Element type.
    dims, strides, box, steps : tuple of int
        Elements and byte strides along each axis; elements and element strides of a box.
    swizzle : str
    oob_fill : str
        ``zero`` or ``nan``.
    interleave : str
    """

    dtype: np.dtype[np.generic]
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: str = "none"
    oob_fill: str = "zero"
    interleave: str = "none"

    @property
    def item(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def counts(self) -> tuple[int, ...]:
        """Copied elements of a box along each axis."""
        return tuple(-(-size // step) for size, step in zip(self.box, self.steps, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory."""
        return int(np.prod(self.counts)) * self.item

    @property
    def fill(self) -> bytes:
        """Bytes of an element outside the tensor."""
        return bytes(self.item) if self.oob_fill == "zero" else np.array(np.nan, self.dtype).tobytes()

    @property
    def reach(self) -> int:
        """Bytes from the first element of the tensor to the end of the last."""
        return self.item + sum((size - 1) * stride for size, stride in zip(self.dims, self.strides, strict=True))

    def check(self) -> None:
        """Check the driver's limits.

        Raises
        ------
        LaunchError
            For the first violated limit.
        """
        inner = self.box[0] * self.item if self.box else 0
        span = {"none": inner, "32B": 32, "64B": 64, "128B": 128}.get(self.swizzle, -1)
        floating = self.dtype.kind not in "iub"
        axes = range(len(self.dims) - 1, -1, -1)  # axes as NumPy numbers them, outermost first
        bad = [
            (axis, size, stride)
            for axis, size, stride in zip(axes, self.dims, self.strides, strict=True)
            if axis != len(self.dims) - 1 and (stride % 16 or not (size > 1) <= stride < 1 << 40)
        ]
        far = "needs strides that are multiples of 16 bytes below 2^40, and 0 only along an axis of size 1"
        if bad:
            far += f"; along axis {bad[0][0]}, of size {bad[0][1]}, it is {bad[0][2]}"
        for wrong, why in (
            (not 1 <= len(self.dims) <= 5, f"has 1 to 5 axes, not {len(self.dims)}"),
            (self.item not in (1, 2, 4, 8), f"has elements of 1, 2, 4 or 8 bytes, not {self.item}"),
            (min(self.dims, default=1) < 1, f"has at least one element along every axis, not {self.dims[::-1]}"),
            (
                max(self.dims, default=1) >= 1 << 32,
                f"has less than 2^32 elements along every axis, not {self.dims[::-1]}",
            ),
            (span < 0, f"takes swizzle {', '.join(map(repr, _SWIZZLES))}, not {self.swizzle!r}"),
            (self.interleave != "none", f"takes interleave 'none', not {self.interleave!r}"),
            (self.oob_fill not in _FILLS, f"takes oob_fill 'zero' or 'nan', not {self.oob_fill!r}"),
            (
                self.oob_fill == "nan" and not floating,
                f"fills only floating-point elements with NaN, not {self.dtype}",
            ),
            (
                any(not 1 <= size <= 256 for size in self.box),
                f"has boxes of 1 to 256 elements an axis, not {self.box[::-1]}",
            ),
            (any(not 1 <= step <= 8 for step in self.steps), "takes element strides from 1 to 8"),
            (self.steps[:1] != (1,), "takes an element stride of 1 along its innermost axis"),
            (self.strides[:1] != (self.item,), "needs its innermost axis contiguous"),
            (bool(bad), far),
            (inner % 16 != 0, f"needs boxes whose innermost axis is a multiple of 16 bytes, not {inner}"),
            (inner > span, f"with a {self.swizzle} swizzle has boxes of at most {span} bytes inside, not {inner}"),
        ):
            if wrong:
                raise LaunchError(f"a tensor map {why}")

    def packed(self, address: int) -> bytes:
        """The 128 bytes of the map for a tensor at ``address``."""
        code = _ELEMENTS.index(self.dtype) if self.dtype in _ELEMENTS else _ELEMENTS.index(np.dtype(f"u{self.item}"))
        five = [(*values, *(0,) * 5)[:5] for values in (self.strides[1:], self.dims, self.box, self.steps)]
        numbers = len(self.dims) - 1, code, 0, _SWIZZLES[self.swizzle], _FILLS.index(self.oob_fill)
        raw = _LAYOUT.pack(_MAGIC, address, *five[0], *five[1], *five[2], *five[3], *numbers)
        return raw.ljust(DESCRIPTOR_BYTES, b"\0")


class TensorMap:
    """A tensor map (``CUtensorMap``) in tiled mode, for a parameter of 128 bytes.

    Parameters
    ----------
    array : ndarray
        The buffer, contiguous, with elements of 1, 2, 4 or 8 bytes.
    box : sequence of int
        Elements of a box along each axis, in NumPy's order (innermost last).
    swizzle : {"none", "32B", "64B", "128B"}
    shape : sequence of int, optional
        Shape of the tensor, at most five axes in NumPy's order. Default: the shape of the array.
    strides : sequence of int, optional
        Bytes between elements along each axis; the last stride is the element size, and an axis of size 1 may have
        stride 0. Default: contiguous.
    element_strides : sequence of int, optional
        Element stride of the box along each axis; the last one is 1. Default: 1.
    interleave : {"none"}
    oob_fill : {"zero", "nan"}
        Value of box elements outside the tensor.
    offset : int
        Bytes from the start of the array to the tensor, a multiple of 16.

    Raises
    ------
    LaunchError
        If the driver would reject the description.
    """

    def __init__(
        self,
        array: Array,
        box: Sequence[int],
        swizzle: str = "none",
        *,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        element_strides: Sequence[int] | None = None,
        interleave: str = "none",
        oob_fill: str = "zero",
        offset: int = 0,
    ) -> None:
        self.array, self.offset = array, offset
        item = array.dtype.itemsize
        dims = tuple(int(size) for size in (array.shape if shape is None else shape))
        if strides is None:
            strides = [item * int(np.prod(dims[axis + 1 :])) for axis in range(len(dims))]
        steps = [1] * len(dims) if element_strides is None else element_strides
        for name, values in (("box", box), ("strides", strides), ("element_strides", steps)):
            if len(values) != len(dims):
                raise LaunchError(f"a tensor map of {len(dims)} axes needs {len(dims)} numbers in {name}, not {values}")
        inner, far, part, every = (
            tuple(int(value) for value in reversed(each)) for each in (dims, strides, box, steps)
        )
        self.tiling = Tiling(array.dtype, inner, far, part, every, swizzle, oob_fill, interleave)
        self.tiling.check()
        if offset < 0 or offset % 16:
            raise LaunchError(f"a tensor map begins at a multiple of 16 bytes, not at {offset}")
        reach = offset + self.tiling.reach
        if reach > array.nbytes:
            raise LaunchError(f"a tensor map reaches {reach} bytes into its array, which has {array.nbytes}")

    def descriptor(self, address: int) -> bytes:
        """The 128 bytes of the kernel parameter for a tensor at ``address``."""
        return self.tiling.packed(address)


@dataclass(frozen=True)
class PlacedMap:
    """A tensor map read from memory; ``begin`` is the byte index of its tensor in the global space."""

    map: Tiling
    begin: int

    @staticmethod
    def read(descriptor: bytes) -> PlacedMap | None:
        """Decode the tensor map in 128 bytes; None if they hold no map.

        Raises
        ------
        LaunchError
            If the description breaks the driver's limits.
        """
        magic, address, *numbers = _LAYOUT.unpack_from(descriptor)
        if magic != _MAGIC:
            return None
        rank, code, interleave, swizzle, fill = numbers[20:]
        rank += 1
        if rank > 5 or code >= len(_ELEMENTS) or interleave or swizzle >= len(_SWIZZLES) or fill >= len(_FILLS):
            raise LaunchError(
                "a tensor map has a rank, an element type, an interleave, a swizzle or a fill mode that is not modelled"
            )
        strides, dims, box, steps = (tuple(numbers[5 * k : 5 * k + rank]) for k in range(4))
        dtype = _ELEMENTS[code]
        strides = (dtype.itemsize, *strides[: rank - 1])
        tiling = Tiling(dtype, dims, strides, box, steps, tuple(_SWIZZLES)[swizzle], _FILLS[fill])
        tiling.check()
        if address % 16:
            raise LaunchError(f"a tensor map begins at a multiple of 16 bytes, not at {address:#x}")
        return PlacedMap(tiling, address - GLOBAL_BASE)
