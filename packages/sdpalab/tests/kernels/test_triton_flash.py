"""The triton_flash kernel: right with every knob, one PTX with and without LSE, clean in every schedule.

What it computes whatever its knobs, what it refuses of problems, and its static limits are in ``test_ladder*.py``.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs the extra: pip install 'sdpalab[triton]'")

from checking import assert_computes, assert_log_sum_exp, assert_values_have_their_own_code, resources_of
from refusals import Refusal, assert_refused

from sdpalab.judge.sanitize import sanitize_kernel
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.triton_flash import KNOBS, TRITON_FLASH, smem_bytes
from sdpalab.problem import MISSION, Problem
from warpsan.sanitize.sanitizer import Modes

DEFAULT = TRITON_FLASH.default_config
RAGGED = Problem(1, 2, 150, 32, kv_heads=1, seq_kv=205, causal=True)


def test_computes_the_smallest_head_dim() -> None:
    assert_computes(TRITON_FLASH, Problem(1, 1, 40, 16, seq_kv=100))


@pytest.mark.sample(2)
@pytest.mark.parametrize("config", [Config(knobs) for knobs in TRITON_FLASH.configs], ids=str)
def test_every_configuration_is_correct(config: Config) -> None:
    assert_computes(TRITON_FLASH, RAGGED, config)


def test_on_sm_90_the_compiler_takes_wgmma() -> None:
    used = resources_of(TRITON_FLASH, MISSION, arch="sm_90")
    assert used.sass["HGMMA"] > 0
    assert_computes(TRITON_FLASH, Problem(1, 1, 70, 64, seq_kv=90, causal=True), arch="sm_90")


@pytest.mark.sample(1)
@pytest.mark.parametrize("causal", [False, True])
def test_log_sum_exp(causal: bool) -> None:
    problem = Problem(2, 2, 70, 32, kv_heads=1, seq_kv=90, causal=causal, scale=-0.7)
    assert_log_sum_exp(TRITON_FLASH, problem)
    (step,), (without,) = (TRITON_FLASH.launch_plan(problem, lse=lse).launches for lse in (True, False))
    assert step.module == without.module  # one PTX for both
    assert without.args[4] == 0


def test_hazards_none_in_any_schedule() -> None:
    problem = Problem(1, 1, 70, 64, seq_kv=140, causal=True)
    assert sanitize_kernel(TRITON_FLASH, [problem], modes=Modes(strict=True)).clean


@pytest.mark.sample(1)
@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_changes_the_code(knob: str) -> None:
    assert_values_have_their_own_code(TRITON_FLASH, knob, KNOBS[knob][:2])


def test_the_search_space_fits_shared_memory() -> None:
    problem = Problem(1, 1, 64, 128)
    space = list(TRITON_FLASH.space(problem))
    assert len(space) < len(list(TRITON_FLASH.space(problem.with_(head_dim=64)))) == 3 * 3 * 3 * 4
    largest = max(space, key=lambda config: smem_bytes(problem, config))
    assert smem_bytes(problem, largest) == 3 * 2 * 64 * 128 * 2
    used = resources_of(TRITON_FLASH, problem, DEFAULT)
    assert smem_bytes(problem, DEFAULT) <= used.shared_bytes <= TRITON_FLASH.static_limits(problem).shared_bytes


REFUSALS = [
    Refusal({"BLOCK_M": 16}, "BLOCK_M must be one of 32, 64, 128, not 16"),
    Refusal({"num_warps": 3}, "num_warps must be one of 2, 4, 8, not 3"),
    Refusal(
        {"BLOCK_N": 64, "num_stages": 4},
        "131072 bytes of shared memory, and the kernel's limit is 101376",
        problem=Problem(1, 1, 64, 128),
    ),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(TRITON_FLASH, refusal)
