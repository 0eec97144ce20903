"""Device calls: properties, limits, function attributes, occupancy, and calls without effect (CUDA Runtime API, "Device
Management", "Execution Control", "Occupancy").
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from warpsan.build.residency import occupancy, sm_limits
from warpsan.program.errors import CallError, error_name, error_text
from warpsan.program.handlers import handles, int32, nothing, uint32, word
from warpsan.program.properties import attribute_of, properties_of
from warpsan.program.state import ProgramState
from warpsan.program.wire import Request
from warpsan.ptx.parser import parse

__all__ = ["shared_bytes_of"]

_LONGEST_TEXT = 159
_MAX_DYNAMIC_SMEM, _NON_PORTABLE_CLUSTER = 8, 1
_LIMITS = {0: 1024, 1: 1 << 20, 2: 8 << 20}
"""Values by cudaLimit: stack, printf buffer, device heap, in bytes."""
_REGISTERS_ASSUMED = 32
_DRIVER = {"11": 11080, "12": 12090, "13": 13000}

nothing(
    *("cudaSetDeviceFlags", "cudaInitDevice", "cudaDeviceSetLimit", "cudaDeviceSetCacheConfig"),
    *("cudaDeviceSetSharedMemConfig", "cudaFuncSetCacheConfig", "cudaFuncSetSharedMemConfig"),
    *("cudaCtxResetPersistingL2Cache", "cudaProfilerStart", "cudaProfilerStop", "cuInit"),
)


@handles("cudaGetDevice", "cuCtxGetDevice", "cuDeviceGet", "cudaChooseDevice")
def get_device(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return device 0."""
    return [int32(0)]


@handles("cuCtxGetCurrent")
def get_context(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the handle of the only context."""
    return [word(1)]


@handles("cudaSetDevice")
def set_device(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Accept device 0, and reject all others."""
    if request.int32(0) != 0:
        raise CallError("cudaErrorInvalidDevice", f"there is one device, with the number 0, and not {request.int32(0)}")
    return ()


@handles("cudaGetDeviceCount", "cuDeviceGetCount")
def device_count(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return 1."""
    return [int32(1)]


@handles("cudaGetDeviceFlags", "cudaDeviceGetCacheConfig", "cudaDeviceGetSharedMemConfig")
def flags(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the default flags."""
    return [uint32(0)]


@handles("cudaDriverGetVersion", "cudaRuntimeGetVersion", "cuDriverGetVersion")
def versions(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the last version of the program's major version."""
    return [int32(_DRIVER[state.version])]


@handles("cudaGetDeviceProperties", "cudaGetDeviceProperties_v2")
def device_properties(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return ``cudaDeviceProp`` in the layout of the program's runtime version; ``_v2`` is the layout of version 12."""
    version = state.version
    if request.name == "cudaGetDeviceProperties":
        version = "11" if version == "12" else version
    return [properties_of(state.properties, version)]


@handles("cudaDeviceGetAttribute", "cuDeviceGetAttribute")
def device_attribute(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return one attribute; 0 for missing features of the GPU."""
    value = attribute_of(state.properties, request.int32(0))
    if value is None:
        raise CallError("cudaErrorInvalidValue")
    return [int32(value)]


@handles("cudaDeviceGetLimit")
def device_limit(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return CUDA's default limit."""
    return [word(_LIMITS.get(request.int32(0), 0))]


@handles("cudaDeviceGetStreamPriorityRange")
def priorities(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Accept a priority without effect."""
    return [int32(0), int32(-5)]


@handles("cudaDeviceCanAccessPeer")
def can_access_peer(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return 0: there is no peer."""
    return [int32(0)]


@handles("cudaDeviceGetPCIBusId")
def bus_id(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return an arbitrary bus id."""
    return [b"0000:01:00.0\0"[: max(0, request.int32(0))]]


@handles("cudaGetErrorString")
def error_string(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the text of an error."""
    return [error_text(request.arguments.word()).encode()[:_LONGEST_TEXT] + b"\0"]


@handles("cudaGetErrorName")
def error_named(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the name of an error."""
    return [error_name(request.arguments.word()).encode()[:_LONGEST_TEXT] + b"\0"]


# ---- functions ------------------------------------------------------------------------------------------------------


def shared_bytes_of(state: ProgramState, address: int) -> int:
    """Static shared memory of a kernel, in bytes."""
    function = state.function(address)
    module = parse(state.load(function.module).text)
    entry = module.entries[function.entry]
    return sum(each.size for each in (*module.variables.values(), *entry.variables.values()) if each.space == "shared")


@handles("cudaFuncGetAttributes")
def function_attributes(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return ``cudaFuncAttributes`` from the PTX; registers and local memory, assigned by ptxas, are 0."""
    function = state.function(request.number(0))
    code = parse(state.load(function.module).text).entries[function.entry]
    threads = 1
    for size in code.directives.get("maxntid") or code.directives.get("reqntid") or (1024,):
        threads *= size
    number = int(state.gpu[1].removeprefix("sm_"))
    static = shared_bytes_of(state, request.number(0))
    sizes = struct.pack("<3Q", static, 0, 0)
    return [sizes + struct.pack("<7i", threads, _REGISTERS_ASSUMED, number, number, 0, function.dynamic_smem, -1)]


@handles("cudaFuncSetAttribute", "cudaKernelSetAttributeForDevice")
def set_function_attribute(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Set the maximum dynamic shared memory; other attributes have no effect."""
    function = state.function(request.number(0))
    attribute, value = request.int32(1), request.int32(2)
    if attribute == _MAX_DYNAMIC_SMEM:
        most = sm_limits(state.gpu[1]).shared_bytes_per_block - shared_bytes_of(state, request.number(0))
        if not 0 <= value <= most:
            raise CallError(
                "cudaErrorInvalidValue", f"{value} bytes of dynamic shared memory, and {state.gpu[1]} has {most}"
            )
        function.dynamic_smem = value
    return ()


@handles(
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
)
def active_blocks(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the blocks per SM by threads and shared memory, with an assumed 32 registers per thread (unknown before
    ptxas).
    """
    threads, dynamic = request.int32(1), request.number(2)
    static = shared_bytes_of(state, request.number(0))
    return [int32(occupancy(state.gpu[1], threads, _REGISTERS_ASSUMED, static + dynamic).blocks_per_sm)]


@handles("cudaOccupancyAvailableDynamicSMemPerBlock")
def available_shared(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the shared memory of an SM, divided by its blocks."""
    limits, blocks = sm_limits(state.gpu[1]), max(1, request.int32(1))
    each = limits.shared_bytes // blocks // 128 * 128 - 1024 - shared_bytes_of(state, request.number(0))
    return [word(max(0, each))]


@handles("cudaOccupancyMaxPotentialClusterSize")
def cluster_size(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the maximum portable cluster size."""
    return [int32(8)]


@handles("cudaOccupancyMaxActiveClusters")
def active_clusters(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return one cluster per eight SMs."""
    return [int32(state.gpu[0].sms // 8)]


@handles("version")
def note_version(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Store the major version of the program's runtime, from the first message."""
    state.version = str(request.arguments.word())
    return ()
