"""cuBLAS's semantics of a product in NumPy: column-major, leading dimensions, strides, on memory that is an array.

Written from the documentation of cublasGemmStridedBatchedEx, cublasSetStream and cublasSetWorkspace, and supports no
row-major matrices. It stands in for ``nvmath.bindings.cublas``: the same names, parameters and numbers.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["EmulatedCublas", "cuBLASError"]

TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
"""By cudaDataType."""

INVALID_VALUE, EXECUTION_FAILED, NOT_SUPPORTED = 7, 13, 15


class cuBLASError(Exception):
    """A status other than success."""


class Operation(IntEnum):
    N = 0
    T = 1


class ComputeType(IntEnum):
    COMPUTE_32F = 68


class GemmAlgo(IntEnum):
    DEFAULT = -1


class Math(IntEnum):
    DEFAULT_MATH = 0
    DISALLOW_REDUCED_PRECISION_REDUCTION = 16


class EmulatedCublas:
    """The library, with one handle, on ``memory`` (uint8) that begins at the device address ``base``."""

    Operation, ComputeType, GemmAlgo, Math, cuBLASError = Operation, ComputeType, GemmAlgo, Math, cuBLASError

    def __init__(self, memory: np.ndarray, base: int) -> None:
        self.memory, self.base = memory, base
        self.streams: list[int] = []
        self.math_mode = int(Math.DEFAULT_MATH)
        self.broken = False
        self._stream, self._workspace = 0, (0, 0)

    def create(self) -> int:
        return 4711

    def set_math_mode(self, handle: int, mode: int) -> None:
        self._status(handle == 4711, INVALID_VALUE)
        self.math_mode = mode

    def set_stream(self, handle: int, stream_id: int) -> None:
        self._status(handle == 4711, INVALID_VALUE)
        self._stream, self._workspace = stream_id, (0, 0)  # back to the handle's own memory, whatever was set

    def set_workspace(self, handle: int, workspace: int, workspace_size_in_bytes: int) -> None:
        self._status(handle == 4711 and workspace % 256 == 0, INVALID_VALUE)
        self._workspace = workspace, workspace_size_in_bytes

    def gemm_strided_batched_ex(
        self,
        handle: int,
        transa: int,
        transb: int,
        m: int,
        n: int,
        k: int,
        alpha: int,
        a: int,
        atype: int,
        lda: int,
        stride_a: int,
        b: int,
        btype: int,
        ldb: int,
        stride_b: int,
        beta: int,
        c: int,
        ctype: int,
        ldc: int,
        stride_c: int,
        batch_count: int,
        compute_type: int,
        algo: int,
    ) -> None:
        self._status(not self.broken, EXECUTION_FAILED)
        self._status(handle == 4711 and min(m, n, k, batch_count) >= 0, INVALID_VALUE)
        self._status(lda >= max(1, k if transa else m) and ldb >= max(1, n if transb else k), INVALID_VALUE)
        self._status(ldc >= max(1, m), INVALID_VALUE)
        self._status(compute_type == ComputeType.COMPUTE_32F and algo == GemmAlgo.DEFAULT, NOT_SUPPORTED)
        self._status(atype == btype and ctype in (atype, 0), NOT_SUPPORTED)
        one, zero = (ctypes.c_float.from_address(scalar).value for scalar in (alpha, beta))
        for i in range(batch_count):
            left = self._at(a, atype, (k, m) if transa else (m, k), lda, i * stride_a).astype(np.float32)
            right = self._at(b, btype, (n, k) if transb else (k, n), ldb, i * stride_b).astype(np.float32)
            matrix = self._at(c, ctype, (m, n), ldc, i * stride_c)
            product = one * ((left.T if transa else left) @ (right.T if transb else right))
            matrix[...] = (product + zero * matrix if zero else product).astype(matrix.dtype)
        self.streams.append(self._stream)
        self.workspace = self._workspace

    def _at(self, address: int, kind: int, shape: tuple[int, int], leading: int, offset: int) -> np.ndarray[Any, Any]:
        """A column-major matrix in memory: element (row, column) is row + column * leading elements from the first."""
        size = TYPES[kind].itemsize
        memory, begin = self._place(address + offset * size)
        assert begin >= 0, "a matrix begins before the memory does"
        return np.ndarray(shape, TYPES[kind], memory, begin, (size, leading * size))

    def _place(self, address: int) -> tuple[np.ndarray[Any, Any], int]:
        """The memory that holds an address, and where in it that is."""
        return self.memory, address - self.base

    def _status(self, good: bool, status: int) -> None:
        if not good:
            raise self.cuBLASError(status)
