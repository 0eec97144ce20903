"""Outputs of timed calls: small ones are judged whole, large ones by sampled rows; and what was found once is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule import references
from sdpalab.judge.rule.numerics import UNDECLARED, intended_output
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.kernels.fp8 import FP8
from sdpalab.kernels.kernel import Numerics
from sdpalab.measure.outputs import SAMPLED_FROM, SAMPLED_ROWS, OutputCheck, Outputs, sampled_rows
from sdpalab.measure.peers import PEERS
from sdpalab.measure.subjects import peer_subject
from sdpalab.problem import MISSION, Problem

LARGE = Problem(1, 2, SAMPLED_FROM, 32)


def outputs_of(problem: Problem) -> Outputs:
    return Outputs(problem, make_inputs(problem))


def right(outputs: Outputs) -> np.ndarray:
    """torch's own output for all rows."""
    problem, inputs = outputs.problem, outputs.inputs
    return torch_output(inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=problem.causal)


# ---- the sample ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_q", [SAMPLED_FROM, 4096, 4099, 16384])
def test_the_sample_has_the_first_the_last_and_rows_at_borders_of_tiles(seq_q: int) -> None:
    rows = sampled_rows(seq_q)
    assert rows is not None
    assert len(rows) == len(set(rows)) == SAMPLED_ROWS
    assert (np.diff(rows) > 0).all()
    last = (seq_q - 1) // 64 * 64
    assert {0, 63, 64, last - 1, last, seq_q - 1} <= set(rows)
    assert sum(row % 64 == 0 and row - 1 in rows for row in rows) >= 16
    assert np.array_equal(rows, sampled_rows(seq_q))
    assert not np.array_equal(rows, sampled_rows(seq_q, seed=1))


def test_short_ones_are_judged_whole() -> None:
    assert sampled_rows(SAMPLED_FROM - 1) is None
    assert sampled_rows(1) is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("numerics", [UNDECLARED, FP8.numerics_of(), Numerics(accumulate="float16")], ids=str)
def test_rows_of_a_reference_are_those_of_all_rows(causal: bool, numerics: Numerics) -> None:
    problem = Problem(1, 4, 70, 32, kv_heads=2, seq_kv=90, causal=causal)
    inputs, rows = make_inputs(problem), np.array([0, 1, 17, 63, 64, 69])
    options: dict[str, Any] = {"scale": problem.scale, "causal": causal}
    qkv = (inputs.q, inputs.k, inputs.v)
    whole, some = (attention_float64(*qkv, **options, rows=each) for each in (None, rows))
    np.testing.assert_allclose(some, whole[:, :, rows], rtol=1e-12, atol=1e-15)
    order = Numerics(**{**vars(numerics), "normalise": "after"})
    whole, some = (intended_output(*qkv, **options, numerics=order, rows=each) for each in (None, rows))
    np.testing.assert_array_equal(some, whole[:, :, rows])
    whole, some = (torch_output(*qkv, **options, rows=each) for each in (None, rows))
    np.testing.assert_allclose(some.astype(float), whole[:, :, rows].astype(float), atol=1e-3)


# ---- what is found ---------------------------------------------------------------------------------------------------


def test_a_small_output_is_held_against_the_judges_rule() -> None:
    problem = MISSION.with_(heads=1, seq_q=32)
    outputs = outputs_of(problem)
    check = OutputCheck(outputs)
    subject = peer_subject(PEERS[0], outputs, torch.device("cpu"))
    subject.call()
    assert subject.check() == ""
    assert check({"o": outputs.inputs.q}).startswith("INCORRECT")
    assert check({"o": outputs.inputs.q[:, :, :8]}) == "the output is float16 (1, 1, 8, 64), not float16 (1, 1, 32, 64)"
    subject.overwrite_output()
    assert subject.check().startswith("NOT_FINITE")


