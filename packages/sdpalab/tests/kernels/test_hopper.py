"""The hopper kernel: right and clean in every order with every knob, and what it chooses where no knob is given.

Its persistent blocks are in ``test_hopper_persistent.py``, its machine code and static limits in
``test_hopper_sass.py``, and what it refuses of problems in ``test_ladder_refusals.py``.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from checking import (
    assert_computes,
    assert_log_sum_exp,
    assert_nothing_past_the_end_is_used,
    assert_same_bits_in_every_order,
    assert_shared_memory,
    assert_written_to_the_end_and_no_further,
    run,
)
from refusals import Refusal, assert_refused

import warpsan
from sdpalab.campaigns import deletion
from sdpalab.compile import Build
from sdpalab.inputs import Inputs
from sdpalab.judge.sanitize import small_problems
from sdpalab.kernels.hopper import HOPPER, VALUES, modelled_clocks, resolve, smem_bytes
from sdpalab.kernels.kernel import Config, Knob
from sdpalab.kernels.warpgroups import SMS
from sdpalab.problem import MISSION, Problem
from warpsan.profile.counters import Counters

AUTO = HOPPER.default_config
ONE = AUTO.but(BLOCK_M=64, BLOCK_N=64, NUM_STAGES=2, SPLIT=1, KEY_GROUPS=1, PACK_GQA=1, EXP_ON_FMA=13, SCHEDULE="tiles")
TWO = ONE.but(BLOCK_M=128)
THREE = ONE.but(BLOCK_M=192)
CLUSTER_2 = ONE.but(SPLIT=2)
CLUSTER_4 = ONE.but(SPLIT=4)
CLUSTER_8 = ONE.but(SPLIT=8)
GROUPS = ONE.but(KEY_GROUPS=2, NUM_STAGES=4)
BOTH = GROUPS.but(SPLIT=2)
PERSISTENT = TWO.but(SCHEDULE="persistent", NUM_CTAS=2)
WIDE = TWO.but(BLOCK_N=128)
PACKED = CLUSTER_2.but(PACK_GQA=4)
AS_GIVEN = replace(
    HOPPER, macros=lambda problem, config: {**config, "PERSISTENT": int(config["SCHEDULE"] == "persistent")}
)
"""Its source has the knobs themselves, and not the values resolved from them."""

SHAPES = [
    (Problem(1, 1, 1, 64), AUTO),
    (Problem(1, 1, 33, 64, seq_kv=1), ONE),
    (Problem(1, 1, 33, 64, seq_kv=1), CLUSTER_2),
    (Problem(1, 4, 130, 64, kv_heads=2, seq_kv=200), TWO),
    (Problem(1, 2, 200, 64, kv_heads=1, seq_kv=310, causal=True), THREE),
    (Problem(2, 2, 70, 64, kv_heads=1, seq_kv=140, causal=True), CLUSTER_4),
    (Problem(1, 1, 130, 64, seq_kv=300, causal=True), TWO.but(SPLIT=4)),
    (Problem(1, 1, 129, 64, seq_kv=300, causal=True, dtype="bfloat16"), WIDE),
    (Problem(1, 2, 65, 128, seq_kv=257, causal=True), WIDE),
    (Problem(1, 1, 200, 128, seq_kv=70, causal=True), ONE.but(BLOCK_N=80, NUM_STAGES=3)),
    (Problem(1, 1, 70, 128, seq_kv=200), TWO.but(BLOCK_N=176)),
    (Problem(1, 1, 70, 128, seq_kv=330, dtype="bfloat16"), CLUSTER_4),
    (Problem(1, 1, 70, 64, seq_kv=64 * 15 - 7), CLUSTER_8),  # four CTAs only send
    (Problem(1, 1, 33, 128, seq_kv=150, causal=True), CLUSTER_8),  # and five have no keys
    (Problem(1, 1, 100, 64, seq_kv=400), TWO.but(SPLIT=8)),
    (Problem(1, 1, 40, 64, seq_kv=64 * 20 - 7), GROUPS.but(SPLIT=8)),
    (Problem(1, 1, 130, 256, seq_kv=170, causal=True), TWO.but(BLOCK_N=80)),
    (Problem(1, 1, 20, 256, seq_kv=140, dtype="bfloat16"), CLUSTER_2),
    (Problem(1, 1, 90, 64, scale=-0.3, causal=True), CLUSTER_4),
    (Problem(1, 1, 90, 64, scale=0.0, causal=True), THREE),
    (Problem(1, 1, 33, 64, seq_kv=1), BOTH),  # three groups without keys
    (Problem(1, 2, 70, 64, kv_heads=1, seq_kv=310, causal=True), GROUPS),
    (Problem(1, 1, 90, 64, seq_kv=610, scale=-0.3), GROUPS.but(BLOCK_N=128)),
    (Problem(1, 1, 70, 128, seq_kv=430, dtype="bfloat16"), GROUPS.but(BLOCK_N=80)),
    (
        Problem(1, 4, 20, 64, kv_heads=1, seq_kv=150),
        ONE.but(PACK_GQA=4),
    ),  # a tile and a ragged one, which ends in a warp
    (Problem(2, 4, 37, 64, kv_heads=2, seq_kv=150, causal=True), CLUSTER_2.but(PACK_GQA=2)),
    (Problem(1, 12, 33, 64, kv_heads=1, seq_kv=70, causal=True), TWO.but(PACK_GQA=4)),  # three tiles of heads a group
    (Problem(1, 8, 5, 128, kv_heads=1, seq_kv=200, causal=True, dtype="bfloat16"), ONE.but(PACK_GQA=8)),
    (Problem(1, 16, 3, 64, kv_heads=1, seq_kv=200), GROUPS.but(PACK_GQA=16)),
    (Problem(1, 8, 40, 64, kv_heads=2, seq_kv=100, causal=True), PERSISTENT.but(PACK_GQA=4)),
]


def label(value: object) -> str:
    return str(getattr(value, "label", value))


@pytest.mark.sample(3)
@pytest.mark.parametrize(("problem", "config"), SHAPES, ids=label)
def test_computes_attention(problem: Problem, config: Config) -> None:
    assert_computes(HOPPER, problem, config)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("head_dim", "config"),
    [(64, ONE), (64, CLUSTER_2), (64, BOTH), (128, WIDE)],  # the last one has no registers to look at the sums
    ids=str,
)
@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "huge"])
def test_probes(kind: str, head_dim: int, config: Config) -> None:
    assert_computes(HOPPER, Problem(1, 1, 60, head_dim, seq_kv=2 * config.int("BLOCK_N") + 12), config, kind=kind)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (Problem(1, 1, 100, 64, seq_kv=64 * 5 - 7), TWO),  # a consumer with all of its rows and one with some
        (Problem(1, 1, 40, 128, seq_kv=64 * 5 - 7), CLUSTER_2),
        (Problem(1, 1, 33, 64, seq_kv=20, causal=True), CLUSTER_4),  # three CTAs without keys
        (Problem(1, 1, 40, 64, seq_kv=64 * 9 - 7), BOTH),  # of rank 0 one stage is filled again
        (Problem(1, 1, 40, 64, seq_kv=64 * 7 - 7), GROUPS),
        (Problem(1, 4, 10, 64, kv_heads=1, seq_kv=64 * 5 - 7), PACKED),
        (Problem(1, 1, 33, 64, seq_kv=64 * 5 - 7), CLUSTER_8),  # three CTAs without keys, of which none keeps rows
    ],
    ids=label,
)
def test_every_order_gives_the_same_bits_and_no_hazard(problem: Problem, config: Config) -> None:
    assert_same_bits_in_every_order(HOPPER, problem, config, checks=(*warpsan.CHECKS, "strict"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", [TWO, CLUSTER_4, GROUPS, ONE.but(PACK_GQA=2)], ids=str)
def test_log_sum_exp(config: Config) -> None:
    problem = Problem(1, 4, 70, 64, kv_heads=2, seq_kv=150, causal=True, scale=-0.2)
    assert_log_sum_exp(HOPPER, problem, config)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("head_dim", "config"), [(64, TWO), (128, CLUSTER_2)], ids=str)
def test_nothing_past_the_end_of_a_head_is_used(head_dim: int, config: Config) -> None:
    assert_nothing_past_the_end_is_used(HOPPER, Problem(1, 2, 37, head_dim, seq_kv=41), config)


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", [ONE, CLUSTER_2], ids=str)
def test_an_output_that_ends_within_a_tile_is_written_to_its_end_and_no_further(config: Config) -> None:
    assert_written_to_the_end_and_no_further(HOPPER, config)


def test_bfloat16_is_not_float16() -> None:
    # A value that float16 does not have, in and out.
    problem = Problem(1, 1, 8, 64, dtype="bfloat16")
    inputs = Inputs(*(np.full(problem.q_shape, 2.0**20, ml_dtypes.bfloat16) for _ in "qkv"))
    assert np.array_equal(run(HOPPER, problem, ONE, inputs=inputs).outputs["o"], inputs.v)


def test_everything_is_read_once_a_block_and_without_a_bank_conflict() -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=256)
    counted: list[Counters] = []

    def note(_: Build, report: warpsan.Report) -> None:
        assert report.counters is not None
        counted.append(report.counters)

    run(HOPPER, problem, CLUSTER_2, counters=True, on_launch=note)
    (counters,) = counted
    rows = 2 * problem.seq_q + 2 * problem.seq_kv  # Q by both blocks; each block's own half of K and V
    written = problem.seq_q
    assert counters.total("sectors", "async") == (rows + written) * problem.head_dim * 2 // 32
    assert counters.tensor_flops == problem.flops
    assert counters.total("sectors") == counters.total("ideal_sectors")
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")


def moved_rows(problem: Problem, config: Config) -> int:
    """Rows of head_dim elements that TMA moves, by the simulator's counters."""
    counted: list[Counters] = []

    def note(_: Build, report: warpsan.Report) -> None:
        assert report.counters is not None
        counted.append(report.counters)

    run(HOPPER, problem, config, counters=True, on_launch=note)
    (counters,) = counted
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")
    return counters.total("sectors", "async") * 32 // (2 * problem.head_dim)


