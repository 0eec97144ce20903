"""The cp_async kernel: as right as the wmma kernel with any number of stages, and different from it by its copies.

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
    run,
)
from refusals import WMMA_TILES, Refusal, assert_refused

from sdpalab.kernels.cp_async import CP_ASYNC, smem_bytes
from sdpalab.kernels.wmma import WMMA
from sdpalab.problem import MISSION, Problem

DEFAULT = CP_ASYNC.default_config
STAGES = (1, 2, 3)
RAGGED = Problem(1, 2, 37, 32, kv_heads=1, seq_kv=109, causal=False)


@pytest.mark.sample(3)
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (32, 32), (48, 16), (128, 32), (16, 64)])
def test_every_tile_and_number_of_stages_is_correct(block_m: int, block_n: int, stages: int) -> None:
    assert_computes(CP_ASYNC, RAGGED, DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n, NUM_STAGES=stages))


@pytest.mark.sample(1)
@pytest.mark.parametrize("stages", STAGES)
def test_the_bits_are_those_of_the_wmma_kernel(stages: int) -> None:
    problem = Problem(1, 2, 70, 64, seq_kv=150, causal=True)
    expected = run(WMMA, problem).outputs["o"]
    for config in (DEFAULT.but(NUM_STAGES=stages), DEFAULT.but(NUM_STAGES=stages, BLOCK_M=16)):
        assert run(CP_ASYNC, problem, config).outputs["o"].tobytes() == expected.tobytes()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("knob", "values"), [("BLOCK_M", (16, 32)), ("BLOCK_N", (16, 32)), ("NUM_STAGES", STAGES)])
def test_every_knob_changes_the_code(knob: str, values: tuple[int, ...]) -> None:
    assert_values_have_their_own_code(CP_ASYNC, knob, values)


@pytest.mark.parametrize("stages", STAGES)
def test_the_only_way_in_is_cp_async(stages: int) -> None:
    ptx = ptx_of(CP_ASYNC, MISSION, DEFAULT.but(NUM_STAGES=stages))
    assert "ld.global" not in ptx
    assert f"cp.async.wait_group {stages - 1};" in ptx
    assert ptx.count("cp.async.wait_group") == 1
    assert ptx.count("cp.async.commit_group") == stages  # the tiles before the loop, and the one in it
    assert len(re.findall(r"cp\.async\.cg\.shared\.global \[%\w+\], \[%\w+\], 16, %\w+;", ptx)) == ptx.count(
        "cp.async.cg"
    )
    assert ptx.count("bar.sync") == 2
    products = {line.split("{")[0] for line in ptx_of(WMMA, MISSION).splitlines() if "wmma.mma" in line}
    assert products == {line.split("{")[0] for line in ptx.splitlines() if "wmma.mma" in line}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("stages", "blocks"), [(1, 3), (2, 2), (3, 1)])
def test_each_stage_costs_a_block_of_the_sm(stages: int, blocks: int) -> None:
    assert resources_of(CP_ASYNC, MISSION, DEFAULT.but(NUM_STAGES=stages)).blocks_per_sm == blocks


REFUSALS = [
    *WMMA_TILES,
    Refusal({"NUM_STAGES": 0}, "NUM_STAGES must be one of 1, 2, 3, not 0"),
    Refusal({"NUM_STAGES": 4}, "NUM_STAGES must be one of 1, 2, 3, not 4", "NUM_STAGES is 1, 2 or 3"),
    Refusal({"BLOCK_N": 64}, "needs 72704 bytes of shared memory, and the kernel's limit is 65536"),
    Refusal(
        {"NUM_STAGES": 3},
        "needs 83968 bytes of shared memory, and the kernel's limit is 73728",
        problem=Problem(1, 1, 64, 128),
    ),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(CP_ASYNC, refusal)


@pytest.mark.sample(1)
@pytest.mark.parametrize("stages", STAGES)
def test_smem_bytes_is_what_the_kernel_touches(stages: int) -> None:
    problem, config = Problem(1, 1, 64, 32, seq_kv=100), DEFAULT.but(NUM_STAGES=stages)
    # Nothing touches the padding of the last row.
    assert_shared_memory(CP_ASYNC, problem, config, smem_bytes(problem, config), padding=16)


@pytest.mark.sample(1)
@pytest.mark.parametrize("stages", STAGES)
def test_no_result_rests_on_the_order_of_warps_or_copies(stages: int) -> None:
    config = DEFAULT.but(NUM_STAGES=stages)
    assert_same_bits_in_every_order(CP_ASYNC, Problem(1, 1, 70, 32, seq_kv=130), config)
