"""The hopper_fp8 kernel: its declared numerics on every shape and knob, and what they rest on.

What the kernels that quantise share is in ``test_ladder_quantised.py``, what it refuses of problems in
``test_ladder_refusals.py``; its machine code and static limits are in ``test_hopper_sass.py``.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from checking import (
    assert_computes,
    assert_log_sum_exp,
    assert_nothing_past_the_end_is_used,
    assert_same_bits_in_every_order,
    assert_shared_memory,
    run,
)
from refusals import Refusal, assert_refused

import warpsan
from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.limits import measure
from sdpalab.kernels.hopper_fp8 import HOPPER_FP8, SCALE_ROWS, VALUES, resolve, smem_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.warpgroups import SMS
from sdpalab.model.counted import count
from sdpalab.problem import MISSION, Problem

ARCH = HOPPER_FP8.default_arch
AUTO = HOPPER_FP8.default_config
WIDE = Config(BLOCK_M=128, BLOCK_N=128, NUM_STAGES=2, SPLIT=1)
SMALL = WIDE.but(BLOCK_M=64, BLOCK_N=64)
CLUSTER_2 = SMALL.but(SPLIT=2)
CLUSTER_4 = SMALL.but(SPLIT=4)
RAGGED = Problem(1, 2, 150, 64, kv_heads=1, seq_kv=333, causal=True)

SHAPES = [
    (Problem(1, 1, 1, 64), AUTO),
    (Problem(1, 1, 33, 64, seq_kv=1), WIDE),
    (Problem(1, 1, 33, 64, seq_kv=1), CLUSTER_4),  # three CTAs without keys
    (Problem(1, 1, 129, 64, seq_kv=128), WIDE),
    (Problem(2, 4, 40, 64, kv_heads=2, seq_kv=17, causal=True), AUTO),
    (Problem(1, 2, 300, 64, kv_heads=1, seq_kv=130, causal=True), WIDE),
    (Problem(1, 2, 130, 64, kv_heads=1, seq_kv=300, causal=True), WIDE.but(SPLIT=2)),
    (Problem(1, 1, 65, 128, seq_kv=300), AUTO),
    (Problem(1, 1, 200, 128, seq_kv=310, causal=True), WIDE),
    (Problem(1, 1, 70, 128, seq_kv=200, dtype="bfloat16"), CLUSTER_4),
    (Problem(1, 1, 130, 256, seq_kv=300, causal=True), WIDE),
    (Problem(1, 1, 70, 256, seq_kv=300, dtype="bfloat16"), AUTO),
    (Problem(1, 2, 20, 256, kv_heads=1, seq_kv=200, scale=-0.1), CLUSTER_2),
    (Problem(1, 1, 70, 64, dtype="bfloat16"), AUTO),
    (Problem(1, 1, 90, 64, scale=-0.3, causal=True), CLUSTER_2),
    (Problem(1, 1, 90, 64, scale=0.0, causal=True), WIDE),
    (Problem(1, 1, 40, 64, scale=3.0), WIDE),
]


def label(value: object) -> str:
    return str(getattr(value, "label", value))


@pytest.mark.sample(2)
@pytest.mark.parametrize(("problem", "config"), SHAPES, ids=label)
def test_computes_attention(problem: Problem, config: Config) -> None:
    assert_computes(HOPPER_FP8, problem, config)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kind",
    ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "outlier", "negative", "equal", "huge", "tiny"],
)
@pytest.mark.parametrize(("head_dim", "config"), [(64, SMALL), (64, CLUSTER_2), (256, SMALL)], ids=str)
def test_probes(kind: str, head_dim: int, config: Config) -> None:
    assert_computes(HOPPER_FP8, Problem(1, 1, 70, head_dim, seq_kv=200), config, kind=kind)


@pytest.mark.parametrize(
    ("problem", "knobs"),
    [
        (MISSION.with_(batch=5), (128, 128, 4, 1)),
        (MISSION.with_(head_dim=128), (64, 64, 4, 2)),  # a lone consumer lacks the registers for 128 keys
        (MISSION.with_(head_dim=256), (64, 128, 2, 2)),
        (Problem(1, 8, 64, 64, seq_kv=8192), (64, 128, 4, 4)),  # few rows: the keys go to four SMs
        (Problem(4, 16, 4096, 128), (128, 128, 4, 1)),
        (Problem(4, 16, 4096, 256), (128, 128, 2, 1)),
        (Problem(1, 1, 64, 64), (64, 64, 2, 1)),  # one tile: nothing to split
    ],
    ids=label,
)
def test_knobs_are_chosen_by_problem(problem: Problem, knobs: tuple[int, ...]) -> None:
    resolved = resolve(problem, AUTO)
    assert tuple(resolved[name] for name in VALUES) == knobs
    assert HOPPER_FP8.launch_plan(problem).launches[1] == HOPPER_FP8.launch_plan(problem, resolved).launches[1]


def test_the_mission_shape_fills_the_gpu() -> None:
    attention = HOPPER_FP8.launch_plan(MISSION).launches[1]
    assert attention.cluster == (2, 1, 1)
    assert SMS - 4 <= np.prod(attention.grid) <= SMS


def test_what_is_given_is_not_chosen() -> None:
    assert resolve(MISSION, WIDE) == WIDE
    assert [resolve(MISSION, AUTO.but(**{name: most})).int(name) for name, (*_, most) in VALUES.items()] == [
        most for *_, most in VALUES.values()
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("block_m", "block_n"), list(product(VALUES["BLOCK_M"], VALUES["BLOCK_N"])))
def test_every_tile_is_correct(block_m: int, block_n: int) -> None:
    assert_computes(HOPPER_FP8, RAGGED, WIDE.but(BLOCK_M=block_m, BLOCK_N=block_n))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (RAGGED, SMALL),
        (Problem(1, 1, 70, 64, seq_kv=300), WIDE),
        (Problem(1, 1, 40, 64, seq_kv=64 * 9 - 7), CLUSTER_2),  # of rank 0 the stages are filled again
        (Problem(1, 1, 100, 256, seq_kv=300), WIDE),
        (Problem(1, 1, 40, 256, seq_kv=64 * 5 - 7, causal=True), CLUSTER_2),
    ],
    ids=label,
)
def test_every_order_gives_the_same_bits_and_no_hazard(problem: Problem, config: Config) -> None:
    assert_same_bits_in_every_order(HOPPER_FP8, problem, config, checks=(*warpsan.CHECKS, "strict"))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("problem", "config"),
    [(RAGGED, WIDE), (RAGGED, CLUSTER_4), (Problem(1, 1, 70, 128, scale=-2.0), AUTO), (Problem(1, 1, 70, 256), WIDE)],
    ids=label,
)
def test_log_sum_exp(problem: Problem, config: Config) -> None:
    assert_log_sum_exp(HOPPER_FP8, problem, config)


@pytest.mark.sample(1)
@pytest.mark.parametrize("head_dim", [64, 256])
def test_nothing_past_the_end_of_a_head_is_used_behind_a_whole_tile(head_dim: int) -> None:
    assert_nothing_past_the_end_is_used(HOPPER_FP8, Problem(1, 2, 37, head_dim, seq_kv=141), WIDE)


@pytest.mark.sample(1, first=True)
@pytest.mark.parametrize(("head_dim", "config"), [(64, WIDE), (64, CLUSTER_2), (256, WIDE)], ids=str)
def test_a_blocks_scale_of_v_is_its_own(head_dim: int, config: Config) -> None:
    # Blocks of V differ by 2^20, and the first rows see nothing of the large one.
    problem = Problem(1, 1, 256, head_dim, causal=True)
    inputs = make_inputs(problem)
    inputs.v[:, :, 128:] *= np.float16(2.0**10)
    inputs.v[:, :, :128] *= np.float16(2.0**-10)
    result = run(HOPPER_FP8, problem, config, inputs=inputs)
    reference = attention_float64(**inputs.arrays, scale=problem.scale, causal=True)
    errors = measure(result.outputs["o"][:, :, :128], reference[:, :, :128], problem.dtype)
    assert errors.rel_l2 < 0.1


@pytest.mark.sample(1, first=True)
@pytest.mark.parametrize(("head_dim", "config"), [(64, SMALL), (64, WIDE), (128, WIDE), (256, CLUSTER_2)], ids=str)
def test_everything_is_read_once_a_block_and_without_a_bank_conflict(head_dim: int, config: Config) -> None:
    problem = Problem(1, 1, 128, head_dim, seq_kv=256)
    counters = count(HOPPER_FP8, problem, ARCH, config).launches[-1].counters
    blocks = problem.seq_q // config.int("BLOCK_M")
    # Each block of a cluster reads Q, and its own part of K and V.
    read, written = config.int("SPLIT") * problem.seq_q + 2 * blocks * problem.seq_kv, 2 * problem.seq_q
    assert counters.total("sectors", "async") == (read + written) * head_dim // 32
    assert counters.tensor_flops == problem.flops
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")


def test_the_plan_quantises_first() -> None:
    quantise, attention = HOPPER_FP8.launch_plan(MISSION).launches
    assert quantise.module is not None
    assert quantise.module.entry == f"quantise_blocks<{SCALE_ROWS}>"
    assert attention.entry == ""
    assert attention.grid == (16, 8, 1)
    assert attention.dynamic_smem == smem_bytes(MISSION, resolve(MISSION, AUTO))


REFUSALS = [
    Refusal({"BLOCK_M": 32}, "BLOCK_M must be one of 0, 64, 128, not 32", "BLOCK_M is 64 or 128"),
    Refusal({"BLOCK_N": 96}, "BLOCK_N must be one of 0, 64, 128, not 96", "BLOCK_N is 64 or 128"),
    Refusal({"NUM_STAGES": 1}, "NUM_STAGES must be one of 0, 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
    Refusal({"SPLIT": 3}, "SPLIT must be one of 0, 1, 2, 4, not 3", "SPLIT is 1, 2 or 4"),
    Refusal(
        {"BLOCK_M": 64},
        "take 208 registers for accumulators and weights, and with BLOCK_M=64 a thread has 200 for them",
        "leave a consumer registers for the rest",
        Problem(1, 1, 64, 128),
    ),
    Refusal({"NUM_STAGES": 3}, "shared memory, and the kernel's limit is 232448", problem=Problem(1, 1, 64, 256)),
    Refusal({}, "supports head_dim 64, 128 or 256, not 32", "HEAD_DIM is 64, 128 or 256", Problem(1, 1, 64, 32)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(HOPPER_FP8, refusal, WIDE)


def test_it_is_built_for_hopper_alone() -> None:
    assert ARCH == "sm_90a"
    assert "only sm_90a has" in str(HOPPER_FP8.why_not_on("sm_100"))


def test_the_search_space_is_what_fits() -> None:
    counts = [len(list(HOPPER_FP8.space(MISSION.with_(head_dim=head_dim)))) for head_dim in (64, 128, 256)]
    assert counts == [36, 27, 19]


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", [WIDE, SMALL, CLUSTER_2], ids=str)
def test_smem_bytes_is_what_the_kernel_touches(config: Config) -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=128)
    assert_shared_memory(HOPPER_FP8, problem, config, smem_bytes(problem, config), step=8)
