"""The wmma kernel: right on every shape and knob, really on tensor cores, and within its static bars."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checking import assert_computes, assert_gate, ptx_of, resources_of, run

from sdpalab.build import BuildError, build
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.wmma import WMMA, smem_bytes
from sdpalab.problem import Problem

DEFAULT = WMMA.default_config
RAGGED = Problem(1, 2, 37, 32, kv_heads=1, seq_kv=45, causal=True)

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
    Problem(1, 1, 33, 128, seq_kv=70, dtype="bfloat16"),
    Problem(1, 1, 40, 32, scale=-0.3),
    Problem(1, 1, 40, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(WMMA, problem)


@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "large_logits"])
def test_probes(kind: str) -> None:
    assert_computes(WMMA, Problem(1, 1, 96, 32, causal=True), kind=kind)


@pytest.mark.parametrize(
    ("block_m", "block_n"), [(16, 16), (16, 64), (32, 32), (48, 16), (64, 64), (128, 16), (128, 32), (16, 128)]
)
def test_every_tile_is_correct(block_m: int, block_n: int) -> None:
    assert_computes(WMMA, RAGGED, DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n))


@pytest.mark.parametrize("knob", ["BLOCK_M", "BLOCK_N"])
def test_every_knob_changes_the_code(knob: str) -> None:
    programs = {ptx_of(WMMA, Problem(1, 1, 64, 64), DEFAULT.but(**{knob: value})) for value in (16, 32, 64)}
    assert len(programs) == 3


def test_both_products_are_on_tensor_cores() -> None:
    problem = Problem(1, 1, 64, 64)
    ptx = ptx_of(WMMA, problem)
    assert "cp.async" not in ptx
    assert "wmma.load.b.sync.aligned.col.m16n16k16.shared.f16" in ptx  # K^T
    assert "wmma.load.b.sync.aligned.row.m16n16k16.shared.f16" in ptx  # V
    assert "wmma.mma.sync.aligned" in ptx
    assert "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32" in ptx
    used = resources_of(WMMA, problem)
    assert used.tensor_share is not None
    assert used.tensor_share > 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"BLOCK_M": 24}, "BLOCK_M must be 16 rows for each of 1 to 32 warps, not 24"),
        ({"BLOCK_M": 0}, "BLOCK_M must be"),
        ({"BLOCK_M": 528}, "BLOCK_M must be"),
        ({"BLOCK_N": 24}, "BLOCK_N must be a multiple of 16 that divides head_dim or exceeds it, not 24"),
        ({"BLOCK_N": 48}, "BLOCK_N must be"),
        ({"BLOCK_N": 128}, "bytes of shared memory, and the kernel's limit is 65536"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        WMMA.launch_plan(Problem(1, 1, 64, 64), DEFAULT.but(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"BLOCK_M": 24}, "BLOCK_M is 16 rows for each of 32 warps at most"),
        ({"BLOCK_N": 48}, "BLOCK_N is a multiple of 16 that divides HEAD_DIM or exceeds it"),
    ],
    ids=str,
)
def test_the_source_refuses_them_too(changes: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError) as refused:
        build(WMMA.module(Problem(1, 1, 64, 64), DEFAULT.but(**changes)))
    assert message in str(refused.value)


def test_unsupported_problems_have_a_reason() -> None:
    assert "supports head_dim 32, 64 or 128, not 96" in str(WMMA.reject_reason(Problem(1, 1, 8, 96)))


@pytest.mark.parametrize("config", WMMA.configs, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_static_gate(config: Config, head_dim: int) -> None:
    problem = Problem(1, 8, 512, head_dim, causal=head_dim == 64)
    reason = WMMA.reject_reason(problem, config)
    if reason is None:
        assert_gate(WMMA, problem, config)
    else:
        assert head_dim == 128, reason
        assert "bytes of shared memory" in reason


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_other_architectures_keep_to_the_bars(arch: str) -> None:
    problem = Problem(1, 8, 512, 128, causal=True, dtype="bfloat16")
    used = resources_of(WMMA, problem, arch=arch)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= WMMA.static_limits(problem).registers


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32)
    (step,) = WMMA.launch_plan(problem).steps
    assert step.dynamic_smem == smem_bytes(problem, DEFAULT)
    assert not run(WMMA, problem, less_smem=16).hazards  # the padding of the last row, which nothing touches
    hazards = run(WMMA, problem, less_smem=32).hazards
    assert hazards
    assert all("out-of-bounds" in hazard and "shared memory" in hazard for hazard in hazards)


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_no_result_rests_on_the_order_of_warps(schedule: str) -> None:
    problem = Problem(1, 1, 70, 32, causal=True)
    lockstep = run(WMMA, problem).outputs["o"]
    result = run(WMMA, problem, schedule=schedule)
    assert not result.hazards
    assert result.outputs["o"].tobytes() == lockstep.tobytes()


@pytest.mark.parametrize("dropped", [0, 1])
def test_every_barrier_is_needed(dropped: int) -> None:
    assert isinstance(WMMA.source, Path)
    before, *after = WMMA.source.read_text().split("        __syncthreads();")
    assert len(after) == 2
    after[dropped] = "__syncwarp();" + after[dropped]
    after[1 - dropped] = "__syncthreads();" + after[1 - dropped]
    unsafe = replace(WMMA, name="wmma-unsafe", source=before + "".join(after))
    assert any("race" in hazard for hazard in run(unsafe, Problem(1, 1, 70, 32)).hazards)