def test_heads_that_share_a_tile_read_keys_and_values_once() -> None:
    problem = Problem(1, 8, 3, 64, kv_heads=2, seq_kv=128)
    q_and_o = 2 * problem.heads * problem.seq_q
    assert moved_rows(problem, ONE) == q_and_o + 2 * problem.heads * problem.seq_kv
    assert moved_rows(problem, ONE.but(PACK_GQA=4)) == q_and_o + 2 * problem.kv_heads * problem.seq_kv


@pytest.mark.parametrize(
    ("problem", "packed"),
    [
        (Problem(1, 32, 1, 64, kv_heads=8, seq_kv=4096), 4),  # a quarter of the tiles: eight SMs share one's keys
        (Problem(8, 32, 16, 128, kv_heads=8, seq_kv=4096), 4),
        (Problem(8, 32, 64, 64, kv_heads=8, seq_kv=4096), 2),  # a tile of 128 rows
        (Problem(1, 32, 512, 64, kv_heads=8, seq_kv=4096), 1),  # heads fill tiles by themselves
        (Problem(1, 28, 1, 128, kv_heads=4, seq_kv=4096), 1),  # seven heads a group
        (Problem(1, 24, 1, 128, kv_heads=4, seq_kv=4096), 2),  # six
        (Problem(4, 32, 1, 128, kv_heads=1, seq_kv=4096, kv_lengths=(1, 70, 4096, 900)), 16),
        (MISSION, 1),
    ],
    ids=label,
)
def test_heads_share_a_tile_where_fewer_tiles_read_the_keys(problem: Problem, packed: int) -> None:
    resolved = resolve(problem, AUTO)
    assert resolved.int("PACK_GQA") == packed
    (step,) = HOPPER.launch_plan(problem, AUTO).launches
    assert step.grid[1] == problem.heads // packed


