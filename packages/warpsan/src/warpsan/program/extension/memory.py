"""Memory of the simulated device behind CPU tensors: each storage has an array there while it exists."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from warpsan import Device, DeviceArray
from warpsan.host.memory import GLOBAL_BASE

__all__ = ["DeviceMemory"]

_INVALID_VALUE = 1
"""cudaErrorInvalidValue."""
_BYTES = 1 << 27
"""Size of the device. The checks of a launch mark each of its bytes."""
_GAP = 1 << 17
"""Address space of an allocation beside its bytes, at most."""
Bytes = npt.NDArray[np.uint8]


class _Mapped:
    """A storage on the device."""

    def __init__(self, tensor: torch.Tensor, array: DeviceArray, *, empty: bool) -> None:
        storage = tensor.untyped_storage()
        self.reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.array, self.element_bytes = array, tensor.element_size()
        self.nbytes = storage.nbytes()
        host = _bytes_of(tensor)
        self.synced: Bytes | None = host.copy() if empty else None


def _is_gone(reference: StorageWeakRef) -> bool:
    gone: bool = reference.expired()  # type: ignore[no-untyped-call]
    return gone


class DeviceMemory:
    """The device, and the storages of tensors on it.

    Attributes
    ----------
    device : Device
    """

    def __init__(self, fill: str) -> None:
        self._fill = fill
        self.device = Device(_BYTES, fill=fill)
        self._taken = 0
        self._mapped: dict[int, _Mapped] = {}
        self._used: dict[int, torch.Tensor] = {}
        self._unwritten: dict[int, StorageWeakRef] = {}
        self._allocated: dict[int, DeviceArray] = {}
        self._before: dict[int, Bytes] = {}

    def begin_call(self) -> None:
        """Before a call of the function: its tensors are those that it uses from now on."""
        self._used.clear()
        if self._taken > _BYTES // 2 and not self._allocated:
            self.device, self._taken = Device(_BYTES, fill=self._fill), 0
            self._mapped.clear()
        for address in [each for each, mapped in self._mapped.items() if _is_gone(mapped.reference)]:
            self.device.free(self._mapped.pop(address).array)

    def is_new(self, tensor: torch.Tensor) -> None:
        """A tensor whose elements nothing has written."""
        storage = tensor.untyped_storage()
        self._unwritten[storage.data_ptr()] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def address(self, tensor: torch.Tensor) -> int:
        """Address of a tensor's first element on the device; 0 for an empty tensor."""
        storage = tensor.untyped_storage()
        host = storage.data_ptr()
        if not storage.nbytes():
            return 0
        mapped = self._mapped.get(host)
        if mapped is not None and (_is_gone(mapped.reference) or mapped.nbytes != storage.nbytes()):
            self.device.free(mapped.array)
            mapped = None
        if mapped is None:
            unwritten = self._unwritten.pop(host, None)
            empty = unwritten is not None and not _is_gone(unwritten)
            array = self._new(storage.nbytes(), f"tensor {list(tensor.shape)}")
            mapped = self._mapped[host] = _Mapped(tensor, array, empty=empty)
        self._used[host] = tensor
        return int(mapped.array.address) + int(tensor.storage_offset()) * tensor.element_size()

    def allocate(self, size: int) -> int:
        """``cudaMalloc``."""
        if not size:
            return 0
        array = self._new(size, f"cudaMalloc {len(self._allocated)}")
        self._allocated[int(array.address)] = array
        return int(array.address)

    def _new(self, size: int, name: str) -> DeviceArray:
        self._taken += size + _GAP
        return self.device.empty(size, np.uint8, name=name)

    def free(self, address: int) -> int:
        """``cudaFree``; a CUDA error, or 0."""
        array = self._allocated.pop(address, None)
        if array is not None:
            self.device.free(array)
        return _INVALID_VALUE if address and array is None else 0

    def copy(self, to: int, source: int, size: int) -> int:
        """``cudaMemcpy`` between host and device addresses; a CUDA error, or 0."""
        self.put_tensors()
        data = self._read(source, size)
        if to >= GLOBAL_BASE and self._is_of_device(to):
            target = self.device.at(to, size)
            target[...] = data
            self.device.define(target)
            self.take_tensors()
        else:
            ctypes.memmove(to, data.tobytes(), size)
        return 0

    def fill(self, address: int, value: int, size: int) -> int:
        """``cudaMemset``; a CUDA error, or 0."""
        self.put_tensors()
        target = self.device.at(address, size)
        target[...] = value & 0xFF
        self.device.define(target)
        self.take_tensors()
        return 0

    def put_tensors(self) -> None:
        """Before a launch: copy what torch has changed to the device."""
        for host, tensor in self._used.items():
            mapped, content = self._mapped[host], _bytes_of(tensor)
            if mapped.synced is None:
                mapped.array[...] = content
                self.device.define(mapped.array)
                mapped.synced = content.copy()
            elif not np.array_equal(mapped.synced, content):
                other = np.flatnonzero(mapped.synced != content)
                part = slice(int(other[0]), int(other[-1]) + 1)
                mapped.array[part] = content[part]
                self.device.define(mapped.array[part].view(DeviceArray))
                mapped.synced = content.copy()
            self._before[host] = np.asarray(mapped.array).copy()

    def take_tensors(self) -> dict[int, Any]:
        """Copy the results of a kernel to the tensors; a mask of the changed bytes, in whole elements, by the address
        of the storage."""
        changed = {}
        for host, tensor in self._used.items():
            mapped, content = self._mapped[host], _bytes_of(tensor)
            size = mapped.element_bytes
            result = np.asarray(mapped.array)
            mask = self._before[host] != result
            whole = len(mask) // size * size
            mask[:whole] = np.repeat(mask[:whole].reshape(-1, size).any(axis=1), size)
            changed[host] = mask
            content[mask] = result[mask]
            mapped.synced = content.copy()
        return changed

    def _read(self, address: int, size: int) -> Bytes:
        if address >= GLOBAL_BASE and self._is_of_device(address):
            content: Bytes = np.asarray(self.device.at(address, size)).copy()
            return content
        return np.frombuffer(ctypes.string_at(address, size), np.uint8)

    def _is_of_device(self, address: int) -> bool:
        arrays = [*(each.array for each in self._mapped.values()), *self._allocated.values()]
        return any(int(each.address) <= address < int(each.address) + each.nbytes for each in arrays)


def _bytes_of(tensor: torch.Tensor) -> Bytes:
    """The bytes of a tensor's whole storage, without an operator of torch, which a mode could observe."""
    storage = tensor.untyped_storage()
    return np.ctypeslib.as_array((ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr()))
