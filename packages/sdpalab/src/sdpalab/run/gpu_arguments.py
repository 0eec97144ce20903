"""Arguments of a launch for the CUDA driver: a parameter block, and tensor maps encoded by the driver.

Only :func:`encode` needs a GPU. Sources: CUDA Driver API, "Execution Control" (kernelParams) and "Tensor Map Object
Management"; PTX ISA, "Kernel Parameter Attributes".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sdpalab.errors import UserError
from sdpalab.kernels.plan import Launch, TiledMap
from sdpalab.run.gpu_driver import GpuDevice
from warpsan import LaunchError, TensorMap
from warpsan.host import DESCRIPTOR_BYTES, Arena, parameter_block
from warpsan.ptx import Entry, parse

__all__ = [
    "Parameters",
    "TensorMapFields",
    "encode",
    "entry_of",
    "parameter_bytes",
    "replace_address",
    "tensor_map_fields",
]

_ALIGN = 128
"""Alignment in bytes; the driver needs a CUtensorMap aligned to 64 (CUDA 12) or 128 (CUDA 13)."""

_SINCE = 12000
"""Requested version of the tensor map functions: that of CUDA 12.0."""

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_uint
_ENCODE_TILED = (_POINTER, _NUMBER, _NUMBER, *(_POINTER,) * 5, *(_NUMBER,) * 4)
_REPLACE_ADDRESS = (_POINTER, _POINTER)
"""Types of the functions' parameters."""

_DATA_TYPES = {
    **dict.fromkeys(("uint8", "int8", "bool", "float8_e4m3fn", "float8_e5m2"), "UINT8"),
    **dict.fromkeys(("uint16", "int16"), "UINT16"),
    **{name: name.upper() for name in ("uint32", "int32", "uint64", "int64", "float16", "float32", "float64")},
    "bfloat16": "BFLOAT16",
}
"""``CU_TENSOR_MAP_DATA_TYPE_*`` by the elements' dtype; 8 and 16 bits have no signed type, which copies do not need."""


@dataclass(frozen=True)
class TensorMapFields:
    """The arguments of ``cuTensorMapEncodeTiled``, innermost axis first, enumerations by name suffix.

    Attributes
    ----------
    data_type : str
        Such as ``FLOAT16``.
    address : int
        Address of the tensor in device memory, a multiple of 16.
    dims : tuple of int
        Elements along each axis.
    strides : tuple of int
        Bytes from one element to the next along each axis but the innermost.
    box, element_strides : tuple of int
    swizzle : str
        ``NONE``, ``32B``, ``64B`` or ``128B``.
    oob_fill : str
        ``NONE`` (zeros) or ``NAN_REQUEST_ZERO_FMA``.
    """

    data_type: str
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: str
    oob_fill: str


def tensor_map_fields(tensor: TensorMap, address: int) -> TensorMapFields:
    """Fields of a tensor map whose buffer is at ``address``, for the driver.

    Raises
    ------
    LaunchError
        If tensor maps do not support the element type, or the address is not a multiple of 16.
    """
    name = tensor.array.dtype.name
    if name not in _DATA_TYPES:
        raise LaunchError(f"a tensor map has no elements of type {name}; it has: {', '.join(_DATA_TYPES)}")
    if address % 16:
        raise LaunchError(f"a tensor map's buffer lies at a multiple of 16 bytes, not at {address:#x}")
    return TensorMapFields(
        _DATA_TYPES[name],
        address,
        tensor.tiling.dims,
        tensor.tiling.strides[1:],
        tensor.tiling.box,
        tensor.tiling.steps,
        tensor.tiling.swizzle.upper(),
        "NAN_REQUEST_ZERO_FMA" if any(tensor.tiling.fill) else "NONE",
    )


