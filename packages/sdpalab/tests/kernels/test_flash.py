"""The flash kernel with every knob: right, built as it says, with masks and exponentials only where they are due.

Its schedules are in ``test_stream_k.py``. Its outputs whatever its knobs, the problems that it refuses, and its
static limits are in ``test_ladder*.py``.
"""

from __future__ import annotations

import re

import pytest
from checking import (
    assert_computes,
    assert_gate,
    assert_shared_memory,
    assert_values_have_their_own_code,
    built,
    edged,
    ptx_of,
    resources_of,
)
from refusals import Refusal, assert_refused

from sdpalab.compile.sass import disassemble, parse
from sdpalab.kernels.flash import FLASH, smem_bytes
from sdpalab.model.tensor import is_tensor
from sdpalab.model.turn import short_turn
from sdpalab.problem import MISSION, Problem

DEFAULT = FLASH.default_config
TILES = DEFAULT.but(SCHEDULE="tiles")
RAGGED = Problem(1, 2, 150, 32, kv_heads=1, seq_kv=205, causal=True)


@pytest.mark.sample
@pytest.mark.parametrize("block_m", [32, 64])
@pytest.mark.parametrize("block_n", [32, 64])
@pytest.mark.parametrize("stages", [2, 4])
def test_every_knob_is_correct(block_m: int, block_n: int, stages: int) -> None:
    assert_computes(FLASH, RAGGED, DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n, NUM_STAGES=stages))


@pytest.mark.sample(3)
@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192, 256])
def test_every_head_dim_with_16_and_32_rows_a_warp(head_dim: int, rows: int) -> None:
    problem = Problem(1, 2, 150, head_dim, kv_heads=1, seq_kv=205, causal=True, scale=-0.1)
    config = TILES.but(ROWS_PER_WARP=rows)
    if head_dim > 128 and rows == 32:
        assert "has registers for BLOCK_N=" in str(FLASH.why_not(problem, config))
    else:
        assert_computes(FLASH, problem, config)
        assert_gate(FLASH, edged(head_dim), config)


@pytest.mark.parametrize(("rows", "loads"), [(16, 32 + 4), (32, 32 + 8)])
def test_32_rows_a_warp_load_half_as_often_for_each_product(rows: int, loads: int) -> None:
    ptx = ptx_of(FLASH, Problem(1, 1, 128, 64), TILES.but(BLOCK_M=128, ROWS_PER_WARP=rows))
    assert ptx.count("mma.sync") == 64 * rows // 16
    assert ptx.count("ldmatrix") == loads


def test_the_default_leaves_room_for_other_blocks() -> None:
    for head_dim, registers, blocks in ((32, 128, 4), (64, 160, 3), (128, 184, 2)):
        resources = resources_of(FLASH, edged(head_dim), TILES)
        assert resources.registers <= registers
        assert resources.blocks_per_sm >= blocks


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("knob", "values"),
    [
        ("BLOCK_M", (32, 64)),
        ("BLOCK_N", (32, 64)),
        ("ROWS_PER_WARP", (16, 32)),
        ("NUM_STAGES", (2, 3)),
        ("EXP_ON_FMA", (0, 1, 2)),
        ("SCHEDULE", ("tiles", "stream_k")),
    ],
)
def test_every_knob_changes_the_code(knob: str, values: tuple[int | str, ...]) -> None:
    assert_values_have_their_own_code(FLASH, knob, values)


@pytest.mark.sample(1)
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


@pytest.mark.sample
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
    copy = r"cp\.async\.cg\.shared\.global \[%\w+\+\d+\], \[%\w+\+-?\d+\], 16, %\w+;"
    assert len(re.findall(copy, ptx)) == ptx.count("cp.async.cg")
    assert ptx.count("cp.async.wait_group") == 2
    assert ptx.count("bar.sync") == 3  # Q has arrived; each tile; before the output overwrites the keys
    # One exponential and one multiply-add a score, in a single piece of code. Two rescales.
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


@pytest.mark.sample(2)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("problem", [MISSION, edged(64), edged(128)], ids=lambda problem: problem.label)
def test_shared_tiles_keep_the_bars(arch: str, problem: Problem) -> None:
    assert_gate(FLASH, problem, DEFAULT.but(SCHEDULE="stream_k"), arch)


@pytest.mark.sample
@pytest.mark.parametrize("problem", [MISSION, MISSION.with_(dtype="bfloat16")], ids=str)
@pytest.mark.parametrize("schedule", ["tiles", "stream_k"])
def test_mission_bars_on_sm_89(problem: Problem, schedule: str) -> None:
    used = resources_of(FLASH, problem, DEFAULT.but(SCHEDULE=schedule))
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= 128
    assert used.shared_bytes == 32 * 1024
    assert used.blocks_per_sm >= 3  # of four warps
    compiled = built(FLASH, problem, DEFAULT.but(SCHEDULE=schedule))
    turn = short_turn(parse(disassemble(compiled))[compiled.entry])
    assert sum(map(is_tensor, turn)) / len(turn) >= 0.2


REFUSALS = [
    Refusal({"BLOCK_M": 16}, "BLOCK_M must be one of 32, 64, 128, not 16", "BLOCK_M is 32, 64 or 128"),
    Refusal({"BLOCK_N": 48}, "BLOCK_N must be one of 0, 32, 64, 128, not 48", "BLOCK_N is 0, 32, 64 or 128"),
    Refusal({"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
    Refusal(
        {"NUM_STAGES": 4, "BLOCK_N": 128}, "131072 bytes of shared memory, and the kernel's limit is 101376", "99 KiB"
    ),
    Refusal({"ROWS_PER_WARP": 64}, "ROWS_PER_WARP must be one of 16, 32, not 64", "one or two blocks of 16 rows"),
    Refusal({"SCHEDULE": "persistent"}, "SCHEDULE must be one of auto, tiles, split_kv, stream_k, not persistent"),
    Refusal({"EXP_ON_FMA": 3}, "EXP_ON_FMA must be one of 0, 1, 2, not 3", "EXP_ON_FMA is 0, 1 or 2"),
    Refusal({"NUM_CTAS": -1}, "NUM_CTAS must be 0 to 65536, not -1"),
    Refusal({"SCHEDULE": "tiles", "NUM_CTAS": 58}, "NUM_CTAS=58 means nothing"),
    Refusal(
        {},
        "supports head_dim 32, 64, 96, 128, 192 or 256, not 48",
        "HEAD_DIM is 32, 64, 96, 128, 192 or 256",
        Problem(1, 1, 64, 48),
    ),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(FLASH, refusal)


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32, seq_kv=128)
    assert_shared_memory(FLASH, problem, DEFAULT, smem_bytes(problem, DEFAULT))
