"""Two implementations of the rule, written apart, must agree: the judge's and the stand-alone verifier's."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from standalone import verify

from sdpalab.compile import build
from sdpalab.compile.resources import resources
from sdpalab.errors import UserError
from sdpalab.inputs import E4M3_KINDS, INPUT_KINDS, Inputs, dtype_of, make_inputs
from sdpalab.judge.rule.exact import exact_elements
from sdpalab.judge.rule.limits import limits_for, measure
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64, measure_lse
from sdpalab.judge.rule.numerics import UNDECLARED, check_numerics, intended_output, orders_of
from sdpalab.judge.rule.reference import attention_float64, judged_rows
from sdpalab.judge.verdict import ORIGINAL_CONTRACT, Status, broken_rules, keeps_original_contract
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.kernels.plan import Launch, Module
from sdpalab.problem import EXTRAS, TWELVE_CASES, Problem

PROBLEMS = (
    Problem(1, 2, 31, 32),
    Problem(2, 4, 9, 64, kv_heads=2, seq_kv=23, causal=True),
    Problem(1, 1, 1, 64),
    Problem(1, 2, 40, 128, dtype="bfloat16"),
    Problem(1, 2, 33, 64, dtype="bfloat16", causal=True, scale=0.5),
    Problem(1, 2, 30, 32, seq_kv=12, window_size=(9, 3)),  # the last rows see no key
    Problem(1, 2, 31, 64, causal=True, window_size=(6, 0), softcap=20.0),
    Problem(2, 2, 20, 32, seq_kv=33, kv_lengths=(0, 21), attn_mask="bool:B,1"),
    Problem(2, 4, 12, 32, kv_heads=2, attn_mask="float:1,H", causal=True, dtype="bfloat16"),
    Problem(1, 3, 26, 32, alibi_slopes=True, sinks=True, window_size=(9, 4)),
    Problem(1, 4, 21, 32, kv_heads=2, causal=True, dtype="float32"),
    Problem(2, 2, 9, 32, kv_lengths=(0, 7), attn_mask="float:1,H", softcap=9.0, sinks=True, dtype="float32"),
)


def decoded(array: Any, dtype: str) -> Any:
    """The verifier's view of an array of the lab."""
    return verify.decode(array.tobytes(), array.shape, dtype)


def given(problem: Problem, inputs: Inputs) -> Any:
    """The verifier's view of a problem with its inputs."""
    forms = problem.array_shapes
    arrays = {name: decoded(array, forms[name][1]) for name, array in inputs.arrays.items() if name in forms}
    q, k, v = (decoded(array, problem.dtype) for array in inputs.qkv)
    return verify.Operands(q, k, v, {**problem.to_dict(), "arrays": arrays})


