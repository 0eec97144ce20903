"""The cp_async kernel: as right as the wmma kernel with any number of stages, and different from it by its copies."""

from __future__ import annotations

import re

import numpy as np
import pytest
from checking import assert_computes, assert_gate, ptx_of, resources_of, run

from sdpalab.build import BuildError, build
from sdpalab.kernels.cp_async import CP_ASYNC, smem_bytes
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.wmma import WMMA
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor

DEFAULT = CP_ASYNC.default_config
STAGES = (1, 2, 3)
RAGGED = Problem(1, 2, 37, 32, kv_heads=1, seq_kv=109, causal=False)

SHAPES = [
    Problem(1, 1, 1, 32),
    Problem(1, 1, 1, 64, seq_kv=70),
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(2, 2, 64, 64, causal=True),
    Problem(1, 1, 65, 128, seq_kv=31),
    Problem(1, 1, 31, 128, seq_kv=65, causal=True),
    Problem(2, 4, 40, 32, kv_heads=2, seq_kv=17, causal=True),
    Problem(1, 3, 32, 32, kv_heads=1, seq_kv=97),
    Problem(1, 1, 70, 64, dtype="bfloat16", causal=True),
    Problem(1, 1, 40, 32, scale=-0.3),
    Problem(1, 1, 40, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(CP_ASYNC, problem)


@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "large_logits"])
def test_probes(kind: str) -> None:
    assert_computes(CP_ASYNC, Problem(1, 1, 96, 32, causal=True), kind=kind)


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (32, 32), (48, 16), (128, 32), (16, 64)])
def test_every_tile_and_number_of_stages_is_correct(block_m: int, block_n: int, stages: int) -> None:
    assert_computes(CP_ASYNC, RAGGED, DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n, NUM_STAGES=stages))


@pytest.mark.parametrize("stages", STAGES)
def test_the_bits_are_those_of_the_wmma_kernel(stages: int) -> None:
    problem = Problem(1, 2, 70, 64, seq_kv=150, causal=True)
    expected = run(WMMA, problem).outputs["o"]
    for config in (DEFAULT.but(NUM_STAGES=stages), DEFAULT.but(NUM_STAGES=stages, BLOCK_M=16)):
        assert run(CP_ASYNC, problem, config).outputs["o"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("knob", [("BLOCK_M", (16, 32)), ("BLOCK_N", (16, 32)), ("NUM_STAGES", STAGES)], ids=str)
def test_every_knob_changes_the_code(knob: tuple[str, tuple[int, ...]]) -> None:
    name, values = knob
    programs = {ptx_of(CP_ASYNC, Problem(1, 1, 64, 64), DEFAULT.but(**{name: value})) for value in values}
    assert len(programs) == len(values)


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


def test_nothing_past_the_end_of_a_head_is_used() -> None:
    # Tiles reach past the end of the first head's K and V into the second's, which is NaN.
    problem = Problem(1, 2, 37, 64, seq_kv=41)
    draw = np.random.default_rng(3)
    inputs = {"q": draw.standard_normal(problem.q_shape).astype(np.float16)}
    inputs |= {name: draw.standard_normal(problem.kv_shape).astype(np.float16) for name in "kv"}
    clean = SimulatedExecutor().run(CP_ASYNC.launch_plan(problem), inputs).outputs["o"]
    for array in inputs.values():
        array[:, 1] = np.nan
    spoilt = SimulatedExecutor().run(CP_ASYNC.launch_plan(problem), inputs).outputs["o"]
    assert np.array_equal(spoilt[:, 0], clean[:, 0])
    assert np.isnan(spoilt[:, 1]).all()


@pytest.mark.parametrize("config", CP_ASYNC.configs, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_static_gate(config: Config, head_dim: int) -> None:
    problem = Problem(1, 8, 512, head_dim, causal=head_dim == 64)
    reason = CP_ASYNC.reject_reason(problem, config)
    if reason is None:
        assert_gate(CP_ASYNC, problem, config)
    else:
        assert (head_dim, config["NUM_STAGES"]) == (128, 3)
        assert "needs 83968 bytes of shared memory, and the kernel's limit is 73728" in reason


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_other_architectures_keep_to_the_bars(arch: str) -> None:
    problem = Problem(1, 8, 512, 128, causal=True, dtype="bfloat16")
    used = resources_of(CP_ASYNC, problem, arch=arch)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= CP_ASYNC.static_limits(problem).registers


@pytest.mark.parametrize(("stages", "blocks"), [(1, 3), (2, 2), (3, 1)])
def test_each_stage_costs_a_block_of_the_sm(stages: int, blocks: int) -> None:
    assert resources_of(CP_ASYNC, MISSION, DEFAULT.but(NUM_STAGES=stages)).blocks_per_sm == blocks


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"BLOCK_M": 24}, "BLOCK_M must be 16 rows for each of 1 to 32 warps, not 24"),
        ({"BLOCK_N": 48}, "BLOCK_N must be a multiple of 16 that divides head_dim or exceeds it, not 48"),
        ({"NUM_STAGES": 0}, "NUM_STAGES must be one of 1, 2, 3, not 0"),
        ({"NUM_STAGES": 4}, "NUM_STAGES must be one of 1, 2, 3, not 4"),
        ({"BLOCK_N": 64}, "needs 72704 bytes of shared memory, and the kernel's limit is 65536"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        CP_ASYNC.launch_plan(Problem(1, 1, 64, 64), DEFAULT.but(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"BLOCK_M": 24}, "BLOCK_M is 16 rows for each of 32 warps at most"),
        ({"BLOCK_N": 48}, "BLOCK_N is a multiple of 16 that divides HEAD_DIM or exceeds it"),
        ({"NUM_STAGES": 4}, "NUM_STAGES is 1, 2 or 3"),
    ],
    ids=str,
)
def test_the_source_refuses_them_too(changes: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError) as refused:
        build(CP_ASYNC.module(Problem(1, 1, 64, 64), DEFAULT.but(**changes)))
    assert message in str(refused.value)


def test_unsupported_problems_have_a_reason() -> None:
    assert "supports head_dim 32, 64 or 128, not 96" in str(CP_ASYNC.reject_reason(Problem(1, 1, 8, 96)))


@pytest.mark.parametrize("stages", STAGES)
def test_smem_bytes_is_what_the_kernel_touches(stages: int) -> None:
    problem, config = Problem(1, 1, 64, 32, seq_kv=100), DEFAULT.but(NUM_STAGES=stages)
    (step,) = CP_ASYNC.launch_plan(problem, config).launches
    assert step.dynamic_smem == smem_bytes(problem, config)
    assert not run(CP_ASYNC, problem, config, less_smem=16).hazards  # the last row's padding, which nothing touches
    hazards = run(CP_ASYNC, problem, config, less_smem=32).hazards
    assert hazards
    assert all("out-of-bounds" in hazard and "shared memory" in hazard for hazard in hazards)


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_no_result_rests_on_the_order_of_warps_or_copies(schedule: str, stages: int) -> None:
    problem, config = Problem(1, 1, 70, 32, seq_kv=130), DEFAULT.but(NUM_STAGES=stages)
    lockstep = run(CP_ASYNC, problem, config).outputs["o"]
    for async_mode in ("late", "early"):
        result = run(CP_ASYNC, problem, config, schedule=schedule, async_mode=async_mode)
        assert not result.hazards
        assert result.outputs["o"].tobytes() == lockstep.tobytes()
