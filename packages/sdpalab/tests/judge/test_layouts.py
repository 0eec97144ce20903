"""Packed sequences and pages: buffers have the form of FlashAttention, everything beside the sequences is NaN, and the
verdict names the row of a page, or behind a sequence, whose NaN reached the output."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge import CaseSpec, judge, judge_candidate, quick_cases
from sdpalab.judge.verdict import Status
from sdpalab.layout import Layout
from sdpalab.packing import TAIL, Packing
from sdpalab.problem import Problem, ProblemError

LENGTHS: dict[str, Any] = {"q_lengths": (3, 0, 20, 1), "kv_lengths": (7, 24, 0, 18)}
VARLEN = Problem(4, 4, 20, 32, kv_heads=2, seq_kv=24, layout="varlen", **LENGTHS)
PAGED = Problem(3, 4, 2, 32, kv_heads=2, seq_kv=50, layout="paged:8", kv_lengths=(50, 0, 33))
GAPS = VARLEN.with_(layout="varlen:gaps")
PROBLEMS = (
    VARLEN,
    GAPS,
    PAGED,
    PAGED.with_(layout="varlen,paged:8", q_lengths=(2, 1, 0)),
    VARLEN.with_(task="backward"),
    PAGED.with_(q_lengths=(0, 2, 1), sinks=True, alibi_slopes=True),
)


def attention(q: Any, k: Any, v: Any, scale: float, causal: bool, bottom_right: bool) -> Any:
    """One sequence, [S, H, D], in float32."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (tensor.transpose(0, 1).float() for tensor in (q, k, v))
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * scale
    if causal:
        first = k.shape[1] - q.shape[1] if bottom_right else 0
        seen = torch.arange(k.shape[1]) <= torch.arange(q.shape[1])[:, None] + first
        scores = scores.masked_fill(~seen, -math.inf)
    weights = torch.nan_to_num(torch.softmax(scores, -1))
    return (weights @ v.repeat_interleave(group, 0)).transpose(0, 1)


def varlen(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, cu_seqlens_q: Any, cu_seqlens_k: Any, seqused_k: Any = None,
    bottom_right: bool = False,
) -> Any:  # fmt: skip
    out = torch.full((q.shape[0], q.shape[1], v.shape[2]), math.nan, dtype=q.dtype)
    for n, (start, end) in enumerate(pairwise(cu_seqlens_q.tolist())):
        first, last = cu_seqlens_k[n], cu_seqlens_k[n + 1]
        last = last if seqused_k is None else first + seqused_k[n]
        out[start:end] = attention(q[start:end], k[first:last], v[first:last], scale, causal, bottom_right)
    return out


