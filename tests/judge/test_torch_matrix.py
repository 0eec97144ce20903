"""The matrix of torch versions: what it concludes, on runs that are made up. Real ones: test_torch_environments.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import pytest

from sdpalab.inputs import make_inputs
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.rule.reference import attention_float64
from sdpalab.problem import Problem
from sdpalab.torch_matrix.compare import compare
from sdpalab.torch_matrix.matrix import OWN_CHOICE, Change, Conclusion, Matrix, Run

Array = np.ndarray[Any, Any]

U = 2.0**-11
HERE = metadata.version("torch")
SPECS = [CaseSpec(f"case {seed}", Problem(1, 2, 24, 32), seed=seed) for seed in (0, 1)]


def right(spec: CaseSpec) -> Array:
    inputs = make_inputs(spec.problem, seed=spec.seed or 0)
    exact = attention_float64(inputs.q, inputs.k, inputs.v, scale=spec.problem.scale, causal=False)
    return exact.astype(np.float16)


def one_unit_off(out: Array) -> Array:
    """Every twentieth element to the next number of the type."""
    changed = out.copy()
    changed.reshape(-1)[::20] = np.nextafter(changed, np.float16(np.inf)).reshape(-1)[::20]
    return changed


def scaled(out: Array) -> Array:
    return (out.astype(np.float64) * (1 + 4 * U)).astype(np.float16)


def one_row_off(out: Array) -> Array:
    """The smallest row wrong by half a percent: more than 2 u in that row, less than u / 2 of all 48."""
    changed = out.copy()
    row = np.unravel_index(np.argmin(np.linalg.norm(out.astype(float), axis=-1)), out.shape[:3])
    changed[row] *= np.float16(1.005)
    return changed


def with_nan(out: Array) -> Array:
    changed = out.copy()
    changed[0, 0, 0, 0] = np.nan
    return changed


def same(out: Array) -> Array:
    return out


Change_ = Callable[[Array], Array]


class Story:
    """Runs whose arrays lie in a dictionary, as the environments leave theirs in a folder."""

    def __init__(self) -> None:
        self.arrays: dict[str, bytes] = {}

    def put(self, array: Array) -> str:
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        self.arrays[digest] = array.tobytes()
        return digest

    def load(self, digest: str, problem: Problem) -> Array:
        return np.frombuffer(self.arrays[digest], np.float16).reshape(problem.q_shape)

    def run(
        self,
        version: str,
        kernel: Change_ | None = same,
        choice: str = "flash",
        **witnesses: Change_,
    ) -> Run:
        """One version: what the kernel and each witness make of the right output (flash and math unless said)."""
        changes = {"flash": one_unit_off, "math": same, **witnesses}
        digests, cases = {}, []
        for spec in SPECS:
            out = right(spec)
            digests[spec.name] = {name: self.put(change(out)) for name, change in changes.items()}
            digests[spec.name][OWN_CHOICE] = digests[spec.name][choice]
            verdict = {"digests": {"o": self.put(kernel(out))}, "status": "PASSED"} if kernel else {}
            cases.append({"name": spec.name, "status": "CRASHED", "digests": {}, **verdict})
        return Run(version, torch=version, verdict={"cases": cases, "passed": kernel is not None}, witnesses=digests)

    def matrix(self, *runs: Run) -> Matrix:
        return compare(SPECS, runs, self.load)


@pytest.fixture
def story() -> Story:
    return Story()


def test_the_same_bits_are_neither(story: Story) -> None:
    matrix = story.matrix(story.run("2.5"), story.run("2.6"))
    assert matrix.conclusion is Conclusion.NEITHER_CHANGED
    assert matrix.base == "2.5"
    assert {row.output.change for row in matrix.rows if row.output} == {Change.SAME_BITS}
    assert matrix.sentence == (
        "neither the kernel nor the reference changed: the kernel's output is the same bits with every version; "
        "no witness moved by more than rounding explains"
    )


def test_a_witness_that_moves_by_roundings_has_not_changed(story: Story) -> None:
    matrix = story.matrix(story.run("2.5"), story.run("2.6", math=one_unit_off))
    assert matrix.conclusion is Conclusion.NEITHER_CHANGED
    (math,) = (witness for witness in matrix.rows[1].witnesses if witness.name == "math")
    assert math.drift
    assert (math.drift.change, math.drift.cases) == (Change.ROUNDING, 2)
    assert 0 < math.drift.rel_l2 < U / 2


@pytest.mark.parametrize("change", [scaled, one_row_off, with_nan])
def test_a_witness_that_moves_further_is_a_reference_that_changed(story: Story, change: Change_) -> None:
    matrix = story.matrix(story.run("2.5"), story.run("2.6", math=change))
    assert matrix.conclusion is Conclusion.REFERENCE_CHANGED
    assert "with torch 2.6 torch's math moved by" in matrix.sentence
    assert "the kernel's output is the same bits" in matrix.sentence
    json.dumps(matrix.to_dict(), allow_nan=False)


def test_the_sentence_says_how_good_the_witness_was_and_is(story: Story) -> None:
    matrix = story.matrix(story.run("2.5"), story.run("2.6", math=scaled))
    before, after = (w.rel_l2 for row in matrix.rows for w in row.witnesses if w.name == "math")
    assert before
    assert after
    assert before < U < 3 * U < after
    assert f"its error against float64 went from {before:.2e} to {after:.2e}" in matrix.sentence


@pytest.mark.parametrize(("change", "explained"), [(one_unit_off, "no more than"), (scaled, ", more than")])
def test_any_bit_of_the_output_is_a_kernel_that_changed(story: Story, change: Change_, explained: str) -> None:
    matrix = story.matrix(story.run("2.5"), story.run("2.6", kernel=change))
    assert matrix.conclusion is Conclusion.KERNEL_CHANGED
    assert "with torch 2.6 the kernel's output differs from that with 2.5 in 2 of 2 cases" in matrix.sentence
    assert f"{explained} rounding explains" in matrix.sentence


def test_a_kernel_that_gives_nothing_in_one_version_has_changed(story: Story) -> None:
    matrix = story.matrix(story.run("2.5"), story.run("2.6", kernel=None))
    assert matrix.conclusion is Conclusion.KERNEL_CHANGED
    assert (matrix.rows[1].passed, matrix.rows[1].cases, matrix.rows[1].contract) == (0, 2, 0)


def test_both_can_change(story: Story) -> None:
    matrix = story.matrix(story.run("2.5"), story.run("2.6", kernel=scaled, flash=scaled))
    assert matrix.conclusion is Conclusion.BOTH_CHANGED


def test_torchs_own_choice_of_another_backend_is_a_change_of_the_reference(story: Story) -> None:
    matrix = story.matrix(story.run("2.5", flash=scaled, choice="math"), story.run("2.6", flash=scaled))
    assert [row.own_choice for row in matrix.rows] == ["math", "flash"]
    assert matrix.conclusion is Conclusion.REFERENCE_CHANGED
    assert matrix.sentence.endswith("and its own choice from math to flash")


def test_the_original_contract_measures_by_torchs_own_choice(story: Story) -> None:
    """What this project started from: the kernel is the same and right, and the contract passes it, then fails it."""
    worse = {"flash": lambda out: scaled(scaled(out))}
    matrix = story.matrix(story.run("2.1"), story.run("2.5", **worse))
    assert [row.contract for row in matrix.rows] == [2, 0]
    assert [row.passed for row in matrix.rows] == [2, 2]
    assert matrix.conclusion is Conclusion.REFERENCE_CHANGED


def test_what_did_not_run_is_a_row_and_the_next_version_the_base(story: Story) -> None:
    matrix = story.matrix(Run("2.4", reason="no wheel"), story.run("2.5"), story.run("2.6"))
    assert [row.ran for row in matrix.rows] == [False, True, True]
    assert matrix.base == "2.5"
    assert matrix.to_dict()["rows"][0]["reason"] == "no wheel"


def test_one_version_alone_is_not_compared(story: Story) -> None:
    matrix = story.matrix(Run("2.4", reason="no wheel"), story.run("2.5"))
    assert matrix.conclusion is Conclusion.NOT_COMPARED
    assert "2.5 is the only version" in matrix.sentence
