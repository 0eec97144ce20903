"""Plans for GPUs of other sizes: how many SMs there are is the target's, and of no kernel's own."""

from __future__ import annotations

import pytest

from sdpalab.kernels.flash import FLASH, resolve
from sdpalab.kernels.hopper import HOPPER
from sdpalab.kernels.hopper_fp8 import HOPPER_FP8
from sdpalab.kernels.registry import CUDA_KERNELS
from sdpalab.problem import MISSION, Problem
from warpsan.gpus import GPUS, default_gpu, default_sms

LONG = Problem(1, 1, 64, 64, seq_kv=65536)
"""One tile of queries and very many of keys: as many blocks as the GPU holds."""


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_80", "A100 SXM"),
        ("sm_86", "A100 SXM"),
        ("sm_89", "L4"),
        ("sm_90", "H200"),
        ("sm_90a", "H200"),
        ("sm_100", "B200"),
        ("sm_120", "B200"),
        ("sm_75", "A100 SXM"),
    ],
)
def test_a_gpu_stands_for_each_architecture(arch: str, name: str) -> None:
    assert default_gpu(arch) is GPUS[name]
    assert default_sms(arch) == GPUS[name].sms


@pytest.mark.parametrize("sms", [58, 108, 132])
def test_flash_fills_the_gpu_that_it_is_for(sms: int) -> None:
    (step,) = FLASH.launch_plan(LONG, sms=sms).launches
    assert step.grid == (3 * sms, 1, 1)


def test_without_a_gpu_flash_is_for_an_l4_and_the_kernels_of_sm_90_for_an_h200() -> None:
    assert FLASH.launch_plan(LONG) == FLASH.launch_plan(LONG, sms=58)
    large = Problem(2, 16, 4096, 128)
    assert HOPPER.launch_plan(large) == HOPPER.launch_plan(large, sms=132)


def test_what_is_automatic_follows_the_gpu_and_what_is_given_does_not() -> None:
    # 64 tiles on 58 SMs are two rounds, and shared tiles are faster; 108 SMs take them in one.
    default = FLASH.default_config
    assert resolve(MISSION, default, 58) == default.but(SCHEDULE="stream_k", NUM_CTAS=174)
    assert resolve(MISSION, default, 108) == default.but(SCHEDULE="tiles")
    assert resolve(MISSION, default, 132) == default.but(SCHEDULE="stream_k", NUM_CTAS=396)
    given = default.but(SCHEDULE="stream_k", NUM_CTAS=7)
    assert resolve(MISSION, given, 132) == given


def test_persistent_blocks_are_as_many_as_the_gpu_holds() -> None:
    problem = Problem(2, 16, 4096, 128)
    grids = {sms: HOPPER.launch_plan(problem, sms=sms).launches[0].grid for sms in (78, 132)}
    assert grids == {78: (78, 1, 1), 132: (132, 1, 1)}


def test_fp8_splits_keys_where_tiles_of_queries_leave_sms_without_any() -> None:
    problem, default = Problem(1, 64, 128, 64, seq_kv=4096), HOPPER_FP8.default_config
    resolved = {sms: HOPPER_FP8.resolved(problem, default, sms) for sms in (64, 132)}
    assert {sms: (config.int("BLOCK_M"), config.int("SPLIT")) for sms, config in resolved.items()} == {
        64: (128, 1),
        132: (128, 2),
    }


@pytest.mark.parametrize("name", CUDA_KERNELS)
def test_a_resolved_configuration_is_resolved_again_to_itself(name: str) -> None:
    kernel = CUDA_KERNELS[name]
    for config in map(type(kernel.default_config), kernel.configs):
        problem = MISSION if kernel.why_not(MISSION, config) is None else MISSION.with_(kv_heads=2)
        resolved = kernel.resolved(problem, config, 132)
        assert kernel.resolved(problem, resolved, 58) == resolved
        assert kernel.launch_plan(problem, config, sms=132) == kernel.launch_plan(problem, resolved, sms=58)
