"""Three clocks, kept apart: a time of one says nothing of another.

On a short kernel, launching costs more than computing: torch's attention at the mission shape was "47", "69.7" and
"25.9" us on one machine, by three clocks that nobody told apart. Here each sample knows its clock, and only times of
one clock are compared.

These clocks need torch with CUDA. **They have not been run on a GPU yet**; :class:`EagerClock` alone is tested, on a
CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from sdpalab.errors import UserError
from sdpalab.measure.l2 import L2Flush
from sdpalab.measure.samples import ClockKind, L2State

if TYPE_CHECKING:
    import torch

__all__ = ["LEAST_GRAPH_CALLS", "Clock", "EagerClock", "GraphClock", "StreamClock"]

Call = Callable[[], Any]
Stopwatch = Callable[[], float]

LEAST_GRAPH_CALLS = 100
"""Calls of a graph: what starting the graph costs, some microseconds, is shared by all of them."""

_SETTLING_CALLS = 3
"""Calls before a graph is captured: libraries choose algorithms and allocate in the first ones, which graphs forbid."""

_MOST_PASSES = 64
"""Passes of the flush with which the host gets time to launch; a call that takes it longer has no stream time."""


class Clock(Protocol):
    """Times calls. ``calls`` is how many calls one sample is the mean of."""

    kind: ClockKind
    l2: L2State
    calls: int

    def ready(self, call: Call) -> Stopwatch:
        """What takes a sample of ``call`` each time it is called: microseconds a call, outputs computed and waited for.

        Raises whatever ``call`` raises, or what the clock cannot do with it.
        """
        ...


class GraphClock:
    """GPU time: events around the replay of a CUDA graph of many calls, over their number.

    A graph's first replay may wait for the host, so each sample is taken of a second one, which is queued behind it.
    With ``l2=COLD`` the caller's ``call`` must take other inputs each time: nothing is flushed within a graph
    (:func:`~sdpalab.measure.l2.copies_beyond_l2`).

    Parameters
    ----------
    l2 : L2State
        What the caller's inputs make of it.
    calls : int
        Calls of a graph; for cold inputs a multiple of the number of copies.

    Raises
    ------
    UserError
        If there are fewer than :data:`LEAST_GRAPH_CALLS`.
    """

    kind = ClockKind.GPU

    def __init__(self, l2: L2State = L2State.WARM, calls: int = LEAST_GRAPH_CALLS) -> None:
        if calls < LEAST_GRAPH_CALLS:
            raise UserError(f"a graph needs at least {LEAST_GRAPH_CALLS} calls to hide its own start, not {calls}")
        self.l2, self.calls = l2, calls

    def ready(self, call: Call) -> Stopwatch:
        """Capture the graph; a RuntimeError of torch if ``call`` does what no graph can hold, such as waiting."""
        cuda = _cuda()
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(_SETTLING_CALLS):
                call()
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            for _ in range(self.calls):
                call()
        start, end = _events()

        def sample() -> float:
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e3 / self.calls

        return sample


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
    calls = 1

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

        return sample


class EagerClock:
    """Eager time: the host's clock around many calls and one wait for the GPU, over their number.

    What a program pays that calls one operation after another: the larger of dispatch and computing.

    Parameters
    ----------
    wait : callable
        Waits for the device: ``torch.cuda.synchronize``, or nothing on a CPU.
    l2 : L2State
        What the caller's inputs make of it.
    calls : int
        Calls of a sample, at least 1.
    """

    kind = ClockKind.EAGER

    def __init__(self, wait: Callable[[], None], l2: L2State = L2State.WARM, calls: int = 100) -> None:
        if calls < 1:
            raise UserError(f"a sample needs at least 1 call, not {calls}")
        self.l2, self.calls, self._wait = l2, calls, wait

    def ready(self, call: Call) -> Stopwatch:
        """Nothing to prepare."""

        def sample() -> float:
            self._wait()
            start = time.perf_counter_ns()
            for _ in range(self.calls):
                call()
            self._wait()
            return (time.perf_counter_ns() - start) / 1e3 / self.calls

        return sample


def _events() -> tuple[Any, Any]:
    """Two events that hold times."""
    cuda = _cuda()
    return cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)


def _cuda() -> Any:
    """``torch.cuda``, whose types are known in part only."""
    import torch

    return torch.cuda
