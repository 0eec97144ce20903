"""Launch arguments: from Python values to the parameter block, with the addresses of the buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpsan.engine.arrays import Array
from warpsan.errors import LaunchError
from warpsan.host.arena import Arena
from warpsan.host.memory import GLOBAL_BASE
from warpsan.host.tensor_map import DESCRIPTOR_BYTES, TensorMap
from warpsan.ptx.ir import Entry, Param
from warpsan.ptx.names import short_name

__all__ = ["Pointer", "Struct", "filled_struct", "parameter_block"]

_POINTER_BYTES = 8


class Struct:
    """A structure, passed by value or in a buffer, with addresses and tensor maps as members.

    Parameters
    ----------
    data : bytes, ctypes structure, NumPy structured scalar or array
        All bytes of the structure; the bytes of the items are arbitrary.
    items : mapping
        Value of each item by its byte offset, or by field name if ``data`` has fields (``"outer.inner"`` for nested
        fields): an array (its address), a :class:`Pointer`, a list of arrays (the address of a table of their
        addresses), a :class:`~warpsan.host.tensor_map.TensorMap` (its 128 bytes), or None (a null pointer).

    Raises
    ------
    LaunchError
        If an item lies outside the data, is misaligned for its type, or overlaps another item.
    """

    def __init__(self, data: Any, items: Mapping[int | str, Any] | None = None) -> None:
        raw = _by_value(data)
        if raw is None:
            raise LaunchError(
                f"a Struct is made of bytes, a ctypes structure or a NumPy structured scalar, not {type(data).__name__}"
            )
        self.data = raw
        self.items: dict[int, Any] = {}
        for key, value in (items or {}).items():
            offset = _field_offset(data, key) if isinstance(key, str) else int(key)
            self._check(key, offset, value)
            self.items[offset] = value

    def _check(self, key: int | str, offset: int, value: Any) -> None:
        what, size, align = "an address", _POINTER_BYTES, _POINTER_BYTES
        if isinstance(value, TensorMap):
            what, size, align = "a tensor map", DESCRIPTOR_BYTES, 64
        elif not (value is None or isinstance(value, (np.ndarray, Pointer, list, tuple))):
            raise LaunchError(
                f"offset {key!r} of a Struct takes an array, a Pointer, a list of arrays, a TensorMap or None, "
                f"not {type(value).__name__}; numbers belong into its data"
            )
        if offset % align:
            raise LaunchError(f"{what} lies at a multiple of {align} bytes of a Struct, not at {offset}")
        if offset < 0 or offset + size > len(self.data):
            raise LaunchError(f"{what} at offset {offset} reaches beyond the {len(self.data)} bytes of the Struct")
        for other, item in self.items.items():
            end = other + (DESCRIPTOR_BYTES if isinstance(item, TensorMap) else _POINTER_BYTES)
            if offset < end and other < offset + size:
                raise LaunchError(f"the items at offsets {other} and {offset} of a Struct overlap")


@dataclass(frozen=True, eq=False)
class Pointer:
    """A pointer argument to byte ``offset`` of the buffer of ``array``; all of the array is accessible.

    Pointers and tensor maps of one array share its buffer, like pointers into one allocation. For a :class:`Struct` the
    buffer holds the structure, for example a table of pointers.
    """

    array: Array | Struct
    offset: int = 0


def parameter_block(code: Entry, args: Sequence[Any], arena: Arena, called: Sequence[str] = ()) -> bytes:
    """Build the parameter block of a launch, and place all buffers of its arguments in the arena.

    ``called`` has the name of each argument in hazard reports, or is empty.

    Raises
    ------
    LaunchError
        If the arguments do not fit the entry's parameters.
    """
    if len(args) != len(code.params):
        raise LaunchError(f"{short_name(code.name)} takes {len(code.params)} arguments, and {len(args)} were given")
    names = [f"argument {place} ({param.name})" for place, param in enumerate(code.params)]
    if len(names) and max(map(len, names)) > _LONG:
        names = [f"argument {place}" for place in range(len(names))]
    for name, param, value in zip(names, code.params, args, strict=True):
        _check_kind(param, value, name)
    arena.add_arrays((name, array) for name, value in zip(names, args, strict=True) for array in _arrays_in(value))
    last = code.params[-1] if code.params else None
    block = bytearray(last.offset + last.size if last else 0)
    for array_name, value in zip(called, args, strict=False):
        for array in _arrays_in(value) if array_name else ():
            arena.describe(array_name, array)
    for name, param, value in zip(names, code.params, args, strict=True):
        raw = _encoded(value, name, arena)
        raw = _number(param, value, name) if raw is None else raw
        block[param.offset : param.offset + len(raw)] = raw
    return bytes(block)


_LONG = 60
"""Length in characters from which messages omit a parameter's (mangled) name."""


def _check_kind(param: Param, value: Any, name: str) -> None:
    """Raise LaunchError for an argument with another size than its parameter."""
    if isinstance(value, (np.ndarray, Pointer, list, tuple)) and not _is_struct_value(value):
        if param.size != _POINTER_BYTES or param.type.is_float:
            raise LaunchError(f"{name} is an array, and the parameter is {_described(param)}")
        if isinstance(value, Pointer):
            size = len(value.array.data) if isinstance(value.array, Struct) else value.array.nbytes
            if not 0 <= value.offset <= size:
                raise LaunchError(f"{name} points at byte {value.offset} of an array of {size}")
    elif isinstance(value, TensorMap):
        if param.size != DESCRIPTOR_BYTES:
            raise LaunchError(f"{name} is a tensor map, and the parameter has {param.size} bytes")
    else:
        raw = value.data if isinstance(value, Struct) else _by_value(value)
        if raw is not None and len(raw) != param.size:
            raise LaunchError(f"{name} has {len(raw)} bytes, and the parameter has {param.size}")


