"""Tensor maps: the description of a tensor in global memory for bulk tensor copies, and the elements of a box.

Sources: CUDA Driver API, "Tensor Map Object Management" (limits, swizzles), and PTX ISA, "Tensors" (boxes, out of
bounds, swizzling modes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdpalab.sim.errors import LaunchError
from sdpalab.sim.selection import Array, Indices, Mask

__all__ = ["DESCRIPTOR_BYTES", "MAGIC", "Box", "PlacedMap", "TensorMap", "swizzled"]

DESCRIPTOR_BYTES = 128
MAGIC = b"sdpalab.TensorMap"
"""What a descriptor begins with; the number of its map follows."""
_SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
"""How many bits of the number of a 128-byte row are XORed into the number of a 16-byte chunk."""


class TensorMap:
    """A tensor map (``CUtensorMap``) as a launch argument, for a parameter of 128 bytes. Tiled mode.

    Parameters
    ----------
    array : ndarray
        The buffer, contiguous; elements of 1, 2, 4 or 8 bytes.
    box : sequence of int
        Elements of a box along each axis, in NumPy's order (the innermost last).
    swizzle : {"none", "32B", "64B", "128B"}
    shape : sequence of int, optional
        The tensor's shape, at most five axes in NumPy's order; that of the array by default.
    strides : sequence of int, optional
        Bytes from one element to the next along each axis; those of a contiguous tensor by default. The last is the
        element's size.
    element_strides : sequence of int, optional
        Every how many elements of each axis the box takes one; 1 by default, and always along the last axis.
    interleave : {"none"}
    oob_fill : {"zero", "nan"}
        What elements of the box outside the tensor become.
    offset : int
        Bytes from the beginning of the array to that of the tensor, a multiple of 16.

    Raises
    ------
    LaunchError
        For what the driver would refuse.
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
        self.array, self.swizzle, self.item, self.offset = array, swizzle, array.dtype.itemsize, offset
        dims = tuple(int(size) for size in (array.shape if shape is None else shape))
        if strides is None:
            strides = [self.item * int(np.prod(dims[axis + 1 :])) for axis in range(len(dims))]
        steps = [1] * len(dims) if element_strides is None else element_strides
        for name, values in (("box", box), ("strides", strides), ("element_strides", steps)):
            if len(values) != len(dims):
                raise LaunchError(f"a tensor map of {len(dims)} axes needs {len(dims)} numbers in {name}, not {values}")
        # From here on innermost first, as PTX counts coordinates.
        self.dims: tuple[int, ...] = dims[::-1]
        self.strides = tuple(int(stride) for stride in reversed(strides))
        self.steps = tuple(int(step) for step in reversed(steps))
        self.box = tuple(int(size) for size in reversed(box))
        self._check(interleave, oob_fill)
        self.counts = tuple(-(-size // step) for size, step in zip(self.box, self.steps, strict=True))
        """Elements of a box along each axis that are copied."""
        self.bytes = int(np.prod(self.counts)) * self.item
        self.fill = bytes(self.item) if oob_fill == "zero" else np.array(np.nan, array.dtype).tobytes()

    def _check(self, interleave: str, oob_fill: str) -> None:
        """The driver's limits."""
        inner = self.box[0] * self.item if self.box else 0
        span = {"none": inner, "32B": 32, "64B": 64, "128B": 128}.get(self.swizzle, -1)
        ends = self.offset + self.item
        ends += sum((size - 1) * stride for size, stride in zip(self.dims, self.strides, strict=True))
        floating = self.array.dtype.kind not in "iub"
        far = any(stride % 16 or not 0 < stride < 1 << 40 for stride in self.strides[1:])
        for wrong, why in (
            (not 1 <= len(self.dims) <= 5, f"has 1 to 5 axes, not {len(self.dims)}"),
            (self.item not in (1, 2, 4, 8), f"has elements of 1, 2, 4 or 8 bytes, not {self.item}"),
            (min(self.dims, default=1) < 1, f"has at least one element along every axis, not {self.dims[::-1]}"),
            (span < 0, f"takes swizzle {', '.join(map(repr, _SWIZZLES))}, not {self.swizzle!r}"),
            (interleave != "none", f"takes interleave 'none', not {interleave!r}"),
            (oob_fill not in ("zero", "nan"), f"takes oob_fill 'zero' or 'nan', not {oob_fill!r}"),
            (
                oob_fill == "nan" and not floating,
                f"fills only floating-point elements with NaN, not {self.array.dtype}",
            ),
            (any(not 1 <= size <= 256 for size in self.box), f"has boxes of 1 to 256 elements an axis, not {self.box}"),
            (any(not 1 <= step <= 8 for step in self.steps), "takes element strides from 1 to 8"),
            (self.steps[:1] != (1,), "takes an element stride of 1 along its innermost axis"),
            (self.strides[:1] != (self.item,), "needs its innermost axis contiguous"),
            (far, "needs strides that are multiples of 16"),
            (inner % 16 != 0, f"needs boxes whose innermost axis is a multiple of 16 bytes, not {inner}"),
            (inner > span, f"with a {self.swizzle} swizzle has boxes of at most {span} bytes inside, not {inner}"),
            (self.offset < 0 or self.offset % 16 != 0, f"begins at a multiple of 16 bytes, not at {self.offset}"),
            (ends > self.array.nbytes, f"reaches {ends} bytes into its array, which has {self.array.nbytes}"),
        ):
            if wrong:
                raise LaunchError(f"a tensor map {why}")

    def descriptor(self, number: int) -> bytes:
        """The 128 bytes that a kernel passes on."""
        return (MAGIC + number.to_bytes(4, "little")).ljust(DESCRIPTOR_BYTES, b"\0")


@dataclass(frozen=True)
class Box:
    """The elements of boxes, in units of ``unit`` bytes that are contiguous and inside or outside as a whole.

    Attributes
    ----------
    unit : int
        1, 2, 4, 8 or 16.
    index : ndarray of int64 [boxes, units]
        Where each unit lies in the global space, in the order of shared memory before the swizzle.
    inside : ndarray of bool [boxes, units]
    """

    unit: int
    index: Indices
    inside: Mask


@dataclass(frozen=True)
class PlacedMap:
    """A tensor map of a launch; ``begin`` is where its tensor begins in the global space."""

    map: TensorMap
    begin: int

    @staticmethod
    def number(descriptor: bytes) -> int | None:
        """The number of a map from its descriptor; None if it is none."""
        if not descriptor.startswith(MAGIC):
            return None
        return int.from_bytes(descriptor[len(MAGIC) : len(MAGIC) + 4], "little")

    def box_at(self, coordinates: Indices) -> Box:
        """The boxes at coordinates [boxes, axes], innermost first; coordinates may lie outside the tensor."""
        tensor = self.map
        starts = int(np.gcd.reduce(coordinates[:, 0])) * tensor.item
        unit = int(np.gcd.reduce([16, starts, tensor.dims[0] * tensor.item, tensor.counts[0] * tensor.item]))
        index = np.full((len(coordinates), 1), self.begin, dtype=np.int64)
        inside = np.ones((len(coordinates), 1), dtype=np.bool_)
        for axis in range(len(tensor.dims) - 1, -1, -1):
            step, count = (tensor.steps[axis], tensor.counts[axis]) if axis else (unit // tensor.item, -1)
            if not axis:
                count = tensor.counts[0] // step
            place = coordinates[:, axis, None] + step * np.arange(count)
            index = (index[:, :, None] + (place * tensor.strides[axis])[:, None]).reshape(len(coordinates), -1)
            fits = (place >= 0) & (place < tensor.dims[axis])
            inside = (inside[:, :, None] & fits[:, None]).reshape(len(coordinates), -1)
        return Box(unit, index, inside)


def swizzled(offset: Indices, mode: str) -> Indices:
    """Shared-memory offsets after the swizzle: bits 4 and up of the address, XORed with its bits 7 and up."""
    mask = (1 << _SWIZZLES[mode]) - 1
    return offset ^ ((offset >> 7 & mask) << 4)
