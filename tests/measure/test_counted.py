"""Plans that are built and counted, on a problem whose counts are arithmetic."""

from __future__ import annotations

import pytest

from sdpalab.kernels.registry import get
from sdpalab.measure import gpu_named
from sdpalab.measure.counted import arch_on, count
from sdpalab.problem import Problem

PROBLEM = Problem(1, 2, 128, 64)


def test_a_counted_plan_is_modelled_with_the_work_that_the_problem_has() -> None:
    counted = count(get("wmma"), PROBLEM, "sm_89")
    assert counted.main is counted.launches[0]
    work = counted.main.work
    assert work.name == "wmma_attention"
    assert work.tensor_flops == {"fp16": PROBLEM.flops}
    assert work.dram_bytes == PROBLEM.least_bytes
    assert sum(work.by_cta) == work.warp_instructions
    l4 = gpu_named("L4")
    time = counted.modelled(l4)
    (step,) = time.steps
    tensor = next(each for each in step.resources if each.name == "tensor")
    assert tensor.microseconds == pytest.approx(PROBLEM.flops / l4.fp16_tflops / 1e6)
    assert time.microseconds >= tensor.microseconds / step.wave_efficiency
    assert counted.modelled(l4, cold=True).microseconds >= time.microseconds


def test_the_loop_of_flash_takes_fewer_issue_slots_than_tensor_time_and_that_of_wmma_is_not_unrolled() -> None:
    l4 = gpu_named("L4")
    flash = count(get("flash"), PROBLEM, "sm_89").main.loop_issue_share(l4)
    assert flash is not None
    assert 0.1 < flash < 1.0
    assert count(get("wmma"), PROBLEM, "sm_89").main.loop_issue_share(l4) is None


def test_a_kernel_is_built_for_the_gpu_or_not_at_all() -> None:
    assert arch_on(get("flash"), gpu_named("H200")) == "sm_90"
    assert arch_on(get("flash"), gpu_named("L4")) == "sm_89"
