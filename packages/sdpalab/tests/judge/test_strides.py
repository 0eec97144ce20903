"""Q, K and V that are not contiguous: the same values, and a candidate that reads them as if they were is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge import CaseSpec, judge_candidate, quick_cases
from sdpalab.judge.sandbox.callables import CallableRunner
from sdpalab.judge.strides import Strides, expandable, lay_out
from sdpalab.judge.tensors import from_torch
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

PROBLEM = Problem(1, 3, 20, 32, kv_heads=3, seq_kv=24)
STRANGE = (Strides.BSHD, Strides.PADDED)
SHARED = (Strides.ONE_HEAD, Strides.ONE_ENTRY)
READS_ON = {"one_head": Status.NOT_FINITE, "one_entry": Status.CRASHED}  # in the padding, and behind it
OF_ANY = tuple(strides for strides in Strides if strides is not Strides.APPENDED)
SPECS = [
    CaseSpec(strides.value, PROBLEM.with_(batch=2 if strides is Strides.ONE_ENTRY else 1), strides=strides)
    for strides in OF_ANY
]


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)


def takes_strides_for_granted(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """As a kernel launched on data_ptr() does that gets shapes only."""
    q, k, v = (tensor.as_strided(tensor.shape, torch.empty(tensor.shape).stride()) for tensor in (q, k, v))
    return attention(q, k, v, scale=scale, causal=causal)


def forgets_the_offset(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    q, k, v = (tensor.as_strided(tensor.shape, tensor.stride(), 0) for tensor in (q, k, v))
    return attention(q, k, v, scale=scale, causal=causal)


def cannot_view(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    flat = [tensor.view(*tensor.shape[:2], -1) for tensor in (q, k, v)]
    q, k, v = (tensor.view(*tensor.shape[:2], -1, PROBLEM.head_dim) for tensor in flat)
    return attention(q, k, v, scale=scale, causal=causal)


def writes_into_the_gaps(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    out = attention(q, k, v, scale=scale, causal=causal)
    if k.storage_offset():
        torch.as_strided(k, (1,), (1,), k.storage_offset() - 1).zero_()
    return out


def takes_a_batch_entry_for_one_piece(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """As a copy of ``stride(0)`` elements for each batch entry does."""
    pieces = [x.as_strided((len(x), x.stride(0)), (x.stride(0), 1)) for x in (q, k, v) if x.stride(0)]
    return attention(q, k, v, scale=scale, causal=causal) + 0 * sum(piece[0, 0] for piece in pieces)


def takes_a_stride_of_zero_for_none(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """As a launcher does that computes strides itself where they are not set."""
    k, v = (x if all(x.stride()) else x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in (k, v))
    return attention(q, k, v, scale=scale, causal=causal)


def in_the_inputs_own_strides(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return torch.empty_strided(q.shape, q.stride(), dtype=q.dtype).copy_(attention(q, k, v, scale=scale, causal=causal))


@pytest.mark.parametrize("strides", STRANGE, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_strides_keep_the_values_and_is_not_contiguous(strides: Strides, dtype: str) -> None:
    k = make_inputs(PROBLEM.with_(dtype=dtype)).k
    storage, view = lay_out(k, strides)
    assert storage.flags.c_contiguous
    assert not view.flags.c_contiguous
    assert np.shares_memory(storage, view)
    np.testing.assert_array_equal(view, k)
    assert view.strides[-1] == k.itemsize  # head_dim is what every kernel reads in one piece
    assert np.isnan(storage).sum() == storage.size - k.size


@pytest.mark.parametrize("strides", [*SHARED, Strides.SINGLE], ids=str)
def test_expanded_and_single_axes_keep_the_values(strides: Strides) -> None:
    k = make_inputs(PROBLEM.with_(batch=2) if strides is Strides.ONE_ENTRY else PROBLEM).k
    storage, view = lay_out(k, strides)
    assert np.shares_memory(storage, view)
    if strides is Strides.SINGLE:
        np.testing.assert_array_equal(view, k)
        assert view.strides[0] > storage.nbytes
    else:
        axis = SHARED.index(strides)
        assert view.strides[1 - axis] == 0
        np.testing.assert_array_equal(view, expandable(k, strides))
        np.testing.assert_array_equal(view.take(0, 1 - axis), k.take(0, 1 - axis))
        assert np.isfinite(storage).sum() == k.size / k.shape[1 - axis]


def test_padding_has_an_offset_and_gaps_on_all_sides_at_multiples_of_16_bytes() -> None:
    storage, view = lay_out(make_inputs(PROBLEM).q, Strides.PADDED)
    offset = view.__array_interface__["data"][0] - storage.__array_interface__["data"][0]
    assert offset > 0
    assert {offset % 16, *(stride % 16 for stride in view.strides[:-1])} == {0}
    inside = np.zeros(storage.shape, bool)
    inside[np.isfinite(storage)] = True
    for axis in range(4):
        assert not inside.take(0, axis=axis).any()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("candidate", "statuses", "words"),
    [
        (attention, {}, ""),
        (
            takes_strides_for_granted,
            {"bshd": Status.INCORRECT, "padded": Status.NOT_FINITE, **READS_ON},
            "",
        ),
        (takes_a_batch_entry_for_one_piece, dict.fromkeys(("padded", "single"), Status.CRASHED), "out of bounds"),
        (takes_a_stride_of_zero_for_none, READS_ON, ""),
        (forgets_the_offset, {"padded": Status.NOT_FINITE}, "elements are not finite"),
        (cannot_view, {"bshd": Status.CRASHED, "padded": Status.CRASHED}, "raised RuntimeError: view size"),
        (writes_into_the_gaps, {"padded": Status.INPUT_CHANGED}, "wrote to its input k"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_candidate_makes_of_strides(
    candidate: Callable[..., Any], statuses: dict[str, Status], words: str
) -> None:
    verdict = judge_candidate(candidate, SPECS, workers=1)
    assert {case.name: case.status for case in verdict.cases if not case.passed} == statuses
    assert [case.run.get("strides", "contiguous") for case in verdict.cases] == [spec.strides.value for spec in SPECS]
    for case in verdict.cases:
        assert words in case.reason or case.passed
        if not case.passed:
            assert case.reason.endswith(Strides(case.name).says)


def test_a_result_in_the_strides_of_q_passes() -> None:
    specs = [spec for spec in SPECS if spec.strides is not Strides.SINGLE]  # torch allocates what the strides span
    assert judge_candidate(in_the_inputs_own_strides, specs, workers=1).passed


@pytest.mark.parametrize("strides", OF_ANY, ids=str)
def test_new_data_in_the_memory_of_the_run_before_has_its_strides(strides: Strides) -> None:
    seen: list[tuple[int, tuple[int, ...], npt.NDArray[Any]]] = []

    def looks(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        seen.append((k.data_ptr(), k.stride(), from_torch(k).copy()))
        return attention(q, k, v, scale=scale, causal=causal)

    runner = CallableRunner(looks)
    made = (make_inputs(PROBLEM, seed=seed) for seed in (0, 1))
    first, second = (replace(x, k=expandable(x.k, strides), v=expandable(x.v, strides)).arrays for x in made)
    runner.run(PROBLEM, first, 0xFF, reuse=False, strides=strides)
    _, notes = runner.run(PROBLEM, second, 0xFF, reuse=True, strides=strides)
    assert notes["changed"] == []
    assert seen[0][:2] == seen[1][:2]
    for (_, _, k), inputs in zip(seen, (first, second), strict=True):
        np.testing.assert_array_equal(k, inputs["k"])


def test_quick_cases_have_each_layout_once_on_a_small_problem() -> None:
    specs = [spec for spec in quick_cases([Problem(2, 8, 4096, 64)]) if spec.strides != Strides.CONTIGUOUS]
    assert sorted(spec.strides for spec in specs) == sorted({*OF_ANY} - {Strides.CONTIGUOUS})
    assert {spec.strides: spec.problem.batch for spec in specs}[Strides.ONE_ENTRY] == 2
    assert {spec.strides: spec.problem.kv_heads for spec in specs}[Strides.SINGLE] == 1
    assert {(spec.problem.seq_q, spec.inputs, spec.seed) for spec in specs} == {(180, "normal", None)}
    alone = [spec.strides for spec in quick_cases([Problem(1, 1, 50, 64)]) if spec.strides != Strides.CONTIGUOUS]
    assert not {Strides.BSHD, Strides.ONE_HEAD} & {*alone}  # one head's rows follow each other in either order


@pytest.mark.slow
def test_a_kernel_that_the_lab_builds_gets_contiguous_buffers() -> None:
    specs = [CaseSpec(strides.value, Problem(1, 1, 5, 32), strides=strides) for strides in Strides]
    verdict = judge_candidate("scalar", specs, workers=1)
    assert [case.name for case in verdict.cases] == ["contiguous"]
    assert verdict.passed
    with pytest.raises(UserError, match="none of the requested cases suits scalar"):
        judge_candidate("scalar", specs[1:], workers=1)
