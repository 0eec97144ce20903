"""The cublas kernel: its two products and its softmax, which reads each score once, in every configuration.

What it computes whatever its knobs and what it refuses of problems is in ``test_ladder*.py``.
"""

from __future__ import annotations

import re

import pytest
from checking import (
    assert_computes,
    assert_gate,
    assert_log_sum_exp,
    assert_values_have_their_own_code,
    ptx_of,
    resources_of,
    run,
)
from refusals import Refusal, assert_refused

from sdpalab.kernels.cublas import CUBLAS, pitch, workspace_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.plan import Gemm, Launch
from sdpalab.model.counted import count
from sdpalab.problem import MISSION, Problem

DEFAULT = CUBLAS.default_config
SMALL = DEFAULT.but(BLOCK_M=1, BLOCK_N=512, NUM_WARPS=4)

ITS_OWN_SHAPES = [
    Problem(1, 1, 9, 128, seq_kv=512),
    Problem(1, 1, 9, 64, seq_kv=513),
    Problem(1, 1, 5, 64, seq_kv=2100),
    Problem(1, 1, 530, 32, causal=True),
    Problem(1, 1, 20, 96),
    Problem(1, 1, 20, 5),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("problem", ITS_OWN_SHAPES, ids=lambda problem: problem.label)
def test_rows_of_many_keys_and_any_head_dim(problem: Problem) -> None:
    assert_computes(CUBLAS, problem)


@pytest.mark.sample(4)
@pytest.mark.parametrize("config", list(CUBLAS.space(MISSION)), ids=str)
def test_every_configuration_is_correct(config: Config) -> None:
    # Rows of several times BLOCK_N keys, which are read twice, and rows that see less than one.
    keys = config.int("BLOCK_N")
    assert_computes(CUBLAS, Problem(1, 1, config.int("BLOCK_M") + 2, 32, seq_kv=2 * keys + 44), config)
    assert_computes(CUBLAS, Problem(1, 2, 70, 32, kv_heads=1, causal=True), config)


@pytest.mark.sample(4)
@pytest.mark.parametrize("config", CUBLAS.configs, ids=str)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(2, 4, 30, 32, kv_heads=2, seq_kv=41, causal=True),
        Problem(1, 1, 9, 64, seq_kv=1500, scale=-0.2),
        Problem(1, 1, 33, 64, dtype="bfloat16", scale=0.0),
    ],
    ids=lambda problem: problem.label,
)
def test_log_sum_exp(problem: Problem, config: Config) -> None:
    assert_log_sum_exp(CUBLAS, problem, config)


def test_the_plan_is_two_products_and_a_softmax() -> None:
    problem = Problem(2, 6, 5, 64, kv_heads=2, seq_kv=13)
    qk, softmax, pv = CUBLAS.launch_plan(problem).steps
    assert isinstance(qk, Gemm)
    assert isinstance(softmax, Launch)
    assert isinstance(pv, Gemm)
    assert (qk.batch, qk.m, qk.n, qk.k, qk.transpose_b) == (4, 15, 13, 64, True)
    assert (pv.batch, pv.m, pv.n, pv.k, pv.transpose_b) == (4, 15, 64, 13, False)
    assert qk.flops + pv.flops == problem.flops
    assert softmax.grid == (8, 1, 1)  # of 60 rows


def test_scores_are_floats_and_weights_are_in_the_problems_dtype() -> None:
    plan = CUBLAS.launch_plan(MISSION.with_(dtype="bfloat16", seq_kv=509))
    assert [(buffer.dtype, buffer.shape, buffer.role) for buffer in plan.buffers[-2:]] == [
        ("float32", (8 * 512, 512), "workspace"),
        ("bfloat16", (8 * 512, 512), "workspace"),
    ]


@pytest.mark.parametrize("seq_kv", [1, 7, 8, 9, 512])
def test_rows_of_both_products_begin_at_16_bytes(seq_kv: int) -> None:
    problem = Problem(1, 1, 4, 64, seq_kv=seq_kv)
    assert pitch(problem) % 8 == 0
    assert seq_kv <= pitch(problem) < seq_kv + 8
    assert workspace_bytes(problem) == 4 * pitch(problem) * 6


@pytest.mark.parametrize("config", [DEFAULT, SMALL], ids=str)
@pytest.mark.parametrize("seq_kv", [512, 507])
def test_each_score_is_read_once_and_each_weight_written_once_in_whole_sectors(config: Config, seq_kv: int) -> None:
    problem = Problem(1, 1, 24, 32, seq_kv=seq_kv)
    counters = count(CUBLAS, problem, "sm_89", config).main.counters
    assert counters.compulsory_read_bytes == 24 * pitch(problem) * 4
    assert counters.compulsory_write_bytes == 24 * pitch(problem) * 2
    assert counters.total("sectors") == counters.total("ideal_sectors")
    assert 32 * counters.total("sectors") == 24 * pitch(problem) * 6
    assert counters.exponentials >= problem.exponentials