def close(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Floats to a relative 1e-9, everything else exactly."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, float):
            assert value == pytest.approx(right[name], rel=1e-9, abs=1e-300), name
        else:
            assert list(np.atleast_1d(value)) == list(np.atleast_1d(right[name])), name


@pytest.mark.sample
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("kind", sorted(INPUT_KINDS))
def test_errors_limits_and_status_agree(problem: Problem, kind: str) -> None:
    """On every kind of inputs, for right and wrong outputs, and with both sorts of declared numerics."""
    try:
        inputs = make_inputs(problem, kind, 11)
    except UserError:
        pytest.skip("this kind cannot be made for this problem")
    qkv = (inputs.q, inputs.k, inputs.v)
    common: dict[str, Any] = {**problem.scoring_with(inputs.arrays)}
    reference = attention_float64(*qkv, **common)
    own_inputs = given(problem, inputs)
    exact = verify.Exact(verify.reference_of(own_inputs), problem.dtype)
    np.testing.assert_allclose(exact.values, reference, rtol=1e-12, atol=1e-300)
    outputs = [intended_output(*qkv, **common, numerics=order) for order in orders_of(UNDECLARED)]
    intended_own = [verify.intended_of(own_inputs, asdict(order)) for order in orders_of(UNDECLARED)]
    for own, theirs in zip(intended_own, outputs, strict=True):
        np.testing.assert_array_equal(own, decoded(theirs, problem.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        wrong = [(reference * 1.01).astype(dtype_of(problem.dtype)), np.zeros_like(outputs[0]), outputs[0].copy()]
    wrong[-1][(*np.argwhere(judged_rows(*qkv))[-1], 0)] = np.nan
    statuses = set()
    for declared in (outputs[:1], outputs):
        fixed = exact_elements(*qkv, **common, any_count=len(declared) == 1)
        own_fixed = verify.fixed_elements(own_inputs, any_count=len(declared) == 1)
        np.testing.assert_array_equal(own_fixed[1], fixed.mask)
        np.testing.assert_array_equal(own_fixed[0], decoded(fixed.expected, problem.dtype))
        limits = limits_for(reference, outputs[1], declared, problem.dtype)
        measured = [verify.errors_of(own, exact) for own in intended_own]
        intended = {n: max(m[n] for m in measured[: len(declared)]) for n in verify.LIMITED}
        derived = verify.limits_of(exact, measured[1], intended, problem.dtype)
        close(asdict(limits), derived)
        for out in (*outputs, *wrong):
            errors = measure(out, reference, problem.dtype, fixed)
            own_errors = verify.errors_of(decoded(out, problem.dtype), exact, own_fixed)
            if errors.max_abs > 1e-12 * np.nanmax(np.abs(reference)):  # else the place of the largest is arbitrary
                close({name: value for name, value in asdict(errors).items() if name != "lse"}, own_errors)
            broken = broken_rules(errors, limits)
            status = "NOT_FINITE" if "not_finite" in broken else "INCORRECT" if broken else "PASSED"
            assert verify.status_of(own_errors, derived) == status
            assert verify.keeps_original_contract(own_errors) is keeps_original_contract(errors)
            statuses.add(status)
    assert statuses >= {"PASSED", "NOT_FINITE"}
    assert "INCORRECT" in statuses or problem.seq_kv == 1


@pytest.mark.parametrize("kind", [*E4M3_KINDS, "uniform", "needle", "onehot"])
def test_what_is_exact_of_a_kernel_that_quantises_agrees(kind: str) -> None:
    counts = []
    for problem in (problem for problem in PROBLEMS if problem.dtype != "float32"):
        try:
            inputs = make_inputs(problem, kind, 11)
        except UserError:
            continue
        own_inputs = given(problem, inputs)
        for rows in (0, 7):
            fixed = exact_elements(
                *inputs.qkv, **problem.scoring_with(inputs.arrays), any_count=True, quantised=Quantisation(rows=rows)
            )
            own = verify.fixed_elements(own_inputs, any_count=True, block=rows)
            np.testing.assert_array_equal(own[1], fixed.mask)
            np.testing.assert_array_equal(own[0], decoded(fixed.expected, problem.dtype))
            counts.append(fixed.count)
    assert sum(counts) > 100


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", sorted(INPUT_KINDS))
def test_the_log_sum_exp_and_its_limits_agree(kind: str) -> None:
    """For right, wrong and missing ones, of every declared arithmetic that changes it."""
    numerics = (
        Numerics(),
        Numerics(accumulate="float16"),
        Numerics(accumulate="float16", accumulate_terms=16),
        Numerics(quantised=Quantisation(rows=7)),
        Numerics(products="tf32", tanh="approx"),
    )
    for problem in PROBLEMS:
        try:
            inputs = make_inputs(problem, kind, 11)
        except UserError:
            continue
        own_inputs = given(problem, inputs)
        for declared in numerics:
            reference, limit = log_sum_exp_float64(
                *inputs.qkv, **problem.scoring_with(inputs.arrays), numerics=declared
            )
            own = verify.lse_of(own_inputs, asdict(declared))
            for one, other in zip(own, (reference, limit), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12)
            right = (reference + 0.3 * limit).astype(np.float32)
            wrong, missing = (reference + 3 * limit).astype(np.float32), right.copy()
            missing[tuple(np.argwhere(judged_rows(inputs.q, inputs.k, inputs.v))[-1])] = np.nan
            for lse, status in ((right, "PASSED"), (wrong, "INCORRECT"), (missing, "NOT_FINITE")):
                lse_errors = measure_lse(lse, reference, limit)
                figures = verify.lse_errors_of(lse, *own, list(lse_errors.row))
                assert figures["row"] == list(lse_errors.row)
                assert figures["not_finite"] == lse_errors.not_finite
                assert figures["limit"] == pytest.approx(lse_errors.limit, rel=1e-9)
                assert figures["error"] == pytest.approx(lse_errors.error, abs=1e-6 * lse_errors.limit)
                assert lse_errors.within_limit is (status == "PASSED")
                fine = dict.fromkeys((*verify.LIMITED, "not_finite", "exact_wrong"), 0)
                assert verify.status_of(fine, fine, figures) == status
                assert verify.status_of({**fine, "max_abs": 1}, fine, figures) == "INCORRECT"


FLOAT8 = "float8_e4m3fn"
DECLARED = (
    Numerics(probabilities="float32"),
    Numerics(probabilities="bfloat16"),
    Numerics(probabilities=FLOAT8),
    Numerics(probabilities=FLOAT8, probability_scale=448.0),
    Numerics(accumulate="float16"),
    Numerics(accumulate="float16", accumulate_terms=4),
    Numerics(accumulate="float16", accumulate_terms=16),
    Numerics(probabilities=FLOAT8, probability_scale=256.0, quantised=Quantisation()),
    Numerics(quantised=Quantisation(rows=7)),
    Numerics(normalise="before"),
    Numerics(probabilities=FLOAT8, probability_scale=448.0, normalise="before"),
    Numerics(products="tf32"),
    Numerics(tanh="approx"),
    Numerics(tanh="approx", normalise="before"),
)


@pytest.mark.parametrize("numerics", DECLARED, ids=str)
def test_every_declared_arithmetic_is_emulated_alike(numerics: Numerics) -> None:
    """To the bit, whatever the inputs; and the verifier has a rule for it."""
    declared = numerics.to_dict()
    assert verify.has_rule_for(declared)
    for problem in PROBLEMS:
        for kind in ("normal", "outlier", "tiny", "huge", "uniform"):
            inputs = make_inputs(problem, kind, 3)
            qkv = (inputs.q, inputs.k, inputs.v)
            theirs = intended_output(*qkv, **problem.scoring_with(inputs.arrays), numerics=numerics)
            own = verify.intended_of(given(problem, inputs), declared)
            np.testing.assert_array_equal(own, decoded(theirs, problem.dtype), err_msg=f"{problem.label} {kind}")


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": "bfloat16"},
        {"probabilities": "float8"},
        {"probability_scale": 2.0},
        {"probabilities": FLOAT8, "probability_scale": 449.0},
        {"probabilities": FLOAT8, "probability_scale": 100.0},
        {"quantised": {"dtype": "int8", "rows": 0}},
        {"quantised": {"dtype": FLOAT8, "rows": -1}},
        {"quantised": {"dtype": FLOAT8, "rows": True}},
        {"normalise": "either"},
        {"normalise": "first"},
        {"accumulate_terms": 8},
        {"accumulate": "float16", "accumulate_terms": 2},
        {"accumulate": "float16", "accumulate_terms": True},
        {"products": "bfloat16"},
        {"tanh": "fast"},
    ],
    ids=str,
)
def test_the_lab_and_the_verifier_refuse_the_same_numerics(changes: dict[str, Any]) -> None:
    fields = {**asdict(Numerics()), **changes}
    assert not verify.has_rule_for(fields)
    with pytest.raises(UserError, match="numerics"):
        check_numerics(Numerics.from_dict(fields))


def test_float8_is_rounded_as_ml_dtypes_does() -> None:
    """Every float8 number, the middle between each two, and its neighbours; above 448 it saturates."""
    numbers = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    values = np.concatenate(
        (numbers, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(9e9)))
    )
    for sign in (1, -1):
        expected = (sign * values).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        np.testing.assert_array_equal(verify.rounded(sign * values, FLOAT8), expected)
    assert verify.rounded(np.float32(1e9), FLOAT8) == 448


