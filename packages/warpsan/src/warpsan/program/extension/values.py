"""Values between host code and Python: the layout of ``warpsan_host.h``, and their conversion."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["DTYPES", "CLaunch", "CProcess", "CValue", "Handles"]

NONE, INTEGER, REAL, BOOLEAN, TEXT, TENSOR, LIST, DTYPE, KEYWORD, TUPLE = range(10)
DTYPES: Mapping[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}
"""Numbers of ``c10::ScalarType``."""


class CValue(ctypes.Structure):
    """``warpsan_host::Value``."""


CValue._fields_ = [
    ("kind", ctypes.c_int32),
    ("count", ctypes.c_int32),
    ("integer", ctypes.c_int64),
    ("real", ctypes.c_double),
    ("text", ctypes.c_char_p),
    ("items", ctypes.POINTER(CValue)),
]


class CLaunch(ctypes.Structure):
    """``warpsan_host::Launch``."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("template_arguments", ctypes.POINTER(ctypes.c_char_p)),
        ("template_count", ctypes.c_int32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("cooperative", ctypes.c_int32),
        ("dynamic_smem", ctypes.c_uint64),
        ("count", ctypes.c_int32),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("sizes", ctypes.POINTER(ctypes.c_uint64)),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_int32),
    )


class CProcess(ctypes.Structure):
    """``warpsan_host::Process``."""

    _fields_ = (
        (
            "call",
            ctypes.CFUNCTYPE(
                ctypes.c_int32, ctypes.c_char_p, ctypes.POINTER(CValue), ctypes.c_int32, ctypes.POINTER(CValue)
            ),
        ),
        ("release", ctypes.CFUNCTYPE(None, ctypes.c_int64)),
        ("launch", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(CLaunch))),
    )


class Handles:
    """Tensors that host code holds, by number."""

    def __init__(self) -> None:
        self._tensors: dict[int, torch.Tensor] = {}
        self._next = 1
        self._memory: list[Any] = []

    def release(self, handle: int) -> None:
        """Host code holds this handle no longer."""
        self._tensors.pop(handle, None)

    def encode(self, value: Any, into: CValue) -> None:
        """Store a value; its memory lives until the next call of this function."""
        self._memory = []
        self._encode(value, into)

    def array(self, values: Sequence[Any]) -> tuple[Any, list[Any]]:
        """An array of values, and the memory behind its pointers, which the caller holds."""
        self._memory = []
        array = (CValue * max(1, len(values)))()
        for value, into in zip(values, array, strict=False):
            self._encode(value, into)
        return array, self._memory

    def decode(self, value: CValue) -> Any:
        """A Python value; a keyword is a pair of its name and its value."""
        kind = value.kind
        if kind == TENSOR:
            return self._tensors[value.integer]
        if kind in (LIST, TUPLE):
            items = [self.decode(value.items[i]) for i in range(value.count)]
            return items if kind == LIST else tuple(items)
        if kind == TEXT:
            return (value.text or b"").decode(errors="replace")
        if kind == KEYWORD:
            return (value.text or b"").decode(), self.decode(value.items[0])
        plain = {NONE: None, INTEGER: value.integer, REAL: value.real, BOOLEAN: bool(value.integer)}
        return DTYPES[value.integer] if kind == DTYPE else plain[kind]

    def _encode(self, value: Any, into: CValue) -> None:
        if isinstance(value, torch.Tensor):
            into.kind, into.integer = TENSOR, self._next
            self._tensors[self._next] = value
            self._next += 1
        elif value is None:
            into.kind = NONE
        elif isinstance(value, bool):
            into.kind, into.integer = BOOLEAN, value
        elif isinstance(value, int):
            into.kind, into.integer = INTEGER, value
        elif isinstance(value, float):
            into.kind, into.real = REAL, value
        elif isinstance(value, str):
            text = value.encode()
            self._memory.append(text)
            into.kind, into.text = TEXT, text
        elif isinstance(value, torch.dtype):
            into.kind, into.integer = DTYPE, next(number for number, each in DTYPES.items() if each is value)
        elif isinstance(value, (list, tuple)):
            array = (CValue * max(1, len(value)))()
            for each, place in zip(value, array, strict=False):
                self._encode(each, place)
            self._memory.append(array)
            into.kind, into.count, into.items = (TUPLE if isinstance(value, tuple) else LIST), len(value), array
        else:
            raise TypeError(
                f"an argument of an extension is a tensor, a number, a text or a list, not {type(value).__name__}"
            )
