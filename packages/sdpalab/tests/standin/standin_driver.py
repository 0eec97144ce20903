"""The CUDA driver of a GPU that is the simulator: what ``libcuda.c`` hands each call to.

It does what the CUDA Driver API documents of the calls that the lab makes. Memory holds garbage when it is allocated;
a launch runs when it is called, and its fault shows at the next call that waits, after which every call fails; a kernel
that never ends blocks that call forever.

Settings are ``standin.json`` in the folder of the library, because the environment of a guarded process is not its
parent's: ``gpu`` (a key of :data:`GPUS`), ``log`` (a file), ``faults`` (of :mod:`standin_faults`), ``checks`` (of the
simulator; hazards are logged) and ``max_steps``.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda.bindings import driver as names
from standin_faults import Fault, Faults, Log
from standin_launch import EncodedMap, LaunchRequest, Refused, check, decode_config, run
from standin_memory import BadAddress, Memory
from standin_modules import Function, Module, NoPtx, image_at, ptx_of, remember_builds

from sdpalab.run.gpu_driver import STICKY
from warpsan import (
    Deadlock,
    IllegalAccess,
    KernelTrap,
    LaunchError,
    PtxSyntaxError,
    SimError,
    StepLimit,
    TensorMap,
    UnsupportedInstruction,
)

__all__ = ["DRIVER", "GPUS", "Gpu", "attach"]

INTERRUPTED, HANG = 0xFFFFFFFE, 0xFFFFFFFF
_CONTEXT, _VERSION = 0x51, 13000
E = names.CUresult
A = names.CUdevice_attribute


@dataclass(frozen=True)
class Gpu:
    """A GPU's name, compute capability, SMs, shared memory of a block with opt-in, L2 and memory in bytes, UUID."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    shared_limit: int
    l2_bytes: int
    memory_bytes: int
    uuid: bytes


GPUS = {
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 227 << 10, 60 << 20, 141 << 30, b"stand-in H200 \0\1"),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, 99 << 10, 48 << 20, 23 << 30, b"stand-in L4 \0\0\0\2"),
}


class Failure(Exception):
    """Error result of a call."""

    def __init__(self, result: Any) -> None:
        super().__init__(result)
        self.result = int(result)


