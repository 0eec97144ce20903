"""The properties of the simulated GPU: ``cudaDeviceProp`` in each version of the runtime, and device attributes.

Sources: CUDA Runtime API, "Data types used by CUDA Runtime" (the structure and its fields), "Device Management"
(attributes); the limits of an SM are those of :mod:`warpsan.build.residency`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from warpsan.build.residency import RESERVED_SHARED, capability, sm_limits
from warpsan.gpus import Gpu, device_name

__all__ = ["attribute_of", "device_properties", "properties_of"]

_FIELDS = """
name:256s uuid:16s luid:8s luidDeviceNodeMask:I totalGlobalMem:N sharedMemPerBlock:N regsPerBlock warpSize
memPitch:N maxThreadsPerBlock maxThreadsDim:3i maxGridSize:3i clockRate totalConstMem:N major minor
textureAlignment:N texturePitchAlignment:N deviceOverlap multiProcessorCount kernelExecTimeoutEnabled integrated
canMapHostMemory computeMode maxTexture1D maxTexture1DMipmap maxTexture1DLinear maxTexture2D:2i
maxTexture2DMipmap:2i maxTexture2DLinear:3i maxTexture2DGather:2i maxTexture3D:3i maxTexture3DAlt:3i
maxTextureCubemap maxTexture1DLayered:2i maxTexture2DLayered:3i maxTextureCubemapLayered:2i maxSurface1D
maxSurface2D:2i maxSurface3D:3i maxSurface1DLayered:2i maxSurface2DLayered:3i maxSurfaceCubemap
maxSurfaceCubemapLayered:2i surfaceAlignment:N concurrentKernels ECCEnabled pciBusID pciDeviceID pciDomainID
tccDriver asyncEngineCount unifiedAddressing memoryClockRate memoryBusWidth l2CacheSize persistingL2CacheMaxSize
maxThreadsPerMultiProcessor streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported
sharedMemPerMultiprocessor:N regsPerMultiprocessor managedMemory isMultiGpuBoard multiGpuBoardGroupID
hostNativeAtomicSupported singleToDoublePrecisionPerfRatio pageableMemoryAccess concurrentManagedAccess
computePreemptionSupported canUseHostPointerForRegisteredMem cooperativeLaunch cooperativeMultiDeviceLaunch
sharedMemPerBlockOptin:N pageableMemoryAccessUsesHostPageTables directManagedMemAccessFromHost
maxBlocksPerMultiProcessor accessPolicyMaxWindowSize reservedSharedMemPerBlock:N hostRegisterSupported
sparseCudaArraySupported hostRegisterReadOnlySupported timelineSemaphoreInteropSupported memoryPoolsSupported
gpuDirectRDMASupported gpuDirectRDMAFlushWritesOptions:I gpuDirectRDMAWritesOrdering
memoryPoolSupportedHandleTypes:I deferredMappingCudaArraySupported ipcEventSupported clusterLaunch
unifiedFunctionPointers
"""
"""Fields in the order of the structure, each with its :mod:`struct` type; the default type is int."""

_NOT_IN_11 = _FIELDS.split().index("hostRegisterSupported")
_NOT_IN_13 = (
    *("clockRate", "deviceOverlap", "kernelExecTimeoutEnabled", "computeMode", "maxTexture1DLinear", "memoryClockRate"),
    *("singleToDoublePrecisionPerfRatio", "cooperativeMultiDeviceLaunch"),
)
_SINCE_13 = """
deviceNumaConfig deviceNumaId mpsEnabled hostNumaId gpuPciDeviceID:I gpuPciSubsystemID:I hostNumaMultinodeIpcSupported
"""
_RESERVED = {"11": 0, "12": 63, "13": 56}
"""Number of ints after the last field, by major version."""

_SHARED_WITHOUT_OPT_IN = 48 * 1024
_REGISTERS = 64 * 1024


def device_properties(gpu: Gpu, arch: str, memory: int) -> dict[str, Any]:
    """Fields of ``cudaDeviceProp`` other than 0, for a GPU of an architecture with ``memory`` bytes."""
    number, limits = capability(arch), sm_limits(arch)
    ones = (
        *("canMapHostMemory", "concurrentKernels", "unifiedAddressing", "streamPrioritiesSupported", "deviceOverlap"),
        *("globalL1CacheSupported", "localL1CacheSupported", "managedMemory", "concurrentManagedAccess"),
        *("computePreemptionSupported", "cooperativeLaunch", "memoryPoolsSupported", "asyncEngineCount"),
        *("unifiedFunctionPointers", "pciBusID"),
    )
    return dict.fromkeys(ones, 1) | {
        "name": f"{device_name(gpu)} (simulated by warpsan)".encode(),
        "uuid": b"warpsan simulate",
        "totalGlobalMem": memory,
        "sharedMemPerBlock": _SHARED_WITHOUT_OPT_IN,
        "regsPerBlock": _REGISTERS,
        "warpSize": 32,
        "memPitch": (1 << 31) - 1,
        "maxThreadsPerBlock": 1024,
        "maxThreadsDim": (1024, 1024, 64),
        "maxGridSize": ((1 << 31) - 1, 65535, 65535),
        "clockRate": int(gpu.clock_mhz * 1000),
        "totalConstMem": 64 * 1024,
        "major": number // 10,
        "minor": number % 10,
        "textureAlignment": 512,
        "texturePitchAlignment": 32,
        "multiProcessorCount": gpu.sms,
        "l2CacheSize": int(gpu.l2_mib * 2**20),
        "maxThreadsPerMultiProcessor": limits.warps * 32,
        "sharedMemPerMultiprocessor": limits.shared_bytes,
        "regsPerMultiprocessor": _REGISTERS,
        "sharedMemPerBlockOptin": limits.shared_bytes_per_block,
        "maxBlocksPerMultiProcessor": limits.blocks,
        "reservedSharedMemPerBlock": RESERVED_SHARED,
        "clusterLaunch": int(number >= 90),
    }


@lru_cache(maxsize=8)
def _layout(version: str) -> tuple[tuple[str, str], ...]:
    fields = _FIELDS.split()
    if version == "11":
        fields = fields[:_NOT_IN_11]
    elif version == "13":
        fields = [field for field in fields if field.partition(":")[0] not in _NOT_IN_13] + _SINCE_13.split()
    return tuple((name, kind or "i") for name, _, kind in (field.partition(":") for field in fields))


def properties_of(values: Mapping[str, Any], version: str) -> bytes:
    """``cudaDeviceProp`` of a major version of the runtime (11, 12 or 13)."""
    data = bytearray()
    for name, kind in _layout(version):
        if kind.endswith("s"):
            data += struct.pack(kind, values.get(name, b""))
            continue
        code = {"N": "Q"}.get(kind[-1], kind[-1])
        count, size = int(kind[:-1] or 1), struct.calcsize(code)
        data += bytes(-len(data) % size)
        value = values.get(name, 0)
        data += struct.pack(f"<{count}{code}", *(value if isinstance(value, tuple) else (value,) * count))
    data += bytes(4 * _RESERVED[version])
    return bytes(data) + bytes(-len(data) % 8)


_ATTRIBUTES = {
    **{f"MaxBlockDim{axis}": ("maxThreadsDim", place) for place, axis in enumerate("XYZ")},
    **{f"MaxGridDim{axis}": ("maxGridSize", place) for place, axis in enumerate("XYZ")},
}
_OTHER_NAMES = {
    "MaxSharedMemoryPerBlock": "sharedMemPerBlock",
    "TotalConstantMemory": "totalConstMem",
    "MaxPitch": "memPitch",
    "MaxRegistersPerBlock": "regsPerBlock",
    "GpuOverlap": "deviceOverlap",
    "ComputeCapabilityMajor": "major",
    "ComputeCapabilityMinor": "minor",
    "PciBusId": "pciBusID",
    "GlobalMemoryBusWidth": "memoryBusWidth",
    "L2CacheSize": "l2CacheSize",
    "MaxSharedMemoryPerMultiprocessor": "sharedMemPerMultiprocessor",
    "MaxRegistersPerMultiprocessor": "regsPerMultiprocessor",
    "MaxSharedMemoryPerBlockOptin": "sharedMemPerBlockOptin",
    "ReservedSharedMemoryPerBlock": "reservedSharedMemPerBlock",
    "MaxBlocksPerMultiprocessor": "maxBlocksPerMultiProcessor",
}


def attribute_of(values: Mapping[str, Any], number: int) -> int | None:
    """Value of a ``cudaDeviceAttr``; 0 for missing features of the GPU, None for an unknown attribute."""
    from cuda.bindings import runtime  # import takes about 0.3 s

    try:
        name = runtime.cudaDeviceAttr(number).name.removeprefix("cudaDevAttr")
    except ValueError:
        return None
    if name in _ATTRIBUTES:
        field, place = _ATTRIBUTES[name]
        return int(values[field][place])
    value = values.get(_OTHER_NAMES.get(name, name[:1].lower() + name[1:]), 0)
    return value if isinstance(value, int) else 0
