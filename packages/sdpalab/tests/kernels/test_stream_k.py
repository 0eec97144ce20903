"""How ``flash`` deals out its work: the plan of each schedule, its result, and what the merge of parts depends on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from checking import assert_computes, assert_same_bits_in_every_order, ptx_of, run

from sdpalab.compile import build
from sdpalab.kernels.flash import FLASH, resolve, shares_of, units_of
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.plan import Launch, Module
from sdpalab.kernels.stream_k import Shares, Units, reciprocal, time_of_shares, time_of_tiles
from sdpalab.problem import MISSION, Problem
from warpsan import launch

DEFAULT = FLASH.default_config
STREAM_K = DEFAULT.but(SCHEDULE="stream_k")
L4_SMS = 58
RAGGED = Problem(1, 3, 150, 32, kv_heads=1, seq_kv=205)


def launch_of(problem: Problem, config: Config = DEFAULT) -> Launch:
    (step,) = FLASH.launch_plan(problem, config).launches
    return step


# ---- the model, in Python --------------------------------------------------------------------------------------------


def test_units_of_a_causal_problem_are_the_tiles_that_are_seen() -> None:
    assert Units.of(Problem(2, 3, 200, 64, seq_kv=100, causal=True), 64, 32) == Units((2, 4, 4, 4), 6)
    assert Units.of(Problem(1, 1, 65, 64, seq_kv=33), 64, 32) == Units((2, 2), 1)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 100])
def test_every_unit_is_in_one_share(blocks: int) -> None:
    units = Units((1, 2, 4), 2)
    shares = Shares.of(units, blocks)
    assert shares.blocks == min(blocks, 14)
    sizes = [shares.units_per_block + (block < shares.longer) for block in range(shares.blocks)]
    assert sum(sizes) == 14
    assert max(sizes) - min(sizes) <= 1
    owners = [block for block, size in enumerate(sizes) for _ in range(size)]
    assert [shares.block_of(unit) for unit in range(14)] == owners
    firsts = [0, 1, 3, 7, 8, 10, 14]
    expected = [range(owners[a], owners[b - 1] + 1) for a, b in pairwise(firsts)]
    assert list(shares.sharers(units)) == expected


def test_division_by_a_reciprocal_is_exact() -> None:
    source = """
        #include "schedule/stream_k.cuh"
        __global__ void probe(const int* n, const unsigned long long* reciprocals, int* quotients, int count) {
            for (int i = threadIdx.x; i < count; i += blockDim.x) {
                quotients[i] = Divisor{reciprocals[i]}.divide(n[i]);
            }
        }"""
    draw, largest = np.random.default_rng(11), 2**31 - 1
    divisors = [1, 2, 3, 7, 58, 174, 2**16 + 1, 2**30 - 1, 2**30, largest - 1, largest, *draw.integers(1, 2**20, 300)]
    pairs = []
    for divisor in map(int, divisors):
        multiples = [0, divisor, largest // divisor * divisor, *(divisor * draw.integers(0, largest // divisor + 1, 4))]
        near = {int(multiple) + step for multiple in multiples for step in (-1, 0, 1)} | {largest}
        pairs += [(n, divisor) for n in sorted(near) if 0 <= n <= largest]
    n, by = np.array(pairs, np.int64).T
    quotients = np.full(n.size, -1, np.int32)
    reciprocals = np.array([reciprocal(int(divisor)) for divisor in by], np.uint64)
    module = Module("probe.cu", source, "probe", {"HEAD_DIM": "64", "CAUSAL": "0", "DTYPE_BF16": "0"})
    built = build(module)
    launch(built.ptx, built.entry, 1, 256, [n.astype(np.int32), reciprocals, quotients, n.size])
    assert np.array_equal(quotients, n // by)


def test_modelled_times_of_the_mission_shape() -> None:
    # 64 tiles of 8 units on 58 SMs: six SMs have two. 174 blocks of 3 or 2 units: nine or fewer an SM.
    units = units_of(MISSION, DEFAULT)
    assert units == Units((8,) * 8, 8)
    assert time_of_tiles(units, L4_SMS) == 16 + 0.5
    shares = Shares.of(units, 3 * L4_SMS)
    assert (shares.units_per_block, shares.longer) == (2, 164)
    # The longest latencies: a block between two tiles that four blocks share each.
    assert time_of_shares(units, shares, L4_SMS) == 9 + 2 * (0.5 + 1.0 + 0.25 * 3.5)


# ---- the plan --------------------------------------------------------------------------------------------------------


def test_the_mission_shape_fills_an_l4() -> None:
    step = launch_of(MISSION)
    assert step.grid == (3 * L4_SMS, 1, 1)
    loads = [0] * L4_SMS
    for block in range(step.grid[0]):
        loads[block % L4_SMS] += 2 + (block < 164)
    assert sum(loads) / L4_SMS / max(loads) > 0.98  # 64 plain tiles: 0.55


def test_auto_takes_whole_tiles_where_those_fill_the_gpu_or_have_few_keys() -> None:
    for problem in (
        Problem(1, 1, 512, 64, seq_kv=128),
        Problem(8, 16, 2048, 64, causal=True),
        MISSION.with_(causal=True),
    ):
        assert shares_of(problem, resolve(problem, DEFAULT, L4_SMS)) is None
        step = launch_of(problem)
        assert step.grid == (-(-problem.seq_q // 64), problem.heads, problem.batch)
        assert {buffer.name for buffer in FLASH.launch_plan(problem).buffers} == {"q", "k", "v", "o"}


def test_auto_splits_the_keys_of_few_queries() -> None:
    assert launch_of(Problem(1, 4, 1, 64, seq_kv=4096)).grid[0] == 3 * L4_SMS


@pytest.mark.parametrize(("ctas", "blocks"), [(0, 128), (64, 64), (200, 128), (256, 256), (10, 64)])
def test_split_kv_gives_each_tile_as_many_blocks_as_divide_its_keys(ctas: int, blocks: int) -> None:
    config = DEFAULT.but(SCHEDULE="split_kv", NUM_CTAS=ctas)
    shares = shares_of(MISSION, resolve(MISSION, config, L4_SMS))
    assert shares is not None
    assert shares.blocks == blocks
    assert {len(sharers) for sharers in shares.sharers(units_of(MISSION, config))} == {blocks // 64}


def test_num_ctas_is_of_the_plan_and_not_of_the_code() -> None:
    assert launch_of(MISSION, STREAM_K.but(NUM_CTAS=132)).grid == (132, 1, 1)
    assert ptx_of(FLASH, MISSION, STREAM_K.but(NUM_CTAS=132)) == ptx_of(FLASH, MISSION)


def test_the_search_tries_no_configuration_twice() -> None:
    space = list(FLASH.space(MISSION))
    assert len(space) == len(set(space))
    assert {config["SCHEDULE"] for config in space} == {"tiles", "split_kv", "stream_k"}
    assert all(not config["NUM_CTAS"] for config in space if config["SCHEDULE"] == "tiles")


def test_there_is_an_atomic_operation_only_where_blocks_share_tiles() -> None:
    shared = ptx_of(FLASH, MISSION)
    assert len(re.findall(r"atom\.acq_rel\.gpu\.global\.inc\.u32", shared)) == 1
    assert shared.count("barrier.red") + shared.count("bar.red") == 1
    assert "atom" not in ptx_of(FLASH, MISSION, DEFAULT.but(SCHEDULE="tiles"))


# ---- the result ------------------------------------------------------------------------------------------------------


def cases() -> Iterator[tuple[Problem, int]]:
    """A block that has several whole tiles, blocks that have a unit each, and what lies between."""
    for problem in (RAGGED, RAGGED.with_(causal=True), Problem(2, 2, 100, 64, seq_kv=300, causal=True)):
        for ctas in (1, 3, 7, 1000):
            yield problem, ctas
    yield Problem(1, 1, 70, 128, seq_kv=130, dtype="bfloat16"), 4
    yield Problem(1, 2, 1, 64, seq_kv=500, scale=-0.4), 5
    yield Problem(1, 1, 130, 32, seq_kv=40, causal=True), 2


@pytest.mark.sample(2)
@pytest.mark.parametrize(("problem", "ctas"), list(cases()), ids=str)
def test_shares_are_merged(problem: Problem, ctas: int) -> None:
    # The log-sum-exp too, without a hazard, and with semaphores that are left as zeros.
    assert_computes(FLASH, problem, STREAM_K.but(NUM_CTAS=ctas))


def test_split_kv_is_merged() -> None:
    assert_computes(FLASH, RAGGED, DEFAULT.but(SCHEDULE="split_kv", NUM_CTAS=40))


@pytest.mark.sample
@pytest.mark.parametrize("kind", ["needle", "ramp", "large_logits", "huge"])
@pytest.mark.parametrize("causal", [False, True])
def test_probes_of_merged_tiles(kind: str, causal: bool) -> None:
    assert_computes(FLASH, Problem(1, 1, 140, 32, causal=causal), STREAM_K.but(NUM_CTAS=5), kind=kind)


def test_the_result_does_not_depend_on_who_is_last() -> None:
    problem, config = RAGGED.with_(causal=True), STREAM_K.but(NUM_CTAS=7)
    assert_same_bits_in_every_order(FLASH, problem, config, async_modes=("late",), seed=3)


def test_whole_tiles_of_a_shared_grid_are_what_they_are_alone() -> None:
    # One block for everything merges nothing: bit for bit the result of a block for each tile.
    one = run(FLASH, RAGGED, STREAM_K.but(NUM_CTAS=1)).outputs
    tiles = run(FLASH, RAGGED, DEFAULT.but(SCHEDULE="tiles")).outputs
    assert np.array_equal(one["o"], tiles["o"])
    assert np.array_equal(one["lse"], tiles["lse"])