def encode(device: GpuDevice, fields: TensorMapFields) -> bytes:
    """The 128 bytes of the tensor map from ``cuTensorMapEncodeTiled``.

    The function is called by its address, not through cuda.bindings: the ``CUtensorMap`` of cuda.bindings may be
    unaligned, while the driver needs an aligned one (NVIDIA/cuda-python, pull request 1692: a crash).

    Raises
    ------
    MachineError
        If the driver lacks the function, or rejects the map.
    """
    names = device.driver
    memory = _aligned(DESCRIPTOR_BYTES)
    rank = len(fields.dims)
    status = _function(device, "cuTensorMapEncodeTiled", *_ENCODE_TILED)(
        ctypes.addressof(memory),
        int(getattr(names.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{fields.data_type}")),
        rank,
        fields.address,
        (ctypes.c_uint64 * rank)(*fields.dims),
        (ctypes.c_uint64 * rank)(*fields.strides),
        (ctypes.c_uint32 * rank)(*fields.box),
        (ctypes.c_uint32 * rank)(*fields.element_strides),
        int(names.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(getattr(names.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{fields.swizzle}")),
        int(names.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(getattr(names.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fields.oob_fill}")),
    )
    device.check((names.CUresult(status),), f"encode the tensor map {fields}")
    return bytes(memory)


def replace_address(device: GpuDevice, tensor_map: int, address: int) -> None:
    """Change the device address of the encoded map at ``tensor_map`` in host memory to ``address``.

    Raises
    ------
    MachineError
        If the driver lacks ``cuTensorMapReplaceAddress``, or rejects the address.
    """
    status = _function(device, "cuTensorMapReplaceAddress", *_REPLACE_ADDRESS)(tensor_map, address)
    device.check((device.driver.CUresult(status),), f"move a tensor map to {address:#x}")


@cache
def _function(device: GpuDevice, name: str, *kinds: type) -> Callable[..., int]:
    """A function of the driver by its address."""
    answer = device.driver.cuGetProcAddress(name.encode(), _SINCE, 0)
    address = device.check(answer, f"give {name}, which CUDA 12.0 and later have")
    return ctypes.CFUNCTYPE(ctypes.c_uint, *kinds)(address)


def entry_of(ptx: str | bytes, name: str) -> Entry:
    """Parse the entry, whose parameters define the arguments of a launch.

    Raises
    ------
    warpsan.PtxSyntaxError, warpsan.UnsupportedInstruction
        If the PTX cannot be read.
    UserError
        If the PTX has no such entry.
    """
    module = parse((ptx.decode() if isinstance(ptx, bytes) else ptx).rstrip("\0"))
    if name not in module.entries:
        raise UserError(f"the PTX has no entry {name!r}; it has: {', '.join(module.entries) or 'none'}")
    return module.entries[name]


def parameter_bytes(
    entry: Entry, step: Launch, addresses: Mapping[str, int], encoded: Callable[[TiledMap], bytes], where: str
) -> bytes:
    """The parameter block of a step, packed by the simulator's own rules.

    Parameters
    ----------
    entry : Entry
        Entry of the launched PTX.
    step : Launch
    addresses : mapping of str to int
        Device address of each buffer.
    encoded : callable
        Returns the 128 bytes of a tensor map.
    where : str
        Name of the step in messages.

    Raises
    ------
    UserError
        If a buffer does not exist, or an argument does not match its parameter.
    """
    values: list[Any] = []
    for place, argument in enumerate(step.args):
        if isinstance(argument, (int, float)):
            values.append(argument)
            continue
        name = argument.buffer if isinstance(argument, TiledMap) else argument
        if name not in addresses:
            raise UserError(f"{where} names buffer {name!r}; the plan has: {', '.join(addresses)}")
        if isinstance(argument, TiledMap):
            values.append(encoded(argument))
            continue
        param = entry.params[place] if place < len(entry.params) else None
        if param is not None and (param.size != 8 or param.type.is_float):
            raise UserError(f"{where}: argument {place} is buffer {name}, and the parameter is a .{param.type.name}")
        values.append(addresses[name])
    try:
        return parameter_block(entry, values, Arena())
    except LaunchError as error:
        raise UserError(f"{where}: {error}") from None


class Parameters:
    """A parameter block at a fixed address, and pointers to its parameters, in the form for launches.

    Parameters
    ----------
    entry : Entry
    block : bytes
        Result of :func:`parameter_bytes`.

    Attributes
    ----------
    address : int
        Address of the array of pointers (``kernelParams``), valid as long as this object.
    """

    def __init__(self, entry: Entry, block: bytes) -> None:
        self._block = _aligned(len(block))
        ctypes.memmove(self._block, block, len(block))
        start = ctypes.addressof(self._block)
        self._pointers = (ctypes.c_void_p * len(entry.params))(*(start + param.offset for param in entry.params))
        self.address = ctypes.addressof(self._pointers)

    def word(self, offset: int) -> ctypes.c_uint64:
        """The eight bytes of the block at ``offset``, for reads and writes."""
        return ctypes.c_uint64.from_buffer(self._block, offset)


def _aligned(size: int) -> ctypes.Array[ctypes.c_char]:
    """``size`` zero bytes, aligned to 128 bytes."""
    raw = ctypes.create_string_buffer(size + _ALIGN)
    return (ctypes.c_char * size).from_buffer(raw, -ctypes.addressof(raw) % _ALIGN)