def paged(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, block_table: Any, cache_seqlens: Any,
    bottom_right: bool = False,
) -> Any:  # fmt: skip
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for n, length in enumerate(cache_seqlens.tolist()):
        pages = block_table[n, : -(-length // k.shape[1])].long()
        keys, values = (cache[pages].flatten(0, 1)[:length] for cache in (k, v))
        out[n] = attention(q[n], keys, values, scale, causal, bottom_right)
    return out


def ignores_seqused(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, cu_seqlens_q: Any, cu_seqlens_k: Any, seqused_k: Any
) -> Any:
    return varlen(q, k, v, scale=scale, causal=causal, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)


def reads_on_in_the_last_page(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, block_table: Any, cache_seqlens: Any
) -> Any:
    full = -(-cache_seqlens // k.shape[1]) * k.shape[1]
    return paged(q, k, v, scale=scale, causal=causal, block_table=block_table, cache_seqlens=full)


def takes_the_identity_for_the_table(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, block_table: Any, cache_seqlens: Any
) -> Any:
    identity = torch.arange(block_table.numel()).reshape(block_table.shape) % len(k)
    return paged(q, k, v, scale=scale, causal=causal, block_table=identity, cache_seqlens=cache_seqlens)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
def test_buffers_hold_the_sequences_and_nan_and_unpack_again(problem: Problem) -> None:
    inputs = make_inputs(problem)
    buffers = Packing(problem).pack(inputs.arrays)
    assert {name: (array.shape, array.dtype.name) for name, array in buffers.items()} == Packing(problem).inputs
    rows = {"q": problem.q_lengths or (problem.seq_q,) * problem.batch, "v": problem.kv_lengths or ()}
    for name, lengths in rows.items():
        columns = math.prod(buffers[name].shape[-2:])
        shared = 2 * 8 if problem.paged and problem.batch == 2 else 0
        assert np.isfinite(buffers[name]).sum() == (sum(lengths) - shared) * columns
    outputs = {name: np.full(shape, math.inf, dtype) for name, (shape, dtype) in Packing(problem).outputs.items()}
    logical = {**problem.outputs, "lse": problem.q_shape[:3]}
    assert {name: array.shape for name, array in Packing(problem).unpack(outputs).items()} == {
        n: logical[n] for n in outputs
    }
    if not problem.paged:  # an output of the form of Q, filled with Q, is Q again
        name = "dq" if problem.backward else "o"
        np.testing.assert_array_equal(Packing(problem).unpack({name: buffers["q"]})[name], inputs.q)


def test_every_key_is_where_the_block_table_says() -> None:
    inputs = make_inputs(PAGED)
    buffers = Packing(PAGED).pack(inputs.arrays)
    table = buffers["block_table"]
    for entry, length in enumerate(PAGED.kv_lengths or ()):
        for key in range(length):
            row = buffers["k"][table[entry, key // 8], key % 8]
            np.testing.assert_array_equal(row, inputs.k[entry, :, key])
        assert (table[entry, -(-length // 8) :] == -1).all()
    assert list(table[0, :7]) != sorted(table[0, :7])
    spare = Packing(PAGED).pack(inputs.arrays, loud=True)["block_table"][1]  # a sequence without keys
    assert not np.isfinite(buffers["k"][spare]).any()


def test_pages_with_the_same_keys_and_values_are_shared_in_normal_inputs_only() -> None:
    problem = PAGED.with_(batch=2, kv_lengths=(50, 40))
    tables = {
        kind: Packing(problem).pack(make_inputs(problem, kind).arrays)["block_table"] for kind in ("normal", "needle")
    }
    shared = {kind: len(set(table[0]) & set(table[1]) - {-1}) for kind, table in tables.items()}
    assert shared == {"normal": 2, "needle": 0}


def test_queries_behind_the_last_sequence_are_padding() -> None:
    shapes = {**Packing(VARLEN).inputs, **Packing(VARLEN).outputs}
    assert {shapes[name][0][0] for name in ("q", "o")} == {24 + TAIL}
    assert shapes["lse"] == ((4, 24 + TAIL), "float32")


@pytest.mark.parametrize(
    ("candidate", "problem", "status", "words"),
    [
        (varlen, VARLEN, Status.PASSED, ""),
        (varlen, GAPS.with_(causal=True, bottom_right=True), Status.PASSED, ""),
        (paged, PAGED, Status.PASSED, ""),
        (paged, PAGED.with_(causal=True, bottom_right=True), Status.PASSED, ""),
        (
            ignores_seqused,
            VARLEN.with_(layout="varlen:gaps"),
            Status.NOT_FINITE,
            "row 7 of k, behind the end of sequence 0",
        ),
        (reads_on_in_the_last_page, PAGED, Status.NOT_FINITE, "behind the end of sequence 0, is padding"),
        (takes_the_identity_for_the_table, PAGED, Status.NOT_FINITE, ""),
    ],
    ids=lambda value: getattr(value, "__name__", getattr(value, "label", "")),
)
def test_verdicts_of_candidates(candidate: Any, problem: Problem, status: Status, words: str) -> None:
    [case] = judge_candidate(candidate, [CaseSpec("layout", problem)], workers=1).cases
    assert (case.status, words in case.reason) == (status, True), case.reason


def test_a_layout_has_cases_with_empty_sequences_and_lengths_at_the_edges_of_pages() -> None:
    lengths = [spec.problem.kv_lengths or (1,) for spec in quick_cases([PAGED])]
    assert any(each[0] == 0 and each[-1] == 0 for each in lengths)
    assert any({7, 8, 9} <= set(each) for each in lengths)
    assert {spec.problem.layout for spec in quick_cases([PAGED])} == {"paged:8"}


def test_a_function_that_needs_packed_sequences_takes_no_other() -> None:
    with pytest.raises(UserError, match="takes varlen problems only, and 1x2x8x32 is none: add --layout varlen"):
        judge(varlen, [Problem(1, 2, 8, 32)])


@pytest.mark.parametrize(
    "text", ["varle", "paged", "paged:0", "paged:x", "dense,paged:4", "varlen,varlen", "varlen:gaps,paged:4"]
)
def test_an_unknown_layout_is_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="layout must be dense, varlen"):
        Problem(1, 1, 8, 32, layout=text)


def test_layouts_without_masks_or_gradients_say_so() -> None:
    with pytest.raises(ProblemError, match="layout varlen has no attn_mask"):
        VARLEN.with_(attn_mask="bool")
    with pytest.raises(ProblemError, match="layout paged:8 has no gradients"):
        PAGED.with_(task="backward")


@pytest.mark.parametrize("text", ["dense", "varlen", "varlen:gaps", "paged:16", "varlen,paged:256"])
def test_a_layout_keeps_its_name(text: str) -> None:
    assert str(Layout.parse(text)) == text
