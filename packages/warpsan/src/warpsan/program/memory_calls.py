"""Calls on memory: allocation, copies, fills, symbols, pointers (CUDA Runtime API, "Memory Management")."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from warpsan import DeviceArray, LaunchError
from warpsan.program.errors import CallError
from warpsan.program.handlers import handles, int32, nothing, uint32, word
from warpsan.program.state import ProgramState
from warpsan.program.wire import Request
from warpsan.report.groups import SanitizedHazard

__all__ = ["copy", "free_memory"]

_HOST_TO_HOST, _HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE, _DEFAULT = range(5)
_PITCH = 512
_TYPES = {"host": 1, "device": 2, "managed": 3}
"""Values of cudaMemoryType."""
_ATTACH_HOST = 2


@handles("cudaMalloc", "cudaMallocAsync", "cudaMallocFromPoolAsync")
def malloc(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Allocate device memory; stream-ordered allocation is immediate."""
    size = request.number(0)
    return [word(state.allocate(size, "device", request).address if size else 0)]


@handles("cudaMallocManaged")
def malloc_managed(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Allocate memory that the host accesses at the same addresses."""
    size = request.number(0)
    if size == 0:
        raise CallError("cudaErrorInvalidValue")
    return [word(state.allocate(size, "managed", request).address)]


@handles("cudaMallocHost", "cudaHostAlloc")
def malloc_host(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Allocate host memory that kernels can access; it is in device memory."""
    size = request.number(0)
    return [word(state.allocate(size, "host", request).address if size else 0)]


@handles("cudaMallocPitch")
def malloc_pitch(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Allocate rows, each aligned to 512 bytes."""
    width, height = request.number(0), request.number(1)
    pitch = -(-width // _PITCH) * _PITCH
    return [word(state.allocate(pitch * height, "device", request, _PITCH).address), word(pitch)]


@handles("cudaFree", "cudaFreeHost", "cudaFreeAsync")
def free_memory(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Free memory; ``cudaFree`` also waits for the device."""
    address = request.number(0)
    if request.name != "cudaFreeAsync":
        state.device.synchronize()
    if address:
        state.free(address)
    return ()


@handles("cudaMemGetInfo")
def memory_info(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return free and total memory in bytes."""
    used = sum(allocation.size for allocation in state.allocations.values())
    return [word(len(state.memory) - used), word(len(state.memory))]


@handles("cudaHostGetDevicePointer")
def host_device_pointer(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the same address."""
    if state.allocation_at(request.number(0)) is None:
        raise CallError("cudaErrorInvalidValue", "the pointer is not in memory shared by host and device")
    return [word(request.number(0))]


@handles("cudaHostGetFlags")
def host_flags(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the flags mapped and portable."""
    return [uint32(_ATTACH_HOST)]


@handles("cudaHostRegister")
def host_register(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Accept host memory for copies; kernels cannot access it."""
    return ()


nothing("cudaHostUnregister", "cudaMemAdvise", "cudaMemPrefetchAsync", "cudaStreamAttachMemAsync")
nothing("cudaMemAdvise_v2", "cudaMemPrefetchAsync_v2", "cudaMemPoolSetAttribute", "cudaMemPoolTrimTo")


@handles("cudaDeviceGetDefaultMemPool", "cudaDeviceGetMemPool")
def default_pool(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the handle of the only pool."""
    return [word(1)]


@handles("cudaPointerGetAttributes")
def pointer_attributes(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return ``cudaPointerAttributes``: type, device, device and host pointer; the same prefix in versions 11 to 13."""
    address = request.number(0)
    allocation = state.allocation_at(address)
    if allocation is None:
        variable = state.in_device(address)
        return [struct.pack("<iiQQ", _TYPES["device"] if variable else 0, 0, address if variable else 0, address)]
    host = address if allocation.kind != "device" else 0
    return [struct.pack("<iiQQ", _TYPES[allocation.kind], 0, address, host)]


# ---- symbols --------------------------------------------------------------------------------------------------------


@handles("cudaGetSymbolAddress")
def symbol_address(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the device address of a variable."""
    return [word(state.variable(request.number(0)).address)]


@handles("cudaGetSymbolSize")
def symbol_size(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the size of a variable in bytes."""
    return [word(state.variable(request.number(0)).nbytes)]


# ---- copies and fills -----------------------------------------------------------------------------------------------


@handles(
    *("cudaMemcpy", "cudaMemcpyAsync", "cudaMemcpy2D", "cudaMemcpy2DAsync", "cudaMemcpyToSymbol"),
    *("cudaMemcpyFromSymbol", "cudaMemcpyToSymbolAsync", "cudaMemcpyFromSymbolAsync", "cudaMemcpyPeerAsync"),
    *("cudaMemcpy3D", "cudaMemcpy3DAsync"),
)
def copy(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Copy rows. Copies within device memory happen here; otherwise the result tells the program to copy.

    Copies that the host waits for: CUDA Runtime API, "API synchronization behavior".
    """
    target, target_pitch, source, source_pitch, width, height, kind, handle = request.arguments.words(8)
    stream = state.stream(handle, request)
    if width == 0 or height == 0:
        return [uint32(0)]
    _check_direction(state, kind & 0xFFFFFFFF, target, source)
    place = state.line(request)
    run = state.begin_operation(request.name, place)
    to = _rows(state, request, run, target, target_pitch, width, height)
    of = _rows(state, request, run, source, source_pitch, width, height)
    if to is not None and of is not None:
        to[...] = of
    elif to is not None:
        state.device.define(to)
    own_memory = to is None or of is None
    if request.name.endswith("Async"):
        wait = of is not None and to is None  # to pageable memory
    else:
        wait = own_memory or "host" in (_kind(state, target), _kind(state, source))
        if wait:
            stream.synchronize()
    hazards = state.device.operation(request.name, of, to, stream=stream, wait=wait, source=place)
    state.note(hazards, "", run)
    return [uint32(own_memory)]


def _kind(state: ProgramState, address: int) -> str:
    allocation = state.allocation_at(address)
    return allocation.kind if allocation is not None else ""


def _check_direction(state: ProgramState, kind: int, target: int, source: int) -> None:
    """Reject a copy whose pointers do not match its kind."""
    if kind > _DEFAULT:
        raise CallError("cudaErrorInvalidMemcpyDirection", f"{kind} is not a cudaMemcpyKind")
    if kind == _DEFAULT:
        return
    for name, address, device in (
        ("target", target, kind in (_HOST_TO_DEVICE, _DEVICE_TO_DEVICE)),
        ("source", source, kind in (_DEVICE_TO_HOST, _DEVICE_TO_DEVICE)),
    ):
        if device and not state.in_device(address):
            raise CallError("cudaErrorInvalidValue", f"its {name} {address:#x} is not device memory")
        if not device and state.in_device(address) and _kind(state, address) not in ("managed", "host"):
            raise CallError("cudaErrorInvalidValue", f"its {name} {address:#x} is device memory, not the host's")


def _rows(
    state: ProgramState, request: Request, run: str, address: int, pitch: int, width: int, height: int
) -> DeviceArray | None:
    """Bytes [height, width] of device memory; None for memory of the program.

    Raises
    ------
    CallError
        If the bytes do not lie in one allocation; also reported as a hazard.
    """
    if not state.in_device(address):
        return None
    span = (height - 1) * pitch + width
    try:
        flat = state.device.at(address, span)
    except LaunchError as error:
        place = state.line(request)
        message = f"out-of-bounds: {request.name}{f' at {place}' if place else ''}: {error}"
        hazard = SanitizedHazard("out-of-bounds", message, "", 0, place, None, None, (run,))
        state.note_one(replace(hazard, text=request.name, what=str(error)))
        raise CallError("cudaErrorInvalidValue") from None
    if height == 1:
        return cast(DeviceArray, flat.reshape(1, width))
    rows = np.lib.stride_tricks.as_strided(flat, (height, width), (pitch, 1), subok=True)
    return cast(DeviceArray, rows)


@handles("cudaMemset", "cudaMemsetAsync")
def fill(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Set bytes, without a wait on the host."""
    address, byte, size = (request.number(place) for place in range(3))
    return _fill(state, request, address, size, byte, size, 1, 3)


@handles("cudaMemset2D", "cudaMemset2DAsync")
def fill_rows(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Set bytes of rows."""
    address, pitch, byte, width, height = (request.number(place) for place in range(5))
    return _fill(state, request, address, pitch, byte, width, height, 5)


def _fill(
    state: ProgramState, request: Request, address: int, pitch: int, byte: int, width: int, height: int, at: int
) -> Sequence[bytes]:
    stream = state.stream(request.number(at) if len(request.words) > at else 0, request)
    if width == 0 or height == 0:
        return ()
    place = state.line(request)
    run = state.begin_operation(request.name, place)
    rows = _rows(state, request, run, address, pitch, width, height)
    if rows is None:
        raise CallError("cudaErrorInvalidValue", f"{address:#x} is not device memory")
    rows[...] = byte & 0xFF
    state.note(state.device.operation(request.name, None, rows, stream=stream, source=place), "", run)
    return ()


@handles("host access")
def host_access(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Handle a host access to a closed page: a hazard if the host has not waited for conflicting operations.

    Raises
    ------
    CallError
        If the host must not access the memory.
    """
    address, write = request.arguments.words(2)
    allocation, place = state.allocation_at(address), state.line(request)
    run = state.begin_operation("the host", place)
    if allocation is None or allocation.kind == "device":
        verb = "writes" if write else "reads"
        what = f"the host {verb} at {address:#x}, in {allocation.name if allocation else 'freed or unallocated memory'}"
        message = f"out-of-bounds: {what}{f' ({place})' if place else ''}; copy it with cudaMemcpy"
        hazard = SanitizedHazard("out-of-bounds", message, "", 0, place, None, None, (run,))
        advice = "the host cannot access device memory: copy it with cudaMemcpy"
        state.note_one(replace(hazard, text="the host", what=what, advice=advice))
        raise CallError("cudaErrorIllegalAddress")
    state.excused = address
    hazards = state.device.host_access(address, 1, write=bool(write), source=place)
    state.note(hazards, "", run)
    return ()


@handles("cudaMemRangeGetAttribute")
def range_attribute(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return no attribute: the location of managed memory is not modelled."""
    return [int32(0)]
