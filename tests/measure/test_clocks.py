"""What of the clocks can be had without a GPU: sizes, refusals, the host's clock, and NVML's bits."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch

from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.measure.benchmark import graph_calls
from sdpalab.measure.clocks import EagerClock, GraphClock
from sdpalab.measure.l2 import copies_beyond_l2, flush_bytes
from sdpalab.measure.peers import PEERS, TorchSdpa
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.measure.session import MeasureStatus, measure
from sdpalab.measure.stopping import StoppingRule
from sdpalab.measure.subjects import OutputCheck, peer_subject
from sdpalab.measure.throttle import ClockState, reasons_in, slowed_share, watch_for
from sdpalab.problem import MISSION, Problem

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
    assert graph_calls(copies) % copies == 0
    assert graph_calls(copies) >= 100


def test_a_graph_of_few_calls_is_refused() -> None:
    assert GraphClock(L2State.COLD, 136).calls == 136
    with pytest.raises(UserError, match="at least 100 calls"):
        GraphClock(calls=99)
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


def test_torch_on_a_cpu_is_measured_for_real() -> None:
    """The whole path but for the GPU: tensors, rotation, the judge's rule, rounds, summary."""
    problem = Problem(1, 1, 16, 32)
    subjects = [
        peer_subject(peer, problem, make_inputs(problem), torch.device("cpu"), copies=3)
        for peer in PEERS
        if peer.name in ("torch flash", "torch math")
    ]
    rule = StoppingRule(least=6, most=6, seconds=60)
    session = measure(subjects, EagerClock(lambda: None, calls=3), rule, checked_share=1.0)
    for found in session.measurements:
        assert found.status is MeasureStatus.MEASURED, found.reason
        assert found.checks == 1 + 6 + 1
        assert found.samples is not None
        assert found.samples.clock is ClockKind.EAGER
        assert found.samples.calls == 3


def test_the_output_check_is_the_judges_rule() -> None:
    problem = MISSION.with_(heads=1, seq_q=32)
    inputs = make_inputs(problem)
    check = OutputCheck(problem, inputs)
    subject = peer_subject(PEERS[0], problem, inputs, torch.device("cpu"))
    subject.call()
    assert subject.check() == ""
    assert check(inputs.q).startswith("INCORRECT")
    assert check(inputs.q[:, :, :8]) == "it is float16 (1, 1, 8, 64), not float16 (1, 1, 32, 64)"
    subject.overwrite_output()
    assert subject.check().startswith("NOT_FINITE")


def test_calls_take_the_copies_in_turn() -> None:
    """Seven calls on three copies: where Q lies, and that all copies hold the same."""

    class Noting(TorchSdpa):
        def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
            places.append((q.data_ptr(), k.data_ptr(), v.data_ptr()))
            return super().run(q, k, v, scale=scale, causal=causal)

    places: list[tuple[int, ...]] = []
    problem = Problem(1, 1, 16, 32)
    noting = Noting("noting", None, PEERS[0].envelope)
    subject = peer_subject(noting, problem, make_inputs(problem), torch.device("cpu"), copies=3)
    for _ in range(7):
        subject.call()
        assert subject.check() == ""
    assert len({place for each in places for place in each}) == 9
    assert places[3:] == places[:4]


def test_the_same_bits_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A float64 reference takes seconds at the sizes that are timed."""
    problem = Problem(1, 1, 16, 32)
    inputs = make_inputs(problem)
    judged: list[bool] = []

    def noting(*arguments: Any) -> Any:
        judged.append(True)
        return judge_output(*arguments)

    monkeypatch.setattr("sdpalab.measure.subjects.judge_output", noting)
    subject = peer_subject(PEERS[0], problem, inputs, torch.device("cpu"))
    for _ in range(3):
        subject.call()
        assert subject.check() == ""
    assert len(judged) == 1


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
