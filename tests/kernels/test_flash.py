"""The flash kernel: right on every shape and knob, built as it says, within its static bars on every architecture.

Its schedules are in ``test_stream_k.py``.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from checking import assert_computes, assert_gate, ptx_of, resources_of, run

from sdpalab.build import BuildError, build
from sdpalab.kernels.flash import FLASH, smem_bytes
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor

DEFAULT = FLASH.default_config
TILES = DEFAULT.but(SCHEDULE="tiles")
RAGGED = Problem(1, 2, 150, 32, kv_heads=1, seq_kv=205, causal=True)

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
    Problem(1, 1, 40, 32, scale=-0.3),
    Problem(1, 1, 90, 32, scale=-0.3, causal=True),
    Problem(1, 1, 90, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(FLASH, problem)


@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "equal", "huge"])
@pytest.mark.parametrize("causal", [False, True])
def test_probes(kind: str, causal: bool) -> None:
    assert_computes(FLASH, Problem(1, 1, 140, 32, causal=causal), kind=kind)


@pytest.mark.parametrize("scale", [0.125, -0.125, 3.0e37])
def test_logits_near_the_fp16_maximum_select_one_key_exactly(scale: float) -> None:
    # One key a row has a score of 1e11 and more, so the row of O is its row of V bit for bit. A maximum that is scaled
    # before it is subtracted is off by thousands here.
    problem = Problem(1, 1, 64, 64, seq_kv=130, scale=scale)
    draw = np.random.default_rng(7)
    chosen = draw.integers(0, problem.seq_kv, problem.seq_q)
    sign = draw.choice([-1.0, 1.0], (problem.seq_kv, problem.head_dim))
    k = (sign * 50000).astype(np.float16)[None, None]
    q = (np.sign(scale) * sign[chosen] * 60000).astype(np.float16)[None, None]
    v = draw.standard_normal(problem.kv_shape).astype(np.float16)
    result = SimulatedExecutor().run(FLASH.launch_plan(problem), {"q": q, "k": k, "v": v})
    assert np.array_equal(result.outputs["o"][0, 0], v[0, 0, chosen])
    assert not result.hazards


def test_nothing_past_the_end_of_a_head_is_used() -> None:
    # Tiles reach past the end of the first head's K and V into the second's, which is NaN.
    problem = Problem(1, 2, 37, 64, seq_kv=41)
    draw = np.random.default_rng(3)
    inputs = {name: draw.standard_normal(problem.q_shape).astype(np.float16) for name in "q"}
    inputs |= {name: draw.standard_normal(problem.kv_shape).astype(np.float16) for name in "kv"}
    clean = SimulatedExecutor().run(FLASH.launch_plan(problem), inputs).outputs["o"]
    for array in inputs.values():
        array[:, 1] = np.nan
    spoilt = SimulatedExecutor().run(FLASH.launch_plan(problem), inputs).outputs["o"]
    assert np.array_equal(spoilt[:, 0], clean[:, 0])
    assert np.isnan(spoilt[:, 1]).all()


@pytest.mark.parametrize("block_m", [32, 64])
@pytest.mark.parametrize("block_n", [32, 64])
@pytest.mark.parametrize("stages", [2, 4])
def test_every_knob_is_correct(block_m: int, block_n: int, stages: int) -> None:
    assert_computes(FLASH, RAGGED, DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n, NUM_STAGES=stages))


@pytest.mark.parametrize(
    "knob",
    [
        ("BLOCK_M", (32, 64)),
        ("BLOCK_N", (32, 64)),
        ("NUM_STAGES", (2, 3)),
        ("EXP_ON_FMA", (0, 1, 2)),
        ("SCHEDULE", ("tiles", "stream_k")),
    ],
    ids=str,
)
def test_every_knob_changes_the_code(knob: tuple[str, tuple[int, ...]]) -> None:
    name, values = knob
    programs = {ptx_of(FLASH, Problem(1, 1, 64, 64), DEFAULT.but(**{name: value})) for value in values}
    assert len(programs) == len(values)


@pytest.mark.parametrize("quarters", [1, 2])
def test_a_part_of_the_exponentials_on_fma_units(quarters: int) -> None:
    problem, config = Problem(1, 1, 129, 64, seq_kv=100, causal=True), TILES.but(EXP_ON_FMA=quarters)
    for kind in ("normal", "ramp", "large_logits", "needle"):
        assert_computes(FLASH, problem, config, kind=kind)
    weights = 64 * 16 // 32  # of a lane, in a tile of keys
    counts = [len(re.findall(r"ex2\.approx", ptx_of(FLASH, problem, of))) for of in (TILES, config)]
    assert counts[0] - counts[1] == quarters * weights // 4


def test_only_a_ragged_or_causal_edge_has_a_mask() -> None:
    edges = [Problem(1, 1, 64, 64), Problem(1, 1, 64, 64, seq_kv=65), Problem(1, 1, 64, 64, causal=True)]
    masks = [len(re.findall(r"selp\.f32", ptx_of(FLASH, problem, TILES))) for problem in edges]
    assert masks[0] + 32 <= min(masks[1:])


def test_the_tile_of_keys_follows_head_dim() -> None:
    for head_dim, keys in ((32, 64), (64, 64), (128, 32)):
        problem = Problem(1, 1, 64, head_dim)
        assert ptx_of(FLASH, problem) == ptx_of(FLASH, problem, DEFAULT.but(BLOCK_N=keys))


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(head_dim: int, dtype: str) -> None:
    ptx = ptx_of(FLASH, Problem(1, 1, 64, head_dim, dtype=dtype), TILES)
    keys = 32 if head_dim == 128 else 64
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    products = 2 * (keys // 8) * (head_dim // 16)  # each of 16 x 8 x 16; as many for S as for O
    matrices = (keys // 16) * (head_dim // 16)
    assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32") == products
    assert ptx.count("mma.sync") == products
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == matrices + head_dim // 16  # K, and Q once
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == matrices  # V
    assert len(re.findall(r"cp\.async\.cg\.shared\.global \[%\w+\], \[%\w+\], 16, %\w+;", ptx)) == ptx.count(
        "cp.async.cg"
    )
    assert ptx.count("cp.async.wait_group") == 2
    assert ptx.count("bar.sync") == 3  # Q has arrived; each tile; before the output overwrites the keys
    # One exponential and no multiply-add a score: the maximum is subtracted before scaling. Two rescales.
    assert ptx.count("ex2.approx.ftz.f32") == keys // 2 + 2
    assert ptx.count(f"cvt.rn.{short}x2.f32") == keys // 4 + head_dim // 4  # P, and O
    assert ptx.count("st.global.v4") == head_dim // 16
    assert "st.global.u" not in ptx
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|ld\.global", ptx)


def test_masking_is_skipped_by_a_uniform_branch() -> None:
    # One selp for each score, all behind one branch, and none on the way to a tile without an edge.
    blocks = re.split(r"\n\$L\w+:|\n\t@?%?\w* ?bra", ptx_of(FLASH, MISSION.with_(causal=True), TILES))
    masks = [len(re.findall(r"selp\.f32", block)) for block in blocks]
    assert sorted(masks)[-2:] == [0, 32]


def edged(head_dim: int) -> Problem:
    """With a causal and a ragged edge, for which the code needs most registers."""
    return Problem(1, 8, 512, head_dim, seq_kv=500, causal=True)


@pytest.mark.parametrize("config", FLASH.configs, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_static_gate(config: Config, head_dim: int) -> None:
    assert_gate(FLASH, edged(head_dim), config)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("problem", [MISSION, edged(64), edged(128)], ids=lambda problem: problem.label)
def test_no_architecture_spills(arch: str, problem: Problem) -> None:
    used = resources_of(FLASH, problem, DEFAULT.but(SCHEDULE="stream_k"), arch)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= FLASH.static_limits(problem).registers


@pytest.mark.parametrize("problem", [MISSION, MISSION.with_(dtype="bfloat16")], ids=str)
@pytest.mark.parametrize("schedule", ["tiles", "stream_k"])
def test_mission_bars_on_sm_89(problem: Problem, schedule: str) -> None:
    used = resources_of(FLASH, problem, DEFAULT.but(SCHEDULE=schedule))
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= 128
    assert used.shared_bytes == 32 * 1024
    assert used.blocks_per_sm >= 3  # of four warps
    assert used.tensor_share is not None
    assert used.tensor_share >= 0.16


@pytest.mark.parametrize(
    ("head_dim", "changes", "reason"),
    [
        (64, {"BLOCK_M": 16}, "BLOCK_M must be one of 32, 64, not 16"),
        (64, {"BLOCK_N": 48}, "BLOCK_N must be one of 0, 32, 64, not 48"),
        (64, {"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1"),
        (64, {"NUM_STAGES": 4}, "65536 bytes of shared memory, and the kernel's limit is 49152"),
        (64, {"SCHEDULE": "persistent"}, "SCHEDULE must be one of auto, tiles, split_kv, stream_k, not persistent"),
        (64, {"NUM_CTAS": -1}, "NUM_CTAS must be 0 to 65536, not -1"),
        (64, {"SCHEDULE": "tiles", "NUM_CTAS": 58}, "NUM_CTAS=58 means nothing"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused(head_dim: int, changes: dict[str, int | str], reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        FLASH.launch_plan(Problem(1, 1, 64, head_dim), DEFAULT.but(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("head_dim", "changes", "message"),
    [
        (64, {"BLOCK_M": 16}, "BLOCK_M is 32 or 64"),
        (64, {"BLOCK_N": 48}, "BLOCK_N is 0, 32 or 64"),
        (64, {"NUM_STAGES": 1}, "NUM_STAGES is 2, 3 or 4"),
        (64, {"NUM_STAGES": 4}, "two blocks of 48 KiB"),
        (96, {}, "HEAD_DIM is 32, 64 or 128"),
    ],
    ids=str,
)
def test_the_source_refuses_them_too(head_dim: int, changes: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError) as refused:
        build(FLASH.module(Problem(1, 1, 64, head_dim), DEFAULT.but(**changes)))
    assert message in f"{refused.value} {refused.value.log}"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 96), "supports head_dim 32, 64 or 128, not 96"),
        (Problem(1, 1, 8, 64, scale=-3e38), "scale=-3e+38 does not fit"),
        (Problem(1, 70000, 8, 64), "at most 65535, not 70000"),
    ],
    ids=["head_dim", "scale", "heads"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(FLASH.reject_reason(problem))


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32, seq_kv=128)
    (step,) = FLASH.launch_plan(problem).steps
    assert step.dynamic_smem == smem_bytes(problem, DEFAULT)
    assert not run(FLASH, problem).hazards
    assert any("out-of-bounds" in hazard for hazard in run(FLASH, problem, less_smem=16).hazards)


def test_an_output_that_ends_within_a_tile_is_written_to_its_end_and_no_further() -> None:
    # The last head's rows end where the buffer does: a store past row 40 would be out of bounds, one too few poison.
    problem = Problem(1, 1, 41, 64)
    plan = FLASH.launch_plan(problem)
    inputs = {name: np.ones(problem.q_shape, np.float16) for name in "qkv"}
    for poison in (0xFF, 0x00):
        result = SimulatedExecutor().run(plan, inputs, poison=poison)
        assert not result.hazards
        assert np.array_equal(result.outputs["o"], inputs["v"])
