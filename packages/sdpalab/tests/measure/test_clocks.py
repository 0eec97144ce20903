"""Parts of the clocks that need no GPU: sizes, refusals, the host's clock, and NVML's bits."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.measure.clocks import MOST_CALLS, SAMPLE_US, EagerClock, GraphClock, sized
from sdpalab.measure.l2 import copies_beyond_l2, flush_bytes
from sdpalab.measure.outputs import Outputs
from sdpalab.measure.peers import PEERS, TorchSdpa
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.measure.session import MeasureStatus, measure
from sdpalab.measure.stopping import StoppingRule
from sdpalab.measure.subjects import peer_subject
from sdpalab.measure.throttle import ClockState, reasons_in, slowed_share, watch_for
from sdpalab.problem import Problem

MIB = 2**20


def test_the_flush_is_larger_than_l2() -> None:
    assert flush_bytes(48 * MIB) == 96 * MIB
    with pytest.raises(ValueError, match="no flush can be sized"):
        flush_bytes(0)


@pytest.mark.parametrize(("input_bytes", "l2"), [(int(1.5 * MIB), 50 * MIB), (7, 1000), (400 * MIB, 50 * MIB)])
def test_other_copies_fill_l2_between_two_uses_of_one(input_bytes: int, l2: int) -> None:
    copies = copies_beyond_l2(input_bytes, l2)
    assert (copies - 1) * input_bytes >= flush_bytes(l2)
    assert (copies - 2) * input_bytes < flush_bytes(l2)


@pytest.mark.parametrize(
    ("us", "copies", "calls"),
    [
        (20.0, 1, 1000),
        (200.0, 1, 100),
        (5000.0, 1, 4),
        (9000.0, 1, 3),
        (90_000.0, 1, 1),  # one call is longer than a sample is to be
        (90_000.0, 3, 3),  # and each of the copies is used
        (200.0, 68, 136),
        (1.0, 1, MOST_CALLS),
        (0.0, 7, 4102),
    ],
)
def test_a_sample_has_as_many_calls_as_take_its_time(us: float, copies: int, calls: int) -> None:
    assert sized(us, copies) == calls
    assert calls % copies == 0
    assert calls * us >= min(SAMPLE_US, MOST_CALLS * us)


def test_clocks_refuse_what_cannot_be() -> None:
    with pytest.raises(UserError, match="at least 1 copy"):
        GraphClock(copies=0)
    with pytest.raises(UserError, match="at least 1 call"):
        EagerClock(lambda: None, calls=0)


def test_the_eager_clock_times_all_its_calls_and_the_wait() -> None:
    calls, waits = [], []

    def wait() -> None:
        waits.append(len(calls))
        time.sleep(0.002)

    clock = EagerClock(wait, calls=5)
    us = clock.ready(lambda: calls.append(time.sleep(0.001)))()
    assert waits == [0, 5]
    assert us >= (5 * 1000 + 2000) / 5, "five calls and the wait after them"


def test_the_eager_clock_sizes_its_samples_itself() -> None:
    stopwatch = EagerClock(lambda: None).ready(lambda: time.sleep(0.004))
    assert 3 <= stopwatch.calls <= 5
    rotated = EagerClock(lambda: None, L2State.COLD, copies=4).ready(lambda: time.sleep(0.004))
    assert rotated.calls in (4, 8)


class _Events:
    """torch.cuda with graphs whose calls take a known time, and are slower outside of them."""

    def __init__(self, us_in_graph: float, us_on_stream: float) -> None:
        self.us, self._graph, self._stream = 0.0, us_in_graph, us_on_stream
        self.capturing: list[int] | None = None
        self.captured: list[int] = []

    def call(self) -> None:
        if self.capturing is not None:
            self.capturing[0] += 1
        else:
            self.us += self._stream

    def Stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None, settled=False)

    def current_stream(self) -> Any:
        return None

    def stream(self, side: Any) -> Any:
        side.settled = True
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def Event(self, *, enable_timing: bool) -> Any:
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.us)
        event.elapsed_time = lambda other: (other.at - event.at) / 1e3
        return event

    def CUDAGraph(self) -> Any:
        graph = SimpleNamespace(calls=[0])
        graph.replay = lambda: setattr(self, "us", self.us + graph.calls[0] * self._graph)
        return graph

    @contextmanager
    def graph(self, captured: Any, stream: Any) -> Iterator[None]:
        assert stream.settled, "a backward pass is captured on the stream of its forward pass alone"
        self.capturing = captured.calls
        yield
        self.capturing = None
        self.captured.append(captured.calls[0])


@pytest.mark.parametrize(
    ("in_graph", "on_stream", "captured"),
    [(4.0, 20.0, [1000, 4096]), (18.0, 20.0, [1000]), (5000.0, 5000.0, [4]), (30_000.0, 30_000.0, [1])],
)
def test_a_graph_is_captured_again_if_its_calls_are_shorter_than_their_launches(
    monkeypatch: pytest.MonkeyPatch, in_graph: float, on_stream: float, captured: list[int]
) -> None:
    cuda = _Events(in_graph, on_stream)
    monkeypatch.setattr("sdpalab.measure.clocks._cuda", lambda: cuda)
    stopwatch = GraphClock().ready(cuda.call)
    assert cuda.captured == captured
    assert stopwatch.calls == captured[-1]
    assert stopwatch() == pytest.approx(in_graph)


def test_torch_on_a_cpu_is_measured_for_real() -> None:
    """The whole path but for the GPU: tensors, rotation, the judge's rule, rounds, summary."""
    problem = Problem(1, 1, 16, 32)
    subjects = [
        peer_subject(peer, Outputs(problem, make_inputs(problem)), torch.device("cpu"), copies=3)
        for peer in PEERS
        if peer.name in ("torch flash", "torch math")
    ]
    rule = StoppingRule(least=6, most=6, seconds=60)
    session = measure(subjects, EagerClock(lambda: None, calls=3), rule, checked_share=1.0)
    for measurement in session.measurements:
        assert measurement.status is MeasureStatus.MEASURED, measurement.reason
        assert measurement.checks == 1 + 6 + 1
        assert measurement.samples is not None
        assert measurement.samples.clock is ClockKind.EAGER
        assert measurement.samples.calls == 3


