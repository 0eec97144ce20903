"""The fp8_simulated kernel: 8-bit numbers with one scale a head, right at the lengths where its ancestor gave NaN.

What it computes whatever its knobs, what it refuses of problems, and its static limits are in ``test_ladder*.py``.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from checking import (
    assert_computes,
    assert_log_sum_exp,
    assert_same_bits_in_every_order,
    assert_shared_memory,
    ptx_of,
    run,
)
from refusals import WMMA_TILES, Refusal, assert_refused

from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.limits import measure
from sdpalab.judge.rule.numerics import dequantised
from sdpalab.kernels.fp8_simulated import FP8_SIMULATED
from sdpalab.kernels.kernel import Quantisation
from sdpalab.kernels.wmma import WMMA, smem_bytes
from sdpalab.model.counted import count
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor

DEFAULT = FP8_SIMULATED.default_config
RAGGED = Problem(1, 2, 37, 32, kv_heads=1, seq_kv=145, causal=True)


@pytest.mark.parametrize("kind", ["outlier", "tiny"])
def test_probes_of_its_scales(kind: str) -> None:
    assert_computes(FP8_SIMULATED, Problem(1, 1, 96, 32, causal=True), kind=kind)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["normal", "outlier", "large_logits", "equal"])
def test_the_length_that_gave_nan(kind: str) -> None:
    # 512 equal weights of 1 sum to more than e4m3 has.
    problem = MISSION.with_(heads=1, seq_q=64)
    inputs = make_inputs(problem, kind)
    out = run(FP8_SIMULATED, problem, inputs=inputs, checks=()).outputs["o"]
    reference = attention_float64(**inputs.arrays, scale=problem.scale, causal=False)
    errors = measure(out, reference, problem.dtype)
    assert errors.not_finite == 0
    assert errors.rel_l2 < 0.15


def test_the_declared_numbers_bit_for_bit_over_several_blocks() -> None:
    problem = Problem(2, 2, 70, 32, kv_heads=1, seq_kv=200)
    inputs = make_inputs(problem, "outlier")
    plan = FP8_SIMULATED.launch_plan(problem)
    shown_names = {"q_bytes", "k_bytes", "v_bytes", "q_scales", "k_scales", "v_scales"}
    shown = [type(b)(b.name, b.shape, b.dtype, "out" if b.name in shown_names else b.role) for b in plan.buffers]
    outputs = SimulatedExecutor().run(type(plan)(tuple(shown), plan.steps), inputs.arrays).outputs
    for name, array in inputs.arrays.items():
        numbers = outputs[f"{name}_bytes"].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        scales = outputs[f"{name}_scales"].astype(np.float64)[:, :, None, None]
        assert np.array_equal(numbers * scales, dequantised(array, Quantisation())), name


@pytest.mark.sample(1)
@pytest.mark.parametrize("problem", [RAGGED, Problem(1, 1, 70, 32, scale=-2.0, dtype="bfloat16")], ids=str)
def test_log_sum_exp(problem: Problem) -> None:
    assert_log_sum_exp(FP8_SIMULATED, problem)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (32, 64), (64, 32), (128, 16)])
def test_every_tile_is_correct(block_m: int, block_n: int) -> None:
    assert_computes(FP8_SIMULATED, RAGGED, DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n))


def test_no_result_rests_on_the_order_of_warps() -> None:
    assert_same_bits_in_every_order(FP8_SIMULATED, RAGGED, async_modes=("late",))


def test_it_multiplies_in_16_bits() -> None:
    ptx = ptx_of(FP8_SIMULATED, Problem(1, 1, 64, 64))
    assert "wmma.mma.sync.aligned" in ptx
    assert "cvt.rn.f16x2.e4m3x2" in ptx
    assert "cvt.rn.satfinite.e4m3x2" not in ptx  # P is not of 8 bits
    assert ".e4m3.e4m3" not in ptx


def test_bytes_cross_the_memory_once_a_block() -> None:
    problem = Problem(1, 2, 128, 64)
    (wide,) = (launch.counters for launch in count(WMMA, problem, "sm_89").launches)
    maxima, quantise, narrow = (launch.counters for launch in count(FP8_SIMULATED, problem, "sm_89").launches)
    elements = 2 * 128 * 64
    assert wide.compulsory_read_bytes == 3 * elements * 2
    assert narrow.compulsory_read_bytes == 3 * elements + 3 * 32  # scales: a sector each
    assert maxima.compulsory_read_bytes == 3 * elements * 2
    assert quantise.compulsory_write_bytes == 3 * elements + 3 * 32
    assert narrow.tensor_flops == wide.tensor_flops == problem.flops


@pytest.mark.sample(2)
@pytest.mark.parametrize("refusal", WMMA_TILES, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(FP8_SIMULATED, refusal)


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32)
    # Nothing touches the padding of the last row.
    assert_shared_memory(FP8_SIMULATED, problem, DEFAULT, smem_bytes(problem, DEFAULT), padding=16)
