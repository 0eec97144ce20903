"""``flash_varlen`` and ``flash_decode``: judged with padding of NaN and shuffled pages; bits that no batch changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from checking import assert_gate

from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.verdict import Status
from sdpalab.kernels.flash_decode import FLASH_DECODE, FLASH_DECODE_E4M3
from sdpalab.kernels.flash_varlen import FLASH_VARLEN
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.packing import Packing
from sdpalab.problem import Problem
from sdpalab.run import RunResult, SimulatedExecutor
from warpsan import CHECKS

PACKED = Problem(
    3, 4, 100, 64, kv_heads=2, seq_kv=150, q_lengths=(100, 0, 37), kv_lengths=(150, 20, 0), layout="varlen"
)
LAST = PACKED.with_(head_dim=128, q_lengths=(100, 5, 37), kv_lengths=(150, 20, 70), causal=True, bottom_right=True)
GAPS = PACKED.with_(kv_heads=1, layout="varlen:gaps", window_size=(40, 7), dtype="bfloat16")
CACHE = Problem(3, 8, 1, 64, kv_heads=2, seq_kv=700, kv_lengths=(700, 0, 333), layout="paged:64")
STEPS = Problem(3, 8, 5, 64, kv_heads=2, seq_kv=300, q_lengths=(5, 0, 1), kv_lengths=(300, 20, 64), layout="paged:64")
STEPS = STEPS.with_(causal=True, bottom_right=True, layout="varlen,paged:64")
BYTES = CACHE.with_(layout="paged:64:e4m3")
FIXED = {"SPLIT_KEYS": 256}


def ran(kernel: CudaKernel, problem: Problem, config: Config, inputs: Inputs, *, loud: bool = False) -> RunResult:
    """Run with every check of the simulator on the buffers of the problem's layout."""
    plan = kernel.launch_plan(problem, config, lse=True)
    return SimulatedExecutor("sm_89", checks=CHECKS).run(plan, Packing(problem).pack(inputs.arrays, loud=loud))


def status(kernel: CudaKernel, problem: Problem, config: Config, kind: str = "normal", *, loud: bool = False) -> Status:
    """The judge's status of the outputs, the log-sum-exp included; HAZARD for a hazard."""
    inputs = make_inputs(problem, kind)
    result = ran(kernel, problem, config, inputs, loud=loud)
    if result.hazards:
        return Status.HAZARD
    outputs = Packing(problem).unpack(result.outputs)
    return judge_output(problem, inputs, outputs["o"], kernel.numerics_of(config), outputs["lse"]).status


@pytest.mark.parametrize("loud", [False, True])
@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (PACKED, {}),
        (LAST, {}),
        (GAPS, {"PACK_GQA": 0}),
        (PACKED.with_(head_dim=96, causal=True), {"BLOCK_M": 128, "ROWS_PER_WARP": 32}),
        (PACKED.with_(head_dim=192, head_dim_v=128), {}),
        (LAST, {"ORDER": "longest"}),
        (GAPS, {"ORDER": "longest", "BLOCK_M": 32}),
    ],
    ids=["default", "bottom right", "gaps", "32 rows", "MLA", "longest first", "longest first with gaps"],
)
def test_packed_sequences(problem: Problem, changes: dict[str, int], loud: bool) -> None:
    config = FLASH_VARLEN.default_config.but(**changes)
    assert status(FLASH_VARLEN, problem, config, loud=loud) is Status.PASSED