def _described(param: Param) -> str:
    return f"a .{param.type.name}" if param.size == param.type.bytes else f"a structure of {param.size} bytes"


def _is_struct_value(value: Any) -> bool:
    """Whether a NumPy array is a structured scalar (zero axes), which is passed by value."""
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.names is not None


def _by_value(value: Any) -> bytes | None:
    """The bytes of an argument passed by value unchanged; None for other arguments."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (ctypes.Structure, ctypes.Union, ctypes.Array)):
        return bytes(value)
    if isinstance(value, np.void) or _is_struct_value(value):
        return bytes(value.tobytes())
    return None


def _field_offset(data: Any, name: str) -> int:
    """Byte offset of a field, which may be nested."""
    offset, kind = 0, data.dtype if isinstance(data, (np.void, np.ndarray)) else type(data)
    for part in name.split("."):
        if isinstance(kind, np.dtype):
            if kind.fields is None or part not in kind.fields:
                raise LaunchError(f"the structure has no field {name!r}")
            field = kind.fields[part]
            offset, kind = offset + field[1], field[0]
        else:
            if not hasattr(kind, "_fields_") or part not in (each[0] for each in kind._fields_):
                raise LaunchError(f"the structure has no field {name!r}")
            offset += getattr(kind, part).offset
            kind = next(each[1] for each in kind._fields_ if each[0] == part)
    return offset


def _arrays_in(value: Any) -> Iterator[Array]:
    """The arrays whose addresses an argument contains."""
    if isinstance(value, np.ndarray):
        if not _is_struct_value(value):
            yield value
    elif isinstance(value, (Pointer, TensorMap)):
        yield from _arrays_in(value.array)
    elif isinstance(value, Struct):
        for item in value.items.values():
            yield from _arrays_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays_in(item)


def _encoded(value: Any, name: str, arena: Arena) -> bytes | None:
    """The bytes of an argument other than a number; None for a number."""
    if isinstance(value, np.ndarray) and not _is_struct_value(value):
        return _address(arena.address_of(value))
    if isinstance(value, Pointer):
        if isinstance(value.array, Struct):
            filled = _filled(value.array, name, arena)
            return _address(arena.add(f"the structure of {name}", filled, len(filled)) + value.offset)
        return _address(arena.address_of(value.array) + value.offset)
    if isinstance(value, TensorMap):
        return value.descriptor(arena.address_of(value.array) + value.offset)
    if isinstance(value, Struct):
        return _filled(value, name, arena)
    if isinstance(value, (list, tuple)):
        table = b"".join(_item(item, name, arena) for item in value)
        return _address(arena.add(f"the table of {name}", table, len(table)))
    return _by_value(value)


def filled_struct(value: Struct, name: str, arena: Arena) -> bytes:
    """The bytes of a structure with its items filled in; places their arrays in the arena."""
    arena.add_arrays((name, array) for array in _arrays_in(value))
    return _filled(value, name, arena)


def _filled(value: Struct, name: str, arena: Arena) -> bytes:
    """The bytes of a structure with its items filled in."""
    raw = bytearray(value.data)
    for offset, item in value.items.items():
        part = _item(item, name, arena)
        raw[offset : offset + len(part)] = part
    return bytes(raw)


def _item(item: Any, name: str, arena: Arena) -> bytes:
    """The bytes of an item of a structure or a table."""
    if item is None:
        return _address(0)
    part = _encoded(item, name, arena)
    if part is None or not isinstance(item, (np.ndarray, Pointer, TensorMap, list, tuple)):
        raise LaunchError(f"{name} is a table of arrays, and one of its elements is a {type(item).__name__}")
    return part


def _address(value: int) -> bytes:
    assert value == 0 or value >= GLOBAL_BASE
    return value.to_bytes(_POINTER_BYTES, "little")


def _number(param: Param, value: Any, name: str) -> bytes:
    """The bytes of a number with the type of its parameter."""
    if param.size != param.type.bytes:
        if isinstance(value, np.generic) and value.nbytes == param.size:  # a half is passed as a structure
            return value.tobytes()
        raise LaunchError(f"{name} is a structure of {param.size} bytes; pass a Struct or bytes")
    if value is None and param.size == _POINTER_BYTES and not param.type.is_float:
        return _address(0)
    if isinstance(value, (int, np.integer, np.bool_)) and not param.type.is_float:
        low, high = -(1 << param.type.bits - 1), (1 << param.type.bits) - 1
        if not low <= int(value) <= high:
            raise LaunchError(f"{name} is {value}, which does not fit a .{param.type.name}")
        return (int(value) & high).to_bytes(param.type.bytes, "little")
    if isinstance(value, (int, float, np.integer, np.floating)) and param.type.is_float:
        return np.asarray(float(value)).astype(param.type.dtype).tobytes()
    if isinstance(value, (float, np.floating)) and param.type.kind == "b" and param.type.bits in (32, 64):
        return np.asarray(float(value)).astype(f"f{param.type.bytes}").tobytes()
    raise LaunchError(f"{name} is a {type(value).__name__}, and the parameter is a .{param.type.name}")
