"""Three clocks, whose times are never compared with each other.

Launching a short kernel costs more than computing it: torch's attention at the mission shape was "47", "69.7" and
"25.9" us on one machine, by three clocks that were not distinguished. Here each sample names its clock, and only times
of one clock are compared.

The GPU clocks need torch with CUDA. **They have not been run on a GPU yet**; only :class:`EagerClock` is tested, on a
CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sdpalab.errors import UserError
from sdpalab.measure.l2 import L2Flush
from sdpalab.measure.samples import ClockKind, L2State

if TYPE_CHECKING:
    import torch

__all__ = ["MOST_CALLS", "SAMPLE_US", "Clock", "EagerClock", "GraphClock", "Stopwatch", "StreamClock", "sized"]

Call = Callable[[], Any]

SAMPLE_US = 20_000.0
"""Length of a sample for short calls; starting a graph or waiting for the last call takes some microseconds, less than
a thousandth of it."""

MOST_CALLS = 4096
"""Largest number of calls of a sample: a graph is captured and instantiated call by call."""

_ESTIMATED_CALLS = 5
"""Number of calls in the first estimate of a call's time."""

_SETTLING_CALLS = 3
"""Calls before capture of a graph: libraries choose algorithms and allocate in the first calls, which graphs forbid."""

_MOST_PASSES = 64
"""Largest number of flush passes that cover the host's launch time; calls with longer launches have no stream time."""


@dataclass(frozen=True)
class Stopwatch:
    """Takes one sample per call: microseconds per timed call, the mean of ``calls``, after they are complete."""

    sample: Callable[[], float]
    calls: int

    def __call__(self) -> float:
        return self.sample()


def sized(us: float, copies: int = 1) -> int:
    """Number of calls of a sample, for calls of about ``us`` microseconds that rotate through ``copies`` of the inputs.

    The sample lasts about :data:`SAMPLE_US` with at most about :data:`MOST_CALLS` calls. The number is a multiple of
    ``copies``, at least that, so each sample starts with the same copy.
    """
    calls = min(float(MOST_CALLS), SAMPLE_US / us) if us > 0 else float(MOST_CALLS)
    return copies * max(1, math.ceil(calls / copies))


class Clock(Protocol):
    """Times calls."""

    kind: ClockKind
    l2: L2State

    def ready(self, call: Call) -> Stopwatch:
        """A stopwatch that takes samples of ``call``.

        Raises the exceptions of ``call``, and those of the clock if it cannot time ``call``.
        """
        ...


class GraphClock:
    """GPU time: events around the replay of a CUDA graph of many calls, divided by their number.

    A graph's first replay may wait for the host, so each sample comes from a second replay, queued behind it. The
    number of calls in a graph depends on the time of a call (:func:`sized`). The first estimate comes from the stream,
    where a short call takes as long as its launch; the second from a first graph, which is captured again if it is too
    short. With ``l2=COLD`` the caller's ``call`` must use other inputs each time, as graphs contain no flush
    (:func:`~sdpalab.measure.l2.copies_beyond_l2`).

    Parameters
    ----------
    l2 : L2State
        Location of the caller's inputs.
    copies : int
        Number of input copies that calls rotate through.

    Raises
    ------
    UserError
        If ``copies`` is below 1.
    """

    kind = ClockKind.GPU

    def __init__(self, l2: L2State = L2State.WARM, copies: int = 1) -> None:
        if copies < 1:
            raise UserError(f"calls need at least 1 copy of the inputs, not {copies}")
        self.l2, self.copies = l2, copies

    def ready(self, call: Call) -> Stopwatch:
        """Capture the graph; torch raises RuntimeError if ``call`` performs an uncapturable operation, such as
        waiting."""
        cuda = _cuda()
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(_SETTLING_CALLS):
                call()
            us = _between_events(call, _ESTIMATED_CALLS)
        cuda.synchronize()
        stopwatch = self._captured(call, sized(us, self.copies), side)
        calls = sized(stopwatch(), self.copies)
        return self._captured(call, calls, side) if calls >= 2 * stopwatch.calls else stopwatch

    def _captured(self, call: Call, calls: int, stream: Any) -> Stopwatch:
        cuda = _cuda()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call()
        start, end = _events()

        def sample() -> float:
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e3 / calls

        return Stopwatch(sample, calls)


class StreamClock:
    """Stream time: events around one call that is queued before the GPU is ready for it.

    A flush of L2 before each sample keeps the GPU busy until the call is queued, so the time contains no wait for the
    host. The first event shows whether the flush was long enough; if not, the sample is repeated with a longer one. For
    warm inputs an untimed call follows the flush.

    Parameters
    ----------
    device : torch.device
    l2 : L2State
    """

    kind = ClockKind.STREAM

    def __init__(self, device: torch.device, l2: L2State = L2State.WARM) -> None:
        self.l2 = l2
        self._flush = L2Flush(device)

    def ready(self, call: Call) -> Stopwatch:
        """A sample raises RuntimeError if the host takes too long to launch the call."""
        start, end = _events()
        passes = 1

        def sample() -> float:
            nonlocal passes
            while passes <= _MOST_PASSES:
                self._flush(passes)
                if self.l2 is L2State.WARM:
                    call()
                start.record()
                call()
                end.record()
                host_was_late = start.query()
                end.synchronize()
                if not host_was_late:
                    return float(start.elapsed_time(end)) * 1e3
                passes *= 2
            raise RuntimeError("the host launches the call more slowly than the GPU runs it: use the eager clock")

        return Stopwatch(sample, 1)


class EagerClock:
    """Eager time: the host's clock around many calls and one wait for the GPU, divided by their number.

    This is the cost to a program that calls one operation after another: the larger of dispatch and computation.

    Parameters
    ----------
    wait : callable
        Waits for the device: ``torch.cuda.synchronize``, or a no-op on a CPU.
    l2 : L2State
        Location of the caller's inputs.
    copies : int
        Number of input copies that calls rotate through.
    calls : int, optional
        Calls of a sample, at least 1. Default: :func:`sized`.
    """

    kind = ClockKind.EAGER

    def __init__(
        self, wait: Callable[[], None], l2: L2State = L2State.WARM, copies: int = 1, calls: int | None = None
    ) -> None:
        if calls is not None and calls < 1:
            raise UserError(f"a sample needs at least 1 call, not {calls}")
        self.l2, self._wait, self._copies, self._calls = l2, wait, copies, calls

    def ready(self, call: Call) -> Stopwatch:
        """Estimate the time of a call, unless the number of calls is given."""
        if self._calls is None:
            self._sample(call, _SETTLING_CALLS)
        calls = self._calls or sized(self._sample(call, _ESTIMATED_CALLS), self._copies)
        return Stopwatch(partial(self._sample, call, calls), calls)

    def _sample(self, call: Call, calls: int) -> float:
        self._wait()
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        self._wait()
        return (time.perf_counter_ns() - start) / 1e3 / calls


def _between_events(call: Call, calls: int) -> float:
    """Microseconds per call, for ``calls`` consecutive calls on the current stream."""
    start, end = _events()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / calls


def _events() -> tuple[Any, Any]:
    """Two timing events."""
    cuda = _cuda()
    return cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)


def _cuda() -> Any:
    """``torch.cuda``, which has incomplete types."""
    import torch

    return torch.cuda
