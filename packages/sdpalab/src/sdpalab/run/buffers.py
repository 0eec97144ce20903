"""Initial content of a launch plan's buffers, for every executor: copies of the inputs, and poison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sdpalab.errors import UserError
from sdpalab.kernels.plan import Buffer, Gemm, TiledMap
from sdpalab.run.plan_executor import Array
from warpsan import LaunchError, TensorMap
from warpsan.dtypes import dtype_of, filler
from warpsan.numerics import Ring

__all__ = ["multiply", "same_bytes", "starting_array", "tensor_map", "unreleased"]


def starting_array(buffer: Buffer, inputs: Mapping[str, Array], poison: int) -> Array:
    """Initial array of a buffer: a copy of the input, its fill, zeros of a semaphore, or bytes of ``poison``.

    Raises
    ------
    UserError
        If the input is missing or has another shape or dtype, the dtype cannot represent the fill, or the role is
        unknown.
    """
    dtype = dtype_of(buffer.dtype)
    if buffer.fill is not None and buffer.role in ("out", "workspace"):
        return np.full(buffer.shape, filler(buffer.fill, dtype, f"buffer {buffer.name}"))
    if buffer.role in ("out", "workspace", "semaphore"):
        array: Array = np.empty(buffer.shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = 0 if buffer.role == "semaphore" else poison
        return array
    if buffer.role != "in":
        raise UserError(f"buffer {buffer.name} has role {buffer.role!r}: it must be in, out, workspace or semaphore")
    if buffer.name not in inputs:
        raise UserError(f"no input for buffer {buffer.name}; there are: {', '.join(inputs) or 'none'}")
    given = inputs[buffer.name]
    if given.shape != tuple(buffer.shape) or given.dtype != dtype:
        raise UserError(f"input {buffer.name} must be {dtype} {tuple(buffer.shape)}, not {given.dtype} {given.shape}")
    return np.array(given, order="C", copy=True)


def tensor_map(tiled: TiledMap, array: Array, where: str) -> TensorMap:
    """The tensor map on ``array``, its buffer; raises LaunchError for maps that the driver would reject."""
    try:
        return TensorMap(array, tiled.box, tiled.swizzle, shape=tiled.shape, strides=tiled.strides)
    except LaunchError as error:
        raise LaunchError(f"{where}, map of buffer {tiled.buffer}: {error}") from None


def unreleased(buffers: Sequence[Buffer], arrays: Mapping[str, Array]) -> list[str]:
    """One sentence for each semaphore that is not zero after the plan, which would block the next run."""
    messages = []
    for buffer in buffers:
        values = arrays[buffer.name].reshape(-1)
        if buffer.role == "semaphore" and values.any():
            first = int(np.flatnonzero(values)[0])
            messages.append(f"semaphore {buffer.name} is not left as zeros: element {first} is {values[first]}")
    return messages


def multiply(gemm: Gemm, arrays: Mapping[str, Array], ring: Ring | None = None) -> None:
    """Compute the product on the host, in float32 or in a ring, into the array of C.

    Raises
    ------
    UserError
        If a buffer does not exist, or its number of elements differs from that of its matrices.
    """
    reason = gemm.why_not({name: array.size for name, array in arrays.items()})
    if reason is not None:
        raise UserError(reason)

    def matrices(operand: str) -> Array:
        rows, columns, pitch = gemm.matrices[operand]
        return arrays[getattr(gemm, operand)].reshape(gemm.batch, rows, pitch)[:, :, :columns]

    left, right, out = matrices("a"), matrices("b"), matrices("c")
    right = right.swapaxes(1, 2) if gemm.transpose_b else right
    if ring is not None:
        out[...] = ring.product(left, right, out.dtype)
        return
    with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU: overflow is infinite, and NaN stays NaN
        out[...] = np.matmul(left.astype(np.float32), right.astype(np.float32)).astype(out.dtype)


def same_bytes(one: Array, other: Array) -> bool:
    """Whether the arrays are bit-identical, including NaN and the sign of zero."""
    return one.tobytes() == other.tobytes()
