"""The scalar kernel with every knob: right, a different program for each value, and no race without its barriers.

What it computes whatever its knobs, what it refuses of problems, and its static limits are in ``test_ladder*.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checking import (
    assert_computes,
    assert_same_bits_in_every_order,
    assert_shared_memory,
    assert_values_have_their_own_code,
    ptx_of,
    run,
)
from refusals import Refusal, assert_refused

from sdpalab.kernels.scalar import SCALAR, smem_bytes
from sdpalab.problem import Problem

DEFAULT = SCALAR.default_config
RAGGED = Problem(1, 2, 37, 32, kv_heads=1, seq_kv=45, causal=True)


@pytest.mark.sample
@pytest.mark.parametrize("vec_width", [1, 2, 4, 8])
@pytest.mark.parametrize("sync", ["block", "warp"])
@pytest.mark.parametrize("reduce", ["shuffle", "shared"])
def test_every_policy_is_correct(vec_width: int, sync: str, reduce: str) -> None:
    assert_computes(SCALAR, RAGGED, DEFAULT.but(VEC_WIDTH=vec_width, SYNC_POLICY=sync, REDUCE=reduce))


@pytest.mark.sample
@pytest.mark.parametrize("tile", [(4, 8, 1), (16, 24, 2), (64, 16, 8), (32, 40, 4)], ids=str)
@pytest.mark.parametrize("sync", ["block", "warp"])
def test_every_tile_is_correct(tile: tuple[int, int, int], sync: str) -> None:
    block_m, block_n, warps = tile
    config = DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n, NUM_WARPS=warps, SYNC_POLICY=sync)
    assert_computes(SCALAR, RAGGED, config)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("knob", "values"),
    [
        ("BLOCK_M", (16, 32, 64)),
        ("BLOCK_N", (8, 32, 64)),
        ("NUM_WARPS", (1, 2, 4)),
        ("VEC_WIDTH", (1, 2, 4, 8)),
        ("SYNC_POLICY", ("block", "warp")),
        ("REDUCE", ("shuffle", "shared")),
    ],
)
def test_every_knob_changes_the_code(knob: str, values: tuple[int | str, ...]) -> None:
    assert_values_have_their_own_code(SCALAR, knob, values, head_dim=32)


def test_knobs_do_what_they_are_called() -> None:
    problem = Problem(1, 1, 64, 64)
    default = ptx_of(SCALAR, problem)
    assert "ld.global.nc.v4.u32" in default
    assert "bar.sync" in default or "barrier.sync" in default
    assert "shfl.sync.bfly" in default
    assert "wmma" not in default
    assert "mma.sync" not in default
    narrow = ptx_of(SCALAR, problem, DEFAULT.but(VEC_WIDTH=1))
    assert "ld.global.nc.u16" in narrow
    assert "ld.global.nc.v" not in narrow
    alone = ptx_of(SCALAR, problem, DEFAULT.but(SYNC_POLICY="warp", BLOCK_N=16))
    assert "bar.warp.sync" in alone
    assert "bar.sync" not in alone
    assert "barrier.sync" not in alone
    assert "shfl" not in ptx_of(SCALAR, problem, DEFAULT.but(REDUCE="shared"))


REFUSALS = [
    Refusal({"NUM_WARPS": 0}, "NUM_WARPS must be 1 to 32, not 0"),
    Refusal({"NUM_WARPS": 33}, "NUM_WARPS must be 1 to 32, not 33"),
    Refusal(
        {"BLOCK_M": 24},
        "BLOCK_M must be a multiple of 4 rows for each of NUM_WARPS=4 warps, not 24",
        "BLOCK_M is a multiple of 4 rows a warp",
    ),
    Refusal({"BLOCK_M": 0}, "BLOCK_M must be"),
    Refusal({"BLOCK_N": 12}, "BLOCK_N must be a multiple of 8 keys, not 12", "BLOCK_N is a multiple of 8 keys"),
    Refusal({"BLOCK_N": -8}, "BLOCK_N must be"),
    Refusal({"VEC_WIDTH": 3}, "VEC_WIDTH must be one of 1, 2, 4, 8, not 3", "a load is 2, 4, 8 or 16 bytes"),
    Refusal({"SYNC_POLICY": "grid"}, "SYNC_POLICY must be one of block, warp, not 'grid'", "grid"),
    Refusal({"REDUCE": "atomic"}, "REDUCE must be one of shuffle, shared, not 'atomic'", "atomic"),
    Refusal(
        {"BLOCK_M": 128, "NUM_WARPS": 1},
        "scores and outputs; at most 128 fit",
        "scores and outputs fit its registers",
    ),
    Refusal({"BLOCK_N": 128}, "bytes of shared memory, and the kernel's limit is 65536"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(SCALAR, refusal)


@pytest.mark.sample(1)
@pytest.mark.parametrize("changes", [{}, {"SYNC_POLICY": "warp"}, {"REDUCE": "shared"}], ids=str)
def test_smem_bytes_is_what_the_kernel_touches(changes: dict[str, int | str]) -> None:
    problem, config = Problem(1, 1, 32, 32), DEFAULT.but(**changes)
    padding = 32 if config["REDUCE"] == "shuffle" else 0  # of the last row of P, which nothing touches
    assert_shared_memory(SCALAR, problem, config, smem_bytes(problem, config), padding=padding, step=4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("sync", ["block", "warp"])
def test_no_result_rests_on_the_order_of_warps(sync: str) -> None:
    config = DEFAULT.but(SYNC_POLICY=sync, REDUCE="shared")
    assert_same_bits_in_every_order(SCALAR, Problem(1, 1, 70, 32, causal=True), config, async_modes=("late",))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dropped", [0, 1])
def test_every_barrier_is_needed(dropped: int) -> None:
    assert isinstance(SCALAR.source, Path)
    before, *after = SCALAR.source.read_text().split("        tile_sync();")
    assert len(after) == 2
    after[dropped] = "__syncwarp();" + after[dropped]
    after[1 - dropped] = "tile_sync();" + after[1 - dropped]
    unsafe = replace(SCALAR, name="scalar-unsafe", source=before + "".join(after))
    assert any("race" in hazard for hazard in run(unsafe, Problem(1, 1, 70, 32)).hazards)
