"""flash with windows, soft caps and key lengths: judged on the simulator; and its plain code is untouched by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checking import assert_gate

from sdpalab.bugs import SourceEdit
from sdpalab.inputs import loud_padding, make_inputs
from sdpalab.judge.rule.evaluate import Judged, judge_output
from sdpalab.judge.verdict import Status
from sdpalab.kernels.flash import FLASH
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Module
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from warpsan import CHECKS

WINDOW = Problem(1, 2, 100, 64, window_size=(30, 11))
CAUSAL = Problem(1, 2, 100, 64, causal=True, window_size=(30, 0), softcap=20.0)
PADDED = Problem(2, 2, 70, 32, kv_heads=1, seq_kv=90, kv_lengths=(90, 33), dtype="bfloat16")
EMPTY = Problem(2, 2, 90, 32, seq_kv=40, kv_lengths=(0, 30), window_size=(20, 9))  # an entry and the last rows see none
NEGATIVE = Problem(1, 1, 70, 128, window_size=(5, 5), softcap=9.0, scale=-0.1)
MLA = Problem(1, 2, 90, 192, seq_kv=130, head_dim_v=128, causal=True)
LAST = Problem(2, 2, 70, 64, seq_kv=130, kv_lengths=(100, 20), q_lengths=(70, 33), causal=True, bottom_right=True)


def outcome(kernel: CudaKernel, problem: Problem, kind: str, config: Config | None = None) -> Judged:
    """Run with every check of the simulator, and judged with its log-sum-exp."""
    inputs = make_inputs(problem, kind, 2)
    result = SimulatedExecutor("sm_89", checks=CHECKS).run(kernel.launch_plan(problem, config, lse=True), inputs.arrays)
    assert result.hazards == ()
    return judge_output(problem, inputs, result.outputs["o"], kernel.numerics_of(config), result.outputs["lse"])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "problem", [WINDOW, CAUSAL, PADDED, EMPTY, NEGATIVE, MLA, LAST], ids=lambda problem: problem.label
)
@pytest.mark.parametrize("kind", ["normal", "needle", "uniform", "forbidden"])
def test_it_is_right(problem: Problem, kind: str) -> None:
    judged = outcome(FLASH, problem, kind)
    assert judged.status is Status.PASSED, judged.reason


@pytest.mark.parametrize("lengths", [(100, 37), (0, 128), (1, 64), (63, 65)])
@pytest.mark.parametrize("problem", [{}, {"causal": True}, {"window_size": (20, 9), "dtype": "bfloat16"}], ids=str)
def test_no_output_depends_on_what_lies_behind_a_length(problem: dict[str, Any], lengths: tuple[int, int]) -> None:
    padded = Problem(2, 2, 128, 64, kv_heads=1, kv_lengths=lengths).with_(**problem)
    inputs = make_inputs(padded)
    assert np.isnan(inputs.k[1 - (lengths[1] == 128), :, -1]).all()
    results = [
        SimulatedExecutor("sm_89", checks=CHECKS).run(FLASH.launch_plan(padded), arrays)
        for arrays in (inputs.arrays, loud_padding(inputs.arrays), inputs.padded(0.0).arrays)
    ]
    assert len({result.outputs["o"].tobytes() for result in results}) == 1
    assert not any(result.hazards for result in results)
    judged = judge_output(padded, inputs, results[0].outputs["o"], FLASH.numerics_of(None))
    assert judged.status is Status.PASSED, judged.reason


@pytest.mark.slow
@pytest.mark.parametrize("config", [each for each in FLASH.configs if each["SCHEDULE"] in ("tiles", "auto")], ids=str)
def test_every_configuration_with_tiles_is_right(config: Config) -> None:
    judged = outcome(FLASH, CAUSAL.with_(window_size=(37, 0)), "normal", Config(config))
    assert judged.status is Status.PASSED, judged.reason


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("problem", "edit"),
    [
        (WINDOW, ("key < end && (WINDOW_LEFT < 0 || key >= first)", "key < end")),
        (WINDOW, ("key < end && (", "key <= end && (")),
        (WINDOW, ("seen.first, seen.end, tiles}", "seen.first + (first_row > 0), seen.end, tiles}")),
        (PADDED, ("kv_lengths[blockIdx.z]", "kv_lengths[0]")),
        (CAUSAL, ("if constexpr (Mask::CAPS)", "if constexpr (false)")),
    ],
    ids=["no left side", "one key after the right side", "the first tile left out", "another length", "no soft cap"],
)
def test_a_planted_bug_is_rejected(problem: Problem, edit: tuple[str, str]) -> None:
    assert outcome(SourceEdit("flash", (edit,), of="variant").apply(), problem, "forbidden").status is not Status.PASSED


def test_a_plain_problem_has_the_plain_source_and_its_macros_alone() -> None:
    plain, masked = (FLASH.launch_plan(problem).launches[0] for problem in (Problem(1, 2, 100, 64), PADDED))
    assert isinstance(plain.module, Module)
    assert isinstance(masked.module, Module)
    assert (plain.module.name, masked.module.name) == ("flash.cu", "flash_masked.cu")
    added = {"WINDOW_LEFT", "WINDOW_RIGHT", "SOFTCAP", "KV_LENGTHS"}
    assert not added & set(plain.module.defines)
    assert added <= set(masked.module.defines)
    assert masked.args[-1] == "kv_lengths"
    assert FLASH.launch_plan(WINDOW).launches[0].args[-1] == 0


def test_what_it_does_not_take_is_refused() -> None:
    reason = FLASH.why_not(Problem(1, 2, 64, 64, sinks=True))
    assert reason is not None
    assert "does not take sinks" in reason
    reason = FLASH.why_not(WINDOW, FLASH.default_config.but(SCHEDULE="stream_k"))
    assert reason == "SCHEDULE=stream_k is not for window_size: tiles and auto are"


@pytest.mark.parametrize("problem", [{"causal": True}, {"batch": 2, "kv_lengths": (512, 100)}], ids=str)
def test_no_register_is_spilled_at_head_dim_128(problem: dict[str, Any]) -> None:
    assert_gate(FLASH, Problem(1, 8, 512, 128, window_size=(30, 9)).with_(**problem))
