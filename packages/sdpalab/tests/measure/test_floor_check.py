"""A time below what the FLOPs and the bytes take is impossible, and called so; an unknown GPU has no floor."""

from __future__ import annotations

import pytest

from sdpalab.measure.floor import check_floor
from sdpalab.measure.samples import L2State
from sdpalab.problem import MISSION, Problem
from warpsan.gpus import GPUS, Gpu, gpu_named, gpu_of_device

L4, H200 = gpu_named("L4"), gpu_named("H200")


def test_fifteen_times_faster_than_torch_is_impossible_on_an_l4() -> None:
    floor_check = check_floor(25.9 / 15, MISSION, L4, l2=L2State.WARM)
    assert not floor_check.possible
    assert "1.73 us is impossible on L4: the tensor floor alone is 4.43 us" in floor_check.reason
    assert check_floor(5.0, MISSION, L4, l2=L2State.WARM).possible
    assert check_floor(5.0, MISSION, L4, l2=L2State.WARM).share == pytest.approx(0.886, abs=1e-3)


def test_cold_inputs_must_cross_dram_and_the_output_need_not() -> None:
    """Q, K and V are three quarters of 6.99 us."""
    cold = check_floor(5.0, MISSION, L4, l2=L2State.COLD)
    assert not cold.possible
    assert "DRAM floor alone is 5.24 us" in cold.reason
    assert check_floor(5.3, MISSION, L4, l2=L2State.COLD).possible
    grouped = Problem(1, 8, 512, 64, kv_heads=1)
    assert check_floor(5.0, grouped, L4, l2=L2State.COLD).possible


def test_8_bit_products_have_a_lower_floor() -> None:
    assert not check_floor(3.0, MISSION, L4, l2=L2State.WARM).possible
    assert check_floor(3.0, MISSION, L4, l2=L2State.WARM, precision="fp8").possible


def test_a_chip_that_clocks_higher_is_not_accused() -> None:
    """H200's peak is stated at 1830 MHz, and it can have 1980."""
    long = Problem(1, 8, 16384, 128)
    peak_us = long.flops / H200.fp16_tflops / 1e6
    assert not check_floor(0.95 * peak_us, long, H200, l2=L2State.WARM).possible
    assert check_floor(0.95 * peak_us, long, H200, l2=L2State.WARM, sm_clock_mhz=1980).possible
    assert not check_floor(0.95 * peak_us, long, H200, l2=L2State.WARM, sm_clock_mhz=1200).possible


def test_only_hard_floors_count() -> None:
    """A graph node takes 1.3 us on an H200, as others measured; that forbids nothing."""
    assert check_floor(0.6, MISSION, H200, l2=L2State.WARM).possible


def test_of_an_unknown_gpu_nothing_is_said() -> None:
    floor_check = check_floor(1e-3, MISSION, None, l2=L2State.COLD)
    assert floor_check.possible
    assert floor_check.share is None
    assert "not in the lab's data file" in floor_check.reason
    assert check_floor(1e-3, MISSION, gpu_named("A100 SXM"), l2=L2State.WARM, precision="fp8").share is None


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA L4", "L4"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_the_drivers_names(device: str, gpu: str) -> None:
    row = gpu_of_device(device)
    assert isinstance(row, Gpu)
    assert row is GPUS[gpu]


@pytest.mark.parametrize(
    "device",
    ["NVIDIA L40S", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 D", "NVIDIA A100-SXM4-40GB"],
)
def test_their_siblings_have_other_rates(device: str) -> None:
    assert gpu_of_device(device) is None


def test_every_gpu_of_the_data_file_has_a_drivers_name() -> None:
    from warpsan import gpus

    assert set(gpus._DEVICES) == set(GPUS)
