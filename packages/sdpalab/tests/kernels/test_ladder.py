"""Outputs of every kernel of the ladder: shapes, masks, heads and scales, and memory to its edges and no further.

Shapes, inputs and configurations that one kernel alone is sensitive to are in that kernel's own file; those of the
kernels for Hopper, whose tiles and clusters are larger, are all there.
"""

from __future__ import annotations

import numpy as np
import pytest
from checking import (
    assert_computes,
    assert_log_sum_exp,
    assert_nothing_past_the_end_is_used,
    assert_written_to_the_end_and_no_further,
    run,
)
from ladder_kernels import EACH_KERNEL, ladder_kernels

from sdpalab.inputs import Inputs
from sdpalab.kernels.kernel import Kernel
from sdpalab.problem import Problem

SMALL_TILES = pytest.mark.parametrize("kernel", ladder_kernels("hopper", "hopper_fp8", "blackwell"))
UNQUANTISED = pytest.mark.parametrize("kernel", ladder_kernels("fp8_simulated", "fp8", "hopper_fp8"))

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
    Problem(1, 1, 70, 128, seq_kv=90, dtype="bfloat16"),
    Problem(1, 1, 40, 32, scale=-0.3),
    Problem(1, 1, 90, 32, scale=-0.3, causal=True),
    Problem(1, 1, 90, 32, scale=0.0, causal=True),
    Problem(1, 1, 40, 32, scale=3.0),
]


@pytest.mark.sample
@SMALL_TILES
@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(kernel: Kernel, problem: Problem) -> None:
    assert_computes(kernel, problem)


@pytest.mark.sample
@SMALL_TILES
@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "equal", "huge"])
@pytest.mark.parametrize("causal", [False, True])
def test_probes(kernel: Kernel, kind: str, causal: bool) -> None:
    assert_computes(kernel, Problem(1, 1, 140, 32, causal=causal), kind=kind)


@pytest.mark.sample
@EACH_KERNEL
@pytest.mark.parametrize(
    "problem",
    [
        Problem(2, 4, 30, 64, kv_heads=2, seq_kv=141, causal=True),
        Problem(1, 1, 70, 64, scale=-0.5),
    ],
    ids=lambda problem: problem.label,
)
def test_log_sum_exp(kernel: Kernel, problem: Problem) -> None:
    assert_log_sum_exp(kernel, problem)


@EACH_KERNEL
def test_nothing_past_the_end_of_a_head_is_used(kernel: Kernel) -> None:
    assert_nothing_past_the_end_is_used(kernel, Problem(1, 2, 37, 64, seq_kv=41))


@EACH_KERNEL
def test_an_output_that_ends_within_a_tile_is_written_to_its_end_and_no_further(kernel: Kernel) -> None:
    assert_written_to_the_end_and_no_further(kernel)


@pytest.mark.sample
@UNQUANTISED
@pytest.mark.parametrize("scale", [0.125, -0.125, 3.0e37])
def test_logits_near_the_fp16_maximum_select_one_key_exactly(kernel: Kernel, scale: float) -> None:
    # One key a row has a score of 1e11 and more, so the row of O is its row of V bit for bit. Scores in 16 bits are
    # infinite here, and a maximum that is scaled before it is subtracted is off by thousands.
    problem = Problem(1, 1, 64, 64, seq_kv=130, scale=scale)
    draw = np.random.default_rng(7)
    chosen = draw.integers(0, problem.seq_kv, problem.seq_q)
    sign = draw.choice([-1.0, 1.0], (problem.seq_kv, problem.head_dim))
    k = (sign * 50000).astype(np.float16)[None, None]
    q = (np.sign(scale) * sign[chosen] * 60000).astype(np.float16)[None, None]
    v = draw.standard_normal(problem.kv_shape).astype(np.float16)
    result = run(kernel, problem, inputs=Inputs(q, k, v))
    assert np.array_equal(result.outputs["o"][0, 0], v[0, 0, chosen])
    assert not result.hazards
