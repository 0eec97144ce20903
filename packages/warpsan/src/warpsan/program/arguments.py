"""Launch arguments decoded from bytes: numbers, references to buffers, and structures with both."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from warpsan.build.constants import arguments_in
from warpsan.host.memory import GLOBAL_BASE
from warpsan.host.tensor_map import DESCRIPTOR_BYTES, PlacedMap
from warpsan.program.state import Allocation
from warpsan.ptx.ir import Param

__all__ = ["described_argument", "element_types"]

_TYPES = {
    "float": "float32",
    "double": "float64",
    "__half": "float16",
    "__nv_bfloat16": "bfloat16",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned int": "uint32",
    "long": "int64",
    "unsigned long": "uint64",
    "long long": "int64",
    "unsigned long long": "uint64",
    "cutlass::half_t": "float16",
    "cutlass::bfloat16_t": "bfloat16",
}
_ALIGN = 8
_MAP_ALIGN = 64

Finder = Callable[[int], Allocation | None]


def element_types(name: str, count: int) -> list[str]:
    """Element type of each pointer among ``count`` parameters, from a demangled name; ``uint8`` if unknown.

    The type of a number has the prefix ``=``: ``=int32``.
    """
    begin = _parameters_at(name)
    parts = arguments_in(name[begin + 1 : name.rfind(")")], angles=True) if begin >= 0 else []
    if len(parts) != count:
        return ["uint8"] * count
    types = []
    for part in parts:
        bare = re.sub(r"\b(const|volatile|__restrict__?)\b", " ", part).strip()
        pointer = bare.endswith("*")
        known = _TYPES.get(" ".join(bare.rstrip("* ").split()))
        types.append((known if pointer else f"={known}") if known else "uint8")
    return types


def _parameters_at(name: str) -> int:
    """Start of the parameters in a demangled function name; -1 without any."""
    depth, begin = 0, -1
    for place, character in enumerate(name):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == "(" and depth == 0 and not name.startswith("(anonymous", place):
            begin = place
            break
    return begin


def described_argument(param: Param, raw: bytes, type_: str, allocation_at: Finder, names: Mapping[int, str]) -> Any:
    """An argument in the format of a launch file.

    Parameters
    ----------
    param : Param
    raw : bytes
        Bytes from the program.
    type_ : str
        Item of :func:`element_types`.
    allocation_at : function
        Returns the allocation that contains an address.
    names : mapping
        Names of buffers by address.
    """
    if param.size != param.type.bytes:
        return _structure(raw, allocation_at, names)
    value = int.from_bytes(raw, "little")
    if param.size == 8 and not param.type.is_float and value >= GLOBAL_BASE:
        reference = _reference(value, allocation_at, names)
        if reference is not None:
            return reference
    if param.type.is_float or type_ in ("=float32", "=float64"):
        code = {2: "<e", 4: "<f", 8: "<d"}[param.size]
        number = struct.unpack(code, raw)[0]
        return number if math.isfinite(number) else {"bytes": raw.hex()}
    if type_.startswith("=int") and value >> (8 * param.size - 1):
        return value - (1 << 8 * param.size)
    return value


def _reference(value: int, allocation_at: Finder, names: Mapping[int, str]) -> Any:
    """The buffer that contains an address, or None."""
    allocation = allocation_at(value) or allocation_at(value - 1)  # an end pointer belongs to the allocation before it
    if allocation is None or allocation.address not in names:
        return None
    name, offset = names[allocation.address], value - allocation.address
    return {"buffer": name, "offset": offset} if offset else name


def _structure(raw: bytes, allocation_at: Finder, names: Mapping[int, str]) -> dict[str, Any]:
    """A structure, with names in place of its addresses and tensor maps."""
    items: dict[str, Any] = {}
    at = 0
    while at + _ALIGN <= len(raw):
        described, size = None, _ALIGN
        if at % _MAP_ALIGN == 0 and at + DESCRIPTOR_BYTES <= len(raw):
            described = _map(raw[at : at + DESCRIPTOR_BYTES], allocation_at, names)
            size = DESCRIPTOR_BYTES if described is not None else _ALIGN
        value = int.from_bytes(raw[at : at + _ALIGN], "little")
        if described is None and value >= GLOBAL_BASE:
            described = _reference(value, allocation_at, names)
        if described is not None:
            items[str(at)] = described
        at += size
    if not items:
        return {"bytes": raw.hex()}
    return {"struct": {"size": len(raw), "data": raw.hex(), "items": items}}


def _map(raw: bytes, allocation_at: Finder, names: Mapping[int, str]) -> dict[str, Any] | None:
    """A tensor map, or None for other bytes."""
    placed = PlacedMap.read(raw)
    allocation = allocation_at(GLOBAL_BASE + placed.begin) if placed is not None else None
    if placed is None or allocation is None or allocation.address not in names:
        return None
    tiling = placed.map
    facts: dict[str, Any] = {
        "buffer": names[allocation.address],
        "box": list(tiling.box[::-1]),
        "swizzle": tiling.swizzle,
        "shape": list(tiling.dims[::-1]),
        "strides": list(tiling.strides[::-1]),
        "element_strides": list(tiling.steps[::-1]),
        "oob_fill": tiling.oob_fill,
        "dtype": tiling.dtype.name,
    }
    offset = GLOBAL_BASE + placed.begin - allocation.address
    return {"map": facts | ({"offset": offset} if offset else {})}
