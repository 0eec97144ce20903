"""The FlashAttention-3 kernel: right and without a hazard in every order, on Hopper's own instructions, unspilt."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from checking import (
    assert_computes,
    assert_gate,
    assert_nothing_past_the_end_is_used,
    assert_same_bits_in_every_order,
    assert_shared_memory,
    assert_written_to_the_end_and_no_further,
    built,
    resources_of,
    run,
)
from hopper_attention import KERNEL, smem_bytes
from refusals import Refusal, assert_refused

from sdpalab import Config, Problem
from sdpalab.compile.sass import disassemble, parse
from sdpalab.inputs import Inputs

DEFAULT = KERNEL.default_config
SMALL = Config(BLOCK_M=64, BLOCK_N=64, NUM_STAGES=2)

SHAPES = [
    (Problem(1, 1, 1, 64), DEFAULT),
    (Problem(1, 1, 33, 64, seq_kv=1), SMALL),
    (Problem(2, 2, 70, 64, kv_heads=1, seq_kv=140, causal=True), DEFAULT),
    (Problem(2, 4, 130, 64, kv_heads=2, seq_kv=200), SMALL.but(BLOCK_M=128)),
    (Problem(1, 2, 65, 128, seq_kv=257), DEFAULT),
    (Problem(1, 2, 200, 128, seq_kv=70, causal=True), SMALL.but(NUM_STAGES=4)),
    (Problem(1, 1, 129, 64, seq_kv=300, causal=True, dtype="bfloat16"), SMALL.but(BLOCK_N=128)),
    (Problem(1, 1, 70, 128, seq_kv=130, dtype="bfloat16"), SMALL.but(NUM_STAGES=3)),
    (Problem(1, 1, 90, 64, scale=-0.3, causal=True), SMALL),
    (Problem(1, 1, 90, 64, scale=0.0, causal=True), SMALL),
]


@pytest.mark.parametrize(("problem", "config"), SHAPES, ids=lambda value: getattr(value, "label", str(value)))
def test_computes_attention(problem: Problem, config: Config) -> None:
    assert_computes(KERNEL, problem, config)


@pytest.mark.parametrize("kind", ["needle", "ramp", "large_logits", "huge"])
def test_probes(kind: str) -> None:
    assert_computes(KERNEL, Problem(1, 1, 140, 64, causal=True), SMALL, kind=kind)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_order_gives_the_same_bits_and_no_hazard(head_dim: int, causal: bool) -> None:
    # Three tiles in two stages, the last one ragged; for head_dim 64 a consumer with all of its rows and one with some.
    config = SMALL.but(BLOCK_M=128 if head_dim == 64 else 64)
    problem = Problem(1, 1, config.int("BLOCK_M") - 28, head_dim, seq_kv=64 * 3 - 7, causal=causal)
    assert_same_bits_in_every_order(KERNEL, problem, config)
    assert_computes(KERNEL, problem, config)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_nothing_past_the_end_of_a_head_is_used(head_dim: int) -> None:
    assert_nothing_past_the_end_is_used(KERNEL, Problem(1, 2, 37, head_dim, seq_kv=41), SMALL)


@pytest.mark.parametrize("config", KERNEL.configs, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_static_gate_and_hoppers_own_instructions(head_dim: int, config: Config) -> None:
    problem = Problem(1, 8, 512, head_dim, causal=True)
    assert_gate(KERNEL, problem, config)
    used = resources_of(KERNEL, problem, config)
    assert used.shared_bytes == smem_bytes(problem, config)
    assert used.blocks_per_sm == 128 // config.int("BLOCK_M")

    made = built(KERNEL, problem, config)
    # C7510 and the like: ptxas found registers of a product in use, and let products wait for each other.
    assert "serialized" not in made.log
    assert "injected" not in made.log
    count = Counter(instruction.base for instruction in parse(disassemble(made))[made.entry])
    # The first scores, and in the loop; the output in the loop, and behind it.
    assert count["HGMMA"] == 2 * head_dim // 16 + 2 * config.int("BLOCK_N") // 16
    assert count["UTMALDG"] == config.int("BLOCK_M") // 64 + 2
    assert count["UTMASTG"] == 1
    assert count["STSM"] == head_dim // 16
    assert count["USETMAXREG"] == 2
    assert not {"LDS", "STS", "LDG", "STG", "HMMA", "LDSM"} & set(count)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(dtype: str) -> None:
    ptx = built(KERNEL, Problem(1, 1, 64, 128, dtype=dtype), SMALL).ptx.decode()
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n64k16.f32.{short}.{short}") == 2 * 128 // 16
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n128k16.f32.{short}.{short}") == 2 * 64 // 16
    assert ptx.count("wgmma.fence") == 3
    assert ptx.count("wgmma.commit_group") == 4
    assert ptx.count("fence.proxy.async.shared::cta") == 1
    assert ptx.count("setmaxnreg.dec") == ptx.count("setmaxnreg.inc") == 1


REFUSALS = [
    Refusal({"BLOCK_M": 32}, "BLOCK_M must be one of 64, 128, not 32", "BLOCK_M is 64 or 128"),
    Refusal({"BLOCK_N": 96}, "BLOCK_N must be one of 64, 128, not 96", "BLOCK_N is 64 or 128"),
    Refusal({"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
    Refusal(
        {"NUM_STAGES": 4},
        "needs 295048 bytes of shared memory, and the kernel's limit is 232448",
        problem=Problem(1, 1, 64, 128),
    ),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(KERNEL, refusal)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 32), "supports head_dim 64 or 128, not 32"),
        (Problem(1, 1, 8, 64, scale=-3e38), "-3e+38 does not fit"),
        (Problem(1, 70000, 8, 64), "at most 65535, not 70000"),
    ],
    ids=["head_dim", "scale", "heads"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(KERNEL.reject_reason(problem))


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=128)
    assert_shared_memory(KERNEL, problem, SMALL, smem_bytes(problem, SMALL), step=8)


def test_an_output_that_ends_within_a_tile_is_written_to_its_end_and_no_further() -> None:
    assert_written_to_the_end_and_no_further(KERNEL, SMALL)


def test_bfloat16_is_not_float16() -> None:
    # A value that float16 does not have, in and out.
    problem = Problem(1, 1, 8, 64, dtype="bfloat16")
    inputs = Inputs(*(np.full(problem.q_shape, 2.0**20, ml_dtypes.bfloat16) for _ in "qkv"))
    assert np.array_equal(run(KERNEL, problem, SMALL, inputs=inputs).outputs["o"], inputs.v)
