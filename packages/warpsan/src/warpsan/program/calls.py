"""Calls of the CUDA runtime and driver that ``cudart.c`` exports: calls with simple arguments by format, and calls
without a model by name.

A format has one character per argument (CUDA Runtime API, CUDA Driver API): ``w`` a word; ``o`` a pointer to a result;
``i`` both; ``z`` a string; a digit d a pointer to 8 * d bytes; ``S`` a stream, a word.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["FORMATS", "calls_source"]

_PLAIN = """
__cudaRegisterFunction wwwz
__cudaRegisterVar wwwzwwww
__cudaRegisterManagedVar wiwzwwww
__cudaInitModule w
__cudaGetKernel ow
cudaGetKernel ow
cudaGetFuncBySymbol ow
cudaMalloc ow
cudaMallocManaged oww
cudaMallocHost ow
cudaHostAlloc oww
cudaMallocPitch ooww
cudaFree w
cudaFreeHost w
cudaHostGetDevicePointer oww
cudaHostGetFlags ow
cudaHostRegister www
cudaHostUnregister w
cudaMemGetInfo oo
cudaMemset www
cudaMemset2D wwwww
cudaMemset_ptds www
cudaMemset2D_ptds wwwww
cudaGetSymbolAddress ow
cudaGetSymbolSize ow
cudaPointerGetAttributes ow
cudaMemAdvise wwww
cudaMemAdvise_v2 wwww
cudaMemRangeGetAttribute owwww
cudaDeviceSynchronize -
cudaThreadSynchronize -
cudaDeviceReset -
cudaThreadExit -
cudaGetDevice o
cudaSetDevice w
cudaInitDevice www
cudaGetDeviceCount o
cudaGetDeviceProperties ow
cudaGetDeviceProperties_v2 ow
cudaDeviceGetAttribute oww
cudaChooseDevice ow
cudaGetDeviceFlags o
cudaSetDeviceFlags w
cudaDeviceGetLimit ow
cudaDeviceSetLimit ww
cudaDeviceGetCacheConfig o
cudaDeviceSetCacheConfig w
cudaDeviceGetSharedMemConfig o
cudaDeviceSetSharedMemConfig w
cudaDeviceGetStreamPriorityRange oo
cudaDeviceCanAccessPeer oww
cudaDeviceGetPCIBusId oww
cudaCtxResetPersistingL2Cache -
cudaDriverGetVersion o
cudaRuntimeGetVersion o
cudaFuncGetAttributes ow
cudaFuncSetAttribute www
cudaFuncSetCacheConfig ww
cudaFuncSetSharedMemConfig ww
cudaKernelSetAttributeForDevice wwww
cudaOccupancyMaxActiveBlocksPerMultiprocessor owww
cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags owwww
cudaOccupancyAvailableDynamicSMemPerBlock owww
cudaOccupancyMaxActiveClusters ow7
cudaOccupancyMaxPotentialClusterSize ow7
cudaStreamCreate o
cudaStreamCreateWithFlags ow
cudaStreamCreateWithPriority oww
cudaStreamDestroy w
cudaEventCreate o
cudaEventCreateWithFlags ow
cudaEventDestroy w
cudaEventQuery w
cudaEventSynchronize w
cudaEventElapsedTime oww
cudaEventElapsedTime_v2 oww
cudaProfilerStart -
cudaProfilerStop -
cudaThreadExchangeStreamCaptureMode i
cudaDeviceGetDefaultMemPool ow
cudaDeviceGetMemPool ow
cudaMemPoolSetAttribute wwi
cudaMemPoolTrimTo ww
cuInit w
cuDriverGetVersion o
cuDeviceGetCount o
cuDeviceGet ow
cuDeviceGetAttribute oww
cuCtxGetCurrent o
cuCtxGetDevice o
cuTensorMapReplaceAddress iw
"""

_OF_STREAMS = """
cudaMallocAsync owS
cudaMallocFromPoolAsync owwS
cudaFreeAsync wS
cudaMemsetAsync wwwS
cudaMemset2DAsync wwwwwS
cudaMemPrefetchAsync wwwS
cudaMemPrefetchAsync_v2 wwwwS
cudaStreamAttachMemAsync Swww
cudaStreamSynchronize S
cudaStreamQuery S
cudaStreamWaitEvent Sww
cudaStreamGetFlags So
cudaStreamGetPriority So
cudaStreamGetId So
cudaStreamGetDevice So
cudaStreamIsCapturing So
cudaStreamGetCaptureInfo So
cudaStreamGetCaptureInfo_v2 So
cudaStreamGetCaptureInfo_v3 So
cudaStreamSetAttribute Sww
cudaStreamGetAttribute Swo
cudaEventRecord wS
cudaEventRecordWithFlags wSw
"""
"""Calls with a ``_ptsz`` variant, which uses the per-thread default stream."""


def _formats() -> dict[str, str]:
    plain = {name: "" if form == "-" else form for name, form in map(str.split, _PLAIN.strip().splitlines())}
    streams = dict(map(str.split, _OF_STREAMS.strip().splitlines()))
    return plain | streams | {f"{name}_ptsz": form for name, form in streams.items()}


FORMATS: dict[str, str] = _formats()
"""Formats of the calls with simple arguments."""


def calls_source(exported: Path) -> str:
    """C text of ``calls.inc``: one line per call, and one per name in a file with further names of the runtime.

    The file has no names that ``cudart.c`` defines.
    """
    lines = [f'CALL({name}, "{form.replace("S", "w")}", {len(form)})' for name, form in FORMATS.items()]
    more = [name for name in exported.read_text().split() if name not in FORMATS]
    return "\n".join([*lines, *(f"UNMODELLED({name})" for name in more), ""])