class Driver:
    """The driver of one process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.gpu = GPUS[settings.get("gpu", "h200")]
        self.log = Log(settings.get("log", ""))
        self.faults = Faults([Fault(**fault) for fault in settings.get("faults", ())])
        self.memory = Memory(self.gpu.memory_bytes)
        self._options: dict[str, Any] = {"checks": tuple(settings.get("checks", ()))}
        if "max_steps" in settings:
            self._options["max_steps"] = settings["max_steps"]
        self._pending = self._lost = 0
        self.captures: dict[int, int] = {}
        self._initialised = False
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._handles: dict[int, Any] = {}
        self._next_handle = 0x1000
        self._texts: dict[int, Any] = {}
        self._calls = {name: getattr(self, name) for name in dir(self) if name.startswith("cu")}
        remember_builds()

    def renew(self) -> None:
        """Reset to the state of a new process: no fault, and a context that is not lost. Memory stays as it is."""
        self._pending = self._lost = 0
        self.faults = Faults([])

    def call(self, name: str, args: list[int]) -> int:
        """One call: the CUresult, or :data:`HANG`."""
        with self._lock:
            fault = self.faults.next(name)
            if fault is not None:
                result = HANG if fault.hang else fault.result
                if not fault.hang and E(result).name in STICKY:
                    self._lost = result
            else:
                result = self._result(name, args)
            self.log.write(call=name, result=result, **({"fault": True} if fault else {}))
            return result

    def _result(self, name: str, args: list[int]) -> int:
        if name not in _ALWAYS:
            if not self._initialised and name != "cuInit":
                return int(E.CUDA_ERROR_NOT_INITIALIZED)
            if self._lost:
                return self._lost
            if name.startswith(_IN_CONTEXT) and not self._contexts():
                return int(E.CUDA_ERROR_INVALID_CONTEXT)
        try:
            if name in _WAITING and self._pending:
                self._lost = self._pending if self._pending != HANG else 0
                return self._pending
            self._calls[name](*args)
        except Failure as failure:
            return failure.result
        except Refused as refusal:
            self.log.write(refused=name, why=str(refusal))
            return refusal.result
        except BadAddress as error:
            self.log.write(refused=name, why=str(error))
            return int(E.CUDA_ERROR_INVALID_VALUE)
        except Exception:
            traceback.print_exc()
            self.log.write(error=traceback.format_exc())
            return int(E.CUDA_ERROR_UNKNOWN)
        return 0

    def _contexts(self) -> list[int]:
        """This thread's stack of contexts."""
        if not hasattr(self._thread, "contexts"):
            self._thread.contexts = []
        stack: list[int] = self._thread.contexts
        return stack

    def _handle(self, thing: Any) -> int:
        self._next_handle += 16
        self._handles[self._next_handle] = thing
        return self._next_handle

    def _get(self, handle: int, kind: type) -> Any:
        entry = self._handles.get(handle)
        if not isinstance(entry, kind):
            raise Failure(E.CUDA_ERROR_INVALID_HANDLE)
        return entry

    # --- the driver, the device, contexts -----------------------------------------------------------------------------

    def cuInit(self, flags: int) -> None:
        self._initialised = True

    def cuGetProcAddress(self, symbol: int) -> None:
        """The address is libcuda.c's to give."""

    def cuDriverGetVersion(self, out: int) -> None:
        _put32(out, _VERSION)

    def cuGetErrorString(self, result: int, out: int) -> None:
        _put64(out, self._text(f"the stand-in's text of error {_low(result)}"))

    def cuGetErrorName(self, result: int, out: int) -> None:
        _put64(out, self._text(E(_low(result)).name))

    def _text(self, text: str) -> int:
        buffer = self._texts.setdefault(hash(text), ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(buffer)

    def cuDeviceGetCount(self, out: int) -> None:
        _put32(out, 1)

    def cuDeviceGet(self, out: int, ordinal: int) -> None:
        if _low(ordinal):
            raise Failure(E.CUDA_ERROR_INVALID_DEVICE)
        _put32(out, 0)

    def cuDeviceGetName(self, out: int, length: int, device: int) -> None:
        name = self.gpu.name.encode()[: _low(length) - 1] + b"\0"
        ctypes.memmove(out, name, len(name))

    def cuDeviceGetUuid(self, out: int, device: int) -> None:
        ctypes.memmove(out, self.gpu.uuid, 16)

    def cuDeviceTotalMem(self, out: int, device: int) -> None:
        _put64(out, self.gpu.memory_bytes)

    def cuDeviceGetAttribute(self, out: int, attribute: int, device: int) -> None:
        gpu = self.gpu
        values = {
            A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: gpu.capability[0],
            A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: gpu.capability[1],
            A.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: gpu.sm_count,
            A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: 48 << 10,
            A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: gpu.shared_limit,
            A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: gpu.shared_limit + 1024,
            A.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: 1024,
            A.CU_DEVICE_ATTRIBUTE_WARP_SIZE: 32,
            A.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: gpu.l2_bytes,
            A.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: int(gpu.capability >= (9, 0)),
        }
        value = values.get(A(_low(attribute)))
        if value is None:
            raise Refused(int(E.CUDA_ERROR_NOT_SUPPORTED), f"{A(_low(attribute)).name} is not modelled")
        _put32(out, value)

    def cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        _put64(out, _CONTEXT)

    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        """The context stays: the process may come back to it."""

    def cuCtxGetCurrent(self, out: int) -> None:
        _put64(out, self._contexts()[-1] if self._contexts() else 0)

    def cuCtxSetCurrent(self, context: int) -> None:
        self._contexts()[-1:] = [context] if context else []

    def cuCtxPushCurrent(self, context: int) -> None:
        if context != _CONTEXT:
            raise Failure(E.CUDA_ERROR_INVALID_CONTEXT)
        self._contexts().append(context)

    def cuCtxPopCurrent(self, out: int) -> None:
        if not self._contexts():
            raise Failure(E.CUDA_ERROR_INVALID_CONTEXT)
        popped = self._contexts().pop()
        if out:
            _put64(out, popped)

    def cuCtxGetDevice(self, out: int) -> None:
        _put32(out, 0)

    def cuCtxSynchronize(self) -> None:
        """Launches run when they are called: there is nothing to wait for but their faults."""

    def cuStreamGetCaptureInfo(self, stream: int, status: int, number: int, *rest: int) -> None:
        """A stream is captured where a test has put a number into :attr:`captures`; its launches run nevertheless."""
        _put32(status, int(stream in self.captures))
        if number:
            _put64(number, self.captures.get(stream, 0))
        for out in filter(None, rest):
            _put64(out, 0)

    def cuStreamSynchronize(self, stream: int) -> None:
        """As above."""

    def cuProfilerStart(self) -> None:
        """There is no profiler."""

    def cuProfilerStop(self) -> None:
        """As above."""

    # --- memory -------------------------------------------------------------------------------------------------------

    def cuMemGetInfo(self, free: int, total: int) -> None:
        _put64(free, self.memory.total - self.memory.used)
        _put64(total, self.memory.total)

    def cuMemAlloc(self, out: int, size: int) -> None:
        if not size:
            raise Failure(E.CUDA_ERROR_INVALID_VALUE)
        address = self.memory.allocate(size)
        if address is None:
            raise Failure(E.CUDA_ERROR_OUT_OF_MEMORY)
        _put64(out, address)

    def cuMemFree(self, address: int) -> None:
        if address:
            self.memory.free(address)

    def cuMemcpyHtoD(self, address: int, source: int, size: int) -> None:
        ctypes.memmove(self.memory.bytes(address, size).ctypes.data, source, size)

    def cuMemcpyDtoH(self, target: int, address: int, size: int) -> None:
        ctypes.memmove(target, self.memory.bytes(address, size).ctypes.data, size)

    def cuMemcpyDtoD(self, target: int, source: int, size: int) -> None:
        self.memory.bytes(target, size)[:] = self.memory.bytes(source, size).copy()

    def cuMemsetD8(self, address: int, byte: int, count: int) -> None:
        self.memory.bytes(address, count)[:] = byte & 0xFF

    def cuMemsetD32(self, address: int, value: int, count: int) -> None:
        self.memory.bytes(address, 4 * count).view("<u4")[:] = _low(value)

    def cuMemsetD8Async(self, address: int, value: int, count: int, stream: int) -> None:
        self.cuMemsetD8(address, value, count)

    def cuMemsetD16Async(self, address: int, value: int, count: int, stream: int) -> None:
        self.memory.bytes(address, 2 * count).view("<u2")[:] = value & 0xFFFF

    def cuMemsetD32Async(self, address: int, value: int, count: int, stream: int) -> None:
        self.cuMemsetD32(address, value, count)

    def cuMemsetD2D32Async(self, address: int, pitch: int, value: int, width: int, height: int, stream: int) -> None:
        for row in range(height):
            self.cuMemsetD32(address + pitch * row, value, width)

    # --- modules, functions, launches ---------------------------------------------------------------------------------

    def cuModuleLoadData(self, out: int, image: int) -> None:
        self.cuModuleLoadDataEx(out, image, 0, 0, 0)

    def cuModuleLoadDataEx(self, out: int, image: int, count: int, options: int, values: int) -> None:
        try:
            module = Module(ptx_of(image_at(image)))
            target = module.parsed.target
        except NoPtx as error:
            raise Refused(int(E.CUDA_ERROR_NO_BINARY_FOR_GPU), str(error)) from None
        except (PtxSyntaxError, UnsupportedInstruction) as error:
            raise Refused(int(E.CUDA_ERROR_INVALID_PTX), str(error)) from None
        if not self._takes(target):
            raise Refused(int(E.CUDA_ERROR_NO_BINARY_FOR_GPU), f"the module is for {target}")
        _put64(out, self._handle(module))

    def _takes(self, target: str) -> bool:
        number = int("".join(filter(str.isdigit, target)))
        own = 10 * self.gpu.capability[0] + self.gpu.capability[1]
        return number == own if target.endswith("a") else number <= own

    def cuModuleUnload(self, module: int) -> None:
        self._get(module, Module)
        del self._handles[module]

    def cuModuleGetFunction(self, out: int, module: int, name: int) -> None:
        loaded, text = self._get(module, Module), ctypes.string_at(name).decode()
        if text not in loaded.parsed.entries:
            raise Failure(E.CUDA_ERROR_NOT_FOUND)
        _put64(out, self._handle(Function(loaded, text)))

    def cuFuncGetAttribute(self, out: int, attribute: int, function: int) -> None:
        target: Function = self._get(function, Function)
        kinds = names.CUfunction_attribute
        values = {
            kinds.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: target.max_threads,
            kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: target.static_smem,
            kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: target.dynamic_smem,
        }
        kind = kinds(_low(attribute))
        if kind not in values:
            raise Refused(int(E.CUDA_ERROR_NOT_SUPPORTED), f"{kind.name} is not modelled")
        _put32(out, values[kind])

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        target: Function = self._get(function, Function)
        kind, value = names.CUfunction_attribute(_low(attribute)).name, _low(value)
        if kind.endswith("_MAX_DYNAMIC_SHARED_SIZE_BYTES"):
            if target.static_smem + value > self.gpu.shared_limit:
                raise Failure(E.CUDA_ERROR_INVALID_VALUE)
            target.dynamic_smem = value
        elif kind.endswith("_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"):
            target.large_clusters = bool(value)
        else:
            raise Refused(int(E.CUDA_ERROR_NOT_SUPPORTED), f"{kind} is not modelled")

    def cuLaunchKernel(self, function: int, *args: int) -> None:
        gx, gy, gz, bx, by, bz, smem = map(_low, args[:7])
        stream, parameters, extra = args[7:]
        self._launch(function, LaunchRequest((gx, gy, gz), (bx, by, bz), smem, stream), parameters, extra)

    def cuLaunchKernelEx(self, config: int, function: int, parameters: int, extra: int) -> None:
        self._launch(function, decode_config(config), parameters, extra)

    def _launch(self, handle: int, request: LaunchRequest, parameters: int, extra: int) -> None:
        function: Function = self._get(handle, Function)
        major, minor = self.gpu.capability
        check(function, request, 10 * major + minor, self.gpu.shared_limit)
        params = function.entry.params
        if extra or (params and not parameters):
            raise Failure(E.CUDA_ERROR_INVALID_VALUE)
        pointers = (ctypes.c_uint64 * len(params)).from_address(parameters) if params else ()
        raw = [ctypes.string_at(at, param.size) for at, param in zip(pointers, params, strict=True)]
        if self._pending:
            return  # what comes behind a kernel that failed does not run
        hazards: list[str] = []
        message = ""
        try:
            report = run(function, request, raw, self.memory, **self._options)
            hazards = [hazard.message for hazard in report.hazards]
        except LaunchError as error:
            raise Refused(int(E.CUDA_ERROR_INVALID_VALUE), str(error)) from None
        except SimError as error:
            self._pending, message = _fault_of(error), f"{type(error).__name__}: {error}"
        self.log.write(
            launch=function.name,
            grid=request.grid,
            block=request.block,
            cluster=request.cluster,
            programmatic=request.programmatic,
            smem=request.smem,
            stream=request.stream,
            hazards=hazards,
            fault=message,
        )

    # --- tensor maps --------------------------------------------------------------------------------------------------

    def cuTensorMapEncodeTiled(self, out: int, kind: int, rank: int, address: int, *rest: int) -> None:
        dims, strides, box, steps, interleave, swizzle, _promotion, fill = rest
        rank = _low(rank)
        if out % 64 or not 1 <= rank <= 5 or _low(interleave) or address % 16:
            raise Refused(int(E.CUDA_ERROR_INVALID_VALUE), f"a map of rank {rank} at {out:#x}, buffer {address:#x}")
        encoded = EncodedMap(
            _low(kind),
            address,
            tuple((ctypes.c_uint64 * rank).from_address(dims)),
            tuple((ctypes.c_uint64 * (rank - 1)).from_address(strides)),
            tuple((ctypes.c_uint32 * rank).from_address(box)),
            tuple((ctypes.c_uint32 * rank).from_address(steps)),
            _low(swizzle),
            bool(_low(fill)),
        )
        _check_map(encoded)
        ctypes.memmove(out, encoded.pack(), 128)

    def cuTensorMapReplaceAddress(self, tensor_map: int, address: int) -> None:
        encoded = EncodedMap.unpack(ctypes.string_at(tensor_map, 128))
        if encoded is None or tensor_map % 64 or address % 16:
            raise Refused(int(E.CUDA_ERROR_INVALID_VALUE), f"no map at {tensor_map:#x}, or buffer {address:#x}")
        ctypes.memmove(tensor_map, encoded.moved(address).pack(), 128)


def _check_map(encoded: EncodedMap) -> None:
    """The driver's limits, which are also the simulator's. It does not ask how much memory there is."""
    import numpy as np

    try:
        tensor: TensorMap = encoded.tensor_map(np.empty(-(-encoded.reach // 512) * 512, np.uint8), 0)
    except (LaunchError, KeyError, IndexError) as error:
        raise Refused(int(E.CUDA_ERROR_INVALID_VALUE), str(error)) from None
    del tensor


def _fault_of(error: SimError) -> int:
    """The CUresult that shows later; or :data:`HANG`."""
    if isinstance(error, (Deadlock, StepLimit)):
        return HANG
    if isinstance(error, IllegalAccess):
        wrong = "MISALIGNED" if "align" in str(error) else "ILLEGAL"
        return int(E[f"CUDA_ERROR_{wrong}_ADDRESS"])
    if isinstance(error, KernelTrap):
        return int(E.CUDA_ERROR_LAUNCH_FAILED)
    return int(E.CUDA_ERROR_UNKNOWN)


def _low(value: int) -> int:
    """An argument of 32 bits: the other half of its word is whatever was there."""
    return value & 0xFFFFFFFF


def _put32(address: int, value: int) -> None:
    ctypes.c_uint32.from_address(address).value = value


def _put64(address: int, value: int) -> None:
    ctypes.c_uint64.from_address(address).value = value


_ALWAYS = frozenset({"cuGetErrorString", "cuGetErrorName", "cuDriverGetVersion", "cuGetProcAddress"})
_IN_CONTEXT = ("cuMem", "cuModule", "cuFunc", "cuLaunch", "cuCtxSynchronize", "cuStream")
_WAITING = frozenset(
    {"cuCtxSynchronize", "cuStreamSynchronize", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD", "cuMemFree"}
)
DRIVER: Driver
"""This process's, once the library is used."""


def attach(slot: int, library: str) -> None:
    """Put the dispatcher where the library looks for it: at the address ``slot``."""
    global DRIVER
    settings = Path(library).parent / "standin.json"
    DRIVER = Driver(json.loads(settings.read_text()) if settings.exists() else {})
    kind: Callable[..., Any] = ctypes.CFUNCTYPE(
        ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)
    )

    def dispatch(name: bytes, count: int, args: Any) -> int:
        try:
            return DRIVER.call(name.decode(), args[:count])
        except KeyboardInterrupt:  # ctypes would print and forget it
            return INTERRUPTED

    callback = kind(dispatch)
    sys.modules[__name__].__dict__["_callback"] = callback  # kept alive as long as the process
    ctypes.c_void_p.from_address(slot).value = ctypes.cast(callback, ctypes.c_void_p).value
