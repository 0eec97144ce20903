"""Rules of the kernels that quantise: no scale of the scores is too large or small; their numbers are as declared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checking import judged, run
from ladder_kernels import ladder_kernels

from sdpalab.inputs import Inputs
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel, Kernel
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem

NAMES = ("fp8_simulated", "fp8", "hopper_fp8")
QUANTISED = pytest.mark.parametrize("kernel", ladder_kernels(*(name for name in KERNELS if name not in NAMES)))


@pytest.mark.sample
@QUANTISED
@pytest.mark.parametrize("scale", [0.125, -0.125, 3.0e37, 1e-44])
def test_no_scale_is_too_large_or_too_small(kernel: Kernel, scale: float) -> None:
    # All keys but one of a row's score 1e11 less than it, times the scale; masked keys are minus infinity.
    problem = Problem(1, 1, 64, 64, seq_kv=130, scale=scale, causal=True)
    draw = np.random.default_rng(7)
    chosen = draw.integers(0, np.arange(problem.seq_q) + 1)
    sign = draw.choice([-1.0, 1.0], (problem.seq_kv, problem.head_dim))
    k = (sign * 50000).astype(np.float16)[None, None]
    q = (np.sign(scale) * sign[chosen] * 60000).astype(np.float16)[None, None]
    v = draw.choice([-448.0, -2.0, 1.0, 3.5, 448.0], problem.kv_shape).astype(np.float16)
    v[..., 0] = 448.0  # in each block: V is e4m3 as it is
    result = run(kernel, problem, inputs=Inputs(q, k, v))
    assert not result.hazards
    rows = v[0, 0].astype(np.float64)
    means = np.cumsum(rows, axis=0)[:64] / np.arange(1, 65)[:, None]  # all visible keys weigh the same
    expected = means if abs(scale) < 1e-40 else rows[chosen]
    np.testing.assert_allclose(result.outputs["o"][0, 0], expected, rtol=2e-3, atol=1e-3)


@QUANTISED
def test_what_is_declared_is_what_the_judge_holds_it_to(kernel: Kernel) -> None:
    # Without the error that it declares for Q, K and V it would be judged incorrect.
    problem = Problem(1, 1, 100, 64, seq_kv=400)
    result = run(kernel, problem)
    assert judged(kernel, problem, result).status is Status.PASSED
    assert isinstance(kernel, CudaKernel)
    finer = replace(kernel, numerics=replace(kernel.numerics_of(), quantised=None))
    assert judged(finer, problem, result).status is Status.INCORRECT
