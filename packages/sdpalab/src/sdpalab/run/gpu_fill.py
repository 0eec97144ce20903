"""Fill of a buffer on a GPU before the steps of a plan: asynchronous memsets of the driver.

Source: CUDA Driver API, "Memory Management" (cuMemsetD8Async, cuMemsetD2D32Async).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpalab.inputs import dtype_of
from sdpalab.kernels.plan import Buffer
from sdpalab.run.gpu_driver import GpuDevice
from sdpalab.run.gpu_launch import Call
from warpsan.dtypes import filler

__all__ = ["PreparedFill", "prepare_fill"]


@dataclass
class PreparedFill:
    """A prepared fill: the element's bytes, the address, and the number of elements."""

    buffer: str
    element: bytes
    count: int
    address: int
    label: str

    def call(self, device: GpuDevice, stream: int) -> Call:
        """Function that fills the buffer on a stream, given by its handle."""
        driver = device.driver
        on = driver.CUstream(stream)
        if len(self.element) < 8:
            memset = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}
            value = int.from_bytes(self.element, "little")
            return lambda: memset[len(self.element)](self.address, value, self.count, on)

        def halves() -> tuple[Any, ...]:
            answer: tuple[Any, ...] = ()
            for offset in (0, 4):  # memsets have no 8-byte elements: two strided fills of one word
                word = int.from_bytes(self.element[offset : offset + 4], "little")
                answer = driver.cuMemsetD2D32Async(self.address + offset, 8, word, 1, self.count, on)
                if answer[0] is not driver.CUresult.CUDA_SUCCESS:
                    break
            return answer

        return halves

    def place(self, device: GpuDevice, addresses: Mapping[str, int]) -> None:
        """Move the fill, including functions that :meth:`call` has returned, to the buffer at its new address."""
        self.address = addresses[self.buffer]


def prepare_fill(buffer: Buffer, address: int) -> PreparedFill:
    """Prepare the fill of a buffer; raises UserError if its type cannot represent the value."""
    assert buffer.fill is not None
    element = np.asarray(filler(buffer.fill, dtype_of(buffer.dtype), f"buffer {buffer.name}"))
    return PreparedFill(
        buffer.name, element.tobytes(), math.prod(buffer.shape), address, f"the fill of buffer {buffer.name}"
    )
