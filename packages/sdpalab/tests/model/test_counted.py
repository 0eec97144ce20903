"""Plans that are built and counted, on a problem whose counts are arithmetic."""

from __future__ import annotations

import re

import pytest

from sdpalab.errors import UserError
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.registry import get
from sdpalab.measure import gpu_named
from sdpalab.model.counted import arch_on, count
from sdpalab.problem import Problem
from warpsan.gpus import Gpu

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
    assert time.floor_us >= tensor.microseconds / step.wave_efficiency
    assert time.microseconds > time.floor_us
    assert counted.modelled(l4, cold=True).microseconds >= time.microseconds


def test_the_machine_code_of_flash_is_shorter_than_its_ptx() -> None:
    flash = count(get("flash"), PROBLEM, "sm_89").main
    assert flash.machine_instructions is not None
    assert 0.6 < flash.machine_instructions / flash.counters.total("warps") < 1.0


def test_from_cold_inputs_and_outputs_cross_dram_once_and_what_is_passed_on_does_not() -> None:
    counted = count(get("cublas"), PROBLEM, "sm_89")
    rates = Gpu("slow", "sm_89", 1, 1e6, 1e6, 1e6, 1, 1e3, 1000, 1000, None, (), "nothing but DRAM takes time")
    crossed = [1e3 * step.floor_us for step in counted.modelled(rates, cold=True).steps]  # 1 GB/s
    quarter = PROBLEM.least_bytes / 4
    assert crossed[0] == pytest.approx(2 * quarter)  # Q and K
    assert crossed[-1] == pytest.approx(2 * quarter)  # V and O
    assert sum(crossed[1:-1]) < 0.1 * quarter  # the scores are in L2
    assert counted.main.counters.compulsory_read_bytes > quarter


def test_a_kernel_is_built_for_the_gpu_or_not_at_all() -> None:
    assert arch_on(get("flash"), gpu_named("H200")) == "sm_90"
    assert arch_on(get("flash"), gpu_named("L4")) == "sm_89"


FP8_PRODUCT = """
__global__ void product(const unsigned* q, unsigned short* o) {
    float d[4] = {};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, "
                 "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(q[threadIdx.x % 16]));
    o[threadIdx.x] = d[0] + d[1] + d[2] + d[3] > 0.0f;
}
"""


def test_where_the_machine_code_has_no_float8_products_they_are_float16_ones() -> None:
    launch = Launch((1, 1, 1), (32, 1, 1), ("q", "o"))
    kernel = CudaKernel("product", FP8_PRODUCT, "product", lambda problem, config: launch, min_arch=89)
    for arch, precision in (("sm_89", "fp8"), ("sm_90", "fp16")):
        assert count(kernel, Problem(1, 1, 1, 32), arch).main.work.tensor_flops == {precision: 2 * 16 * 8 * 32}
    assert arch_on(kernel, gpu_named("A100")) is None


def test_what_the_compiler_makes_of_float8_products_for_sm_90_is_not_modelled() -> None:
    launch = Launch((1, 1, 1), (32, 1, 1), ("q", "o"))
    kernel = CudaKernel("product", FP8_PRODUCT, "product", lambda problem, config: launch, min_arch=89)
    on_ada, on_hopper = (count(kernel, Problem(1, 1, 1, 32), arch) for arch in ("sm_89", "sm_90"))
    assert on_ada.not_modelled == ""
    assert on_ada.modelled(gpu_named("L4")).microseconds > 0
    reason = (
        r"product has no float8 product in its machine code for sm_90: 2 HMMA and \d+ F2FP, conversions that are not"
    )
    assert re.match(reason, on_hopper.not_modelled)
    with pytest.raises(UserError, match=reason):
        on_hopper.modelled(gpu_named("H200"))
