"""Arrays in a device's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warpsan.errors import LaunchError
from warpsan.host.arena import Arena
from warpsan.host.memory import GLOBAL_BASE

__all__ = ["DeviceArray"]


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array whose bytes are device memory, as kernels access it.

    Views (``x[10:]``, ``x.reshape(...)``) share the memory and are valid launch arguments. Results of NumPy operations
    are ordinary arrays.
    """

    _arena: Arena | None = None
    """The device's memory."""

    def __array_finalize__(self, parent: Any) -> None:
        """NumPy's hook: views keep their device."""
        self._arena = getattr(parent, "_arena", None)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assign elements; unwritten bytes of the value stay unwritten in the copy."""
        super().__setitem__(key, value)
        if self._arena is not None and self._arena.undefined is not None:
            self._arena.undefined.assigned(self, key, value)

    def fill(self, value: Any) -> None:
        """Set all elements."""
        self[...] = value

    @property
    def unwritten(self) -> npt.NDArray[np.bool_]:
        """Whether each byte of each element is unwritten: bool, with one more axis than the array."""
        undefined = None if self._arena is None else self._arena.undefined
        marks = None if undefined is None else undefined.of(self)
        return np.zeros((*self.shape, self.itemsize), bool) if marks is None else marks != 0

    @property
    def address(self) -> int:
        """Address of the first element on the device.

        Raises
        ------
        LaunchError
            If the array is a copy outside the device's memory.
        """
        memory = None if self._arena is None else self._arena.memory
        offset = -1 if memory is None else int(self.ctypes.data - memory.ctypes.data)
        if memory is None or not 0 <= offset < len(memory):
            raise LaunchError("the array is a copy outside the device: Device.array copies it to the device")
        return GLOBAL_BASE + offset
