"""Words of memory by their addresses, for functions that are translated to machine code.

These functions also work in plain Python, so that a debugger can step through their callers;
:mod:`~warpsan.engine.translate` replaces them by LLVM instructions.
"""

from __future__ import annotations

import ctypes

__all__ = ["call_operation", "copy", "fill", "load8", "load32", "load64", "popcount", "store8", "store32", "store64"]


def load8(address: int) -> int:
    """The unsigned byte at an address."""
    return ctypes.c_uint8.from_address(address).value


def load32(address: int) -> int:
    """The signed 32-bit word at an address."""
    return ctypes.c_int32.from_address(address).value


def load64(address: int) -> int:
    """The signed 64-bit word at an address."""
    return ctypes.c_int64.from_address(address).value


def store8(address: int, value: int) -> None:
    """Write a byte."""
    ctypes.c_uint8.from_address(address).value = value


def store32(address: int, value: int) -> None:
    """Write a 32-bit word."""
    ctypes.c_int32.from_address(address).value = value


def store64(address: int, value: int) -> None:
    """Write a 64-bit word."""
    ctypes.c_int64.from_address(address).value = value


def copy(target: int, source: int, size: int) -> None:
    """Copy bytes; the ranges may overlap."""
    ctypes.memmove(target, source, size)


def fill(target: int, byte: int, size: int) -> None:
    """Set bytes."""
    ctypes.memset(target, byte & 0xFF, size)


def popcount(value: int) -> int:
    """Bits set in a 64-bit word."""
    return bin(value & (1 << 64) - 1).count("1")


_OPERATION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)


def call_operation(function: int, registers: int, record: int, mask: int, context: int) -> int:
    """Execute one record. Returns its status."""
    status: int = _OPERATION(function)(registers, record, mask & 0xFFFFFFFF, context)
    return status