def test_the_mission_shape_fills_the_gpu_and_has_all_its_keys_under_way_at_once() -> None:
    (step,) = HOPPER.launch_plan(MISSION).launches
    assert step.cluster == (2, 1, 1)
    assert SMS - 4 <= np.prod(step.grid) <= SMS
    resolved = resolve(MISSION, AUTO)
    assert resolved.int("NUM_STAGES") * resolved.int("BLOCK_N") * resolved.int("SPLIT") == MISSION.seq_kv
    assert step.dynamic_smem == smem_bytes(MISSION, resolved)


@pytest.mark.parametrize(
    ("problem", "knobs"),
    [
        (
            Problem(1, 8, 64, 64, seq_kv=8192),
            (64, 128, 4, 8, 2, 1),
        ),  # few rows: the keys go to eight SMs, and two groups
        (Problem(4, 32, 4096, 128), (128, 128, 2, 1, 1, 1)),  # persistent: a place for O instead of a stage
        (Problem(4, 32, 4096, 256), (128, 80, 2, 1, 1, 1)),
        (Problem(1, 1, 64, 64), (64, 64, 2, 1, 1, 1)),  # one tile: nothing to split
    ],
    ids=label,
)
def test_knobs_are_chosen_by_problem(problem: Problem, knobs: tuple[int, ...]) -> None:
    assert tuple(resolve(problem, AUTO)[name] for name in VALUES) == knobs


