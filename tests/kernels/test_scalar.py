"""The scalar kernel: right on every shape and knob, each knob a different program, and within its static bars."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checking import assert_computes, assert_gate, ptx_of, run

from sdpalab.build import BuildError, build
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.scalar import SCALAR, smem_bytes
from sdpalab.problem import Problem

DEFAULT = SCALAR.default_config
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
    Problem(1, 1, 50, 64, dtype="bfloat16", causal=True),
    Problem(1, 1, 40, 32, scale=-0.3),
    Problem(1, 1, 40, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(SCALAR, problem)


@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "large_logits"])
def test_probes(kind: str) -> None:
    assert_computes(SCALAR, Problem(1, 1, 96, 32, causal=True), kind=kind)


@pytest.mark.parametrize("vec_width", [1, 2, 4, 8])
@pytest.mark.parametrize("sync", ["block", "warp"])
@pytest.mark.parametrize("reduce", ["shuffle", "shared"])
def test_every_policy_is_correct(vec_width: int, sync: str, reduce: str) -> None:
    assert_computes(SCALAR, RAGGED, DEFAULT.but(VEC_WIDTH=vec_width, SYNC_POLICY=sync, REDUCE=reduce))


@pytest.mark.parametrize("tile", [(4, 8, 1), (16, 24, 2), (64, 16, 8), (32, 40, 4)], ids=str)
@pytest.mark.parametrize("sync", ["block", "warp"])
def test_every_tile_is_correct(tile: tuple[int, int, int], sync: str) -> None:
    block_m, block_n, warps = tile
    config = DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n, NUM_WARPS=warps, SYNC_POLICY=sync)
    assert_computes(SCALAR, RAGGED, config)


@pytest.mark.parametrize(
    ("knob", "values"),
    [
        ("BLOCK_M", (16, 32, 64)),
        ("BLOCK_N", (8, 32, 64)),
        ("NUM_WARPS", (1, 2, 4)),
        ("VEC_WIDTH", (1, 2, 4, 8)),
        ("SYNC_POLICY", ("block", "warp")),
        ("REDUCE", ("shuffle", "shared")),
    ],
)
def test_every_knob_changes_the_code(knob: str, values: tuple[int | str, ...]) -> None:
    problem = Problem(1, 1, 64, 32)
    programs = {ptx_of(SCALAR, problem, DEFAULT.but(**{knob: value})) for value in values}
    assert len(programs) == len(values)


def test_knobs_do_what_they_are_called() -> None:
    problem = Problem(1, 1, 64, 64)
    default = ptx_of(SCALAR, problem)
    assert "ld.global.nc.v4.u32" in default
    assert "bar.sync" in default or "barrier.sync" in default
    assert "shfl.sync.bfly" in default
    assert "wmma" not in default
    assert "mma.sync" not in default
    narrow = ptx_of(SCALAR, problem, DEFAULT.but(VEC_WIDTH=1))
    assert "ld.global.nc.u16" in narrow
    assert "ld.global.nc.v" not in narrow
    alone = ptx_of(SCALAR, problem, DEFAULT.but(SYNC_POLICY="warp", BLOCK_N=16))
    assert "bar.warp.sync" in alone
    assert "bar.sync" not in alone
    assert "barrier.sync" not in alone
    assert "shfl" not in ptx_of(SCALAR, problem, DEFAULT.but(REDUCE="shared"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"NUM_WARPS": 0}, "NUM_WARPS must be 1 to 32, not 0"),
        ({"NUM_WARPS": 33}, "NUM_WARPS must be 1 to 32, not 33"),
        ({"BLOCK_M": 24}, "BLOCK_M must be a multiple of 4 rows for each of NUM_WARPS=4 warps, not 24"),
        ({"BLOCK_M": 0}, "BLOCK_M must be"),
        ({"BLOCK_N": 12}, "BLOCK_N must be a multiple of 8 keys, not 12"),
        ({"BLOCK_N": -8}, "BLOCK_N must be"),
        ({"VEC_WIDTH": 3}, "VEC_WIDTH must be one of 1, 2, 4, 8, not 3"),
        ({"SYNC_POLICY": "grid"}, "SYNC_POLICY must be one of block, warp, not 'grid'"),
        ({"REDUCE": "atomic"}, "REDUCE must be one of shuffle, shared, not 'atomic'"),
        ({"BLOCK_M": 128, "NUM_WARPS": 1}, "scores and outputs; at most 128 fit"),
        ({"BLOCK_N": 128}, "bytes of shared memory, and the kernel's limit is 65536"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused(changes: dict[str, int | str], reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        SCALAR.launch_plan(Problem(1, 1, 64, 64), DEFAULT.but(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"BLOCK_M": 24}, "BLOCK_M is a multiple of 4 rows a warp"),
        ({"BLOCK_N": 12}, "BLOCK_N is a multiple of 8 keys"),
        ({"VEC_WIDTH": 3}, "a load is 2, 4, 8 or 16 bytes"),
        ({"SYNC_POLICY": "grid"}, "grid"),
        ({"REDUCE": "atomic"}, "atomic"),
        ({"BLOCK_M": 128, "NUM_WARPS": 1}, "scores and outputs fit its registers"),
    ],
    ids=str,
)
def test_the_source_refuses_them_too(changes: dict[str, int | str], message: str) -> None:
    with pytest.raises(BuildError) as refused:
        build(SCALAR.module(Problem(1, 1, 64, 64), DEFAULT.but(**changes)))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 96), "supports head_dim 32, 64 or 128, not 96"),
        (Problem(65536, 1, 8, 64), "batch"),
        (Problem(1, 1, 2**25, 64), "seq_q"),
    ],
    ids=["head_dim", "batch", "seq_q"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(SCALAR.reject_reason(problem))


@pytest.mark.parametrize("config", SCALAR.configs, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_static_gate(config: Config, head_dim: int) -> None:
    problem = Problem(1, 8, 512, head_dim, causal=head_dim == 64)
    reason = SCALAR.reject_reason(problem, config)
    if reason is None:
        assert_gate(SCALAR, problem, config)
    else:
        assert head_dim == 128, reason
        assert "bytes of shared memory" in reason


@pytest.mark.parametrize("changes", [{}, {"SYNC_POLICY": "warp"}, {"REDUCE": "shared"}], ids=str)
def test_smem_bytes_is_what_the_kernel_touches(changes: dict[str, int | str]) -> None:
    problem, config = Problem(1, 1, 32, 32), DEFAULT.but(**changes)
    (step,) = SCALAR.launch_plan(problem, config).steps
    assert step.dynamic_smem == smem_bytes(problem, config)
    padding = 32 if config["REDUCE"] == "shuffle" else 0  # of the last row of P, which nothing touches
    assert not run(SCALAR, problem, config, less_smem=padding).hazards
    hazards = run(SCALAR, problem, config, less_smem=padding + 4).hazards
    assert hazards
    assert all("out-of-bounds" in hazard and "shared memory" in hazard for hazard in hazards)


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
@pytest.mark.parametrize("sync", ["block", "warp"])
def test_no_result_rests_on_the_order_of_warps(schedule: str, sync: str) -> None:
    problem = Problem(1, 1, 70, 32, causal=True)
    config = DEFAULT.but(SYNC_POLICY=sync, REDUCE="shared")
    lockstep = run(SCALAR, problem, config).outputs["o"]
    result = run(SCALAR, problem, config, schedule=schedule)
    assert not result.hazards
    assert result.outputs["o"].tobytes() == lockstep.tobytes()


@pytest.mark.parametrize("dropped", [0, 1])
def test_every_barrier_is_needed(dropped: int) -> None:
    assert isinstance(SCALAR.source, Path)
    before, *after = SCALAR.source.read_text().split("        tile_sync();")
    assert len(after) == 2
    after[dropped] = "__syncwarp();" + after[dropped]
    after[1 - dropped] = "tile_sync();" + after[1 - dropped]
    unsafe = replace(SCALAR, name="scalar-unsafe", source=before + "".join(after))
    assert any("race" in hazard for hazard in run(unsafe, Problem(1, 1, 70, 32)).hazards)
