"""The modelled time against examples that are worked out by hand."""

from __future__ import annotations

import pytest

from sdpalab.errors import UserError
from sdpalab.kernels.plan import Buffer, Gemm, LaunchPlan
from sdpalab.model.modelled import StepWork, gemm_work, launch_work, modelled
from sdpalab.model.pipes import pipes_of
from sdpalab.model.placement import wave_efficiency
from warpsan.gpus import Gpu, gpu_named
from warpsan.profile.counters import Counters, InstructionCount

# 10 SMs at 1 GHz: a microsecond is 1000 clocks of each, and the tensor peak is 100 FLOP a clock and SM.
TOY = Gpu("toy", "sm_89", 10, 1000, 1.0, 2.0, 100, 1, 16, 64, None, (), "made up for this test")


# ---- wave efficiency -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_64_equal_tiles_on_58_sms_take_the_time_of_two(blocks: int) -> None:
    assert wave_efficiency([7] * 64, blocks, 58) == pytest.approx(64 / 116)


@pytest.mark.parametrize(
    ("by_cta", "blocks", "sms", "share"),
    [
        ([5] * 8, 1, 4, 1.0),
        ([5] * 9, 1, 4, 9 / 12),
        ([3], 2, 4, 1 / 4),
        ([4, 2, 2], 1, 2, 1.0),  # the third follows the second
        ([1, 2, 3], 1, 2, 6 / 8),  # the third follows the first: ends at 4
        ([1, 2, 3], 2, 2, 6 / 8),  # the third shares the SM of the first from the start: ends at 4 too
        ([2, 9, 2, 2, 3], 2, 2, 18 / 22),  # SM 0 has 2, 2 and then, at 4, 3; SM 1 has 9 and 2 until 11
        ([0, 0], 1, 2, 1.0),
    ],
)
def test_wave_efficiency_by_hand(by_cta: list[int], blocks: int, sms: int, share: float) -> None:
    assert wave_efficiency(by_cta, blocks, sms) == pytest.approx(share)


def test_the_next_cta_starts_where_one_ends_first() -> None:
    """Two residents each: SM 0 holds 4 and 4 (both end at 8), SM 1 holds 6 and 1 (the 1 ends at 2): 9 goes there."""
    # SM 1: 6 has had 1 at time 2, then shares with 9: it ends at 2 + 2 * 5 = 12, and 9 has had 5: ends at 16.
    assert wave_efficiency([4, 6, 4, 1, 9], 2, 2) == pytest.approx(24 / 32)


