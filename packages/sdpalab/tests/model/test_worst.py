"""Modelled times on scores that leave the fast path of a kernel: the worst of all kinds of inputs."""

from __future__ import annotations

import pytest

from sdpalab.kernels.registry import get
from sdpalab.model.counted import count
from sdpalab.model.worst import TimesByInputs, times_by_inputs
from sdpalab.problem import Problem
from warpsan.gpus import gpu_named


@pytest.mark.parametrize(("head_dim", "worst"), [(64, "ramp"), (128, "negative")])
def test_hopper_is_slower_where_scores_rise_or_are_low(head_dim: int, worst: str) -> None:
    """Each tile rescales on such scores, and the counts of those runs have the instructions of that."""
    hopper, gpu = get("hopper"), gpu_named("H200")
    problem, config = Problem(1, 1, 128, head_dim, seq_kv=1024), hopper.default_config.but(SPLIT=1, KEY_GROUPS=1)
    normal = count(hopper, problem, "sm_90a", config, sms=gpu.sms).modelled(gpu)
    times = times_by_inputs(normal, hopper, problem, gpu, "sm_90a", config)
    assert times.times_us["normal"] == normal.microseconds
    assert list(times.times_us) == ["normal", "ramp", "negative"]
    assert times.inputs == worst
    assert times.ratio is not None
    assert times.ratio > 1.05


def test_a_kernel_without_branches_on_values_takes_the_same_time() -> None:
    scalar, gpu, problem = get("scalar"), gpu_named("L4"), Problem(1, 1, 16, 32)
    normal = count(scalar, problem, gpu.arch, sms=gpu.sms).modelled(gpu)
    assert times_by_inputs(normal, scalar, problem, gpu, gpu.arch).ratio == pytest.approx(1.0, rel=0.02)


def test_the_worst_is_not_known_where_a_kind_has_no_time() -> None:
    known = TimesByInputs({"normal": 4.0, "ramp": 5.0, "negative": 4.5})
    assert (known.inputs, known.worst_us, known.ratio) == ("ramp", 5.0, 1.25)
    assert known.sentence == "worst 5.00 us, on ramp inputs (1.25x normal)"
    lost = TimesByInputs({"normal": 4.0, "ramp": 5.0, "negative": None})
    assert (lost.worst_us, lost.ratio) == (None, None)
    assert lost.sentence == "no worst time: no issue schedule on negative inputs"
