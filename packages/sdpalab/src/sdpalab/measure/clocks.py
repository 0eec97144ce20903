"""Three clocks, whose times are never compared with each other.

On a short kernel, launching costs more than computing: torch's attention at the mission shape was "47", "69.7" and
"25.9" us on one machine, by three clocks that were not distinguished. Here each sample names its clock, and only times
of one clock are compared.

These clocks need torch with CUDA. **They have not been run on a GPU yet**; :class:`EagerClock` alone is tested, on a
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
"""Length of a sample, if calls are short enough: what starts a graph, or waits for the last call, takes some
microseconds, which is then below a thousandth."""

MOST_CALLS = 4096
"""Calls of a sample: a graph is captured and instantiated call by call."""

_ESTIMATED_CALLS = 5
"""Calls from which the time of one is estimated first."""

_SETTLING_CALLS = 3
"""Calls before a graph is captured: libraries choose algorithms and allocate in the first ones, which graphs forbid."""

_MOST_PASSES = 64
"""Passes of the flush with which the host gets time to launch; a call that takes it longer has no stream time."""


@dataclass(frozen=True)
class Stopwatch:
    """Takes a sample each time it is called: microseconds a call, the mean of ``calls``; computed and waited for."""

    sample: Callable[[], float]
    calls: int

    def __call__(self) -> float:
        return self.sample()


def sized(us: float, copies: int = 1) -> int:
    """Calls of a sample, for calls of about ``us`` microseconds that take ``copies`` of the inputs in turn.

    As many as take :data:`SAMPLE_US`, at most about :data:`MOST_CALLS`: a multiple of ``copies``, so that a sample ends
    where it began, and at least that.
    """
    calls = min(float(MOST_CALLS), SAMPLE_US / us) if us > 0 else float(MOST_CALLS)
    return copies * max(1, math.ceil(calls / copies))


class Clock(Protocol):
    """Times calls."""

    kind: ClockKind
    l2: L2State

    def ready(self, call: Call) -> Stopwatch:
        """What takes samples of ``call``.

        Raises whatever ``call`` raises, or what the clock cannot do with it.
        """
        ...


class GraphClock:
    """GPU time: events around the replay of a CUDA graph of many calls, over their number.

    A graph's first replay may wait for the host, so each sample is taken of a second one, which is queued behind it.
    How many calls a graph has follows from what one takes (:func:`sized`): that is estimated on the stream, where a
    short call takes as long as its launch, and then from a first graph, which is captured again if it turns out too
    short. With ``l2=COLD`` the caller's ``call`` must take other inputs each time: nothing is flushed within a graph
    (:func:`~sdpalab.measure.l2.copies_beyond_l2`).

    Parameters
    ----------
    l2 : L2State
        Where the caller's inputs are.
    copies : int
        Copies of the inputs that calls take in turn.

    Raises
    ------
    UserError
        If there is not at least one copy.
    """

    kind = ClockKind.GPU

    def __init__(self, l2: L2State = L2State.WARM, copies: int = 1) -> None:
        if copies < 1:
            raise UserError(f"calls need at least 1 copy of the inputs, not {copies}")
        self.l2, self.copies = l2, copies

    def ready(self, call: Call) -> Stopwatch:
        """Capture the graph; a RuntimeError of torch if ``call`` does what no graph can hold, such as waiting."""
        cuda = _cuda()
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(_SETTLING_CALLS):
                call()
            us = _between_events(call, _ESTIMATED_CALLS)
        cuda.synchronize()
        stopwatch = self._captured(call, sized(us, self.copies))
        calls = sized(stopwatch(), self.copies)
        return self._captured(call, calls) if calls >= 2 * stopwatch.calls else stopwatch

    def _captured(self, call: Call, calls: int) -> Stopwatch:
        cuda = _cuda()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
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
    """Stream time: events around one call, while the host is ahead of the GPU.

    Before each sample L2 is flushed. That keeps the GPU busy until the call is queued, so that no wait for the host is
    in the time; whether it was long enough is seen from the first event, and if not the sample is taken again with a
    longer flush. For warm inputs one call that is not timed comes between.

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
    """Eager time: the host's clock around many calls and one wait for the GPU, over their number.

    The cost to a program that calls one operation after another: the larger of dispatch and computing.

    Parameters
    ----------
    wait : callable
        Waits for the device: ``torch.cuda.synchronize``, or nothing on a CPU.
    l2 : L2State
        Where the caller's inputs are.
    copies : int
        Copies of the inputs that calls take in turn.
    calls : int, optional
        Calls of a sample, at least 1. Default: as many as :func:`sized` says.
    """

    kind = ClockKind.EAGER

    def __init__(
        self, wait: Callable[[], None], l2: L2State = L2State.WARM, copies: int = 1, calls: int | None = None
    ) -> None:
        if calls is not None and calls < 1:
            raise UserError(f"a sample needs at least 1 call, not {calls}")
        self.l2, self._wait, self._copies, self._calls = l2, wait, copies, calls

    def ready(self, call: Call) -> Stopwatch:
        """Estimate how long a call takes, unless the number of calls is given."""
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
    """Microseconds a call of some, one after the other on the current stream."""
    start, end = _events()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / calls


def _events() -> tuple[Any, Any]:
    """Two events that hold times."""
    cuda = _cuda()
    return cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)


def _cuda() -> Any:
    """``torch.cuda``, which is typed in part only."""
    import torch

    return torch.cuda
