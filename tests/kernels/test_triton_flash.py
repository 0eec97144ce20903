"""The triton_flash kernel: right on every shape and knob, one PTX with and without LSE, within its static bars."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs the extra: pip install 'sdpalab[triton]'")

from checking import assert_computes, assert_gate, ptx_of, resources_of

from sdpalab.inputs import make_inputs
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.triton_flash import KNOBS, TRITON_FLASH, smem_bytes
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from sdpalab.run.sanitize import Modes, sanitize_kernel

DEFAULT = TRITON_FLASH.default_config
RAGGED = Problem(1, 2, 150, 32, kv_heads=1, seq_kv=205, causal=True)

SHAPES = [
    Problem(1, 1, 1, 64),
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(2, 2, 64, 64, causal=True),
    Problem(1, 1, 40, 16, seq_kv=100),
    Problem(1, 1, 65, 128, seq_kv=31),
    Problem(1, 1, 31, 128, seq_kv=65, causal=True, dtype="bfloat16"),
    Problem(1, 2, 200, 32, seq_kv=70, causal=True),
    Problem(2, 4, 40, 32, kv_heads=2, seq_kv=17, causal=True),
    Problem(1, 1, 70, 64, dtype="bfloat16"),
    Problem(1, 1, 90, 32, scale=-0.3, causal=True),
    Problem(1, 1, 90, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(TRITON_FLASH, problem)


@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "equal", "huge"])
def test_probes(kind: str) -> None:
    assert_computes(TRITON_FLASH, Problem(1, 1, 140, 32, causal=True), kind=kind)


@pytest.mark.parametrize("scale", [0.125, -0.125, 3.0e37])
def test_logits_near_the_fp16_maximum_select_one_key_exactly(scale: float) -> None:
    # One key a row has a score of 1e11 and more: a maximum that is scaled before it is subtracted is off by thousands.
    problem = Problem(1, 1, 64, 64, seq_kv=130, scale=scale)
    draw = np.random.default_rng(7)
    chosen = draw.integers(0, problem.seq_kv, problem.seq_q)
    sign = draw.choice([-1.0, 1.0], (problem.seq_kv, problem.head_dim))
    k = (sign * 50000).astype(np.float16)[None, None]
    q = (np.sign(scale) * sign[chosen] * 60000).astype(np.float16)[None, None]
    v = draw.standard_normal(problem.kv_shape).astype(np.float16)
    result = SimulatedExecutor().run(TRITON_FLASH.launch_plan(problem), {"q": q, "k": k, "v": v})
    assert np.array_equal(result.outputs["o"][0, 0], v[0, 0, chosen])
    assert not result.hazards


@pytest.mark.parametrize("config", [Config(knobs) for knobs in TRITON_FLASH.configs], ids=str)
def test_every_configuration_computes_and_passes_the_static_gate(config: Config) -> None:
    assert_computes(TRITON_FLASH, RAGGED, config)
    for head_dim in (64, 128):
        assert_gate(TRITON_FLASH, Problem(1, 8, 512, head_dim, causal=True), config)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_no_architecture_spills(arch: str) -> None:
    problem = Problem(1, 8, 512, 128, causal=True)
    used = resources_of(TRITON_FLASH, problem, arch=arch)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.shared_bytes <= TRITON_FLASH.static_limits(problem).shared_bytes


def test_on_sm_90_the_compiler_takes_wgmma() -> None:
    used = resources_of(TRITON_FLASH, MISSION, arch="sm_90")
    assert used.sass["HGMMA"] > 0
    assert_computes(TRITON_FLASH, Problem(1, 1, 70, 64, seq_kv=90, causal=True), arch="sm_90")


@pytest.mark.parametrize("causal", [False, True])
def test_log_sum_exp(causal: bool) -> None:
    problem = Problem(2, 2, 70, 32, kv_heads=1, seq_kv=90, causal=causal, scale=-0.7)
    inputs = make_inputs(problem)
    plan = TRITON_FLASH.launch_plan(problem, lse=True)
    result = SimulatedExecutor().run(plan, {"q": inputs.q, "k": inputs.k, "v": inputs.v})
    scores = problem.scale * np.einsum("bhqd,bgkd->bhqk", inputs.q.astype(float), inputs.k.astype(float))
    if causal:
        scores[..., np.tril(np.ones(scores.shape[-2:])) == 0] = -np.inf
    np.testing.assert_allclose(result.outputs["lse"], np.log(np.exp(scores).sum(-1)), rtol=2e-6, atol=2e-6)
    assert not result.hazards
    (step,), (without,) = plan.launches, TRITON_FLASH.launch_plan(problem).launches
    assert step.module == without.module  # one PTX for both
    assert without.args[4] == 0


def test_hazards_none_in_any_schedule() -> None:
    problem = Problem(1, 1, 70, 64, seq_kv=140, causal=True)
    assert sanitize_kernel(TRITON_FLASH, [problem], modes=Modes(strict=True)).clean


@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_changes_the_code(knob: str) -> None:
    values = KNOBS[knob][:2]
    programs = {ptx_of(TRITON_FLASH, Problem(1, 1, 64, 64), DEFAULT.but(**{knob: value})) for value in values}
    assert len(programs) == len(values)


def test_the_search_space_fits_shared_memory() -> None:
    problem = Problem(1, 1, 64, 128)
    space = list(TRITON_FLASH.space(problem))
    assert len(space) < len(list(TRITON_FLASH.space(problem.with_(head_dim=64)))) == 3 * 3 * 3 * 4
    largest = max(space, key=lambda config: smem_bytes(problem, config))
    assert smem_bytes(problem, largest) == 3 * 2 * 64 * 128 * 2
    used = resources_of(TRITON_FLASH, problem, DEFAULT)
    assert smem_bytes(problem, DEFAULT) <= used.shared_bytes <= TRITON_FLASH.static_limits(problem).shared_bytes


@pytest.mark.parametrize(
    ("head_dim", "changes", "reason"),
    [
        (64, {"BLOCK_M": 16}, "BLOCK_M must be one of 32, 64, 128, not 16"),
        (64, {"num_warps": 3}, "num_warps must be one of 2, 4, 8, not 3"),
        (128, {"BLOCK_N": 64, "num_stages": 4}, "131072 bytes of shared memory, and the kernel's limit is 101376"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused(head_dim: int, changes: dict[str, int], reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        TRITON_FLASH.launch_plan(Problem(1, 1, 64, head_dim), DEFAULT.but(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 96), "supports head_dim 16, 32, 64 or 128, not 96"),
        (Problem(1, 1, 8, 64, scale=-3e38), "scale=-3e+38 does not fit"),
        (Problem(1, 70000, 8, 64), "at most 65535, not 70000"),
    ],
    ids=["head_dim", "scale", "heads"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(TRITON_FLASH.reject_reason(problem))
