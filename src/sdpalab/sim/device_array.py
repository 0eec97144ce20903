"""Arrays in a device's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpalab.sim.errors import LaunchError
from sdpalab.sim.memory import GLOBAL_BASE

__all__ = ["DeviceArray"]


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in a device's memory: a NumPy array whose bytes are those that kernels see.

    Its parts (``x[10:]``, ``x.reshape(...)``) lie in the same memory, and are launch arguments that point there. What
    NumPy computes from it is an ordinary array.
    """

    _memory: tuple[int, int] | None = None
    """Where the device's memory lies in this process, and its bytes."""

    def __array_finalize__(self, parent: Any) -> None:
        """NumPy's hook: views know their device."""
        self._memory = getattr(parent, "_memory", None)

    @property
    def address(self) -> int:
        """The address of the first element on the device.

        Raises
        ------
        LaunchError
            If the array is a copy, which is not on the device.
        """
        begin, size = self._memory or (0, 0)
        offset = int(self.ctypes.data) - begin
        if not 0 <= offset < size:
            raise LaunchError("the array is a copy of one on the device: Device.array puts it there")
        return GLOBAL_BASE + offset
