"""The cublas kernel: right on every shape and knob, built as it says, within its static bars on every architecture."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from checking import assert_computes, assert_gate, ptx_of, resources_of

from sdpalab.build import Build, BuildError, build
from sdpalab.inputs import make_inputs
from sdpalab.kernels.cublas import CUBLAS, pitch, workspace_bytes
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.plan import Gemm, Launch
from sdpalab.problem import MISSION, Problem
from sdpalab.run import RunResult, SimulatedExecutor
from sdpalab.sim import Report

DEFAULT = CUBLAS.default_config
SMALL = DEFAULT.but(BLOCK_M=1, BLOCK_N=512, NUM_WARPS=4)
Inputs = dict[str, npt.NDArray[Any]]

SHAPES = [
    Problem(1, 1, 1, 32),
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(2, 2, 64, 64, causal=True),
    Problem(1, 1, 129, 64),
    Problem(1, 2, 70, 32, seq_kv=300),
    Problem(1, 2, 200, 32, seq_kv=70, causal=True),
    Problem(2, 4, 40, 32, kv_heads=2, seq_kv=17, causal=True),
    Problem(1, 3, 32, 32, kv_heads=1, seq_kv=97),
    Problem(1, 1, 9, 128, seq_kv=512),
    Problem(1, 1, 9, 64, seq_kv=513),
    Problem(1, 1, 5, 64, seq_kv=2100),
    Problem(1, 1, 530, 32, causal=True),
    Problem(1, 1, 20, 96),
    Problem(1, 1, 20, 5),
    Problem(1, 1, 100, 64, dtype="bfloat16", causal=True),
    Problem(1, 1, 70, 128, dtype="bfloat16"),
    Problem(1, 1, 90, 32, scale=-0.3, causal=True),
    Problem(1, 1, 90, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(CUBLAS, problem)


@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "equal", "huge"])
@pytest.mark.parametrize("causal", [False, True])
def test_probes(kind: str, causal: bool) -> None:
    assert_computes(CUBLAS, Problem(1, 1, 140, 32, causal=causal), kind=kind)


@pytest.mark.parametrize("scale", [0.125, -0.125, 3.0e37])
def test_logits_near_the_fp16_maximum_select_one_key_exactly(scale: float) -> None:
    # One key a row has a score of 1e11 and more, so the row of O is its row of V bit for bit. Scores in 16 bits are
    # infinite here, and a maximum that is scaled before it is subtracted is off by thousands.
    problem = Problem(1, 1, 64, 64, seq_kv=130, scale=scale)
    draw = np.random.default_rng(7)
    chosen = draw.integers(0, problem.seq_kv, problem.seq_q)
    sign = draw.choice([-1.0, 1.0], (problem.seq_kv, problem.head_dim))
    k = (sign * 50000).astype(np.float16)[None, None]
    q = (np.sign(scale) * sign[chosen] * 60000).astype(np.float16)[None, None]
    v = draw.standard_normal(problem.kv_shape).astype(np.float16)
    result = SimulatedExecutor().run(CUBLAS.launch_plan(problem), {"q": q, "k": k, "v": v})
    assert np.array_equal(result.outputs["o"][0, 0], v[0, 0, chosen])
    assert not result.hazards


@pytest.mark.parametrize("config", list(CUBLAS.space(MISSION)), ids=str)
def test_every_configuration_is_correct(config: Config) -> None:
    # Rows of several times BLOCK_N keys, which are read twice, and rows that see less than one.
    keys = config.int("BLOCK_N")
    assert_computes(CUBLAS, Problem(1, 1, config.int("BLOCK_M") + 2, 32, seq_kv=2 * keys + 44), config)
    assert_computes(CUBLAS, Problem(1, 2, 70, 32, kv_heads=1, causal=True), config)


def inputs_of(problem: Problem) -> Inputs:
    made = make_inputs(problem)
    return {"q": made.q, "k": made.k, "v": made.v}


def log_sum_exp(problem: Problem, inputs: Inputs) -> npt.NDArray[np.float64]:
    """[B, H, Sq], in float64."""
    k = np.repeat(inputs["k"].astype(np.float64), problem.group, axis=1)
    scores = problem.scale * inputs["q"].astype(np.float64) @ k.swapaxes(2, 3)
    if problem.causal:
        scores[..., np.arange(problem.seq_kv) > np.arange(problem.seq_q)[:, None]] = -np.inf
    top = scores.max(axis=-1)
    return top + np.log(np.exp(scores - top[..., None]).sum(axis=-1))


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
    inputs = inputs_of(problem)
    with_lse = SimulatedExecutor().run(CUBLAS.launch_plan(problem, config, lse=True), inputs)
    without = SimulatedExecutor().run(CUBLAS.launch_plan(problem, config), inputs)
    np.testing.assert_allclose(with_lse.outputs["lse"], log_sum_exp(problem, inputs), rtol=0, atol=4e-6)
    assert np.array_equal(with_lse.outputs["o"], without.outputs["o"])
    assert with_lse.ptx_sha256 == without.ptx_sha256
    assert not with_lse.hazards


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


def counted(problem: Problem, config: Config) -> tuple[RunResult, Report]:
    reports: list[Report] = []

    def launched(_: Build, report: Report) -> None:
        reports.append(report)

    executor = SimulatedExecutor(counters=True, checks=(), on_launch=launched)
    result = executor.run(CUBLAS.launch_plan(problem, config), inputs_of(problem))
    (report,) = reports
    return result, report


@pytest.mark.parametrize("config", [DEFAULT, SMALL], ids=str)
@pytest.mark.parametrize("seq_kv", [512, 507])
def test_each_score_is_read_once_and_each_weight_written_once_in_whole_sectors(config: Config, seq_kv: int) -> None:
    problem = Problem(1, 1, 24, 32, seq_kv=seq_kv)
    _, report = counted(problem, config)
    counters = report.counters
    assert counters is not None
    assert counters.compulsory_read_bytes == 24 * pitch(problem) * 4
    assert counters.compulsory_write_bytes == 24 * pitch(problem) * 2
    assert counters.total("sectors") == counters.total("ideal_sectors")
    assert 32 * counters.total("sectors") == 24 * pitch(problem) * 6
    assert counters.exponentials >= problem.exponentials


def test_only_visible_scores_are_read() -> None:
    # A causal row of i + 1 keys takes them 4 at a time; what lies behind is neither read nor part of a sum.
    problem = Problem(1, 1, 64, 32, causal=True)
    _, report = counted(problem, DEFAULT)
    counters = report.counters
    assert counters is not None
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


@pytest.mark.parametrize(
    "knob", [("BLOCK_M", (2, 4, 8)), ("BLOCK_N", (256, 512, 1024)), ("NUM_WARPS", (4, 8))], ids=str
)
def test_every_knob_changes_the_code(knob: tuple[str, tuple[int, ...]]) -> None:
    name, values = knob
    base = DEFAULT.but(BLOCK_M=4)
    programs = {ptx_of(CUBLAS, Problem(1, 1, 64, 64), base.but(**{name: value})) for value in values}
    assert len(programs) == len(values)


@pytest.mark.parametrize("config", CUBLAS.configs, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_static_gate(config: Config, dtype: str) -> None:
    for causal in (False, True):
        assert_gate(CUBLAS, MISSION.with_(causal=causal, dtype=dtype), config)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_100", "sm_103", "sm_120"])
def test_every_architecture_keeps_the_bars(arch: str) -> None:
    limits = CUBLAS.static_limits(MISSION)
    for block_n in (512, 1024):  # the default, and the most scores that a thread holds
        used = resources_of(CUBLAS, MISSION, DEFAULT.but(BLOCK_N=block_n), arch)
        assert (used.spill_bytes, used.stack_bytes) == (0, 0)
        assert used.registers <= limits.registers
        assert used.shared_bytes <= limits.shared_bytes
        assert used.blocks_per_sm >= limits.min_blocks_per_sm


def test_mission_bars_on_sm_89() -> None:
    used = resources_of(CUBLAS, MISSION)
    assert used.registers <= 40  # six blocks of eight warps fill the SM
    assert used.blocks_per_sm == 6
    assert used.shared_bytes == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"BLOCK_M": 3}, "BLOCK_M must be one of 1, 2, 4, 8, not 3"),
        ({"BLOCK_N": 500}, "BLOCK_N must be one of 256, 512, 1024, 2048, 4096, not 500"),
        ({"NUM_WARPS": 16}, "NUM_WARPS must be one of 4, 8, not 16"),
        ({"NUM_WARPS": 4}, "BLOCK_M=8 rows cannot share NUM_WARPS=4 warps evenly"),
        ({"BLOCK_N": 2048}, "BLOCK_N=2048 keys are not 4 to 32 for each thread of a row, of which there are 32"),
        ({"BLOCK_M": 1}, "BLOCK_N=512 keys are not 4 to 32 for each thread of a row, of which there are 256"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        CUBLAS.launch_plan(MISSION, DEFAULT.but(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"NUM_WARPS": 64}, "a block has 1 to 32 warps"),
        ({"BLOCK_M": 3}, "the warps are shared out evenly among BLOCK_M rows"),
        ({"BLOCK_N": 500}, "BLOCK_N is a multiple of 4 keys for each thread of a row"),
        ({"BLOCK_N": 2048}, "a thread holds at most 32 scores"),
    ],
    ids=str,
)
def test_the_source_refuses_them_too(changes: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError) as refused:
        build(CUBLAS.module(MISSION, DEFAULT.but(**changes)))
    assert message in f"{refused.value} {refused.value.log}"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 8, 16384, 64), "are 12.0 GiB, and at most 4 GiB are taken"),
        (Problem(1, 1, 8, 64, scale=-3e38), "scale=-3e+38 does not fit"),
    ],
    ids=["memory", "scale"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(CUBLAS.reject_reason(problem))


def test_nothing_past_the_end_of_a_head_is_used() -> None:
    # The second head is NaN, and its scores lie right behind the first's.
    problem = Problem(1, 2, 37, 64, seq_kv=41)
    inputs = inputs_of(problem)
    clean = SimulatedExecutor().run(CUBLAS.launch_plan(problem), inputs).outputs["o"]
    for array in inputs.values():
        array[:, 1] = np.nan
    spoilt = SimulatedExecutor().run(CUBLAS.launch_plan(problem), inputs).outputs["o"]
    assert np.array_equal(spoilt[:, 0], clean[:, 0])
    assert np.isnan(spoilt[:, 1]).all()


def test_what_is_in_the_workspaces_before_does_not_matter() -> None:
    problem = Problem(1, 1, 41, 64, seq_kv=43, causal=True)
    inputs = inputs_of(problem)
    runs = [SimulatedExecutor().run(CUBLAS.launch_plan(problem), inputs, poison=poison) for poison in (0xFF, 0x00)]
    assert runs[0].outputs["o"].tobytes() == runs[1].outputs["o"].tobytes()
    assert not runs[0].hazards
