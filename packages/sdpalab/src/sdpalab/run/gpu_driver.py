"""One GPU through the CUDA driver API: its context, its loaded functions, and errors by CUDA's names.

``cuda.bindings.driver`` is called directly: ``cuda.core`` is built on it, the lab's compiler installs it, and it has
all features of a launch plan: clusters, opt-in shared memory, modules from memory. The one exception is
``cuTensorMapEncodeTiled`` (:mod:`sdpalab.run.gpu_arguments`).

Source: CUDA Driver API, "Primary Context Management", "Module Management", "Execution Control", and "Data types used by
CUDA driver" (errors that leave a context unusable).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from types import ModuleType
from typing import Any

from sdpalab.errors import MachineError, UserError

__all__ = ["GpuDevice", "GpuFunction", "KernelFault", "gpu_device", "gpu_problem"]

STICKY = frozenset(
    {
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_EXTERNAL_DEVICE",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    }
)
"""Errors of a kernel or the hardware after which every call in the process fails."""

_LOG_BYTES = 8192


class KernelFault(RuntimeError):
    """A kernel failed on the GPU, for example by an illegal access. The process can no longer use that GPU."""


@dataclass(frozen=True)
class GpuFunction:
    """A loaded entry. ``static_smem``: bytes per block; ``max_threads``: threads per block, limited by registers."""

    handle: Any
    name: str
    static_smem: int
    max_threads: int


@cache
def _driver() -> ModuleType:
    """``cuda.bindings.driver``, initialised; raises MachineError where there is no GPU to use."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MachineError(f"no GPU can be used without cuda.bindings: pip install cuda-bindings ({error})") from None
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # the binding could not open libcuda
        raise MachineError(f"no GPU: there is no NVIDIA driver on this machine ({error})") from None
    if status.name == "CUDA_ERROR_NO_DEVICE":
        raise MachineError("no GPU: the NVIDIA driver finds none (CUDA_ERROR_NO_DEVICE)")
    if status.name != "CUDA_SUCCESS":
        raise MachineError(f"no GPU: the NVIDIA driver does not start ({status.name})")
    module: ModuleType = driver
    return module


def gpu_problem() -> str:
    """Reason why no GPU can be used here, in one sentence; empty if one can."""
    try:
        _driver()
    except MachineError as error:
        return str(error)
    return ""


