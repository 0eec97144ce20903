"""Words of memory by their addresses, for functions that are translated to machine code.

These functions also work in plain Python, so that a debugger can step through their callers;
:mod:`~warpsan.engine.translate` replaces them by LLVM instructions.
"""

from __future__ import annotations

import ctypes
import operator
from typing import SupportsIndex

__all__ = ["call_operation", "copy", "fill", "load8", "load32", "load64", "popcount", "store8", "store32", "store64"]


def load8(address: SupportsIndex) -> int:
    """The unsigned byte at an address."""
    return ctypes.c_uint8.from_address(operator.index(address)).value


def load32(address: SupportsIndex) -> int:
    """The signed 32-bit word at an address."""
    return ctypes.c_int32.from_address(operator.index(address)).value


def load64(address: SupportsIndex) -> int:
    """The signed 64-bit word at an address."""
    return ctypes.c_int64.from_address(operator.index(address)).value


def store8(address: SupportsIndex, value: int) -> None:
    """Write a byte."""
    ctypes.c_uint8.from_address(operator.index(address)).value = value


def store32(address: SupportsIndex, value: int) -> None:
    """Write a 32-bit word."""
    ctypes.c_int32.from_address(operator.index(address)).value = value


def store64(address: SupportsIndex, value: int) -> None:
    """Write a 64-bit word."""
    ctypes.c_int64.from_address(operator.index(address)).value = value


def copy(target: SupportsIndex, source: SupportsIndex, size: int) -> None:
    """Copy bytes; the ranges may overlap."""
    ctypes.memmove(operator.index(target), operator.index(source), size)


def fill(target: SupportsIndex, byte: int, size: int) -> None:
    """Set bytes."""
    ctypes.memset(operator.index(target), byte & 0xFF, size)


def popcount(value: int) -> int:
    """Bits set in a 64-bit word."""
    return bin(value & (1 << 64) - 1).count("1")


_OPERATION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)


def call_operation(function: int, registers: int, record: SupportsIndex, mask: int, context: SupportsIndex) -> int:
    """Execute one record. Returns its status."""
    status: int = _OPERATION(function)(registers, operator.index(record), mask & 0xFFFFFFFF, operator.index(context))
    return status
