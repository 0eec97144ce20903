"""Tensor map encoding (CUDA Driver API, "Tensor Map Object Management")."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from warpsan import LaunchError
from warpsan.host.tensor_map import Tiling
from warpsan.program.errors import CallError
from warpsan.program.handlers import handles
from warpsan.program.state import ProgramState
from warpsan.program.wire import Request

__all__ = ["encode_tiled"]

_TYPES = ("u1", "u2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ml_dtypes.bfloat16, "f4", "f4", "f4")
"""Element types by CUtensorMapDataType."""
_SWIZZLES = ("none", "32B", "64B", "128B")
_FILLS = ("zero", "nan")


@handles("cuTensorMapEncodeTiled")
def encode_tiled(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the 128 bytes of a tensor map in the simulator's layout."""
    given = request.arguments
    kind, rank, address, interleave, swizzle, fill = given.words(6)
    dims, strides = given.words(rank), given.words(rank - 1)
    box, steps = given.ints(rank), given.ints(rank)
    if kind >= len(_TYPES) or swizzle >= len(_SWIZZLES) or interleave or fill >= len(_FILLS):
        raise CallError(
            "cudaErrorNotSupported",
            f"a tensor map of type {kind}, interleave {interleave}, swizzle {swizzle} and fill {fill} is not modelled",
        )
    if address % 16:
        raise CallError("cudaErrorInvalidValue", f"a tensor map begins at a multiple of 16 bytes, not at {address:#x}")
    dtype = np.dtype(_TYPES[kind])
    tiling = Tiling(dtype, dims, (dtype.itemsize, *strides), box, steps, _SWIZZLES[swizzle], _FILLS[fill])
    try:
        tiling.check()
    except LaunchError as error:
        raise CallError("cudaErrorInvalidValue", str(error)) from None
    return [tiling.packed(address)]
