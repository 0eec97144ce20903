"""Calls on streams and events (CUDA Runtime API, "Stream Management", "Event Management")."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from warpsan.program.errors import CallError
from warpsan.program.handlers import handles, int32, nothing, uint32, word
from warpsan.program.state import ProgramState, RecordedEvent
from warpsan.program.wire import Request

__all__ = ["synchronize_device"]

_NON_BLOCKING = 1
_MS_PER_STEP = 1e-6
"""Milliseconds between two events per simulator step; a simulated run has no GPU time."""

nothing("cudaStreamSetAttribute", "cudaDeviceReset", "cudaThreadExit")


@handles("cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority")
def create_stream(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Create a stream; priorities have no effect."""
    flags = request.int32(0) if request.words else 0
    handle = state.handle()
    state.streams[handle] = state.device.stream(blocking=not flags & _NON_BLOCKING)
    return [word(handle)]


@handles("cudaStreamDestroy")
def destroy_stream(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Destroy a stream; its operations stay recorded."""
    state.stream(request.number(0), request)
    state.streams.pop(request.number(0), None)
    return ()


@handles("cudaStreamSynchronize")
def synchronize_stream(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Wait on the host for a stream."""
    state.stream(request.number(0), request).synchronize()
    return ()


@handles("cudaStreamQuery")
def query_stream(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return success after a synchronization: all work is complete."""
    state.stream(request.number(0), request).synchronize()
    return ()


@handles("cudaDeviceSynchronize", "cudaThreadSynchronize")
def synchronize_device(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Wait on the host for all streams."""
    state.device.synchronize()
    return ()


@handles("cudaLaunchHostFunc")
def host_function(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Wait on the host for all work in the stream, before the program calls the function; other host threads may
    continue after the function.
    """
    state.stream(request.arguments.word(), request).synchronize()
    return ()


@handles("cudaStreamGetFlags")
def stream_flags(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return whether a stream is blocking."""
    return [uint32(0 if state.stream(request.number(0), request).blocking else _NON_BLOCKING)]


@handles("cudaStreamGetPriority", "cudaStreamGetDevice")
def stream_zero(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return 0: the default priority, or the only device."""
    return [int32(0)]


@handles("cudaStreamGetId")
def stream_id(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the number of a stream."""
    return [word(state.stream(request.number(0), request).number)]


@handles(
    "cudaStreamIsCapturing", "cudaStreamGetCaptureInfo", "cudaStreamGetCaptureInfo_v2", "cudaStreamGetCaptureInfo_v3"
)
def stream_capture(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return that no capture is active."""
    return [uint32(0)]


@handles("cudaThreadExchangeStreamCaptureMode")
def capture_mode(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the default capture mode."""
    return [uint32(0)]


@handles("cudaStreamWaitEvent")
def wait_event(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Order a stream after an event; no effect for an unrecorded event."""
    event = _event(state, request.number(1))
    if event.event is not None:
        state.stream(request.number(0), request).wait(event.event)
    return ()


@handles("cudaEventCreate", "cudaEventCreateWithFlags")
def create_event(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Create an event."""
    handle = state.handle()
    state.events[handle] = RecordedEvent()
    return [word(handle)]


@handles("cudaEventDestroy")
def destroy_event(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Destroy an event."""
    _event(state, request.number(0))
    del state.events[request.number(0)]
    return ()


@handles("cudaEventRecord", "cudaEventRecordWithFlags")
def record_event(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Record an event after all work issued to the stream so far."""
    event, stream = _event(state, request.number(0)), state.stream(request.number(1), request)
    event.event, event.steps = stream.record(), state.steps
    return ()


@handles("cudaEventSynchronize", "cudaEventQuery")
def synchronize_event(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Wait on the host for an event."""
    event = _event(state, request.number(0))
    if event.event is not None:
        event.event.synchronize()
    return ()


@handles("cudaEventElapsedTime", "cudaEventElapsedTime_v2")
def elapsed_time(state: ProgramState, request: Request) -> Sequence[bytes]:
    """Return the simulator steps between two events, one million per millisecond; no measure of GPU time."""
    begin, end = (_event(state, request.number(place)) for place in range(2))
    if begin.event is None or end.event is None:
        raise CallError("cudaErrorInvalidResourceHandle", "an event was never recorded")
    state.notes.add("times between events are simulator steps, one million per millisecond, not GPU times")
    return [struct.pack("<f", max(1, end.steps - begin.steps) * _MS_PER_STEP)]


def _event(state: ProgramState, handle: int) -> RecordedEvent:
    if handle not in state.events:
        raise CallError("cudaErrorInvalidResourceHandle", "there is no such event")
    return state.events[handle]
