"""Time of each operation of native code, for :mod:`warpsan.profile.self_profile`.

Each place of the table of operations has the address of a function that counts the call of the operation, and notes
its number while it runs. A second thread samples the number. The operations and the loop that calls them are the same
as without measurement, and take as long: reading a clock would take longer than most operations.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from warpsan.engine.arrays import Array
from warpsan.engine.lanes import POINTER, WORD32, WORD64
from warpsan.engine.library import library
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.profile.self_profile import OperationTime, SelfProfile

__all__ = ["OperationTimer"]

_CURRENT_WORDS = 1
"""Words before the table: the number, plus one, of the operation that runs, or 0."""
_ROW, _FUNCTION, _CALLS = 2, 0, 1
"""Words of a row: the address of the operation, its calls. The row of place ``k`` ends ``k`` rows below that word."""
_PERIOD = 50e-6
"""Seconds between two samples, at least."""


class OperationTimer:
    """The table of operations of one thread, with their times.

    Parameters
    ----------
    names : sequence of str
        The names of the operations.
    addresses : ndarray of int64
        Their addresses.

    Attributes
    ----------
    table : ndarray of int64
        The addresses of functions that measure the operations.
    """

    def __init__(self, names: Sequence[str], addresses: Array) -> None:
        self.names = names
        many = len(names)
        words = np.zeros(_ROW * many + _CURRENT_WORDS + many, np.int64)
        rows, current, self.table = np.split(words, [_ROW * many, _ROW * many + _CURRENT_WORDS])
        self._rows = rows.reshape(-1, _ROW)[::-1]
        self._rows[:, _FUNCTION] = addresses
        self.table[:] = library().operations([_noted(k) for k in range(many)])
        self._current = ctypes.c_int64.from_buffer(current.data)
        self._samples = [0] * (many + 1)
        self._seconds = 0.0
        self._ends = threading.Event()

    def __enter__(self) -> None:
        """Native code begins."""
        self._ends.clear()
        self._sampler = threading.Thread(target=self._sample)
        self._sampler.start()
        self._seconds -= time.thread_time()

    def __exit__(self, *_: object) -> None:
        """Native code ends."""
        self._seconds += time.thread_time()
        self._ends.set()
        self._sampler.join()

    def _sample(self) -> None:
        """Count samples of the operation that runs, until native code ends."""
        samples, current = self._samples, self._current
        while not self._ends.is_set():
            samples[current.value] += 1
            time.sleep(_PERIOD)

    def profile(self) -> SelfProfile:
        """The times so far."""
        each_sample = self._seconds / max(sum(self._samples), 1)
        seconds = [each_sample * many for many in self._samples]
        times = zip(self.names, self._rows[:, _CALLS].tolist(), seconds[1:], strict=True)
        operations = [OperationTime(*each) for each in times]
        return SelfProfile({}, tuple(each for each in operations if each.calls), seconds[0])


def _noted(place: int) -> NativeOperation:
    """The function that counts and notes the operation at a place of the table."""

    def build(code: OperationCode) -> None:
        b = code.builder
        table = code.pointer("table")
        current = code.at(table, WORD64(-8 * _CURRENT_WORDS))
        row = -8 * (_CURRENT_WORDS + _ROW * (place + 1))
        function, calls = (code.at(table, WORD64(row + 8 * word)) for word in (_FUNCTION, _CALLS))
        b.store(b.add(b.load(calls, typ=WORD64), WORD64(1)), calls)
        before = b.load(current, typ=WORD64)  # an operation may call another
        b.store(WORD64(place + 1), current)
        signature = ir.FunctionType(WORD64, [POINTER, POINTER, WORD32, POINTER])
        operation = b.inttoptr(b.load(function, typ=WORD64), signature.as_pointer())
        status = b.call(operation, [code.registers, code.record, code.mask, code.base])
        b.store(before, current)
        b.ret(status)

    return NativeOperation(f"noted.{place}", build)
