"""Padding is NaN in every case: a candidate that reads it is rejected by name, and the rule depends on none of it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sdpalab.bugs.catalogue import BUGS
from sdpalab.bugs.cause import Cause
from sdpalab.inputs import INPUT_KINDS, Inputs, loud_padding, make_inputs, padded_rows, with_padding
from sdpalab.inputs.reference import attention_float64, judged_rows
from sdpalab.judge import judge_candidate
from sdpalab.judge.diagnose.diagnosis import diagnose
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.exact import exact_elements
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.rule.numerics import UNDECLARED, intended_output
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.judge.small_cases import CaseSpec, possible
from sdpalab.judge.stale import other_inputs
from sdpalab.judge.strides import Strides, guarded
from sdpalab.judge.torch_backends import Backend, backend_output
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.problem import Problem

PADDED = Problem(2, 4, 40, 64, kv_heads=2, seq_kv=128, kv_lengths=(100, 37))
CAPPED = PADDED.with_(softcap=9.0, sinks=True)
SPECS = [
    CaseSpec(strides.value, PADDED, strides=strides)
    for strides in Strides
    if strides.shared_axis is None and strides is not Strides.APPENDED
]
FROM_37 = "key 37 of batch 1 is padding"


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, kv_lengths: Any, enable_gqa: bool) -> Any:
    """torch's attention with the padding as a mask: weights of 0 meet what lies there."""
    mask = torch.arange(k.shape[2]) < kv_lengths[:, None, None, None]
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, is_causal=causal, enable_gqa=enable_gqa
    )


def clears(q: Any, k: Any, v: Any, *, scale: float, causal: bool, kv_lengths: Any, enable_gqa: bool) -> Any:
    padding = (torch.arange(k.shape[2]) >= kv_lengths[:, None])[:, None, :, None]
    assert k.masked_select(padding).isnan().all()
    assert v.masked_select(padding).isnan().all()
    cleared = (each.masked_fill(padding, 0.0) for each in (k, v))
    return attention(q, *cleared, scale=scale, causal=causal, kv_lengths=kv_lengths, enable_gqa=enable_gqa)


def looks_around(q: Any, k: Any, v: Any, *, scale: float, causal: bool, kv_lengths: Any, enable_gqa: bool) -> Any:
    """Raises unless the memory beside each tensor is NaN, or -1 of lengths."""
    for each in (q, k, v, kv_lengths) if k.is_contiguous() else ():
        size = each.numel() * each.element_size()
        for start in (each.data_ptr() - 1024, each.data_ptr() + size):
            assert ctypes.string_at(start, 1024) == b"\xff" * 1024
    return clears(q, k, v, scale=scale, causal=causal, kv_lengths=kv_lengths, enable_gqa=enable_gqa)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", list(INPUT_KINDS))
def test_padding_is_nan_in_every_kind_of_inputs(kind: str, dtype: str) -> None:
    problem = PADDED.with_(dtype=dtype)
    if not possible(problem, kind):
        pytest.skip("this kind cannot be made for this problem")
    inputs, padding = make_inputs(problem, kind, 1), padded_rows(problem.kv_lengths, 2, 128)
    assert padding.sum() == 28 + 91
    for array in (inputs.k, inputs.v):
        nan = np.isnan(array.astype(np.float64))
        assert nan.all(axis=3)[np.broadcast_to(padding[:, None], nan.shape[:3])].all()
        assert kind == "nan_heads" or not nan.any(axis=3)[np.broadcast_to(~padding[:, None], nan.shape[:3])].any()


def test_without_padding_nothing_changes() -> None:
    full = PADDED.with_(kv_lengths=(128, 128))
    inputs = make_inputs(full)
    assert all(np.isfinite(array).all() for array in inputs.qkv)
    assert with_padding(inputs.k, full.kv_lengths, math.nan) is inputs.k
    arrays = inputs.arrays
    again = loud_padding(arrays)
    assert all(again[name] is array for name, array in arrays.items())


