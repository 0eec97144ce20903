"""The fp8 kernel: its numbers with every knob and both types of P, on e4m3 tensor cores, and what they rest on.

What it computes whatever its knobs, what it refuses of problems, and its static limits are in ``test_ladder*.py``.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from checking import (
    assert_computes,
    assert_gate,
    assert_log_sum_exp,
    assert_same_bits_in_every_order,
    assert_shared_memory,
    assert_values_have_their_own_code,
    built,
    ptx_of,
    resources_of,
    run,
)
from refusals import Refusal, assert_refused

from sdpalab.compile.sass import disassemble, parse
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.limits import measure
from sdpalab.judge.verdict import Status
from sdpalab.kernels.fp8 import FP8, SCALE_ROWS, smem_bytes
from sdpalab.kernels.fp8_simulated import FP8_SIMULATED
from sdpalab.kernels.kernel import Config
from sdpalab.model.counted import count
from sdpalab.model.turn import short_turn
from sdpalab.problem import MISSION, Problem

DEFAULT = FP8.default_config
FP16 = DEFAULT.but(P_DTYPE="fp16")
TILES = 2
"""For which there is code: the first one, and any other."""
P_DTYPES = pytest.mark.parametrize("config", [DEFAULT, FP16], ids=lambda config: config["P_DTYPE"])
RAGGED = Problem(1, 2, 150, 64, kv_heads=1, seq_kv=205, causal=True)

WITH_FLOAT16 = [
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(1, 1, 31, 128, seq_kv=65, causal=True),
    Problem(1, 2, 70, 32, seq_kv=300),
    Problem(1, 1, 70, 128, dtype="bfloat16"),
    Problem(1, 1, 90, 32, scale=-0.3, causal=True),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("problem", WITH_FLOAT16, ids=lambda problem: problem.label)
def test_computes_attention_with_weights_in_float16(problem: Problem) -> None:
    assert_computes(FP8, problem, FP16)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "kind",
    ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "outlier", "negative", "equal", "huge", "tiny"],
)
def test_probes_with_weights_in_float16(kind: str) -> None:
    assert_computes(FP8, Problem(1, 1, 140, 32, causal=True), FP16, kind=kind)


@pytest.mark.sample
@pytest.mark.parametrize("kind", ["outlier", "negative", "tiny"])
@pytest.mark.parametrize("causal", [False, True])
def test_probes_of_its_scales(kind: str, causal: bool) -> None:
    assert_computes(FP8, Problem(1, 1, 140, 32, causal=causal), kind=kind)


def _relative_l2(problem: Problem, kind: str, seed: int, config: Config) -> float:
    inputs = make_inputs(problem, kind, seed)
    out = run(FP8, problem, config, inputs=inputs, checks=()).outputs["o"]
    errors = measure(out, attention_float64(**inputs.arrays, scale=problem.scale, causal=False), problem.dtype)
    assert errors.not_finite == 0
    return errors.rel_l2


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["normal", "outlier", "large_logits"])
def test_the_length_that_gave_nan(kind: str, seed: int) -> None:
    error, with_fp16 = (_relative_l2(MISSION.with_(heads=1), kind, seed, config) for config in (DEFAULT, FP16))
    assert with_fp16 < error < {"normal": 0.07, "outlier": 0.11, "large_logits": 0.15}[kind]


@pytest.mark.sample(2)
@pytest.mark.parametrize("seq_kv", [64, 1024, 8192])
@pytest.mark.parametrize("kind", ["normal", "outlier", "large_logits"])
def test_weights_in_float16_at_every_length(kind: str, seq_kv: int) -> None:
    assert_computes(FP8, Problem(1, 1, 32, 64, seq_kv=seq_kv), FP16.but(BLOCK_M=32), kind=kind)


def _without_an_error_of_quantisation() -> tuple[Problem, Inputs]:
    """Q, K and V are e4m3 as they are, in every block of 64 rows: only P is rounded to fewer bits than 16."""
    problem = Problem(1, 1, 64, 64, seq_kv=320, scale=4.0 / 448**2)
    inputs = make_inputs(problem, "normal", 3)
    scores = np.random.default_rng(1).integers(-14, 15, problem.seq_kv)
    scores[::SCALE_ROWS] = 14  # 448 / 32
    inputs.q[...], inputs.k[...], inputs.v[...] = 0.0, 0.0, np.sign(inputs.v)
    inputs.q[..., 0], inputs.k[..., 0] = 448.0, 32 * scores
    return problem, inputs


def test_weights_in_float16_leave_no_error_but_that_of_quantisation() -> None:
    problem, inputs = _without_an_error_of_quantisation()
    for config, other in ((DEFAULT, FP16), (FP16, DEFAULT)):
        out = run(FP8, problem, config, inputs=inputs).outputs["o"]
        own, others = (judge_output(problem, inputs, out, FP8.numerics_of(each)) for each in (config, other))
        assert own.status is Status.PASSED
        if config is DEFAULT:
            assert others.status is Status.INCORRECT
            assert own.errors.rel_l2 > 0.01
        else:
            assert own.errors.rel_l2 < 5e-4


def _with_a_large_row(problem: Problem) -> Inputs:
    """One row of V is 3,000 times the others, and its key is one with almost no weight."""
    inputs = make_inputs(problem, "normal")
    inputs.q[..., 0], inputs.k[..., 0], inputs.k[:, :, 70, 0] = 8.0, 0.0, -60.0
    inputs.v[...] /= np.float16(8)
    inputs.v[:, :, 70] = 3e4
    return inputs


def test_one_large_row_costs_its_own_block_and_not_the_head() -> None:
    problem = Problem(1, 1, 100, 64, seq_kv=400)
    inputs = _with_a_large_row(problem)
    reference = attention_float64(**inputs.arrays, scale=problem.scale, causal=False)
    blocks, head = (
        measure(run(kernel, problem, inputs=inputs).outputs["o"], reference, "float16")
        for kernel in (FP8, FP8_SIMULATED)
    )
    assert blocks.rel_l2 < 0.75 * head.rel_l2


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("problem", "config"),
    [(RAGGED, DEFAULT), (Problem(1, 1, 70, 32, scale=-2.0, dtype="bfloat16"), DEFAULT), (RAGGED, FP16)],
    ids=str,
)
def test_log_sum_exp(problem: Problem, config: Config) -> None:
    assert_log_sum_exp(FP8, problem, config)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("block_m", "stages", "p_dtype"),
    [
        (32, 2, "e4m3"),
        (32, 4, "e4m3"),
        (64, 3, "e4m3"),
        (128, 2, "e4m3"),
        (128, 4, "e4m3"),
        (32, 4, "fp16"),
        (128, 3, "fp16"),
    ],
)
def test_every_knob_is_correct(block_m: int, stages: int, p_dtype: str) -> None:
    assert_computes(FP8, RAGGED, DEFAULT.but(BLOCK_M=block_m, NUM_STAGES=stages, P_DTYPE=p_dtype))


@pytest.mark.sample(2)
@pytest.mark.parametrize("knob", FP8.knobs)
def test_every_knob_changes_the_code(knob: str) -> None:
    assert_values_have_their_own_code(FP8, knob, FP8.knobs[knob])


@pytest.mark.sample(1)
@P_DTYPES
def test_no_result_rests_on_the_order_of_warps(config: Config) -> None:
    assert_same_bits_in_every_order(FP8, RAGGED, config, async_modes=("late",))


@pytest.mark.sample
@P_DTYPES
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_the_algorithm_is_in_the_ptx(head_dim: int, config: Config) -> None:
    ptx = ptx_of(FP8, Problem(1, 1, 64, head_dim, dtype="bfloat16"), config)  # so that nothing but P is packed as FP16
    products = TILES * 2 * (SCALE_ROWS // 8) * (head_dim // 32)  # each of 16 x 8 x 32; as many for S as for O
    halves = products // 2 if config == FP16 else 0  # those of O, each of them two of 16 x 8 x 16
    assert ptx.count("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32") == products - halves
    assert ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 2 * halves
    assert ptx.count("mma.sync") == products + halves
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == products // 2 + head_dim // 32  # K and V^T, and Q
    assert ".trans" not in ptx
    weights = TILES + 1  # once more where the references move
    assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") == (0 if config == FP16 else weights * SCALE_ROWS // 4)
    assert ptx.count("cvt.rn.f16x2.f32") == (weights * SCALE_ROWS // 4 if config == FP16 else 0)
    assert ptx.count("cvt.rn.f16x2.e4m3x2") == 4 * halves  # V
    assert ptx.count("ex2.approx.ftz.f32") == weights * SCALE_ROWS // 2 + TILES * 2  # a rescale of either row
    assert ptx.count("ld.global.nc.v2.f32") == 1 + TILES  # scales of a tile, a tile ahead
    assert ptx.count("st.global.v4") == head_dim // 16
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|shfl\.sync\.idx", ptx)


def test_a_turn_has_no_maximum_of_the_scores_and_one_qmma_in_eight_instructions() -> None:
    compiled = built(FP8, MISSION)
    turn = Counter(each.base for each in short_turn(parse(disassemble(compiled))[compiled.entry]))
    assert turn["FMNMX"] == 2  # both bounds of the slope
    assert turn["SHFL"] == 0
    assert turn["QMMA"] >= 0.12 * turn.total()


@pytest.mark.sample(1, first=True)
@pytest.mark.parametrize(("arch", "opcode"), [("sm_89", "QMMA.16832.F32.E4M3.E4M3"), ("sm_120", "QMMA.16832")])
def test_sm_89_multiplies_e4m3_itself(arch: str, opcode: str) -> None:
    sass = disassemble(built(FP8, MISSION, arch=arch))
    assert sass.count(opcode) == TILES * 2 * (SCALE_ROWS // 8) * 2
    assert "HMMA" not in sass


def test_weights_in_float16_meet_v_that_is_widened_without_a_shift() -> None:
    sass, of_e4m3 = (disassemble(built(FP8, MISSION, config)) for config in (FP16, DEFAULT))
    half = TILES * (SCALE_ROWS // 8) * 2
    assert (sass.count("QMMA.16832"), sass.count("HMMA.16816.F32")) == (half, 2 * half)
    widened = re.findall(r"F2FP\.F16\.E4M3\.UNPACK_B R\d+, R\d+(?:\.reuse)?(\.H1)?", sass)
    assert len(widened) == 2 * widened.count(".H1") == 4 * half
    for shift in ("SHF.", "PRMT"):
        assert sass.count(shift) <= of_e4m3.count(shift)


def test_counters_of_the_mission_shape() -> None:
    quantise, attention = (launch.counters for launch in count(FP8, MISSION, "sm_89").launches)
    assert attention.tensor_flops == MISSION.flops
    assert attention.total("wavefronts") == attention.total("ideal_wavefronts")
    assert attention.divergence == 0
    elements = 8 * 512 * 64
    assert attention.compulsory_read_bytes == 3 * elements + 3 * 8 * 8 * 4
    assert attention.compulsory_write_bytes == 2 * elements
    assert quantise.compulsory_read_bytes == 3 * 2 * elements


@pytest.mark.sample(1)
@pytest.mark.parametrize(("head_dim", "arch"), [(64, "sm_90"), (128, "sm_100")])
def test_no_architecture_spills_with_weights_in_float16(head_dim: int, arch: str) -> None:
    assert_gate(FP8, Problem(1, 8, 512, head_dim, causal=True), FP16, arch=arch)


@pytest.mark.sample(1, first=True)
@P_DTYPES
@pytest.mark.parametrize("problem", [MISSION, MISSION.with_(causal=True), MISSION.with_(dtype="bfloat16")], ids=str)
def test_mission_bars_on_sm_89(problem: Problem, config: Config) -> None:
    used = resources_of(FP8, problem, config)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= (136 if config == FP16 else 128)
    assert used.shared_bytes == 16 * 1024
    assert used.blocks_per_sm >= (3 if config == FP16 else 4)


REFUSALS = [
    Refusal({"BLOCK_M": 16}, "BLOCK_M must be one of 32, 64, 128, not 16", "BLOCK_M is 32, 64 or 128"),
    Refusal({"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
    Refusal({"P_DTYPE": "fp8"}, "P_DTYPE must be one of e4m3, fp16, not fp8", 'has no member "fp8"'),
    Refusal(
        {"NUM_STAGES": 4},
        "65536 bytes of shared memory, and the kernel's limit is 49152",
        "two blocks of 48 KiB",
        Problem(1, 1, 64, 128),
    ),
    Refusal(
        {"BLOCK_M": 128},
        "copies 128 rows of head_dim 32 at a time",
        "a whole number of passes",
        Problem(1, 1, 64, 32),
    ),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(FP8, refusal)


def test_it_is_not_built_for_an_architecture_without_e4m3() -> None:
    assert FP8.why_not_on("sm_86") == "kernel fp8 needs sm_89 or later, not sm_86"


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32, seq_kv=128)
    assert_shared_memory(FP8, problem, DEFAULT, smem_bytes(problem, DEFAULT))
