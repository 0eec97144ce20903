"""A GPU for :class:`sdpalab.run.GpuExecutor` where there is none: the driver's calls on an array, launches simulated.

It knows what the CUDA Driver API documents of the calls that the lab makes, and nothing of plans. Enumerations and
structures are cuda.bindings' own. Its machine code is PTX: the driver loads that, too. Memory that was allocated holds
garbage, freed memory may not be freed again, and after a fault every call fails.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver

from sdpalab.sim import SimError, launch
from sdpalab.sim.memory import GLOBAL_BASE
from sdpalab.sim.parser import parse

__all__ = ["BASE", "EmulatedDriver"]

BASE = GLOBAL_BASE + (1 << 16)
"""Address of the first byte: where the simulator places the first array that it is given."""

_SUCCESS, _FAULT = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
_CONTEXT = 0x51
_ALIGN = 256

Answer = tuple[Any, ...]


def _call(does: Callable[..., Answer | None]) -> Callable[..., Answer]:
    """A call of the driver: what it returns behind a status, which is the fault's once there was one."""

    @functools.wraps(does)
    def called(self: EmulatedDriver, *args: Any) -> Answer:
        if self.faulted:
            return (_FAULT, None)
        return (_SUCCESS, *(does(self, *args) or ()))

    return called


class EmulatedDriver:
    """``cuda.bindings.driver`` with one sm_89 in it, and ``size`` bytes of memory."""

    def __init__(self, size: int = 32 << 20) -> None:
        self.memory = np.full(size, 0xA5, np.uint8)
        self.allocated: dict[int, int] = {}
        self.streams: list[int] = []
        self.faulted = False
        self._end = BASE
        self._loaded: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            raise AttributeError(f"the emulated driver has no {name}")
        return getattr(driver, name)  # CUresult, CUlaunchConfig and their like

    def cuGetErrorString(self, status: Any) -> Answer:
        return _SUCCESS, status.name.encode()

    @_call
    def cuDeviceGetCount(self) -> Answer:
        return (1,)

    @_call
    def cuDeviceGet(self, ordinal: int) -> Answer:
        return (ordinal,)

    @_call
    def cuDeviceGetName(self, length: int, device: int) -> Answer:
        return (b"emulated GPU\0",)

    @_call
    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> Answer:
        short = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return (
            {
                "COMPUTE_CAPABILITY_MAJOR": 8,
                "COMPUTE_CAPABILITY_MINOR": 9,
                "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 99 << 10,
                "MULTIPROCESSOR_COUNT": 58,
            }[short],
        )

    @_call
    def cuDevicePrimaryCtxRetain(self, device: int) -> Answer:
        return (_CONTEXT,)

    def cuCtxGetCurrent(self) -> Answer:
        return _SUCCESS, _CONTEXT

    @_call
    def cuCtxPushCurrent(self, context: int) -> None:
        assert context == _CONTEXT

    @_call
    def cuCtxPopCurrent(self) -> Answer:
        return (_CONTEXT,)

    @_call
    def cuCtxSynchronize(self) -> None:
        """Launches run at once: there is nothing to wait for."""

    @_call
    def cuMemAlloc(self, size: int) -> Answer:
        address, self._end = self._end, -(-(self._end + size) // _ALIGN) * _ALIGN
        assert self._end - BASE <= len(self.memory), "the emulated GPU's memory is full"
        self.allocated[address] = size
        return (address,)

    @_call
    def cuMemFree(self, address: int) -> None:
        del self.allocated[address]

    @_call
    def cuMemcpyHtoD(self, address: int, source: int, size: int) -> None:
        ctypes.memmove(self._bytes(address, size).ctypes.data, source, size)

    @_call
    def cuMemcpyDtoH(self, target: int, address: int, size: int) -> None:
        ctypes.memmove(target, self._bytes(address, size).ctypes.data, size)

    @_call
    def cuMemsetD8(self, address: int, byte: int, size: int) -> None:
        self._bytes(address, size)[:] = byte

    @_call
    def cuModuleLoadDataEx(self, image: bytes, count: int, options: list[Any], values: list[Any]) -> Answer:
        self._loaded.append(image.rstrip(b"\0").decode())
        return (len(self._loaded) - 1,)

    @_call
    def cuModuleGetFunction(self, module: int, name: bytes) -> Answer:
        return ((module, name.decode()),)

    @_call
    def cuFuncGetAttribute(self, attribute: Any, function: Any) -> Answer:
        return ({"SHARED_SIZE_BYTES": 0, "MAX_THREADS_PER_BLOCK": 1024}[attribute.name[len("CU_FUNC_ATTRIBUTE_") :]],)

    @_call
    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> None:
        """More shared memory, larger clusters: the simulator allows what the architecture does."""

    @_call
    def cuLaunchKernelEx(self, config: Any, function: tuple[int, str], parameters: int, extra: int) -> None:
        ptx, name = self._loaded[function[0]], function[1]
        entry = parse(ptx).entries[name]
        pointers = (ctypes.c_void_p * len(entry.params)).from_address(parameters)
        raw = [ctypes.string_at(at, param.size) for at, param in zip(pointers, entry.params, strict=True)]
        end = BASE + len(self.memory)
        addresses = {place: int.from_bytes(value, "little") for place, value in enumerate(raw) if len(value) == 8}
        addresses = {place: address for place, address in addresses.items() if BASE <= address < end}
        # The simulator places the first array at BASE; what comes behind it in memory keeps its distance.
        first = min(addresses.values(), default=BASE)
        args: list[Any] = [
            BASE + addresses[place] - first if place in addresses else value for place, value in enumerate(raw)
        ]
        if addresses:
            args[min(addresses, key=addresses.__getitem__)] = self.memory[first - BASE :]
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        self.streams.append(int(config.hStream))
        try:
            launch(ptx, name, grid, block, args, dynamic_smem=config.sharedMemBytes, checks=())
        except SimError:
            self.faulted = True  # a later call says so: launches do not wait

    def _bytes(self, address: int, size: int) -> np.ndarray[Any, Any]:
        begin = address - BASE
        inside = any(start <= address and address + size <= start + length for start, length in self.allocated.items())
        assert inside, f"{size} bytes at {address:#x} are not allocated"
        return self.memory[begin : begin + size]