def test_float16_is_rounded_as_numpy_does() -> None:
    """Every finite float16 number, the middle between each two, and its neighbours; what is too large; no number."""
    numbers = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    inside = np.concatenate(
        (numbers, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(9e9)))
    )
    for values in (inside, np.append(inside, np.float32([65519.99, 65520, 1e9, np.inf, np.nan]))):
        for signed in (values, -values):
            with np.errstate(over="ignore"):
                expected = signed.astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(verify.rounded(signed, "float16"), expected)
            np.testing.assert_array_equal(np.signbit(verify.rounded(signed, "float16")), np.signbit(expected))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mask", ["", "bool:B,1", "float:1,H"])
def test_normal_inputs_are_made_again(dtype: str, mask: str) -> None:
    plain = Problem(2, 4, 33, 64, kv_heads=2, seq_kv=21, dtype=dtype)
    problem = plain.with_(attn_mask=mask, kv_lengths=(20, 3), alibi_slopes=True, sinks=True) if mask else plain
    inputs, forms = make_inputs(problem, "normal", 5), problem.array_shapes
    again = dict(verify.normal_inputs(problem.to_dict(), 5))
    assert list(again) == list(inputs.arrays)
    for name, array in again.items():
        np.testing.assert_array_equal(array, decoded(getattr(inputs, name), forms[name][1] if name in forms else dtype))
    other = dict(verify.normal_inputs(problem.to_dict(), 6))
    assert not np.array_equal(other["q"], decoded(inputs.q, dtype))


