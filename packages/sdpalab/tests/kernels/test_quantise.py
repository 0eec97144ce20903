"""The quantising step: the declared numbers bit for bit, in both layouts of V, and every sector used whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from sdpalab.compile import build
from sdpalab.compile.resources import resources
from sdpalab.inputs import Inputs, dtype_of, make_inputs
from sdpalab.judge.rule.numerics import dequantised
from sdpalab.kernels.kernel import Quantisation
from sdpalab.kernels.plan import LaunchPlan, problem_buffers
from sdpalab.kernels.quantisation import quantisation_buffers, quantise_rows
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from warpsan import Report

Array = npt.NDArray[Any]

MMA_ORDER = np.array([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])
"""Which of 16 keys stands where: lane c of four has the scores of 2c, 2c + 1, 8 + 2c and 8 + 2c + 1."""
SMALL = Problem(2, 4, 100, 64, kv_heads=2, seq_kv=70)


def step_of(problem: Problem, rows: int, *, v_in_blocks: bool = True) -> LaunchPlan:
    """The step alone, its workspaces as outputs."""
    inputs = problem_buffers(problem)[:3]
    outputs = (replace(buffer, role="out") for buffer in quantisation_buffers(problem, rows))
    return LaunchPlan((*inputs, *outputs), (quantise_rows(problem, rows, v_in_blocks=v_in_blocks),))


def quantised(
    problem: Problem, inputs: Inputs, rows: int, *, v_in_blocks: bool = True, **options: Any
) -> dict[str, Array]:
    """Contents of the workspaces after a run with either poison and no hazard; V as [B, Hkv, keys and padding, D]."""
    plan, arrays = step_of(problem, rows, v_in_blocks=v_in_blocks), inputs.arrays
    runs = [SimulatedExecutor(**options).run(plan, arrays, poison=poison) for poison in (0xFF, 0x00)]
    for run in runs:
        assert not run.hazards
    outputs = runs[0].outputs
    for name, array in runs[1].outputs.items():
        assert np.array_equal(array, outputs[name], equal_nan=array.dtype.kind == "f"), name
    heads, keys = problem.kv_shape[:2], -(-problem.seq_kv // rows) * rows
    if v_in_blocks:
        blocks = outputs["v_bytes"].reshape(*heads, keys // rows, problem.head_dim, rows)
        columns = blocks.swapaxes(2, 3).reshape(*heads, problem.head_dim, keys)
    else:
        columns = outputs["v_bytes"].reshape(*heads, problem.head_dim, keys)
    key = (np.arange(0, keys, 16)[:, None] + MMA_ORDER).reshape(-1)
    v = np.empty((*heads, keys, problem.head_dim), np.uint8)
    v[:, :, key] = columns.swapaxes(2, 3)
    return {**outputs, "v_bytes": v}


def numbers(patterns: Array, scales: Array, rows: int) -> Array:
    """Values of bytes [B, H, S, D], in float64."""
    values = patterns.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    each: Array = values * np.repeat(scales.astype(np.float64), rows, axis=2)[:, :, : values.shape[2], None]
    return each


def assert_declared(problem: Problem, inputs: Inputs, rows: int, *, v_in_blocks: bool = True) -> None:
    outputs = quantised(problem, inputs, rows, v_in_blocks=v_in_blocks)
    scales = {"q": outputs["q_scales"], "k": outputs["kv_scales"][..., 0], "v": outputs["kv_scales"][..., 1]}
    for name, array in inputs.arrays.items():
        decoded = numbers(outputs[f"{name}_bytes"], scales[name], rows)
        length = array.shape[2]
        assert np.array_equal(decoded[:, :, :length], dequantised(array, Quantisation(rows=rows))), name
        assert not decoded[:, :, length:].any(), "the padding of V is zeros"


@pytest.mark.sample
@pytest.mark.parametrize("v_in_blocks", [False, True])
@pytest.mark.parametrize(
    ("problem", "rows"),
    [
        (SMALL, 64),
        (Problem(1, 1, 70, 32, seq_kv=200), 64),
        (Problem(1, 1, 200, 128, seq_kv=33), 64),
        (Problem(1, 2, 65, 64, kv_heads=1, seq_kv=130, dtype="bfloat16"), 32),
        (Problem(1, 1, 1, 64, dtype="bfloat16"), 128),
    ],
    ids=str,
)
def test_the_declared_numbers_bit_for_bit(problem: Problem, rows: int, v_in_blocks: bool) -> None:
    assert_declared(problem, make_inputs(problem, "normal"), rows, v_in_blocks=v_in_blocks)


@pytest.mark.sample
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["outlier", "tiny", "huge", "uniform"])
def test_large_small_and_equal_numbers(kind: str, dtype: str) -> None:
    problem = Problem(1, 2, 70, 32, dtype=dtype)
    assert_declared(problem, make_inputs(problem, kind), 64)


@pytest.mark.parametrize(("dtype", "infinity"), [("float16", 0x7C00), ("bfloat16", 0x7F80)])
def test_every_pattern_is_rounded_as_declared(dtype: str, infinity: int) -> None:
    # All finite numbers in one block of rows after the other, so that ties, subnormals and saturation are all there,
    # and of bfloat16 scales whose reciprocal has no two accurate terms.
    patterns = np.arange(infinity, dtype=np.uint16).view(dtype_of(dtype))
    signed = np.concatenate([patterns, -patterns])
    problem = Problem(1, 1, signed.size // 128, 128, dtype=dtype)
    array = signed.reshape(problem.q_shape)
    assert_declared(problem, Inputs(array, array, array), 64)
    shuffled = np.random.default_rng(5).permutation(signed).reshape(problem.q_shape)
    assert_declared(problem, Inputs(shuffled, shuffled, shuffled), 64)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_every_significand_over_every_scale_is_rounded_as_declared(dtype: str, bits: int) -> None:
    # A head has one block of 1,024 numbers: its largest has the head's significand, the others have all that there are.
    significands = 1 + np.arange(1 << (bits - 1)) / (1 << (bits - 1))
    heads = significands.size
    numbers = np.resize(significands, (heads, 1024)) * 2.0 ** -(1 + (np.arange(1024) + np.arange(heads)[:, None]) % 5)
    numbers[:, 0] = significands
    problem = Problem(1, heads, 32, 32, kv_heads=1, dtype=dtype)
    inputs = make_inputs(problem, "normal")
    inputs.q[...] = numbers.reshape(problem.q_shape).astype(inputs.q.dtype)
    assert_declared(problem, inputs, 32)


@pytest.mark.parametrize("bits", [11, 8])
def test_no_quotient_is_near_where_its_rounding_changes(bits: int) -> None:
    """Premise of ``Quotient``: its two terms are off by 2**-44, and one term by 2**-23.

    A quotient that float32 rounds to a tie of e4m3 is rounded to even; one beside it is not. So a result can be another
    one only where the exact quotient is as near to where float32 begins to round to a tie, or ends.
    """
    odd = np.arange(1, 32, 2)
    ties = np.sort(odd / 2.0 ** np.floor(np.log2(odd)))  # significands, those of subnormal numbers too
    edges = np.concatenate([ties + 2.0**-24, ties[1:] - 2.0**-24, [2.0 - 2.0**-24]])
    numbers = 1 + np.arange(1 << (bits - 1)) / (1 << (bits - 1))
    scales = 2.0 * np.frexp(numbers.astype(np.float32) / np.float32(448))[0].astype(np.float64)
    x = np.where(numbers < scales[:, None], 2 * numbers, numbers)  # the quotient is from 1 to 2
    nearest = min(float((np.abs(x - edge * scales[:, None]) / x).min()) for edge in edges)  # exact: at most 49 bits
    assert 2.0**-35 <= nearest < 2.0**-23


def test_a_head_of_nothing_has_scale_one_and_nan_stays_in_its_place() -> None:
    problem = Problem(1, 2, 64, 32)
    inputs = make_inputs(problem, "normal")
    inputs.v[:, 0] = 0.0
    inputs.k[:, 1] = np.nan
    inputs.q[0, 0, 3, 5] = np.nan
    outputs = quantised(problem, inputs, 64)
    assert outputs["kv_scales"][0, 0, 0, 1] == 1.0
    assert not outputs["v_bytes"][:, 0].any()
    q, k = (outputs[name].view(ml_dtypes.float8_e4m3fn).astype(np.float32) for name in ("q_bytes", "k_bytes"))
    assert np.isnan(k[:, 1]).all()
    assert np.isfinite(k[:, 0]).all()
    assert np.argwhere(np.isnan(q)).tolist() == [[0, 0, 3, 5]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_no_result_rests_on_the_order_of_warps(schedule: str) -> None:
    inputs = make_inputs(SMALL, "normal")
    lockstep, other = (quantised(SMALL, inputs, 64, schedule=name) for name in ("lockstep", schedule))
    assert all(np.array_equal(array, other[name]) for name, array in lockstep.items())


@pytest.mark.sample
@pytest.mark.parametrize("v_in_blocks", [False, True])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_every_sector_is_used_whole_and_every_byte_moved_once(head_dim: int, v_in_blocks: bool) -> None:
    problem = Problem(1, 2, 128, head_dim)
    reports: list[Report] = []
    executor = SimulatedExecutor(counters=True, checks=(), on_launch=lambda built, report: reports.append(report))
    executor.run(step_of(problem, 64, v_in_blocks=v_in_blocks), make_inputs(problem, "normal").arrays)
    (counters,) = (report.counters for report in reports)
    assert counters is not None
    rows = [
        each
        for each in counters.by_instruction
        if ".v4" in each.text or ".v2" in each.text or "st.global.u32" in each.text
    ]
    assert sum(each.sectors for each in rows) == sum(each.ideal_sectors for each in rows) > 0
    elements = 3 * 2 * 128 * head_dim
    scales = 2 * 32  # a sector each: 4 of Q, and 4 of K and V
    assert counters.compulsory_read_bytes == 2 * elements
    assert counters.compulsory_write_bytes == elements + scales


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("head_dim", [32, 128])
def test_no_architecture_spills(arch: str, head_dim: int) -> None:
    (step,) = step_of(Problem(1, 1, 64, head_dim), 64).launches
    assert step.module is not None
    used = resources(build(step.module, arch), step)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.registers <= 64
