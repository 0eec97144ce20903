"""Semaphores of a plan on a GPU: device memory of zeros, one stretch for each stream and for each graph capture.

A plan leaves its semaphores as zeros (:class:`sdpalab.kernels.plan.Buffer`; the judge reports a plan that does not), so
that zeros are written once, when memory is allocated, and no launch fills anything. Launches on one stream run one
after the other and share a stretch; launches that may run at the same time never do:

- another stream has another stretch;
- a CUDA graph has one of its own for each stream of its capture, for as long as the process lives, because it may be
  replayed on any stream;
- a launch that fails may leave other values, and so its stretch is discarded.

The memory is the driver's and not torch's: a tensor that outlives a call would stay in the private pool of a capture.
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
"""Stretches that are allocated at a time: a capture can take one of those that are left, and cannot allocate."""

_OF_GRAPHS: set[Scratch] = set()
"""Memory that a captured graph uses: the end of a graph shows nowhere, and so it is never freed."""


class SemaphorePool:
    """The semaphores of one prepared plan, which one thread launches.

    Parameters
    ----------
    device : GpuDevice
    buffers : sequence of Buffer
        Those of role ``semaphore``; any others are ignored.

    Raises
    ------
    MachineError
        If there is no memory, or the driver fails.
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
        """Addresses of zeros for a launch on ``stream``, by the buffers' names.

        None if the stream is being captured and all stretches are taken: nothing can be allocated then, and the caller
        has to fill memory of the capture within the graph. A launch outside a capture allocates more.

        Raises
        ------
        MachineError
            If there is no memory, or the driver fails.
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
        """Use the stretches of ``stream`` no more: a launch on it failed, and may have left other values than zeros."""
        for key in [key for key in self._taken if key[0] == stream]:
            del self._taken[key]

    def _allocate(self) -> None:
        with self._device.current():
            scratch = Scratch(self._device, _STRETCHES * self._size)
            zero(self._device, {"the semaphores": (scratch.address, scratch.size)})
        # The last is taken first: the order of addresses is the order of streams.
        self._free += [(scratch, scratch.address + self._size * number) for number in reversed(range(_STRETCHES))]
