"""hopper with windows, soft caps and key lengths: judged on the simulator, within its static limits; the plain code has
none of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checking import assert_gate

from sdpalab.bugs.edit import SourceEdit
from sdpalab.inputs import loud_padding, make_inputs
from sdpalab.judge.rule.evaluate import Judged, judge_output
from sdpalab.judge.verdict import Status
from sdpalab.kernels.hopper import HOPPER
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Module
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from warpsan import CHECKS

WINDOW = Problem(1, 2, 100, 64, seq_kv=150, window_size=(30, 11))
CAUSAL = Problem(1, 2, 150, 64, causal=True, window_size=(70, 0), softcap=20.0)
PADDED = Problem(2, 2, 70, 128, kv_heads=1, seq_kv=140, kv_lengths=(140, 33), dtype="bfloat16")
EMPTY = Problem(
    2, 2, 200, 64, seq_kv=40, kv_lengths=(0, 30), window_size=(20, 9)
)  # an entry and the last rows see none
NEGATIVE = Problem(1, 1, 70, 64, window_size=(5, 5), softcap=9.0, scale=-0.1)
SHARED = Problem(2, 4, 45, 64, kv_heads=1, seq_kv=140, kv_lengths=(140, 33), window_size=(20, 9))
"""Four heads in a tile of queries."""
SMALL_TILES = HOPPER.default_config.but(BLOCK_M=128, BLOCK_N=64, NUM_STAGES=2)
"""Several tiles of keys, and two consumers in turn."""


def outcome(kernel: CudaKernel, problem: Problem, kind: str, config: Config | None = None) -> Judged:
    """Run with every check of the simulator, and judged with its log-sum-exp."""
    inputs = make_inputs(problem, kind, 2)
    plan = kernel.launch_plan(problem, config, lse=True)
    result = SimulatedExecutor("sm_90a", checks=CHECKS).run(plan, inputs.arrays)
    assert result.hazards == ()
    return judge_output(problem, inputs, result.outputs["o"], kernel.numerics_of(config), result.outputs["lse"])


@pytest.mark.sample(2)
@pytest.mark.parametrize("config", [None, SMALL_TILES], ids=["auto", "small tiles"])
@pytest.mark.parametrize("problem", [WINDOW, CAUSAL, PADDED, EMPTY, NEGATIVE], ids=lambda problem: problem.label)
@pytest.mark.parametrize("kind", ["normal", "needle", "uniform", "forbidden"])
def test_it_is_right(problem: Problem, kind: str, config: Config | None) -> None:
    judged = outcome(HOPPER, problem, kind, config)
    assert judged.status is Status.PASSED, judged.reason


@pytest.mark.parametrize("kind", ["normal", "forbidden"])
def test_heads_share_a_tile(kind: str) -> None:
    judged = outcome(HOPPER, SHARED, kind, SMALL_TILES.but(PACK_GQA=4))
    assert judged.status is Status.PASSED, judged.reason


@pytest.mark.parametrize("lengths", [(100, 37), (0, 128), (1, 64), (63, 65)])
@pytest.mark.parametrize("problem", [{}, {"causal": True}, {"window_size": (20, 9), "dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("config", [None, SMALL_TILES, SMALL_TILES.but(BLOCK_N=80)], ids=["auto", "64 keys", "80 keys"])
@pytest.mark.sample(4)
def test_no_output_depends_on_what_lies_behind_a_length(
    config: Config | None, problem: dict[str, Any], lengths: tuple[int, int]
) -> None:
    padded = Problem(2, 2, 128, 64, kv_heads=1, kv_lengths=lengths).with_(**problem)
    inputs = make_inputs(padded)
    assert np.isnan(inputs.k[1 - (lengths[1] == 128), :, -1]).all()
    results = [
        SimulatedExecutor("sm_90a", checks=CHECKS).run(HOPPER.launch_plan(padded, config), arrays)
        for arrays in (inputs.arrays, loud_padding(inputs.arrays), inputs.padded(0.0).arrays)
    ]
    assert len({result.outputs["o"].tobytes() for result in results}) == 1
    assert not any(result.hazards for result in results)
    judged = judge_output(padded, inputs, results[0].outputs["o"], HOPPER.numerics_of(config))
    assert judged.status is Status.PASSED, judged.reason


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("problem", "edit"),
    [
        (WINDOW, ("column >= first[row] && ", "")),
        (WINDOW, ("column < end[row]", "column <= end[row]")),
        (CAUSAL, ("{first_key(first_row) / KEYS,", "{first_key(first_row) / KEYS + (first_row > 0),")),
        (PADDED, ("kv_lengths[blockIdx.z]", "kv_lengths[0]")),
        (CAUSAL, ("columns.cap(s_frag, scale.log2);", "")),
    ],
    ids=["no left side", "one key after the right side", "the first tile left out", "another length", "no soft cap"],
)
def test_a_planted_bug_is_rejected(problem: Problem, edit: tuple[str, str]) -> None:
    wrong = SourceEdit("hopper", (edit,), dict(SMALL_TILES), of="variant").apply()
    assert outcome(wrong, problem, "forbidden").status is not Status.PASSED


def test_a_plain_problem_has_the_plain_source_and_its_macros_alone() -> None:
    plain, masked = (HOPPER.launch_plan(problem).launches[0] for problem in (Problem(1, 2, 100, 64), PADDED))
    assert isinstance(plain.module, Module)
    assert isinstance(masked.module, Module)
    assert (plain.module.name, masked.module.name) == ("hopper.cu", "hopper_masked.cu")
    added = {"WINDOW_LEFT", "WINDOW_RIGHT", "SOFTCAP", "KV_LENGTHS"}
    assert not added & set(plain.module.defines)
    assert added <= set(masked.module.defines)
    assert masked.args[-1] == "kv_lengths"
    assert HOPPER.launch_plan(WINDOW).launches[0].args[-1] == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 8, 512, 64, causal=True, window_size=(128, 0)),
        Problem(2, 8, 512, 128, softcap=30.0, kv_lengths=(512, 100)),
        Problem(1, 8, 500, 256, window_size=(100, 50)),
    ],
    ids=lambda problem: problem.label,
)
def test_the_static_limits_are_kept(problem: Problem) -> None:
    assert_gate(HOPPER, problem)


@pytest.mark.parametrize(
    ("problem", "changes", "words"),
    [
        (Problem(1, 2, 64, 64, sinks=True), {}, "does not take sinks"),
        (WINDOW, {"SPLIT": 2}, "for window_size: SPLIT is 0 or 1"),
        (WINDOW, {"SCHEDULE": "persistent"}, "SCHEDULE auto or tiles"),
        (CAUSAL, {"BLOCK_N": 128}, "BLOCK_N is at most 64, not 128"),
        (Problem(1, 1, 64, 256, softcap=9.0), {}, "a soft cap up to head_dim 128"),
    ],
)
def test_what_it_does_not_take_is_refused(problem: Problem, changes: dict[str, int | str], words: str) -> None:
    reason = HOPPER.why_not(problem, HOPPER.default_config.but(**changes))
    assert reason is not None
    assert words in reason
