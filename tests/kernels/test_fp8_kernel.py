"""The fp8 kernel: its declared numerics on every shape and knob, on e4m3 tensor cores, within its static bars."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checking import assert_computes, assert_gate, judged, ptx_of, resources_of, run

from sdpalab.build import BuildError, build
from sdpalab.build.sass import disassemble
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge.log_sum_exp import log_sum_exp_float64, measure_lse
from sdpalab.judge.reference import attention_float64
from sdpalab.judge.rule import measure
from sdpalab.judge.verdict import Status
from sdpalab.kernels.fp8 import FP8, SCALE_ROWS, smem_bytes
from sdpalab.kernels.fp8_simulated import FP8_SIMULATED
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.plan import INCLUDE_DIR
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from sdpalab.sim import Report

DEFAULT = FP8.default_config
RAGGED = Problem(1, 2, 150, 64, kv_heads=1, seq_kv=205, causal=True)

SHAPES = [
    Problem(1, 1, 1, 32),
    Problem(1, 1, 1, 64, seq_kv=70),
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(2, 2, 64, 64, causal=True),
    Problem(1, 1, 129, 64),
    Problem(1, 1, 65, 128, seq_kv=31),
    Problem(1, 1, 31, 128, seq_kv=65, causal=True),
    Problem(1, 2, 70, 32, seq_kv=300),
    Problem(1, 2, 200, 32, seq_kv=70, causal=True),
    Problem(2, 4, 40, 32, kv_heads=2, seq_kv=17, causal=True),
    Problem(1, 3, 32, 32, kv_heads=1, seq_kv=97),
    Problem(1, 1, 100, 64, dtype="bfloat16", causal=True),
    Problem(1, 1, 70, 128, dtype="bfloat16"),
    Problem(1, 1, 90, 32, scale=-0.3, causal=True),
    Problem(1, 1, 90, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(FP8, problem)


@pytest.mark.parametrize(
    "kind",
    ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "outlier", "negative", "equal", "huge", "tiny"],
)
@pytest.mark.parametrize("causal", [False, True])
def test_probes(kind: str, causal: bool) -> None:
    assert_computes(FP8, Problem(1, 1, 140, 32, causal=causal), kind=kind)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["normal", "outlier", "large_logits"])
def test_the_length_that_gave_nan(kind: str, seed: int) -> None:
    problem = MISSION.with_(heads=1)
    inputs = make_inputs(problem, kind, seed)
    out = SimulatedExecutor(checks=()).run(FP8.launch_plan(problem), vars(inputs)).outputs["o"]
    reference = attention_float64(**vars(inputs), scale=problem.scale, causal=False)
    errors = measure(out, reference, problem.dtype)
    assert errors.not_finite == 0
    assert errors.rel_l2 < {"normal": 0.07, "outlier": 0.11, "large_logits": 0.15}[kind]


def _with_a_large_row(problem: Problem) -> Inputs:
    """One row of V is 3,000 times the others, and its key is the one that nobody wants."""
    inputs = make_inputs(problem, "normal")
    inputs.q[..., 0], inputs.k[..., 0], inputs.k[:, :, 70, 0] = 8.0, 0.0, -60.0
    inputs.v[...] /= np.float16(8)
    inputs.v[:, :, 70] = 3e4
    return inputs


def test_one_large_row_costs_its_own_block_and_not_the_head() -> None:
    problem = Problem(1, 1, 100, 64, seq_kv=400)
    inputs = _with_a_large_row(problem)
    reference = attention_float64(**vars(inputs), scale=problem.scale, causal=False)
    blocks, head = (
        measure(SimulatedExecutor().run(kernel.launch_plan(problem), vars(inputs)).outputs["o"], reference, "float16")
        for kernel in (FP8, FP8_SIMULATED)
    )
    assert blocks.rel_l2 < 0.75 * head.rel_l2


@pytest.mark.parametrize("scale", [0.125, -0.125, 3.0e37, 1e-44])
def test_no_scale_is_too_large_or_too_small(scale: float) -> None:
    # All keys but one of a row's score 1e11 less than it, times the scale; masked keys are minus infinity.
    problem = Problem(1, 1, 64, 64, seq_kv=130, scale=scale, causal=True)
    draw = np.random.default_rng(7)
    chosen = draw.integers(0, np.arange(problem.seq_q) + 1)
    sign = draw.choice([-1.0, 1.0], (problem.seq_kv, problem.head_dim))
    k = (sign * 50000).astype(np.float16)[None, None]
    q = (np.sign(scale) * sign[chosen] * 60000).astype(np.float16)[None, None]
    v = draw.choice([-448.0, -2.0, 1.0, 3.5, 448.0], problem.kv_shape).astype(np.float16)
    v[..., 0] = 448.0  # in each block: V is e4m3 as it is
    result = SimulatedExecutor().run(FP8.launch_plan(problem), {"q": q, "k": k, "v": v})
    assert not result.hazards
    rows = v[0, 0].astype(np.float64)
    means = np.cumsum(rows, axis=0)[:64] / np.arange(1, 65)[:, None]  # all visible keys weigh the same
    expected = means if abs(scale) < 1e-40 else rows[chosen]
    np.testing.assert_allclose(result.outputs["o"][0, 0], expected, rtol=2e-3, atol=1e-3)


def test_nothing_past_the_end_of_a_head_is_used() -> None:
    # Tiles reach past the end of the first head's K and V into the second's, which is NaN.
    problem = Problem(1, 2, 37, 64, seq_kv=41)
    inputs = vars(make_inputs(problem, "normal"))
    clean = SimulatedExecutor().run(FP8.launch_plan(problem), inputs).outputs["o"]
    for array in inputs.values():
        array[:, 1] = np.nan
    spoilt = SimulatedExecutor().run(FP8.launch_plan(problem), inputs).outputs["o"]
    assert np.array_equal(spoilt[:, 0], clean[:, 0])
    assert np.isnan(spoilt[:, 1]).all()


@pytest.mark.parametrize("problem", [RAGGED, Problem(1, 1, 70, 32, scale=-2.0, dtype="bfloat16")], ids=str)
def test_log_sum_exp(problem: Problem) -> None:
    inputs = make_inputs(problem, "normal")
    without = SimulatedExecutor().run(FP8.launch_plan(problem), vars(inputs))
    result = SimulatedExecutor().run(FP8.launch_plan(problem, lse=True), vars(inputs))
    limits = log_sum_exp_float64(**vars(inputs), scale=problem.scale, causal=problem.causal, numerics=FP8.numerics)
    errors = measure_lse(result.outputs["lse"], *limits)
    assert errors.not_finite == 0
    assert errors.error < min(errors.limit, 1e-5)  # the simulator adds in float32
    assert np.array_equal(result.outputs["o"], without.outputs["o"])
    assert result.ptx_sha256 == without.ptx_sha256
    assert not result.hazards


@pytest.mark.parametrize(("block_m", "stages"), [(32, 2), (32, 4), (64, 3), (128, 2), (128, 4)])
def test_every_knob_is_correct(block_m: int, stages: int) -> None:
    assert_computes(FP8, RAGGED, DEFAULT.but(BLOCK_M=block_m, NUM_STAGES=stages))


def test_every_knob_changes_the_code() -> None:
    for name, values in FP8.knobs.items():
        programs = {ptx_of(FP8, Problem(1, 1, 64, 64), DEFAULT.but(**{name: value})) for value in values}
        assert len(programs) == len(values)


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_no_result_rests_on_the_order_of_warps(schedule: str) -> None:
    lockstep, other = run(FP8, RAGGED), run(FP8, RAGGED, schedule=schedule)
    assert not other.hazards
    assert other.outputs["o"].tobytes() == lockstep.outputs["o"].tobytes()


def _edited(header: str, old: str, new: str, folder: Path) -> None:
    text = (INCLUDE_DIR / header).read_text()
    assert text.count(old) == 1
    (folder / header).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("kind", "header", "old", "new"),
    [
        (
            "normal",
            "quantise.cuh",
            "const QuantisePatch<RowOrder::mma> patch",
            "const QuantisePatch<RowOrder::natural> patch",
        ),
        (
            "normal",
            "quantise.cuh",
            "if (row(i) < rows_left) {\n                chunk",
            "if (true) {\n                chunk",
        ),
        (
            "reverse_ramp",
            "fp8.cuh",
            "offset = fmaf(tile_max - row.max, scale_log2, WEIGHT_EXPONENT)",
            "offset = WEIGHT_EXPONENT",
        ),
        ("ramp", "fp8.cuh", "const float tile_max = raw_max * tile.unit;", "const float tile_max = raw_max;"),
    ],
    ids=["keys in their own order", "rows past the end", "no maximum but the tile's", "raw maxima"],
)
def test_what_the_numbers_rest_on(kind: str, header: str, old: str, new: str, tmp_path: Path) -> None:
    assert isinstance(FP8.source, Path)
    problem = Problem(1, 2, 70, 32, seq_kv=150)
    inputs = make_inputs(problem, kind)
    for array in (inputs.k, inputs.v):
        array[:, 1] = np.nan
    (tmp_path / "fp8.cu").write_text(FP8.source.read_text())
    for path in INCLUDE_DIR.glob("*.cuh"):
        (tmp_path / path.name).write_text(path.read_text())
    _edited(header, old, new, tmp_path)
    planted = replace(FP8, source=tmp_path / "fp8.cu")
    result = SimulatedExecutor().run(planted.launch_plan(problem), vars(inputs))
    right = SimulatedExecutor().run(FP8.launch_plan(problem), vars(inputs))
    assert not right.hazards
    reference = attention_float64(**vars(inputs), scale=problem.scale, causal=False)
    good, bad = (measure(found.outputs["o"][:, :1], reference[:, :1], "float16") for found in (right, result))
    assert bad.not_finite or bad.rel_l2 > 1.5 * good.rel_l2


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_the_algorithm_is_in_the_ptx(head_dim: int) -> None:
    ptx = ptx_of(FP8, Problem(1, 1, 64, head_dim))
    products = 2 * (SCALE_ROWS // 8) * (head_dim // 32)  # each of 16 x 8 x 32; as many for S as for O
    assert ptx.count("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32") == ptx.count("mma.sync") == products
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == products // 2 + head_dim // 32  # K and V^T, and Q
    assert ".trans" not in ptx
    assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") == SCALE_ROWS // 4  # P
    assert ptx.count("ex2.approx.ftz.f32") == SCALE_ROWS // 2 + 2
    assert ptx.count("ld.global.nc.v2.f32") == 2  # scales of a tile, a tile ahead
    assert ptx.count("st.global.v4") == head_dim // 16
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|shfl\.sync\.idx", ptx)


@pytest.mark.parametrize(("arch", "opcode"), [("sm_89", "QMMA.16832.F32.E4M3.E4M3"), ("sm_120", "QMMA.16832")])
def test_sm_89_multiplies_e4m3_itself(arch: str, opcode: str) -> None:
    (_, step) = FP8.launch_plan(MISSION).launches
    assert step.module is not None
    sass = disassemble(build(step.module, arch))
    assert sass.count(opcode) == 2 * (SCALE_ROWS // 8) * 2
    assert "HMMA" not in sass


def test_counters_of_the_mission_shape() -> None:
    reports: list[Report] = []
    executor = SimulatedExecutor(counters=True, checks=(), on_launch=lambda built, report: reports.append(report))
    executor.run(FP8.launch_plan(MISSION), vars(make_inputs(MISSION, "normal")))
    quantise, attention = (report.counters for report in reports)
    assert quantise is not None
    assert attention is not None
    assert attention.tensor_flops == MISSION.flops
    assert attention.total("wavefronts") == attention.total("ideal_wavefronts")
    assert attention.divergence == 0
    elements = 8 * 512 * 64
    assert attention.compulsory_read_bytes == 3 * elements + 3 * 8 * 8 * 4
    assert attention.compulsory_write_bytes == 2 * elements
    assert quantise.compulsory_read_bytes == 3 * 2 * elements


@pytest.mark.parametrize("config", FP8.configs, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_static_gate(config: Config, head_dim: int) -> None:
    assert_gate(FP8, Problem(1, 8, 512, head_dim, causal=True), config)


def test_static_gate_of_the_smallest_head_dim() -> None:
    assert_gate(FP8, Problem(1, 8, 512, 32))


@pytest.mark.parametrize(("head_dim", "arch"), [(64, "sm_90"), (64, "sm_100"), (128, "sm_100"), (128, "sm_120")])
def test_no_architecture_spills(head_dim: int, arch: str) -> None:
    assert_gate(FP8, Problem(1, 8, 512, head_dim, causal=True), arch=arch)


@pytest.mark.parametrize("problem", [MISSION, MISSION.with_(causal=True), MISSION.with_(dtype="bfloat16")], ids=str)
def test_mission_bars_on_sm_89(problem: Problem) -> None:
    used = resources_of(FP8, problem)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= 120
    assert used.shared_bytes == 16 * 1024
    assert used.blocks_per_sm >= 4


@pytest.mark.parametrize(
    ("head_dim", "changes", "reason", "message"),
    [
        (64, {"BLOCK_M": 16}, "BLOCK_M must be one of 32, 64, 128, not 16", "BLOCK_M is 32, 64 or 128"),
        (64, {"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
        (
            128,
            {"NUM_STAGES": 4},
            "65536 bytes of shared memory, and the kernel's limit is 49152",
            "two blocks of 48 KiB",
        ),
        (32, {"BLOCK_M": 128}, "copies 128 rows of head_dim 32 at a time", "a whole number of passes"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused_here_and_in_the_source(
    head_dim: int, changes: dict[str, int], reason: str, message: str
) -> None:
    problem = Problem(1, 1, 64, head_dim)
    with pytest.raises(UnsupportedProblem) as refused:
        FP8.launch_plan(problem, DEFAULT.but(**changes))
    assert reason in str(refused.value)
    with pytest.raises(BuildError) as failed:
        build(FP8.module(problem, DEFAULT.but(**changes)))
    assert message in f"{failed.value} {failed.value.log}"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 96), "supports head_dim 32, 64 or 128, not 96"),
        (Problem(1, 1, 8, 64, scale=-3e38), "scale=-3e+38 does not fit"),
        (Problem(1, 70000, 8, 64), "at most 65535, not 70000"),
        (Problem(1, 30000, 8, 64), "heads + 2 * kv_heads in one grid, of at most 65535, not 90000"),
    ],
    ids=["head_dim", "scale", "heads", "lines"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(FP8.reject_reason(problem))


def test_it_is_not_built_for_an_architecture_without_e4m3() -> None:
    assert FP8.arch_reason("sm_86") == "kernel fp8 needs sm_89 or later, not sm_86"


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32, seq_kv=128)
    step = FP8.launch_plan(problem).launches[-1]
    assert step.dynamic_smem == smem_bytes(problem, DEFAULT)
    assert not run(FP8, problem).hazards
    assert any("out-of-bounds" in hazard for hazard in run(FP8, problem, less_smem=16).hazards)


def test_what_is_declared_is_what_the_judge_holds_it_to() -> None:
    # With a coarser scale than declared it would be judged incorrect where that matters.
    problem = Problem(1, 1, 100, 64, seq_kv=400)
    result = run(FP8, problem)
    assert judged(FP8, problem, result).status is Status.PASSED
    finer = replace(FP8, numerics=replace(FP8.numerics, quantised=None))
    assert judged(finer, problem, result).status is Status.INCORRECT