def test_only_visible_scores_are_read() -> None:
    # A causal row of i + 1 keys takes them 4 at a time; what lies behind is neither read nor part of a sum.
    problem = Problem(1, 1, 64, 32, causal=True)
    counters = count(CUBLAS, problem, "sm_89").main.counters
    read = sum(-(-(row + 1) // 8) * 32 for row in range(64))
    assert counters.compulsory_read_bytes == read
    assert counters.compulsory_write_bytes == 64 * 64 * 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(dtype: str) -> None:
    ptx = ptx_of(CUBLAS, Problem(1, 1, 64, 64, dtype=dtype))
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    assert ptx.count("ld.global.nc.v4.f32") == 2 * 4  # four rounds of 128 keys, read, and once more for a longer row
    assert ptx.count("st.global.v2.u32") == 4 + 1  # and the zeros behind
    assert ptx.count(f"cvt.rn.{short}x2.f32") == 8
    assert ptx.count("shfl.sync.bfly") == 2 * 5  # maximum and sum
    assert ptx.count("st.global") == 5 + 1  # and the log-sum-exp
    assert "bar.sync" not in ptx
    assert not re.search(r"\b(ld|st)\.(local|shared)|\bcall\b|\bdiv\.\w+\.f|\bmma\b", ptx)


def test_warps_that_share_a_row_meet_once() -> None:
    ptx = ptx_of(CUBLAS, Problem(1, 1, 64, 64), SMALL)
    assert ptx.count("bar.sync") == 1
    assert ptx.count("st.shared") == 2


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("knob", "values"), [("BLOCK_M", (2, 4, 8)), ("BLOCK_N", (256, 512, 1024)), ("NUM_WARPS", (4, 8))]
)
def test_every_knob_changes_the_code(knob: str, values: tuple[int, ...]) -> None:
    assert_values_have_their_own_code(CUBLAS, knob, values, DEFAULT.but(BLOCK_M=4))


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", CUBLAS.configs, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_static_gate(config: Config, dtype: str) -> None:
    for causal in (False, True):
        assert_gate(CUBLAS, MISSION.with_(causal=causal, dtype=dtype), config)


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_100", "sm_103", "sm_120"])
def test_every_architecture_keeps_the_bars(arch: str) -> None:
    for block_n in (512, 1024):  # the default, and the most scores that a thread holds
        assert_gate(CUBLAS, MISSION, DEFAULT.but(BLOCK_N=block_n), arch)


def test_mission_bars_on_sm_89() -> None:
    used = resources_of(CUBLAS, MISSION)
    assert used.registers <= 40  # six blocks of eight warps fill the SM
    assert used.blocks_per_sm == 6
    assert used.shared_bytes == 0


REFUSALS = [
    Refusal({"BLOCK_M": 3}, "BLOCK_M must be one of 1, 2, 4, 8, not 3", "the warps are shared out evenly among"),
    Refusal(
        {"BLOCK_N": 500},
        "BLOCK_N must be one of 256, 512, 1024, 2048, 4096, not 500",
        "BLOCK_N is a multiple of 4 keys for each thread of a row",
    ),
    Refusal({"NUM_WARPS": 16}, "NUM_WARPS must be one of 4, 8, not 16"),
    Refusal({"NUM_WARPS": 64}, "NUM_WARPS must be one of 4, 8, not 64", "a block has 1 to 32 warps"),
    Refusal({"NUM_WARPS": 4}, "BLOCK_M=8 rows cannot share NUM_WARPS=4 warps evenly"),
    Refusal(
        {"BLOCK_N": 2048},
        "BLOCK_N=2048 keys are not 4 to 32 for each thread of a row, of which there are 32",
        "a thread holds at most 32 scores",
    ),
    Refusal({"BLOCK_M": 1}, "BLOCK_N=512 keys are not 4 to 32 for each thread of a row, of which there are 256"),
    Refusal({}, "are 12.0 GiB, and at most 4 GiB are taken", problem=Problem(1, 8, 16384, 64)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_and_too_many_scores_are_refused(refusal: Refusal) -> None:
    assert_refused(CUBLAS, refusal)


def test_what_is_in_the_workspaces_before_does_not_matter() -> None:
    problem = Problem(1, 1, 41, 64, seq_kv=43, causal=True)
    runs = [run(CUBLAS, problem, poison=poison) for poison in (0xFF, 0x00)]
    assert runs[0].outputs["o"].tobytes() == runs[1].outputs["o"].tobytes()
    assert not runs[0].hazards
