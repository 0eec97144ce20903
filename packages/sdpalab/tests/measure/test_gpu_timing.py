"""The three clocks on a GPU: what must hold whatever its speed. They skip themselves, visibly, where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sdpalab.inputs import make_inputs
from sdpalab.kernels.registry import KERNELS
from sdpalab.measure.benchmark import CudaDevice, benchmark, cuda_device
from sdpalab.measure.clocks import GraphClock
from sdpalab.measure.comparison import ComparisonOutcome
from sdpalab.measure.outputs import Outputs
from sdpalab.measure.peers import peers_named
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.measure.session import MeasuredSession, MeasureStatus, measure
from sdpalab.measure.stopping import StoppingRule
from sdpalab.measure.subjects import EMPTY, peer_subject
from sdpalab.measure.timing_gate import judge_for_timing
from sdpalab.problem import MISSION
from sdpalab.run import GpuExecutor

pytestmark = pytest.mark.gpu

RULE = StoppingRule(least=20, most=100, seconds=5.0)
PEERS = peers_named(["torch", "torch math"])


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    """torch's GPU."""
    if not torch.cuda.is_available():
        pytest.skip("a clock on a GPU needs torch with CUDA")
    return cuda_device()


def session(device: CudaDevice, clock: ClockKind, l2: L2State = L2State.WARM) -> MeasuredSession:
    flash = KERNELS["flash"]
    executor = GpuExecutor(device.ordinal)
    gate = judge_for_timing(flash, flash.default_config, [MISSION], arch=executor.arch, sms=executor.sms)
    assert gate.permit is not None, gate.reason
    measured = benchmark(MISSION, PEERS, [gate.permit], device, clock=clock, l2=l2, rule=RULE, executor=executor)
    for each in measured.measurements:
        assert each.status is MeasureStatus.MEASURED, each.reason
    return measured


def median(measured: MeasuredSession, name: str) -> float:
    summary = measured.of(name).summary
    assert summary is not None
    return summary.median_us


@pytest.mark.parametrize("clock", list(ClockKind))
@pytest.mark.parametrize("l2", list(L2State))
def test_outputs_are_right_and_computing_takes_longer_than_nothing(
    device: CudaDevice, clock: ClockKind, l2: L2State
) -> None:
    measured = session(device, clock, l2)
    if clock is not ClockKind.EAGER:
        assert median(measured, EMPTY) < median(measured, "flash")
        assert median(measured, EMPTY) < median(measured, "torch math")


def test_dispatch_is_in_the_eager_time_only(device: CudaDevice) -> None:
    graph, eager = session(device, ClockKind.GPU), session(device, ClockKind.EAGER)
    for name in ("torch", "torch math", "flash", EMPTY):
        assert median(graph, name) < 1.1 * median(eager, name)


def test_the_same_call_twice_is_no_difference(device: CudaDevice) -> None:
    pair = [peer_subject(PEERS[0], Outputs(MISSION, make_inputs(MISSION)), device.torch) for _ in range(2)]
    subjects = [replace(subject, name=name) for subject, name in zip(pair, "ab", strict=True)]
    compared = measure(subjects, GraphClock(), RULE).compare("a", "b", margin=0.03)
    assert compared.outcome in (ComparisonOutcome.SAME, ComparisonOutcome.AMBIGUOUS), compared.sentence