def test_calls_take_the_copies_in_turn() -> None:
    """Seven calls on three copies: where Q lies, and that all copies hold the same."""

    class Noting(TorchSdpa):
        def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
            places.append((q.data_ptr(), k.data_ptr(), v.data_ptr()))
            return super().run(q, k, v, scale=scale, causal=causal)

    places: list[tuple[int, ...]] = []
    problem = Problem(1, 1, 16, 32)
    noting = Noting("noting", None, PEERS[0].envelope)
    subject = peer_subject(noting, Outputs(problem, make_inputs(problem)), torch.device("cpu"), copies=3)
    for _ in range(7):
        subject.call()
        assert subject.check() == ""
    assert len({place for each in places for place in each}) == 9
    assert places[3:] == places[:4]


def test_reasons_of_nvml_have_names() -> None:
    assert reasons_in(0) == ()
    assert reasons_in(0x4 | 0x40) == ("power cap", "hardware thermal slowdown")
    assert reasons_in(0x1 | 0x1000) == ("idle", "0x1000")


def test_a_power_cap_is_no_slowdown_and_heat_is() -> None:
    states = [ClockState(2000, 60, 70.0, reasons_in(bits)) for bits in (0x0, 0x4, 0x8, 0x20, 0x40, 0x80)]
    assert [state.slowed for state in states] == [False, False, True, True, True, True]
    assert slowed_share([*states, None]) == pytest.approx(4 / 6)
    assert slowed_share([None]) is None


def test_without_nvml_the_clocks_are_unknown_and_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = watch_for("GPU-0")
    assert watch.look() is None
    assert watch.most_mhz is None
    assert watch.about == "unknown: the package nvidia-ml-py is not installed"
