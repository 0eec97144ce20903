"""NumPy's inner loops as C functions, for what the reference engine computes with them (exp2, log2, sin, ...).

A ufunc lists a loop for each combination of types (NumPy's C API, ``PyUFuncObject``): a C function of pointers, a
count, strides and its data, which needs no interpreter. Called on a row of lanes it gives the bits that the reference
engine gets on this machine.
"""

from __future__ import annotations

import ctypes

import numpy as np

__all__ = ["loop_of"]


class _Ufunc(ctypes.Structure):
    """The beginning of ``PyUFuncObject``, which is part of NumPy's ABI."""

    _fields_ = (
        ("refcount", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("inputs", ctypes.c_int),
        ("outputs", ctypes.c_int),
        ("arguments", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("loops", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_char)),
    )


def loop_of(ufunc: np.ufunc, type_: str) -> tuple[int, int]:
    """The addresses of a unary ufunc's loop for f32 or f64, and of its data (0 if it has none)."""
    wanted = np.dtype({"f32": np.float32, "f64": np.float64}[type_]).num
    inside = _Ufunc.from_address(id(ufunc))
    for k in range(inside.loops):
        if inside.types[2 * k][0] == inside.types[2 * k + 1][0] == wanted:
            return int(inside.functions[k] or 0), int(inside.data[k] or 0) if inside.data else 0
    raise LookupError(f"numpy.{ufunc.__name__} has no loop for {type_}")