def test_what_is_given_is_not_chosen() -> None:
    assert resolve(MISSION, ONE) == ONE
    assert [resolve(MISSION.with_(head_dim=dim), AUTO)["EXP_ON_FMA"] for dim in (64, 128)] == [13, 0]
    assert resolve(MISSION, AUTO.but(SPLIT=1)).int("SPLIT") == 1
    assert resolve(MISSION, AUTO.but(BLOCK_M=128)).int("BLOCK_M") == 128


def test_a_second_wave_costs_as_much_as_the_first() -> None:
    full, more = (modelled_clocks(Problem(1, heads, 64, 64), 64, 1) for heads in (SMS, SMS + 1))
    assert more == 2 * full


def test_every_combination_that_a_search_tries_has_code_of_its_own() -> None:
    space = list(HOPPER.space(MISSION))
    assert len(space) == len(set(space)) > 50
    assert all(resolve(MISSION, config).but(NUM_CTAS=0) == config for config in space)


def test_small_problems_give_each_block_of_a_cluster_enough_tiles_to_fill_its_stages_again() -> None:
    stages = CLUSTER_2.int("NUM_STAGES")
    lengths = [problem.seq_kv for problem in small_problems(HOPPER, CLUSTER_2) if not problem.causal]
    whole = 2 * (2 * stages + 1) * 64
    assert lengths == [64, 2 * stages * 64, 2 * (stages + 1) * 64, whole - 7, whole]


def test_the_deletion_campaign_skips_the_knobs_that_depend_on_the_problem() -> None:
    lines: list[str] = []
    targets = list(deletion.targets(["hopper"], lines.append))
    assert [target.configs for target in targets] == [
        *((TWO,), (CLUSTER_2,), (BOTH,), (PERSISTENT.but(NUM_CTAS=1),), (PACKED,))
    ]
    assert lines[0].startswith(f"hopper {AUTO}: skipped")