@pytest.mark.parametrize("problem", [PADDED, CAPPED, PADDED.with_(kv_lengths=(0, 37))], ids=lambda each: each.label)
def test_the_rule_depends_on_no_padding(problem: Problem) -> None:
    """All rows are judged, by the same references, whatever lies behind the lengths."""
    inputs = make_inputs(problem, "normal", 3)
    numerics = Numerics(quantised=Quantisation(rows=32))

    def references(each: Inputs) -> list[Any]:
        scoring: Any = problem.scoring_with(each.arrays)
        elements = exact_elements(*each.qkv, **scoring)
        return [
            attention_float64(*each.qkv, **scoring),
            *log_sum_exp_float64(*each.qkv, **scoring, numerics=UNDECLARED),
            *(intended_output(*each.qkv, **scoring, numerics=one) for one in (Numerics(), numerics)),
            torch_output(*each.qkv, **scoring),
            elements.expected,
            elements.mask,
        ]

    expected = references(inputs.padded(0.0))
    assert np.isfinite(expected[0]).all()
    for fill in (math.nan, math.inf, -math.inf):
        filled = inputs.padded(fill)
        assert judged_rows(*filled.qkv, filled.kv_lengths).all()
        for one, other in zip(references(filled), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_non_finite_keys_that_a_row_may_see_are_not_judged_as_before() -> None:
    inputs = make_inputs(PADDED)
    inputs.v[1, 0, 36, 5] = math.nan
    judged = judged_rows(*inputs.qkv, inputs.kv_lengths)
    assert judged[0].all()
    assert judged[1].all(axis=1).tolist() == [False, False, True, True]
    assert not judged_rows(*make_inputs(PADDED).qkv).any()  # without lengths there is no padding


@pytest.mark.parametrize("backend", [Backend.MATH, Backend.FLASH])
def test_torch_backends_get_zeros(backend: Backend) -> None:
    inputs = make_inputs(PADDED)
    scoring: Any = PADDED.scoring_with(inputs.arrays)
    assert np.isfinite(backend_output(*inputs.qkv, backend=backend, **scoring)).all()


@pytest.mark.parametrize(
    ("candidate", "words"), [(clears, ""), (looks_around, ""), (attention, FROM_37)], ids=lambda each: str(each)[:20]
)
def test_a_callable_gets_nan(candidate: Callable[..., Any], words: str) -> None:
    specs = [CaseSpec(f"{spec.name} 37", PADDED.with_(kv_lengths=(128, 37)), strides=spec.strides) for spec in SPECS]
    verdict = judge_candidate(candidate, specs, workers=1)
    assert [case.status for case in verdict.cases] == [Status.NOT_FINITE if words else Status.PASSED] * len(SPECS)
    for case in verdict.cases:
        assert words in case.reason
        assert "so they were never written" not in case.reason


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("bug", "status"),
    [
        ("flash: V behind a length is not cleared", Status.NOT_FINITE),
        ("flash: the maximum is taken before the padding is masked", Status.NONDETERMINISTIC),
        ("hopper: a tile that a length cuts is loaded with its padding", Status.NOT_FINITE),
        ("padding counts in the scale of a block of V", Status.NOT_FINITE),
        ("V of the padding is not cleared, and meets weights of 0", Status.NOT_FINITE),
    ],
)
def test_a_planted_bug_is_rejected_for_its_padding(bug: str, status: Status) -> None:
    candidate = BUGS[bug].candidate
    verdict = judge_candidate(candidate, [CaseSpec("padded", BUGS[bug].problem)], workers=1, algebra=False)
    assert verdict.status is status
    assert "key 83 of batch 1 is padding" in verdict.reason
    if status is Status.NONDETERMINISTIC:
        assert verdict.reason.endswith("which was NaN in the first run and infinite in the second")


def test_strides_that_are_taken_for_granted_read_the_padding_between() -> None:
    bug = BUGS["strides are taken for those of contiguous memory"]
    spec = CaseSpec("padded", Problem(1, 2, 40, 32), strides=Strides.PADDED)
    verdict = judge_candidate(bug.candidate, [spec], workers=1)
    assert verdict.status is Status.NOT_FINITE
    assert verdict.reason.endswith("Q, K and V lie within larger memory whose padding is NaN, with an offset and gaps")


def test_a_diagnosis_blames_padding_only_where_there_is_some() -> None:
    inputs = make_inputs(PADDED.with_(kv_lengths=(128, 37)))
    problem, failures = PADDED.with_(kv_lengths=(128, 37)), []
    right = attention_float64(*inputs.qkv, **problem.scoring_with(inputs.arrays)).astype(np.float16)
    for entries in ((1,), (0, 1)):
        out = right.copy()
        out[list(entries), :, 3:] = math.nan
        judged = judge_output(problem, inputs, out, UNDECLARED)
        assert (FROM_37 in judged.reason) is (entries == (1,))
        failures.append(Failure(problem, inputs, out, judged.errors, judged.limits, written=True))
    blamed = diagnose(failures[:1])
    assert blamed is not None
    assert blamed.cause is Cause.PADDING
    assert blamed.detail.startswith(FROM_37)
    assert diagnose(failures[1:]) is None


def test_other_data_in_the_same_memory_have_the_same_padding() -> None:
    inputs = make_inputs(PADDED)
    other = other_inputs(inputs, 7)
    for one, changed in ((inputs.k, other.k), (inputs.v, other.v)):
        assert np.array_equal(np.isnan(one), np.isnan(changed))
        assert np.array_equal(np.sort(one, axis=2), np.sort(changed, axis=2), equal_nan=True)
        assert not np.array_equal(one, changed, equal_nan=True)
    few = make_inputs(PADDED.with_(kv_lengths=(100, 2)))
    np.testing.assert_array_equal(other_inputs(few, 7).v, -few.v)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.uint8])
def test_memory_around_an_array_has_all_bits_set(dtype: type) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    storage, view = guarded(array)
    np.testing.assert_array_equal(view, array)
    assert view.flags.c_contiguous
    begin = view.ctypes.data - storage.ctypes.data
    assert begin % 1024 == 0
    around = np.delete(storage.view(np.uint8), slice(begin, begin + array.nbytes))
    assert len(around) == 2 * begin
    assert (around == 0xFF).all()