def test_bfloat16_is_rounded_and_decoded_as_ml_dtypes_does() -> None:
    values = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ties = (np.arange(0x3F80_0000, 0x3F80_0000 + 64 * 0x8000, 0x8000, dtype=np.uint64)).astype(np.uint32)
    values = np.concatenate((values[np.isfinite(values)], ties.view(np.float32)))
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(verify.rounded(values, "bfloat16"), expected.astype(np.float32))
    np.testing.assert_array_equal(decoded(expected, "bfloat16"), expected.astype(np.float32))


FORMAT_3 = {
    "attempt": "kernel config idea builds verdict failure figures",
    "verdict": "kernel config device level seed status passed reason original_contract cases",
    "case": "name problem inputs seed status reason errors limits digests run original_contract",
    "problem": "batch heads seq_q head_dim kv_heads seq_kv dtype causal scale",
    "build": "directory name module key entry arch compiler command compile_seconds cache_hit sources files "
    "resources gate",
    "resources": "arch registers stack_bytes spill_bytes reported_spill_bytes static_shared_bytes "
    "dynamic_shared_bytes constant_bytes threads_per_block blocks_per_sm warps_per_sm limiter sass main_loop "
    "tensor_share",
    "gate": "rules reason ok",
    "rule": "name value limit kind ok",
    "figure": "name value unit kind gpu source",
    "algebra": "name problem seed status reason prime factor expected_factor compared unequal left_out lse_unequal "
    "digests ptx_sha256 lse_refusal",
}
"""The fields that every record has since format 3, and ``algebra`` since 5: what changes one of them takes another
format number. Formats 4, 6 and 7 added fields that a record lacks while they are empty."""


def test_the_verifier_has_the_format_the_statuses_and_the_twelve_cases_of_the_lab() -> None:
    assert verify.FORMAT == 7
    sparse = verify.SPARSE
    always = {kind: sorted(set(names) - set(sparse.get(kind, ()))) for kind, names in verify.KEYS.items()}
    assert {kind: sorted(names.split()) for kind, names in FORMAT_3.items()} == always
    lacking = {
        "attempt": ["sources"],
        "verdict": ["unjudged", "algebra", "covers", "confinement"],
        "algebra": ["config"],
        "rule": ["advisory"],
    }
    assert sparse == {**lacking, "problem": list(EXTRAS)}
    assert set(verify.STATUSES) == {status.value for status in Status}
    shapes = [((p.batch, p.heads, p.seq_q, p.head_dim), seed) for p, seed in TWELVE_CASES]
    assert shapes == verify.TWELVE
    assert dict(ORIGINAL_CONTRACT) == verify.ORIGINAL_CONTRACT
    assert UNDECLARED.to_dict() == verify.UNDECLARED
    assert all(verify.is_plain(p.to_dict()) for p, _ in TWELVE_CASES)
    for change in ({"causal": True}, {"window_size": (3, 3)}, {"softcap": 30.0}):
        assert not verify.is_plain(TWELVE_CASES[0][0].with_(**change).to_dict())


SOURCE = """
extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2.0f; }
extern "C" __global__ void heavy(float* x, int n) {
    __shared__ float tile[1000];
    float local[64];
    for (int i = 0; i < n; ++i) local[(i * i) & 63] = x[i];
    tile[threadIdx.x] = local[n & 63] + local[(n * n) & 63];
    __syncthreads();
    x[threadIdx.x] = tile[n];
}
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("entry", "arch"),
    [
        ("plain", "sm_80"),
        ("plain", "sm_89"),
        ("heavy", "sm_80"),
        ("heavy", "sm_89"),
        ("heavy", "sm_90"),
        ("heavy", "sm_120"),
    ],
)
def test_resources_are_read_from_the_cubin_as_the_disassembler_does(entry: str, arch: str) -> None:
    built = build(Module("two.cu", SOURCE, entry), arch)
    used = resources(built, Launch((1, 1, 1), (64, 1, 1), ()))
    for name, value in verify.cubin_resources(built.cubin, built.entry).items():
        assert value == getattr(used, name), name
    if entry == "heavy":
        assert used.stack_bytes > 0
        assert used.static_shared_bytes == 4000


@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_120"])
def test_a_kernel_without_shared_memory_has_none(arch: str) -> None:
    used = verify.cubin_resources(build(Module("two.cu", SOURCE, "plain"), arch).cubin, "plain")
    assert (used["static_shared_bytes"], used["stack_bytes"]) == (0, 0)
    assert 4 <= used["registers"] <= 32


def test_a_cubin_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a 64-bit ELF"):
        verify.cubin_resources(b"nothing", "x")
    built = build(Module("two.cu", SOURCE, "plain"))
    with pytest.raises(ValueError, match="has no entry other"):
        verify.cubin_resources(built.cubin, "other")