def test_gradients_are_all_held_against_the_rule() -> None:
    """Each of the three is checked, overwritten, and judged in full where O is sampled."""
    problem = Problem(1, 2, 40, 32, kv_heads=1, causal=True, task="backward")
    outputs = outputs_of(problem)
    subject = peer_subject(PEERS[0], outputs, torch.device("cpu"))
    subject.call()
    assert subject.check() == ""
    gradients = {
        name: each.reference.astype(np.float16) for name, each in outputs.references.expected(UNDECLARED).items()
    }
    assert OutputCheck(outputs)(gradients) == ""
    for name in gradients:
        wrong = {**gradients, name: gradients[name] * np.float16(1.1)}
        assert OutputCheck(outputs)(wrong).startswith(f"INCORRECT: {name}: ")
    assert OutputCheck(outputs)({"dq": gradients["dq"], "dk": gradients["dk"]}) == (
        "dv is nothing, not float16 (1, 1, 40, 32)"
    )
    subject.overwrite_output()
    assert subject.check().startswith("NOT_FINITE: dq: ")
    assert Outputs(LARGE.with_(task="backward", batch=1, heads=1), outputs.inputs).references.rows is None


@pytest.mark.parametrize("causal", [False, True])
def test_a_large_output_that_is_right_passes(causal: bool) -> None:
    outputs = outputs_of(LARGE.with_(causal=causal))
    out = right(outputs)
    assert OutputCheck(outputs)({"o": out}) == ""
    again = out.copy()
    again[0, 1, 77, 3] = np.nextafter(again[0, 1, 77, 3], np.float16(np.inf))
    assert OutputCheck(outputs)({"o": again}) == ""


def test_a_wrong_row_of_the_sample_is_found() -> None:
    outputs = outputs_of(LARGE)
    out = right(outputs)
    rows = outputs.references.rows
    assert rows is not None
    for row in (0, int(rows[50]), LARGE.seq_q - 1):
        wrong = out.copy()
        wrong[0, 1, row] *= np.float16(1.1)
        reason = OutputCheck(outputs)({"o": wrong})
        assert reason.startswith(f"INCORRECT in {SAMPLED_ROWS} sampled rows of each head: ")
        assert reason.endswith(f"the worst row is (b=0, h=1, i={row})")


def outside(outputs: Outputs) -> int:
    rows = outputs.references.rows
    assert rows is not None
    return next(row for row in range(700, 900) if row not in rows)


def test_an_element_that_is_not_finite_is_found_anywhere() -> None:
    outputs = outputs_of(LARGE)
    wrong, row = right(outputs), outside(outputs)
    wrong[0, 0, row, 5] = np.nan
    assert (
        OutputCheck(outputs)({"o": wrong})
        == f"NOT_FINITE: 1 of {wrong.size} elements, the first at (b=0, h=0, i={row}, d=5)"
    )


def test_a_wrong_row_outside_the_sample_is_found_by_another_subjects_output() -> None:
    outputs = outputs_of(LARGE)
    out, row = right(outputs), outside(outputs)
    wrong = out.copy()
    wrong[0, 1, row] = 0
    assert OutputCheck(outputs)({"o": wrong}) == "", "nothing but the sample is known of the first output"
    # The second is right where it differs from the first, and a third one is not.
    assert OutputCheck(outputs)({"o": out}) == ""
    other = out.copy()
    other[0, 0, row] = 0
    reason = OutputCheck(outputs)({"o": other})
    assert reason.startswith("INCORRECT in a row that differs from another subject's: max_abs ")
    assert f"(b=0, h=0, i={row}, " in reason


# ---- what is computed once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [Problem(1, 1, 16, 32), LARGE], ids=lambda problem: problem.label)
def test_references_are_computed_once_for_all_subjects(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    for name in ("attention_float64", "torch_output", "intended_output"):
        original = getattr(references, name)

        def noting(*args: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            computed.append(name)
            return original(*args, **options)

        monkeypatch.setattr(references, name, noting)
    outputs = outputs_of(problem)
    out = right(outputs)
    for numerics in (None, None, Numerics(), Numerics()):
        assert OutputCheck(outputs, numerics)({"o": out}) == ""
    # Peers take both orders of normalising; the kernels take the one that they declare.
    assert sorted(computed) == ["attention_float64", *["intended_output"] * 3, "torch_output"]


def test_the_same_bits_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = outputs_of(Problem(1, 1, 16, 32))
    judged: list[bool] = []
    wrong = outputs.wrong

    def noting(*arguments: Any) -> str:
        judged.append(True)
        return wrong(*arguments)

    monkeypatch.setattr(outputs, "wrong", noting)
    subject = peer_subject(PEERS[0], outputs, torch.device("cpu"))
    for _ in range(3):
        subject.call()
        assert subject.check() == ""
    assert len(judged) == 1