REFUSALS = [
    Refusal({"BLOCK_M": 32}, "BLOCK_M must be one of 0, 64, 128, 192, not 32", "BLOCK_M is 64, 128 or 192"),
    Refusal({"BLOCK_N": 96}, "BLOCK_N must be one of 0, 64, 80, 128, 176, not 96", "BLOCK_N is 64, 80, 128 or 176"),
    Refusal({"NUM_STAGES": 1}, "NUM_STAGES must be one of 0, 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
    Refusal({"SPLIT": 3}, "SPLIT must be one of 0, 1, 2, 4, 8, not 3", "SPLIT is 1, 2, 4 or 8"),
    Refusal({"SCHEDULE": "stream_k"}, "SCHEDULE must be one of auto, tiles, persistent, not stream_k"),
    Refusal({"SCHEDULE": "persistent", "NUM_CTAS": -1}, "NUM_CTAS must be 0 to 65536, not -1"),
    Refusal(
        {"SCHEDULE": "persistent", "SPLIT": 2},
        "has blocks that split no keys: SPLIT must be 0 or 1, not 2",
        "persistent CTAs split no keys",
    ),
    Refusal(
        {"SCHEDULE": "persistent", "BLOCK_M": 64, "BLOCK_N": 128},
        "persistent blocks of 64 rows and tiles of 128 keys spill registers at head_dim 64: take another BLOCK_M or",
    ),
    Refusal({"KEY_GROUPS": 3}, "KEY_GROUPS must be one of 0, 1, 2, not 3", "KEY_GROUPS is 1 or 2"),
    Refusal({"PACK_GQA": 3}, "PACK_GQA must be one of 0, 1, 2, 4, 8, 16, not 3", "PACK_GQA is 1, 2, 4, 8 or 16"),
    Refusal({"PACK_GQA": 4}, "PACK_GQA must be 0, or divide the 1 query heads that share K and V, which 4 does not"),
    Refusal(
        {"KEY_GROUPS": 2, "BLOCK_M": 128, "NUM_STAGES": 4},
        "share the 64 rows of a block: BLOCK_M must be 0 or 64, and SCHEDULE auto or tiles",
        "groups have the same 64 rows",
    ),
    Refusal(
        {"KEY_GROUPS": 2, "NUM_STAGES": 4, "SCHEDULE": "persistent"},
        "share the 64 rows of a block: BLOCK_M must be 0 or 64, and SCHEDULE auto or tiles",
        "a place for one tile of queries",
    ),
    Refusal(
        {"KEY_GROUPS": 2, "NUM_STAGES": 2},
        "has two stages for each group: NUM_STAGES must be 0 or 4, not 2",
        "a consumer waits for its next V before it releases the one before",
    ),
    Refusal(
        {"BLOCK_M": 192, "BLOCK_N": 128},
        "take 160 registers for accumulators and weights, and with BLOCK_M=192",
        "leave a consumer registers for the rest",
        Problem(1, 1, 64, 128),
    ),
    Refusal({}, "supports head_dim 64, 128 or 256, not 32", "HEAD_DIM is 64, 128 or 256", Problem(1, 1, 8, 32)),
    Refusal({}, "supports head_dim 64, 128 or 256, not 96", "HEAD_DIM is 64, 128 or 256", Problem(1, 1, 64, 96)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(AS_GIVEN, refusal, ONE)


@pytest.mark.parametrize(
    ("head_dim", "changes", "reason"),
    [
        (64, {"NUM_CTAS": 8}, "with SCHEDULE=auto it must be 0, not 8"),
        (256, {"SCHEDULE": "persistent", "BLOCK_M": 128}, "shared memory, and the kernel's limit is 232448"),
        (128, {"BLOCK_M": 128, "BLOCK_N": 128, "NUM_STAGES": 4}, "shared memory, and the kernel's limit is 232448"),
        (128, {"BLOCK_M": 192}, "take 160 registers for accumulators and weights, and with BLOCK_M=192"),
        (256, {"BLOCK_N": 128}, "take 224 registers for accumulators and weights"),
    ],
    ids=str,
)
def test_knobs_are_refused_beside_which_nothing_can_be_chosen(
    head_dim: int, changes: dict[str, Knob], reason: str
) -> None:
    assert_refused(HOPPER, Refusal(changes, reason, problem=Problem(16, 16, 4096, head_dim)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", [TWO, CLUSTER_2, GROUPS, PERSISTENT], ids=str)
def test_smem_bytes_is_what_the_kernel_touches(config: Config) -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=128)
    assert_shared_memory(HOPPER, problem, config, smem_bytes(problem, config), step=8)
