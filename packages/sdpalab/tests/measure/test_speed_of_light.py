"""The floors are arithmetic: they must come out as the published table, and scale as the work does."""

from __future__ import annotations

import pytest

from sdpalab.errors import UserError
from sdpalab.measure import GPUS, binding_floor, feasibility, floors, gpu_named
from sdpalab.problem import MISSION, Problem


def microseconds(name: str, precision: str = "fp16") -> dict[str, float]:
    return {floor.resource: floor.microseconds for floor in floors(MISSION, gpu_named(name), precision=precision)}


@pytest.mark.parametrize(
    ("name", "fp16", "fp8", "dram", "exp"),
    [("L4", 4.43, 2.21, 6.99, 1.11), ("H100 SXM", 0.54, 0.27, 0.63, 0.54), ("H200", 0.54, 0.27, 0.44, 0.54)],
)
def test_mission_floors_are_those_of_the_table(name: str, fp16: float, fp8: float, dram: float, exp: float) -> None:
    times = microseconds(name)
    assert round(times["tensor"], 2) == fp16
    assert round(times["dram"], 2) == dram
    assert round(times["exp"], 2) == exp
    assert round(microseconds(name, "fp8")["tensor"], 2) == fp8


def test_what_binds_changes_with_the_memory() -> None:
    gpu = gpu_named("l4")
    assert binding_floor(MISSION, gpu).resource == "dram"
    assert binding_floor(MISSION, gpu, cold=False).resource == "tensor"
    assert binding_floor(MISSION, gpu_named("H200")).resource == "launch"
    long = Problem(1, 8, 16384, 64)
    assert binding_floor(long, gpu_named("H200"), precision="fp8").resource == "exp"
    assert binding_floor(long.with_(head_dim=128), gpu_named("H200")).resource == "tensor"
    assert binding_floor(long, gpu_named("B200")).resource == "exp"


def test_a_target_below_the_floor_is_impossible() -> None:
    gpu = gpu_named("L4")
    assert not feasibility(25.9 / 15, MISSION, gpu).possible
    near = feasibility(5.0, MISSION, gpu)
    assert near.possible
    assert "89%" in near.sentence
    assert not feasibility(5.0, MISSION, gpu, cold=True).possible


def test_causal_halves_the_products_but_not_the_bytes() -> None:
    full = Problem(1, 8, 4096, 64)
    half = full.with_(causal=True)
    gpu = gpu_named("H200")
    whole = {floor.resource: floor.microseconds for floor in floors(full, gpu)}
    masked = {floor.resource: floor.microseconds for floor in floors(half, gpu)}
    assert masked["tensor"] / whole["tensor"] == pytest.approx(0.5, rel=1e-3)
    assert masked["exp"] / whole["exp"] == pytest.approx(0.5, rel=1e-3)
    assert masked["dram"] == whole["dram"]


def test_every_gpu_is_consistent_and_sourced() -> None:
    assert set(GPUS) == {"L4", "A100 SXM", "RTX 4090", "H100 SXM", "H200", "B200"}
    for gpu in GPUS.values():
        assert gpu.source
        if gpu.fp8_tflops is not None:
            assert gpu.fp8_tflops == pytest.approx(2 * gpu.fp16_tflops, rel=2e-3)
        flop_per_clk_sm = gpu.fp16_tflops * 1e12 / (gpu.sms * gpu.clock_mhz * 1e6)
        assert flop_per_clk_sm == pytest.approx(round(flop_per_clk_sm / 512) * 512, rel=0.01), gpu.name


def test_no_launch_floor_without_a_figure() -> None:
    assert "launch" not in microseconds("L4")
    assert microseconds("H100 SXM")["launch"] == 1.3


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(UserError, match="unknown GPU 'V100'; known are L4"):
        gpu_named("V100")
    with pytest.raises(UserError, match="has no fp8 tensor unit"):
        floors(MISSION, gpu_named("A100 SXM"), precision="fp8")
    with pytest.raises(UserError, match="precision must be"):
        floors(MISSION, gpu_named("L4"), precision="fp4")
    with pytest.raises(UserError, match="positive number"):
        feasibility(0, MISSION, gpu_named("L4"))
