"""Buffers in one guarded range of device memory: a write outside a buffer changes a pattern, and is detected.

The pattern is NaN in every float type, so a read outside a buffer also becomes visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

from sdpalab.run.gpu_driver import GpuDevice

__all__ = ["GUARD", "DeviceMemory", "Image", "Scratch", "zero"]

Array = npt.NDArray[Any]

GUARD = 1 << 16
"""Least bytes of the pattern before and after each buffer, the same as between the simulator's buffers."""

_ALIGN = 1024
"""Alignment in bytes, above that of any access, tensor map or swizzle."""


class Image:
    """Host copy of the range: the buffers in sequence, with the pattern between.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The buffers' contents, contiguous; they are copied.

    Attributes
    ----------
    bytes : ndarray of uint8
    offsets : mapping of str to int
        Start of each buffer, a multiple of 1024.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.offsets: dict[str, int] = {}
        self._like = {name: (array.shape, array.dtype, array.nbytes) for name, array in arrays.items()}
        end = GUARD
        for name, array in arrays.items():
            self.offsets[name] = end
            end = -(-(end + array.nbytes + GUARD) // _ALIGN) * _ALIGN
        self.bytes: Array = _pattern(end).copy()
        for name, array in arrays.items():
            self._place(self.bytes, name)[:] = array.reshape(-1).view(np.uint8)

    def array(self, name: str, stretch: Array) -> Array:
        """A copy of a buffer's array in ``stretch``, a range read back from the device."""
        shape, dtype, _ = self._like[name]
        array: Array = self._place(stretch, name).copy().view(dtype).reshape(shape)
        return array

    def damage(self, stretch: Array) -> tuple[str, ...]:
        """One sentence for each buffer with a damaged pattern around it; the nearest buffer is named."""
        wrong = stretch != _pattern(len(stretch))
        for name in self._like:
            self._place(wrong, name)[:] = False
        by_buffer: dict[str, list[int]] = {}
        for at in np.flatnonzero(wrong):
            by_buffer.setdefault(self._nearest(int(at)), []).append(int(at))
        return tuple(
            f"{len(places)} bytes outside buffer {name} were written, the first {self._where(name, places[0])}"
            for name, places in by_buffer.items()
        )

    def _place(self, stretch: Array, name: str) -> Array:
        begin = self.offsets[name]
        return stretch[begin : begin + self._like[name][2]]

    def _distance(self, name: str, at: int) -> int:
        begin = self.offsets[name]
        return begin - at if at < begin else at - (begin + self._like[name][2]) + 1

    def _nearest(self, at: int) -> str:
        return min(self.offsets, key=lambda name: self._distance(name, at))

    def _where(self, name: str, at: int) -> str:
        return f"{self._distance(name, at)} bytes {'before its begin' if at < self.offsets[name] else 'behind its end'}"


class DeviceMemory:
    """A range of device memory with an image in it, freed at the end of a ``with`` block; its context must be
    current."""

    def __init__(self, device: GpuDevice, image: Image) -> None:
        self._device, self._size = device, len(image.bytes)
        driver = device.driver
        action = f"allocate {self._size / 2**20:.1f} MiB"
        self.address = int(device.check(driver.cuMemAlloc(self._size), action))
        with_image = driver.cuMemcpyHtoD(self.address, image.bytes.ctypes.data, self._size)
        try:
            device.check(with_image, "copy the buffers to the GPU")
        except BaseException:
            driver.cuMemFree(self.address)  # no object exists yet that would free it
            raise

    def __enter__(self) -> DeviceMemory:
        return self

    def __exit__(self, *_: object) -> None:
        # In a lost context this fails, and no memory is left to free.
        self._device.driver.cuMemFree(self.address)

    def read(self) -> Array:
        """Current content of the range."""
        stretch: Array = np.empty(self._size, np.uint8)
        answer = self._device.driver.cuMemcpyDtoH(stretch.ctypes.data, self.address, self._size)
        self._device.check(answer, "copy the buffers from the GPU")
        return stretch


class Scratch:
    """Uninitialised device memory, aligned to 256 bytes, freed with its last reference.

    Parameters
    ----------
    device : GpuDevice
        Its context must be current.
    size : int
        Size in bytes.

    Raises
    ------
    MachineError
        If there is not enough memory.
    """

    def __init__(self, device: GpuDevice, size: int) -> None:
        self.size = size
        self.address = int(device.check(device.driver.cuMemAlloc(size), f"allocate {size / 2**20:.1f} MiB"))
        # At process exit the driver frees all memory itself, and may be unloaded before this.
        finalize(self, _free, device, self.address).atexit = False


def zero(device: GpuDevice, stretches: Mapping[str, tuple[int, int]]) -> None:
    """Fill device memory with zeros, after all earlier work and before all later work on any stream.

    Parameters
    ----------
    device : GpuDevice
        Its context must be current.
    stretches : mapping of str to (int, int)
        Address and bytes of each range, by its name in errors. An empty mapping has no effect.

    Raises
    ------
    KernelFault, MachineError
        As :meth:`~sdpalab.run.gpu_driver.GpuDevice.check`.
    """
    if stretches:
        device.synchronize("finish what came before")
        for name, (address, size) in stretches.items():
            device.check(device.driver.cuMemsetD8(address, 0, size), f"fill {name} with zeros")
        device.synchronize("fill memory with zeros")


def _free(device: GpuDevice, address: int) -> None:
    if not device.lost:
        with device.current():
            device.driver.cuMemFree(address)  # waits for earlier users


@cache
def _period() -> Array:
    """NaN of 16 bits, 0x7FFF or 0xFFFF, which are NaN in pairs and by bytes (e4m3) as well.

    Their signs are irregular, so a shifted copy of a neighbour's guard does not match.
    """
    signs = np.random.Generator(np.random.PCG64(0)).integers(0, 2, 65521, dtype=np.uint16)
    return (signs << 15 | 0x7FFF).view(np.uint8)


def _pattern(size: int) -> Array:
    return np.resize(_period(), size)