def test_tiles_with_the_most_keys_run_first() -> None:
    """A permutation of all tiles, in which the number of keys falls up to the width of a bucket."""
    problem = Problem(9, 2, 300, 64, q_lengths=(3, 300, 0, 64, 65, 200, 128, 1, 299), causal=True, layout="varlen")
    config = FLASH_VARLEN.default_config.but(ORDER="longest", BLOCK_M=32)
    plan = FLASH_VARLEN.launch_plan(problem, config, lse=True)
    order = plan.buffer("order")
    listed = LaunchPlan((*(b for b in plan.buffers if b is not order), replace(order, role="out")), plan.steps)
    buffers = Packing(problem).pack(make_inputs(problem).arrays)
    places = SimulatedExecutor("sm_89", checks=CHECKS).run(listed, buffers).outputs["order"]
    assert sorted(places) == list(range(order.shape[0]))
    ends, keys = buffers["cu_seqlens_q"], {}
    for number, (first, end) in enumerate(pairwise(ends.tolist())):
        for tile in range(-(-(end - first) // 32)):
            keys[first // 32 + number + tile] = min(32 * (tile + 1), end - first)
    seen = [-(-keys.get(tile, 0) // 64) for tile in places.tolist()]
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == 5


@pytest.mark.parametrize("loud", [False, True])
@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        *((CACHE.with_(layout=f"paged:{size}"), {}) for size in (1, 16, 128, 256)),
        (CACHE.with_(head_dim=128, softcap=20.0), FIXED),
        (CACHE.with_(seq_q=3, kv_heads=1, window_size=(100, 0), bottom_right=True), {"BLOCK_M": 16}),
        (CACHE.with_(head_dim=256, seq_q=2), {}),
        (CACHE.with_(head_dim=192, head_dim_v=128, seq_q=9, kv_heads=8), {"BLOCK_M": 64, "KEY_WARPS": 2}),
        (CACHE.with_(head_dim=96, seq_q=7, window_size=(200, 0), bottom_right=True), FIXED),
        (CACHE.with_(head_dim=32, seq_q=16, dtype="bfloat16"), {"NUM_STAGES": 4}),
        (STEPS, {"NUM_SPLITS": 4}),
    ],
    ids=["1", "16", "128", "256", "fixed", "window", "256", "MLA", "96", "32", "several queries"],
)
def test_pages_of_a_cache(problem: Problem, changes: dict[str, int], loud: bool) -> None:
    config = FLASH_DECODE.default_config.but(**changes)
    assert status(FLASH_DECODE, problem, config, "forbidden", loud=loud) is Status.PASSED


def test_parts_of_a_fixed_size_give_a_sequence_the_same_bits_in_every_batch() -> None:
    config = FLASH_DECODE.default_config.but(**FIXED)
    inputs = make_inputs(CACHE)
    outputs = Packing(CACHE).unpack(ran(FLASH_DECODE, CACHE, config, inputs).outputs)
    alone = CACHE.with_(batch=1, seq_kv=333, kv_lengths=(333,))
    given = replace(make_inputs(alone), q=inputs.q[2:], k=inputs.k[2:, :, :333], v=inputs.v[2:, :, :333])
    single = Packing(alone).unpack(ran(FLASH_DECODE, alone, config, given).outputs)
    for name in ("o", "lse"):
        assert np.array_equal(single[name][0], outputs[name][2])


@pytest.mark.parametrize("loud", [False, True])
@pytest.mark.parametrize(
    ("problem", "changes", "kind"),
    [
        (CACHE, {}, "normal"),
        (CACHE.with_(head_dim=128, seq_q=5, kv_heads=1, dtype="bfloat16"), FIXED, "onehot"),
        (CACHE.with_(head_dim=96, head_dim_v=32, softcap=20.0), {}, "large_logits"),
        (CACHE.with_(head_dim=256, scale=-0.1), {}, "normal"),
        (CACHE.with_(head_dim=192, head_dim_v=128, window_size=(100, 0), bottom_right=True), {}, "forbidden"),
        (STEPS.with_(head_dim=32), {"NUM_SPLITS": 4, "BLOCK_M": 32, "ROWS_PER_WARP": 32}, "normal"),
    ],
    ids=["64", "128", "96", "256", "MLA", "several queries"],
)
@pytest.mark.parametrize("page", [16, 64])
def test_pages_of_e4m3(problem: Problem, changes: dict[str, int], kind: str, page: int, loud: bool) -> None:
    packed = "varlen," if problem.varlen else ""
    cache = problem.with_(layout=f"{packed}paged:{page}:e4m3")
    config = FLASH_DECODE_E4M3.default_config.but(**changes)
    assert status(FLASH_DECODE_E4M3, cache, config, kind, loud=loud) is Status.PASSED


@pytest.mark.parametrize("window", [None, (150, 0)])
def test_a_step_gives_the_bits_of_a_prefill_with_parts_of_the_same_size(window: tuple[int, int] | None) -> None:
    """The scale makes maxima move in most tiles, in some rows only."""
    prefill = Problem(1, 8, 20, 64, kv_heads=2, seq_kv=600, kv_lengths=(600,), layout="paged:64", scale=1.5)
    prefill = prefill.with_(causal=True, bottom_right=True, window_size=window)
    config = FLASH_DECODE.default_config.but(**FIXED)
    inputs = make_inputs(prefill)
    together = Packing(prefill).unpack(ran(FLASH_DECODE, prefill, config, inputs).outputs)
    for row in (0, 7, 19):
        keys = 581 + row
        step = prefill.with_(seq_q=1, seq_kv=keys, kv_lengths=(keys,))
        given = replace(
            make_inputs(step), q=inputs.q[:, :, row : row + 1], k=inputs.k[:, :, :keys], v=inputs.v[:, :, :keys]
        )
        alone = Packing(step).unpack(ran(FLASH_DECODE, step, config, given).outputs)
        for name in ("o", "lse"):
            assert np.array_equal(alone[name][0, :, 0], together[name][0, :, row]), (row, name)


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize("kernel", [FLASH_VARLEN, FLASH_DECODE, FLASH_DECODE_E4M3], ids=lambda kernel: kernel.name)
def test_no_architecture_spills(kernel: CudaKernel, head_dim: int, arch: str) -> None:
    problem = {"flash_varlen": LAST, "flash_decode": CACHE}.get(kernel.name, BYTES).with_(head_dim=head_dim)
    if kernel.why_not_on(arch) is not None:
        return
    for config in map(Config, kernel.configs):
        if kernel.why_not(problem, config) is None:
            assert_gate(kernel, problem, config, arch=arch)


def test_other_layouts_are_refused() -> None:
    assert "takes packed sequences, not layout dense" in str(FLASH_VARLEN.why_not(Problem(1, 1, 64, 64)))
    assert "does not take paged" in str(FLASH_VARLEN.why_not(CACHE))
    assert "takes pages of a cache, not layout varlen" in str(FLASH_DECODE.why_not(PACKED))
    config = FLASH_DECODE.default_config.but(SPLIT_KEYS=100)
    assert "SPLIT_KEYS=100 must be a multiple of the 64 keys" in str(FLASH_DECODE.why_not(CACHE, config))