class GpuDevice:
    """A GPU in this process, through its primary context, which torch also uses. Thread-safe.

    Use :func:`gpu_device`, which always returns the same object.

    Attributes
    ----------
    driver : module
        ``cuda.bindings.driver``.
    ordinal : int
    name : str
        Such as ``NVIDIA H200``.
    capability : (int, int)
        Compute capability, such as (9, 0).
    sms : int
        Streaming multiprocessors.
    shared_limit : int
        Largest shared memory of a block in bytes, with opt-in.
    context : int
        The primary context's handle.
    lost : str
        Error that made the context unusable; empty while it is usable.
    """

    def __init__(self, ordinal: int) -> None:
        self.driver = _driver()
        self.ordinal, self.lost = ordinal, ""
        self._lock = threading.Lock()
        self._functions: dict[tuple[str, str], GpuFunction] = {}
        self._dynamic_smem: dict[GpuFunction, int] = {}
        count = self.check(self.driver.cuDeviceGetCount(), "count the GPUs")
        if not 0 <= ordinal < count:
            raise UserError(f"there is no GPU {ordinal}: the driver finds {count}, counted from 0")
        device = self.check(self.driver.cuDeviceGet(ordinal), f"open GPU {ordinal}")
        self.name = str(self.check(self.driver.cuDeviceGetName(256, device), "name a GPU").split(b"\0")[0], "utf-8")
        self.capability = (
            self._attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
            self._attribute(device, "COMPUTE_CAPABILITY_MINOR"),
        )
        self.sms = self._attribute(device, "MULTIPROCESSOR_COUNT")
        self.shared_limit = self._attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self._context = self.check(self.driver.cuDevicePrimaryCtxRetain(device), f"use GPU {ordinal}")
        self.context = int(self._context)

    def check(self, answer: tuple[Any, ...], action: str) -> Any:
        """Return the value of a driver call's result.

        Raises
        ------
        KernelFault
            If a kernel has made the context unusable, at the first call that reports it.
        MachineError
            For any other error, and for every later call. Both contain CUDA's name of the error.
        """
        status, *values = answer
        if status is self.driver.CUresult.CUDA_SUCCESS:
            return values[0] if values else None
        if self.lost:
            raise MachineError(f"GPU {self.ordinal} cannot {action}: its context is lost since {self.lost}")
        _, text = self.driver.cuGetErrorString(status)
        message = f"{action}: {status.name} ({text.decode() if text else 'unknown'})"
        if status.name in STICKY:
            self.lost = message
            raise KernelFault(
                f"{message}; the context of GPU {self.ordinal} is lost, and only a new process can use it"
            )
        raise MachineError(f"GPU {self.ordinal} cannot {message}")

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in this thread for the block."""
        self.check(self.driver.cuCtxPushCurrent(self._context), "make its context current")
        try:
            yield
        finally:
            self.driver.cuCtxPopCurrent()

    def function(self, image: bytes, entry: str) -> GpuFunction:
        """An entry of a cubin, or of PTX text (which the driver then assembles); loaded once and then cached.

        Raises
        ------
        MachineError
            If the driver does not load the image, with its assembler's message; or the image has no such entry.
        """
        key = sha256(image).hexdigest(), entry
        with self._lock, self.current():
            if key not in self._functions:
                self._functions[key] = self._load(image, entry)
            return self._functions[key]

    def allow_shared(self, function: GpuFunction, dynamic: int) -> None:
        """Allow ``dynamic`` bytes of shared memory for launches of ``function``; up to 48 KiB in all need no opt-in."""
        with self._lock, self.current():
            if dynamic > self._dynamic_smem.get(function, 0):
                self._set(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", dynamic)
                self._dynamic_smem[function] = dynamic

    def allow_large_clusters(self, function: GpuFunction) -> None:
        """Allow clusters of more than eight blocks, the portable size, for launches of ``function``."""
        with self.current():
            self._set(function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def capture_of(self, stream: int) -> int:
        """Number of the graph capture of ``stream`` (a CUstream's handle); 0 if it is not being captured.

        The context must be current. The numbers are unique within a process. Raises as :meth:`check`.
        """
        status, state, number, *_ = self.driver.cuStreamGetCaptureInfo(self.driver.CUstream(stream))
        self.check((status,), "tell whether a stream is captured")
        return int(number) if state is self.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE else 0

    def synchronize(self, action: str) -> None:
        """Wait for all work of the context; ``action`` names the work in errors. Raises as :meth:`check`."""
        self.check(self.driver.cuCtxSynchronize(), action)

    def _load(self, image: bytes, entry: str) -> GpuFunction:
        driver = self.driver
        log = bytearray(_LOG_BYTES)
        option = driver.CUjit_option
        options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        # PTX is a zero-terminated text; a cubin has its length in its header.
        answer = driver.cuModuleLoadDataEx(image + b"\0", len(options), options, [log, _LOG_BYTES])
        message = " ".join(log.split(b"\0")[0].decode(errors="replace").split())
        module = self.check(answer, f"load the module of {entry}" + (f" ({message})" if message else ""))
        handle = self.check(driver.cuModuleGetFunction(module, entry.encode()), f"find the entry {entry}")
        return GpuFunction(
            handle, entry, self._get(handle, "SHARED_SIZE_BYTES"), self._get(handle, "MAX_THREADS_PER_BLOCK")
        )

    def _attribute(self, device: Any, name: str) -> int:
        attribute = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.check(self.driver.cuDeviceGetAttribute(attribute, device), f"tell its {name}"))

    def _get(self, handle: Any, name: str) -> int:
        attribute = getattr(self.driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(self.check(self.driver.cuFuncGetAttribute(attribute, handle), f"tell a kernel's {name}"))

    def _set(self, function: GpuFunction, name: str, value: int) -> None:
        attribute = getattr(self.driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        answer = self.driver.cuFuncSetAttribute(function.handle, attribute, value)
        self.check(answer, f"set {name} of {function.name} to {value}")


_devices: dict[int, GpuDevice] = {}
_devices_lock = threading.Lock()


def gpu_device(ordinal: int = 0) -> GpuDevice:
    """The GPU of that number, in the driver's order.

    Raises
    ------
    MachineError
        If there is no GPU, no driver or no cuda.bindings, or the GPU cannot be used: one sentence.
    UserError
        If there are GPUs, but none with that number.
    """
    with _devices_lock:
        if ordinal not in _devices:
            _devices[ordinal] = GpuDevice(ordinal)
        return _devices[ordinal]
