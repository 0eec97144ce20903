"""Semaphores of a plan on a GPU: zeroed device memory, one range for each stream and for each graph capture.

A plan must leave its semaphores zero (:class:`sdpalab.kernels.plan.Buffer`; the judge reports a violation). Zeros are
therefore written once, at allocation, and not at each launch. Launches on one stream run in sequence and share a range;
launches that can overlap do not:

- each stream has its own range;
- a CUDA graph has its own range for each captured stream until the process ends, because it may be replayed on any
  stream;
- a failed launch may leave other values, so its range is discarded.

The memory is allocated by the driver, not by torch: a tensor that outlives a call would stay in the private pool of a
capture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sdpalab.inputs import dtype_of
from sdpalab.kernels.plan import Buffer
from sdpalab.run.gpu_driver import GpuDevice
from sdpalab.run.gpu_memory import Scratch, zero

__all__ = ["SemaphorePool"]

_ALIGN = 256
_STRETCHES = 16
"""Ranges per allocation: a capture can use a free range, but cannot allocate."""

_OF_GRAPHS: set[Scratch] = set()
"""Memory of captured graphs, which is never freed because the end of a graph is not observable."""


class SemaphorePool:
    """Semaphores of one prepared plan, for launches from one thread.

    Parameters
    ----------
    device : GpuDevice
    buffers : sequence of Buffer
        Buffers with role ``semaphore``; others are ignored.

    Raises
    ------
    MachineError
        If memory is exhausted, or the driver fails.
    """

    def __init__(self, device: GpuDevice, buffers: Sequence[Buffer]) -> None:
        self._device = device
        self._offsets: dict[str, int] = {}
        self._size = 0
        for buffer in buffers:
            if buffer.role == "semaphore":
                self._offsets[buffer.name] = self._size
                used = math.prod(buffer.shape) * dtype_of(buffer.dtype).itemsize
                self._size += -(-used // _ALIGN) * _ALIGN
        self._free: list[tuple[Scratch, int]] = []
        self._taken: dict[tuple[int, int], tuple[Scratch, int]] = {}
        if self._offsets:
            self._allocate()

    def __bool__(self) -> bool:
        """Whether the plan has semaphores."""
        return bool(self._offsets)

    def take(self, stream: int) -> Mapping[str, int] | None:
        """Addresses of zeroed semaphores for a launch on ``stream``, by buffer name.

        Returns None if the stream is being captured and all ranges are in use: allocation is then impossible, and the
        caller must zero memory within the graph. A launch outside a capture allocates more ranges.

        Raises
        ------
        MachineError
            If memory is exhausted, or the driver fails.
        """
        with self._device.current():
            key = stream, self._device.capture_of(stream)
            if key not in self._taken:
                if not self._free and key[1]:
                    return None
                if not self._free:
                    self._allocate()
                self._taken[key] = self._free.pop()
                if key[1]:
                    _OF_GRAPHS.add(self._taken[key][0])
            elif not self._free and not key[1]:
                self._allocate()  # for the next capture
        _, address = self._taken[key]
        return {name: address + offset for name, offset in self._offsets.items()}

    def discard(self, stream: int) -> None:
        """Discard the range of ``stream`` after a failed launch, which may have left values other than zero."""
        for key in [key for key in self._taken if key[0] == stream]:
            del self._taken[key]

    def _allocate(self) -> None:
        with self._device.current():
            scratch = Scratch(self._device, _STRETCHES * self._size)
            zero(self._device, {"the semaphores": (scratch.address, scratch.size)})
        # Popped from the end, so that the order of addresses is the order of streams.
        self._free += [(scratch, scratch.address + self._size * number) for number in reversed(range(_STRETCHES))]
