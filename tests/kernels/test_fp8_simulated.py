"""The fp8_simulated kernel: 8-bit numbers with one scale a head, right at the lengths where its ancestor gave NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from checking import assert_computes, assert_gate, ptx_of, run

from sdpalab.build import BuildError, build
from sdpalab.inputs import make_inputs
from sdpalab.judge.log_sum_exp import log_sum_exp_float64, measure_lse
from sdpalab.judge.numerics import dequantised
from sdpalab.judge.reference import attention_float64
from sdpalab.judge.rule import measure
from sdpalab.kernels.fp8_simulated import FP8_SIMULATED
from sdpalab.kernels.kernel import Config, Quantisation, UnsupportedProblem
from sdpalab.kernels.wmma import WMMA
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from sdpalab.sim import Report

DEFAULT = FP8_SIMULATED.default_config
RAGGED = Problem(1, 2, 37, 32, kv_heads=1, seq_kv=145, causal=True)

SHAPES = [
    Problem(1, 1, 1, 32),
    Problem(1, 1, 1, 64, seq_kv=70),
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(2, 2, 64, 64, causal=True),
    Problem(1, 1, 65, 128, seq_kv=31),
    Problem(1, 1, 31, 128, seq_kv=65, causal=True, dtype="bfloat16"),
    Problem(2, 4, 40, 32, kv_heads=2, seq_kv=17, causal=True),
    Problem(1, 1, 40, 32, scale=-0.3),
    Problem(1, 1, 40, 32, scale=0.0, causal=True),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(FP8_SIMULATED, problem)


@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "large_logits", "outlier", "huge", "tiny"])
def test_probes(kind: str) -> None:
    assert_computes(FP8_SIMULATED, Problem(1, 1, 96, 32, causal=True), kind=kind)


@pytest.mark.parametrize("kind", ["normal", "outlier", "large_logits", "equal"])
def test_the_length_that_gave_nan(kind: str) -> None:
    # 512 equal weights of 1 sum to more than e4m3 has.
    problem = MISSION.with_(heads=1, seq_q=64)
    inputs = make_inputs(problem, kind)
    out = SimulatedExecutor(checks=()).run(FP8_SIMULATED.launch_plan(problem), vars(inputs)).outputs["o"]
    reference = attention_float64(**vars(inputs), scale=problem.scale, causal=False)
    errors = measure(out, reference, problem.dtype)
    assert errors.not_finite == 0
    assert errors.rel_l2 < 0.15


def test_the_declared_numbers_bit_for_bit_over_several_blocks() -> None:
    problem = Problem(2, 2, 70, 32, kv_heads=1, seq_kv=200)
    inputs = make_inputs(problem, "outlier")
    plan = FP8_SIMULATED.launch_plan(problem)
    kept = {"q_bytes", "k_bytes", "v_bytes", "q_scales", "k_scales", "v_scales"}
    shown = [type(b)(b.name, b.shape, b.dtype, "out" if b.name in kept else b.role) for b in plan.buffers]
    found = SimulatedExecutor().run(type(plan)(tuple(shown), plan.steps), vars(inputs)).outputs
    for name, array in vars(inputs).items():
        numbers = found[f"{name}_bytes"].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        scales = found[f"{name}_scales"].astype(np.float64)[:, :, None, None]
        assert np.array_equal(numbers * scales, dequantised(array, Quantisation())), name


def test_nothing_past_the_end_of_a_head_is_used() -> None:
    problem = Problem(1, 2, 37, 64, seq_kv=41)
    inputs = vars(make_inputs(problem, "normal"))
    clean = SimulatedExecutor().run(FP8_SIMULATED.launch_plan(problem), inputs).outputs["o"]
    for array in inputs.values():
        array[:, 1] = np.nan
    spoilt = SimulatedExecutor().run(FP8_SIMULATED.launch_plan(problem), inputs).outputs["o"]
    assert np.array_equal(spoilt[:, 0], clean[:, 0])
    assert np.isnan(spoilt[:, 1]).all()


@pytest.mark.parametrize("problem", [RAGGED, Problem(1, 1, 70, 32, scale=-2.0, dtype="bfloat16")], ids=str)
def test_log_sum_exp(problem: Problem) -> None:
    inputs = make_inputs(problem, "normal")
    without = SimulatedExecutor().run(FP8_SIMULATED.launch_plan(problem), vars(inputs))
    result = SimulatedExecutor().run(FP8_SIMULATED.launch_plan(problem, lse=True), vars(inputs))
    numerics = FP8_SIMULATED.numerics
    limits = log_sum_exp_float64(**vars(inputs), scale=problem.scale, causal=problem.causal, numerics=numerics)
    errors = measure_lse(result.outputs["lse"], *limits)
    assert errors.not_finite == 0
    assert errors.error < min(errors.limit, 1e-5)
    assert np.array_equal(result.outputs["o"], without.outputs["o"])
    assert result.ptx_sha256 == without.ptx_sha256
    assert not result.hazards


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (32, 64), (64, 32), (128, 16)])
def test_every_tile_is_correct(block_m: int, block_n: int) -> None:
    assert_computes(FP8_SIMULATED, RAGGED, DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n))


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_no_result_rests_on_the_order_of_warps(schedule: str) -> None:
    lockstep, other = run(FP8_SIMULATED, RAGGED), run(FP8_SIMULATED, RAGGED, schedule=schedule)
    assert not other.hazards
    assert other.outputs["o"].tobytes() == lockstep.outputs["o"].tobytes()


def test_it_multiplies_in_16_bits() -> None:
    ptx = ptx_of(FP8_SIMULATED, Problem(1, 1, 64, 64))
    assert "wmma.mma.sync.aligned" in ptx
    assert "cvt.rn.f16x2.e4m3x2" in ptx
    assert "cvt.rn.satfinite.e4m3x2" not in ptx  # P is not of 8 bits
    assert ".e4m3.e4m3" not in ptx


def test_bytes_cross_the_memory_once_a_block() -> None:
    problem = Problem(1, 2, 128, 64)
    reports: dict[str, list[Report]] = {}
    for kernel in (WMMA, FP8_SIMULATED):
        kept = reports.setdefault(kernel.name, [])
        executor = SimulatedExecutor(
            counters=True, checks=(), on_launch=lambda built, report, to=kept: to.append(report)
        )
        executor.run(kernel.launch_plan(problem), vars(make_inputs(problem, "normal")))
    counters = {name: [report.counters for report in made] for name, made in reports.items()}
    (wide,), (maxima, quantise, narrow) = counters["wmma"], counters["fp8_simulated"]
    assert wide and maxima and quantise and narrow  # noqa: PT018
    elements = 2 * 128 * 64
    assert wide.compulsory_read_bytes == 3 * elements * 2
    assert narrow.compulsory_read_bytes == 3 * elements + 3 * 32  # scales: a sector each
    assert maxima.compulsory_read_bytes == 3 * elements * 2
    assert quantise.compulsory_write_bytes == 3 * elements + 3 * 32
    assert narrow.tensor_flops == wide.tensor_flops == problem.flops


@pytest.mark.parametrize("config", FP8_SIMULATED.configs, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_static_gate(config: Config, head_dim: int) -> None:
    problem = Problem(1, 8, 512, head_dim, causal=head_dim == 64)
    reason = FP8_SIMULATED.reject_reason(problem, config)
    if reason is None:
        assert_gate(FP8_SIMULATED, problem, config)
    else:
        assert head_dim == 128, reason
        assert "bytes of shared memory" in reason


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
def test_no_architecture_spills(arch: str) -> None:
    assert_gate(FP8_SIMULATED, MISSION.with_(dtype="bfloat16", head_dim=128), arch=arch)


def test_illegal_knobs_are_refused_here_and_in_the_source() -> None:
    problem, config = Problem(1, 1, 64, 64), DEFAULT.but(BLOCK_M=24)
    with pytest.raises(UnsupportedProblem, match="BLOCK_M must be 16 rows for each of 1 to 32 warps, not 24"):
        FP8_SIMULATED.launch_plan(problem, config)
    with pytest.raises(BuildError, match="BLOCK_M is 16 rows for each of 32 warps at most"):
        build(FP8_SIMULATED.module(problem, config))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 96), "supports head_dim 32, 64 or 128, not 96"),
        (Problem(1, 1, 8, 64, scale=3e38), "scale=3e+38 does not fit"),
        (Problem(1, 30000, 8, 64), "heads + 2 * kv_heads in one grid, of at most 65535, not 90000"),
    ],
    ids=["head_dim", "scale", "lines"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(FP8_SIMULATED.reject_reason(problem))