def test_work_that_the_kernel_balances_itself_fills_the_gpu() -> None:
    """512 chunks on 116 CTAs, two an SM: 48 of them take 5 and lie on 48 SMs, beside one that takes 4."""
    chunks = [512 // 116 + (number < 512 % 116) for number in range(116)]
    assert wave_efficiency(chunks, 2, 58) == pytest.approx(512 / (58 * 9))


@pytest.mark.parametrize(("by_cta", "blocks", "sms"), [([], 1, 1), ([1], 0, 1), ([1], 1, 0)])
def test_there_must_be_something_to_place(by_cta: list[int], blocks: int, sms: int) -> None:
    with pytest.raises(ValueError, match="there must be"):
        wave_efficiency(by_cta, blocks, sms)


# ---- resources -------------------------------------------------------------------------------------------------------


def test_each_resource_by_hand_and_the_longest_binds() -> None:
    work = StepWork(
        name="k",
        tensor_flops={"fp16": 2_000_000, "fp8": 2_000_000},  # 2 us and 1 us
        warp_instructions=80_000,  # at 40 a clock: 2 us
        special_lanes=16_000,  # at 160 a clock: 0.1 us
        wavefronts=25_000,  # at 10 a clock: 2.5 us
        l2_bytes=640_000,  # at 640 a clock: 1 us
        dram_bytes=2**20 + 50_000,  # beyond 1 MiB of L2, at 100 GB/s: 0.5 us
        by_cta=(1,) * 12,  # the time of two on 10 SMs: 60%
    )
    (step,) = modelled([work], TOY).steps
    expected = {"tensor": 3.0, "issue": 2.0, "exp": 0.1, "shared": 2.5, "l2": 1.0, "dram": 0.5}
    assert {each.name: each.microseconds for each in step.resources} == pytest.approx(expected)
    assert (step.binds, step.floor_us) == ("tensor", pytest.approx(3.0 / 0.6))
    assert step.issue_share == pytest.approx(2 / 3)


@pytest.mark.parametrize(("warps", "blocks", "slower"), [(0, 1, 1), (2, 1, 2), (2, 2, 1), (1, 3, 2), (8, 1, 1)])
def test_what_has_fewer_warps_on_an_sm_than_sub_cores_has_fewer_of_these(warps: int, blocks: int, slower: int) -> None:
    work = StepWork(
        "k",
        {"fp16": 2_000_000},
        *(40_000, 16_000, 10_000),
        by_cta=(1,) * 20,  # two for each of the ten SMs
        blocks_per_sm=blocks,
        warps=warps,
    )
    (step,) = modelled([work], TOY).steps
    times = {each.name: each.microseconds for each in step.resources}
    assert times["tensor"] == pytest.approx(2 * slower)
    assert times["issue"] == pytest.approx(1 * slower)
    assert times["exp"] == pytest.approx(0.1 * slower)
    assert times["shared"] == pytest.approx(1)


def test_dram_binds_from_cold_and_does_not_wait_for_the_last_wave() -> None:
    work = StepWork("k", warp_instructions=4_000, dram_bytes=2**20, cold_bytes=2**20, by_cta=(1,))
    (warm,), (cold,) = modelled([work], TOY).steps, modelled([work], TOY, cold=True).steps
    assert (warm.binds, warm.floor_us) == ("issue", pytest.approx(1.0))  # one of ten SMs works
    assert (cold.binds, cold.floor_us) == ("dram", pytest.approx(2**20 / 1e5))
    assert warm.issue_share is None


def test_what_steps_pass_on_does_not_cross_dram_from_cold_unless_l2_cannot_hold_it() -> None:
    passed_on = StepWork("k", dram_bytes=2**20, cold_bytes=50_000)
    large = StepWork("k", dram_bytes=2**20 + 70_000, cold_bytes=50_000)
    times = [modelled([work], TOY, cold=True).floor_us for work in (passed_on, large)]
    assert times == pytest.approx([0.5, 0.7])  # at 100 GB/s


def test_steps_follow_one_another() -> None:
    time = modelled([StepWork("a", wavefronts=10_000), StepWork("b", l2_bytes=1_280_000)], TOY)
    launch_us = pipes_of(TOY).launch_us
    assert time.floor_us == pytest.approx(1 + 2)
    assert time.microseconds == pytest.approx(1 + 2 + 2 * launch_us)  # no schedule: the floor stands in
    assert time.longest.name == "b"
    plain = time.to_dict()
    assert (plain["kind"], plain["gpu"], plain["binds"]) == ("modelled", "toy", "l2")
    assert (plain["floor_us"], plain["microseconds"]) == pytest.approx((3, 3 + 2 * launch_us))


def test_a_gpu_without_the_unit_or_the_room_is_refused() -> None:
    with pytest.raises(UserError, match="A100 SXM has no fp8 tensor unit"):
        modelled([StepWork("k", {"fp8": 1})], gpu_named("A100"))
    with pytest.raises(UserError, match="k: no block of it fits on an SM of toy"):
        modelled([StepWork("k", blocks_per_sm=0)], TOY)


# ---- where work comes from -------------------------------------------------------------------------------------------


def counters(*texts: str) -> Counters:
    counts = [
        InstructionCount(pc, pc, "", text, "tensor" if "mma" in text else "special", lanes=64, warps=2)
        for pc, text in enumerate(texts)
    ]
    for each in counts:
        each.tensor_flops = 2 * 4096 if "mma" in each.text else 0
    return Counters(counts, compulsory_read_bytes=64, compulsory_write_bytes=32, by_cta=[3, 1])


def test_products_are_counted_by_the_type_of_their_operands() -> None:
    counted = counters(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32",
        "ex2.approx.ftz.f32",
    )
    work = launch_work("k", counted, blocks_per_sm=2)
    assert work.tensor_flops == {"fp16": 16384, "fp8": 8192}
    assert (work.warp_instructions, work.special_lanes, work.dram_bytes) == (8, 64, 96)
    assert (work.by_cta, work.blocks_per_sm) == ((3, 1), 2)
    assert launch_work("k", counted, 2, fp8_units=False).tensor_flops == {"fp16": 24576}


@pytest.mark.parametrize("types", ["f32.tf32.tf32.f32", "s32.s8.s8.s32", "f64.f64.f64.f64", "s32.b1.b1.s32"])
def test_a_type_without_a_peak_is_refused(types: str) -> None:
    with pytest.raises(UserError, match="no peak rate is known for mma"):
        launch_work("k", counters(f"mma.sync.aligned.m16n8k8.row.col.{types} {{%f1}}"), 1)


def test_a_library_product_moves_each_matrix_once() -> None:
    plan = LaunchPlan(
        (
            Buffer("q", (2, 8, 4), "float16", "in"),
            Buffer("k", (2, 16, 4), "float16", "in"),
            Buffer("s", (2, 8, 16), "float32", "workspace"),
        ),
        (Gemm("q", "k", "s", batch=2, m=8, n=16, k=4, transpose_b=True),),
    )
    work = gemm_work(plan.steps[0], plan)
    assert work.tensor_flops == {"fp16": 2 * 2 * 8 * 16 * 4}
    assert work.l2_bytes == work.dram_bytes == 2 * (2 * 8 * 4 + 2 * 16 * 4 + 4 * 8 * 16)
    assert modelled([work], TOY).steps[0].wave_efficiency == 1.0
