"""The warp_specialized kernel: right on every shape and knob and in every order of its warps, and within its bars."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from checking import assert_computes, assert_gate, ptx_of, resources_of, run

from sdpalab.build import BuildError, build
from sdpalab.kernels.flash import smem_bytes
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.warp_specialized import WARP_SPECIALIZED
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from sdpalab.run.sanitize import ASYNC_MODES, SCHEDULES, Modes, sanitize_kernel

DEFAULT = WARP_SPECIALIZED.default_config
RAGGED = Problem(1, 2, 150, 32, kv_heads=1, seq_kv=333)

SHAPES = [
    Problem(1, 1, 1, 32),
    Problem(1, 1, 1, 64, seq_kv=70),
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(2, 2, 64, 64, causal=True),
    Problem(1, 1, 129, 64),
    Problem(1, 1, 65, 128, seq_kv=31),
    Problem(1, 1, 31, 128, seq_kv=165, causal=True),
    Problem(1, 2, 70, 32, seq_kv=300),
    Problem(1, 2, 200, 32, seq_kv=70, causal=True),
    Problem(2, 4, 40, 32, kv_heads=2, seq_kv=17, causal=True),
    Problem(1, 3, 32, 32, kv_heads=1, seq_kv=97),
    Problem(1, 1, 100, 64, dtype="bfloat16", causal=True),
    Problem(1, 1, 70, 128, dtype="bfloat16"),
    Problem(1, 1, 90, 32, scale=-0.3, causal=True),
    Problem(1, 1, 90, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(WARP_SPECIALIZED, problem)


@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "large_logits", "huge"])
@pytest.mark.parametrize("causal", [False, True])
def test_probes(kind: str, causal: bool) -> None:
    assert_computes(WARP_SPECIALIZED, Problem(1, 1, 140, 32, causal=causal), kind=kind)


@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize("block_n", [32, 64])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("producers", [1, 2])
def test_every_knob_is_correct(block_m: int, block_n: int, stages: int, producers: int) -> None:
    config = Config(BLOCK_M=block_m, BLOCK_N=block_n, NUM_STAGES=stages, NUM_PRODUCER_WARPS=producers)
    if (block_m, block_n) == (128, 32):
        assert "at most twice the 32 keys of a tile" in str(WARP_SPECIALIZED.reject_reason(RAGGED, config))
    else:
        assert_computes(WARP_SPECIALIZED, RAGGED, config)


@pytest.mark.parametrize(
    ("head_dim", "config"),
    [
        (64, DEFAULT),
        (32, DEFAULT.but(NUM_STAGES=3, NUM_PRODUCER_WARPS=2)),
        (128, DEFAULT.but(NUM_STAGES=3)),
        (32, DEFAULT.but(BLOCK_N=32, NUM_STAGES=4)),
    ],
    ids=str,
)
def test_every_order_gives_the_same_bits_and_no_hazard(head_dim: int, config: Config) -> None:
    # More tiles than stages, the last one ragged, and rows past the end of Q.
    problem = Problem(1, 1, 50, head_dim, seq_kv=190)
    outputs = set()
    for schedule, async_mode in product(SCHEDULES, ASYNC_MODES):
        result = run(WARP_SPECIALIZED, problem, config, schedule=schedule, async_mode=async_mode)
        assert result.hazards == (), f"{schedule}, {async_mode}"
        outputs.add(result.outputs["o"].tobytes())
    assert len(outputs) == 1


@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stages", [2, 4])
def test_the_ring_comes_to_its_end_at_every_place(tiles: int, stages: int) -> None:
    config = DEFAULT.but(BLOCK_N=32, NUM_STAGES=stages)
    assert_computes(WARP_SPECIALIZED, Problem(1, 1, 20, 32, seq_kv=32 * tiles), config, schedule="reverse")


WAITS_FOR_EMPTY = "ptx::bar_sync(empty(loading), NUM_THREADS);"
GIVES_BACK_Q = "release(Position{NUM_STAGES - 1}, -1);"
COMPUTES = "        multiply_scores<TILE_N>("
BUGS = [
    ("a tile is not waited for", "wait_group<IN_FLIGHT>", "wait_group<IN_FLIGHT + 1>", "async"),
    ("nobody waits for an empty stage", WAITS_FOR_EMPTY, "", "barrier"),
    ("a stage is given back before it is read", COMPUTES, "        release(at, tile);\n" + COMPUTES, "race"),
    ("the output does not wait for the last readers", "ptx::bar_sync(ALL_READ, CONSUMERS);", "", "race"),
    ("consumers leave producers out", "bar_sync(full(at), NUM_THREADS)", "bar_sync(full(at), CONSUMERS)", "barrier"),
    ("Q is never given back", GIVES_BACK_Q, "", "deadlock"),
]


@pytest.mark.parametrize(("name", "old", "new", "kind"), BUGS, ids=[bug[0] for bug in BUGS])
def test_what_the_barriers_are_for(name: str, old: str, new: str, kind: str) -> None:
    assert isinstance(WARP_SPECIALIZED.source, Path)
    text = WARP_SPECIALIZED.source.read_text()
    assert old in text
    broken = replace(WARP_SPECIALIZED, name=name, source=text.replace(old, new))
    lockstep = Modes(schedules=("lockstep",), async_modes=("late",))
    outcome = sanitize_kernel(broken, [Problem(1, 1, 64, 32, seq_kv=400)], modes=lockstep)
    assert kind in {finding.kind for finding in outcome.findings}


@pytest.mark.parametrize(
    "knob",
    [("BLOCK_M", (64, 128)), ("BLOCK_N", (32, 64)), ("NUM_STAGES", (2, 3)), ("NUM_PRODUCER_WARPS", (1, 2))],
    ids=str,
)
def test_every_knob_changes_the_code(knob: tuple[str, tuple[int, ...]]) -> None:
    name, values = knob
    programs = {ptx_of(WARP_SPECIALIZED, Problem(1, 1, 64, 64), DEFAULT.but(**{name: value})) for value in values}
    assert len(programs) == len(values)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(head_dim: int, dtype: str) -> None:
    ptx = ptx_of(WARP_SPECIALIZED, Problem(1, 1, 64, head_dim, dtype=dtype))
    keys = 32 if head_dim == 128 else 64
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    products = 2 * (keys // 8) * (head_dim // 16)
    matrices = (keys // 16) * (head_dim // 16)
    assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32") == ptx.count("mma.sync") == products
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == matrices + head_dim // 16  # K, and Q once
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == matrices  # V
    rows_a_pass = 32 * 8 // head_dim  # that one warp copies
    assert ptx.count("cp.async.cg") == (64 + 2 * keys) // rows_a_pass
    # Producers wait for an empty stage. Consumers wait for the first tile, for each of the others, and before the
    # output; they give back Q's stage, and each tile's. There is no barrier of the block.
    assert ptx.count("bar.sync") == 4
    assert ptx.count("bar.arrive") == 3
    assert not re.search(r"bar\.sync\s+0", ptx)
    assert ptx.count("st.global.v4") == head_dim // 16
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|ld\.global|mbarrier", ptx)


def test_consumers_do_not_copy_and_producers_do_not_compute() -> None:
    # Counted in warps: every product is of all four consumers and every tile, every copy of the one producer.
    problem = Problem(1, 1, 64, 64, seq_kv=640)
    launched = []
    executor = SimulatedExecutor(counters=True, on_launch=lambda _, report: launched.append(report.counters))
    shapes = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.kv_shape}
    inputs = {name: np.ones(shape, np.float16) for name, shape in shapes.items()}
    executor.run(WARP_SPECIALIZED.launch_plan(problem), inputs)
    (counters,) = launched
    tiles = 10

    def warps(opcode: str) -> set[int]:
        return {each.warps for each in counters.by_instruction if each.text.startswith(opcode)}

    assert warps("mma") == {4 * tiles}
    assert warps("cp.async.cg") == {1, tiles}  # Q, and K and V
    assert warps("st.global.v4") == {4}
    assert counters.divergence == 0
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")
    assert counters.total("sectors") == counters.total("ideal_sectors")


def test_nothing_past_the_end_of_a_head_is_used() -> None:
    # Tiles reach past the end of the first head's K and V into the second's, which is NaN.
    problem = Problem(1, 2, 37, 64, seq_kv=41)
    draw = np.random.default_rng(3)
    inputs = {"q": draw.standard_normal(problem.q_shape).astype(np.float16)}
    inputs |= {name: draw.standard_normal(problem.kv_shape).astype(np.float16) for name in "kv"}
    clean = SimulatedExecutor().run(WARP_SPECIALIZED.launch_plan(problem), inputs).outputs["o"]
    for array in inputs.values():
        array[:, 1] = np.nan
    spoilt = SimulatedExecutor().run(WARP_SPECIALIZED.launch_plan(problem), inputs).outputs["o"]
    assert np.array_equal(spoilt[:, 0], clean[:, 0])
    assert np.isnan(spoilt[:, 1]).all()


@pytest.mark.parametrize("config", WARP_SPECIALIZED.configs, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_static_gate(config: Config, head_dim: int) -> None:
    problem = Problem(1, 8, 512, head_dim, causal=True)
    reason = WARP_SPECIALIZED.reject_reason(problem, config)
    if reason is None:
        assert_gate(WARP_SPECIALIZED, problem, config)
    else:
        assert head_dim == 128, reason


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_no_architecture_spills(arch: str, head_dim: int) -> None:
    problem = Problem(1, 8, 512, head_dim, causal=True)
    used = resources_of(WARP_SPECIALIZED, problem, arch=arch)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= WARP_SPECIALIZED.static_limits(problem).registers


@pytest.mark.parametrize(("head_dim", "blocks"), [(64, 3), (128, 2)])
def test_blocks_of_an_sm(head_dim: int, blocks: int) -> None:
    used = resources_of(WARP_SPECIALIZED, MISSION.with_(head_dim=head_dim))
    assert used.shared_bytes == 32 * 1024
    assert used.blocks_per_sm == blocks


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"BLOCK_M": 32}, "BLOCK_M must be one of 64, 128, not 32"),
        ({"BLOCK_N": 48}, "BLOCK_N must be one of 0, 32, 64, not 48"),
        ({"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1"),
        ({"NUM_PRODUCER_WARPS": 3}, "NUM_PRODUCER_WARPS must be one of 1, 2, not 3"),
        ({"NUM_STAGES": 4}, "65536 bytes of shared memory, and the kernel's limit is 49152"),
        ({"BLOCK_M": 128, "BLOCK_N": 32}, "at most twice the 32 keys of a tile"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        WARP_SPECIALIZED.launch_plan(Problem(1, 1, 64, 64), DEFAULT.but(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("head_dim", "changes", "message"),
    [
        (64, {"BLOCK_M": 32}, "BLOCK_M is 64 or 128"),
        (64, {"BLOCK_N": 48}, "BLOCK_N is 0, 32 or 64"),
        (64, {"NUM_STAGES": 1}, "NUM_STAGES is 2, 3 or 4"),
        (64, {"NUM_PRODUCER_WARPS": 3}, "NUM_PRODUCER_WARPS is 1 or 2"),
        (64, {"NUM_STAGES": 4}, "two blocks of 48 KiB"),
        (64, {"BLOCK_M": 128, "BLOCK_N": 32}, "Q passes through one stage"),
        (96, {}, "HEAD_DIM is 32, 64 or 128"),
    ],
    ids=str,
)
def test_the_source_refuses_them_too(head_dim: int, changes: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError) as refused:
        build(WARP_SPECIALIZED.module(Problem(1, 1, 64, head_dim), DEFAULT.but(**changes)))
    assert message in f"{refused.value} {refused.value.log}"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 96), "supports head_dim 32, 64 or 128, not 96"),
        (Problem(1, 1, 8, 64, scale=-3e38), "scale=-3e+38 does not fit"),
        (Problem(1, 70000, 8, 64), "at most 65535, not 70000"),
    ],
    ids=["head_dim", "scale", "heads"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(WARP_SPECIALIZED.reject_reason(problem))


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32, seq_kv=128)
    (step,) = WARP_SPECIALIZED.launch_plan(problem).launches
    assert step.dynamic_smem == smem_bytes(problem, DEFAULT)
    assert not run(WARP_SPECIALIZED, problem).hazards
    assert any("out-of-bounds" in hazard for hazard in run(WARP_SPECIALIZED, problem, less_smem=16).hazards)


def test_an_output_that_ends_within_a_tile_is_written_to_its_end_and_no_further() -> None:
    # The last head's rows end where the buffer does: a store past row 40 would be out of bounds, one too few poison.
    problem = Problem(1, 1, 41, 64)
    inputs = {name: np.ones(problem.q_shape, np.float16) for name in "qkv"}
    for poison in (0xFF, 0x00):
        result = SimulatedExecutor().run(WARP_SPECIALIZED.launch_plan(problem), inputs, poison=poison)
        assert not result.hazards
        assert np.array_equal(result.outputs["o"], inputs["v"])
