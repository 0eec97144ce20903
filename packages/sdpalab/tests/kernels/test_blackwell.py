"""The blackwell kernel: right and clean in every order with every knob, its static limits, and what it chooses."""

from __future__ import annotations

import pytest
from checking import (
    assert_computes,
    assert_gate,
    assert_log_sum_exp,
    assert_nothing_past_the_end_is_used,
    assert_same_bits_in_every_order,
    assert_written_to_the_end_and_no_further,
)
from refusals import Refusal, assert_refused

from sdpalab.kernels.blackwell import BLACKWELL, resolve, smem_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.problem import MISSION, Problem

AUTO = BLACKWELL.default_config
ONE = AUTO.but(Q_TILES=1, SPLIT=1, NUM_STAGES=2, EXP_ON_FMA=16)
TWO = ONE.but(Q_TILES=2)
FOUR = ONE.but(SPLIT=4)

SHAPES = [
    (Problem(1, 1, 1, 64), AUTO),
    (Problem(1, 1, 33, 64, seq_kv=1), ONE),
    (Problem(1, 1, 33, 64, seq_kv=1), TWO),
    (Problem(1, 4, 130, 64, kv_heads=2, seq_kv=400), TWO.but(NUM_STAGES=1)),
    (Problem(2, 2, 300, 64, kv_heads=1, seq_kv=310, causal=True), TWO),
    (Problem(1, 1, 140, 128, seq_kv=520, dtype="bfloat16"), TWO),
    (Problem(1, 2, 65, 128, seq_kv=257, causal=True), ONE.but(NUM_STAGES=3, EXP_ON_FMA=0)),
    (Problem(1, 1, 90, 64, scale=-0.3, causal=True), ONE),
    (Problem(1, 1, 90, 64, scale=0.0, seq_kv=140), TWO),
    (Problem(1, 2, 150, 64, kv_heads=1, seq_kv=600), ONE.but(SPLIT=2)),
    (Problem(1, 1, 200, 64, seq_kv=530, causal=True), FOUR),  # CTAs without keys
    (Problem(1, 1, 33, 128, seq_kv=530, dtype="bfloat16"), FOUR),
]


def label(value: object) -> str:
    return str(getattr(value, "label", value))


@pytest.mark.sample(3)
@pytest.mark.parametrize(("problem", "config"), SHAPES, ids=label)
def test_computes_attention(problem: Problem, config: Config) -> None:
    assert_computes(BLACKWELL, problem, config)


@pytest.mark.sample
@pytest.mark.parametrize("config", [ONE, TWO, FOUR], ids=str)
@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "huge"])
def test_probes(kind: str, config: Config) -> None:
    assert_computes(BLACKWELL, Problem(1, 1, 60, 64, seq_kv=268), config, kind=kind)


@pytest.mark.sample
@pytest.mark.parametrize("config", [ONE, TWO, FOUR], ids=str)
def test_edges(config: Config) -> None:
    problem = Problem(1, 2, 140, 64, seq_kv=150, causal=True)
    assert_nothing_past_the_end_is_used(BLACKWELL, problem, config)
    assert_written_to_the_end_and_no_further(BLACKWELL, config)
    assert_log_sum_exp(BLACKWELL, problem, config)


def test_bits_do_not_depend_on_the_order() -> None:
    assert_same_bits_in_every_order(BLACKWELL, Problem(1, 2, 140, 64, seq_kv=300), TWO)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("tiles", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_static_limits(head_dim: int, tiles: int, causal: bool) -> None:
    problem = Problem(1, 1, 512, head_dim, causal=causal)
    config = AUTO.but(Q_TILES=tiles)
    assert_gate(BLACKWELL, problem, config)
    (launch,) = BLACKWELL.launch_plan(problem, config).launches
    assert launch.dynamic_smem == smem_bytes(problem, resolve(problem, config))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_single_tile_of_keys_does_not_spill(head_dim: int) -> None:
    assert_gate(BLACKWELL, Problem(1, 2, 64, head_dim, dtype="bfloat16"), AUTO)


def test_what_it_chooses() -> None:
    """A tile where the rows are too few to fill the SMs, and two where they are not; stages as memory allows."""
    assert resolve(MISSION, AUTO) == AUTO.but(Q_TILES=1, SPLIT=4, NUM_STAGES=1, EXP_ON_FMA=16)
    many = Problem(4, 16, 4096, 128)
    assert resolve(many, AUTO) == AUTO.but(Q_TILES=2, SPLIT=1, NUM_STAGES=2, EXP_ON_FMA=16)
    assert resolve(many, AUTO.but(Q_TILES=1)).int("NUM_STAGES") == 3


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal({"Q_TILES": 3}, "Q_TILES must be one of 0, 1, 2, not 3", "S and O of two tiles fill tensor memory"),
        Refusal({"SPLIT": 2}, "blocks that share rows have one tile", "CTAs that share rows have one tile of them"),
        Refusal({"NUM_STAGES": 4}, "bytes of shared memory", problem=Problem(1, 1, 512, 128)),
    ],
    ids=str,
)
def test_refusals(refusal: Refusal) -> None:
    assert_refused(BLACKWELL, refusal, TWO)
