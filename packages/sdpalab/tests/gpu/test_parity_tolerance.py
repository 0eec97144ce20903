"""How far a GPU may be from the simulator: the sums of tensor cores, what they do to an output, what is still found."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from parity import Records, cases_of, kernel_names, kernel_of
from parity_tolerance import Sums, attention, exact_product, narrow_sums, tolerance, truncated_product

from sdpalab import Config, Problem
from sdpalab.compile import build
from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.numerics import intended_output
from sdpalab.kernels.registry import KERNELS
from sdpalab.measure.prebuild import COMPARED

HOPPER, ADA = Sums(32, 13), Sums(16, 13)


def product(left: list[float], right: list[float], sums: Sums) -> float:
    return float(truncated_product(np.array([left]), np.array(right)[:, None], sums)[0, 0])


def test_small_products_are_cut_off_beside_a_large_one() -> None:
    # 448 x 256 is 1.75 x 2^16 with the exponents 8 + 8: the unit is 2^(16 - 13) = 8.
    assert product([448, 1], [256, 7], HOPPER) == 448 * 256
    assert product([448, 1], [256, 8], HOPPER) == 448 * 256 + 8
    assert product([448, 1], [256, -15], HOPPER) == 448 * 256 - 8  # toward zero, each by itself
    assert product([448, 1, 1], [256, 7, 7], HOPPER) == 448 * 256
    assert product([1, 1], [7, 7], HOPPER) == 14
    assert product([0, 0], [0, 5], HOPPER) == 0


def test_the_sum_so_far_is_cut_like_a_product_and_keeps_13_bits() -> None:
    # A block is 16 products on Ada and 32 on Hopper: what is small comes to the sum in the block after it.
    ones = [1.0] * 16
    small = [0.0] * 15 + [7.0]
    large = [448.0] + [0.0] * 15
    assert product(ones + ones, large + small, Sums(32, 13)) == 448 + 7
    assert product(ones + ones, [x * 16 for x in large] + small, Sums(16, 13)) == 448 * 16 + 7
    assert product([256.0] * 16 + ones, [448.0] * 16 + small, Sums(16, 13)) == 448 * 256 * 16  # the unit is 2^7
    # 1.75 x 2^16 x 3 = 1.3125 x 2^18: the sum keeps multiples of 2^5.
    assert product([448.0] * 3 + [1.0], [256.0] * 3 + [31.0], HOPPER) == (448 * 256 * 3 + 24) // 32 * 32


def test_subnormal_numbers_are_aligned_at_the_least_exponent() -> None:
    least = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).smallest_subnormal)
    assert product([least], [least], HOPPER) == least * least
    assert product([least, 1.0], [1.0, least], HOPPER) == 2 * least


def test_wide_sums_are_exact() -> None:
    numbers = np.random.default_rng(0).standard_normal((2, 8, 64)).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(truncated_product(numbers[0], numbers[1].T, Sums(32, 40)), numbers[0] @ numbers[1].T)


def test_the_emulation_with_exact_sums_is_the_judges() -> None:
    for name in ("hopper_fp8", "fp8", "fp8_simulated"):
        numerics = KERNELS[name].numerics_of()
        for problem in COMPARED[:2]:
            inputs = make_inputs(problem)
            options = {"scale": problem.scale, "causal": problem.causal}
            intended = intended_output(inputs.q, inputs.k, inputs.v, **options, numerics=numerics)
            emulated = attention(problem, inputs, numerics, exact_product).astype(intended.dtype)
            off = np.linalg.norm((emulated - intended).astype(np.float64)) / np.linalg.norm(intended.astype(np.float64))
            assert off < 2e-3, (name, problem.label)


def test_which_sums_are_narrow_is_read_from_the_ptx() -> None:
    def ptx(name: str, arch: str) -> list[bytes]:
        plan = KERNELS[name].launch_plan(COMPARED[0])
        return [build(step.module, arch).ptx for step in plan.launches if step.module is not None]

    assert narrow_sums(ptx("hopper_fp8", "sm_90a"), "sm_90a") == HOPPER
    assert narrow_sums(ptx("fp8", "sm_89"), "sm_89") == ADA
    assert narrow_sums(ptx("fp8", "sm_90"), "sm_90") is None  # two products of float16 there, with wide sums
    assert narrow_sums(ptx("hopper", "sm_90a"), "sm_90a") is None


@pytest.mark.parametrize("problem", COMPARED, ids=lambda problem: problem.label)
def test_the_tolerance_of_kernels_in_16_bits_is_the_roundoff_of_the_output(problem: Problem) -> None:
    inputs = make_inputs(problem)
    for name in ("flash", "hopper", "scalar"):
        allowed = tolerance(problem, inputs, KERNELS[name].numerics_of(), None)
        roundoff = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[problem.dtype]
        assert roundoff <= allowed.total < 1.15 * roundoff
        assert (allowed.inputs, allowed.sums) == (0.0, 0.0)


@pytest.mark.parametrize("kind", ["normal", "outlier"])
@pytest.mark.parametrize("problem", COMPARED, ids=lambda problem: problem.label)
def test_narrow_sums_are_allowed_for_and_a_wrong_scale_is_not(problem: Problem, kind: str) -> None:
    """Hopper's sums are expected to be off by 1e-3 to 6e-3; scores that are wrong by 2% are further off."""
    numerics, inputs = KERNELS["hopper_fp8"].numerics_of(), make_inputs(problem, kind)
    right = attention(problem, inputs, numerics, exact_product)
    cut = attention(problem, inputs, numerics, lambda left, right: truncated_product(left, right, HOPPER))
    wrong = attention(problem.with_(scale=1.02 * problem.scale), inputs, numerics, exact_product)
    allowed = tolerance(problem, inputs, numerics, HOPPER)
    distance, error = (float(np.linalg.norm(each - right) / np.linalg.norm(right)) for each in (cut, wrong))
    assert 1e-3 < distance < 7e-3
    assert distance < allowed.total < error
    assert tolerance(problem, inputs, numerics, None).total < allowed.total


def test_every_configuration_of_every_kernel_is_compared_the_default_one_first() -> None:
    labels = []
    for name in kernel_names():
        kernel = kernel_of(name)
        cases = list(cases_of(kernel))
        assert cases[0].config == kernel.default_config
        configs = map(Config, kernel.configs)
        takes = {config for config in configs if any(kernel.why_not(p, config) is None for p in COMPARED)}
        assert {case.config for case in cases} == takes
        labels += [case.label for case in cases]
    assert len(set(labels)) == len(labels)


def test_a_case_that_began_and_never_ended_is_recorded_and_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "flash.jsonl"
    records = Records(path)
    records.begin("one")
    records.end("one", agrees=True, error=None)
    records.begin("two")
    path.write_text(path.read_text() + '{"case": "thr')
    records = Records(path)
    assert records.ended["one"]["agrees"]
    assert not records.ended["two"]["agrees"]
    assert "died in this case" in records.ended["two"]["error"]
    records.end("three", agrees=True)
    assert list(Records(path).ended) == ["one", "two", "three"]
    kinds = [next(iter(json.loads(line))) for line in path.read_text().splitlines()]
    assert kinds == ["began", "case", "began", "case", "case"]
