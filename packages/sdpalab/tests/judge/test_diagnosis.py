"""The diagnosis: a planted bug is said to be of its own class, and nothing is said of what fits nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from attention import output_of, outputs_of

from sdpalab.bugs import Bug, Family
from sdpalab.bugs.catalogue import BUGS
from sdpalab.bugs.cause import Cause
from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.diagnose.diagnosis import Diagnosis, diagnose, explanations, first_sight
from sdpalab.judge.diagnose.error_map import MOST_COLUMNS, MOST_ROWS, error_map
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.diagnose.gradients import GradientFailure, failure_of_gradients
from sdpalab.judge.rule.evaluate import Judged, judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

PLAIN = Problem(1, 2, 100, 64)
CAUSAL = PLAIN.with_(causal=True)


def judged(problem: Problem, kind: str, out: npt.NDArray[np.generic]) -> Judged:
    return judge_output(problem, make_inputs(problem, kind), out, UNDECLARED)


def failure(bug: Bug, problem: Problem, kind: str) -> Failure | None:
    inputs = make_inputs(problem, kind)
    out = output_of(bug.edit, problem, inputs)
    verdict = judged(problem, kind, out)
    if verdict.status is Status.PASSED:
        return None
    return Failure(problem, inputs, out, verdict.errors, verdict.limits, written=True)


def diagnosed(name: str, problem: Problem, *kinds: str) -> Diagnosis | None:
    torch.set_num_threads(1)
    failures = [failure(BUGS[name], problem, kind) for kind in kinds]
    failed = [one for one in failures if one is not None]
    assert failed, "the bug does not show on these inputs"
    return diagnose(failed)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("name", "problem", "cause", "words"),
    [
        ("zeros", PLAIN, Cause.NO_ATTENTION, "all zeros"),
        ("the mean of V", PLAIN, Cause.NO_ATTENTION, "mean of all of V"),
        ("query i sees key i + 1", CAUSAL, Cause.MASK, "query i sees key i + 1"),
        ("aligned to the bottom right", Problem(1, 2, 60, 64, seq_kv=90, causal=True), Cause.MASK, "bottom right"),
        ("the mask is off by one from row 128 on", CAUSAL.with_(seq_q=170, seq_kv=170), Cause.MASK, "i from 128"),
        ("query head h reads K/V head h mod Hkv", Problem(1, 4, 60, 32, kv_heads=2), Cause.HEADS, "h mod Hkv"),
        ("O in [B, S, H, D] order in memory that is read as [B, H, S, D]", PLAIN, Cause.LAYOUT, "O is written"),
        ("K and V change places", PLAIN, Cause.OPERANDS, "K is taken for V, and V for K"),
        ("the rescale of O is lost", PLAIN, Cause.RESCALE, "O is not rescaled, in tiles of 32 keys"),
        ("the rescale of the sum is lost", PLAIN, Cause.RESCALE, "the sum is not rescaled, in tiles of 32 keys"),
        ("zeros up to the end of the tile count as keys", PLAIN, Cause.PADDING, "28 rows of zeros"),
        ("the last key is left out", PLAIN, Cause.KEYS, "the last one is left out"),
        ("V of the tile before (a stage that was not waited for)", PLAIN, Cause.KEYS, "V is that of the tile of 32"),
        ("the scores are not scaled", PLAIN, Cause.SCORES, "8 times the right one: the scale is missing"),
        ("a scale that is 1% too large", PLAIN, Cause.SCORES, "1.01 times"),
        ("weights of the absolute scores", PLAIN, Cause.EXPONENTIAL, "without their signs"),
        (
            "rows 8 apart change places (an accumulator's layout misread)",
            PLAIN,
            Cause.ROWS,
            "the row 8 before or after",
        ),
        ("rows after the last whole tile are those of the tile before", PLAIN, Cause.ROWS, "the row 32 further back"),
        ("columns of O change places in pairs (an accumulator's layout misread)", PLAIN, Cause.COLUMNS, "column 1 "),
        ("the output is divided by the number of keys", PLAIN, Cause.NORMALISATION, "in the middle"),
        ("the last row is not written", PLAIN, Cause.EDGE, "rows from i=99 on"),
        ("the last column is that before it", PLAIN, Cause.COLUMNS, "1 of 64 columns hold the column 1 further back"),
        ("one row in the middle is wrong by 2%", PLAIN, Cause.PLACE, "1 of 200 rows, with i from 50 to 50"),
        ("Q in float8 e4m3", PLAIN, Cause.PRECISION, "times the limit"),
        ("the output passes through bfloat16", PLAIN, Cause.PRECISION, "every element is a bfloat16 number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_planted_bug_is_named(name: str, problem: Problem, cause: Cause, words: str) -> None:
    diagnosis = diagnosed(name, problem, "normal", "ramp")
    assert diagnosis is not None
    assert diagnosis.cause is cause, diagnosis
    assert words in diagnosis.detail


def failed_gradients(bug: Bug, problem: Problem, kind: str) -> GradientFailure | None:
    inputs = make_inputs(problem, kind)
    outputs = outputs_of(bug.edit, problem, inputs)
    verdict = judge_output(problem, inputs, outputs, UNDECLARED)
    figures = {name: (each.errors, each.limits) for name, each in verdict.figures.items()}
    return None if verdict.status is Status.PASSED else failure_of_gradients(problem, inputs, outputs, figures)


OF_GRADIENTS = [bug for bug in BUGS.values() if bug.family is Family.GRADIENTS and not bug.in_source]
UNNAMED = (
    "the log-sum-exp is rounded to the inputs' type",
    "dQ is added to the accumulator of the call before",
    "dQ is a sum in an order that differs between runs, without a declaration",
    "dV has the shape of K",
    "dO is read as if it were contiguous",
    "O is read with the strides of dO",
    "K is read as if it were contiguous",
)
"""Bugs that no single run on contiguous inputs shows, or whose error is noise."""


@pytest.mark.sample(12)
@pytest.mark.parametrize("bug", [bug for bug in OF_GRADIENTS if bug.id[10:] not in UNNAMED], ids=lambda bug: bug.id)
def test_a_bug_of_gradients_is_named_with_the_wrong_gradients(bug: Bug) -> None:
    torch.set_num_threads(1)
    failed = failed_gradients(bug, bug.problem, "normal") or failed_gradients(bug, bug.problem, "negative")
    assert failed is not None
    diagnosis = diagnose([failed])
    assert diagnosis is not None
    assert diagnosis.cause is bug.cause, diagnosis
    assert set(diagnosis.outputs) <= set(failed.wrong)


def test_random_gradients_have_no_diagnosis() -> None:
    problem = Problem(1, 2, 60, 32, task="backward")
    inputs, rng = make_inputs(problem), np.random.default_rng(0)
    outputs = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in problem.outputs.items()}
    verdict = judge_output(problem, inputs, outputs, UNDECLARED)
    figures = {name: (each.errors, each.limits) for name, each in verdict.figures.items()}
    assert diagnose([failure_of_gradients(problem, inputs, outputs, figures)]) is None
    assert "hint" not in verdict.reason


def test_the_hint_takes_no_scores_and_the_reference_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, out = make_inputs(PLAIN), np.zeros(PLAIN.q_shape, np.float16)
    verdict = judged(PLAIN, "normal", out)
    assert verdict.reason.endswith("hint: the scores have no effect (it is all zeros)")
    reference = attention_float64(**inputs.arrays, scale=PLAIN.scale, causal=False)
    monkeypatch.delattr("sdpalab.judge.diagnose.failure.attention_float64")
    given = Failure(PLAIN, inputs, out, verdict.errors, verdict.limits, reference)
    assert first_sight(given) == Diagnosis(Cause.NO_ATTENTION, "it is all zeros")
    assert "scores" not in vars(given.workings)
    assert error_map(given).startswith("head (b=0, h=")
    assert diagnose([given]) == first_sight(given)


def test_what_overflows_is_named() -> None:
    diagnosis = diagnosed("no maximum is subtracted", PLAIN, "negative")
    assert diagnosis is not None
    assert diagnosis.cause is Cause.RANGE


def test_random_numbers_have_no_diagnosis_and_neither_has_nothing() -> None:
    inputs = make_inputs(PLAIN)
    out = np.random.default_rng(0).standard_normal(PLAIN.q_shape).astype(np.float16)
    verdict = judged(PLAIN, "normal", out)
    assert explanations(Failure(PLAIN, inputs, out, verdict.errors, verdict.limits)) == ()
    assert diagnose([]) is None


def test_few_numbers_among_nan_are_not_explained() -> None:
    inputs = make_inputs(PLAIN)
    out = np.full(PLAIN.q_shape, np.nan, np.float16)
    out[:, :, :5] = 0
    verdict = judged(PLAIN, "normal", out)
    assert diagnose([Failure(PLAIN, inputs, out, verdict.errors, verdict.limits)]) is None


def test_the_map_shows_where_the_error_is_in_shades_of_its_limit() -> None:
    problem = Problem(1, 2, 64, 64)
    inputs = make_inputs(problem)
    reference = attention_float64(**inputs.arrays, scale=problem.scale, causal=False)
    out = reference.astype(np.float16)
    limit = judged(problem, "normal", out).limits.max_abs
    out[0, 1, 12:18, 6:8] += np.float16(6 * limit)
    out[0, 1, 40, 63] = np.nan
    verdict = judged(problem, "normal", out)
    first, *lines = error_map(Failure(problem, inputs, out, verdict.errors, verdict.limits)).splitlines()
    assert first.startswith("head (b=0, h=1), blocks of 6 rows and 2 columns")
    assert len(lines) == 11 < MOST_ROWS
    assert {len(line) for line in lines} == {len("i=60 ||") + 32}
    shades = [line.partition("|")[2].rstrip("|") for line in lines]
    assert shades[2][3] == "*"
    assert shades[6][31] == "@"
    rest = "".join(shades).replace("*", "", 1).replace("@", "", 1)
    assert set(rest) <= set(" .:-")


@pytest.mark.parametrize(("seq", "dim"), [(1, 32), (17, 100), (500, 256)])
def test_the_map_is_small(seq: int, dim: int) -> None:
    problem = Problem(1, 1, seq, dim)
    inputs, out = make_inputs(problem), np.zeros(problem.q_shape, np.float16)
    verdict = judged(problem, "normal", out)
    _, *lines = error_map(Failure(problem, inputs, out, verdict.errors, verdict.limits)).splitlines()
    assert 1 <= len(lines) <= MOST_ROWS
    assert {line.count("|") for line in lines} == {2}
    assert max(len(line.split("|")[1]) for line in lines) <= MOST_COLUMNS
