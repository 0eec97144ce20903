"""Persistent blocks of the hopper kernel: the grid's bits in every order, no hazard between tiles, an even deal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checking import assert_computes, assert_log_sum_exp, assert_same_bits_in_every_order, resources_of, run

import warpsan
from sdpalab.inputs import make_inputs
from sdpalab.kernels.hopper import HOPPER, modelled_clocks, resolve, smem_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.warpgroups import SMS, blocks_per_sm
from sdpalab.model.counted import count
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from warpsan.profile.counters import Counters

ARCH = HOPPER.default_arch
AUTO = HOPPER.default_config
TWO = AUTO.but(
    BLOCK_M=128, BLOCK_N=64, NUM_STAGES=2, SPLIT=1, KEY_GROUPS=1, PACK_GQA=1, SCHEDULE="persistent", NUM_CTAS=2
)
ONE = TWO.but(BLOCK_M=64, NUM_CTAS=3)
THREE = TWO.but(BLOCK_M=192)
LONG = Problem(1, 1, 300, 64, seq_kv=64 * 3 - 7)
"""Three tiles of queries, the last one ragged: more tiles of keys than stages, an odd number, the last one ragged."""


def label(value: object) -> str:
    return str(getattr(value, "label", value))


def in_the_grid(config: Config) -> Config:
    return config.but(SCHEDULE="tiles", NUM_CTAS=0)


def launch(problem: Problem, config: Config) -> Launch:
    (step,) = HOPPER.launch_plan(problem, config).launches
    return step


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (Problem(1, 3, 200, 64, seq_kv=1), ONE),  # one tile of keys: every stage is another's
        (Problem(1, 2, 70, 64, seq_kv=130), ONE.but(NUM_STAGES=4)),  # fewer tiles of keys than stages
        (Problem(1, 2, 300, 64, kv_heads=1, seq_kv=200), TWO),
        (Problem(2, 2, 140, 64, kv_heads=1, seq_kv=150, causal=True), TWO.but(NUM_STAGES=3)),
        (Problem(1, 1, 260, 64, causal=True, dtype="bfloat16"), ONE.but(NUM_CTAS=2)),
        (Problem(1, 1, 400, 64, seq_kv=300, causal=True), THREE.but(NUM_CTAS=1)),
        (Problem(1, 1, 300, 128, seq_kv=140, causal=True), TWO.but(NUM_CTAS=1)),
        (Problem(1, 2, 130, 128, seq_kv=170, dtype="bfloat16"), ONE.but(BLOCK_N=80)),
        (Problem(1, 1, 130, 256, seq_kv=90, causal=True), ONE.but(NUM_CTAS=1)),
        (Problem(1, 1, 140, 64, scale=-0.3, causal=True), ONE.but(NUM_CTAS=1)),
        (Problem(1, 1, 40, 64), AUTO.but(SCHEDULE="persistent")),  # a tile for one block of all that there could be
    ],
    ids=label,
)
def test_computes_attention(problem: Problem, config: Config) -> None:
    assert_computes(HOPPER, problem, config)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("problem", "config"),
    [(LONG, TWO.but(NUM_CTAS=1)), (Problem(1, 2, 130, 64, seq_kv=150, causal=True), ONE.but(NUM_CTAS=2))],
    ids=label,
)
@pytest.mark.sample(1)
def test_every_order_gives_the_grids_bits_and_no_hazard(problem: Problem, config: Config) -> None:
    assert_same_bits_in_every_order(HOPPER, problem, config, checks=(*warpsan.CHECKS, "strict"))
    persistent, tiles = (run(HOPPER, problem, each) for each in (config, in_the_grid(config)))
    for name, array in tiles.outputs.items():
        assert persistent.outputs[name].tobytes() == array.tobytes(), name


@pytest.mark.sample(1)
@pytest.mark.parametrize("causal", [False, True])
def test_log_sum_exp(causal: bool) -> None:
    problem = Problem(1, 4, 140, 64, kv_heads=2, seq_kv=100, causal=causal, scale=-0.2)
    assert_log_sum_exp(HOPPER, problem, ONE)


@pytest.mark.sample(1)
@pytest.mark.parametrize("heads_at_once", [1, 2, 3, 5])
def test_heads_may_be_mixed_in_any_number(heads_at_once: int) -> None:
    problem = Problem(1, 5, 130, 64, causal=True)
    plan = HOPPER.launch_plan(problem, ONE)
    (step,) = plan.launches
    assert step.args[-3:] == (problem.heads, problem.heads, 5)  # so short, K and V of all fit: 15 tiles for 3 blocks
    mixed = replace(plan, steps=(replace(step, args=(*step.args[:-2], heads_at_once, heads_at_once)),))
    inputs = make_inputs(problem).arrays
    expected = SimulatedExecutor(ARCH).run(plan, inputs).outputs["o"]
    result = SimulatedExecutor(ARCH).run(mixed, inputs)
    assert result.hazards == ()
    assert np.array_equal(result.outputs["o"], expected)


@pytest.mark.parametrize(
    ("problem", "heads"),
    [
        (Problem(4, 16, 1024, 64, causal=True), 64),  # 256 KiB each: 100 would fit 25 MiB
        (Problem(4, 16, 4096, 128, causal=True), 32),  # 2 MiB: 12 fit, but 33 keep four blocks each; twice 32 is even
        (Problem(4, 20, 2048, 128, kv_heads=5, causal=True), 80),  # 25 of 1 MiB fit, for four heads each
        (Problem(1, 200, 100, 256, seq_kv=131072, causal=True), 100),  # two rounds of two tiles of 132 heads; twice 100
    ],
    ids=label,
)
def test_heads_are_mixed_as_far_as_their_keys_are_read_together(problem: Problem, heads: int) -> None:
    config = AUTO.but(SCHEDULE="persistent", BLOCK_M=64 if problem.head_dim == 256 else 128)
    assert launch(problem, config).args[-2] == heads


def test_causal_blocks_end_together() -> None:
    problem = Problem(1, 4, 384, 64, causal=True)
    counted = counters_of(problem, ONE.but(NUM_CTAS=4))
    # 24 tiles of 1 to 6 tiles of keys. Dealt out in the same order in each round, one block would have 24 of the 84
    # tiles of keys and one 18.
    assert len(counted.by_cta) == 4
    assert max(counted.by_cta) < 1.01 * min(counted.by_cta)


def test_a_tile_of_queries_moves_what_it_moves_in_the_grid() -> None:
    problem = Problem(1, 2, 256, 64)
    here, there = counters_of(problem, ONE), counters_of(problem, in_the_grid(ONE))
    assert here.total("sectors", "async") == there.total("sectors", "async")
    assert here.tensor_flops == there.tensor_flops == problem.flops
    assert here.exponentials == there.exponentials
    assert here.total("wavefronts") == here.total("ideal_wavefronts")


def counters_of(problem: Problem, config: Config) -> Counters:
    (counted,) = count(HOPPER, problem, ARCH, config).launches
    return counted.counters


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("problem", "schedule"),
    [
        (MISSION, "tiles"),
        (Problem(2, 16, 4096, 128), "persistent"),
        (Problem(2, 16, 4096, 64, causal=True), "persistent"),
        (Problem(1, SMS, 128, 128), "tiles"),  # the GPU holds all tiles at once
        (Problem(2, SMS, 128, 128), "persistent"),
        (Problem(4, 32, 4096, 256), "tiles"),  # two consumers, and O has no place of its own
    ],
    ids=label,
)
def test_the_schedule_follows_the_problem(problem: Problem, schedule: str) -> None:
    resolved = resolve(problem, AUTO)
    assert resolved["SCHEDULE"] == schedule
    step = launch(problem, AUTO)
    assert step == launch(problem, resolved)
    assert step.dynamic_smem == smem_bytes(problem, resolved) <= 227 * 1024
    if schedule == "persistent":
        assert step.cluster == (1, 1, 1)
        assert step.grid == (SMS * resources_of(HOPPER, problem, AUTO).blocks_per_sm, 1, 1)


def test_a_persistent_block_begins_once() -> None:
    problem = Problem(1, 2 * SMS, 128, 64)
    one, many = (modelled_clocks(each, 128, 1, persistent=True) for each in (problem.with_(heads=SMS), problem))
    assert one < many < modelled_clocks(problem, 128, 1) == 2 * one


@pytest.mark.sample(1)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("config", [ONE, in_the_grid(TWO), THREE], ids=str)
def test_what_an_sm_holds_is_what_the_build_says(head_dim: int, config: Config) -> None:
    problem = Problem(1, 1, 64, head_dim)
    if HOPPER.why_not(problem, config) is None:
        used = resources_of(HOPPER, problem, config)
        assert used.blocks_per_sm == blocks_per_sm(head_dim, config.int("BLOCK_M"), smem_bytes(problem, config))
