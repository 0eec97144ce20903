"""A launch as the driver gets it, decoded, and run on the simulator.

``CUlaunchConfig`` and ``CUlaunchAttribute`` lie as cuda.h has them on 64-bit machines; a tensor map is 128 bytes of the
stand-in's own, which its encode writes and a launch recognises.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from standin_memory import Memory
from standin_modules import Function

from warpsan import Pointer, Report, TensorMap, launch
from warpsan.host.tensor_map import DESCRIPTOR_BYTES

__all__ = ["EncodedMap", "LaunchRequest", "Refused", "check", "decode_config", "run"]

CLUSTER_DIMENSION, PROGRAMMATIC = 4, 6
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION and .._PROGRAMMATIC_STREAM_SERIALIZATION."""

_MAGIC = b"stand-in map 1\0\0"

_TYPES: dict[int, Any] = dict(
    enumerate(
        (
            *(np.uint8, np.uint16, np.uint32, np.int32, np.uint64, np.int64),
            *(np.float16, np.float32, np.float64, ml_dtypes.bfloat16),
        )
    )
)
"""By CUtensorMapDataType."""
_SWIZZLES = ("none", "32B", "64B", "128B")


class Refused(Exception):
    """A launch that the driver does not take: the CUresult, and why."""

    def __init__(self, result: int, reason: str) -> None:
        super().__init__(reason)
        self.result = result


@dataclass(frozen=True)
class LaunchRequest:
    """Grid, block and cluster, bytes of dynamic shared memory, the stream's handle, and whether the launch may overlap
    the one before it in the stream."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int
    stream: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    programmatic: bool = False


def decode_config(address: int) -> LaunchRequest:
    """A ``CUlaunchConfig``; attributes other than these two are refused."""
    *sizes, stream, attributes, count = struct.unpack("<7I4xQQI", ctypes.string_at(address, 52))
    gx, gy, gz, bx, by, bz, smem = sizes
    request = LaunchRequest((gx, gy, gz), (bx, by, bz), smem, stream)
    for place in range(count):
        # An id, and behind it at a multiple of 8 a value of 64 bytes.
        kind, x, y, z = struct.unpack("<I4xIII", ctypes.string_at(attributes + 72 * place, 20))
        if kind == CLUSTER_DIMENSION:
            request = replace(request, cluster=(x, y, z))
        elif kind == PROGRAMMATIC:
            request = replace(request, programmatic=bool(x))
        else:
            raise Refused(801, f"launch attribute {kind} is not modelled")
    return request


@dataclass(frozen=True)
class EncodedMap:
    """Fields of a tensor map, innermost axis first."""

    type: int
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    fill_nan: bool

    def tensor_map(self, array: Any, offset: int) -> TensorMap:
        """As the simulator takes it, on an array of bytes; LaunchError for what the driver refuses."""
        dtype = np.dtype(_TYPES[self.type])
        return TensorMap(
            array[: len(array) // dtype.itemsize * dtype.itemsize].view(dtype),
            self.box[::-1],
            _SWIZZLES[self.swizzle],
            shape=self.dims[::-1],
            strides=(*self.strides[::-1], dtype.itemsize),
            element_strides=self.steps[::-1],
            oob_fill="nan" if self.fill_nan else "zero",
            offset=offset,
        )

    @property
    def reach(self) -> int:
        """Bytes from the first element's begin to the last one's end."""
        item = np.dtype(_TYPES[self.type]).itemsize
        return item + sum((size - 1) * stride for size, stride in zip(self.dims, (item, *self.strides), strict=True))

    def moved(self, address: int) -> EncodedMap:
        """The same of another buffer."""
        return replace(self, address=address)

    def pack(self) -> bytes:
        """The 128 bytes."""
        rank = len(self.dims)
        numbers = struct.pack(
            f"<QBBBB{rank}I{rank - 1}Q{rank}H{rank}B",
            *(self.address, self.type, rank, self.swizzle, self.fill_nan),
            *self.dims,
            *self.strides,
            *self.box,
            *self.steps,
        )
        return (_MAGIC + numbers).ljust(DESCRIPTOR_BYTES, b"\0")

    @staticmethod
    def unpack(raw: bytes) -> EncodedMap | None:
        """A map from its bytes; None if they are none."""
        if not raw.startswith(_MAGIC):
            return None
        at = len(_MAGIC)
        address, kind, rank, swizzle, fill = struct.unpack_from("<QBBBB", raw, at)
        values = struct.unpack_from(f"<{rank}I{rank - 1}Q{rank}H{rank}B", raw, at + 12)
        dims, strides, box, steps = (
            values[begin : begin + size]
            for begin, size in ((0, rank), (rank, rank - 1), (2 * rank - 1, rank), (3 * rank - 1, rank))
        )
        return EncodedMap(kind, address, dims, strides, box, steps, swizzle, bool(fill))


def check(function: Function, request: LaunchRequest, capability: int, shared_limit: int) -> None:
    """Raise Refused for what the driver does not launch."""
    threads, blocks = math.prod(request.block), math.prod(request.cluster)
    if not threads or not math.prod(request.grid):
        raise Refused(1, f"grid {request.grid}, block {request.block}")
    if threads > function.max_threads:
        raise Refused(701, f"{threads} threads a block, and {function.name} takes {function.max_threads}")
    if request.smem > function.dynamic_smem or function.static_smem + request.smem > shared_limit:
        raise Refused(1, f"{request.smem} bytes of dynamic shared memory, and {function.dynamic_smem} are allowed")
    if blocks > 1 and capability < 90:
        raise Refused(1, "this GPU has no clusters")
    if blocks > (16 if function.large_clusters else 8):
        raise Refused(912, f"{blocks} blocks a cluster")
    if any(size % each for size, each in zip(request.grid, request.cluster, strict=True)):
        raise Refused(1, f"grid {request.grid} is no multiple of cluster {request.cluster}")


def run(
    function: Function, request: LaunchRequest, parameters: Sequence[bytes], memory: Memory, **options: Any
) -> Report:
    """Launch on the simulator, with the memory that the parameters point into."""
    return launch(
        function.module.ptx,
        function.name,
        request.grid,
        request.block,
        [_argument(raw, memory) for raw in parameters],
        dynamic_smem=request.smem,
        cluster=request.cluster,
        programmatic=request.programmatic,
        workers=1,
        **options,
    )


def _argument(raw: bytes, memory: Memory) -> Any:
    """A parameter's bytes as they are, or what they point at."""
    if len(raw) == 8 and (region := memory.region(address := int.from_bytes(raw, "little"))) is not None:
        return Pointer(region.bytes, address - region.begin)
    if len(raw) == DESCRIPTOR_BYTES and (encoded := EncodedMap.unpack(raw)) is not None:
        region = memory.region(encoded.address)
        if region is None or encoded.address + encoded.reach > region.end:
            raise Refused(700, f"a tensor map reaches {encoded.reach} bytes from {encoded.address:#x} on")
        return encoded.tensor_map(region.bytes, encoded.address - region.begin)
    return raw
