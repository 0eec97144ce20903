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

from sdpalab import sim
from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.limits import measure
from sdpalab.judge.rule.reference import attention_float64
from sdpalab.kernels.hopper_fp8 import HOPPER_FP8, KNOBS, SCALE_ROWS, resolve, smem_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.model.counted import count
from sdpalab.problem import MISSION, Problem

ARCH = HOPPER_FP8.default_arch
WIDE = HOPPER_FP8.default_config.but(BLOCK_M=128)
SMALL = WIDE.but(BLOCK_M=64, BLOCK_N=64)
RAGGED = Problem(1, 2, 150, 64, kv_heads=1, seq_kv=333, causal=True)

SHAPES = [
    Problem(1, 1, 1, 64),
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(1, 1, 129, 64, seq_kv=128),
    Problem(2, 4, 40, 64, kv_heads=2, seq_kv=17, causal=True),
    Problem(1, 2, 300, 64, kv_heads=1, seq_kv=130, causal=True),
    Problem(1, 1, 65, 128, seq_kv=300),
    Problem(1, 1, 200, 128, seq_kv=310, causal=True),
    Problem(1, 1, 70, 64, dtype="bfloat16"),
    Problem(1, 1, 90, 64, scale=-0.3, causal=True),
    Problem(1, 1, 90, 64, scale=0.0, causal=True),
    Problem(1, 1, 40, 64, scale=3.0),
]


def label(value: object) -> str:
    return str(getattr(value, "label", value))


@pytest.mark.sample(3)
@pytest.mark.parametrize("problem", SHAPES, ids=label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(HOPPER_FP8, problem)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "kind",
    ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "outlier", "negative", "equal", "huge", "tiny"],
)
def test_probes(kind: str) -> None:
    assert_computes(HOPPER_FP8, Problem(1, 1, 70, 64, seq_kv=200), SMALL, kind=kind)


@pytest.mark.parametrize(
    ("problem", "rows"),
    [
        (MISSION, 64),  # 32 blocks of 128 rows on 132 SMs
        (MISSION.with_(batch=4), 64),
        (MISSION.with_(batch=5), 128),
        (Problem(1, 8, 512, 128), 128),  # a lone consumer lacks the registers
    ],
    ids=str,
)
def test_the_rows_of_a_block_follow_the_problem(problem: Problem, rows: int) -> None:
    assert resolve(problem, HOPPER_FP8.default_config).int("BLOCK_M") == rows
    assert (
        HOPPER_FP8.launch_plan(problem).launches[1]
        == (HOPPER_FP8.launch_plan(problem, WIDE.but(BLOCK_M=rows)).launches[1])
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(("block_m", "block_n"), list(product(KNOBS["BLOCK_M"], KNOBS["BLOCK_N"])))
def test_every_tile_is_correct(block_m: int, block_n: int) -> None:
    assert_computes(HOPPER_FP8, RAGGED, WIDE.but(BLOCK_M=block_m, BLOCK_N=block_n))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("problem", "config"), [(RAGGED, SMALL), (Problem(1, 1, 70, 64, seq_kv=300), WIDE)], ids=label)
def test_every_order_gives_the_same_bits_and_no_hazard(problem: Problem, config: Config) -> None:
    assert_same_bits_in_every_order(HOPPER_FP8, problem, config, checks=(*sim.CHECKS, "strict"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("problem", [RAGGED, Problem(1, 1, 70, 128, scale=-2.0)], ids=label)
def test_log_sum_exp(problem: Problem) -> None:
    assert_log_sum_exp(HOPPER_FP8, problem)


def test_nothing_past_the_end_of_a_head_is_used_behind_a_whole_tile() -> None:
    assert_nothing_past_the_end_is_used(HOPPER_FP8, Problem(1, 2, 37, 64, seq_kv=141))


def test_a_blocks_scale_of_v_is_its_own() -> None:
    # Blocks of V differ by 2^20, and the first rows see nothing of the large one.
    problem = Problem(1, 1, 256, 64, causal=True)
    inputs = make_inputs(problem)
    inputs.v[:, :, 128:] *= np.float16(2.0**10)
    inputs.v[:, :, :128] *= np.float16(2.0**-10)
    result = run(HOPPER_FP8, problem, inputs=inputs)
    reference = attention_float64(**inputs.arrays, scale=problem.scale, causal=True)
    errors = measure(result.outputs["o"][:, :, :128], reference[:, :, :128], problem.dtype)
    assert errors.rel_l2 < 0.1


@pytest.mark.sample(1)
@pytest.mark.parametrize(("head_dim", "config"), [(64, WIDE), (128, WIDE), (64, SMALL)], ids=str)
def test_everything_is_read_once_a_block_and_without_a_bank_conflict(head_dim: int, config: Config) -> None:
    problem = Problem(1, 1, 128, head_dim, seq_kv=256)
    counters = count(HOPPER_FP8, problem, ARCH, config).launches[-1].counters
    blocks = problem.seq_q // config.int("BLOCK_M")
    read, written = problem.seq_q + 2 * blocks * problem.seq_kv, 2 * problem.seq_q
    assert counters.total("sectors", "async") == (read + written) * head_dim // 32
    assert counters.tensor_flops == problem.flops
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")


def test_the_plan_quantises_first() -> None:
    quantise, attention = HOPPER_FP8.launch_plan(MISSION).launches
    assert quantise.entry == f"quantise_blocks<{SCALE_ROWS}>"
    assert attention.entry == ""
    assert attention.grid == (8, 8, 1)
    assert attention.dynamic_smem == smem_bytes(MISSION, resolve(MISSION, HOPPER_FP8.default_config))


REFUSALS = [
    Refusal({"BLOCK_M": 32}, "BLOCK_M must be one of 0, 64, 128, not 32", "BLOCK_M is 64 or 128"),
    Refusal({"BLOCK_N": 96}, "BLOCK_N must be one of 64, 128, not 96", "BLOCK_N is 64 or 128"),
    Refusal({"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
    Refusal(
        {"BLOCK_M": 64},
        "take 208 registers for accumulators and weights, and with BLOCK_M=64 a thread has 200 for them",
        "leave a consumer registers for the rest",
        Problem(1, 1, 64, 128),
    ),
    Refusal({}, "supports head_dim 64 or 128, not 32", "HEAD_DIM is 64 or 128", Problem(1, 1, 64, 32)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(HOPPER_FP8, refusal, WIDE)


def test_it_is_built_for_hopper_alone() -> None:
    assert ARCH == "sm_90a"
    assert "only sm_90a has" in str(HOPPER_FP8.arch_reason("sm_100"))


def test_the_search_space_is_what_fits() -> None:
    assert len(list(HOPPER_FP8.space(MISSION))) == 18
    assert len(list(HOPPER_FP8.space(MISSION.with_(head_dim=128)))) == 15


@pytest.mark.parametrize("config", [WIDE, SMALL], ids=str)
def test_smem_bytes_is_what_the_kernel_touches(config: Config) -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=128)
    assert_shared_memory(HOPPER_FP8, problem, config, smem_bytes(problem, config), step=8)
