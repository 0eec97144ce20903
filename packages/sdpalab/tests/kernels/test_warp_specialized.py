"""The warp_specialized kernel: right with every knob and in every order of its warps, and what each barrier is for.

What it computes whatever its knobs, what it refuses of problems, and its static limits are in ``test_ladder*.py``.
"""

from __future__ import annotations

import re

import pytest
from checking import (
    assert_computes,
    assert_same_bits_in_every_order,
    assert_shared_memory,
    assert_values_have_their_own_code,
    ptx_of,
    resources_of,
)
from refusals import Refusal, assert_refused

from sdpalab.kernels.flash import smem_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.warp_specialized import WARP_SPECIALIZED
from sdpalab.model.counted import count
from sdpalab.problem import MISSION, Problem

DEFAULT = WARP_SPECIALIZED.default_config
RAGGED = Problem(1, 2, 150, 32, kv_heads=1, seq_kv=333)


@pytest.mark.sample
@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize("block_n", [32, 64])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("producers", [1, 2])
def test_every_knob_is_correct(block_m: int, block_n: int, stages: int, producers: int) -> None:
    config = Config(BLOCK_M=block_m, BLOCK_N=block_n, NUM_STAGES=stages, NUM_PRODUCER_WARPS=producers)
    if (block_m, block_n) == (128, 32):
        assert "at most twice the 32 keys of a tile" in str(WARP_SPECIALIZED.why_not(RAGGED, config))
    else:
        assert_computes(WARP_SPECIALIZED, RAGGED, config)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("head_dim", "config"),
    [
        (64, DEFAULT),
        (32, DEFAULT.but(NUM_STAGES=3, NUM_PRODUCER_WARPS=2)),
        (128, DEFAULT.but(NUM_STAGES=3)),
        (32, DEFAULT.but(BLOCK_N=32, NUM_STAGES=4)),
    ],
    ids=str,
)
def test_every_order_gives_the_same_bits_and_no_hazard(head_dim: int, config: Config) -> None:
    # More tiles than stages, the last one ragged, and rows past the end of Q.
    assert_same_bits_in_every_order(WARP_SPECIALIZED, Problem(1, 1, 50, head_dim, seq_kv=190), config)


@pytest.mark.sample
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stages", [2, 4])
def test_the_ring_comes_to_its_end_at_every_place(tiles: int, stages: int) -> None:
    config = DEFAULT.but(BLOCK_N=32, NUM_STAGES=stages)
    assert_computes(WARP_SPECIALIZED, Problem(1, 1, 20, 32, seq_kv=32 * tiles), config, schedule="reverse")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("knob", "values"),
    [("BLOCK_M", (64, 128)), ("BLOCK_N", (32, 64)), ("NUM_STAGES", (2, 3)), ("NUM_PRODUCER_WARPS", (1, 2))],
)
def test_every_knob_changes_the_code(knob: str, values: tuple[int, ...]) -> None:
    assert_values_have_their_own_code(WARP_SPECIALIZED, knob, values)


@pytest.mark.sample
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(head_dim: int, dtype: str) -> None:
    ptx = ptx_of(WARP_SPECIALIZED, Problem(1, 1, 64, head_dim, dtype=dtype))
    keys = 32 if head_dim == 128 else 64
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    products = 2 * (keys // 8) * (head_dim // 16)
    matrices = (keys // 16) * (head_dim // 16)
    assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32") == ptx.count("mma.sync") == products
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == matrices + head_dim // 16  # K, and Q once
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == matrices  # V
    rows_a_pass = 32 * 8 // head_dim  # that one warp copies
    assert ptx.count("cp.async.cg") == (64 + 2 * keys) // rows_a_pass
    # Producers wait for an empty stage. Consumers wait for the first tile, for each of the others, and before the
    # output; they give back Q's stage, and each tile's. There is no barrier of the block.
    assert ptx.count("bar.sync") == 4
    assert ptx.count("bar.arrive") == 3
    assert not re.search(r"bar\.sync\s+0", ptx)
    assert ptx.count("st.global.v4") == head_dim // 16
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|ld\.global|mbarrier", ptx)


def test_consumers_do_not_copy_and_producers_do_not_compute() -> None:
    # Counted in warps: every product is of all four consumers and every tile, every copy of the one producer.
    counters = count(WARP_SPECIALIZED, Problem(1, 1, 64, 64, seq_kv=640), "sm_89").main.counters
    tiles = 10

    def warps(opcode: str) -> set[int]:
        return {each.warps for each in counters.by_instruction if each.text.startswith(opcode)}

    assert warps("mma") == {4 * tiles}
    assert warps("cp.async.cg") == {1, tiles}  # Q, and K and V
    assert warps("st.global.v4") == {4}
    assert counters.divergence == 0
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")
    assert counters.total("sectors") == counters.total("ideal_sectors")


@pytest.mark.parametrize(("head_dim", "blocks"), [(64, 3), (128, 2)])
def test_blocks_of_an_sm(head_dim: int, blocks: int) -> None:
    used = resources_of(WARP_SPECIALIZED, MISSION.with_(head_dim=head_dim))
    assert used.shared_bytes == 32 * 1024
    assert used.blocks_per_sm == blocks


REFUSALS = [
    Refusal({"BLOCK_M": 32}, "BLOCK_M must be one of 64, 128, not 32", "BLOCK_M is 64 or 128"),
    Refusal({"BLOCK_N": 48}, "BLOCK_N must be one of 0, 32, 64, not 48", "BLOCK_N is 0, 32 or 64"),
    Refusal({"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
    Refusal({"NUM_PRODUCER_WARPS": 3}, "NUM_PRODUCER_WARPS must be one of 1, 2, not 3", "NUM_PRODUCER_WARPS is 1 or 2"),
    Refusal({"NUM_STAGES": 4}, "65536 bytes of shared memory, and the kernel's limit is 49152", "two blocks of 48 KiB"),
    Refusal({"BLOCK_M": 128, "BLOCK_N": 32}, "at most twice the 32 keys of a tile", "Q passes through one stage"),
    Refusal({}, "supports head_dim 32, 64 or 128, not 96", "HEAD_DIM is 32, 64 or 128", Problem(1, 1, 64, 96)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(WARP_SPECIALIZED, refusal)


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32, seq_kv=128)
    assert_shared_memory(WARP_SPECIALIZED, problem, DEFAULT, smem_bytes(problem, DEFAULT))
